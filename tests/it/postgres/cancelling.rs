//! Cancel requests and reopened jobs, in every state.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::{
    config::DatabaseSettings,
    postgres::{PgStore, cancel::CancelAnswer, retry::RetryAnswer},
    protocol::{
        domain::{CommandId, ContainerSpec, FailureKind, JobDefinition, JobId, JobState, Namespace, NewJob},
        ports::{
            ClaimRejection, Claimant, DispatchedJob, End, Ended, LeaseStore as _, ListedAnswer, ListedClaim,
            Renewal,
        },
    },
    submission::document::WorkflowDocument,
};

use crate::support::{database::TestDatabase, jobs::claimant, rows};

fn namespace() -> Namespace {
    Namespace::default()
}

const GRACE: Duration = Duration::from_secs(10);

async fn cancel(store: &PgStore, job: JobId) -> CancelAnswer {
    store.request_cancel(&namespace(), job, GRACE).await.unwrap()
}

async fn submit(store: &PgStore) -> JobId {
    store.submit(&NewJob::handler("x", &1)).await.unwrap().job
}

async fn state(store: &PgStore, job: JobId) -> JobState {
    store.show_job(&namespace(), job).await.unwrap().expect("the job exists").row.state
}

/// AP-13, CL-15
#[tokio::test]
async fn a_cancel_says_what_it_did_in_every_state_and_twice_is_as_good_as_once() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let hour = chrono::Utc::now() + chrono::Duration::hours(1);
    let pending = store.submit(&NewJob { run_at: Some(hour), ..NewJob::handler("x", &1) }).await.unwrap().job;
    let (queued, running, done) = (submit(&store).await, submit(&store).await, submit(&store).await);
    for job in [pending, queued] {
        assert_eq!(cancel(&store, job).await, CancelAnswer::Canceled);
        assert_eq!(cancel(&store, job).await, CancelAnswer::AlreadyEnded { state: JobState::Canceled });
        let row = store.show_job(&namespace(), job).await.unwrap().unwrap().row;
        assert_eq!((row.state, row.failure), (JobState::Canceled, None));
    }
    rows::hold(&client, running, 30.0).await;
    let before = chrono::Utc::now();
    let CancelAnswer::Requested { requested_at, deadline } = cancel(&store, running).await else {
        panic!("a request")
    };
    // The stop grace and one lease, from the request on.
    assert_eq!((deadline - requested_at).num_milliseconds(), 40_000);
    assert!((requested_at - before).num_seconds().abs() < 5);
    assert_eq!(
        cancel(&store, running).await,
        CancelAnswer::Requested { requested_at, deadline },
        "the first one counts"
    );
    let row = store.show_job(&namespace(), running).await.unwrap().unwrap().row;
    assert_eq!((row.state, row.cancel_requested_at), (JobState::Running, Some(requested_at)));

    rows::hold(&client, done, 30.0).await;
    rows::complete(&client, done).await;
    assert_eq!(cancel(&store, done).await, CancelAnswer::AlreadyEnded { state: JobState::Completed });
    assert_eq!(cancel(&store, JobId(99_999)).await, CancelAnswer::NotFound);
    let other = Namespace::new("other").unwrap();
    assert_eq!(store.request_cancel(&other, running, GRACE).await.unwrap(), CancelAnswer::NotFound);
    rows::conserved(&client).await;
}

#[tokio::test]
async fn a_containers_own_stop_grace_goes_before_the_callers() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let spec = ContainerSpec { image: "busybox".to_owned(), stop_grace_ms: Some(2000), ..Default::default() };
    let job = store.submit(&NewJob::ad_hoc(JobDefinition::Container(spec))).await.unwrap().job;
    rows::hold(&client, job, 30.0).await;
    let CancelAnswer::Requested { requested_at, deadline } = cancel(&store, job).await else {
        panic!("a request")
    };
    assert_eq!((deadline - requested_at).num_milliseconds(), 32_000);
}

/// What a worker does with one job: claim, renew, work for a moment, report. None when it was not granted.
async fn work_on(store: &PgStore, owner: &Claimant, job: JobId, turns: usize) -> Option<Ended> {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
    let claim = ListedClaim {
        owner: owner.clone(),
        command: CommandId::generate(),
        repeat: false,
        jobs: vec![DispatchedJob { job, generation: 1, dispatch_attempt: 1 }],
        lease: Duration::from_secs(60),
    };
    let authority = match store.claim_listed(&claim).await.unwrap().remove(0) {
        ListedAnswer::Granted(grant) => grant.authority,
        ListedAnswer::Rejected(_, reason) => {
            assert!(
                matches!(reason, ClaimRejection::AlreadyEnded { .. } | ClaimRejection::Contended),
                "{job}: {reason}"
            );
            return None;
        }
    };
    let Renewal::Held { cancel_requested, .. } = store.renew(&authority).await.unwrap() else {
        panic!("{job}: the lease was lost")
    };
    let end = if cancel_requested { End::Cancel } else { End::Complete { exit_code: None, output: None } };
    Some(store.end(&authority, CommandId::generate(), &end).await.unwrap())
}

/// CL-07: claims with all that follows them, and cancels of the same jobs, at the same moment.
#[tokio::test]
async fn a_cancel_that_meets_a_claim_either_comes_first_or_reaches_the_holder() {
    let db = TestDatabase::create().await;
    let settings = DatabaseSettings { store_timeout: Duration::from_secs(20), ..db.settings() };
    let store = PgStore::connect(&settings, tokio::runtime::Handle::current()).await.unwrap();
    let client = db.client().await;
    let jobs = store.submit_bulk((0..400).map(|n: i32| NewJob::handler("x", &n)).collect()).await.unwrap();
    let owner = claimant("w1");
    let races = join_all(jobs.iter().enumerate().map(|(n, job)| {
        let (store, owner) = (store.clone(), &owner);
        async move {
            let canceling = async {
                for _ in 0..(n * 7) % 60 {
                    tokio::task::yield_now().await;
                }
                cancel(&store, *job).await
            };
            (*job, tokio::join!(work_on(&store, owner, *job, (n * 11) % 30), canceling))
        }
    }))
    .await;
    let mut outcomes = std::collections::BTreeMap::<String, u32>::new();
    for (job, (ended, answer)) in races {
        let row = store.show_job(&namespace(), job).await.unwrap().unwrap();
        let state = row.row.state;
        match (ended, answer) {
            // Nobody ever worked on it.
            (None, CancelAnswer::Canceled) => assert_eq!((state, row.leases.len()), (JobState::Canceled, 0)),
            // The holder heard of it in time, or had finished; what it reported stands.
            (Some(Ended::Terminal(told)), CancelAnswer::Requested { .. }) => assert_eq!(state, told),
            (Some(Ended::Terminal(told)), CancelAnswer::AlreadyEnded { state: seen }) => {
                assert_eq!((state, seen), (told, JobState::Completed));
            }
            other => panic!("{job} is {state}: {other:?}"),
        }
        assert_eq!(row.row.attempt, row.leases.len() as i32, "no retry");
        let how = row.leases.first().map_or_else(|| "never held".to_owned(), |lease| lease.how.clone());
        *outcomes.entry(format!("{how}, {answer:?}").chars().take(30).collect()).or_default() += 1;
    }
    println!("{outcomes:?}");
    assert!(outcomes.len() > 1, "one side always won, so nothing was raced: {outcomes:?}");
    rows::conserved(&client).await;
}

/// CL-15: after a cancel was acknowledged nothing starts, whatever the job was waiting for.
#[tokio::test]
async fn a_canceled_job_is_never_started() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let owner = claimant("w1");
    let listed = async |job| {
        let claim = ListedClaim {
            owner: owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            jobs: vec![DispatchedJob { job, generation: 1, dispatch_attempt: 1 }],
            lease: Duration::from_secs(60),
        };
        store.claim_listed(&claim).await.unwrap().remove(0)
    };
    let queued = submit(&store).await;
    assert_eq!(cancel(&store, queued).await, CancelAnswer::Canceled);
    let canceled = ClaimRejection::AlreadyEnded { state: JobState::Canceled };
    assert!(
        matches!(listed(queued).await, ListedAnswer::Rejected(job, reason) if job == queued && reason == canceled)
    );

    let hour = chrono::Utc::now() + chrono::Duration::hours(1);
    let pending = store.submit(&NewJob { run_at: Some(hour), ..NewJob::handler("x", &1) }).await.unwrap().job;
    assert_eq!(cancel(&store, pending).await, CancelAnswer::Canceled);
    store.dispatch(&namespace(), 100).await.unwrap();
    assert!(matches!(listed(pending).await, ListedAnswer::Rejected(_, reason) if reason == canceled));

    // Between the claim and the renewal that must come before any work.
    let claimed = submit(&store).await;
    let ListedAnswer::Granted(grant) = listed(claimed).await else { panic!("it was free") };
    assert!(matches!(cancel(&store, claimed).await, CancelAnswer::Requested { .. }));
    let renewal = store.renew(&grant.authority).await.unwrap();
    assert!(matches!(renewal, Renewal::Held { cancel_requested: true, .. }), "{renewal:?}");
    let given_back = End::Release { delay: Duration::ZERO, reason: "startup" };
    let ended = store.end(&grant.authority, CommandId::generate(), &given_back).await.unwrap();
    assert_eq!(ended, Ended::Terminal(JobState::Canceled), "it never returns to PENDING");
}

#[tokio::test]
async fn the_cancel_of_a_run_wakes_the_runs_that_waited_for_it() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let yaml = "name: w\nhandler: x\noverlap: serial\n";
    let document = WorkflowDocument::parse_all(yaml, &namespace()).unwrap().remove(0);
    store.workflow_apply(&document).await.unwrap();
    let first = store.workflow_trigger(&namespace(), "w").await.unwrap().job;
    let second = store.workflow_trigger(&namespace(), "w").await.unwrap().job;
    // As a claim leaves a run that the overlap policy holds back.
    client
        .execute(
            "with r as (delete from leasehold.ready where job_id = $1 returning *)
             insert into leasehold.waiting (job_id, namespace, due_at, blocked_by, kind, route, workflow, overlap_limit, rank,
                 generation, dispatch_attempt)
             select job_id, namespace, clock_timestamp() + interval '1 hour', $2, kind, route, workflow, overlap_limit, rank,
                 generation, dispatch_attempt from r",
            &[&second.0, &first.0],
        )
        .await
        .unwrap();
    let why = store.why(&namespace(), second).await.unwrap().unwrap();
    assert!(why.contains(&format!("job {first} to end")), "{why}");
    assert_eq!(cancel(&store, first).await, CancelAnswer::Canceled);
    let row = store.show_job(&namespace(), second).await.unwrap().unwrap().row;
    assert!(row.due_at.unwrap() <= chrono::Utc::now() + chrono::Duration::seconds(5), "due at once");
}

#[tokio::test]
async fn a_failed_job_is_reopened_as_a_new_attempt_and_its_history_keeps_what_was() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let job = submit(&store).await;
    let retry = async |job| store.retry_job(&namespace(), job).await.unwrap();
    assert_eq!(retry(job).await, RetryAnswer::NotRetryable { state: JobState::Queued });
    rows::hold(&client, job, 30.0).await;
    assert_eq!(retry(job).await, RetryAnswer::NotRetryable { state: JobState::Running });
    rows::fail(&client, job, 3).await;
    assert_eq!(retry(job).await, RetryAnswer::Reopened { state: JobState::Queued });
    assert_eq!(retry(job).await, RetryAnswer::NotRetryable { state: JobState::Queued });
    let shown = store.show_job(&namespace(), job).await.unwrap().unwrap();
    assert_eq!((shown.row.state, shown.row.attempt, shown.row.dispatch_attempt), (JobState::Queued, 1, 2));
    assert_eq!((shown.failures.user, shown.row.exit_code), (0, None), "fresh counters");
    assert_eq!(shown.row.epoch.0, 1, "epochs go on rising");
    assert_eq!(
        shown.row.failure.as_ref().unwrap().kind,
        Some(FailureKind::User),
        "the last failure stays in sight"
    );
    assert_eq!((shown.leases.len(), shown.leases[0].how.as_str()), (1, "failed"));
    assert_eq!((shown.reopened.len(), shown.reopened[0].state), (1, JobState::Failed));
    assert_eq!(shown.reopened[0].exit_code, Some(3));

    rows::hold(&client, job, 30.0).await;
    rows::complete(&client, job).await;
    let shown = store.show_job(&namespace(), job).await.unwrap().unwrap();
    assert_eq!((shown.row.state, shown.row.attempt, shown.row.failure), (JobState::Completed, 2, None));
    let epochs: Vec<i64> = shown.leases.iter().map(|lease| lease.epoch.0).collect();
    assert_eq!(epochs, [1, 2]);
    assert_eq!(retry(job).await, RetryAnswer::NotRetryable { state: JobState::Completed });
    assert_eq!(retry(JobId(99_999)).await, RetryAnswer::NotFound);
    rows::conserved(&client).await;
}

#[tokio::test]
async fn a_canceled_run_is_reopened_under_its_workflows_present_generation_and_held_by_a_pause() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let apply = async |yaml: &str| {
        let document = WorkflowDocument::parse_all(yaml, &namespace()).unwrap().remove(0);
        store.workflow_apply(&document).await.unwrap();
    };
    apply("name: w\nhandler: x\n").await;
    let job = store.workflow_trigger(&namespace(), "w").await.unwrap().job;
    apply("name: w\nhandler: x\npriority: 1\n").await;
    assert_eq!(state(&store, job).await, JobState::Canceled);
    let retry = async || store.retry_job(&namespace(), job).await.unwrap();
    assert_eq!(retry().await, RetryAnswer::Reopened { state: JobState::Queued });
    assert_eq!(store.show_job(&namespace(), job).await.unwrap().unwrap().row.generation, 2);
    cancel(&store, job).await;
    store.workflow_pause(&namespace(), "w").await.unwrap();
    assert_eq!(retry().await, RetryAnswer::Reopened { state: JobState::Pending });
    let shown = store.show_job(&namespace(), job).await.unwrap().unwrap();
    assert_eq!((shown.row.due_at, shown.reopened.len()), (None, 2));
}

/// A cancel takes a family's rows from the youngest up, as the end of a child does: it holds nothing of the parent
/// while it waits for a child.
#[tokio::test]
async fn the_cancel_of_a_parent_waits_for_a_child_before_it_takes_the_parent() {
    let db = TestDatabase::create().await;
    let (store, mut client, watcher) = (db.store().await, db.client().await, db.client().await);
    let (parent, child) = (submit(&store).await, submit(&store).await);
    rows::hold(&client, child, 60.0).await;
    client
        .execute(
            "insert into leasehold.recipe_children (job_id, namespace, parent_id, path, cancel_with_parent)
             values ($1, 'default', $2, 'c', true)",
            &[&child.0, &parent.0],
        )
        .await
        .unwrap();
    let ends = client.transaction().await.unwrap();
    ends.execute("select from leasehold.leases where job_id = $1 for update", &[&child.0]).await.unwrap();
    let canceling = tokio::spawn({
        let store = store.clone();
        async move { cancel(&store, parent).await }
    });
    crate::support::eventually::eventually(std::time::Duration::from_secs(60), "the cancel waits for the child", async || {
        let waits = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        (!watcher.query(waits, &[]).await.unwrap().is_empty()).then_some(())
    })
    .await;
    let free = "select job_id from leasehold.ready where job_id = $1 for update nowait";
    assert_eq!(ends.query(free, &[&parent.0]).await.unwrap().len(), 1, "nobody holds the parent");
    ends.commit().await.unwrap();
    canceling.await.unwrap();
    assert_eq!(state(&store, parent).await, JobState::Canceled);
}
