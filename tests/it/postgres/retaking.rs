//! Recovery meets what others do to the same leases at the same moment, on a real PostgreSQL.

use std::{sync::Arc, time::Duration};

use leasehold::{
    postgres::PgStore,
    protocol::{
        domain::{CommandId, LeaseToken},
        ports::{
            Authority, Claimant, End, Ended, LeaseStore, Reconciliation, RecoverAnswer, RecoverRequest,
            Renewal,
        },
    },
};
use tokio::runtime::Handle;

use crate::support::{
    database::TestDatabase,
    eventually::{eventually, pass},
    jobs::{LEASE, claim_many, claimant, held, queue_many},
};

const COMPLETE: End = End::Complete { exit_code: None, output: None };

fn recovery(owner: &Claimant) -> RecoverRequest {
    RecoverRequest {
        owner: owner.clone(),
        command: CommandId::generate(),
        repeat: false,
        limit: 10,
        lease: LEASE,
        running_here: Arc::from([]),
    }
}

async fn patient_store(database: &TestDatabase) -> PgStore {
    let mut settings = database.settings();
    settings.store_timeout = Duration::from_secs(30);
    PgStore::connect(&settings, Handle::current()).await.unwrap()
}

/// Until it is answered: the machine may be too slow for one call.
async fn recover(store: &impl LeaseStore, mut request: RecoverRequest) -> RecoverAnswer {
    loop {
        match store.recover(&request).await {
            Ok(answer) => return answer,
            Err(_) => request.repeat = true,
        }
    }
}

/// RC-01: recovery has chosen four expired leases and not written yet. Meanwhile one job is completed, one is
/// given back, and one has a new grant. Only the fourth is taken over, and nothing else is touched.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_still_dead_is_taken_over() {
    let database = TestDatabase::create().await;
    let (store, client, holder) =
        (patient_store(&database).await, database.client().await, database.client().await);
    queue_many(&client, 4).await;
    let grants = claim_many(&store, &claimant("w1"), 4).await;
    let [done, back, anew, dead] = std::array::from_fn(|n| grants[n].authority.clone());
    let expire = "update leasehold.leases set lease_expires_at = clock_timestamp() - interval '1 s'";
    client.execute(expire, &[]).await.unwrap();

    // To choose, it reads; to write, it needs the table of commands as well.
    holder.batch_execute("begin; lock table leasehold.commands in share mode").await.unwrap();
    let recovering = {
        let (store, request) = (store.clone(), recovery(&claimant("w2")));
        tokio::spawn(async move { recover(&store, request).await })
    };
    eventually(Duration::from_mins(1), "recovery has chosen and waits", async || {
        let waiting =
            "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        client.query(waiting, &[]).await.unwrap().pop()
    })
    .await;
    let alive = "update leasehold.leases set lease_expires_at = clock_timestamp() + interval '1 hour',
                     token = case when job_id = $2 then gen_random_uuid() else token end
                 where job_id <> $1 returning job_id, token";
    let rows = client.query(alive, &[&dead.job.0, &anew.job.0]).await.unwrap();
    let new = rows.iter().find(|row| row.get::<_, i64>(0) == anew.job.0).expect("it has a lease");
    let anew = Authority { token: LeaseToken::from_store(new.get(1)), ..anew };
    store.end(&done, CommandId::generate(), &COMPLETE).await.unwrap();
    let release = End::Release { delay: Duration::ZERO, reason: "drain" };
    store.end(&back, CommandId::generate(), &release).await.unwrap();
    holder.batch_execute("commit").await.unwrap();

    let taken: Vec<_> =
        recovering.await.unwrap().takeovers.iter().map(|takeover| takeover.grant.authority.job).collect();
    assert_eq!(taken, [dead.job]);
    assert!(matches!(store.renew(&anew).await.unwrap(), Renewal::Held { .. }));
    assert_eq!(store.reconcile(&dead).await.unwrap(), Reconciliation::Changed);
    let others = "select (select count(*) from leasehold.ended where job_id = $1 and state = 'COMPLETED'),
                         (select count(*) from leasehold.leases where job_id = any ($2)),
                         (select count(*) from leasehold.lease_history where how = 'expired')";
    let row = client.query_one(others, &[&done.job.0, &vec![done.job.0, back.job.0]]).await.unwrap();
    let counts: [i64; 3] = std::array::from_fn(|n| row.get(n));
    assert_eq!(counts, [1, 0, 1]);
}

/// CL-05, RC-07: the lease runs out while its holder completes and somebody recovers. One of them wins.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_and_a_recovery_never_both_win() {
    let database = TestDatabase::create().await;
    let (store, client) = (patient_store(&database).await, database.client().await);
    let (owner, other) = (claimant("w1"), claimant("w2"));
    let (mut completed, mut recovered) = (0, 0);
    for round in 0..40 {
        let grant = held(&store, &client, &owner).await;
        let job = grant.authority.job;
        let soon = "update leasehold.leases set lease_expires_at = clock_timestamp() + $2 * interval '1 ms'
                    where job_id = $1";
        client.execute(soon, &[&job.0, &f64::from(round % 4 * 20)]).await.unwrap();
        let completing = async {
            pass(Duration::from_millis(20)).await;
            let command = CommandId::generate();
            loop {
                if let Ok(ended) = store.end(&grant.authority, command, &COMPLETE).await {
                    return ended;
                }
            }
        };
        let recovering = async {
            let ended = "select from leasehold.ended where job_id = $1";
            loop {
                if !recover(&store, recovery(&other)).await.takeovers.is_empty() {
                    return true;
                }
                if client.query_opt(ended, &[&job.0]).await.unwrap().is_some() {
                    return false;
                }
            }
        };
        let (ended, taken) = tokio::join!(completing, recovering);
        let history = "select (select count(*) from leasehold.ended where job_id = $1),
                              (select count(*) from leasehold.leases where job_id = $1),
                              (select count(*) from leasehold.lease_history where job_id = $1)";
        let row = client.query_one(history, &[&job.0]).await.unwrap();
        let counts: [i64; 3] = std::array::from_fn(|n| row.get(n));
        match (ended == Ended::NotLive, taken) {
            (false, false) => {
                completed += 1;
                assert_eq!(counts, [1, 0, 1], "round {round}");
            }
            (true, true) => {
                recovered += 1;
                assert_eq!(counts, [0, 1, 1], "round {round}");
            }
            both => panic!("round {round}: {both:?}"),
        }
    }
    assert!(recovered > 0, "{completed} completed, {recovered} recovered");
}
