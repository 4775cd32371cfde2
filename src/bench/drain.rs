//! Drains a backlog through the real worker.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold_actors::domain::{Namespace, WorkerId};
use tokio::{sync::Notify, time::Instant};
use tokio_postgres::types::Type;

use super::{
    BenchError, BenchOptions,
    fixture::{Bench, HANDLER},
    server::Effort,
};
use crate::{
    config::{Effective, Sources, WorkerSettings},
    worker::Worker,
    workload::handler::{HandlerError, Job},
};

/// A worker's settings that are measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) concurrency: u32,
    pub(super) claim_batch: u32,
    pub(super) jobs: u32,
}

/// One drain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drained {
    pub(super) jobs: u32,
    pub(super) took: Duration,
    pub(super) effort: Effort,
    /// From grant to end, by the database's clock, in milliseconds: half, 95 and 99 of a hundred.
    pub(super) lease_ms: [f64; 3],
}

/// The most jobs of one claim; more only makes the statements longer.
const LARGEST_CLAIM: u32 = 500;

impl Setting {
    pub(super) fn of(options: &BenchOptions) -> Vec<Self> {
        let setting = |sort: &str, concurrency: u32| Self {
            name: format!("{sort} {concurrency}"),
            concurrency: concurrency.max(1),
            claim_batch: concurrency.clamp(1, LARGEST_CLAIM),
            jobs: if concurrency < 100 { options.jobs.min(options.single_jobs) } else { options.jobs },
        };
        let single = options.single.iter().map(|concurrency| setting("single", *concurrency));
        single.chain(options.batched.iter().map(|concurrency| setting("batched", *concurrency))).collect()
    }
}

/// The worker's settings for a measurement; what is not said here is the product's default.
pub(super) fn worker_settings(
    namespace: &Namespace,
    concurrency: u32,
    claim_batch: u32,
) -> Result<WorkerSettings, BenchError> {
    let defaults = Effective::load(&Sources::default()).and_then(|effective| effective.worker());
    let mut settings = defaults.map_err(crate::worker::BuildError::from)?;
    settings.namespace = namespace.clone();
    settings.worker_id = WorkerId::new("bench").expect("a plain name");
    settings.concurrency = concurrency;
    settings.claim_batch = claim_batch;
    Ok(settings)
}

/// Fills a namespace, drains it, and answers once every job stands in `ended`.
pub(super) async fn run(bench: &Bench<'_>, setting: &Setting) -> Result<Drained, BenchError> {
    let namespace = bench.namespace();
    let (handled, all_handled) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let worker = {
        let (handled, all_handled, jobs) = (Arc::clone(&handled), Arc::clone(&all_handled), setting.jobs);
        Worker::builder()
            .database_settings(bench.database.clone())
            .settings(worker_settings(&namespace, setting.concurrency, setting.claim_batch)?)
            .handler(HANDLER, move |_: Job<()>, _| {
                if handled.fetch_add(1, Ordering::Relaxed) + 1 == jobs {
                    all_handled.notify_one();
                }
                std::future::ready(Ok::<_, HandlerError>(()))
            })
            .build()
            .await?
    };
    bench.fill(&namespace, setting.jobs).await?;

    let health = worker.health();
    let before = bench.server.counters().await?;
    let begun = Instant::now();
    let mut took = Duration::ZERO;
    let done = async {
        all_handled.notified().await;
        // The last handlers have returned; what counts is that the database has confirmed every end.
        while health.actors().is_none_or(|a| a.tally.jobs_completed < u64::from(setting.jobs)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        took = begun.elapsed();
    };
    let exit = worker.run_until(done).await?;
    tracing::debug!(?exit, "the benchmark's worker has ended");
    let at_once = bench.server.counters().await?;
    bench.check(&namespace, setting.jobs).await?;
    // The worker's sessions are closed by now, and with that have delivered what they counted.
    let delivered = delivered(bench).await?;
    let effort = before.until(at_once, delivered);
    Ok(Drained { jobs: setting.jobs, took, effort, lease_ms: lease_times(bench, &namespace).await? })
}

/// Sessions deliver their counters at the latest a second after their last statement.
pub(super) async fn delivered(bench: &Bench<'_>) -> Result<super::server::Counters, BenchError> {
    tokio::time::sleep(Duration::from_millis(1200)).await;
    bench.server.counters().await
}

async fn lease_times(bench: &Bench<'_>, namespace: &Namespace) -> Result<[f64; 3], BenchError> {
    let rows = bench
        .server
        .client()
        .query_typed(
            "select percentile_disc(array[0.5, 0.95, 0.99]) within group (
                 order by (1000 * extract(epoch from ended_at - granted_at))::float8)
             from leasehold.lease_history where namespace = $1",
            &[(&namespace.as_str(), Type::TEXT)],
        )
        .await?;
    let row = rows.first().ok_or_else(|| BenchError::Sql("no leases".to_owned()))?;
    let times: Vec<f64> = row.get(0);
    times.try_into().map_err(|_| BenchError::Sql("three percentiles were asked for".to_owned()))
}
