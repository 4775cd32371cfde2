//! The schema comes into being: at once from many processes, never over a newer one, never blocked for ever.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use leasehold::{
    postgres::{
        ConnectError, PgStore,
        migrate::{self, MigrateError, SchemaStatus},
    },
    protocol::{
        domain::CommandId,
        ports::{End, Ended, LeaseStore as _, Renewal},
    },
};
use tokio::runtime::Handle;

use crate::support::{
    database::TestDatabase,
    jobs::{claim_many, claimant, held, queue_many},
};

#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_may_migrate_at_once_and_each_migration_runs_once() {
    let database = TestDatabase::empty().await;
    assert_eq!(migrate::check(&database.settings()).await.unwrap(), SchemaStatus::Missing);
    let runs: Vec<_> = (0..8)
        .map(|_| {
            let settings = database.settings();
            tokio::spawn(async move { migrate::run(&settings).await.unwrap() })
        })
        .collect();
    let mut applied = Vec::new();
    for run in runs {
        applied.extend(run.await.unwrap().applied);
    }
    let once: BTreeSet<_> = applied.iter().collect();
    assert_eq!(applied.len(), once.len(), "{applied:?}");
    let last = format!("V{}__", migrate::latest());
    assert!(applied.iter().any(|name| name.starts_with(&last)), "{applied:?}");
    assert!(migrate::run(&database.settings()).await.unwrap().applied.is_empty(), "a repeat does nothing");
    database.store().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_missing_behind_or_newer_is_refused_with_the_next_step() {
    let database = TestDatabase::empty().await;
    let connect = async || PgStore::connect(&database.settings(), Handle::current()).await;
    let missing = connect().await.unwrap_err();
    assert!(matches!(missing, ConnectError::NotMigrated { .. }), "{missing}");
    assert!(missing.to_string().contains("leasehold migrate"), "{missing}");

    migrate::run(&database.settings()).await.unwrap();
    let client = database.client().await;
    client
        .batch_execute("insert into leasehold.schema_history select max(version) + 1, 'from_the_future', max(applied_on), '1' from leasehold.schema_history")
        .await
        .unwrap();
    assert!(matches!(connect().await, Err(ConnectError::Newer { .. })));
    assert!(matches!(migrate::run(&database.settings()).await, Err(MigrateError::Newer { .. })));
    client
        .batch_execute("delete from leasehold.schema_history where version >= (select max(version) - 1 from leasehold.schema_history) and version > 1")
        .await
        .unwrap();
    if migrate::latest() > 1 {
        assert!(matches!(connect().await, Err(ConnectError::NotMigrated { .. })));
    }
}

/// CF-11: `migrate` beside a store that never rests and a session that holds rows in an open transaction: it
/// waits for neither, and no lease is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_beside_a_busy_store_ends_and_costs_no_lease() {
    let database = TestDatabase::create().await;
    let (store, client, holder) = (database.store().await, database.client().await, database.client().await);
    let owner = claimant("w1");
    let grant = held(&store, &client, &owner).await;
    let other = held(&store, &client, &owner).await;
    holder.batch_execute("begin; lock table leasehold.leases in row exclusive mode").await.unwrap();
    let lock = "select from leasehold.leases where job_id = $1 for update";
    holder.execute(lock, &[&other.authority.job.0]).await.unwrap();
    let busy = tokio::spawn({
        let (store, authority) = (store.clone(), grant.authority.clone());
        async move {
            loop {
                queue_many(&client, 4).await;
                for grant in claim_many(&store, &owner, 4).await {
                    let end = End::Complete { exit_code: None, output: None };
                    let ended = store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
                    assert_ne!(ended, Ended::NotLive);
                }
                assert!(matches!(store.renew(&authority).await.unwrap(), Renewal::Held { .. }));
            }
        }
    });
    for _ in 0..5 {
        let begun = Instant::now();
        assert!(migrate::run(&database.settings()).await.unwrap().applied.is_empty());
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    assert!(!busy.is_finished(), "the store's work broke off");
    busy.abort();
    holder.batch_execute("commit").await.unwrap();
    for grant in [grant, other] {
        assert!(matches!(store.renew(&grant.authority).await.unwrap(), Renewal::Held { .. }));
    }
}
