//! Workflows: what raises the generation, and what that does to the runs that were scheduled before.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use leasehold::{
    Client,
    postgres::{
        PgStore,
        read::{JobFilter, JobRow},
        submit::SubmitError,
        workflow::{WorkflowChanged, WorkflowError, WorkflowState},
    },
    protocol::domain::{JobId, JobState, Namespace, NewJob},
    submission::document::WorkflowDocument,
};

use crate::support::{database::TestDatabase, eventually::eventually, rows};

fn namespace() -> Namespace {
    Namespace::default()
}

async fn apply(store: &PgStore, yaml: &str) -> WorkflowChanged {
    let document = WorkflowDocument::parse_all(yaml, &namespace()).unwrap().remove(0);
    store.workflow_apply(&document).await.unwrap()
}

async fn run(store: &PgStore, name: &str) -> JobId {
    store.workflow_trigger(&namespace(), name).await.unwrap().job
}

async fn row(store: &PgStore, job: JobId) -> JobRow {
    store.show_job(&namespace(), job).await.unwrap().expect("the job exists").row
}

const V1: &str = "name: nightly\nhandler: report\npayload: {a: 1}\n";
const V2: &str = "name: nightly\nhandler: report\npayload: {a: 2}\n";

#[tokio::test]
async fn an_identical_document_changes_nothing_and_any_other_is_a_new_generation() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    assert_eq!(apply(&store, V1).await, WorkflowChanged::Created { generation: 1 });
    let xmin = "select xmin::text from leasehold.workflows";
    let before: String = client.query_one(xmin, &[]).await.unwrap().get(0);
    assert_eq!(
        apply(&store, &format!("# a comment\n{V1}")).await,
        WorkflowChanged::Unchanged { generation: 1 }
    );
    let after: String = client.query_one(xmin, &[]).await.unwrap().get(0);
    // The row was locked, not written: no version of it was made.
    let versions: i64 =
        client.query_one("select count(*) from leasehold.workflow_history", &[]).await.unwrap().get(0);
    assert_eq!((before, versions), (after, 1));
    let mut generation = 1;
    for change in [
        "payload: {a: 1.0}",
        "priority: 1",
        "overlap: serial",
        "overlap: allow(1)",
        "timeout: 1s",
        "retry: {max_user: 2}",
    ] {
        generation += 1;
        let yaml = format!("name: nightly\nhandler: report\n{change}\n");
        assert_eq!(
            apply(&store, &yaml).await,
            WorkflowChanged::Changed { generation, superseded: 0, moved: 0 },
            "{change}"
        );
        assert_eq!(apply(&store, &yaml).await, WorkflowChanged::Unchanged { generation }, "{change}");
    }
    let shown = store.workflow_show(&namespace(), "nightly").await.unwrap().unwrap();
    assert_eq!((shown.row.generation, shown.retry.max_user), (generation, Some(2)));
    let history: Vec<_> = shown.history.iter().map(|h| (h.generation, h.change.as_str())).collect();
    assert_eq!((history[0], history[6]), ((7, "edited"), (1, "created")));
    assert!(store.workflow_show(&Namespace::new("other").unwrap(), "nightly").await.unwrap().is_none());
}

#[tokio::test]
async fn an_edit_ends_what_was_scheduled_before_and_leaves_what_runs() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    apply(&store, V1).await;
    let (queued, running) = (run(&store, "nightly").await, run(&store, "nightly").await);
    let later = NewJob {
        run_at: Some(chrono::Utc::now() + chrono::Duration::hours(1)),
        ..NewJob::of_workflow("nightly")
    };
    let pending = store.submit(&later).await.unwrap().job;
    let bystander = store.submit(&NewJob::handler("report", &1)).await.unwrap().job;
    rows::hold(&client, running, 30.0).await;
    assert_eq!(apply(&store, V2).await, WorkflowChanged::Changed { generation: 2, superseded: 2, moved: 0 });
    for job in [queued, pending] {
        let row = row(&store, job).await;
        let failure = row.failure.expect("a reason");
        assert_eq!((row.state, failure.code.as_deref()), (JobState::Canceled, Some("superseded")));
    }
    assert_eq!(row(&store, running).await.state, JobState::Running);
    assert_eq!(row(&store, bystander).await.state, JobState::Queued);
    let next = run(&store, "nightly").await;
    let shown = store.show_job(&namespace(), next).await.unwrap().unwrap();
    assert_eq!((shown.row.generation, shown.payload.get()), (2, r#"{"a":2}"#));
    rows::conserved(&client).await;
}

#[tokio::test]
async fn a_pause_ends_what_was_scheduled_and_holds_what_is_submitted_until_the_resume() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    apply(&store, V1).await;
    let before = run(&store, "nightly").await;
    let paused = store.workflow_pause(&namespace(), "nightly").await.unwrap();
    assert_eq!(paused, WorkflowChanged::Changed { generation: 2, superseded: 1, moved: 0 });
    let again = store.workflow_pause(&namespace(), "nightly").await.unwrap();
    assert_eq!(again, WorkflowChanged::Unchanged { generation: 2 });
    assert_eq!(row(&store, before).await.failure.unwrap().code.as_deref(), Some("superseded"));

    let hour = chrono::Utc::now() + chrono::Duration::hours(1);
    let later = NewJob { run_at: Some(hour), ..NewJob::of_workflow("nightly") };
    let (due, later) = (run(&store, "nightly").await, store.submit(&later).await.unwrap().job);
    for job in [due, later] {
        let row = row(&store, job).await;
        assert_eq!((row.state, row.due_at, row.generation), (JobState::Pending, None, 2), "held");
        let why = store.why(&namespace(), job).await.unwrap().unwrap();
        assert!(why.contains("paused"), "{why}");
    }
    // An edit does not resume, and leaves what is held to the resume, which stamps it.
    assert_eq!(apply(&store, V2).await, WorkflowChanged::Changed { generation: 3, superseded: 0, moved: 0 });
    let shown = store.workflow_show(&namespace(), "nightly").await.unwrap().unwrap();
    assert_eq!((shown.row.state, shown.jobs.pending), (WorkflowState::Paused, 2));
    let resumed = store.workflow_resume(&namespace(), "nightly").await.unwrap();
    assert_eq!(resumed, WorkflowChanged::Changed { generation: 3, superseded: 0, moved: 2 });
    let (now_due, now_later) = (row(&store, due).await, row(&store, later).await);
    assert_eq!((now_due.state, now_due.generation, now_due.dispatch_attempt), (JobState::Queued, 3, 1));
    assert_eq!(
        (now_later.state, now_later.generation, now_later.dispatch_attempt),
        (JobState::Pending, 3, 0)
    );
    assert!((now_later.due_at.unwrap() - hour).num_milliseconds().abs() < 5, "its own time");
    let stamped = "select count(*) from leasehold.jobs where generation = 3";
    assert_eq!(client.query_one(stamped, &[]).await.unwrap().get::<_, i64>(0), 2);

    // A terminate ends what is held, too.
    store.workflow_pause(&namespace(), "nightly").await.unwrap();
    let held = run(&store, "nightly").await;
    store.workflow_terminate(&namespace(), "nightly").await.unwrap();
    assert_eq!(row(&store, held).await.state, JobState::Canceled);
    rows::conserved(&client).await;
}

#[tokio::test]
async fn a_terminate_is_for_good() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    apply(&store, V1).await;
    let (queued, running, failed) =
        (run(&store, "nightly").await, run(&store, "nightly").await, run(&store, "nightly").await);
    rows::hold(&client, running, 30.0).await;
    rows::hold(&client, failed, 30.0).await;
    rows::fail(&client, failed, 1).await;
    let ended = store.workflow_terminate(&namespace(), "nightly").await.unwrap();
    assert_eq!(ended, WorkflowChanged::Changed { generation: 2, superseded: 1, moved: 0 });
    assert_eq!(row(&store, queued).await.state, JobState::Canceled);
    assert_eq!(row(&store, running).await.state, JobState::Running);
    let again = store.workflow_terminate(&namespace(), "nightly").await.unwrap();
    assert_eq!(again, WorkflowChanged::Unchanged { generation: 2 });
    let document = WorkflowDocument::parse_all(V2, &namespace()).unwrap().remove(0);
    for refused in [
        store.workflow_apply(&document).await.unwrap_err(),
        store.workflow_pause(&namespace(), "nightly").await.unwrap_err(),
        store.workflow_resume(&namespace(), "nightly").await.unwrap_err(),
    ] {
        assert!(matches!(refused, WorkflowError::Terminated { .. }), "{refused}");
    }
    let refused = store.workflow_trigger(&namespace(), "nightly").await.unwrap_err();
    assert!(matches!(refused, SubmitError::WorkflowTerminated { .. }), "{refused}");
    let refused = store.retry_job(&namespace(), failed).await.unwrap();
    assert_eq!(refused, leasehold::postgres::retry::RetryAnswer::WorkflowTerminated);
}

#[tokio::test]
async fn adhoc_and_unknown_workflows_cannot_be_changed() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let document = WorkflowDocument {
        name: "adhoc".to_owned(),
        ..WorkflowDocument::parse_all(V1, &namespace()).unwrap().remove(0)
    };
    for refused in [
        store.workflow_apply(&document).await.unwrap_err(),
        store.workflow_pause(&namespace(), "adhoc").await.unwrap_err(),
        store.workflow_resume(&namespace(), "adhoc").await.unwrap_err(),
        store.workflow_terminate(&namespace(), "adhoc").await.unwrap_err(),
    ] {
        assert!(matches!(refused, WorkflowError::Reserved), "{refused}");
    }
    let refused = store.workflow_pause(&namespace(), "none").await.unwrap_err();
    assert!(matches!(refused, WorkflowError::NotFound { .. }), "{refused}");
}

/// A run is submitted before a change of its workflow, or after it, never half: the submits and the changes
/// below race, and no run of an older generation may be left to run.
#[tokio::test]
async fn no_run_slips_past_a_change_of_its_workflow() {
    let db = TestDatabase::create().await;
    let settings = leasehold::config::DatabaseSettings {
        store_timeout: Duration::from_secs(30),
        pool_size: 16,
        ..db.settings()
    };
    let store = PgStore::connect(&settings, tokio::runtime::Handle::current()).await.unwrap();
    let client = db.client().await;
    apply(&store, V1).await;
    let submits = join_all((0..400).map(|n| {
        let store = store.clone();
        async move {
            if n % 10 == 0 {
                store.submit_bulk(vec![NewJob::of_workflow("nightly"); 3]).await.map(|_| ())
            } else {
                store.submit(&NewJob::of_workflow("nightly")).await.map(|_| ())
            }
        }
    }));
    let changes = async {
        for n in 0..20 {
            match n % 4 {
                0 => {
                    apply(&store, V2).await;
                }
                1 => {
                    store.workflow_pause(&namespace(), "nightly").await.unwrap();
                }
                2 => {
                    apply(&store, V1).await;
                }
                _ => {
                    store.workflow_resume(&namespace(), "nightly").await.unwrap();
                }
            }
        }
    };
    let (submitted, ()) = tokio::join!(submits, changes);
    assert!(submitted.iter().all(Result::is_ok));
    let stale: i64 = client
        .query_one(
            "select count(*) from (select generation, workflow from leasehold.ready union all
                 select generation, workflow from leasehold.waiting where held_due_at is null) j
             join leasehold.workflows w on w.name = j.workflow where j.generation <> w.generation",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(stale, 0, "runs of an older generation that may still run");
    rows::conserved(&client).await;
    let jobs: i64 = client.query_one("select count(*) from leasehold.jobs", &[]).await.unwrap().get(0);
    assert_eq!(jobs, 360 + 40 * 3);
}

/// An uncommitted submit in somebody's transaction delays the change, and is then treated by it.
#[tokio::test]
async fn a_change_waits_for_submits_that_are_not_committed_yet() {
    let db = TestDatabase::create().await;
    let store = Arc::new(db.store().await);
    let (mut theirs, watcher) = (db.client().await, db.client().await);
    apply(&store, V1).await;
    let transaction = theirs.transaction().await.unwrap();
    let job = Client::submit(&transaction, NewJob::of_workflow("nightly")).await.unwrap().job;
    let edit = tokio::spawn({
        let store = Arc::clone(&store);
        async move { apply(&store, V2).await }
    });
    eventually(Duration::from_secs(60), "the edit waits", async || {
        let waiting =
            "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
        watcher.query_opt(waiting, &[]).await.unwrap()
    })
    .await;
    transaction.commit().await.unwrap();
    assert_eq!(edit.await.unwrap(), WorkflowChanged::Changed { generation: 2, superseded: 1, moved: 0 });
    assert_eq!(row(&store, job).await.state, JobState::Canceled);
}

#[tokio::test]
async fn workflows_are_listed_by_name_in_pages() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    for n in 0..7 {
        apply(&store, &format!("name: w{n}\nhandler: x\noverlap: allow({})\n", n + 1)).await;
    }
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = store.workflow_list(&namespace(), 3, after.as_deref()).await.unwrap();
        assert!(page.items.len() <= 3);
        names.extend(page.items.iter().map(|row| (row.name.clone(), row.overlap.clone())));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names.len(), 7);
    assert_eq!(names[6], ("w6".to_owned(), "allow(7)".to_owned()));
    run(&store, "w3").await;
    let shown = store.workflow_show(&namespace(), "w3").await.unwrap().unwrap();
    assert_eq!((shown.jobs.queued, shown.jobs.pending, shown.jobs.running), (1, 0, 0));
    let filter = JobFilter { workflow: Some("w3".to_owned()), ..JobFilter::all(namespace()) };
    assert_eq!(store.list_jobs(&filter).await.unwrap().items.len(), 1);
    let json = serde_json::to_value(&shown).unwrap();
    assert_eq!((json["name"].as_str(), json["state"].as_str()), (Some("w3"), Some("ACTIVE")));
    assert_eq!(json["definition"]["handler"], "x");
}
