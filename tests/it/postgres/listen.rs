//! Hints: they come at once, never instead of a look at the tables, and their connection comes back by itself.

use std::time::{Duration, Instant};

use leasehold::{
    config::Pooler,
    postgres::{
        listen::{Hint, ListenMode, Listener, POLL_EVERY, PROBE_EVERY, PROBE_PATIENCE},
        submit::SubmitError,
    },
    protocol::domain::{JobId, Namespace},
};
use tokio::{runtime::Handle, time::timeout};

use crate::support::{
    database::{TestDatabase, settings},
    eventually::eventually,
    jobs::{claimant, handler_job, held},
    proxy::Proxy,
};

async fn listening(listener: &Listener) {
    eventually(Duration::from_secs(60), "the listener listens", async || {
        (listener.mode() == ListenMode::Listening).then_some(())
    })
    .await;
}

/// Waits for a hint, and returns how long that took; others may come before.
async fn heard(listener: &mut Listener, hint: Hint, limit: Duration) -> Duration {
    let started = Instant::now();
    let hearing = async { while listener.recv().await != hint {} };
    timeout(limit, hearing).await.unwrap_or_else(|_| panic!("{hint:?} was not heard within {limit:?}"));
    started.elapsed()
}

/// Takes whatever has come so far.
async fn drain(listener: &mut Listener) {
    while timeout(Duration::from_millis(100), listener.recv()).await.is_ok() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_is_hinted_at() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let mut listener = Listener::start(&database.settings(), &Handle::current());
    heard(&mut listener, Hint::Resync, Duration::from_secs(5)).await;
    listening(&listener).await;

    store.submit(&handler_job("work")).await.unwrap();
    heard(&mut listener, Hint::Ready, Duration::from_secs(2)).await;
    let owner = claimant("w1");
    let grant = held(&store, &client, &owner).await;
    let job = grant.authority.job;
    store.request_cancel(&Namespace::default(), job, Duration::ZERO).await.unwrap();
    heard(&mut listener, Hint::Cancel(job), Duration::from_secs(2)).await;
    let end = leasehold::protocol::ports::End::Cancel;
    let command = leasehold::protocol::domain::CommandId::generate();
    leasehold::protocol::ports::LeaseStore::end(&store, &grant.authority, command, &end).await.unwrap();
    heard(&mut listener, Hint::Ended, Duration::from_secs(2)).await;
    client.batch_execute("select pg_notify('leasehold_waiting', '')").await.unwrap();
    heard(&mut listener, Hint::Waiting, Duration::from_secs(2)).await;
}

/// LN-01: the listening session is ended by the server. What is submitted at once is noticed within the poll
/// bound, what comes later at once; and the break is counted.
#[tokio::test(flavor = "multi_thread")]
async fn after_its_session_was_ended_it_listens_again() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let mut listener = Listener::start(&database.settings(), &Handle::current());
    listening(&listener).await;
    drain(&mut listener).await;
    let ended = client
        .execute(
            "select pg_terminate_backend(pid) from pg_stat_activity
             where datname = current_database() and application_name like '% listen'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(ended, 1);
    store.submit(&handler_job("work")).await.unwrap();
    heard(&mut listener, Hint::Resync, POLL_EVERY + Duration::from_secs(1)).await;
    eventually(Duration::from_secs(60), "the break is counted", async || {
        (listener.reconnects() == 1 && listener.mode() == ListenMode::Listening).then_some(())
    })
    .await;
    drain(&mut listener).await;
    store.submit(&handler_job("work")).await.unwrap();
    let took = heard(&mut listener, Hint::Ready, Duration::from_secs(2)).await;
    assert!(took < Duration::from_millis(200), "{took:?}");
}

/// LN-03: the listener's connection, and only that, goes silent without being closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_noticed_within_its_bound() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::before(database.url()).await;
    let mut listener = Listener::start(&settings(&proxy.url(database.url())), &Handle::current());
    listening(&listener).await;
    drain(&mut listener).await;
    proxy.stall(true);
    let bound = PROBE_EVERY + PROBE_PATIENCE + Duration::from_secs(2);
    eventually(bound, "the silence is noticed", async || {
        (listener.mode() == ListenMode::Polling).then_some(())
    })
    .await;
    heard(&mut listener, Hint::Resync, POLL_EVERY * 2).await;
    proxy.stall(false);
    listening(&listener).await;
    assert_eq!(listener.reconnects(), 1);
}

/// LN-03, the other half: the connection is fine, but the subscriptions are gone.
#[tokio::test(flavor = "multi_thread")]
async fn lost_subscriptions_are_noticed() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    let mut listener = Listener::start(&database.settings(), &Handle::current());
    listening(&listener).await;
    drain(&mut listener).await;
    assert_eq!(listener.reconnects(), 0);
    drop(listener);
    // Nobody can take another session's subscriptions away, but the session can be made to see none.
    client
        .batch_execute(&format!(
            "create schema blind;
             create function blind.pg_listening_channels() returns setof text language sql
                 as 'select null::text where false';
             alter database {} set search_path = blind, pg_catalog",
            database.name()
        ))
        .await
        .unwrap();
    let listener = Listener::start(&database.settings(), &Handle::current());
    eventually(PROBE_EVERY + PROBE_PATIENCE + Duration::from_secs(3), "it subscribes anew", async || {
        (listener.reconnects() >= 1).then_some(())
    })
    .await;
}

/// LN-07: nobody answers at the start; the listener comes up by itself as soon as somebody does.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_a_database_ends_in_listening() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::before(database.url()).await;
    proxy.refuse(true);
    let mut listener = Listener::start(&settings(&proxy.url(database.url())), &Handle::current());
    for _ in 0..3 {
        heard(&mut listener, Hint::Resync, POLL_EVERY * 2).await;
        assert_eq!(listener.mode(), ListenMode::Polling);
    }
    proxy.refuse(false);
    listening(&listener).await;
    let store = database.store().await;
    drain(&mut listener).await;
    store.submit(&handler_job("work")).await.unwrap();
    heard(&mut listener, Hint::Ready, Duration::from_secs(2)).await;
    assert_eq!(listener.reconnects(), 0, "the first success is no reconnect");
}

/// A host that cannot be resolved is the same: it may be tomorrow.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_resolve_is_tried_again() {
    let mut listener =
        Listener::start(&settings("postgres://postgres@no-such-host.invalid:5432/x"), &Handle::current());
    for _ in 0..3 {
        heard(&mut listener, Hint::Resync, Duration::from_secs(10)).await;
    }
    assert_eq!(listener.mode(), ListenMode::Polling);
}

/// LN-05: notifications carry ids only, so no payload is too long for them.
#[tokio::test(flavor = "multi_thread")]
async fn no_payload_is_too_long_for_a_notification() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let mut listener = Listener::start(&database.settings(), &Handle::current());
    listening(&listener).await;
    drain(&mut listener).await;
    for bytes in [7_900, 8_100, 1_000_000] {
        let mut job = handler_job("work");
        job.payload = format!("\"{}\"", "x".repeat(bytes));
        job.idempotency_key = Some(format!("{bytes}-{}", "ü".repeat(500)));
        store.submit(&job).await.unwrap();
        heard(&mut listener, Hint::Ready, Duration::from_secs(2)).await;
    }
    let mut job = handler_job("work");
    job.payload = format!("\"{}\"", "x".repeat(2_000_000));
    let refused = store.submit(&job).await.unwrap_err();
    assert!(matches!(refused, SubmitError::Invalid(_)), "over the documented limit: {refused}");
    let ids = store.submit_bulk((0..800).map(|_| handler_job("work")).collect()).await.unwrap();
    assert_eq!(ids.len(), 800);
    heard(&mut listener, Hint::Ready, Duration::from_secs(2)).await;
}

/// Through a transaction pooler LISTEN is not even tried; hints come by the clock, and the mode says so.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_transaction_pooler_it_polls_and_says_so() {
    let database = TestDatabase::create().await;
    let mut settings = database.settings();
    settings.pooler = Pooler::Transaction;
    let mut listener = Listener::start(&settings, &Handle::current());
    for _ in 0..3 {
        heard(&mut listener, Hint::Resync, POLL_EVERY * 2).await;
    }
    assert_eq!(listener.mode(), ListenMode::Polling);
}

/// A flood of equal hints is one hint; a flood of cancels ends in a look at everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_hints_takes_no_memory() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    let mut listener = Listener::start(&database.settings(), &Handle::current());
    listening(&listener).await;
    drain(&mut listener).await;
    client
        .batch_execute(
            "select pg_notify('leasehold_cancel', n::text) from generate_series(1, 5000) n;
             select pg_notify('leasehold_ready', '') from generate_series(1, 5000) n",
        )
        .await
        .unwrap();
    eventually(Duration::from_secs(60), "the flood has arrived", async || {
        // Nothing is taken meanwhile.
        let stat = client.query_one("select pg_notification_queue_usage()", &[]).await.unwrap();
        (stat.get::<_, f64>(0) == 0.0).then_some(())
    })
    .await;
    let mut counts = (0, 0, 0);
    while let Ok(hint) = timeout(Duration::from_millis(500), listener.recv()).await {
        match hint {
            Hint::Cancel(JobId(_)) => counts.0 += 1,
            Hint::Resync => counts.1 += 1,
            Hint::Ready => counts.2 += 1,
            _ => {}
        }
    }
    // How many came before we took the first is not ours to say; what was not kept is not lost.
    assert!(
        counts.0 == 5000 || counts.1 >= 1,
        "dropped cancels must end in a look at everything: {counts:?}"
    );
    assert!(counts.2 < 5000, "equal hints are one: {counts:?}");
}
