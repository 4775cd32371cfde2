//! CL-03, L1: many claimers, each job once. Directly and through a transaction pooler; and the test itself is
//! tested, with stores whose claim lacks a rule.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use leasehold::{
    config::DatabaseSettings,
    postgres::PgStore,
    protocol::{
        domain::{
            CommandId, ContainerSpec, Failure, FailureKind, JobDefinition, JobId, NewJob, RetryPolicy, Route,
        },
        ports::{
            ClaimRejection, Claimant, DispatchedJob, End, Ended, Grant, LeaseStore, ListedAnswer,
            ListedClaim, OpenClaim,
        },
    },
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use tokio::runtime::Handle;
use tokio_postgres::Client;

use crate::support::{
    database::{TestDatabase, settings},
    jobs::{LEASE, claimant, open, queue_many},
    pgbouncer::PgBouncer,
};

const JOBS: i64 = 300;
const CLAIMERS: usize = 32;
/// Several stores, so that claims meet in the database and not in one store's batches.
const STORES: usize = 8;
/// What is true of every job: it was scheduled under an older generation before, and dispatched before.
const GENERATION: i64 = 2;
const ATTEMPT: i32 = 3;

const CLAIM: &str = include_str!("../../../src/postgres/sql/claim.sql");

/// Jobs of a workflow that has moved on once, queued for the third time.
async fn queue(client: &Client) -> Vec<JobId> {
    client
        .batch_execute(
            "insert into leasehold.workflows (namespace, name, generation, kind, route, definition)
             values ('default', 'etl', 2, 'HANDLER', 'work', '{\"handler\":\"work\"}')",
        )
        .await
        .unwrap();
    let ids = queue_many(client, JOBS).await;
    client
        .execute(
            "update leasehold.ready set workflow = 'etl', generation = $1, dispatch_attempt = $2",
            &[&GENERATION, &ATTEMPT],
        )
        .await
        .unwrap();
    ids
}

async fn stores(settings: &DatabaseSettings, replaced: Option<&'static str>) -> Vec<PgStore> {
    let mut stores = Vec::new();
    for _ in 0..STORES {
        let replaced = replaced.map(|text| HashMap::from([("claim", text)])).unwrap_or_default();
        stores.push(PgStore::connect_with(settings, Handle::current(), replaced).await.unwrap());
    }
    stores
}

/// What one claimer presented, and what it was told.
type Told = Vec<(DispatchedJob, Result<Grant, ClaimRejection>)>;

/// Presents every job once, in random order, now and then with what was true of it earlier; `size` jobs a call.
async fn claimer(store: PgStore, owner: Claimant, jobs: Vec<JobId>, size: usize, seed: u64) -> Told {
    let mut random = StdRng::seed_from_u64(seed);
    let mut jobs = jobs;
    jobs.shuffle(&mut random);
    let presented: Vec<DispatchedJob> = jobs
        .into_iter()
        .map(|job| match random.random_range(0..10) {
            0 => DispatchedJob { job, generation: GENERATION - 1, dispatch_attempt: ATTEMPT },
            1 => DispatchedJob { job, generation: GENERATION, dispatch_attempt: ATTEMPT - 1 },
            _ => DispatchedJob { job, generation: GENERATION, dispatch_attempt: ATTEMPT },
        })
        .collect();
    let mut told = Told::new();
    for list in presented.chunks(size) {
        let request = ListedClaim {
            owner: owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            jobs: list.to_vec(),
            lease: LEASE,
        };
        let answers = store.claim_listed(&request).await.unwrap();
        assert_eq!(answers.len(), list.len(), "an answer for each listed job");
        for (presented, answer) in list.iter().zip(answers) {
            told.push(match answer {
                ListedAnswer::Granted(grant) => {
                    assert_eq!(grant.authority.job, presented.job);
                    (*presented, Ok(*grant))
                }
                ListedAnswer::Rejected(job, why) => {
                    assert_eq!(job, presented.job);
                    (*presented, Err(why))
                }
            });
        }
    }
    told
}

async fn race(stores: &[PgStore], jobs: &[JobId], size: usize) -> Vec<Told> {
    let claimers = (0..CLAIMERS).map(|n| {
        let store = stores[n % stores.len()].clone();
        tokio::spawn(claimer(store, claimant(&format!("w{n}")), jobs.to_vec(), size, n as u64))
    });
    join_all(claimers).await.into_iter().map(Result::unwrap).collect()
}

/// The judge: every job granted exactly once, to somebody who believed what is true of it; every other answer a
/// reason that fits; and the database tells the same story.
async fn judge(client: &Client, jobs: &[JobId], told: &[Told]) -> Result<(), String> {
    let mut granted = HashSet::new();
    let mut tokens = HashSet::new();
    for (presented, answer) in told.iter().flatten() {
        let right = presented.generation == GENERATION && presented.dispatch_attempt == ATTEMPT;
        match answer {
            Ok(grant) => {
                if !right {
                    return Err(format!("granted on a belief of old: {presented:?}"));
                }
                if (grant.generation, grant.dispatch_attempt) != (GENERATION, ATTEMPT) {
                    return Err(format!("the grant names another dispatch: {presented:?}"));
                }
                if !granted.insert(grant.authority.job) || !tokens.insert(grant.authority.token) {
                    return Err(format!("granted twice: {presented:?}"));
                }
            }
            Err(
                ClaimRejection::Contended
                | ClaimRejection::NotQueued { .. }
                | ClaimRejection::StaleGeneration { current: GENERATION }
                | ClaimRejection::StaleDispatchAttempt { current: ATTEMPT },
            ) => {}
            Err(other) => return Err(format!("an odd reason: {presented:?} {other}")),
        }
    }
    if granted.len() != jobs.len() {
        return Err(format!("{} of {} granted", granted.len(), jobs.len()));
    }
    let row = client
        .query_one(
            "select count(*), count(distinct token), min(attempt), max(attempt), min(epoch), max(epoch),
                    (select count(*) from leasehold.ready), (select count(*) from leasehold.lease_history)
             from leasehold.leases",
            &[],
        )
        .await
        .unwrap();
    let counts: (i64, i64) = (row.get(0), row.get(1));
    let attempts: (i32, i32) = (row.get(2), row.get(3));
    let epochs: (i64, i64) = (row.get(4), row.get(5));
    let others: (i64, i64) = (row.get(6), row.get(7));
    if counts != (JOBS, JOBS) || attempts != (1, 1) || epochs != (1, 1) || others != (0, 0) {
        return Err(format!("the tables: {counts:?} {attempts:?} {epochs:?} {others:?}"));
    }
    Ok(())
}

async fn listed_race(
    settings: &DatabaseSettings,
    database: &TestDatabase,
    size: usize,
) -> Result<(), String> {
    let client = database.client().await;
    let jobs = queue(&client).await;
    let stores = stores(settings, None).await;
    let told = race(&stores, &jobs, size).await;
    judge(&client, &jobs, &told).await
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_single_claimers_get_three_hundred_grants() {
    let database = TestDatabase::create().await;
    listed_race(&database.settings(), &database, 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_listed_claimers_get_three_hundred_grants() {
    let database = TestDatabase::create().await;
    listed_race(&database.settings(), &database, 40).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn through_pgbouncer_single_and_listed_claimers_get_three_hundred_grants() {
    for size in [1, 40] {
        let database = TestDatabase::create().await;
        let bouncer = PgBouncer::start(database.url(), "").await;
        let settings = settings(&bouncer.url(database.url()));
        listed_race(&settings, &database, size).await.unwrap();
    }
}

async fn open_race(settings: &DatabaseSettings, database: &TestDatabase) {
    let client = database.client().await;
    let jobs = queue(&client).await;
    let stores = stores(settings, None).await;
    let claimers = (0..CLAIMERS).map(|n| {
        let store = stores[n % STORES].clone();
        tokio::spawn(async move {
            let owner = claimant(&format!("w{n}"));
            let mut told = Told::new();
            let mut empty = 0;
            // Losers get an answer without the job; two in a row mean that nothing is left for them.
            while empty < 2 {
                let grants = store.claim(&open(&owner, 7)).await.unwrap().grants;
                empty = if grants.is_empty() { empty + 1 } else { 0 };
                for grant in grants {
                    let presented = DispatchedJob {
                        job: grant.authority.job,
                        generation: grant.generation,
                        dispatch_attempt: grant.dispatch_attempt,
                    };
                    told.push((presented, Ok(grant)));
                }
            }
            told
        })
    });
    let told: Vec<Told> = join_all(claimers).await.into_iter().map(Result::unwrap).collect();
    judge(&client, &jobs, &told).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_open_claimers_share_three_hundred_jobs() {
    let database = TestDatabase::create().await;
    open_race(&database.settings(), &database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn through_pgbouncer_open_claimers_share_three_hundred_jobs() {
    let database = TestDatabase::create().await;
    let bouncer = PgBouncer::start(database.url(), "").await;
    open_race(&settings(&bouncer.url(database.url())), &database).await;
}

/// The judge would notice: a store without the comparison of generations, and one without that of dispatch
/// attempts, are found guilty of what they do.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lacks_a_comparison_is_found_out() {
    for rule in ["and r.generation = b.generation", "and r.dispatch_attempt = b.dispatch_attempt"] {
        assert_eq!(CLAIM.matches(rule).count(), 1, "the rule stands once in the statement: {rule}");
        let mutant: &'static str = CLAIM.replace(rule, "").leak();
        for size in [1, 40] {
            let database = TestDatabase::create().await;
            let client = database.client().await;
            let jobs = queue(&client).await;
            let stores = stores(&database.settings(), Some(mutant)).await;
            let told = race(&stores, &jobs, size).await;
            let verdict = judge(&client, &jobs, &told).await.unwrap_err();
            assert!(verdict.contains("a belief of old"), "{rule}: {verdict}");
        }
    }
}

/// How many jobs go through each gate, one after the other; `make proof-gates` asks for a thousand.
fn rounds(usual: usize) -> usize {
    std::env::var("LEASEHOLD_GATE_ROUNDS").map_or(usual, |asked| asked.parse().expect("a number"))
}

/// Runs jobs of a workflow through many claimers, and returns the most that ran at once.
async fn most_at_once(
    database: &TestDatabase,
    claimers: usize,
    jobs: usize,
    routes: Arc<[Route]>,
    mut started: impl FnMut(JobId) + Send + Clone + 'static,
) -> usize {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(AtomicUsize::new(0));
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(database.store().await);
    }
    let dispatcher = stores[0].clone();
    let dispatching = tokio::spawn(async move {
        let namespace = "default".parse().unwrap();
        loop {
            dispatcher.dispatch(&namespace, 100).await.unwrap();
        }
    });
    let workers = (0..claimers).map(|n| {
        let (store, routes) = (stores[n % 4].clone(), Arc::clone(&routes));
        let (running, most, done) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&done));
        let mut started = started.clone();
        tokio::spawn(async move {
            let owner = claimant(&format!("w{n}"));
            while done.load(Ordering::SeqCst) < jobs {
                let request = OpenClaim { routes: Arc::clone(&routes), ..open(&owner, 3) };
                for grant in store.claim(&request).await.unwrap().grants {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    started(grant.authority.job);
                    store.renew(&grant.authority).await.unwrap();
                    running.fetch_sub(1, Ordering::SeqCst);
                    let end = End::Complete { exit_code: None, output: None };
                    let ended = store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
                    assert_ne!(ended, Ended::NotLive);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
    });
    let patience = Duration::from_secs(50) + Duration::from_secs(1) * u32::try_from(jobs).unwrap();
    let finished = tokio::time::timeout(patience, join_all(workers)).await;
    let finished = finished.unwrap_or_else(|_| panic!("{} of {jobs} done", done.load(Ordering::SeqCst)));
    finished.into_iter().for_each(|worker| worker.unwrap());
    dispatching.abort();
    started(JobId(0));
    most.load(Ordering::SeqCst)
}

async fn workflow(client: &Client, limit: &str, serial: bool) {
    client
        .batch_execute(&format!(
            "insert into leasehold.workflows
                 (namespace, name, kind, route, definition, overlap_limit, overlap_serial)
             values ('default', 'etl', 'HANDLER', 'work', '{{\"handler\":\"work\"}}', {limit}, {serial})"
        ))
        .await
        .unwrap();
}

/// Sixteen claimers, one serial workflow: never two at once, and never one out of turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_serial_workflow_never_runs_twice_at_once() {
    let database = TestDatabase::create().await;
    workflow(&database.client().await, "1", true).await;
    let store = database.store().await;
    let rounds = rounds(40);
    for _ in 0..rounds {
        store.submit(&NewJob::of_workflow("etl")).await.unwrap();
    }
    let last = Arc::new(AtomicI64::new(0));
    let in_turn = move |job: JobId| {
        if job.0 > 0 {
            let before = last.swap(job.0, Ordering::SeqCst);
            assert!(before < job.0, "{job} ran after {before}");
        }
    };
    let most = most_at_once(&database, 16, rounds, Arc::from([Route::handler("work")]), in_turn).await;
    assert_eq!(most, 1);
}

/// Sixteen claimers, at most three runs at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_three_lets_three_run_and_never_four() {
    let database = TestDatabase::create().await;
    workflow(&database.client().await, "3", false).await;
    let store = database.store().await;
    for _ in 0..90 {
        store.submit(&NewJob::of_workflow("etl")).await.unwrap();
    }
    let most = most_at_once(&database, 16, 90, Arc::from([Route::handler("work")]), |_| {}).await;
    assert!((2..=3).contains(&most), "{most}");
}

async fn node(client: &Client, name: &str, slots: i32) {
    client
        .execute(
            "insert into leasehold.nodes (namespace, node_id, endpoint, engine_id, process_id, max_concurrency, os,
                 architecture, cpu_millis, memory_bytes, engine_version, heartbeat_ttl_ms, lost_after_ms)
             values ('default', $1, 'unix:///run/' || $1 || '.sock', 'E-' || $1, gen_random_uuid(), $2, 'linux',
                     'amd64', 2000, 1000000000, '20', 3600000, 3600000)",
            &[&name, &slots],
        )
        .await
        .unwrap();
}

fn container_job() -> NewJob {
    let spec = ContainerSpec { image: "busybox".to_owned(), ..ContainerSpec::default() };
    NewJob::ad_hoc(JobDefinition::Container(spec))
}

/// L9: sixteen claimers, one node with one slot: never two, and the slot is free in the end.
#[tokio::test(flavor = "multi_thread")]
async fn one_slot_never_holds_two_containers() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    node(&client, "n1", 1).await;
    let store = database.store().await;
    let rounds = rounds(60);
    for _ in 0..rounds {
        store.submit(&container_job()).await.unwrap();
    }
    let most = most_at_once(&database, 16, rounds, Arc::from([Route::container()]), |_| {}).await;
    assert_eq!(most, 1);
    let left: i64 = client.query_one("select count(*) from leasehold.node_slots", &[]).await.unwrap().get(0);
    assert_eq!(left, 0);
}

/// Containers of a workflow with a limit need a slot of each kind; whoever loses one race keeps nothing of the other.
#[tokio::test(flavor = "multi_thread")]
async fn containers_of_a_limited_workflow_leak_no_slot() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    node(&client, "n1", 2).await;
    node(&client, "n2", 2).await;
    client
        .batch_execute(
            "insert into leasehold.workflows (namespace, name, kind, route, definition, overlap_limit)
             values ('default', 'etl', 'CONTAINER', '', '{\"image\":\"busybox\",\"pull\":\"missing\"}', 3)",
        )
        .await
        .unwrap();
    let store = database.store().await;
    for _ in 0..60 {
        store.submit(&NewJob::of_workflow("etl")).await.unwrap();
    }
    let most = most_at_once(&database, 16, 60, Arc::from([Route::container()]), |_| {}).await;
    assert!((2..=3).contains(&most), "{most}");
    let row = client
        .query_one(
            "select (select count(*) from leasehold.node_slots) + (select count(*) from leasehold.workflow_slots)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 0, "slots that nobody holds");
}

/// CL-11: many dispatchers over many due jobs; each job once under each dispatch attempt, none left behind.
#[tokio::test(flavor = "multi_thread")]
async fn many_dispatchers_queue_each_job_once() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    queue_many(&client, 500).await;
    client
        .batch_execute(
            "insert into leasehold.waiting (job_id, namespace, due_at, kind, route, workflow, rank, generation)
                 select job_id, namespace, now() - interval '1 s' * random(), kind, route, workflow, rank, generation
                 from leasehold.ready;
             delete from leasehold.ready;
             -- What a slow dispatcher does between reading and writing.
             create function leasehold.dawdle() returns trigger language plpgsql as
                 'begin perform pg_sleep(0.005); return null; end';
             create trigger dawdle after delete on leasehold.waiting for each statement
                 execute function leasehold.dawdle()",
        )
        .await
        .unwrap();
    let mut stores = Vec::new();
    for _ in 0..6 {
        stores.push(database.store().await);
    }
    let namespace = "default".parse().unwrap();
    let dispatching = stores.iter().map(|store| async {
        let mut moved = 0;
        let mut nothing = 0;
        while nothing < 3 {
            let now = store.dispatch(&namespace, 17).await.unwrap().moved;
            nothing = if now == 0 { nothing + 1 } else { 0 };
            moved += now;
        }
        moved
    });
    let moved: u32 = join_all(dispatching).await.into_iter().sum();
    assert_eq!(moved, 500);
    let row = client
        .query_one(
            "select count(*), count(distinct job_id), min(dispatch_attempt), max(dispatch_attempt),
                    (select count(*) from leasehold.waiting) from leasehold.ready",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (500, 500));
    assert_eq!((row.get::<_, i32>(2), row.get::<_, i32>(3), row.get::<_, i64>(4)), (1, 1, 0));
}

/// A job of a low priority that is queued below the mark, or an urgent one above it, is found within a second,
/// whatever was claimed before.
#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_job_is_found_although_claims_remember_where_they_were() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let other = database.store().await;
    let owner = claimant("w1");
    queue_many(&client, 1000).await;
    for n in 0..50 {
        assert_eq!(store.claim(&open(&owner, 10)).await.unwrap().grants.len(), 10);
        if n % 10 != 0 {
            continue;
        }
        let mut urgent = crate::support::jobs::handler_job("work");
        urgent.priority = 50;
        let job = other.submit(&urgent).await.unwrap().job;
        crate::support::eventually::eventually(
            Duration::from_secs(1),
            "the urgent job is claimed",
            async || {
                let grants = store.claim(&open(&owner, 1)).await.unwrap().grants;
                grants.iter().any(|grant| grant.authority.job == job).then_some(())
            },
        )
        .await;
    }
}

/// What a failure leads to: by kind, by the job's own policy, by the worker's defaults, with a back-off in its
/// bounds.
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_decides_what_a_failure_leads_to() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w1");
    let none = RetryPolicy::default();
    let own = |user, system, timeout| RetryPolicy {
        max_user: user,
        max_system: system,
        max_timeout: timeout,
        ..none
    };
    use FailureKind::{System, Timeout, User};
    // The job's policy, the worker's defaults, the kind, and how many failures end the job.
    let table = [
        (none, none, User, 1),
        (none, none, Timeout, 1),
        (none, none, System, 3),
        (own(Some(2), None, None), none, User, 2),
        (own(None, Some(5), None), none, System, 5),
        (own(None, None, Some(3)), none, Timeout, 3),
        (none, own(Some(2), Some(4), Some(3)), User, 2),
        (none, own(Some(2), Some(4), Some(3)), System, 4),
        (none, own(Some(2), Some(4), Some(3)), Timeout, 3),
        (own(Some(1), Some(2), Some(1)), own(Some(9), Some(9), Some(9)), System, 2),
    ];
    for (policy, defaults, kind, most) in table {
        let mut job = crate::support::jobs::handler_job("work");
        job.retry = RetryPolicy { backoff_ms: Some(1000), backoff_cap_ms: Some(3000), ..policy };
        let job = store.submit(&job).await.unwrap().job;
        for failure in 1..=most {
            let grant = store.claim(&open(&owner, 1)).await.unwrap().grants.pop().expect("it is queued");
            assert_eq!(grant.attempt, failure);
            let end = End::Fail { failure: Failure::new(kind, "x", "y"), defaults };
            let before: chrono::DateTime<chrono::Utc> =
                client.query_one("select clock_timestamp()", &[]).await.unwrap().get(0);
            match store.end(&grant.authority, CommandId::generate(), &end).await.unwrap() {
                Ended::Retrying { at } => {
                    assert!(failure < most, "{policy:?} {defaults:?} {kind}: retried after {failure}");
                    let step = [1000, 2000, 3000, 3000][usize::try_from(failure - 1).unwrap().min(3)];
                    let wait = (at - before).num_milliseconds();
                    assert!((0..=step + 1000).contains(&wait), "{wait} ms after failure {failure}");
                }
                ended => {
                    assert_eq!(failure, most, "{policy:?} {defaults:?} {kind}: {ended:?} after {failure}");
                    break;
                }
            }
            client
                .execute(
                    "update leasehold.waiting set due_at = clock_timestamp() where job_id = $1",
                    &[&job.0],
                )
                .await
                .unwrap();
            store.dispatch(&owner.namespace, 10).await.unwrap();
        }
        let row = client
            .query_one(
                "select state::text, failures_user + failures_system + failures_timeout, attempt, failure_kind::text
                 from leasehold.ended where job_id = $1",
                &[&job.0],
            )
            .await
            .unwrap();
        assert_eq!((row.get::<_, &str>(0), row.get::<_, i32>(1)), ("FAILED", most));
        assert_eq!((row.get::<_, i32>(2), row.get::<_, &str>(3)), (most, kind.as_str()));
    }
}

/// Full jitter: over many failures, waits fill the whole step and never leave it.
#[tokio::test(flavor = "multi_thread")]
async fn back_off_is_spread_over_the_whole_step() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w1");
    queue_many(&client, 200).await;
    let grants = crate::support::jobs::claim_many(&store, &owner, 200).await;
    let defaults =
        RetryPolicy { backoff_ms: Some(100_000), backoff_cap_ms: Some(60_000), ..RetryPolicy::default() };
    let ends = grants.iter().map(|grant| async {
        let end = End::Fail { failure: Failure::new(FailureKind::System, "x", "y"), defaults };
        store.end(&grant.authority, CommandId::generate(), &end).await.unwrap()
    });
    join_all(ends).await;
    let row = client
        .query_one(
            "select extract(epoch from min(due_at - ended_at))::float8, extract(epoch from max(due_at - ended_at))::float8,
                    count(distinct due_at - ended_at) from leasehold.lease_history where how = 'retrying'",
            &[],
        )
        .await
        .unwrap();
    let (least, most, different): (f64, f64, i64) = (row.get(0), row.get(1), row.get(2));
    assert!((0.0..6.0).contains(&least) && most > 54.0 && most <= 60.0, "{least} to {most}");
    assert!(different > 150, "{different} different waits");
}
