//! A worker: claims jobs, runs them under their leases, and drains when it is told to.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::{Worker, workload::handler::{HandlerError, Job, LeaseHandle}};
//!
//! let worker = Worker::builder()
//!     .database("postgres://localhost/app")
//!     .handler("send-email", |job: Job<String>, lease: LeaseHandle| async move {
//!         println!("epoch {}: a letter to {}", lease.epoch(), job.payload);
//!         Ok::<_, HandlerError>(())
//!     })
//!     .build()
//!     .await?;
//! let exit = worker.run_until(async { drop(tokio::signal::ctrl_c().await) }).await?;
//! println!("{exit:?}");
//! # Ok(())
//! # }
//! ```
//!
//! Whatever is not said in the program is read from the environment (see [`crate::config`]), so that an
//! operator tunes an embedded worker as one of `leasehold worker`.
//!
//! The worker owns its threads: one for the actors that hold leases, two for the database, and some for
//! handlers and probes. Nothing of it runs on the caller's runtime but the waiting.

mod signals;

use std::{collections::BTreeMap, future::Future, sync::Arc};

use leasehold_actors::{
    domain::{RecipeSpec, Route},
    error::StoreError,
    ports::{EngineFactory, LeaseStore, recipe::RecipeStore},
};
use serde::{Serialize, de::DeserializeOwned};

pub use self::signals::StopSignals;
use crate::{
    config::{ConfigError, DatabaseSettings, Effective, Sources, WorkerSettings, table::Key},
    postgres::{ConnectError, PgStore},
    recipe::{
        execution::{ExecutionHandoff, OnHandoff},
        op::Ops,
        ops::{
            self,
            secrets::{SecretError, Secrets},
        },
        schemas::{BadSchema, route_schemas},
        supplied::{Listener, RunEnd, RunRequest, RunStop, Supplied},
    },
    wiring::{self, Runtimes, Wiring},
    workload::{
        handler::{HandlerError, Handlers, Job, LeaseHandle},
        heartbeat::{HeartbeatProbe, HeartbeatSettingsError},
    },
};

pub use crate::wiring::{Health, HintHealth, Leases, RunError, WorkerExit};

/// A worker that is ready to run.
#[derive(Debug)]
pub struct Worker {
    wiring: Wiring,
}

/// Why a worker cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A setting of the probes cannot be used.
    #[error(transparent)]
    Heartbeat(#[from] HeartbeatSettingsError),
    /// A secret for ops cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The database cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The database gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A schema of an op cannot be used.
    #[error("the {side} schema of op {op:?}: {error}")]
    Schema {
        /// The op.
        op: String,
        /// `input` or `output`.
        side: &'static str,
        /// Why.
        error: BadSchema,
    },
    /// Nothing to do.
    #[error(
        "this worker serves nothing; register a handler, or let it run heartbeats, containers or recipes"
    )]
    NothingToServe,
    /// The operating system gave no thread.
    #[error("cannot start the worker's threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// Gathers what a worker needs.
#[derive(Debug, Default)]
pub struct WorkerBuilder {
    url: Option<String>,
    database: Option<DatabaseSettings>,
    settings: Option<WorkerSettings>,
    changes: Vec<Change>,
    handlers: Handlers,
    heartbeats: bool,
    containers: bool,
    recipes: Option<Ops>,
    job_types: Vec<String>,
    on_handoff: Option<Told>,
    between: wiring::Between,
}

struct Told(OnHandoff);

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnHandoff")
    }
}

struct Change(Box<dyn FnOnce(&mut WorkerSettings) + Send>);

impl std::fmt::Debug for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Change")
    }
}

impl Worker {
    /// Begins with nothing: no handler, no heartbeats, no containers, no recipes, and settings from the environment.
    #[must_use]
    pub fn builder() -> WorkerBuilder {
        WorkerBuilder::default()
    }

    /// The store that the worker uses; submit through it what the worker shall run.
    #[must_use]
    pub fn store(&self) -> &PgStore {
        self.wiring.store()
    }

    /// How the worker is doing, from now until it has ended. Cheap to clone, usable from any thread.
    #[must_use]
    pub fn health(&self) -> Health {
        self.wiring.health()
    }

    /// Runs until `shutdown` resolves, then drains: claims nothing more, renews on, lets running work end for
    /// `EXECUTION_WORKER_SHUTDOWN_GRACE`, stops the rest and gives it back. Dropping the returned future
    /// stops the work at once.
    ///
    /// # Errors
    /// [`RunError`] when a part of the worker keeps dying, or work is stuck and the settings say to exit.
    pub async fn run_until<S>(self, shutdown: S) -> Result<WorkerExit, RunError>
    where
        S: Future<Output = ()> + Send,
    {
        self.run_until_or_now(shutdown, std::future::pending()).await
    }

    /// As [`Worker::run_until`]; and when `now` resolves, whether a drain has begun or not, the work is
    /// stopped at once and given back as far as the database confirms it within 2 s.
    ///
    /// # Errors
    /// As [`Worker::run_until`].
    pub async fn run_until_or_now<S, N>(self, shutdown: S, now: N) -> Result<WorkerExit, RunError>
    where
        S: Future<Output = ()> + Send,
        N: Future<Output = ()> + Send,
    {
        self.wiring.run(shutdown, now).await
    }

    /// Gives leases that the worker holds away, from when it runs until it has ended.
    #[must_use]
    pub fn leases(&self) -> Leases {
        self.wiring.leases()
    }

    /// Runs one lease that somebody else acquired instead of claiming any: with the ops, secrets, allocation and times
    /// of this worker. A request without routes is for whatever this worker serves. `stop` ends it early. See
    /// [`crate::recipe::supplied`].
    pub async fn run_with_lease(
        self,
        lease: Supplied,
        request: RunRequest,
        listener: Listener,
        stop: RunStop,
    ) -> RunEnd {
        self.wiring.run_with_lease(lease, request, listener, stop).await
    }
}

impl WorkerBuilder {
    /// The database's address; otherwise `DATABASE_URL` counts.
    #[must_use]
    pub fn database(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// All that is said about the database at once.
    #[must_use]
    pub fn database_settings(mut self, settings: DatabaseSettings) -> Self {
        self.database = Some(settings);
        self
    }

    /// All settings at once, in place of those of the environment.
    #[must_use]
    pub fn settings(mut self, settings: WorkerSettings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// Changes single settings; the last word, after the environment.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut WorkerSettings) + Send + 'static) -> Self {
        self.changes.push(Change(Box::new(change)));
        self
    }

    /// Registers the function for the HANDLER jobs of this name; see [`crate::workload::handler`].
    #[must_use]
    pub fn handler<T, R, F, Fut>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
        F: Fn(Job<T>, LeaseHandle) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        self.handlers.register(name, handler);
        self
    }

    /// Whether it makes HEARTBEAT probes.
    #[must_use]
    pub fn heartbeats(mut self, yes: bool) -> Self {
        self.heartbeats = yes;
        self
    }

    /// Whether it runs CONTAINER jobs, and recipes have the op `container`; it must be able to reach the engines of the runtime nodes.
    #[must_use]
    pub fn containers(mut self, yes: bool) -> Self {
        self.containers = yes;
        self
    }

    /// Runs RECIPE jobs with these ops, and with those that every worker can have ([`crate::recipe::ops::built_in`]) and
    /// that are not among them. What a task needs is compared with [`WorkerSettings::allocation`] before it runs.
    #[must_use]
    pub fn recipes(mut self, ops: Ops) -> Self {
        self.recipes = Some(ops);
        self
    }

    /// Serves recipes with this `job_type` too; those that name none have the type `recipe`.
    #[must_use]
    pub fn recipe_job_type(mut self, job_type: impl Into<String>) -> Self {
        self.job_types.push(job_type.into());
        self
    }

    /// Who is told when a job was handed on because a task of it does not fit this worker. Called on a thread that runs
    /// ops: it must not block for long.
    #[must_use]
    pub fn on_handoff(mut self, tell: impl Fn(&ExecutionHandoff) + Send + Sync + 'static) -> Self {
        self.on_handoff = Some(Told(Arc::new(tell)));
        self
    }

    /// For tests: puts something between the actors and the database, which loses calls and answers.
    #[doc(hidden)]
    #[must_use]
    pub fn intercept_store(
        mut self,
        between: impl FnOnce(Arc<dyn LeaseStore>) -> Arc<dyn LeaseStore> + Send + 'static,
    ) -> Self {
        self.between.store = Box::new(between);
        self
    }

    /// For tests: the same between recipes and their durable log.
    #[doc(hidden)]
    #[must_use]
    pub fn intercept_recipes(
        mut self,
        between: impl FnOnce(Arc<dyn RecipeStore>) -> Arc<dyn RecipeStore> + Send + 'static,
    ) -> Self {
        self.between.recipes = Box::new(between);
        self
    }

    /// For tests: the same between the actors and the container engines.
    #[doc(hidden)]
    #[must_use]
    pub fn intercept_engines(
        mut self,
        between: impl FnOnce(Arc<dyn EngineFactory>) -> Arc<dyn EngineFactory> + Send + 'static,
    ) -> Self {
        self.between.engines = Box::new(between);
        self
    }

    /// Checks the settings and connects. Claims nothing yet.
    ///
    /// # Errors
    /// [`BuildError`], which names the setting or says what to do.
    pub async fn build(self) -> Result<Worker, BuildError> {
        let effective = Effective::load(&Sources::of_process(
            self.url.into_iter().map(|url| (Key::DatabaseUrl, url)).collect::<BTreeMap<_, _>>(),
            None,
        ))?;
        let mut database = match self.database {
            Some(settings) => settings,
            None => effective.database("leasehold worker")?,
        };
        let mut settings = match self.settings {
            Some(settings) => settings,
            None => effective.worker()?,
        };
        for Change(change) in self.changes {
            change(&mut settings);
        }
        settings.check()?;
        database.store_timeout = settings.store_timeout;

        let mut routes: Vec<Route> = self.handlers.routes().collect();
        routes.extend(self.heartbeats.then(Route::heartbeat));
        routes.extend(self.containers.then(Route::container));
        if routes.is_empty() && self.recipes.is_none() {
            return Err(BuildError::NothingToServe);
        }
        let heartbeat =
            HeartbeatProbe::new(&settings.heartbeat_allow, settings.heartbeat_ca_file.as_deref())?;
        let recipes = match self.recipes {
            Some(ops) => Some((ops, Arc::new(Secrets::load(&settings.secrets)?))),
            None => None,
        };
        let runtimes = Runtimes::start()?;
        let store = PgStore::connect(&database, runtimes.io()).await?;
        let fleet = store.fleet().await?;
        let ports = self.between.ports(&settings);
        let mut parts_of_recipes = None;
        if let Some((ops, secrets)) = recipes {
            let mut built_in = ops::built_in(&settings, &secrets)?;
            if self.containers {
                let nodes = wiring::nodes::for_tasks(fleet, runtimes.io(), Arc::clone(&ports.engines));
                built_in = ops::with_containers(built_in, nodes, &secrets);
            }
            let ops = ops.or(&built_in);
            let mut schemas = Vec::new();
            let mut job_types = self.job_types;
            job_types.push(RecipeSpec::DEFAULT_JOB_TYPE.to_owned());
            job_types.sort();
            job_types.dedup();
            for op in ops.names() {
                let Some(code) = ops.get(op) else { continue };
                if code.input_schema().is_none() && code.output_schema().is_none() {
                    continue;
                }
                let asked = route_schemas(code.input_schema(), code.output_schema())
                    .map_err(|(side, error)| BuildError::Schema { op: op.to_owned(), side, error })?;
                let routes = job_types.iter().map(|job_type| Route::recipe(job_type, op));
                schemas.extend(routes.map(|route| (route, asked.clone())));
            }
            for job_type in &job_types {
                let tasks = std::iter::once("").chain(ops.names());
                routes.extend(tasks.map(|op| Route::recipe(job_type, op)));
            }
            let on_handoff = match self.on_handoff {
                Some(Told(tell)) => tell,
                None => Arc::new(|_: &ExecutionHandoff| {}),
            };
            for (route, asked) in &schemas {
                store.register_schema(&settings.namespace, route, asked).await?;
            }
            parts_of_recipes = Some(wiring::Recipes { ops, secrets, on_handoff });
        }
        match store.make_ready().await {
            Ok(room) if room.is_tight() => tracing::warn!(
                wanted = room.wanted,
                allowed = room.allowed,
                "this worker may open more than half of the server's connections; lower DATABASE_POOL_SIZE, or raise \
                 max_connections"
            ),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the connections for renewals are not open yet"),
        }
        let wiring = Wiring::new(wiring::Parts {
            runtimes,
            store,
            fleet,
            database,
            settings,
            routes: Arc::from(routes),
            handlers: self.handlers,
            heartbeat,
            recipes: parts_of_recipes,
            ports,
        });
        Ok(Worker { wiring })
    }
}
