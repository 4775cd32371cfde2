//! A fleet at work while PostgreSQL is away: silent, refusing, read-only, full, or restarted again and again.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{
    config::{DatabaseSettings, WorkerSettings},
    postgres::{PgStore, migrate, read::JobFilter},
    protocol::domain::{JobId, JobState, Namespace, NewJob},
    workload::handler::{HandlerError, Job, LeaseHandle},
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::in_process::{Running, ended, settings as worker_settings};
use crate::support::{
    database::{self, TestDatabase, client as connect},
    eventually::{eventually, pass},
    gate::Gate,
    proxy::Proxy,
    rows,
    server::{Server, TRUST},
};

fn timings(lease: u64, margin: u64) -> WorkerSettings {
    let mut timings = worker_settings();
    timings.lease = Duration::from_secs(lease);
    timings.renew_interval = Duration::from_secs(1);
    timings.store_timeout = Duration::from_secs(1);
    timings.safety_margin = Duration::from_secs(margin);
    timings.recovery_interval = Duration::from_secs(1);
    timings
}

/// How long until a lease is renewed, from now.
async fn first_renewal(running: &Running, before: u64) -> Duration {
    let back = Instant::now();
    eventually(Duration::from_secs(60), "a lease is renewed", async || {
        (running.actors().tally.renewals_held > before).then_some(())
    })
    .await;
    back.elapsed()
}

/// PG-03, PG-05, PG-09: outages of several kinds, each shorter than lease − renew interval − margin. No lease is lost,
/// and the fleet goes on by itself as soon as the server answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_that_are_shorter_than_a_lease_cost_none() {
    const JOBS: usize = 16;
    const OUTAGE: Duration = Duration::from_secs(8);
    let database = TestDatabase::create().await;
    let (store, admin) = (database.store().await, connect(database.url()).await);
    let proxy = Proxy::before(database.url()).await;
    let address = DatabaseSettings {
        application_name: "outage".to_owned(),
        ..database::settings(&proxy.url(database.url()))
    };
    let gate = Gate::default();
    let builder = leasehold::Worker::builder().database_settings(address).settings(timings(20, 2));
    let running = Running::start(builder.handler("work", gate.handler())).await;
    let jobs = store.submit_bulk(vec![NewJob::handler("work", &()); JOBS]).await.unwrap();
    gate.until_entered_by(JOBS).await;
    let kill = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'outage%'";
    let read_only = async |on: &str| {
        let set = format!(
            "set default_transaction_read_only = off; alter database {} set default_transaction_read_only = {on}",
            database.name()
        );
        admin.batch_execute(&set).await.unwrap();
    };
    for kind in ["silent", "refusing", "read-only", "killed"] {
        match kind {
            "silent" => proxy.stall(true),
            "refusing" => {
                proxy.refuse(true);
                proxy.cut();
            }
            "read-only" => {
                read_only("on").await;
                admin.execute(kill, &[]).await.unwrap();
            }
            _ => {
                let until = Instant::now() + OUTAGE;
                while Instant::now() < until {
                    admin.execute(kill, &[]).await.unwrap();
                    pass(Duration::from_millis(5)).await;
                }
            }
        }
        if kind != "killed" {
            pass(OUTAGE).await;
        }
        let before = running.actors().tally.renewals_held;
        match kind {
            "silent" => proxy.stall(false),
            "refusing" => proxy.refuse(false),
            // And no session is killed: those that met it must not stay as they are.
            "read-only" => read_only("off").await,
            _ => {}
        }
        let first = first_renewal(&running, before).await;
        println!("{kind} for {OUTAGE:?}: first renewal after {first:.1?}");
        assert_eq!(running.actors().tally.leases_lost, 0, "{kind}");
        // The leases are whole again before the next one.
        let all = running.actors().tally.renewals_held + JOBS as u64;
        eventually(Duration::from_secs(60), "every lease is renewed", async || {
            (running.actors().tally.renewals_held >= all).then_some(())
        })
        .await;
    }
    gate.open();
    for job in jobs {
        let detail = ended(&store, job).await;
        assert_eq!(
            (detail.row.state, detail.row.attempt, detail.leases.len()),
            (JobState::Completed, 1, 1),
            "{detail:?}"
        );
    }
    assert_eq!(gate.entered(), JOBS, "each was run once");
    running.drain().await;
}

/// PG-15: the server has fifteen connections, ten are others', and five dashboards want the rest. Whoever came first
/// has what keeps its leases alive; the dashboards get errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_costs_no_lease() {
    const JOBS: usize = 20;
    let server =
        Server::start("max_connections = 15\nsuperuser_reserved_connections = 0", TRUST, |_| {}).await;
    let address = DatabaseSettings { pool_size: 8, ..database::settings(&server.url()) };
    migrate::run(&address).await.unwrap();
    let store = PgStore::connect(&address, Handle::current()).await.unwrap();
    let jobs = store.submit_bulk(vec![NewJob::handler("work", &()); JOBS]).await.unwrap();
    let room = store.make_ready().await.unwrap();
    assert!(room.is_tight(), "{room:?}");
    drop(store);
    let handler = |_: Job<()>, _: LeaseHandle| async {
        pass(Duration::from_secs(4)).await;
        Ok::<_, HandlerError>(())
    };
    eventually(Duration::from_secs(60), "nobody is connected", async || {
        let admin = connect(&server.socket_url()).await;
        let others = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
        (admin.query_one(others, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(())
    })
    .await;
    let mut others = Vec::new();
    for _ in 0..10 {
        others.push(connect(&server.socket_url()).await);
    }
    let builder = leasehold::Worker::builder().database_settings(address.clone()).settings(timings(10, 1));
    let running = Running::start(builder.handler("work", handler)).await;
    let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let dashboards: Vec<_> = (0..5)
        .map(|_| {
            let (address, stop, refused) = (address.clone(), Arc::clone(&stop), Arc::clone(&refused));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let looked = async {
                        let store = PgStore::connect(&address, Handle::current()).await.ok()?;
                        store.list_jobs(&JobFilter::all(Namespace::default())).await.ok()
                    };
                    if looked.await.is_none() {
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                    pass(Duration::from_millis(5)).await;
                }
            })
        })
        .collect();
    let look = &others[0];
    eventually(Duration::from_secs(90), "every job ends", async || {
        let left = "select count(*) from leasehold.jobs j where not exists
                        (select from leasehold.ended e where e.job_id = j.job_id)";
        (look.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    for dashboard in dashboards {
        dashboard.await.unwrap();
    }
    let once = "select count(*) from leasehold.lease_history where how = 'completed' and epoch = 1";
    assert_eq!(look.query_one(once, &[]).await.unwrap().get::<_, i64>(0) as usize, jobs.len());
    assert_eq!(running.actors().tally.leases_lost, 0);
    let refused = refused.load(Ordering::SeqCst);
    println!("{refused} looks of dashboards were refused meanwhile");
    assert!(refused > 0, "the server was never full");
    drop(others);
    running.drain().await;
}

/// What a job does, and so how it must end.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Script {
    ms: u64,
    fails: bool,
}

/// Restarts a server under a worker with a steady load, every other time as in a crash; checks that each job ended as
/// its script says, and answers how many leases were lost.
async fn restarted_under_load(lease: u64, restarts: u32, every: Duration, away: Duration) -> i64 {
    let mut server = Server::start("max_connections = 60", TRUST, |_| {}).await;
    let address =
        DatabaseSettings { store_timeout: Duration::from_secs(1), ..database::settings(&server.url()) };
    migrate::run(&address).await.unwrap();
    let store = PgStore::connect(&address, Handle::current()).await.unwrap();
    let runs: Arc<Mutex<HashMap<JobId, u32>>> = Arc::default();
    let handler = {
        let runs = Arc::clone(&runs);
        move |job: Job<Script>, lease: LeaseHandle| {
            *runs.lock().unwrap().entry(job.id).or_default() += 1;
            async move {
                tokio::select! {
                    () = pass(Duration::from_millis(job.payload.ms)) => {}
                    _ = lease.cancelled() => return Err(HandlerError::stopped()),
                }
                if job.payload.fails {
                    Err(HandlerError::user("asked_to", "as its script says"))
                } else {
                    Ok(())
                }
            }
        }
    };
    let builder =
        leasehold::Worker::builder().database_settings(address).settings(timings(lease, lease / 10 + 1));
    let running = Running::start(builder.handler("work", handler)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let submitting = {
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut jobs = Vec::new();
            for n in 0_u64.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let script = Script { ms: (n * 37) % 2000, fails: n % 10 == 9 };
                let mut job = NewJob::handler("work", &script);
                job.idempotency_key = Some(format!("job-{n}"));
                job.retry.backoff_ms = Some(100);
                // The answer may be lost; under its key a repeat is the same job.
                let submitted = loop {
                    match store.submit(&job).await {
                        Ok(submitted) => break submitted,
                        Err(_) => pass(Duration::from_millis(10)).await,
                    }
                };
                jobs.push((submitted.job, script));
                pass(Duration::from_millis(100)).await;
            }
            jobs
        })
    };
    for n in 0..restarts {
        pass(every).await;
        if n % 2 == 0 {
            server.crash()
        } else {
            server.stop()
        }
        pass(away).await;
        let before = running.actors().tally.renewals_held;
        server.begin().await;
        println!("restart {}: first renewal after {:.1?}", n + 1, first_renewal(&running, before).await);
    }
    pass(every).await;
    stop.store(true, Ordering::SeqCst);
    let jobs = submitting.await.unwrap();
    let mut most = 0;
    for (job, script) in &jobs {
        let detail = ended(&store, *job).await;
        let expected = if script.fails { JobState::Failed } else { JobState::Completed };
        assert_eq!(detail.row.state, expected, "{detail:?}");
        let losses = detail.leases.iter().filter(|lease| lease.how == "expired").count();
        // One for each time that the server was away: a job that ran again may meet the next one. None is counted.
        assert!(losses <= restarts as usize, "{detail:?}");
        assert_eq!((detail.losses, detail.failures.system), (0, 0), "{detail:?}");
        most = most.max(losses);
        if losses == 0 {
            assert_eq!(runs.lock().unwrap().get(job), Some(&1), "{detail:?}");
        }
    }
    let admin = server.client().await;
    rows::conserved(&admin).await;
    let lost = "select count(*) from leasehold.lease_history where how = 'expired'";
    let lost: i64 = admin.query_one(lost, &[]).await.unwrap().get(0);
    println!(
        "lease {lease} s, {restarts} restarts: {} jobs, {lost} leases lost, at most {most} of one job",
        jobs.len()
    );
    running.drain().await;
    lost
}

/// `LEASEHOLD_RESTARTS=5` (`make restarts`) is five within a minute; the suite makes two.
fn restarts() -> (u32, Duration) {
    match std::env::var("LEASEHOLD_RESTARTS") {
        Ok(count) => (count.parse().expect("a number"), Duration::from_secs(10)),
        Err(_) => (2, Duration::from_secs(5)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_under_load_lose_no_long_lease() {
    let (count, every) = restarts();
    assert_eq!(restarted_under_load(30, count, every, Duration::from_millis(500)).await, 0);
}

/// The server stays away for longer than a lease. Each job still ends once, as its script says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_under_load_lose_a_short_lease_at_most_once_each() {
    let (count, every) = restarts();
    let lost = restarted_under_load(5, count, every, Duration::from_secs(6)).await;
    assert!(lost > 0, "the outage was no longer than the leases");
}
