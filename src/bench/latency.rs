//! How long a job waits for an idle worker, and how long the same takes without one.

use std::time::Duration;

use leasehold_actors::domain::{JobDefinition, NewJob};
use tokio::{sync::mpsc, time::Instant};

use super::{
    BenchError,
    drain::worker_settings,
    fixture::{Bench, HANDLER},
    raw::Driver,
    server::listening,
};
use crate::{
    worker::Worker,
    workload::handler::{HandlerError, Job},
};

/// Between two jobs, so that each finds an idle worker.
const PAUSE: Duration = Duration::from_millis(5);

/// No job waits this long unless something is broken.
const LIMIT: Duration = Duration::from_secs(30);

/// Handlers of the idle worker.
const CONCURRENCY: u32 = 16;

/// From the call of submit until the handler is entered, once for each job.
pub(super) async fn pick_up(bench: &Bench<'_>, jobs: u32) -> Result<Vec<Duration>, BenchError> {
    let namespace = bench.namespace();
    let (entered_tell, mut entered) = mpsc::unbounded_channel();
    let worker = Worker::builder()
        .database_settings(bench.database.clone())
        .settings(worker_settings(&namespace, CONCURRENCY, CONCURRENCY)?)
        .handler(HANDLER, move |_: Job<()>, _| {
            // Nobody listens any more only when the measurement has failed already.
            let _ = entered_tell.send(Instant::now());
            std::future::ready(Ok::<_, HandlerError>(()))
        })
        .build()
        .await?;
    let health = worker.health();
    let mut job = NewJob::ad_hoc(JobDefinition::Handler { name: HANDLER.to_owned() });
    job.namespace = namespace;

    let mut times = Vec::new();
    let mut failed = None;
    let measuring = async {
        for round in 0..=jobs {
            let asked = Instant::now();
            if let Err(error) = bench.store.submit(&job).await {
                failed = Some(BenchError::from(error));
                return;
            }
            let Ok(Some(entered)) = tokio::time::timeout(LIMIT, entered.recv()).await else {
                failed = Some(BenchError::Invalidated("a job was not picked up within 30 s".to_owned()));
                return;
            };
            // The first one finds connections being opened and statements being prepared.
            if round > 0 {
                times.push(entered - asked);
            }
            while health.actors().is_none_or(|a| a.permits.free < CONCURRENCY) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    Box::pin(worker.run_until(measuring)).await?;
    failed.map_or(Ok(times), Err)
}

/// From the call of submit until the claim that its notification led to is answered, once for each job; on
/// plain connections, with nothing in between.
pub(super) async fn bare(bench: &Bench<'_>, jobs: u32) -> Result<Vec<Duration>, BenchError> {
    let namespace = bench.namespace();
    let (notify, mut notified) = mpsc::unbounded_channel();
    // Dropped at the end, it closes the connection.
    let _listener = listening(&bench.database, "leasehold_ready", move || {
        // Nobody listens any more only when the measurement has failed already.
        let _ = notify.send(());
    })
    .await?;
    let mut driver = Driver::new(bench, &namespace).await?;
    let mut job = NewJob::ad_hoc(JobDefinition::Handler { name: HANDLER.to_owned() });
    job.namespace = namespace;

    let mut times = Vec::new();
    for round in 0..=jobs {
        // A notification of somebody else's job is nobody's hint here.
        while notified.try_recv().is_ok() {}
        let asked = Instant::now();
        bench.store.submit(&job).await?;
        loop {
            let Ok(Some(())) = tokio::time::timeout(LIMIT, notified.recv()).await else {
                return Err(BenchError::Invalidated("no notification came within 30 s".to_owned()));
            };
            if driver.claim(1).await? == 1 {
                break;
            }
        }
        if round > 0 {
            times.push(asked.elapsed());
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(times)
}
