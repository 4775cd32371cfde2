//! The schema comes into being: at once from many processes, never over a newer one, never blocked for ever.

use leasehold::postgres::{
    ConnectError, PgStore,
    migrate::{self, MigrateError, SchemaStatus},
};
use tokio::runtime::Handle;

use crate::support::database::TestDatabase;

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
    assert_eq!(applied.len() as i32, migrate::latest(), "{applied:?}");
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
