//! HANDLER jobs through worker processes: executed exactly once, drained in time, never shared.

use std::time::Duration;

use leasehold::{
    postgres::PgStore,
    protocol::domain::{JobId, NewJob},
};
use rustix::process::Signal;
use serde_json::json;
use tokio_postgres::Client;

use super::worker_process::WorkerProcess;
use crate::support::{
    database::TestDatabase,
    eventually::{eventually, never, pass},
};

/// Short enough for tests, and still by the start-up rule.
const SHORT_LEASE: &[(&str, &str)] = &[
    ("EXECUTION_WORKER_LEASE_DURATION", "2s"),
    ("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "400ms"),
    ("EXECUTION_WORKER_STORE_TIMEOUT", "500ms"),
];

/// A database with a table for traces, without any key, outside of schema `leasehold`.
async fn scene() -> (TestDatabase, PgStore, Client) {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    client
        .batch_execute(
            "create table traces (job bigint, attempt integer, epoch bigint, pid bigint, what text,
                                  at timestamptz default clock_timestamp())",
        )
        .await
        .unwrap();
    (database, store, client)
}

fn job(handler: &str, ms: u64) -> NewJob {
    NewJob::handler(handler, &json!({ "ms": ms }))
}

async fn submit(store: &PgStore, handler: &str, ms: u64) -> JobId {
    store.submit(&job(handler, ms)).await.unwrap().job
}

/// One number by one query.
async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn begun(client: &Client, job: JobId) {
    eventually(Duration::from_secs(20), "the handler begins", async || {
        let found = client.query("select from traces where job = $1", &[&job.0]).await.unwrap();
        (!found.is_empty()).then_some(())
    })
    .await;
}

/// Where a job stands, how often it was attempted, and why it failed.
async fn state(client: &Client, job: JobId) -> (String, i32, Option<String>) {
    let row = client
        .query_one(
            "select state, attempt, failure_code from leasehold.jobs_view where job_id = $1",
            &[&job.0],
        )
        .await
        .unwrap();
    (row.get(0), row.get(1), row.get(2))
}

/// What a job's handlers left, in order.
async fn traces(client: &Client, job: JobId) -> Vec<String> {
    let rows = client.query("select what from traces where job = $1 order by at", &[&job.0]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// No job waits, is ready or runs; no slot is taken.
async fn nothing_is_left(client: &Client) {
    let left = number(
        client,
        "select (select count(*) from leasehold.waiting) + (select count(*) from leasehold.ready)
              + (select count(*) from leasehold.leases) + (select count(*) from leasehold.node_slots)
              + (select count(*) from leasehold.workflow_slots)",
    )
    .await;
    assert_eq!(left, 0, "rows are left in hand");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_jobs_through_two_processes_are_each_executed_exactly_once() {
    const JOBS: i64 = 10_000;
    let (database, store, client) = scene().await;
    let settings = &[("EXECUTION_WORKER_CONCURRENCY", "200"), ("EXECUTION_WORKER_CLAIM_BATCH", "100")];
    let workers =
        [WorkerProcess::start(&database, "a", settings), WorkerProcess::start(&database, "b", settings)];
    for _ in 0..10 {
        store.submit_bulk(vec![job("trace", 0); 1000]).await.unwrap();
    }
    eventually(Duration::from_secs(240), "every job ends", async || {
        (number(&client, "select count(*) from leasehold.ended").await == JOBS).then_some(())
    })
    .await;
    for worker in &workers {
        let done = format!("select count(*) from traces where pid = {}", worker.pid());
        assert!(number(&client, &done).await > 0, "one of the two processes did nothing");
    }
    for worker in workers {
        worker.signal(Signal::TERM);
        worker.wait().assert_drained();
    }

    assert_eq!(number(&client, "select count(*) from traces where what = 'begin'").await, JOBS);
    assert_eq!(number(&client, "select count(distinct job) from traces where what = 'begin'").await, JOBS);
    assert_eq!(number(&client, "select count(distinct job) from traces where what = 'end'").await, JOBS);
    assert_eq!(
        number(&client, "select count(*) from leasehold.ended where state = 'COMPLETED' and attempt = 1")
            .await,
        JOBS
    );
    assert_eq!(
        number(&client, "select count(*) from leasehold.lease_history where how = 'completed'").await,
        JOBS
    );
    assert_eq!(number(&client, "select count(*) from leasehold.lease_history").await, JOBS);
    nothing_is_left(&client).await;
}

/// SH-01: renewals go on until the last end is confirmed, so that nobody declares the drain's work dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_renews_until_its_last_job_has_ended() {
    let (database, store, client) = scene().await;
    let draining = WorkerProcess::start(&database, "a", SHORT_LEASE);
    // Three leases long.
    let slow = submit(&store, "trace", 6000).await;
    begun(&client, slow).await;
    let other = WorkerProcess::start(&database, "b", SHORT_LEASE);
    draining.signal(Signal::TERM);

    let expires =
        "select extract(epoch from lease_expires_at - clock_timestamp())::float8 from leasehold.leases
                   where job_id = $1";
    let ends = eventually(Duration::from_secs(20), "the job ends", async || {
        match client.query_opt(expires, &[&slow.0]).await.unwrap() {
            Some(row) => {
                let left: f64 = row.get(0);
                assert!(left > 0.0, "the lease expired during the drain");
                None
            }
            None => Some(()),
        }
    });
    ends.await;
    draining.wait().assert_drained();
    assert_eq!(state(&client, slow).await, ("COMPLETED".to_owned(), 1, None));
    assert_eq!(traces(&client, slow).await, ["begin", "end"]);
    other.signal(Signal::TERM);
    other.wait().assert_drained();
}

/// SH-05: a backlog does not keep a worker that drains, and nothing is claimed after the signal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_under_load_claims_nothing_more_once_it_was_told_to_stop() {
    let (database, store, client) = scene().await;
    store.submit_bulk(vec![job("trace", 50); 2000]).await.unwrap();
    let worker = WorkerProcess::start(&database, "a", &[("EXECUTION_WORKER_CONCURRENCY", "4")]);
    eventually(Duration::from_secs(20), "the worker is under load", async || {
        (number(&client, "select count(*) from leasehold.ended").await >= 20).then_some(())
    })
    .await;
    worker.signal(Signal::TERM);
    let told_at: f64 =
        client.query_one("select extract(epoch from clock_timestamp())::float8", &[]).await.unwrap().get(0);
    let ended = worker.wait();
    ended.assert_drained();
    assert!(ended.waited < Duration::from_secs(5), "the drain took as long as a backlog: {ended:?}");

    let given_back = number(&client, "select count(*) from leasehold.waiting").await;
    let ready = number(&client, "select count(*) from leasehold.ready").await;
    let ended = number(&client, "select count(*) from leasehold.ended").await;
    assert!(ready > 1000, "the backlog was worked off: {ready} left");
    assert_eq!(ready + given_back + ended, 2000, "a job is neither ended nor to be claimed again");
    assert!(
        given_back <= 8,
        "{given_back} jobs were granted and given back: more than two answers of a claim"
    );
    assert_eq!(number(&client, "select count(*) from leasehold.leases").await, 0);
    // What a claim on the way still granted was given back and never begun; nothing was claimed afterwards.
    let late = client
        .query(
            "select how::text from leasehold.lease_history where extract(epoch from granted_at) > $1::float8 + 0.5",
            &[&told_at],
        )
        .await
        .unwrap();
    assert_eq!(late.len(), 0, "claimed half a second after the signal: {late:?}");
    let unfinished =
        number(&client, "select count(*) from (select job from traces group by job having count(*) <> 2) t")
            .await;
    assert_eq!(unfinished, 0, "work was begun and not ended");
}

/// CL-13: with one permit nothing is held that waits for its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_held_for_work_that_waits_locally() {
    let (database, store, client) = scene().await;
    store.submit_bulk(vec![job("trace", 1500); 6]).await.unwrap();
    let mut settings = SHORT_LEASE.to_vec();
    settings.push(("EXECUTION_WORKER_CONCURRENCY", "1"));
    let worker = WorkerProcess::start(&database, "a", &settings);
    eventually(Duration::from_secs(60), "six jobs end", async || {
        let held = number(&client, "select count(*) from leasehold.leases").await;
        assert!(held <= 1, "{held} leases are held with one permit");
        (number(&client, "select count(*) from leasehold.ended").await == 6).then_some(())
    })
    .await;
    worker.signal(Signal::TERM);
    worker.wait().assert_drained();
    assert_eq!(
        number(&client, "select count(*) from leasehold.ended where state = 'COMPLETED' and attempt = 1")
            .await,
        6
    );
    assert_eq!(number(&client, "select count(*) from traces").await, 12);
    let overlaps = number(
        &client,
        "select count(*) from leasehold.lease_history a join leasehold.lease_history b
           on a.job_id < b.job_id and a.granted_at < b.ended_at and b.granted_at < a.ended_at",
    )
    .await;
    assert_eq!(overlaps, 0, "two leases were held at once");
}

/// The second signal: work is stopped at once, and given back without counting a try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_stops_the_work_and_gives_it_back() {
    let (database, store, client) = scene().await;
    let worker = WorkerProcess::start(&database, "a", &[]);
    let stubborn = submit(&store, "trace", 600_000).await;
    begun(&client, stubborn).await;
    worker.signal(Signal::TERM);
    // Within a second it counts as an echo of the first (a terminal and a supervisor both pass it on).
    worker.signal(Signal::INT);
    pass(Duration::from_millis(1100)).await;
    assert_eq!(state(&client, stubborn).await.0, "RUNNING", "the echo counted as a second signal");
    worker.signal(Signal::TERM);
    let ended = worker.wait();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.waited < Duration::from_secs(4), "{ended:?}");
    let (now, attempt, _) = state(&client, stubborn).await;
    assert!(now == "QUEUED" || now == "PENDING", "given back, but {now}");
    assert_eq!(traces(&client, stubborn).await, ["begin"]);

    // The next claim goes on with the same attempt: a stop of ours costs the job no try.
    let next = WorkerProcess::start(&database, "b", &[]);
    eventually(Duration::from_secs(20), "it is begun again", async || {
        (traces(&client, stubborn).await.len() == 2).then_some(())
    })
    .await;
    assert_eq!(state(&client, stubborn).await.1, attempt);
    drop(next);
}

/// When the grace is over, work is told to stop, and given back; the process ends in time with 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_grace_work_is_stopped_and_given_back() {
    let (database, store, client) = scene().await;
    let worker = WorkerProcess::start(&database, "a", &[("EXECUTION_WORKER_SHUTDOWN_GRACE", "1s")]);
    let obedient = submit(&store, "obedient", 600_000).await;
    let stubborn = submit(&store, "trace", 600_000).await;
    begun(&client, obedient).await;
    begun(&client, stubborn).await;
    worker.signal(Signal::TERM);
    let ended = worker.wait();
    ended.assert_drained();
    assert!(ended.waited < Duration::from_secs(11), "{ended:?}");
    assert_eq!(traces(&client, obedient).await, ["begin", "stopped: Draining"]);
    assert_eq!(traces(&client, stubborn).await, ["begin"]);
    for job in [obedient, stubborn] {
        let (now, _, failure) = state(&client, job).await;
        assert!(now == "QUEUED" || now == "PENDING", "given back, but {now}");
        assert_eq!(failure, None);
    }
    let given_back = "select count(*) from leasehold.lease_history where how = 'released'";
    assert_eq!(number(&client, given_back).await, 2);
}

/// RN-07: a successor under the same name owns none of its predecessor's leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_worker_does_not_keep_its_predecessors_lease_alive() {
    let (database, store, client) = scene().await;
    let dead = WorkerProcess::start(&database, "w1", SHORT_LEASE);
    let orphan = submit(&store, "trace", 600_000).await;
    begun(&client, orphan).await;
    let owner: uuid::Uuid = client
        .query_one("select process_id from leasehold.leases where job_id = $1", &[&orphan.0])
        .await
        .unwrap()
        .get(0);
    dead.signal(Signal::KILL);
    dead.wait();

    let newcomer = WorkerProcess::start(&database, "w1", SHORT_LEASE);
    // It lives, and works.
    let other = submit(&store, "trace", 0).await;
    eventually(Duration::from_secs(20), "the newcomer works", async || {
        (state(&client, other).await.0 == "COMPLETED").then_some(())
    })
    .await;
    let live = async || {
        let sql =
            "select from leasehold.leases where process_id = $1 and lease_expires_at > clock_timestamp()";
        !client.query(sql, &[&owner]).await.unwrap().is_empty()
    };
    eventually(Duration::from_millis(2500), "the dead process's lease expires on time", async || {
        (!live().await).then_some(())
    })
    .await;
    never(Duration::from_secs(2), "somebody renewed the lease of a dead process", async || {
        live().await.then_some(())
    })
    .await;
    newcomer.signal(Signal::TERM);
    newcomer.wait().assert_drained();
}

/// CL-01: a job that runs for more than four leases while others look for work. Run time alone makes nothing
/// of it: it is renewed, and nobody else touches it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_far_longer_than_its_lease_runs_once() {
    let (database, store, client) = scene().await;
    let workers = ["a", "b"].map(|name| WorkerProcess::start(&database, name, SHORT_LEASE));
    let long = submit(&store, "trace", 9000).await;
    eventually(Duration::from_secs(30), "the job ends", async || {
        let expired = "select count(*) from leasehold.leases where lease_expires_at <= clock_timestamp()";
        assert_eq!(number(&client, expired).await, 0, "the lease expired under a healthy worker");
        (state(&client, long).await.0 == "COMPLETED").then_some(())
    })
    .await;
    assert_eq!(traces(&client, long).await, ["begin", "end"]);
    assert_eq!(state(&client, long).await.1, 1, "attempts");
    let grants = client
        .query("select renewals from leasehold.lease_history where job_id = $1", &[&long.0])
        .await
        .unwrap();
    assert_eq!(grants.len(), 1, "one token from the first to the last");
    assert!(grants[0].get::<_, i32>(0) >= 12, "renewed {} times", grants[0].get::<_, i32>(0));
    for worker in workers {
        worker.signal(Signal::TERM);
        worker.wait().assert_drained();
    }
}
