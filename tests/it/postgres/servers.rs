//! Which server the fleet is on: what a connection finds out, and what follows. (Real promotions: `scenarios::failover`.)

use std::time::Duration;

use leasehold::{
    postgres::{
        ConnectError, PgStore,
        doctor::diagnose,
        migrate::{self, MigrateError, SchemaStatus},
    },
    protocol::{
        domain::{CommandId, Namespace},
        error::{Applied, StoreErrorKind},
        ports::{LeaseStore, RecoverRequest},
    },
};
use tokio::runtime::Handle;

use crate::support::{
    database::{self, TestDatabase},
    eventually::eventually,
    jobs::{LEASE, claimant, held, open, queue_many},
    server::{Server, TRUST},
};

/// Sessions that were open when their server was promoted (or that a pooler led to another one) grant nothing until the
/// fleet has met the server: their epochs might be those of lost grants.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_outlived_a_promotion_grant_nothing_under_old_epochs() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w");
    assert_eq!(held(&store, &client, &owner).await.authority.epoch.0, 1);
    // As if the row had come from a primary that this server was promoted after.
    client.batch_execute("update leasehold.fleet set timeline = 0").await.unwrap();
    queue_many(&client, 1).await;
    let refused = store.claim(&open(&owner, 1)).await.unwrap_err();
    assert_eq!((refused.kind, refused.applied), (StoreErrorKind::Unreachable, Applied::No), "{refused}");
    assert!(refused.message.contains("promoted"), "{refused}");
    let grant = eventually(Duration::from_secs(60), "it is granted", async || {
        store.claim(&open(&owner, 1)).await.ok()?.grants.pop()
    })
    .await;
    assert_eq!(grant.authority.epoch.0, (1 << 40) + 1);
    let fleet = client
        .query_one("select cluster_generation, raised_because from leasehold.fleet", &[])
        .await
        .unwrap();
    assert_eq!((fleet.get(0), fleet.get(1)), (1_i64, "promotion"));
}

/// A restored or moved database: whoever comes first raises the generation, and nobody raises it again. Recovery waits
/// for the longest lease in force, and says for how long.
#[tokio::test(flavor = "multi_thread")]
async fn a_moved_database_raises_the_generation_once_and_holds_recovery_back() {
    let database = TestDatabase::create().await;
    let (before, client) = (database.store().await, database.client().await);
    held(&before, &client, &claimant("w")).await;
    client
        .batch_execute(
            "update leasehold.leases set lease_expires_at = clock_timestamp();
             update leasehold.fleet set system_id = 1",
        )
        .await
        .unwrap();
    let opened: Vec<_> = (0..8)
        .map(|_| {
            let settings = database.settings();
            tokio::spawn(async move { PgStore::connect(&settings, Handle::current()).await.unwrap() })
        })
        .collect();
    let mut stores = Vec::new();
    for store in opened {
        stores.push(store.await.unwrap());
    }
    let row = "select cluster_generation, raised_because,
                      extract(epoch from recovery_held_until - raised_at)::float8 from leasehold.fleet";
    let row = client.query_one(row, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), (1_i64, "another server"));
    let held_for: f64 = row.get(2);
    assert!((held_for - LEASE.as_secs_f64()).abs() < 1.0, "{held_for} s");
    let request = RecoverRequest {
        owner: claimant("recoverer"),
        command: CommandId::generate(),
        repeat: false,
        limit: 10,
        lease: LEASE,
        running_here: [].into(),
    };
    let answer = stores[0].recover(&request).await.unwrap();
    assert!(answer.takeovers.is_empty(), "{answer:?}");
    assert_eq!(answer.backlog, 1, "{answer:?}");
    let next = answer.next_expiry.expect("it says when");
    // No further ahead than the longest wait between two looks.
    assert!(next > Duration::from_secs(5) && next <= LEASE, "{next:?}");
    client.batch_execute("update leasehold.fleet set recovery_held_until = clock_timestamp()").await.unwrap();
    let request = RecoverRequest { command: CommandId::generate(), ..request };
    let takeovers = eventually(Duration::from_secs(60), "it is taken over", async || {
        let answer = stores[0].recover(&request).await.unwrap();
        (!answer.takeovers.is_empty()).then_some(answer.takeovers)
    })
    .await;
    assert_eq!(takeovers[0].grant.authority.epoch.0, (1 << 40) + 1);
}

/// A server that is behind the row is refused, at the start and afterwards, and the error says what to do with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_a_lower_timeline_is_refused() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    client.batch_execute("update leasehold.fleet set timeline = 99").await.unwrap();
    let refused = PgStore::connect(&database.settings(), Handle::current()).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Superseded(_)), "{refused:?}");
    assert!(refused.is_unreachable());
    let told = refused.to_string();
    assert!(told.contains("timeline 1") && told.contains("99") && told.contains("pg_basebackup"), "{told}");
    queue_many(&client, 1).await;
    eventually(Duration::from_secs(60), "the store is refused too", async || {
        let error = store.claim(&open(&claimant("w"), 1)).await.expect_err("nothing is granted");
        assert_eq!(error.applied, Applied::No, "{error}");
        error.message.contains("was replaced").then_some(())
    })
    .await;
}

/// A server without a connection left is neither down nor misnamed.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_is_said_to_be_full() {
    let server =
        Server::start("max_connections = 5\nsuperuser_reserved_connections = 0", TRUST, |_| {}).await;
    let settings = database::settings(&server.url());
    migrate::run(&settings).await.unwrap();
    let mut others = Vec::new();
    while let Ok((client, connection)) =
        tokio_postgres::connect(&server.socket_url(), tokio_postgres::NoTls).await
    {
        tokio::spawn(connection);
        others.push(client);
    }
    let refused = PgStore::connect(&settings, Handle::current()).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Full(_)) && refused.is_unreachable(), "{refused:?}");
    assert!(refused.to_string().contains("max_connections"), "{refused}");
    let checks = diagnose(&settings, Handle::current(), &Namespace::default()).await;
    let remedy = checks[0].remedy.as_deref().unwrap();
    assert_eq!((checks.len(), checks[0].name), (1, "database"));
    assert!(remedy.contains("max_connections") && !remedy.contains("DATABASE_URL"), "{remedy}");
}

/// A standby is migrated by its primary.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_at_a_standby_says_that_it_is_one() {
    let primary = Server::start("", TRUST, |_| {}).await;
    let standby = primary.standby("standby", "", 0).await;
    let settings = database::settings(&standby.url());
    for migrated in [false, true] {
        if migrated {
            migrate::run(&database::settings(&primary.url())).await.unwrap();
            eventually(Duration::from_secs(60), "the standby has the schema", async || {
                let seen = migrate::check(&settings).await.unwrap();
                matches!(seen, SchemaStatus::Current { .. }).then_some(())
            })
            .await;
        }
        let refused = migrate::run(&settings).await.unwrap_err();
        assert!(matches!(refused, MigrateError::Connect(ConnectError::Standby)), "{migrated}: {refused}");
    }
}
