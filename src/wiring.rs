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
mod nodes;
mod registry;

use std::{
    future::Future,
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use leasehold_actors::{
    domain::{Epoch, JobId, ProcessId, RetryPolicy, Route},
    ports::Claimant,
    settings::{ActorSettings, ClaimSettings, DispatchSettings, LeaseTimings},
    supervision::{Drained, Fatal, Supervision, WorkerHealth, WorkerParts},
};
use tokio::{
    runtime::{Handle, Runtime},
    sync::{oneshot, watch},
    task::AbortHandle,
};
use uuid::Uuid;

pub use self::hints::HintHealth;
use crate::{
    config::{DatabaseSettings, WorkerSettings},
    postgres::PgStore,
    workload::{Workloads, handler::Handlers, heartbeat::HeartbeatProbe},
};

/// How long HEARTBEAT and HANDLER work that is told to stop may take. (A container names its own.)
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Most jobs that one dispatch statement queues.
const DISPATCH_BATCH: u32 = 500;

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

    /// See [`crate::worker::Worker::run_until_or_now`].
    pub(crate) async fn run<S, N>(self, shutdown: S, now: N) -> Result<WorkerExit, RunError>
    where
        S: Future<Output = ()> + Send,
        N: Future<Output = ()> + Send,
    {
        let Self { parts, owner, supervision, hints: seen } = self;
        let Parts { runtimes, store, fleet, database, settings, routes, handlers, heartbeat } = parts;
        announce(&settings, &owner, &routes);

        let (stuck_tell, stuck) = watch::channel(None);
        let exit_on_stuck = settings.exit_on_stuck;
        let actors = WorkerParts {
            store: Arc::new(store.clone()),
            runner: Arc::new(Workloads::new(handlers, heartbeat, runtimes.work())),
            start_node: nodes::starter(fleet, &settings, runtimes.io()),
            on_stuck: Box::new(move |job, epoch| {
                if exit_on_stuck {
                    stuck_tell.send_replace(Some(RunError::Stuck { job, epoch }));
                }
            }),
            settings: actor_settings(&settings, owner.clone(), Arc::clone(&routes)),
        };
        // Dropped with this future, the sender tells the thread to stop at once.
        let (order, orders) = watch::channel(Order::Run);
        let (started_tell, started) = oneshot::channel();
        let (ended_tell, mut ended) = oneshot::channel();
        let grace = settings.shutdown_grace;
        let slot = Arc::clone(&supervision);
        std::thread::Builder::new()
            .name("leasehold-actors".to_owned())
            .spawn(move || {
                let result = actix_rt::System::new().block_on(async move {
                    let supervision = match Supervision::start(actors) {
                        Ok(supervision) => slot.get_or_init(|| supervision),
                        Err(error) => return Err(RunError::Thread(error.to_string())),
                    };
                    // Nobody waits any more: the orders below say so too.
                    let _ = started_tell.send(());
                    supervise(supervision, orders, stuck, grace).await
                });
                let _ = ended_tell.send(result);
            })
            .map_err(|error| RunError::Thread(error.to_string()))?;

        let mut beside = Vec::new();
        let (mut shutdown, mut now, mut started) =
            (std::pin::pin!(shutdown), std::pin::pin!(now), std::pin::pin!(started));
        let (mut told, mut is_started) = (Order::Run, false);
        let result = loop {
            tokio::select! {
                biased;
                result = &mut ended => {
                    let panicked = |_| RunError::Thread("it panicked, see the log".to_owned());
                    break result.map_err(panicked)?;
                }
                () = &mut now, if told < Order::StopNow => told = Order::StopNow,
                () = &mut shutdown, if told < Order::Drain => told = Order::Drain,
                ready = &mut started, if !is_started => {
                    is_started = true;
                    if let (Ok(()), Some(supervision)) = (ready, supervision.get()) {
                        // Neither is needed for what is right.
                        let row = registry::Row {
                            store: store.clone(),
                            supervision: supervision.clone(),
                            owner: owner.clone(),
                            concurrency: settings.concurrency,
                            routes: Arc::clone(&routes),
                            hints: seen.clone(),
                        };
                        let io = runtimes.io();
                        let hints =
                            hints::pass_on(database.clone(), io.clone(), supervision.clone(), seen.clone());
                        beside.push(Beside(io.spawn(hints).abort_handle()));
                        beside.push(Beside(io.spawn(row.keep()).abort_handle()));
                    }
                }
            }
            order.send_replace(told);
        };
        drop(beside);
        if let Some(supervision) = supervision.get() {
            registry::farewell(&store, supervision, &owner, &routes).await;
        }
        result
    }
}

/// On the actors' thread: waits for an order or a reason to end, and carries it out.
async fn supervise(
    supervision: &Supervision,
    mut orders: watch::Receiver<Order>,
    mut stuck: watch::Receiver<Option<RunError>>,
    grace: Duration,
) -> Result<WorkerExit, RunError> {
    let mut stop_now = orders.clone();
    // A sender that is gone is the most urgent order: nobody waits for this worker any more.
    let stop_now = async move { drop(stop_now.wait_for(|order| *order == Order::StopNow).await) };
    let stuck = async move {
        match stuck.wait_for(Option::is_some).await.map(|found| found.clone()) {
            Ok(Some(error)) => error,
            _ => std::future::pending().await,
        }
    };
    let (mut stop_now, mut stuck) = (std::pin::pin!(stop_now), std::pin::pin!(stuck));
    let mut failed = None;
    tokio::select! {
        biased;
        fatal = supervision.fatal() => failed = Some(RunError::Fatal(fatal)),
        error = &mut stuck => failed = Some(error),
        () = &mut stop_now => {}
        _ = orders.wait_for(|order| *order >= Order::Drain) => {
            tokio::select! {
                biased;
                () = &mut stop_now => {}
                error = &mut stuck => failed = Some(error),
                drained = supervision.drain(grace) => return Ok(WorkerExit::Drained(drained)),
            }
        }
    }
    let left = supervision.stop_now().await;
    failed.map_or(Ok(WorkerExit::StoppedNow(left)), Err)
}

/// A task on the I/O runtime that ends with the worker.
#[derive(Debug)]
struct Beside(AbortHandle);

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.abort();
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

fn actor_settings(settings: &WorkerSettings, owner: Claimant, routes: Arc<[Route]>) -> ActorSettings {
    ActorSettings {
        claim: ClaimSettings {
            owner,
            routes,
            concurrency: settings.concurrency,
            batch: settings.claim_batch,
            poll_interval: settings.poll_interval,
        },
        timings: LeaseTimings {
            lease: settings.lease,
            renew_interval: settings.renew_interval,
            safety_margin: settings.safety_margin,
            store_timeout: settings.store_timeout,
            stop_grace: STOP_GRACE,
        },
        retry_defaults: RetryPolicy {
            max_user: Some(1),
            max_system: Some(settings.system_retry_limit),
            max_timeout: Some(1),
            backoff_ms: Some(i64::try_from(settings.system_retry_backoff.as_millis()).unwrap_or(i64::MAX)),
            backoff_cap_ms: Some(BACKOFF_CAP_MS),
        },
        dispatch: Some(DispatchSettings { batch: DISPATCH_BATCH, poll_interval: settings.poll_interval }),
    }
}

/// The longest back-off when a job's policy names none: an hour.
const BACKOFF_CAP_MS: i64 = 3_600_000;
