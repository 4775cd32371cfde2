//! Recovery of thousands: bounded statements, each lease once, and no row in the others' way.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures_util::future::join_all;
use leasehold::{
    postgres::PgStore,
    protocol::{
        domain::{CommandId, JobId},
        ports::{Claimant, End, LeaseStore, RecoverAnswer, RecoverRequest, Renewal},
    },
};
use tokio_postgres::Client;

use crate::support::{
    database::TestDatabase,
    eventually::eventually,
    jobs::{claimant, picture},
};

const BOUND: u32 = 100;

/// Leases of a lost worker: the first expired first.
async fn expired(client: &Client, count: i64) -> Vec<JobId> {
    let rows = client
        .query(
            "with j as (
                 insert into leasehold.jobs (namespace, workflow, generation, kind, route, definition, payload, priority)
                 select 'default', 'adhoc', 1, 'HANDLER', 'work', '{\"handler\":\"work\"}', 'null', 0
                 from generate_series(1, $1::bigint) returning job_id)
             insert into leasehold.leases (job_id, lease_expires_at, epoch, claim_epoch, granted_at, token, process_id,
                 lease_ms, namespace, worker_id, claim_renewed, kind, route, workflow, rank, generation,
                 dispatch_attempt, attempt, failures_user, failures_system, failures_timeout, losses)
             select job_id, clock_timestamp() - interval '1 s' + row_number() over (order by job_id) * interval '10 us',
                    1, 1, clock_timestamp(), gen_random_uuid(), gen_random_uuid(), 2000, 'default', 'lost', true,
                    'HANDLER', 'work', 'adhoc', 0, 1, 1, 1, 0, 0, 0, 0
             from j returning job_id",
            &[&count],
        )
        .await
        .unwrap();
    let mut jobs: Vec<JobId> = rows.iter().map(|row| JobId(row.get(0))).collect();
    jobs.sort_unstable();
    jobs
}

async fn pass(store: &PgStore, owner: &Claimant, limit: u32) -> RecoverAnswer {
    let request = RecoverRequest {
        owner: owner.clone(),
        command: CommandId::generate(),
        repeat: false,
        limit,
        lease: Duration::from_mins(10),
        running_here: Vec::new().into(),
    };
    store.recover(&request).await.unwrap()
}

/// RC-01: between choosing and taking over, other leases are completed, released, or taken over by somebody else: of those
/// nothing changes.
#[tokio::test(flavor = "multi_thread")]
async fn what_changed_since_it_was_chosen_is_left_alone() {
    let database = TestDatabase::create().await;
    let (store, other, client) = (database.store().await, database.store().await, database.client().await);
    let (owner, rival) = (claimant("w1"), claimant("w2"));
    let jobs = expired(&client, 5).await;
    // All five are chosen, one is taken over; the others are next.
    let first = pass(&store, &owner, 1).await;
    assert_eq!((first.takeovers[0].grant.authority.job, first.backlog), (jobs[0], 4));
    let taken = pass(&other, &rival, 3).await.takeovers;
    assert_eq!(taken.len(), 3);
    let authority = |number: usize| taken[number].grant.authority.clone();
    let complete = End::Complete { exit_code: None, output: None };
    other.end(&authority(0), CommandId::generate(), &complete).await.unwrap();
    let release = End::Release { delay: Duration::ZERO, reason: "drain" };
    other.end(&authority(1), CommandId::generate(), &release).await.unwrap();
    // All commands are in the picture, and the next pass adds its own.
    let rows = async |job: JobId| -> Vec<String> {
        let picture = picture(&client, job).await;
        picture.lines().filter(|row| !row.starts_with("commands")).map(str::to_owned).collect()
    };
    let mut before = Vec::new();
    for job in &jobs[1..4] {
        before.push(rows(*job).await);
    }
    let second = pass(&store, &owner, 10).await;
    let now: Vec<JobId> = second.takeovers.iter().map(|t| t.grant.authority.job).collect();
    assert_eq!(now, [jobs[4]]);
    for (job, before) in jobs[1..4].iter().zip(before) {
        assert_eq!(rows(*job).await, before);
    }
    assert!(matches!(other.renew(&authority(2)).await.unwrap(), Renewal::Held { .. }));
}

async fn most_in_a_statement(client: &Client) -> (i64, i64) {
    let row = client
        .query_one(
            "select max(cardinality(jobs))::bigint, sum(cardinality(jobs))::bigint from leasehold.commands
             where operation = 'recover'",
            &[],
        )
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

/// Ten thousand at once, by statements of a hundred; rows that somebody holds are in nobody's way, and are taken
/// over as soon as they are free.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_expired_leases_are_recovered_by_bounded_statements() {
    const COUNT: i64 = 10_000;
    const LOCKED: usize = 450;
    let database = TestDatabase::create().await;
    let mut settings = database.settings();
    settings.store_timeout = Duration::from_secs(20);
    let store = PgStore::connect(&settings, tokio::runtime::Handle::current()).await.unwrap();
    let (client, holder) = (database.client().await, database.client().await);
    let jobs = expired(&client, COUNT).await;
    // The oldest of all, and more than a statement is offered.
    holder.batch_execute("begin").await.unwrap();
    let last = jobs[LOCKED - 1];
    holder
        .batch_execute(&format!("select from leasehold.leases where job_id <= {} for update", last.0))
        .await
        .unwrap();
    let owner = claimant("w1");
    let mut taken = HashSet::new();
    let mut passes = 0;
    while taken.len() < jobs.len() - LOCKED {
        let answer = pass(&store, &owner, BOUND).await;
        passes += 1;
        assert!(answer.takeovers.len() <= BOUND as usize);
        for takeover in &answer.takeovers {
            let job = takeover.grant.authority.job;
            assert!(job > last && taken.insert(job), "{job} was taken over before, or is held");
        }
        assert!(passes <= 300, "{} of {COUNT} after {passes} passes", taken.len());
    }
    let (most, sum) = most_in_a_statement(&client).await;
    assert_eq!((most, sum), (i64::from(BOUND), COUNT - i64::try_from(LOCKED).unwrap()));
    let answer = pass(&store, &owner, BOUND).await;
    assert!(answer.takeovers.is_empty());
    assert_eq!(answer.backlog, LOCKED as u64);
    holder.batch_execute("rollback").await.unwrap();
    eventually(Duration::from_secs(60), "the freed rows are taken over", async || {
        let answer = pass(&store, &owner, BOUND).await;
        for takeover in answer.takeovers {
            assert!(taken.insert(takeover.grant.authority.job));
        }
        (taken.len() == jobs.len()).then_some(())
    })
    .await;
    let (most, sum) = most_in_a_statement(&client).await;
    assert_eq!((most, sum), (i64::from(BOUND), COUNT));
}

/// L1, L4, RC-05: several recoverers that know nothing of each other share the leases out, of a worker that nobody ever
/// registered.
#[tokio::test(flavor = "multi_thread")]
async fn recoverers_share_what_has_expired() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    let mut stores = Vec::new();
    for number in 0..6 {
        stores.push((database.store().await, claimant(&format!("w{number}"))));
    }
    let jobs = expired(&client, 600).await;
    let rounds = stores.iter().map(async |(store, owner)| {
        let mut taken = Vec::new();
        loop {
            let answer = pass(store, owner, 20).await;
            let none = answer.takeovers.is_empty();
            taken.extend(answer.takeovers);
            if none && answer.backlog == 0 {
                return taken;
            }
        }
    });
    let mut epochs = HashMap::new();
    for takeover in join_all(rounds).await.into_iter().flatten() {
        let authority = takeover.grant.authority;
        assert_eq!(epochs.insert(authority.job, authority.epoch), None, "{} twice", authority.job);
        let (store, _) = stores.iter().find(|(_, owner)| *owner == authority.owner).unwrap();
        assert!(matches!(store.renew(&authority).await.unwrap(), Renewal::Held { .. }));
    }
    assert_eq!(epochs.len(), jobs.len());
}

/// A lease whose row says no time was edited by hand: nobody can tell when its holder must have stopped. It is left alone,
/// and the others are recovered.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_expires_at_no_time_keeps_no_other_from_being_recovered() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let jobs = expired(&client, 5).await;
    let forge = "update leasehold.leases set lease_expires_at = $2::text::timestamptz where job_id = $1";
    client.execute(forge, &[&jobs[0].0, &"-infinity"]).await.unwrap();
    client.execute(forge, &[&jobs[1].0, &"infinity"]).await.unwrap();
    let (owner, mut taken) = (claimant("r"), HashSet::new());
    eventually(Duration::from_secs(60), "the others are taken over", async || {
        let answer = pass(&store, &owner, BOUND).await;
        taken.extend(answer.takeovers.iter().map(|t| t.grant.authority.job));
        (taken.len() == 3).then_some(())
    })
    .await;
    assert_eq!(taken, jobs[2..].iter().copied().collect());
    let after = pass(&store, &owner, BOUND).await;
    assert_eq!((after.takeovers.len(), after.backlog), (0, 0), "{after:?}");
}
