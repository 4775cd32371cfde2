//! The worker that crashes: one handler that follows its payload, containers, and crash points around
//! everything. In the test's own process where it shall survive, in one of its own where it shall not.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use leasehold::{
    Worker,
    postgres::ConnectError,
    worker::{BuildError, WorkerBuilder},
    workload::handler::{HandlerError, Job, LeaseHandle},
};
use leasehold_actors::testing::crash_points::CrashPoints;
use serde::{Deserialize, Serialize};

/// How long its leases last.
pub const LEASE: Duration = Duration::from_secs(5);

/// What the handler shall do.
#[derive(Debug, Serialize, Deserialize)]
pub struct Work {
    /// How long it takes.
    pub ms: u64,
    /// How long it takes under the job's first lease.
    pub first_ms: u64,
    /// It fails in the end.
    pub fails: bool,
}

/// Where and as who a victim works.
#[derive(Debug, Clone)]
pub struct Place {
    /// The database.
    pub url: String,
    /// Its namespace, which it has to itself.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The file in which handlers say that they begin: a line each, without any key.
    pub ledger: PathBuf,
    /// Serves recipes instead of containers, on this platform: `amd64`.
    pub platform: Option<String>,
}

async fn work(ledger: &Path, job: Job<Work>, lease: LeaseHandle) -> Result<(), HandlerError> {
    let line = format!("{} {} {}\n", lease.job(), lease.epoch(), std::process::id());
    std::fs::OpenOptions::new().create(true).append(true).open(ledger)?.write_all(line.as_bytes())?;
    // A note that is not stored is no reason to stop.
    let _ = lease.progress(&"begun").await;
    let ms = if lease.epoch().0 == 1 { job.payload.first_ms } else { job.payload.ms };
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(ms)) => {}
        _ = lease.cancelled() => return Err(HandlerError::stopped()),
    }
    if job.payload.fails { Err(HandlerError::user("told-to", "as its payload says")) } else { Ok(()) }
}

/// The worker, started again and again while its database does not answer in time, as a supervisor does: on a busy
/// machine its first connection may take longer than its short store timeout.
pub async fn start(place: &Place, points: &CrashPoints) -> Result<Worker, BuildError> {
    let begun = Instant::now();
    loop {
        match worker(place, points).build().await {
            Err(BuildError::Connect(ConnectError::Unreachable(_)) | BuildError::Store(_))
                if begun.elapsed() < Duration::from_secs(60) =>
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            built => return built,
        }
    }
}

/// The worker, with short leases.
fn worker(place: &Place, points: &CrashPoints) -> WorkerBuilder {
    let (ledger, namespace, name) = (place.ledger.clone(), place.namespace.clone(), place.name.clone());
    let (around_store, around_engines) = (points.clone(), points.clone());
    let builder = Worker::builder()
        .database(place.url.clone())
        .handler("work", move |job, lease| {
            let ledger = ledger.clone();
            async move { work(&ledger, job, lease).await }
        })
        .containers(place.platform.is_none())
        .configure(move |settings| {
            settings.namespace = namespace.parse().expect("a namespace of the tests is one");
            settings.worker_id = name.parse().expect("a name of the tests is one");
            settings.concurrency = 8;
            settings.lease = LEASE;
            settings.renew_interval = Duration::from_secs(1);
            settings.store_timeout = Duration::from_millis(1200);
            settings.safety_margin = Duration::from_millis(500);
            settings.poll_interval = Duration::from_millis(500);
            settings.shutdown_grace = Duration::ZERO;
            settings.system_retry_backoff = Duration::from_millis(100);
            settings.claim_batch = 1;
            settings.recovery_batch = 1;
            settings.recovery_permits = 4;
            settings.recovery_interval = Duration::from_secs(2);
        })
        .intercept_store(move |store| around_store.store(store))
        .intercept_engines(move |engines| around_engines.engines(engines));
    match &place.platform {
        Some(platform) => super::recipe_work::serve(builder, platform, &place.ledger, points),
        None => builder,
    }
}
