//! The database under workers at work: restarted, or cancelling their statements all the time.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{
    dev::cluster::Cluster,
    postgres::{PgStore, cancel::CancelAnswer, migrate, read::JobFilter},
    protocol::domain::{JobState, Namespace, NewJob},
    workload::handler::{HandlerError, Job, LeaseHandle},
};
use tokio::runtime::Handle;

use super::in_process::{Running, ended, settings, worker};
use crate::support::{
    database::{self, TestDatabase},
    eventually::{eventually, pass},
    rows,
};

/// PG-07: PostgreSQL is restarted while a job runs. What a job rests on are rows and its token, and both
/// outlive every session: it is run once, and it ends well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_database_costs_no_job_and_runs_none_twice() {
    let folder = Path::new("/tmp").join(format!("leasehold-restart-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711)).unwrap();
    let cluster = Cluster::start(&folder).await.unwrap();
    let address = database::settings(cluster.url());
    migrate::run(&address).await.unwrap();
    let store = PgStore::connect(&address, Handle::current()).await.unwrap();

    let runs = Arc::new(AtomicU32::new(0));
    let handler = {
        let runs = Arc::clone(&runs);
        move |job: Job<u64>, _: LeaseHandle| {
            runs.fetch_add(1, Ordering::SeqCst);
            async move {
                pass(Duration::from_millis(job.payload)).await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    let mut lease = settings();
    lease.lease = Duration::from_secs(30);
    lease.renew_interval = Duration::from_secs(1);
    lease.store_timeout = Duration::from_secs(2);
    let builder = leasehold::Worker::builder().database_settings(address.clone()).settings(lease);
    let running = Running::start(builder.handler("work", handler)).await;
    eventually(Duration::from_secs(60), "it listens", async || {
        running.health().hints().filter(|hints| hints.listening)
    })
    .await;
    let across = store.submit(&NewJob::handler("work", &6000_u64)).await.unwrap().job;
    // Ends while nobody can be told.
    let within = store.submit(&NewJob::handler("work", &1000_u64)).await.unwrap().job;
    let later = chrono::Utc::now() + chrono::Duration::seconds(2);
    let scheduled = NewJob { run_at: Some(later), ..NewJob::handler("work", &0_u64) };
    let scheduled = store.submit(&scheduled).await.unwrap().job;
    eventually(Duration::from_secs(60), "two jobs run", async || {
        (runs.load(Ordering::SeqCst) == 2).then_some(())
    })
    .await;

    cluster.stop().await;
    pass(Duration::from_millis(1500)).await;
    let cluster = Cluster::start(&folder).await.unwrap();
    assert_eq!(cluster.moved(), None, "it is reached where it was");

    eventually(Duration::from_secs(20), "the database answers again", async || {
        store.node_list(&Namespace::default()).await.ok()
    })
    .await;
    for job in [across, within, scheduled] {
        let detail = ended(&store, job).await;
        assert_eq!((detail.row.state, detail.row.attempt), (JobState::Completed, 1), "{detail:?}");
        assert_eq!(detail.leases.len(), 1, "{detail:?}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 3, "each was run once");
    assert!(running.actors().is_good(), "{:?}", running.actors());
    eventually(Duration::from_secs(60), "it listens again", async || {
        running.health().hints().filter(|hints| hints.listening && hints.reconnects >= 1)
    })
    .await;
    running.drain().await;
    cluster.stop().await;
    std::fs::remove_dir_all(&folder).unwrap();
}

/// PG-13: statements are cancelled under a worker's hands all the time, as a tight `statement_timeout` does
/// under load. Everything is asked again; no job stays behind, and each can be cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_are_cancelled_all_the_time_leave_no_job_behind() {
    const JOBS: usize = 200;
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let handler = |_: Job<()>, lease: LeaseHandle| async move {
        pass(Duration::from_millis(50)).await;
        // Progress is one more statement that may be hit; the job does not depend on it.
        let _ = lease.progress(&1).await;
        Ok::<_, HandlerError>(())
    };
    store.submit_bulk(vec![NewJob::handler("work", &()); JOBS]).await.unwrap();
    let hour = chrono::Utc::now() + chrono::Duration::hours(1);
    let waiting = vec![NewJob { run_at: Some(hour), ..NewJob::handler("work", &()) }; 20];
    let waiting = store.submit_bulk(waiting).await.unwrap();
    let running = Running::start(worker(&database).handler("work", handler)).await;

    let hits = Arc::new(AtomicU32::new(0));
    let canceling = {
        let (hits, session) = (Arc::clone(&hits), database.client().await);
        tokio::spawn(async move {
            loop {
                let hit = "select count(pg_cancel_backend(pid)) from pg_stat_activity
                           where datname = current_database() and application_name like 'leasehold-test%'
                             and state = 'active'";
                let hit: i64 = session.query_one(hit, &[]).await.unwrap().get(0);
                hits.fetch_add(u32::try_from(hit).unwrap(), Ordering::SeqCst);
                pass(Duration::from_millis(3)).await;
            }
        })
    };
    eventually(Duration::from_secs(60), "every job ends", async || {
        let left = "select count(*) from leasehold.jobs j where not exists
                        (select from leasehold.ended e where e.job_id = j.job_id)";
        (client.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 20).then_some(())
    })
    .await;
    // A cancel that was cancelled surely did nothing, and is asked again.
    for job in &waiting {
        let answer = eventually(Duration::from_secs(60), "the cancel gets through", async || {
            store.request_cancel(&Namespace::default(), *job, Duration::from_secs(1)).await.ok()
        })
        .await;
        assert_eq!(answer, CancelAnswer::Canceled);
    }
    canceling.abort();
    let hits = hits.load(Ordering::SeqCst);
    assert!(hits > 20, "only {hits} statements were hit");
    // The last cancel may still be on its way.
    let all = JobFilter { limit: 1000, ..JobFilter::all(Namespace::default()) };
    let page =
        eventually(Duration::from_secs(60), "a listing", async || store.list_jobs(&all).await.ok()).await;
    let completed = page.items.iter().filter(|row| row.state == JobState::Completed && row.attempt == 1);
    assert_eq!((page.items.len(), completed.count()), (JOBS + 20, JOBS), "{hits} hits");
    rows::conserved(&client).await;
    running.drain().await;
}
