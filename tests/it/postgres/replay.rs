//! L10: an answer is lost; the repeat under the same command id leads to the right end. No second execution, and
//! nothing stuck.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use leasehold::{
    postgres::{PgStore, cancel::CancelAnswer, submit::SubmitError},
    protocol::{
        domain::{
            CommandId, ContainerId, Failure, FailureKind, JobDefinition, JobState, LeaseToken, NewJob,
            NodeId, RetryPolicy, Route,
        },
        error::{Applied, StoreErrorKind},
        ports::{
            Attach, ClaimRejection, DispatchedJob, End, Ended, Grant, LeaseStore, ListedAnswer, ListedClaim,
            LogAppend, LogBatch, LogStream, OpenClaim, Reconciliation, Renewal,
        },
    },
};
use tokio::runtime::Handle;
use tokio_postgres::Client;

use crate::support::{
    database::{TestDatabase, settings},
    eventually::eventually,
    jobs::{LEASE, claim_many, claimant, held, open, picture, queue_many},
    proxy::Proxy,
};

fn tokens(grants: &[Grant]) -> HashSet<LeaseToken> {
    grants.iter().map(|grant| grant.authority.token).collect()
}

async fn counted(client: &Client, table: &str) -> i64 {
    client.query_one(&format!("select count(*) from leasehold.{table}"), &[]).await.unwrap().get(0)
}

/// Two of the same claim at the same time, through two stores: first try beside first try, first try beside
/// repeat, repeat beside repeat. One claim, one set of grants, each counted once.
#[tokio::test(flavor = "multi_thread")]
async fn two_of_the_same_claim_at_once_are_one_claim() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    let stores = [database.store().await, database.store().await];
    let owner = claimant("w1");
    for round in 0..45 {
        queue_many(&client, 6).await;
        let request = open(&owner, 3);
        let repeats = [(false, false), (false, true), (true, true)][round % 3];
        let first = OpenClaim { repeat: repeats.0, ..request.clone() };
        let second = OpenClaim { repeat: repeats.1, ..request.clone() };
        let (a, b) = tokio::join!(stores[0].claim(&first), stores[1].claim(&second));
        let (a, b) = (a.unwrap().grants, b.unwrap().grants);
        assert_eq!(a.len(), 3, "round {round}");
        assert_eq!(tokens(&a), tokens(&b), "round {round}");
        assert!(a.iter().all(|grant| grant.attempt == 1 && grant.authority.epoch.0 == 1));
        assert_eq!(counted(&client, "leases").await, 3, "round {round}");
        client.batch_execute("truncate leasehold.leases, leasehold.ready").await.unwrap();
    }
}

/// The same in the listed form, over jobs that both name.
#[tokio::test(flavor = "multi_thread")]
async fn two_of_the_same_listed_claim_at_once_are_one_claim() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    let stores = [database.store().await, database.store().await];
    let owner = claimant("w1");
    let mut granted_rounds = 0;
    for round in 0..30 {
        let jobs = queue_many(&client, 4).await;
        let request = ListedClaim {
            owner: owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            jobs: jobs
                .iter()
                .map(|job| DispatchedJob { job: *job, generation: 1, dispatch_attempt: 1 })
                .collect(),
            lease: LEASE,
        };
        let again = ListedClaim { repeat: round % 2 == 0, ..request.clone() };
        let (a, b) = tokio::join!(stores[0].claim_listed(&request), stores[1].claim_listed(&again));
        let granted = |answers: Vec<ListedAnswer>| -> HashSet<LeaseToken> {
            let tokens = answers.into_iter().filter_map(|answer| match answer {
                ListedAnswer::Granted(grant) => Some(grant.authority.token),
                // The one that is recorded first found the rows in the hands of the other, which then comes to nothing.
                ListedAnswer::Rejected(_, ClaimRejection::Contended) => None,
                ListedAnswer::Rejected(job, why) => panic!("round {round}: {job} {why}"),
            });
            tokens.collect()
        };
        let (a, b) = (granted(a.unwrap()), granted(b.unwrap()));
        assert_eq!(a, b, "round {round}");
        assert_eq!(counted(&client, "leases").await, a.len() as i64, "round {round}");
        granted_rounds += usize::from(a.len() == 4);
        client.batch_execute("truncate leasehold.leases, leasehold.ready").await.unwrap();
    }
    assert!(granted_rounds > 15, "{granted_rounds} of 30 rounds granted anything");
}

/// Two of the same end at the same time, through two stores and through one.
#[tokio::test(flavor = "multi_thread")]
async fn two_of_the_same_end_at_once_tell_the_same_outcome() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    let stores = [database.store().await, database.store().await];
    let owner = claimant("w1");
    for round in 0..40 {
        let grant = held(&stores[0], &client, &owner).await;
        let end = match round % 4 {
            0 => End::Complete { exit_code: Some(0), output: Some("1".to_owned()) },
            1 => fail(),
            2 => End::Release { delay: Duration::from_secs(60), reason: "drain" },
            _ => End::Reschedule {
                route: None,
                delay: Duration::from_secs(60),
                payload: None,
                wake: Vec::new(),
                publish: None,
            },
        };
        let command = CommandId::generate();
        let other = &stores[round / 4 % 2];
        let (a, b) = tokio::join!(
            stores[0].end(&grant.authority, command, &end),
            other.end(&grant.authority, command, &end)
        );
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(a, b, "round {round}");
        assert_ne!(a, Ended::NotLive, "round {round}");
        let rows = "select count(*) from leasehold.lease_history where job_id = $1";
        let rows: i64 = client.query_one(rows, &[&grant.authority.job.0]).await.unwrap().get(0);
        assert_eq!(rows, 1, "round {round}");
    }
}

fn fail() -> End {
    End::Fail {
        failure: Failure::new(FailureKind::System, "x", "y"),
        defaults: RetryPolicy { backoff_ms: Some(600_000), ..RetryPolicy::default() },
    }
}

/// A store behind a proxy that can lose answers.
async fn fragile(database: &TestDatabase) -> (PgStore, Proxy) {
    let proxy = Proxy::before(database.url()).await;
    let store = PgStore::connect(&settings(&proxy.url(database.url())), Handle::current()).await.unwrap();
    (store, proxy)
}

/// The next answer is lost: the call must say that it may have happened.
fn assert_unknown<T: std::fmt::Debug>(
    answer: Result<T, leasehold::protocol::error::StoreError>,
    proxy: &Proxy,
    lost: &mut u64,
) {
    let error = answer.expect_err("the answer was swallowed");
    assert_eq!(error.applied, Applied::Maybe, "{error}");
    assert!(error.is_retryable(), "{error}");
    *lost += 1;
    assert_eq!(proxy.swallowed(), *lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_is_lost_is_claimed_by_its_repeat() {
    let database = TestDatabase::create().await;
    let (store, proxy) = fragile(&database).await;
    let client = database.client().await;
    let owner = claimant("w1");
    let mut lost = 0;
    for _ in 0..5 {
        let jobs = queue_many(&client, 5).await;
        let request = open(&owner, 3);
        proxy.swallow_next_answer();
        assert_unknown(store.claim(&request).await, &proxy, &mut lost);
        let repeat = OpenClaim { repeat: true, ..request };
        let grants = store.claim(&repeat).await.unwrap().grants;
        let granted: Vec<_> = grants.iter().map(|grant| grant.authority.job).collect();
        assert_eq!(granted, jobs[..3], "what the first one took, in its order");
        assert!(grants.iter().all(|grant| grant.attempt == 1));
        for grant in grants {
            assert!(matches!(store.renew(&grant.authority).await.unwrap(), Renewal::Held { .. }));
            let end = End::Complete { exit_code: None, output: None };
            store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
        }
        for grant in claim_many(&store, &owner, 2).await {
            store.end(&grant.authority, CommandId::generate(), &End::Cancel).await.unwrap();
        }
    }
    assert_eq!(counted(&client, "leases").await, 0);
}

/// A listed claim whose answer is lost, also when only the reasons for its refusals are.
#[tokio::test(flavor = "multi_thread")]
async fn a_listed_claim_whose_answer_is_lost_is_claimed_by_its_repeat() {
    let database = TestDatabase::create().await;
    let (store, proxy) = fragile(&database).await;
    let client = database.client().await;
    let mut lost = 0;
    let jobs = queue_many(&client, 2).await;
    let request = ListedClaim {
        owner: claimant("w1"),
        command: CommandId::generate(),
        repeat: false,
        jobs: jobs
            .iter()
            .map(|job| DispatchedJob { job: *job, generation: 1, dispatch_attempt: 1 })
            .collect(),
        lease: LEASE,
    };
    proxy.swallow_next_answer();
    assert_unknown(store.claim_listed(&request).await, &proxy, &mut lost);
    let repeat = ListedClaim { repeat: true, ..request };
    let answers = store.claim_listed(&repeat).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, ListedAnswer::Granted(_))), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_whose_answer_is_lost_tells_its_repeat_what_it_did() {
    let database = TestDatabase::create().await;
    let (store, proxy) = fragile(&database).await;
    let client = database.client().await;
    let owner = claimant("w1");
    let mut lost = 0;
    let ends = [
        (End::Complete { exit_code: Some(0), output: None }, Ended::Terminal(JobState::Completed)),
        (
            End::Fail {
                failure: Failure::new(FailureKind::User, "3", "exit").with_exit_code(3),
                defaults: RetryPolicy::default(),
            },
            Ended::Terminal(JobState::Failed),
        ),
        (End::Cancel, Ended::Terminal(JobState::Canceled)),
        (End::Release { delay: Duration::from_secs(60), reason: "drain" }, Ended::Released),
        (
            End::Reschedule {
                route: None,
                delay: Duration::from_secs(60),
                payload: None,
                wake: Vec::new(),
                publish: None,
            },
            Ended::Rescheduled,
        ),
    ];
    for (end, expected) in ends {
        let grant = held(&store, &client, &owner).await;
        let (authority, command) = (&grant.authority, CommandId::generate());
        proxy.swallow_next_answer();
        assert_unknown(store.end(authority, command, &end).await, &proxy, &mut lost);
        let before = picture(&client, authority.job).await;
        assert_eq!(store.end(authority, command, &end).await.unwrap(), expected);
        assert_eq!(store.end(authority, CommandId::generate(), &end).await.unwrap(), Ended::NotLive);
        assert_eq!(store.reconcile(authority).await.unwrap(), Reconciliation::Changed);
        assert_eq!(picture(&client, authority.job).await, before, "the repeat changes nothing");
    }
    let grant = held(&store, &client, &owner).await;
    let command = CommandId::generate();
    proxy.swallow_next_answer();
    assert_unknown(store.end(&grant.authority, command, &fail()).await, &proxy, &mut lost);
    let Ended::Retrying { at } = store.end(&grant.authority, command, &fail()).await.unwrap() else {
        panic!("a try is left")
    };
    let due = "select due_at from leasehold.waiting where job_id = $1";
    let due: chrono::DateTime<chrono::Utc> =
        client.query_one(due, &[&grant.authority.job.0]).await.unwrap().get(0);
    assert_eq!(at, due, "the very instant that was decided then");
}

/// Renew, attach, logs, progress: asked again, they have the effect of one.
#[tokio::test(flavor = "multi_thread")]
async fn other_calls_whose_answer_is_lost_can_be_repeated() {
    let database = TestDatabase::create().await;
    let (store, proxy) = fragile(&database).await;
    let client = database.client().await;
    let grant = held(&store, &client, &claimant("w1")).await;
    let authority = &grant.authority;
    client
        .execute("update leasehold.leases set node_id = 'n1' where job_id = $1", &[&authority.job.0])
        .await
        .unwrap();
    let mut lost = 0;
    proxy.swallow_next_answer();
    assert_unknown(store.renew(authority).await, &proxy, &mut lost);
    assert!(matches!(store.renew(authority).await.unwrap(), Renewal::Held { .. }));

    let (node, container) = (NodeId::new("n1").unwrap(), ContainerId::new("c1").unwrap());
    proxy.swallow_next_answer();
    assert_unknown(store.attach(authority, &node, &container).await, &proxy, &mut lost);
    assert_eq!(store.attach(authority, &node, &container).await.unwrap(), Attach::Attached);
    let other = ContainerId::new("c2").unwrap();
    assert_eq!(
        store.attach(authority, &node, &other).await.unwrap(),
        Attach::ContainerConflict { attached: container.clone() }
    );
    let elsewhere = NodeId::new("n2").unwrap();
    assert_eq!(store.attach(authority, &elsewhere, &container).await.unwrap(), Attach::WrongRuntimeNode);

    let batches = [
        LogBatch { task: None, stream: LogStream::Stdout, first_byte: 0, data: Bytes::from_static(b"a\0b") },
        LogBatch {
            task: None,
            stream: LogStream::Stderr,
            first_byte: 0,
            data: Bytes::from_static(b"\xff\xfe"),
        },
        LogBatch { task: None, stream: LogStream::Stdout, first_byte: 3, data: Bytes::from_static(b"c") },
    ];
    proxy.swallow_next_answer();
    assert_unknown(store.append_logs(authority, &batches).await, &proxy, &mut lost);
    assert_eq!(store.append_logs(authority, &batches).await.unwrap(), LogAppend::Stored);
    let rows = client
        .query("select stream, first_byte, data from leasehold.job_logs order by seq", &[])
        .await
        .unwrap();
    let stored: Vec<(i16, i64, Vec<u8>)> = rows.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect();
    assert_eq!(stored, [(1, 0, b"a\0b".to_vec()), (2, 0, b"\xff\xfe".to_vec()), (1, 3, b"c".to_vec())]);

    proxy.swallow_next_answer();
    assert_unknown(store.report_progress(authority, "1").await, &proxy, &mut lost);
    assert!(matches!(store.report_progress(authority, "1").await.unwrap(), Renewal::Held { .. }));
    assert_eq!(counted(&client, "job_progress").await, 1);
}

/// Submit, dispatch, cancel, reconcile: asked again, they have the effect of one.
#[tokio::test(flavor = "multi_thread")]
async fn what_needs_no_lease_can_be_repeated_when_its_answer_is_lost() {
    let database = TestDatabase::create().await;
    let (store, proxy) = fragile(&database).await;
    let client = database.client().await;
    let mut lost = 0;

    let mut job = NewJob::ad_hoc(JobDefinition::Handler { name: "h".to_owned() });
    job.idempotency_key = Some("once".to_owned());
    proxy.swallow_next_answer();
    let Err(SubmitError::Store(error)) = store.submit(&job).await else { panic!("the answer was swallowed") };
    assert_unknown::<()>(Err(error), &proxy, &mut lost);
    let again = store.submit(&job).await.unwrap();
    assert!(!again.created, "the first request is the job");
    assert_eq!(counted(&client, "jobs").await, 1);

    // Back to PENDING and due, so that there is something to dispatch.
    let owner = claimant("w1");
    let request = OpenClaim { routes: [Route::handler("h")].into(), ..open(&owner, 1) };
    let grant = store.claim(&request).await.unwrap().grants.pop().unwrap();
    let release = End::Release { delay: Duration::ZERO, reason: "test" };
    store.end(&grant.authority, CommandId::generate(), &release).await.unwrap();
    proxy.swallow_next_answer();
    assert_unknown(store.dispatch(&owner.namespace, 10).await, &proxy, &mut lost);
    eventually(Duration::from_secs(60), "the job is queued", async || {
        store.dispatch(&owner.namespace, 10).await.unwrap();
        (counted(&client, "ready").await == 1).then_some(())
    })
    .await;
    let attempt: i32 =
        client.query_one("select dispatch_attempt from leasehold.ready", &[]).await.unwrap().get(0);
    assert_eq!(attempt, 2, "dispatched once more, not twice");

    let request = OpenClaim { command: CommandId::generate(), ..request };
    let grant = store.claim(&request).await.unwrap().grants.pop().unwrap();
    proxy.swallow_next_answer();
    assert_unknown(store.reconcile(&grant.authority).await, &proxy, &mut lost);
    assert!(matches!(store.reconcile(&grant.authority).await.unwrap(), Reconciliation::Live { .. }));

    proxy.swallow_next_answer();
    let asked = store.request_cancel(&owner.namespace, again.job, Duration::from_secs(1)).await;
    assert_unknown(asked, &proxy, &mut lost);
    let asked = store.request_cancel(&owner.namespace, again.job, Duration::from_secs(1)).await.unwrap();
    assert!(matches!(asked, CancelAnswer::Requested { .. }), "{asked:?}");
    let ended = store.end(&grant.authority, CommandId::generate(), &End::Cancel).await.unwrap();
    assert_eq!(ended, Ended::Terminal(JobState::Canceled));
}

/// A command id stands for one request; everything that was asked for counts.
#[tokio::test(flavor = "multi_thread")]
async fn another_request_under_a_command_id_is_a_conflict() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w1");
    queue_many(&client, 5).await;
    let request = open(&owner, 1);
    store.claim(&request).await.unwrap();
    let others = [
        OpenClaim { limit: 2, ..request.clone() },
        OpenClaim { lease: LEASE * 2, ..request.clone() },
        OpenClaim { owner: claimant("w1"), ..request.clone() },
        OpenClaim {
            routes: std::sync::Arc::from([leasehold::protocol::domain::Route::handler("other")]),
            ..request.clone()
        },
    ];
    for other in others {
        for repeat in [false, true] {
            let other = OpenClaim { repeat, ..other.clone() };
            match store.claim(&other).await {
                Err(e) => {
                    assert_eq!((e.kind, e.applied), (StoreErrorKind::CommandConflict, Applied::No), "{e}");
                    assert!(!e.is_retryable());
                }
                // A first try that finds nothing to grant does not get as far as its command id.
                Ok(answer) => assert!(!repeat && answer.grants.is_empty(), "{other:?}"),
            }
        }
    }
    assert_eq!(counted(&client, "leases").await, 1);
}

/// Claims in one statement: one of them has run before. It is told so, and its neighbours are not disturbed.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_claim_among_others_disturbs_none_of_them() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w1");
    queue_many(&client, 60).await;
    let old = open(&owner, 2);
    let first = store.claim(&old).await.unwrap().grants;
    let requests: Vec<OpenClaim> =
        (0..20).map(|n| if n == 7 { old.clone() } else { open(&owner, 2) }).collect();
    let answers = join_all(requests.iter().map(|request| store.claim(request))).await;
    let mut all = HashSet::new();
    for (n, answer) in answers.into_iter().enumerate() {
        let grants = answer.unwrap().grants;
        assert_eq!(grants.len(), 2, "claim {n}");
        if n == 7 {
            assert_eq!(tokens(&grants), tokens(&first));
        }
        all.extend(tokens(&grants));
    }
    assert_eq!(all.len(), 40);
    assert_eq!(counted(&client, "leases").await, 40);
}

/// A claim that fails has held jobs meanwhile, and others went past them. Whoever asks next gets those.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_claim_held_that_fails_is_found_by_the_next_claim() {
    let database = TestDatabase::create().await;
    let (store, client, mut rival) =
        (database.store().await, database.client().await, database.client().await);
    let owner = claimant("w1");
    for round in 0..20 {
        let jobs = queue_many(&client, 4).await;
        let doomed = open(&owner, 2);
        // Whoever records this command waits for us, with the jobs in its hands.
        let recording = rival.transaction().await.unwrap();
        let record =
            "insert into leasehold.commands (command_id, namespace, operation, request_hash, jobs, epochs)
             values ($1, 'default', 'claim', 'another', '{}', '{}')";
        recording.execute(record, &[&doomed.command.0]).await.unwrap();
        let waits = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' limit 1";
        let (failed, beside) = tokio::join!(store.claim(&doomed), async {
            eventually(Duration::from_secs(60), "the claim waits", async || {
                client.query_opt(waits, &[]).await.unwrap()
            })
            .await;
            let beside = store.claim(&open(&owner, 2)).await.unwrap().grants;
            recording.commit().await.unwrap();
            beside
        });
        assert_eq!(failed.unwrap_err().kind, StoreErrorKind::CommandConflict, "round {round}");
        let next = store.claim(&open(&owner, 2)).await.unwrap().grants;
        let granted: Vec<_> = next.iter().chain(&beside).map(|grant| grant.authority.job).collect();
        assert_eq!(granted, jobs, "round {round}");
        client.batch_execute("truncate leasehold.leases, leasehold.ready").await.unwrap();
    }
}

/// Claims are remembered for a day and then forgotten, oldest first and not all at once.
#[tokio::test(flavor = "multi_thread")]
async fn claims_are_forgotten_after_a_day() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    client
        .batch_execute(
            "insert into leasehold.commands (command_id, namespace, operation, request_hash, jobs, epochs, created_at)
             select gen_random_uuid(), 'default', 'claim', '', '{}', '{}', now() - n * interval '1 hour' + interval '30 minutes'
             from generate_series(1, 48) n",
        )
        .await
        .unwrap();
    let prune = include_str!("../../../src/postgres/sql/prune_commands.sql");
    assert_eq!(client.execute(prune, &[&10i64]).await.unwrap(), 10);
    assert_eq!(client.execute(prune, &[&1000i64]).await.unwrap(), 13);
    let row = client
        .query_one(
            "select count(*), min(created_at) > now() - interval '26 hours' from leasehold.commands",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (25, true));
}
