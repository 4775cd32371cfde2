//! Fencing for the outside: transactions of others that stand, or fall, with a lease.

use std::time::Duration;

use leasehold::{
    postgres::PgStore,
    protocol::{
        domain::{CommandId, JobState},
        ports::{End, Ended, Grant, LeaseStore, RecoverRequest, Renewal},
    },
};
use tokio_postgres::{Client, error::SqlState};
use uuid::Uuid;

use crate::support::{
    database::{TestDatabase, client as connect},
    eventually::eventually,
    jobs::{LEASE, claimant, held, with_other_token},
};

fn token(grant: &Grant) -> Uuid {
    grant.authority.token.expose_to_store()
}

async fn fence(client: &Client, grant: &Grant) -> Result<i64, tokio_postgres::Error> {
    let row =
        client.query_one("select leasehold.fence($1, $2)", &[&grant.authority.job.0, &token(grant)]).await?;
    Ok(row.get(0))
}

async fn recovered(store: &PgStore) -> usize {
    let request = RecoverRequest {
        owner: claimant("recoverer"),
        command: CommandId::generate(),
        repeat: false,
        limit: 10,
        lease: LEASE,
        running_here: [].into(),
    };
    store.recover(&request).await.unwrap().takeovers.len()
}

async fn expire(client: &Client, grant: &Grant) {
    let expire = "update leasehold.leases set lease_expires_at = clock_timestamp() where job_id = $1";
    client.execute(expire, &[&grant.authority.job.0]).await.unwrap();
}

/// Renewals go on under a fence; whatever would give the job to somebody else waits for the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_lets_renewals_pass_and_holds_up_ends_and_takeovers() {
    let database = TestDatabase::create().await;
    let (store, client, app) = (database.store().await, database.client().await, database.client().await);
    let grant = held(&store, &client, &claimant("w")).await;
    app.batch_execute("begin").await.unwrap();
    assert_eq!(fence(&app, &grant).await.unwrap(), grant.authority.epoch.0);
    for _ in 0..3 {
        assert!(matches!(store.renew(&grant.authority).await.unwrap(), Renewal::Held { .. }));
    }
    let for_update = "select from leasehold.leases where job_id = $1 for update nowait";
    let refused = client.execute(for_update, &[&grant.authority.job.0]).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::LOCK_NOT_AVAILABLE));

    // It runs out under the fence; the transaction may still be committed, so nobody takes the job over yet.
    expire(&client, &grant).await;
    assert_eq!(recovered(&store).await, 0);
    app.batch_execute("commit").await.unwrap();
    eventually(Duration::from_secs(60), "it is taken over", async || {
        (recovered(&store).await == 1).then_some(())
    })
    .await;
    assert_eq!(fence(&app, &grant).await.unwrap_err().code().unwrap().code(), "LH020");
}

/// An end that is under way: the fence waits for it, and then refuses.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_meets_an_end_waits_and_is_refused() {
    let database = TestDatabase::create().await;
    let (store, client, app) = (database.store().await, database.client().await, database.client().await);
    let grant = held(&store, &client, &claimant("w")).await;
    client.batch_execute("begin").await.unwrap();
    client
        .execute("delete from leasehold.leases where job_id = $1", &[&grant.authority.job.0])
        .await
        .unwrap();
    let fencing = tokio::spawn(async move { fence(&app, &grant).await });
    eventually(Duration::from_secs(60), "the fence waits", async || {
        let waits =
            "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%leasehold.fence%'";
        database.client().await.query_opt(waits, &[]).await.unwrap()
    })
    .await;
    client.batch_execute("commit").await.unwrap();
    assert_eq!(fencing.await.unwrap().unwrap_err().code().unwrap().code(), "LH020");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_holds_no_live_lease_is_refused_without_a_word_of_the_token() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w");
    let (ended, expired, good) = (
        held(&store, &client, &owner).await,
        held(&store, &client, &owner).await,
        held(&store, &client, &owner).await,
    );
    let done = End::Complete { exit_code: None, output: None };
    let end = store.end(&ended.authority, CommandId::generate(), &done).await.unwrap();
    assert_eq!(end, Ended::Terminal(JobState::Completed));
    expire(&client, &expired).await;
    let mut forged = good.clone();
    forged.authority = with_other_token(&good.authority);
    let mut unknown = good.clone();
    unknown.authority.job.0 += 1000;
    for grant in [&ended, &expired, &forged, &unknown] {
        let error = fence(&client, grant).await.unwrap_err();
        let told = error.as_db_error().unwrap();
        assert_eq!(told.code().code(), "LH020");
        assert!(told.message().contains(&format!("job {}", grant.authority.job)), "{told:?}");
        assert!(told.hint().is_some(), "{told:?}");
        for token in [token(grant), token(&good)] {
            assert!(!format!("{told:?}").contains(&token.to_string()), "{told:?}");
        }
    }
    fence(&client, &good).await.unwrap();
    let null = client.query_one("select leasehold.fence($1, null)", &[&good.authority.job.0]).await;
    assert_eq!(null.unwrap_err().code().unwrap().code(), "LH020");
}

/// The epoch that a container was handed passes until the job is claimed again; a takeover that adopts it does not
/// change that.
#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_passes_until_the_job_is_claimed_again() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let grant = held(&store, &client, &claimant("w")).await;
    let (job, epoch) = (grant.authority.job.0, grant.authority.epoch.0);
    let passes = async |epoch: i64| {
        let asked = client.query_one("select leasehold.fence_epoch($1, $2)", &[&job, &epoch]).await;
        match asked {
            Ok(_) => true,
            Err(e) => {
                assert_eq!(e.code().unwrap().code(), "LH020", "{e}");
                false
            }
        }
    };
    assert_eq!((passes(epoch - 1).await, passes(epoch).await, passes(epoch + 1).await), (false, true, false));
    expire(&client, &grant).await;
    assert!(!passes(epoch).await, "expired");
    assert_eq!(recovered(&store).await, 1);
    assert!(passes(epoch).await, "taken over, as its container may be");
    let reclaimed =
        "update leasehold.leases set epoch = epoch + 1, claim_epoch = epoch + 1 where job_id = $1";
    client.execute(reclaimed, &[&job]).await.unwrap();
    assert!(!passes(epoch).await, "claimed again");
}

/// The grants of docs/fencing.md are enough, and they open nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn an_applications_role_can_fence_and_read_no_token() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let grant = held(&store, &client, &claimant("w")).await;
    let role = database.name();
    let text = include_str!("../../../docs/fencing.md");
    let grants: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with("grant "))
        .map(|line| line.replace(" to app;", &format!(" to {role};")))
        .collect();
    assert_eq!(grants.len(), 2);
    client.batch_execute(&format!("drop role if exists {role}; create role {role} login")).await.unwrap();
    let mut url = url::Url::parse(database.url()).unwrap();
    url.set_username(role).unwrap();
    let app = connect(url.as_str()).await;
    let denied = fence(&app, &grant).await.unwrap_err();
    assert_eq!(denied.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    client.batch_execute(&grants.join("\n")).await.unwrap();
    assert_eq!(fence(&app, &grant).await.unwrap(), grant.authority.epoch.0);
    let read = app.query("select token from leasehold.leases", &[]).await.unwrap_err();
    assert_eq!(read.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    drop(app);
    client.batch_execute(&format!("drop owned by {role}; drop role {role}")).await.unwrap();
}

/// The statements of docs/fencing.md, as they stand there: an older epoch is refused, also one that was first.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_resource_refuses_an_older_epoch() {
    let database = TestDatabase::empty().await;
    let (client, late) = (database.client().await, database.client().await);
    let text = include_str!("../../../docs/fencing.md");
    let blocks: Vec<&str> =
        text.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 2);
    for block in &blocks {
        client.batch_execute(block).await.unwrap();
    }
    let tick = async |client: &Client, epoch: i64| {
        let write = format!(
            "begin; select admit(7, {epoch}); insert into ticks (job, epoch) values (7, {epoch}); commit"
        );
        let written = client.batch_execute(&write).await;
        if written.is_err() {
            client.batch_execute("rollback").await.unwrap();
        }
        written
    };
    let refused = tick(&client, 2).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "LH020");
    tick(&client, 3).await.unwrap();
    // A newer one is under way: an older one waits for it, and is refused then.
    client.batch_execute("begin; select admit(7, 4)").await.unwrap();
    let waiting = tokio::spawn(async move { late.batch_execute("select admit(7, 3)").await });
    eventually(Duration::from_secs(60), "the older one waits", async || {
        let waits =
            "select from pg_stat_activity where wait_event_type = 'Lock' and query = 'select admit(7, 3)'";
        // A transaction keeps what its first look at the sessions saw.
        client.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
        client.query_opt(waits, &[]).await.unwrap()
    })
    .await;
    client.batch_execute("insert into ticks (job, epoch) values (7, 4); commit").await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().code().unwrap().code(), "LH020");
    let epochs: Vec<i64> = client
        .query("select epoch from ticks order by at", &[])
        .await
        .unwrap()
        .iter()
        .map(|r| r.get(0))
        .collect();
    assert_eq!(epochs, [3, 3, 4]);
}
