//! Handlers that complete their job in a transaction of their own: effect and end happen together, exactly once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{
    protocol::domain::{JobId, JobState, Namespace, NewJob},
    workload::handler::{HandlerError, InTransactionError, Job, LeaseHandle},
};
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use super::in_process::{Running, ended, settings, worker};
use crate::support::{
    database::{TestDatabase, client as connect},
    eventually::{eventually, pass},
    proxy::Proxy,
};

/// What a handler does around its `complete_in`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq)]
enum Way {
    Commits,
    /// Commits, and then goes on past the next renewal, which finds the lease gone.
    Lingers,
    RollsBackFirst,
    /// Says that it is done, but was not committed; at the second attempt it commits.
    ForgetsToCommit,
    /// The answer to its commit is lost.
    LosesTheAnswer,
    /// Fences each of two steps, and completes the ordinary way.
    Fences,
}

struct Effects {
    database: TestDatabase,
    client: Client,
}

impl Effects {
    async fn start() -> Self {
        let database = TestDatabase::create().await;
        let client = database.client().await;
        client.batch_execute("create table effects (job bigint, epoch bigint)").await.unwrap();
        Self { database, client }
    }

    async fn of(&self, job: JobId) -> i64 {
        let count = "select count(*) from effects where job = $1";
        self.client.query_one(count, &[&job.0]).await.unwrap().get(0)
    }
}

async fn effect(
    transaction: &tokio_postgres::Transaction<'_>,
    lease: &LeaseHandle,
) -> Result<(), HandlerError> {
    let write = "insert into effects values ($1, $2)";
    transaction.execute(write, &[&lease.job().0, &lease.epoch().0]).await?;
    Ok(())
}

async fn handle(
    url: String,
    proxy: Arc<Proxy>,
    way: Way,
    lease: LeaseHandle,
) -> Result<&'static str, HandlerError> {
    let mut client = connect(&url).await;
    if way == Way::RollsBackFirst {
        let transaction = client.transaction().await?;
        effect(&transaction, &lease).await?;
        lease.complete_in(&transaction, &"undone").await?;
        transaction.rollback().await?;
        lease.progress(&"the lease is still held").await?;
    }
    let transaction = client.transaction().await?;
    if way == Way::Fences {
        lease.fence_in(&transaction).await?;
        transaction.commit().await?;
        let transaction = client.transaction().await?;
        lease.fence_in(&transaction).await?;
        effect(&transaction, &lease).await?;
        transaction.commit().await?;
        return Ok("by itself");
    }
    effect(&transaction, &lease).await?;
    lease.complete_in(&transaction, &format!("{way:?}")).await?;
    match way {
        Way::ForgetsToCommit if lease.attempt() == 1 => {}
        Way::LosesTheAnswer => {
            proxy.swallow_next_answer();
            // As a statement with parameters, so that the proxy knows it.
            transaction.query_typed("commit", &[]).await?;
        }
        _ => transaction.commit().await?,
    }
    if way == Way::Lingers {
        pass(Duration::from_millis(2500)).await;
    }
    Ok("not looked at")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_completed_exactly_with_the_handlers_own_commit() {
    let effects = Effects::start().await;
    let store = effects.database.store().await;
    let proxy = Arc::new(Proxy::before(effects.database.url()).await);
    let url = proxy.url(effects.database.url());
    let runs = Arc::new(AtomicU32::new(0));
    let handler = {
        let (runs, proxy) = (Arc::clone(&runs), Arc::clone(&proxy));
        move |job: Job<Way>, lease: LeaseHandle| {
            runs.fetch_add(1, Ordering::SeqCst);
            handle(url.clone(), Arc::clone(&proxy), job.payload, lease)
        }
    };
    let mut timings = settings();
    timings.renew_interval = Duration::from_secs(1);
    timings.store_timeout = Duration::from_secs(2);
    timings.concurrency = 1;
    let running = Running::start(worker(&effects.database).settings(timings).handler("work", handler)).await;
    for (way, attempts) in [
        (Way::Commits, 1),
        (Way::Lingers, 1),
        (Way::RollsBackFirst, 1),
        (Way::ForgetsToCommit, 2),
        (Way::LosesTheAnswer, 1),
        (Way::Fences, 1),
    ] {
        runs.store(0, Ordering::SeqCst);
        let mut job = NewJob::handler("work", &way);
        job.retry.backoff_ms = Some(10);
        let job = store.submit(&job).await.unwrap().job;
        let detail = ended(&store, job).await;
        assert_eq!(
            (detail.row.state, detail.row.attempt),
            (JobState::Completed, attempts),
            "{way:?}: {detail:?}"
        );
        let output = if way == Way::Fences { "\"by itself\"".to_owned() } else { format!("\"{way:?}\"") };
        assert_eq!(detail.output.unwrap().get(), output);
        assert_eq!(effects.of(job).await, 1, "{way:?}");
        assert_eq!(runs.load(Ordering::SeqCst), u32::try_from(attempts).unwrap(), "{way:?}");
        if way == Way::ForgetsToCommit {
            assert_eq!(detail.leases[0].how.as_str(), "retrying", "{:?}", detail.leases);
        }
    }
    assert_eq!(proxy.swallowed(), 1);
    let tally = running.actors().tally;
    assert_eq!((tally.leases_lost, tally.jobs_completed, tally.reports_not_live), (0, 6, 0), "{tally:?}");
    running.drain().await;
}

/// Under a lease that is gone nothing is completed, and nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_completes_nothing() {
    let effects = Effects::start().await;
    let store = effects.database.store().await;
    let url = effects.database.url().to_owned();
    let refusals = Arc::new(AtomicU32::new(0));
    let handler = {
        let refusals = Arc::clone(&refusals);
        move |_: Job<()>, lease: LeaseHandle| {
            let (url, refused) = (url.clone(), Arc::clone(&refusals));
            async move {
                let mut client = connect(&url).await;
                let expire =
                    "update leasehold.leases set lease_expires_at = clock_timestamp() where job_id = $1";
                client.execute(expire, &[&lease.job().0]).await?;
                let transaction = client.transaction().await?;
                effect(&transaction, &lease).await?;
                let fenced = lease.complete_in(&transaction, &()).await;
                if matches!(fenced, Err(InTransactionError::Lost)) {
                    refused.fetch_add(1, Ordering::SeqCst);
                }
                let fenced = lease.fence_in(&transaction).await;
                if matches!(fenced, Err(InTransactionError::Lost)) {
                    refused.fetch_add(1, Ordering::SeqCst);
                }
                Err::<(), _>(HandlerError::stopped())
            }
        }
    };
    let running = Running::start(worker(&effects.database).handler("work", handler)).await;
    let job = store.submit(&NewJob::handler("work", &())).await.unwrap().job;
    eventually(Duration::from_secs(60), "both are refused", async || {
        (refusals.load(Ordering::SeqCst) >= 2).then_some(())
    })
    .await;
    assert_eq!(effects.of(job).await, 0);
    let detail = store.show_job(&Namespace::default(), job).await.unwrap().unwrap();
    assert_ne!(detail.row.state, JobState::Completed, "{detail:?}");
    running.drain().await;
}

/// `examples/fenced.rs`, as a reader of docs/fencing.md runs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fenced_example_runs() {
    let database = TestDatabase::create().await;
    let mut command = std::process::Command::new(super::worker_process::example("fenced"));
    let said =
        command.env("DATABASE_URL", database.url()).env("EXECUTION_WORKER_ID", "example").output().unwrap();
    let (out, log) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{out}{log}");
    assert!(out.contains("409 epoch 0 is over, the latest is 1"), "{out}{log}");
    assert!(out.contains("COMPLETED") && out.contains("booked 1 time(s)"), "{out}{log}");
}
