//! RECIPE jobs on PostgreSQL, through workers that differ in what they have.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::{
    postgres::{PgStore, read::JobDetail},
    protocol::{
        domain::{JobDefinition, JobId, JobState, Namespace, NewJob, RawJson, RecipeSpec, execution::Fact},
        ports::recipe::{EventBody, NewSignal, RecipeStore as _, TaskOutcome},
    },
    recipe::{
        bundle::Bundle,
        op::{Ops, Task},
    },
    worker::WorkerBuilder,
};

use super::in_process::{Running, settings};
use crate::support::{database::TestDatabase, eventually::eventually};

/// Which path ran where.
type Ran = Arc<Mutex<Vec<(String, &'static str)>>>;

/// A worker with this platform and the op `note`, which gives back `give` and tells what it was asked for.
fn worker(database: &TestDatabase, name: &'static str, platform: &str, ran: &Ran) -> WorkerBuilder {
    let mut settings = settings();
    settings.allocation.set(Fact::Platform, platform).unwrap();
    let mut ops = Ops::new();
    let ran = Arc::clone(ran);
    let note = move |task: Task| {
        let ran = Arc::clone(&ran);
        async move {
            ran.lock().unwrap().push((task.path.clone(), name));
            let input: serde_json::Value = task.input()?;
            Ok(input["give"].to_string().into())
        }
    };
    ops.register_fn("note", note).unwrap();
    leasehold::Worker::builder().database_settings(database.settings()).settings(settings).recipes(ops)
}

fn new_job(yaml: &str) -> NewJob {
    let bundle = Bundle::new("r.yaml", BTreeMap::from([("r.yaml".to_owned(), yaml.to_owned())]));
    let spec = RecipeSpec {
        recipe: "r".to_owned(),
        job_type: RecipeSpec::DEFAULT_JOB_TYPE.to_owned(),
        language: bundle.language,
        digest: bundle.digest(),
        bundle: RawJson::new(bundle.to_json()).unwrap(),
        inputs: RawJson::default(),
        require: RawJson::default(),
    };
    NewJob::ad_hoc(JobDefinition::Recipe(spec))
}

async fn submit(store: &PgStore, yaml: &str) -> JobId {
    store.submit(&new_job(yaml)).await.unwrap().job
}

/// The job once it has ended. It goes through several hands: give it time.
async fn ended(store: &PgStore, job: JobId) -> JobDetail {
    eventually(Duration::from_secs(120), "the job ends", async || {
        let detail = store.show_job(&Namespace::default(), job).await.unwrap()?;
        detail.row.state.is_terminal().then_some(detail)
    })
    .await
}

/// E1, E2, E8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recipe_goes_from_amd64_to_arm64_and_back_each_task_once() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let ran = Ran::default();
    let amd = Running::start(worker(&database, "amd", "linux/amd64", &ran)).await;
    let arm = Running::start(worker(&database, "arm", "linux/arm64", &ran)).await;
    let yaml = r#"
id: r
execution: { platform: linux/amd64 }
sequence:
  - { id: first, op: note, inputs: { give: 123456789012345678901234567890 } }
  - id: inner
    execution_needs: { platform: linux/arm64 }
    parallel:
      - { id: a, op: note, inputs: { give: "${{ sequence.first.outputs }}" } }
      - { id: b, op: note, inputs: { give: b } }
  - { id: last, op: note, inputs: { give: "${{ sequence.inner.outputs.b }}" } }
"#;
    let job = submit(&store, yaml).await;
    let detail = ended(&store, job).await;
    assert_eq!(detail.row.state, JobState::Completed, "{detail:?}");
    assert_eq!(detail.row.attempt, 1, "a handoff is no attempt");
    let mut ran = ran.lock().unwrap().clone();
    ran[1..3].sort();
    let expected = [("first", "amd"), ("inner/a", "arm"), ("inner/b", "arm"), ("last", "amd")];
    assert_eq!(ran, expected.map(|(path, worker)| (path.to_owned(), worker)));
    let events = store.events(&Namespace::default(), job, 0).await.unwrap();
    assert_eq!(events.iter().map(|event| event.ordinal).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(events.iter().all(|event| {
        matches!(event.body, EventBody::Task { outcome: TaskOutcome::Succeeded { .. }, .. })
    }));
    amd.drain().await;
    arm.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recipe_that_waits_holds_no_worker_and_goes_on_at_its_signal() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let ran = Ran::default();
    let running = Running::start(worker(&database, "w", "linux/amd64", &ran)).await;
    let yaml = r#"
id: r
sequence:
  - { id: wait, op: wait_for_signal, inputs: { name: go } }
  - { id: then, op: note, inputs: { give: "${{ signal.by }}" } }
"#;
    let job = submit(&store, yaml).await;
    eventually(Duration::from_secs(60), "the job waits", async || {
        let row = store.show_job(&Namespace::default(), job).await.unwrap()?.row;
        (row.state == JobState::Pending && row.attempt == 1).then_some(())
    })
    .await;
    let signal = NewSignal { name: "go".to_owned(), data: r#"{"by":"me"}"#.to_owned(), key: None };
    store.send_signal(&Namespace::default(), job, &signal).await.unwrap();
    let detail = ended(&store, job).await;
    assert_eq!(detail.row.state, JobState::Completed, "{detail:?}");
    running.drain().await;
}

/// A payload that cannot be read is refused five times and fails the job as that. No refused lease is a crash: with two
/// losses allowed, and one SYSTEM failure, the job would otherwise have ended before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_refused_admissions_end_a_job_as_that_and_never_as_a_crash_loop() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let mut settings = settings();
    settings.lease = Duration::from_secs(2);
    settings.renew_interval = Duration::from_millis(400);
    settings.store_timeout = Duration::from_millis(500);
    settings.safety_margin = Duration::from_millis(200);
    settings.recovery_interval = Duration::from_millis(200);
    settings.loss_limit = 2;
    let ran = Ran::default();
    let running = Running::start(worker(&database, "w", "linux/amd64", &ran).settings(settings)).await;
    let mut new = new_job("id: r\nop: note\nwith: { give: 1 }\n");
    new.payload = r#"{"mine": 1.50, "execution": {"requirements": {}}}"#.to_owned();
    new.retry.max_system = Some(1);
    (new.retry.backoff_ms, new.retry.backoff_cap_ms) = (Some(1), Some(1));
    let job = store.submit(&new).await.unwrap().job;
    let detail = ended(&store, job).await;
    let failure = detail.row.failure.as_ref().expect("it failed");
    assert_eq!(failure.code.as_deref(), Some("bad_execution_payload"), "{detail:?}");
    let expired = detail.leases.iter().filter(|lease| lease.how == "expired").count();
    assert_eq!(expired, 4, "the refused leases run out: {detail:?}");
    assert_eq!((detail.losses, detail.failures.system), (0, 1), "{detail:?}");
    assert_eq!(detail.row.admission_refused.as_ref().map(|refused| refused.in_a_row), Some(5));
    assert_eq!(detail.payload.get(), r#"{"mine": 1.50, "execution": {"requirements": {}}}"#);
    assert!(ran.lock().unwrap().is_empty(), "nothing ran");
    running.drain().await;
}
