//! The worker inside a program, as an embedding program has it: panics, blocking handlers, cancels, timeouts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{
    Client, Worker,
    config::{Effective, Sources, WorkerSettings},
    postgres::{PgStore, cancel::CancelAnswer},
    protocol::{
        domain::{JobId, JobState, Namespace, NewJob},
        supervision::WorkerHealth,
    },
    worker::{BuildError, Health, RunError, WorkerBuilder, WorkerExit},
    workload::handler::{HandlerError, Job, LeaseHandle},
};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use crate::support::{
    database::TestDatabase,
    eventually::{eventually, never, pass},
};

/// A worker that runs on a task of the test.
pub struct Running {
    health: Health,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<WorkerExit, RunError>>,
}

impl Running {
    pub async fn start(worker: WorkerBuilder) -> Self {
        let worker = worker.build().await.unwrap();
        let (health, (stop, stopped)) = (worker.health(), oneshot::channel::<()>());
        let task = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
        Self { health, stop, task }
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    pub(super) fn actors(&self) -> WorkerHealth {
        self.health.actors().expect("it runs")
    }

    /// Ends it where a drain cannot work: its database is gone.
    pub(super) fn abandon(self) {
        self.task.abort();
    }

    /// Drains it; everything must be free again.
    pub(super) async fn drain(self) {
        self.stop.send(()).unwrap();
        match self.task.await.unwrap().unwrap() {
            WorkerExit::Drained(drained) => assert!(drained.is_clean(), "{drained:?}"),
            exit @ WorkerExit::StoppedNow(_) => panic!("{exit:?}"),
        }
    }
}

pub(super) fn settings() -> WorkerSettings {
    let mut settings = Effective::load(&Sources::default()).unwrap().worker().unwrap();
    settings.concurrency = 16;
    settings
}

fn short_lease() -> WorkerSettings {
    let mut settings = settings();
    settings.lease = Duration::from_secs(2);
    settings.renew_interval = Duration::from_millis(400);
    settings.store_timeout = Duration::from_millis(500);
    settings.safety_margin = Duration::from_millis(200);
    settings
}

pub(super) fn worker(database: &TestDatabase) -> WorkerBuilder {
    Worker::builder().database_settings(database.settings()).settings(settings())
}

pub(super) async fn ended(store: &PgStore, job: JobId) -> leasehold::postgres::read::JobDetail {
    eventually(Duration::from_secs(20), "the job ends", async || {
        let detail = store.show_job(&Namespace::default(), job).await.unwrap()?;
        detail.row.state.is_terminal().then_some(detail)
    })
    .await
}

/// SH-12: ten results are delivered although a handler beside them panics, and the panic's text is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_fails_its_own_job_and_nobody_elses() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let gate = Arc::new(tokio::sync::Barrier::new(11));
    let handler = {
        let gate = Arc::clone(&gate);
        move |job: Job<bool>, _| {
            let gate = Arc::clone(&gate);
            async move {
                // All eleven run at once when the panic happens.
                gate.wait().await;
                assert!(!job.payload, "the panic of job {}", job.id);
                Ok::<_, HandlerError>(job.id)
            }
        }
    };
    let running = Running::start(worker(&database).handler("work", handler)).await;
    let mut bad = NewJob::handler("work", &true);
    bad.retry.max_system = Some(1);
    let bad = store.submit(&bad).await.unwrap().job;
    let good = store.submit_bulk(vec![NewJob::handler("work", &false); 10]).await.unwrap();
    for job in good {
        let detail = ended(&store, job).await;
        assert_eq!((detail.row.state.as_str(), detail.row.attempt), ("COMPLETED", 1));
        assert_eq!(detail.output.unwrap().get(), job.to_string());
    }
    let failed = ended(&store, bad).await.row;
    let failure = failed.failure.unwrap();
    assert_eq!((failed.state.as_str(), failure.code.as_deref()), ("FAILED", Some("panic")));
    assert!(failure.message.unwrap().contains(&format!("the panic of job {bad}")));
    assert!(running.actors().is_good(), "{:?}", running.actors());
    running.drain().await;
}

/// A handler that blocks its thread, on every thread that there is, loses no lease: renewals do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_block_every_thread_do_not_hold_up_renewals() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let handler = |_: Job<()>, _: LeaseHandle| async {
        // Longer than a lease, and no `.await` in it.
        std::thread::sleep(Duration::from_secs(3));
        Ok::<_, HandlerError>(())
    };
    let running = Running::start(worker(&database).settings(short_lease()).handler("work", handler)).await;
    let jobs = store.submit_bulk(vec![NewJob::handler("work", &()); 4]).await.unwrap();
    for job in jobs {
        let detail = ended(&store, job).await;
        assert_eq!((detail.row.state.as_str(), detail.leases.len()), ("COMPLETED", 1), "{detail:?}");
        assert!(detail.leases[0].renewals >= 4, "{detail:?}");
    }
    let tally = running.actors().tally;
    assert_eq!((tally.leases_lost, tally.renewals_not_live), (0, 0));
    running.drain().await;
}

/// A cancel reaches a running handler at once, by NOTIFY, and not only at the next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_a_running_handler_at_once() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let (begun, told) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (begun, told) = (Arc::clone(&begun), Arc::clone(&told));
        move |_: Job<()>, lease: LeaseHandle| {
            let (begun, told) = (Arc::clone(&begun), Arc::clone(&told));
            async move {
                begun.notify_one();
                lease.cancelled().await;
                told.notify_one();
                Err::<(), _>(HandlerError::stopped())
            }
        }
    };
    let mut slow = settings();
    slow.renew_interval = Duration::from_secs(15);
    slow.store_timeout = Duration::from_secs(1);
    let running = Running::start(worker(&database).settings(slow).handler("work", handler)).await;
    eventually(Duration::from_secs(60), "the worker listens", async || {
        running.health.hints().filter(|hints| hints.listening)
    })
    .await;
    let job = store.submit(&NewJob::handler("work", &())).await.unwrap().job;
    begun.notified().await;
    let asked = Instant::now();
    let answer = store.request_cancel(&Namespace::default(), job, Duration::from_secs(10)).await.unwrap();
    assert!(matches!(answer, CancelAnswer::Requested { .. }), "{answer:?}");
    tokio::time::timeout(Duration::from_secs(5), told.notified())
        .await
        .expect("told long before the next renewal");
    assert!(asked.elapsed() < Duration::from_secs(5));
    let detail = ended(&store, job).await;
    assert_eq!((detail.row.state.as_str(), detail.leases[0].how.as_str()), ("CANCELED", "canceled"));
    running.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_runs_longer_than_its_timeout_is_told_and_fails() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let handler = |_: Job<()>, lease: LeaseHandle| async move {
        let reason = lease.cancelled().await;
        lease.progress(&format!("{reason:?}")).await?;
        Err::<(), _>(HandlerError::stopped())
    };
    let running = Running::start(worker(&database).handler("work", handler)).await;
    let mut job = NewJob::handler("work", &());
    job.timeout_ms = Some(300);
    let job = store.submit(&job).await.unwrap().job;
    let detail = ended(&store, job).await;
    let failure = detail.row.failure.unwrap();
    assert_eq!((detail.row.state.as_str(), failure.code.as_deref()), ("FAILED", Some("timeout")));
    assert_eq!(detail.progress.unwrap().get(), "\"TimedOut\"");
    running.drain().await;
}

/// A job exists if, and only if, the transaction that submitted it was committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_only_when_the_transaction_that_submitted_it_commits() {
    let database = TestDatabase::create().await;
    let (store, mut client) = (database.store().await, database.client().await);
    let ran = Arc::new(AtomicU32::new(0));
    let handler = {
        let ran = Arc::clone(&ran);
        move |job: Job<u32>, _| {
            ran.fetch_add(job.payload, Ordering::SeqCst);
            std::future::ready(Ok::<_, HandlerError>(()))
        }
    };
    let running = Running::start(worker(&database).handler("work", handler)).await;
    let undone = client.transaction().await.unwrap();
    Client::submit(&undone, NewJob::handler("work", &1000_u32)).await.unwrap();
    undone.rollback().await.unwrap();
    let done = client.transaction().await.unwrap();
    let job = Client::submit(&done, NewJob::handler("work", &1_u32)).await.unwrap().job;
    pass(Duration::from_millis(300)).await;
    assert_eq!(ran.load(Ordering::SeqCst), 0, "it ran before the commit");
    done.commit().await.unwrap();
    ended(&store, job).await;
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    running.drain().await;
}

/// Dropping the future of `run_until` is an order to stop at once; nothing of the worker goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_run_is_dropped_gives_its_work_back() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let begun = Arc::new(Notify::new());
    let handler = {
        let begun = Arc::clone(&begun);
        move |_: Job<()>, _| {
            begun.notify_one();
            std::future::pending::<Result<(), HandlerError>>()
        }
    };
    let built = worker(&database).handler("work", handler).build().await.unwrap();
    let task = tokio::spawn(built.run_until(std::future::pending()));
    let job = store.submit(&NewJob::handler("work", &())).await.unwrap().job;
    begun.notified().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let detail = eventually(Duration::from_secs(60), "the job is given back", async || {
        let detail = store.show_job(&Namespace::default(), job).await.unwrap()?;
        (!detail.leases.is_empty() && detail.leases[0].ended_at.is_some()).then_some(detail)
    })
    .await;
    assert_eq!(detail.leases[0].how, "released", "{detail:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_cannot_work_is_not_built() {
    let database = TestDatabase::create().await;
    let nothing = worker(&database).build().await;
    assert!(matches!(nothing, Err(BuildError::NothingToServe)), "{nothing:?}");
    let unsafe_times = worker(&database)
        .heartbeats(true)
        .configure(|settings| settings.renew_interval = settings.lease)
        .build()
        .await;
    assert!(unsafe_times.unwrap_err().to_string().contains("EXECUTION_WORKER_LEASE_DURATION"));
    let bad_rule = worker(&database)
        .heartbeats(true)
        .configure(|settings| settings.heartbeat_allow = vec!["10.0.0.0/99".to_owned()])
        .build()
        .await;
    assert!(bad_rule.unwrap_err().to_string().contains("HEARTBEAT_ALLOW"));
    let empty = TestDatabase::empty().await;
    let not_migrated = worker(&empty).heartbeats(true).build().await;
    assert!(not_migrated.unwrap_err().to_string().contains("leasehold migrate"));
}

/// The whole way of a HEARTBEAT job: submitted, claimed, probed, with its report as output; and one refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_job_ends_with_its_report_or_its_reason() {
    use super::http_target::{Target, ok};
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let (allowed, forbidden) = (Target::http(|_| ok("well")).await, Target::forbidden().await);
    let rule = allowed.rule();
    let builder = worker(&database).heartbeats(true).configure(move |s| s.heartbeat_allow = vec![rule]);
    let running = Running::start(builder).await;
    let heartbeat = |url: String| {
        let spec = serde_json::from_value(serde_json::json!({ "url": url })).unwrap();
        NewJob::ad_hoc(leasehold::protocol::domain::JobDefinition::Heartbeat(spec))
    };
    // HB-03: a submit looks at no address.
    let good = store.submit(&heartbeat(allowed.url("/"))).await.unwrap().job;
    let bad = store.submit(&heartbeat(forbidden.url("/"))).await.unwrap().job;
    let detail = ended(&store, good).await;
    let output: serde_json::Value = serde_json::from_str(detail.output.unwrap().get()).unwrap();
    assert_eq!((&output["status"], detail.row.state.as_str()), (&200.into(), "COMPLETED"));
    let failed = ended(&store, bad).await.row;
    assert_eq!(failed.failure.unwrap().code.as_deref(), Some("egress_refused"));
    assert_eq!(forbidden.connections(), 0);
    running.drain().await;
}

/// `examples/handler.rs`, as a reader of docs/embedding.md runs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedding_example_runs() {
    let database = TestDatabase::create().await;
    let mut command = std::process::Command::new(super::worker_process::example("handler"));
    let said =
        command.env("DATABASE_URL", database.url()).env("EXECUTION_WORKER_ID", "example").output().unwrap();
    let (out, log) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{out}{log}");
    assert!(out.contains("order 42 is confirmed to ann@example.org"), "{out}{log}");
}

/// CL-09: a worker that serves other things leaves the job to one that serves it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_the_handler_neither_claims_nor_fails_the_job() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let handler = |_: Job<()>, _: LeaseHandle| std::future::ready(Ok::<_, HandlerError>(()));
    let without = Running::start(worker(&database).heartbeats(true).handler("other", handler)).await;
    let other = store.submit(&NewJob::handler("other", &())).await.unwrap().job;
    let job = store.submit(&NewJob::handler("work", &())).await.unwrap().job;
    ended(&store, other).await;
    never(Duration::from_secs(2), "somebody touched the job", async || {
        let row = store.show_job(&Namespace::default(), job).await.unwrap().unwrap().row;
        (row.state != JobState::Queued || row.attempt != 0 || row.failure.is_some()).then_some(row)
    })
    .await;
    let with = Running::start(worker(&database).handler("work", handler)).await;
    let detail = ended(&store, job).await;
    assert_eq!((detail.row.state, detail.row.attempt), (JobState::Completed, 1), "{detail:?}");
    assert_eq!(detail.leases.len(), 1, "{detail:?}");
    with.drain().await;
    without.drain().await;
}
