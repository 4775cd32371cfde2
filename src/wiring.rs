//! The only place where adapters meet actors.
//!
//! ```text
//!  thread "leasehold-actors"        runtime "leasehold-io"           runtime "leasehold-work"
//!  actix System:                    PgStore: group commit, pools     handlers, probes
//!  claim, lease, dispatch,   ◀────  hints from LISTEN                (a handler may block these
//!  reconcile, node actors           the row in `worker list`          threads: nothing else is on them)
//! ```
//!
//! The actors have a thread of their own, so that nothing an adapter or a workload does can hold up a
//! renewal; the fence (in `leasehold-actors`) has yet another, so that not even that thread can.

mod hints;
mod life;
pub(crate) mod nodes;
mod registry;
mod supplied;

use std::{
    future::Future,
    io,
    sync::{Arc, OnceLock},
};

use leasehold_actors::{
    domain::{Epoch, JobId, ProcessId, Route, execution::Allocation},
    ports::{Claimant, EngineFactory, LeaseStore, recipe::RecipeStore},
    supervision::{Drained, Fatal, Supervision, WorkerHealth},
};
use tokio::{
    runtime::{Handle, Runtime},
    sync::{oneshot, watch},
};
use uuid::Uuid;

pub use self::hints::HintHealth;
use crate::{
    config::{DatabaseSettings, WorkerSettings},
    postgres::PgStore,
    recipe::{
        execution::{ExecutionRuntime, OnHandoff, RecipeEngine, RecipeWorkerOptions, StoreRuntime},
        op::Ops,
        ops::secrets::Secrets,
        supplied::Capability,
    },
    workload::{handler::Handlers, heartbeat::HeartbeatProbe},
};

/// The two runtimes of a worker. Dropped, they end without waiting: a runtime must not be waited for inside
/// another, and a blocked handler would never come back.
#[derive(Debug)]
pub(crate) struct Runtimes {
    io: Option<Runtime>,
    work: Option<Runtime>,
}

impl Runtimes {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = |name: &str, threads: usize| {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(threads)
                .thread_name(name)
                .enable_all()
                .build()
        };
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let io = Some(runtime("leasehold-io", 2)?);
        let work = Some(runtime("leasehold-work", cores.max(2))?);
        Ok(Self { io, work })
    }

    pub(crate) fn io(&self) -> Handle {
        self.io.as_ref().expect("taken only by drop").handle().clone()
    }

    fn work(&self) -> Handle {
        self.work.as_ref().expect("taken only by drop").handle().clone()
    }
}

impl Drop for Runtimes {
    fn drop(&mut self) {
        for runtime in [self.work.take(), self.io.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

/// What a worker is wired from.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) runtimes: Runtimes,
    pub(crate) store: PgStore,
    pub(crate) fleet: Uuid,
    pub(crate) database: DatabaseSettings,
    pub(crate) settings: WorkerSettings,
    pub(crate) routes: Arc<[Route]>,
    pub(crate) handlers: Handlers,
    pub(crate) heartbeat: HeartbeatProbe,
    pub(crate) recipes: Option<Recipes>,
    pub(crate) ports: Ports,
}

/// What recipes are run with.
pub(crate) struct Recipes {
    pub(crate) ops: Ops,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) on_handoff: OnHandoff,
}

impl std::fmt::Debug for Recipes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recipes").field("ops", &self.ops).finish_non_exhaustive()
    }
}

impl Recipes {
    /// The engine, behind the guard for what this worker has.
    fn engine(self, store: Arc<dyn RecipeStore>, allocation: &Allocation, threads: Handle) -> RecipeEngine {
        let runtime = ExecutionRuntime::new(
            Arc::new(StoreRuntime::new(store)),
            allocation.clone(),
            Arc::clone(&self.on_handoff),
        );
        let options = RecipeWorkerOptions {
            stage_execution: Some(runtime.stage()),
            wrap_task_worker: Some(runtime.wrap_task_worker()),
            allocation: allocation.clone(),
            on_handoff: self.on_handoff,
        };
        RecipeEngine::new(Arc::new(runtime), options, &self.ops, self.secrets, threads)
            .expect("the options come from this runtime")
    }
}

/// What stands between the actors and the adapters: nothing, but in tests that lose calls and answers there.
pub(crate) struct Between {
    pub(crate) store: Intercept<dyn LeaseStore>,
    pub(crate) recipes: Intercept<dyn RecipeStore>,
    pub(crate) engines: Intercept<dyn EngineFactory>,
}

/// Puts something in the place of a port.
type Intercept<P> = Box<dyn FnOnce(Arc<P>) -> Arc<P> + Send>;

impl Default for Between {
    fn default() -> Self {
        Self {
            store: Box::new(|store| store),
            recipes: Box::new(|store| store),
            engines: Box::new(|engines| engines),
        }
    }
}

/// The adapters as the actors get them.
pub(crate) struct Ports {
    store: Intercept<dyn LeaseStore>,
    recipes: Intercept<dyn RecipeStore>,
    /// The op `container` uses the same.
    pub(crate) engines: Arc<dyn EngineFactory>,
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ports")
    }
}

impl Between {
    pub(crate) fn ports(self, settings: &WorkerSettings) -> Ports {
        Ports { store: self.store, recipes: self.recipes, engines: (self.engines)(nodes::engines(settings)) }
    }
}

impl std::fmt::Debug for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Between")
    }
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerExit {
    /// It drained. What did not end within the grace was given back.
    Drained(Drained),
    /// It was told to end at once. What the database did not confirm in time expires.
    StoppedNow(Drained),
}

impl WorkerExit {
    /// The exit code of a process that is nothing but this worker.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Drained(_) => 0,
            Self::StoppedNow(_) => 1,
        }
    }
}

/// Why a worker could not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A part of it keeps dying.
    #[error("{0}; restart the process")]
    Fatal(#[from] Fatal),
    /// The thread of the actors ended by a panic, or never started.
    #[error("the worker's own thread has failed: {0}; restart the process")]
    Thread(String),
    /// Work could not be ended, and `EXECUTION_WORKER_ON_STUCK` is `exit`.
    #[error(
        "job {job} (epoch {epoch}) does not end although it was ended by force, and EXECUTION_WORKER_ON_STUCK is exit; \
         end this process, so that the job cannot run on"
    )]
    Stuck {
        /// The job.
        job: JobId,
        /// The epoch of its lease.
        epoch: Epoch,
    },
}

/// Looks at a worker from outside. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Health {
    supervision: Arc<OnceLock<Supervision>>,
    hints: hints::Seen,
}

impl Health {
    /// How its actors are; none before it runs.
    #[must_use]
    pub fn actors(&self) -> Option<WorkerHealth> {
        self.supervision.get().map(Supervision::health)
    }

    /// How hints come; none before it runs.
    #[must_use]
    pub fn hints(&self) -> Option<HintHealth> {
        self.hints.get()
    }
}

/// Gives leases of a running worker away. Cheap to clone, usable from any thread.
#[derive(Debug, Clone)]
pub struct Leases {
    supervision: Arc<OnceLock<Supervision>>,
}

impl Leases {
    /// Exports the lease of a RECIPE job that the worker holds: the work stops here, the lease is renewed no more, and
    /// whoever gets the capability goes on from what is recorded ([`crate::recipe::supplied`]). None when the worker does
    /// not hold the job, or the work came to an end of its own first.
    pub async fn export(&self, job: JobId) -> Option<Capability> {
        let supervision = self.supervision.get()?;
        supervision.export(job, life::STOP_GRACE).await.map(Capability::from)
    }
}

/// What the actors' thread is told. It can only get more urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Run,
    Drain,
    StopNow,
}

/// A worker that is put together and does not run yet.
#[derive(Debug)]
pub(crate) struct Wiring {
    parts: Parts,
    owner: Claimant,
    supervision: Arc<OnceLock<Supervision>>,
    hints: hints::Seen,
}

impl Wiring {
    pub(crate) fn new(parts: Parts) -> Self {
        let owner = Claimant {
            namespace: parts.settings.namespace.clone(),
            worker: parts.settings.worker_id.clone(),
            process: ProcessId::generate(),
        };
        Self { parts, owner, supervision: Arc::default(), hints: hints::Seen::default() }
    }

    pub(crate) fn store(&self) -> &PgStore {
        &self.parts.store
    }

    pub(crate) fn health(&self) -> Health {
        Health { supervision: Arc::clone(&self.supervision), hints: self.hints.clone() }
    }

    pub(crate) fn leases(&self) -> Leases {
        Leases { supervision: Arc::clone(&self.supervision) }
    }

    /// See [`crate::worker::Worker::run_until_or_now`].
    pub(crate) async fn run<S, N>(self, shutdown: S, now: N) -> Result<WorkerExit, RunError>
    where
        S: Future<Output = ()> + Send,
        N: Future<Output = ()> + Send,
    {
        announce(&self.parts.settings, &self.owner, &self.parts.routes);
        let (order, orders) = watch::channel(Order::Run);
        let (ended_tell, mut ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("leasehold-actors".to_owned())
            .spawn(move || {
                // Everything that the worker owns is moved onto its thread, and is dropped there: whoever gives
                // up waiting does not take the database away from those who still have to give jobs back.
                let result = life::live(self, orders);
                // Nobody may be waiting any more.
                let _ = ended_tell.send(result);
            })
            .map_err(|error| RunError::Thread(error.to_string()))?;

        let (mut shutdown, mut now) = (std::pin::pin!(shutdown), std::pin::pin!(now));
        let mut told = Order::Run;
        loop {
            tokio::select! {
                biased;
                result = &mut ended => {
                    return result.map_err(|_| RunError::Thread("it panicked, see the log".to_owned()))?;
                }
                () = &mut now, if told < Order::StopNow => told = Order::StopNow,
                () = &mut shutdown, if told < Order::Drain => told = Order::Drain,
            }
            // Dropped with this future, the sender is itself the order to stop at once.
            order.send_replace(told);
        }
    }
}

/// Says at the start who this is and how much trouble its settings survive.
fn announce(settings: &WorkerSettings, owner: &Claimant, routes: &[Route]) {
    for warning in settings.warnings() {
        tracing::warn!("{warning}");
    }
    let routes: Vec<_> = routes.iter().map(registry::route_name).collect();
    tracing::info!(
        worker = %owner.worker,
        process = %owner.process,
        namespace = %owner.namespace,
        concurrency = settings.concurrency,
        lease = ?settings.lease,
        lost_renewals_survived = settings.lost_renewals_survived(),
        routes = routes.join(", "),
        "worker starts"
    );
}
