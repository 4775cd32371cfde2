//! Cancel requests and reopened jobs, in every state.

use std::time::Duration;

use leasehold::{
    postgres::{PgStore, cancel::CancelAnswer, retry::RetryAnswer},
    protocol::domain::{ContainerSpec, FailureKind, JobDefinition, JobId, JobState, Namespace, NewJob},
    submission::document::WorkflowDocument,
};

use crate::support::{database::TestDatabase, rows};

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

/// CL-07: claims and cancels of the same jobs at the same moment. Each job is CANCELED without ever being
/// held, or it is held and its holder is told.
#[tokio::test]
async fn a_cancel_that_meets_a_claim_either_comes_first_or_reaches_the_holder() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let jobs = store.submit_bulk((0..400).map(|n: i32| NewJob::handler("x", &n)).collect()).await.unwrap();
    let claiming = {
        let (client, jobs) = (db.client().await, jobs.clone());
        tokio::spawn(async move {
            for job in jobs {
                let claim = "with r as (delete from leasehold.ready where ctid = any (array(select ctid from leasehold.ready
                         where job_id = $1 for update skip locked)) returning *)
                     insert into leasehold.leases (job_id, lease_expires_at, epoch, claim_epoch, granted_at, token, process_id,
                         lease_ms, namespace, worker_id, kind, route, task, workflow, overlap_limit, rank, generation,
                         dispatch_attempt, attempt, failures_user, failures_system, failures_timeout, losses)
                     select job_id, clock_timestamp() + interval '30 s', 1, 1, clock_timestamp(), gen_random_uuid(),
                         gen_random_uuid(), 30000, namespace, 'w1', kind, route, task, workflow, overlap_limit, rank,
                         generation, dispatch_attempt, 1, 0, 0, 0, 0 from r";
                client.execute(claim, &[&job.0]).await.unwrap();
            }
        })
    };
    let mut answers = Vec::new();
    for chunk in jobs.chunks(8) {
        let canceled = futures_util::future::join_all(chunk.iter().map(|job| cancel(&store, *job))).await;
        answers.extend(chunk.iter().copied().zip(canceled));
    }
    claiming.await.unwrap();
    let mut told = 0;
    for (job, answer) in answers {
        let row = store.show_job(&namespace(), job).await.unwrap().unwrap().row;
        match answer {
            CancelAnswer::Canceled => assert_eq!((row.state, row.attempt), (JobState::Canceled, 0)),
            CancelAnswer::Requested { .. } => {
                told += 1;
                assert!(row.state == JobState::Running && row.cancel_requested_at.is_some(), "{row:?}");
            }
            other => panic!("{job}: {other:?}"),
        }
    }
    println!("{told} of 400 reached a holder");
    rows::conserved(&client).await;
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
