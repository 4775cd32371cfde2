//! Renewals meet locks: a row that somebody holds keeps only its own renewal waiting, a wait is never longer than
//! the lease, and a "no" comes only from a look that is younger than the lock.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::{
    postgres::PgStore,
    protocol::{
        domain::{CommandId, JobId},
        error::{Applied, StoreErrorKind},
        ports::{Authority, End, Ended, LeaseStore, OpenClaim, Renewal},
    },
};
use tokio::{runtime::Handle, time::timeout};
use tokio_postgres::Client;

use crate::support::{
    database::TestDatabase,
    eventually::{eventually, pass},
    jobs::{claim_many, claimant, held, open, picture, queue_many},
};

/// A transaction of somebody else's that holds a lease's row.
async fn hold(client: &Client, job: JobId, mode: &str) {
    client.batch_execute("begin").await.unwrap();
    let lock = format!("select from leasehold.leases where job_id = {} for {mode}", job.0);
    client.batch_execute(&lock).await.unwrap();
}

async fn store_with_timeout(database: &TestDatabase, store_timeout: Duration) -> PgStore {
    let mut settings = database.settings();
    settings.store_timeout = store_timeout;
    PgStore::connect(&settings, Handle::current()).await.unwrap()
}

fn is_held(renewal: &Renewal) -> bool {
    matches!(renewal, Renewal::Held { .. })
}

/// Waits until some session of ours waits for a lock.
async fn somebody_waits(client: &Client) {
    eventually(Duration::from_secs(60), "a session waits for the row", async || {
        let waiting =
            "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
        (!client.query(waiting, &[]).await.unwrap().is_empty()).then_some(())
    })
    .await;
}

/// L3: the trap of `now()`, and of a clock read before the row is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_waited_until_its_lease_had_expired_is_refused() {
    let database = TestDatabase::create().await;
    let store = store_with_timeout(&database, Duration::from_secs(20)).await;
    let (client, holder) = (database.client().await, database.client().await);
    let owner = claimant("w1");
    queue_many(&client, 1).await;
    let request = OpenClaim { lease: Duration::from_secs(2), ..open(&owner, 1) };
    let grant = store.claim(&request).await.unwrap().grants.pop().unwrap();
    let job = grant.authority.job;
    assert!(is_held(&store.renew(&grant.authority).await.unwrap()));
    hold(&holder, job, "update").await;
    let before = picture(&client, job).await;
    let renewing = {
        let store = store.clone();
        tokio::spawn(async move { store.renew(&grant.authority).await.unwrap() })
    };
    somebody_waits(&client).await;
    eventually(Duration::from_secs(60), "the lease expires", async || {
        let expired =
            "select from leasehold.leases where lease_expires_at < clock_timestamp() - interval '50 ms'";
        client.query_opt(expired, &[]).await.unwrap().map(|_| ())
    })
    .await;
    assert!(!renewing.is_finished(), "the renewal waits for the row");
    holder.batch_execute("commit").await.unwrap();
    assert_eq!(renewing.await.unwrap(), Renewal::NotLive);
    assert_eq!(picture(&client, job).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_locked_row_among_five_hundred_renewals_keeps_nobody_else_waiting() {
    let database = TestDatabase::create().await;
    let store = store_with_timeout(&database, Duration::from_secs(10)).await;
    let (client, holder) = (database.client().await, database.client().await);
    let owner = claimant("w1");
    queue_many(&client, 500).await;
    let grants = claim_many(&store, &owner, 500).await;
    let locked = grants[250].authority.job;
    hold(&holder, locked, "update").await;
    let started = Instant::now();
    let renewals = grants.iter().map(|grant| {
        let (store, authority) = (store.clone(), grant.authority.clone());
        tokio::spawn(async move {
            let renewal = store.renew(&authority).await.unwrap();
            (authority.job, renewal, started.elapsed())
        })
    });
    let renewals: Vec<_> = renewals.collect();
    let mut slowest = Duration::ZERO;
    let mut waiting = None;
    for (grant, renewal) in grants.iter().zip(renewals) {
        if grant.authority.job == locked {
            waiting = Some(renewal);
            continue;
        }
        let (job, renewal, took) = renewal.await.unwrap();
        assert!(is_held(&renewal), "{job}: {renewal:?}");
        slowest = slowest.max(took);
    }
    // The wait for a row may be 4 s here; neighbours that waited with it would show that.
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    let waiting = waiting.unwrap();
    assert!(!waiting.is_finished(), "its row is held");
    holder.batch_execute("commit").await.unwrap();
    let (_, renewal, _) = waiting.await.unwrap();
    assert!(is_held(&renewal), "{renewal:?}");
}

/// L3: one of five hundred rows is locked from outside for one and a half leases: the others keep theirs, renewed again
/// and again beside it; the one is refused in the end, and nothing of it has changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_locked_for_longer_than_its_lease_costs_only_that_lease() {
    const LEASE: Duration = Duration::from_secs(20);
    let database = TestDatabase::create().await;
    let store = store_with_timeout(&database, Duration::from_secs(2)).await;
    let (client, holder) = (database.client().await, database.client().await);
    let owner = claimant("w1");
    queue_many(&client, 500).await;
    let request = OpenClaim { lease: LEASE, ..open(&owner, 500) };
    let grants = store.claim(&request).await.unwrap().grants;
    assert_eq!(grants.len(), 500);
    let (locked, others) = grants.split_first().unwrap();
    hold(&holder, locked.authority.job, "update").await;
    let before = picture(&client, locked.authority.job).await;
    let until = Instant::now() + LEASE + LEASE / 2;
    let (mut rounds, mut refused) = (0, 0);
    while Instant::now() < until {
        rounds += 1;
        let (theirs, its) = tokio::join!(
            join_all(others.iter().map(|grant| store.renew(&grant.authority))),
            store.renew(&locked.authority),
        );
        for renewal in theirs {
            assert!(is_held(&renewal.unwrap()), "round {rounds}");
        }
        let e = its.expect_err("its row is held");
        assert_eq!((e.kind, e.applied), (StoreErrorKind::RowLocked, Applied::No), "{e}");
        refused += 1;
    }
    assert!(rounds >= 3 && refused == rounds, "{rounds} rounds");
    holder.batch_execute("rollback").await.unwrap();
    assert_eq!(store.renew(&locked.authority).await.unwrap(), Renewal::NotLive);
    assert_eq!(picture(&client, locked.authority.job).await, before);
    for renewal in join_all(others.iter().map(|grant| store.renew(&grant.authority))).await {
        assert!(is_held(&renewal.unwrap()));
    }
}

/// A row that is held for too long is an error that surely changed nothing, in time for one more try.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_stays_locked_is_reported_in_time_for_another_try() {
    let database = TestDatabase::create().await;
    let store = store_with_timeout(&database, Duration::from_secs(2)).await;
    let (client, holder) = (database.client().await, database.client().await);
    let grant = held(&store, &client, &claimant("w1")).await;
    hold(&holder, grant.authority.job, "update").await;
    for end in [None, Some(End::Complete { exit_code: None, output: None }), Some(End::Cancel)] {
        let started = Instant::now();
        let error = match &end {
            None => store.renew(&grant.authority).await.unwrap_err(),
            Some(end) => store.end(&grant.authority, CommandId::generate(), end).await.unwrap_err(),
        };
        assert_eq!((error.kind, error.applied), (StoreErrorKind::RowLocked, Applied::No), "{error}");
        assert!(error.is_retryable());
        assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    }
    holder.batch_execute("commit").await.unwrap();
    assert!(is_held(&store.renew(&grant.authority).await.unwrap()));
}

/// The row is held by a renewal that is under way. The gathered statement finds nothing to renew; the question is
/// put again, and the answer is the truth.
#[tokio::test(flavor = "multi_thread")]
async fn a_no_from_a_look_older_than_the_lock_is_asked_again() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let (client, holder) = (database.client().await, database.client().await);
    let owner = claimant("w1");
    for round in 0..20 {
        let grant = held(&store, &client, &owner).await;
        holder.batch_execute("begin").await.unwrap();
        let renewal = "update leasehold.leases set renewals = renewals + 1,
                           lease_expires_at = clock_timestamp() + interval '1 minute' where job_id = $1";
        holder.execute(renewal, &[&grant.authority.job.0]).await.unwrap();
        let (asking, authority) = (store.clone(), grant.authority.clone());
        let asked = tokio::spawn(async move {
            match round % 2 {
                0 => is_held(&asking.renew(&authority).await.unwrap()),
                _ => {
                    let end = End::Complete { exit_code: None, output: None };
                    asking.end(&authority, CommandId::generate(), &end).await.unwrap() != Ended::NotLive
                }
            }
        });
        somebody_waits(&client).await;
        holder.batch_execute("commit").await.unwrap();
        assert!(asked.await.unwrap(), "round {round}: the lease was live all the time");
    }
}

/// A fence, or output being stored, holds the row in key share mode: renewals go on, only an end waits.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_works_under_a_lease_holds_up_no_renewal() {
    let database = TestDatabase::create().await;
    let store = store_with_timeout(&database, Duration::from_secs(10)).await;
    let (client, holder) = (database.client().await, database.client().await);
    let grant = held(&store, &client, &claimant("w1")).await;
    hold(&holder, grant.authority.job, "key share").await;
    for _ in 0..3 {
        let renewal = timeout(Duration::from_secs(2), store.renew(&grant.authority)).await;
        assert!(is_held(&renewal.expect("the renewal does not wait").unwrap()));
    }
    let ending = {
        let (store, authority) = (store.clone(), grant.authority.clone());
        let end = End::Complete { exit_code: None, output: None };
        tokio::spawn(async move { store.end(&authority, CommandId::generate(), &end).await.unwrap() })
    };
    somebody_waits(&client).await;
    holder.batch_execute("commit").await.unwrap();
    assert_ne!(ending.await.unwrap(), Ended::NotLive);
}

/// Twenty ends that wait for their rows, and a claimer that keeps the others busy: renewals have connections of
/// their own and do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_starves_renewals() {
    let database = TestDatabase::create().await;
    let mut settings = database.settings();
    settings.pool_size = 1;
    settings.store_timeout = Duration::from_secs(5);
    let store = PgStore::connect(&settings, Handle::current()).await.unwrap();
    let (client, holder) = (database.client().await, database.client().await);
    let owner = claimant("w1");
    queue_many(&client, 40).await;
    let grants = claim_many(&store, &owner, 40).await;
    holder.batch_execute("begin").await.unwrap();
    for grant in &grants[..20] {
        let lock = "select from leasehold.leases where job_id = $1 for update";
        holder.execute(lock, &[&grant.authority.job.0]).await.unwrap();
    }
    let end = |authority: Authority| {
        let store = store.clone();
        tokio::spawn(async move {
            let end = End::Release { delay: Duration::ZERO, reason: "drain" };
            store.end(&authority, CommandId::generate(), &end).await
        })
    };
    let ends: Vec<_> = grants[..20].iter().map(|grant| end(grant.authority.clone())).collect();
    somebody_waits(&client).await;
    for _ in 0..5 {
        let started = Instant::now();
        let renewals = grants[20..].iter().map(|grant| store.renew(&grant.authority));
        for renewal in join_all(renewals).await {
            assert!(is_held(&renewal.unwrap()));
        }
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    }
    holder.batch_execute("commit").await.unwrap();
    for ended in ends {
        // Whoever gave up on its row may: it was told that nothing happened.
        if let Err(e) = ended.await.unwrap() {
            assert!(e.is_retryable(), "{e}");
        }
    }
}

/// CL-05, RC-07: a completion and a takeover of the same lease wait behind one row lock while the lease expires.
/// Exactly one of them changes the row.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_and_a_takeover_never_both_win() {
    let database = TestDatabase::create().await;
    let store = store_with_timeout(&database, Duration::from_secs(10)).await;
    let (client, holder, recovery) =
        (database.client().await, database.client().await, database.client().await);
    let owner = claimant("w1");
    let (mut completed, mut taken_over) = (0, 0);
    for round in 0..40 {
        let grant = held(&store, &client, &owner).await;
        let job = grant.authority.job;
        // Expires about when the lock is released.
        let soon = "update leasehold.leases set lease_expires_at = clock_timestamp() + interval '60 ms' where job_id = $1";
        client.execute(soon, &[&job.0]).await.unwrap();
        hold(&holder, job, "update").await;
        let completing = {
            let (store, authority) = (store.clone(), grant.authority.clone());
            tokio::spawn(async move {
                let end = End::Complete { exit_code: None, output: None };
                store.end(&authority, CommandId::generate(), &end).await.unwrap()
            })
        };
        if round % 2 == 0 {
            somebody_waits(&client).await;
        }
        let takeover = async {
            let takeover = "with held as materialized (
                                select job_id, lease_expires_at from leasehold.leases where job_id = $1 for update)
                            update leasehold.leases l set token = gen_random_uuid(), epoch = epoch + 1,
                                process_id = gen_random_uuid(), lease_expires_at = clock_timestamp() + interval '1 minute'
                            from held h where l.job_id = h.job_id and h.lease_expires_at <= clock_timestamp()";
            recovery.execute(takeover, &[&job.0]).await.unwrap()
        };
        let release = async {
            pass(Duration::from_millis(40 + round % 5 * 8)).await;
            holder.batch_execute("commit").await.unwrap();
        };
        let (rows, ()) = tokio::join!(takeover, release);
        let ended = completing.await.unwrap();
        let history = "select (select count(*) from leasehold.ended where job_id = $1),
                              (select count(*) from leasehold.leases where job_id = $1),
                              (select count(*) from leasehold.lease_history where job_id = $1)";
        let row = client.query_one(history, &[&job.0]).await.unwrap();
        let counts: (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        match (ended == Ended::NotLive, rows) {
            (false, 0) => {
                completed += 1;
                assert_eq!(counts, (1, 0, 1), "round {round}");
            }
            (true, 1) => {
                taken_over += 1;
                assert_eq!(counts, (0, 1, 0), "round {round}");
            }
            // The takeover looked before the expiry, the completion after it: the lease is simply expired.
            (true, 0) => assert_eq!(counts, (0, 1, 0), "round {round}"),
            both => panic!("round {round}: {both:?}"),
        }
    }
    assert!(completed > 0 && taken_over > 0, "{completed} completed, {taken_over} taken over");
}

/// A wave of renewals is a handful of statements, and every one of them reaches its own row.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_renewals_are_a_handful_of_commits() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w1");
    queue_many(&client, 1000).await;
    let grants = claim_many(&store, &owner, 1000).await;
    let commits = async || {
        let row = client
            .query_one(
                "select count(distinct xmin::text), min(renewals), max(renewals) from leasehold.leases",
                &[],
            )
            .await
            .unwrap();
        (row.get::<_, i64>(0), row.get::<_, i32>(1), row.get::<_, i32>(2))
    };
    for wave in 1..=3 {
        let renewals = join_all(grants.iter().map(|grant| store.renew(&grant.authority))).await;
        assert!(renewals.iter().all(|renewal| is_held(renewal.as_ref().unwrap())));
        let (transactions, least, most) = commits().await;
        assert_eq!((least, most), (wave, wave));
        assert!(transactions < 50, "{transactions} transactions for 1000 renewals");
    }
}
