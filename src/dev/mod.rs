//! `leasehold dev`: all parts in one process on a private PostgreSQL cluster.
//!
//! [`Dev::start`] starts them in order: the data folder is taken, the cluster started ([`cluster`]), the schema
//! brought up to date, a Docker engine found or started ([`engine`]) and registered as a runtime node, one worker
//! started, and the address written down for the other commands ([`folder`]). [`Dev::stop`] goes the other way.

mod child;
pub mod cluster;
pub mod demo;
pub mod engine;
pub mod folder;
mod responder;
mod server;

use std::{
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_actors::domain::{JobState, WorkerId};
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use self::{
    cluster::{Cluster, ClusterError},
    engine::LocalEngine,
    folder::{DataFolder, FolderError},
    responder::Responder,
};
use crate::{
    config::{ConfigError, Effective, Origin, table::Key},
    node_agent::{self, NodeExit},
    postgres::{
        ConnectError, PgStore,
        migrate::{self, MigrateError},
        read::{JobFilter, JobRow},
    },
    recipe::op::Ops,
    worker::{BuildError, RunError, Worker, WorkerExit},
};

/// What `dev` was asked for.
#[derive(Debug, Clone)]
pub struct DevOptions {
    /// The data folder.
    pub folder: PathBuf,
    /// A database of the user's own, in place of the embedded cluster.
    pub database: Option<String>,
    /// Also serve what the demo needs: its handler, and the address that it probes.
    pub demo: bool,
}

/// Why `dev` cannot start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each names the part that failed, whose error says the rest")]
pub enum DevError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Worker(#[from] BuildError),
    #[error(transparent)]
    Store(#[from] leasehold_actors::error::StoreError),
    #[error("cannot listen on loopback: {0}")]
    Responder(std::io::Error),
}

/// How a part of a running `dev` ended although nobody asked it to.
#[derive(Debug, thiserror::Error)]
#[error("{part} ended by itself: {reason}")]
pub struct PartEnded {
    part: &'static str,
    reason: String,
}

/// A running `dev`.
#[derive(Debug)]
pub struct Dev {
    /// The store, for whoever submits and looks.
    pub store: PgStore,
    /// The data folder.
    pub folder: PathBuf,
    /// The address that other programs may use.
    pub database_url: String,
    /// The Docker engine, where there is one.
    pub engine: Option<LocalEngine>,
    /// Jobs that a killed predecessor left RUNNING.
    pub left_running: Vec<JobRow>,
    taken: DataFolder,
    cluster: Option<Cluster>,
    responder: Option<Responder>,
    stop: CancellationToken,
    stop_now: CancellationToken,
    worker: JoinHandle<Result<WorkerExit, RunError>>,
    /// The demo's second one, which has more memory and another platform.
    second: Option<JoinHandle<Result<WorkerExit, RunError>>>,
    node: Option<JoinHandle<Result<NodeExit, node_agent::NodeError>>>,
}

/// Running work gets this long at Ctrl-C unless the settings say otherwise: a person waits for it.
const SHUTDOWN_GRACE: &str = "5s";

impl Dev {
    /// Starts everything, telling each step. Call it from the main thread: the servers are tied to it.
    ///
    /// # Errors
    /// [`DevError`]; what was started is stopped again.
    pub async fn start(
        options: &DevOptions,
        mut settings: Effective,
        mut tell: impl FnMut(&str),
    ) -> Result<Self, DevError> {
        let taken = DataFolder::take(&options.folder)?;
        let folder = taken.path().to_owned();
        if !settings.is_given(Key::ShutdownGrace) {
            settings.set(Key::ShutdownGrace, SHUTDOWN_GRACE, Origin::Default)?;
        }
        let cluster = match &options.database {
            Some(_) => None,
            None => Some(start_cluster(&folder, &mut tell).await?),
        };
        let (own_url, public_url) = match (&cluster, &options.database) {
            (Some(cluster), _) => (cluster.socket_url().to_owned(), cluster.url().to_owned()),
            (None, url) => (url.clone().unwrap_or_default(), url.clone().unwrap_or_default()),
        };
        settings.set(Key::DatabaseUrl, &own_url, Origin::Dev(folder.clone()))?;
        let report = migrate::run(&settings.database_for_command("leasehold dev")?).await?;
        tell(&format!("schema version {}", report.version));
        let store =
            PgStore::connect(&settings.database_for_command("leasehold dev")?, Handle::current()).await?;
        let mut running = JobFilter::all(settings.namespace());
        running.states = vec![JobState::Running];
        let left_running = store.list_jobs(&running).await?.items;

        let engine = provide_engine(&settings, &folder, &mut tell).await?;
        let responder =
            if options.demo { Some(Responder::start().await.map_err(DevError::Responder)?) } else { None };
        let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
        let node = match &engine {
            Some(engine) => Some(start_node(&settings, engine, &store, &stop)?),
            None => None,
        };
        let start = async |role| start_worker(&settings, responder.as_ref(), role, &stop, &stop_now).await;
        let (worker, second) = if options.demo {
            (start(Role::DemoSmall).await?, Some(start(Role::DemoBig).await?))
        } else {
            (start(Role::Only).await?, None)
        };
        taken.write_env(&[("DATABASE_URL", &public_url)])?;
        Ok(Self {
            store,
            folder,
            database_url: public_url,
            engine,
            left_running,
            taken,
            cluster,
            responder,
            stop,
            stop_now,
            worker,
            second,
            node,
        })
    }

    /// What the demo's HEARTBEAT probes.
    #[must_use]
    pub fn probe_address(&self) -> Option<SocketAddr> {
        self.responder.as_ref().map(Responder::address)
    }

    /// Resolves when a part has ended that should go on.
    pub async fn part_ended(&mut self) -> PartEnded {
        loop {
            if self.cluster.as_mut().is_some_and(Cluster::has_ended) {
                let reason = format!("see {}", self.folder.join("postgres.log").display());
                return PartEnded { part: "PostgreSQL", reason };
            }
            if self.worker.is_finished() {
                return PartEnded { part: "the worker", reason: words((&mut self.worker).await) };
            }
            if let Some(second) = self.second.as_mut().filter(|second| second.is_finished()) {
                let reason = words(second.await);
                self.second = None;
                return PartEnded { part: "the second worker", reason };
            }
            if let Some(node) = self.node.as_mut().filter(|node| node.is_finished()) {
                let reason = words(node.await);
                self.node = None;
                return PartEnded { part: "the runtime node", reason };
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Drains the worker, then stops the node, the engine and the cluster. When `now` resolves, running work is
    /// stopped at once.
    pub async fn stop(mut self, now: impl Future<Output = ()>) {
        // No other command may count on us any more.
        let _ = std::fs::remove_file(self.taken.env_path());
        self.stop.cancel();
        let drained = async {
            if !self.worker.is_finished() {
                let _ = (&mut self.worker).await;
            }
            if let Some(second) = &mut self.second {
                let _ = second.await;
            }
            if let Some(node) = &mut self.node {
                let _ = node.await;
            }
        };
        let stop_now = self.stop_now.clone();
        let hurry = async {
            now.await;
            stop_now.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = drained => {}
            () = hurry => {}
        }
        drop(self.store);
        if let Some(engine) = self.engine {
            engine.stop().await;
        }
        if let Some(cluster) = self.cluster {
            cluster.stop().await;
        }
    }
}

fn words<T: std::fmt::Debug, E: std::fmt::Display>(
    ended: Result<Result<T, E>, tokio::task::JoinError>,
) -> String {
    match ended {
        Ok(Ok(exit)) => format!("{exit:?}"),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    }
}

async fn start_cluster(folder: &Path, tell: &mut impl FnMut(&str)) -> Result<Cluster, ClusterError> {
    let cluster = Cluster::start(folder).await?;
    if let Some(moved) = cluster.moved() {
        tell(moved);
    }
    tell(&format!(
        "PostgreSQL, {} cluster, pid {}",
        if cluster.is_fresh() { "a new" } else { "the same" },
        cluster.pid()
    ));
    Ok(cluster)
}

async fn provide_engine(
    settings: &Effective,
    folder: &Path,
    tell: &mut impl FnMut(&str),
) -> Result<Option<LocalEngine>, DevError> {
    let node = settings.node()?;
    let named = settings.is_given(Key::DockerEndpoint);
    match LocalEngine::provide(&node.endpoint, node.tls.as_ref(), !named, folder).await {
        Ok(engine) => {
            let kind =
                if engine.is_private() { "a private engine without a network" } else { &engine.endpoint };
            tell(&format!("Docker {}, {kind}", engine.info.version));
            Ok(Some(engine))
        }
        Err(none) => {
            tell(&none.to_string());
            Ok(None)
        }
    }
}

fn start_node(
    settings: &Effective,
    engine: &LocalEngine,
    store: &PgStore,
    stop: &CancellationToken,
) -> Result<JoinHandle<Result<NodeExit, node_agent::NodeError>>, DevError> {
    let mut node = settings.node()?;
    node.endpoint.clone_from(&engine.endpoint);
    Ok(tokio::spawn(node_agent::run(node, store.clone(), stop.clone().cancelled_owned())))
}

/// Which of the workers one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Everything, and what the settings say that it has.
    Only,
    /// Everything, with little memory, on amd64.
    DemoSmall,
    /// Only recipes, with more memory, on arm64.
    DemoBig,
}

async fn start_worker(
    settings: &Effective,
    responder: Option<&Responder>,
    role: Role,
    stop: &CancellationToken,
    stop_now: &CancellationToken,
) -> Result<JoinHandle<Result<WorkerExit, RunError>>, DevError> {
    let mut worker = settings.worker()?;
    worker.heartbeat_allow.extend(responder.map(|responder| responder.address().to_string()));
    let [small, big] = demo::allocations();
    match role {
        Role::Only => {}
        Role::DemoSmall => worker.allocation = small,
        Role::DemoBig => {
            worker.allocation = big;
            worker.worker_id = WorkerId::new(demo::SECOND).expect("it is a good name");
        }
    }
    // The recipes of the demo are ours, and start only echo, printf and sleep.
    worker.allow_commands |= role != Role::Only;
    let everything = role != Role::DemoBig;
    let mut builder = Worker::builder()
        .database_settings(settings.database("leasehold dev worker")?)
        .settings(worker)
        .heartbeats(everything)
        .containers(everything)
        .recipes(Ops::new());
    if role == Role::DemoSmall {
        builder = demo::register(builder);
    }
    let worker = builder.build().await?;
    let (stop, now) = (stop.clone().cancelled_owned(), stop_now.clone().cancelled_owned());
    Ok(tokio::spawn(worker.run_until_or_now(stop, now)))
}
