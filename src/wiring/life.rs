//! A worker's life on its own thread: from the start of its actors to the last thing that it says.

use std::{future::pending, sync::Arc, time::Duration};

use leasehold_actors::{
    domain::{RetryPolicy, Route},
    ports::Claimant,
    runtime_node_actor::TaskResults,
    settings::{ActorSettings, ClaimSettings, DispatchSettings, LeaseTimings, RecoverySettings},
    supervision::{Supervision, WorkerParts},
};
use tokio::{sync::watch, task::AbortHandle};

use super::{Order, Parts, RunError, Wiring, WorkerExit, hints, nodes, registry};
use crate::{config::WorkerSettings, recipe::execution::facts_of, workload::Workloads};

/// How long HEARTBEAT and HANDLER work that is told to stop may take. (A container names its own.)
pub(super) const STOP_GRACE: Duration = Duration::from_secs(5);

/// Most jobs that one dispatch statement queues.
const DISPATCH_BATCH: u32 = 500;

/// The longest back-off when a job's policy names none: an hour.
const BACKOFF_CAP_MS: i64 = 3_600_000;

/// Starts everything, carries out the orders, and says farewell. The runtimes end with it.
pub(super) fn live(wiring: Wiring, orders: watch::Receiver<Order>) -> Result<WorkerExit, RunError> {
    let Wiring { parts, owner, supervision: published, hints: seen } = wiring;
    let Parts { runtimes, store, fleet, database, settings, routes, handlers, heartbeat, recipes, ports } =
        parts;
    let io = runtimes.io();
    let (stuck_tell, stuck) = watch::channel(None);
    let exit_on_stuck = settings.exit_on_stuck;
    let for_recipes = (ports.recipes)(Arc::new(store.clone()));
    let engine = recipes.map(|recipes| recipes.engine(for_recipes, &settings.allocation, runtimes.work()));
    let engine = engine.map(Arc::new);
    let actors = WorkerParts {
        store: (ports.store)(Arc::new(store.clone())),
        runner: Arc::new(Workloads::new(handlers, heartbeat, runtimes.work()).with_recipes(engine.clone())),
        start_node: nodes::starter(fleet, io.clone(), ports.engines),
        results: engine.map(|engine| engine as Arc<dyn TaskResults>),
        on_stuck: Box::new(move |job, epoch| {
            if exit_on_stuck {
                stuck_tell.send_replace(Some(RunError::Stuck { job, epoch }));
            }
        }),
        settings: actor_settings(&settings, owner.clone(), Arc::clone(&routes)),
    };
    actix_rt::System::new().block_on(async move {
        let started = Supervision::start(actors).map_err(|error| RunError::Thread(error.to_string()))?;
        let supervision = published.get_or_init(|| started);
        // Neither is needed for what is right.
        let row = registry::Row {
            store: store.clone(),
            supervision: supervision.clone(),
            owner: owner.clone(),
            concurrency: settings.concurrency,
            routes: Arc::clone(&routes),
            allocation: settings.allocation.clone(),
            hints: seen.clone(),
        };
        let hints = hints::pass_on(database, io.clone(), supervision.clone(), seen);
        let beside = [Beside(io.spawn(hints).abort_handle()), Beside(io.spawn(row.keep()).abort_handle())];
        let result = supervise(supervision, orders, stuck, settings.shutdown_grace).await;
        drop(beside);
        registry::farewell(&store, supervision, &owner, &routes, &settings.allocation).await;
        result
    })
}

/// A task on the I/O runtime that ends with the worker.
#[derive(Debug)]
struct Beside(AbortHandle);

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits for an order or a reason to end, and carries it out.
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
            _ => pending().await,
        }
    };
    // What waiting returns is a lock on the order: kept, it would hold up the next one.
    let drain = async move { drop(orders.wait_for(|order| *order >= Order::Drain).await) };
    let (mut stop_now, mut stuck) = (std::pin::pin!(stop_now), std::pin::pin!(stuck));
    let mut failed = None;
    tokio::select! {
        biased;
        fatal = supervision.fatal() => failed = Some(RunError::Fatal(fatal)),
        error = &mut stuck => failed = Some(error),
        () = &mut stop_now => {}
        () = drain => {
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

pub(super) fn actor_settings(
    settings: &WorkerSettings,
    owner: Claimant,
    routes: Arc<[Route]>,
) -> ActorSettings {
    ActorSettings {
        claim: ClaimSettings {
            owner,
            routes,
            concurrency: settings.concurrency,
            batch: settings.claim_batch,
            poll_interval: settings.poll_interval,
            facts: Some(Arc::new(facts_of(&settings.allocation))),
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
        recovery: RecoverySettings {
            permits: settings.recovery_permits,
            batch: settings.recovery_batch,
            interval: settings.recovery_interval,
            give_up: settings.recovery_give_up,
            loss_limit: settings.loss_limit,
        },
    }
}
