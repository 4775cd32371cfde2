//! A transaction pooler between the store and the server: found out before it can do harm, and everything works
//! through it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use leasehold::{
    config::Pooler,
    postgres::{
        ConnectError, PgStore,
        listen::{ListenMode, Listener},
    },
    protocol::{
        domain::{CommandId, ContainerId, Failure, FailureKind, JobState, NodeId, RetryPolicy},
        error::StoreErrorKind,
        ports::{
            Attach, ClaimRejection, DispatchedJob, End, Ended, LeaseStore, ListedAnswer, ListedClaim,
            LogAppend, LogBatch, LogStream, OpenClaim, Reconciliation, Renewal,
        },
    },
};
use tokio::runtime::Handle;

use crate::support::{
    database::{TestDatabase, settings},
    eventually::eventually,
    jobs::{LEASE, claimant, handler_job, open},
    pgbouncer::PgBouncer,
    proxy::Proxy,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_found_out_however_it_is_configured() {
    let database = TestDatabase::create().await;
    assert!(!database.store().await.is_pooled(), "nothing stands between");
    // Refuses the option by which it is found out, drops it, or hands whole sessions on: the last is not told from
    // the others, and costs only speed.
    for extra in ["", "ignore_startup_parameters = options,extra_float_digits", "pool_mode = session"] {
        let bouncer = PgBouncer::start(database.url(), extra).await;
        let store =
            PgStore::connect(&settings(&bouncer.url(database.url())), Handle::current()).await.unwrap();
        assert!(store.is_pooled(), "{extra}");
        store.submit(&handler_job("work")).await.unwrap();
    }
    let mut direct = database.settings();
    direct.pooler = Pooler::Transaction;
    let store = PgStore::connect(&direct, Handle::current()).await.unwrap();
    assert!(store.is_pooled(), "the operator says so");
    store.submit(&handler_job("work")).await.unwrap();
}

/// A server that is just starting refuses the connection by which a pooler is found out, and takes the next: that
/// makes it no pooler, or its workers would poll until they are restarted.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refused_one_connection_is_no_pooler() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::before(database.url()).await;
    proxy.refuse_next(1);
    let store = PgStore::connect(&settings(&proxy.url(database.url())), Handle::current()).await.unwrap();
    assert!(!store.is_pooled());
    proxy.refuse_next(1);
    let listener = Listener::start(&settings(&proxy.url(database.url())), &Handle::current());
    eventually(Duration::from_secs(60), "the listener listens", async || {
        (listener.mode() == ListenMode::Listening).then_some(())
    })
    .await;
}

/// The operator knows that his pooler hands out whole sessions.
#[tokio::test(flavor = "multi_thread")]
async fn with_session_pooling_statements_can_be_prepared() {
    let database = TestDatabase::create().await;
    let bouncer = PgBouncer::start(database.url(), "pool_mode = session").await;
    let mut settings = settings(&bouncer.url(database.url()));
    settings.pooler = Pooler::None;
    let store = PgStore::connect(&settings, Handle::current()).await.unwrap();
    assert!(!store.is_pooled());
    for _ in 0..5 {
        store.submit(&handler_job("work")).await.unwrap();
        let grants = store.claim(&open(&claimant("w1"), 5)).await.unwrap().grants;
        assert_eq!(grants.len(), 1);
    }
}

/// Every call of the protocol, several times, over more clients than the pooler has server sessions.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_works_through_a_transaction_pooler() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    client
        .batch_execute(
            "insert into leasehold.nodes (namespace, node_id, endpoint, engine_id, process_id, max_concurrency, os,
                 architecture, cpu_millis, memory_bytes, engine_version, heartbeat_ttl_ms, lost_after_ms)
             values ('default', 'n1', 'unix:///run/n1.sock', 'E1', gen_random_uuid(), 200, 'linux', 'amd64',
                     2000, 1000000000, '20', 3600000, 3600000)",
        )
        .await
        .unwrap();
    let bouncer = PgBouncer::start(database.url(), "default_pool_size = 2").await;
    let settings = settings(&bouncer.url(database.url()));
    let mut lives = Vec::new();
    for n in 0..4 {
        let store = PgStore::connect(&settings, Handle::current()).await.unwrap();
        assert!(store.is_pooled());
        lives.push(tokio::spawn(whole_life(store, format!("w{n}"))));
    }
    for life in lives {
        life.await.unwrap();
    }
}

async fn whole_life(store: PgStore, worker: String) {
    let owner = claimant(&worker);
    // A route of its own, so that the lives do not take each other's jobs.
    let routes = Arc::from([leasehold::protocol::domain::Route::handler(worker.clone())]);
    for round in 0..5 {
        let job = store.submit(&handler_job(&worker)).await.unwrap().job;
        let request = OpenClaim { routes: Arc::clone(&routes), ..open(&owner, 3) };
        let grant = store.claim(&request).await.unwrap().grants.pop().expect("its own job");
        let again = store.claim(&OpenClaim { repeat: true, ..request }).await.unwrap().grants;
        assert_eq!(again[0].authority, grant.authority);
        let authority = &grant.authority;
        assert!(matches!(store.renew(authority).await.unwrap(), Renewal::Held { .. }));
        assert!(matches!(store.report_progress(authority, "1").await.unwrap(), Renewal::Held { .. }));
        let batch = LogBatch {
            task: None,
            stream: LogStream::Stdout,
            first_byte: 0,
            data: Bytes::from_static(b"hi"),
        };
        assert_eq!(store.append_logs(authority, &[batch]).await.unwrap(), LogAppend::Stored);
        let (node, container) = (NodeId::new("n1").unwrap(), ContainerId::new("c1").unwrap());
        assert_eq!(store.attach(authority, &node, &container).await.unwrap(), Attach::WrongRuntimeNode);
        assert!(matches!(store.reconcile(authority).await.unwrap(), Reconciliation::Live { .. }));
        let end = End::Reschedule {
            route: None,
            delay: Duration::ZERO,
            payload: None,
            wake: Vec::new(),
            publish: None,
        };
        let command = CommandId::generate();
        assert_eq!(store.end(authority, command, &end).await.unwrap(), Ended::Rescheduled);
        assert_eq!(store.end(authority, command, &end).await.unwrap(), Ended::Rescheduled);
        // The alone path, with its transaction of several statements: the lease is gone.
        assert_eq!(store.renew(authority).await.unwrap(), Renewal::NotLive);
        store.dispatch(&owner.namespace, 100).await.unwrap();
        let listed = ListedClaim {
            owner: owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            jobs: vec![DispatchedJob { job, generation: 1, dispatch_attempt: 2 }],
            lease: LEASE,
        };
        // Another life's dispatch may have taken it up and not committed yet.
        let mut looks = 0;
        let grant = loop {
            let listed = ListedClaim { command: CommandId::generate(), ..listed.clone() };
            match store.claim_listed(&listed).await.unwrap().pop() {
                Some(ListedAnswer::Granted(grant)) => break grant,
                Some(ListedAnswer::Rejected(_, ClaimRejection::NotQueued { .. })) if looks < 1000 => {
                    looks += 1;
                    store.dispatch(&owner.namespace, 100).await.unwrap();
                }
                other => panic!("{worker}, round {round}: {other:?}"),
            }
        };
        let failure = Failure::new(FailureKind::User, "1", "no");
        let end = match round % 2 {
            0 => End::Fail { failure, defaults: RetryPolicy::default() },
            _ => End::Complete { exit_code: None, output: None },
        };
        let ended = store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
        assert!(matches!(ended, Ended::Terminal(JobState::Failed | JobState::Completed)), "{ended:?}");
    }
}

/// Through a pooler the server's own defaults apply; where they would break the protocol, there is no store, and
/// the error says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn unsafe_defaults_behind_a_pooler_are_refused() {
    for (setting, value) in
        [("synchronous_commit", "off"), ("default_transaction_isolation", "'repeatable read'")]
    {
        let database = TestDatabase::create().await;
        let alter = format!("alter database {} set {setting} = {value}", database.name());
        database.client().await.batch_execute(&alter).await.unwrap();
        let bouncer = PgBouncer::start(database.url(), "").await;
        let refused = PgStore::connect(&settings(&bouncer.url(database.url())), Handle::current())
            .await
            .expect_err("these defaults break the protocol");
        assert!(matches!(refused, ConnectError::UnsafeDefault { .. }), "{refused}");
        assert!(refused.to_string().contains(setting), "{refused}");
        database.store().await;
    }
}

/// A pooler that was put there behind our back: the first statement that it does not know turns preparing off for
/// good, and is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_appears_later_is_found_out_by_its_errors() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let client = database.client().await;
    let owner = claimant("w1");
    let grant = crate::support::jobs::held(&store, &client, &owner).await;
    assert!(!store.is_pooled());
    // What the client thinks is prepared, the server has forgotten.
    let deallocate = "create function public.forget() returns trigger language plpgsql as
                          'begin execute ''deallocate all''; return null; end';
                      create trigger forget after update on leasehold.leases for each statement
                          execute function public.forget()";
    client.batch_execute(deallocate).await.unwrap();
    for _ in 0..3 {
        match store.renew(&grant.authority).await {
            Ok(renewal) => assert!(matches!(renewal, Renewal::Held { .. })),
            Err(e) => assert_ne!(e.kind, StoreErrorKind::CommandConflict, "{e}"),
        }
    }
    assert!(store.is_pooled(), "26000 means that somebody shares the session out");
    assert!(matches!(store.renew(&grant.authority).await.unwrap(), Renewal::Held { .. }));
}
