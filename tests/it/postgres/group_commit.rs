//! Many calls, few statements; and the connections below: whatever goes wrong with one call harms no other, and
//! leaves no connection behind that the next call would suffer from.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::{
    postgres::PgStore,
    protocol::{
        domain::{CommandId, Failure, FailureKind, JobState, Namespace, RetryPolicy},
        error::{Applied, StoreErrorKind},
        ports::{End, Ended, LeaseStore, LogBatch, LogStream, Reconciliation, Renewal},
    },
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{runtime::Handle, time::timeout};
use tokio_postgres::Client;

use crate::support::{
    database::{TestDatabase, settings},
    eventually::{eventually, pass},
    jobs::{claim_many, claimant, handler_job, held, open, queue_many},
    proxy::Proxy,
};

fn complete(output: Option<&str>) -> End {
    End::Complete { exit_code: Some(0), output: output.map(str::to_owned) }
}

/// How many transactions wrote the rows of a table.
async fn transactions(client: &Client, table: &str) -> i64 {
    let query = format!("select count(distinct xmin::text) from leasehold.{table}");
    client.query_one(&query, &[]).await.unwrap().get(0)
}

/// Sessions of ours that keep a transaction open while nothing is asked of them.
async fn idle_in_transaction(client: &Client) -> i64 {
    let query = "select count(*) from pg_stat_activity where datname = current_database()
                 and state like 'idle in transaction%' and state_change < clock_timestamp() - interval '1 second'";
    client.query_one(query, &[]).await.unwrap().get(0)
}

/// Two thousand single calls of each kind: dozens of transactions, and one answer each.
#[tokio::test(flavor = "multi_thread")]
async fn single_calls_share_their_commits() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    queue_many(&client, 2000).await;
    let claims = join_all((0..2000).map(|n| {
        let (store, request) = (store.clone(), open(&claimant(&format!("w{}", n % 7)), 1));
        async move { (request.owner.clone(), store.claim(&request).await.unwrap().grants) }
    }))
    .await;
    let mut grants = Vec::new();
    for (owner, mut granted) in claims {
        let grant = granted.pop().expect("there is a job for each");
        assert_eq!(grant.authority.owner, owner, "each claimer gets its own");
        grants.push(grant);
    }
    assert!(transactions(&client, "leases").await < 100);
    let (even, odd): (Vec<_>, Vec<_>) = grants.into_iter().partition(|grant| grant.authority.job.0 % 2 == 0);
    let ends = even.iter().map(|grant| {
        let (store, job) = (store.clone(), grant.authority.job);
        async move {
            let end = complete(Some(&format!("{{\"job\":{job}}}")));
            store.end(&grant.authority, CommandId::generate(), &end).await.unwrap()
        }
    });
    for ended in join_all(ends).await {
        assert_eq!(ended, Ended::Terminal(JobState::Completed));
    }
    let fails = odd.iter().enumerate().map(|(n, grant)| {
        let store = store.clone();
        async move {
            let (end, expected) = match n % 3 {
                0 => (End::Cancel, Ended::Terminal(JobState::Canceled)),
                1 => (End::Release { delay: Duration::ZERO, reason: "drain" }, Ended::Released),
                _ => {
                    let failure = Failure::new(FailureKind::User, format!("{n}"), "no");
                    let end = End::Fail { failure, defaults: RetryPolicy::default() };
                    (end, Ended::Terminal(JobState::Failed))
                }
            };
            let ended = store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
            assert_eq!(ended, expected);
        }
    });
    join_all(fails).await;
    assert!(transactions(&client, "lease_history").await < 100);
    // Each answer went to the right row.
    let wrong = "select count(*) from leasehold.ended where state = 'COMPLETED' and output::text <> format('{\"job\":%s}', job_id)";
    assert_eq!(client.query_one(wrong, &[]).await.unwrap().get::<_, i64>(0), 0);
}

/// Outputs that PostgreSQL refuses, in the middle of three hundred good ones: refused alone.
#[tokio::test(flavor = "multi_thread")]
async fn one_bad_call_fails_none_of_its_neighbours() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w1");
    queue_many(&client, 300).await;
    let grants = claim_many(&store, &owner, 300).await;
    let bad = ["{not json", "\"\u{0}\"", ""];
    let ends = grants.iter().enumerate().map(|(n, grant)| {
        let store = &store;
        async move {
            let output = if n % 100 == 50 { bad[n / 100] } else { "1" };
            (n, store.end(&grant.authority, CommandId::generate(), &complete(Some(output))).await)
        }
    });
    for (n, ended) in join_all(ends).await {
        if n % 100 == 50 {
            let error = ended.unwrap_err();
            assert_eq!((error.kind, error.applied), (StoreErrorKind::Refused, Applied::No), "{error}");
            assert!(!error.is_retryable(), "{error}");
            // It still holds its lease, and may end in another way.
            let end = store.end(&grants[n].authority, CommandId::generate(), &complete(None)).await.unwrap();
            assert_eq!(end, Ended::Terminal(JobState::Completed));
        } else {
            assert_eq!(ended.unwrap(), Ended::Terminal(JobState::Completed), "{n}");
        }
    }
}

/// PG-11: after each refusal a healthy call on the same pool succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_leaves_a_healthy_connection() {
    let database = TestDatabase::create().await;
    let mut settings = database.settings();
    settings.pool_size = 1;
    let store = PgStore::connect(&settings, Handle::current()).await.unwrap();
    let client = database.client().await;
    let owner = claimant("w1");
    for _ in 0..3 {
        let grant = held(&store, &client, &owner).await;
        let authority = &grant.authority;
        store.end(authority, CommandId::generate(), &complete(Some("nope"))).await.unwrap_err();
        assert!(matches!(store.renew(authority).await.unwrap(), Renewal::Held { .. }));
        store.report_progress(authority, "nope").await.unwrap_err();
        let payload =
            leasehold::protocol::ports::PayloadUpdate { value: "nope".to_owned(), expected_revision: 1 };
        let end = End::Reschedule {
            route: None,
            delay: Duration::ZERO,
            payload: Some(payload),
            wake: Vec::new(),
            publish: None,
        };
        let error = store.end(authority, CommandId::generate(), &end).await.unwrap_err();
        assert_eq!((error.kind, error.applied), (StoreErrorKind::Refused, Applied::No), "{error}");
        let failure = Failure {
            kind: FailureKind::User,
            code: "x\0".to_owned(),
            message: String::new(),
            exit_code: None,
        };
        let end = End::Fail { failure, defaults: RetryPolicy::default() };
        store.end(authority, CommandId::generate(), &end).await.unwrap_err();
        let mut job = handler_job("work");
        job.payload = "{\"a\":\"\\u0000\"}".to_owned();
        store.submit(&job).await.unwrap_err();
        store.submit(&handler_job("other")).await.unwrap();
        let ended = store.end(authority, CommandId::generate(), &complete(None)).await.unwrap();
        assert_eq!(ended, Ended::Terminal(JobState::Completed));
    }
    assert_eq!(idle_in_transaction(&client).await, 0);
}

/// PG-01: a thousand calls whose callers give up after 0 to 20 ms, 5 ms away from the server. Nothing of that
/// stays behind.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_give_up_leave_nothing_behind() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::before(database.url()).await;
    let mut settings = settings(&proxy.url(database.url()));
    settings.pool_size = 1;
    let store = PgStore::connect(&settings, Handle::current()).await.unwrap();
    let client = database.client().await;
    let owner = claimant("w1");
    queue_many(&client, 300).await;
    let grants = claim_many(&store, &owner, 100).await;
    proxy.delay(Duration::from_millis(5));
    let mut given_up = 0;
    for n in 0..1000usize {
        let authority = &grants[n % 100].authority;
        let limit = Duration::from_micros((n % 20 * 1000) as u64);
        let call = async {
            match n % 8 {
                0 => drop(store.renew(authority).await),
                1 => drop(store.claim(&open(&owner, 1)).await),
                2 => drop(store.report_progress(authority, "1").await),
                3 => drop(store.submit(&handler_job("other")).await),
                4 => drop(store.dispatch(&owner.namespace, 10).await),
                5 => {
                    let end = End::Reschedule {
                        route: None,
                        delay: Duration::ZERO,
                        payload: None,
                        wake: Vec::new(),
                        publish: None,
                    };
                    drop(store.end(authority, CommandId::generate(), &end).await);
                }
                6 => drop(store.end(authority, CommandId::generate(), &End::Cancel).await),
                _ => drop(store.workflow_pause(&Namespace::default(), "none").await),
            }
        };
        given_up += usize::from(timeout(limit, call).await.is_err());
    }
    assert!(given_up > 500, "{given_up} of 1000 callers gave up");
    proxy.delay(Duration::ZERO);
    let grant = held(&store, &client, &owner).await;
    assert!(matches!(store.renew(&grant.authority).await.unwrap(), Renewal::Held { .. }));
    store.submit(&handler_job("other")).await.unwrap();
    eventually(Duration::from_secs(15), "no session idles in a transaction", async || {
        (idle_in_transaction(&client).await == 0).then_some(())
    })
    .await;
    let doubles = "select count(*) from (select job_id from leasehold.waiting union all select job_id from leasehold.ready
                       union all select job_id from leasehold.leases union all select job_id from leasehold.ended) p
                   group by job_id having count(*) > 1";
    assert!(client.query(doubles, &[]).await.unwrap().is_empty(), "a job in two places");
}

/// PG-05: a backend of ours is killed every 50 ms while calls go on. Then everything works again, with no more
/// connections than there may be, and all of them usable.
#[tokio::test(flavor = "multi_thread")]
async fn killed_backends_are_replaced() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w1");
    queue_many(&client, 64).await;
    let grants = claim_many(&store, &owner, 64).await;
    let killing = async {
        let mut random = StdRng::seed_from_u64(5);
        for _ in 0..100 {
            let pids = client
                .query(
                    "select pid from pg_stat_activity where datname = current_database()
                     and application_name = 'leasehold-test'",
                    &[],
                )
                .await
                .unwrap();
            if !pids.is_empty() {
                let pid: i32 = pids[random.random_range(0..pids.len())].get(0);
                client.execute("select pg_terminate_backend($1)", &[&pid]).await.unwrap();
            }
            pass(Duration::from_millis(50)).await;
        }
    };
    let calling = async {
        let (mut good, mut bad) = (0, 0);
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(5) {
            let calls = grants.iter().map(|grant| async {
                let renewal = store.renew(&grant.authority).await;
                let reconciled = store.reconcile(&grant.authority).await;
                assert!(!matches!(renewal, Ok(Renewal::NotLive)), "a broken connection is no lost lease");
                assert!(!matches!(reconciled, Ok(Reconciliation::Changed | Reconciliation::Expired)));
                renewal.is_ok() && reconciled.is_ok()
            });
            for fine in join_all(calls).await {
                if fine { good += 1 } else { bad += 1 }
            }
            let _ = store.submit(&handler_job("other")).await;
        }
        (good, bad)
    };
    let ((), (good, bad)) = tokio::join!(killing, calling);
    assert!(good > 0, "{good} calls succeeded, {bad} failed");
    for _ in 0..50 {
        for renewal in join_all(grants.iter().map(|grant| store.renew(&grant.authority))).await {
            assert!(matches!(renewal.unwrap(), Renewal::Held { .. }));
        }
        store.submit(&handler_job("other")).await.unwrap();
        store.dispatch(&owner.namespace, 1).await.unwrap();
    }
    let (now, most) = store.connections();
    assert!(now <= most, "{now} of {most}");
    let alive = "select count(*) from pg_stat_activity where datname = current_database()
                 and application_name = 'leasehold-test'";
    let alive: i64 = client.query_one(alive, &[]).await.unwrap().get(0);
    assert!(alive <= most as i64, "{alive} sessions, {most} allowed");
}

/// PG-03: established connections go silent without being closed. Each call ends within its own time, says that
/// it may have happened, and once the network is back everything works at once.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_given_up_and_replaced() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::before(database.url()).await;
    let mut settings = settings(&proxy.url(database.url()));
    settings.store_timeout = Duration::from_secs(1);
    let store = PgStore::connect(&settings, Handle::current()).await.unwrap();
    let client = database.client().await;
    let grant = held(&store, &client, &claimant("w1")).await;
    let authority = &grant.authority;
    store.renew(authority).await.unwrap();
    store.submit(&handler_job("other")).await.unwrap();
    proxy.stall(true);
    for _ in 0..3 {
        let started = Instant::now();
        let batches = [LogBatch { task: None, stream: LogStream::Stdout, first_byte: 0, data: "x".into() }];
        let job = handler_job("other");
        let (renewal, ended, submitted) =
            tokio::join!(store.renew(authority), store.append_logs(authority, &batches), store.submit(&job),);
        renewal.unwrap_err();
        ended.unwrap_err();
        submitted.unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    }
    proxy.stall(false);
    let started = Instant::now();
    let renewal = eventually(Duration::from_secs(60), "renewals work again", async || {
        store.renew(authority).await.ok()
    })
    .await;
    assert!(matches!(renewal, Renewal::Held { .. }));
    store.submit(&handler_job("other")).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// PG-09: the server refuses writes for a while. Every refusal is a sure "no", and writes resume by themselves
/// although nobody killed our sessions.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_waited_out() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w1");
    let grant = held(&store, &client, &owner).await;
    let authority = &grant.authority;
    let read_only = async |on: &str| {
        let alter = format!("alter database {} set default_transaction_read_only = {on}", database.name());
        client.batch_execute(&format!("begin read write; {alter}; commit")).await.unwrap();
    };
    read_only("on").await;
    client
        .batch_execute(
            "select pg_terminate_backend(pid) from pg_stat_activity
             where datname = current_database() and application_name = 'leasehold-test'",
        )
        .await
        .unwrap();
    for _ in 0..3 {
        let error = eventually(Duration::from_secs(60), "the refusal", async || {
            let error = store.renew(authority).await.unwrap_err();
            (error.kind == StoreErrorKind::ReadOnly).then_some(error)
        })
        .await;
        assert_eq!(error.applied, Applied::No, "{error}");
        assert!(error.is_retryable());
    }
    // Reading goes on: what became of the grant can still be told.
    assert!(matches!(store.reconcile(authority).await.unwrap(), Reconciliation::Live { .. }));
    read_only("off").await;
    // At the latest the second try of each call: the first may meet a session from before.
    if let Err(e) = store.renew(authority).await {
        assert_eq!(e.kind, StoreErrorKind::ReadOnly, "{e}");
        assert!(matches!(store.renew(authority).await.unwrap(), Renewal::Held { .. }));
    }
    let (command, end) = (CommandId::generate(), complete(None));
    if let Err(e) = store.end(authority, command, &end).await {
        assert_eq!(e.kind, StoreErrorKind::ReadOnly, "{e}");
        let ended = store.end(authority, command, &end).await.unwrap();
        assert_eq!(ended, Ended::Terminal(JobState::Completed));
    }
    // By now every session from before is gone.
    store.submit(&handler_job("work")).await.unwrap();
    store.dispatch(&owner.namespace, 10).await.unwrap();
}

/// What the server's defaults say does not matter: a commit of ours waits for the disk, and a statement sees what
/// was committed before it.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_set_what_the_protocol_needs() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    client
        .batch_execute(&format!(
            "alter database {name} set synchronous_commit = off;
             alter database {name} set default_transaction_isolation = 'serializable';
             create table public.seen (setting text);
             create function public.note() returns trigger language plpgsql as
                 'begin insert into public.seen values (current_setting(''synchronous_commit'') || '' '' ||
                      current_setting(''transaction_isolation'')); return null; end';
             create trigger note after insert or update or delete on leasehold.leases for each statement
                 execute function public.note();
             create trigger note after insert on leasehold.jobs for each statement execute function public.note()",
            name = database.name()
        ))
        .await
        .unwrap();
    let store = database.store().await;
    store.submit(&handler_job("work")).await.unwrap();
    let grant = store.claim(&open(&claimant("w1"), 1)).await.unwrap().grants.pop().unwrap();
    store.renew(&grant.authority).await.unwrap();
    store.end(&grant.authority, CommandId::generate(), &complete(None)).await.unwrap();
    let rows = client.query("select distinct setting from public.seen", &[]).await.unwrap();
    let seen: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, ["on read committed"]);
}
