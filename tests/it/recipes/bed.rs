//! A jobs service, in memory or on PostgreSQL, and workers that are played by hand, one lease at a time, so that every
//! order of things is the test's own.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::recipe::{
    bundle::Bundle,
    execution::{
        ExecutionHandoff, ExecutionRuntime, JobRuntime, OnHandoff, RecipeEngine, RecipeWorkerOptions,
        StoreRuntime, facts_of,
    },
    op::{Ops, Task, TaskError},
    ops::secrets::Secrets,
};
use leasehold_actors::{
    clock::Anchor,
    domain::{
        CommandId, JobDefinition, JobId, JobState, Namespace, NewJob, ProcessId, RawJson, RecipeSpec,
        RetryPolicy, WorkerId,
        execution::{Allocation, Fact},
    },
    fence::{Terms, Watch},
    ports::{
        Claimant, End, Ended, Grant, OpenClaim, RecoverRequest,
        recipe::{Event, EventBody, JsonText, RecipeStore, TaskOutcome},
    },
    testing::{JobView, MemoryStore, StoreHarness, crash_points::CrashPoints},
    work::{LeaseContext, WorkOutcome},
};
use serde::Deserialize;
use tokio::runtime::Handle;

use crate::postgres::harness::PgHarness;

const LEASE: Duration = Duration::from_secs(900);

/// One run of an op.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub worker: String,
    pub path: String,
    pub key: String,
}

/// A jobs service, and everything that ops did.
pub struct Bed {
    pub harness: Arc<dyn StoreHarness>,
    ledger: Arc<Mutex<Vec<Run>>>,
    in_memory: bool,
    /// How long the leases of its workers last; they are not renewed.
    pub lease: Duration,
}

/// A worker that is played by hand.
pub struct Worker {
    engine: RecipeEngine,
    owner: Claimant,
    allocation: Allocation,
    handoffs: Arc<Mutex<Vec<ExecutionHandoff>>>,
}

impl Worker {
    /// What it was told of handoffs.
    pub fn handoffs(&self) -> Vec<ExecutionHandoff> {
        self.handoffs.lock().unwrap().clone()
    }
}

/// One lease of a job, from its claim to its end.
#[derive(Debug)]
pub struct Turn {
    pub outcome: WorkOutcome,
    /// None where nothing was reported.
    pub ended: Option<Ended>,
}

/// What the op `work` is asked for.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    /// Fails so many attempts.
    fails: i32,
    /// Fails inside this occurrence.
    fails_in: Option<String>,
    /// Takes so long.
    takes_ms: u64,
    /// Gives this.
    give: Option<serde_json::Value>,
    /// Changes what later tasks need.
    ask: Option<serde_json::Value>,
    /// Gives so many bytes.
    bytes: usize,
    /// Gives this text as it is; `<NUL>` stands for what no input can hold.
    raw: Option<String>,
    /// What it says when it fails.
    message: Option<String>,
    /// Says so many bytes more when it fails.
    message_bytes: usize,
    panics: bool,
    /// Is not looked at.
    note: Option<serde_json::Value>,
}

impl Bed {
    /// In memory; with paused time it moves only when everything waits.
    pub fn memory() -> Self {
        Self { in_memory: true, ..Self::of(Arc::new(MemoryStore::new())) }
    }

    /// In a database of its own.
    pub async fn postgres() -> Self {
        Self::of(Arc::new(PgHarness::create().await))
    }

    /// In a database of its own, with a session beside it.
    pub async fn postgres_and_client() -> (Self, Arc<PgHarness>) {
        let harness = Arc::new(PgHarness::create().await);
        (Self::of(Arc::clone(&harness) as Arc<dyn StoreHarness>), harness)
    }

    fn of(harness: Arc<dyn StoreHarness>) -> Self {
        Self { harness, ledger: Arc::default(), in_memory: false, lease: LEASE }
    }

    /// The same jobs service, without what was done before.
    pub fn anew(&self) -> Self {
        Self { in_memory: self.in_memory, lease: self.lease, ..Self::of(Arc::clone(&self.harness)) }
    }

    /// Whether it costs no time to let time pass.
    pub fn is_memory(&self) -> bool {
        self.in_memory
    }

    /// A worker with the op `work`, and with these facts: `cpu=2,platform=linux/arm64`.
    pub fn worker(&self, name: &str, allocation: &str) -> Worker {
        self.worker_with(name, allocation, &self.ops(name, &["work"]), &CrashPoints::recording())
    }

    /// The same behind points.
    pub fn worker_behind(&self, points: &CrashPoints, name: &str, allocation: &str) -> Worker {
        self.worker_with(name, allocation, &self.ops(name, &["work"]), points)
    }

    /// A worker with these ops.
    pub fn worker_with(&self, name: &str, allocation: &str, ops: &Ops, points: &CrashPoints) -> Worker {
        let store = points.recipes(self.harness.recipes());
        self.worker_on(Arc::new(StoreRuntime::new(store)), name, allocation, ops)
    }

    /// A worker on this runtime.
    pub fn worker_on(&self, inner: Arc<dyn JobRuntime>, name: &str, allocation: &str, ops: &Ops) -> Worker {
        let mut facts = Allocation::default();
        for (fact, text) in allocation.split(',').filter_map(|pair| pair.split_once('=')) {
            let fact = Fact::ALL.into_iter().find(|known| known.as_str() == fact).expect("a fact");
            facts.set(fact, text).expect("a value of that fact");
        }
        let handoffs = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&handoffs);
        let on_handoff: OnHandoff =
            Arc::new(move |handoff: &ExecutionHandoff| told.lock().unwrap().push(handoff.clone()));
        let runtime = ExecutionRuntime::new(inner, facts.clone(), Arc::clone(&on_handoff));
        let options = RecipeWorkerOptions {
            stage_execution: Some(runtime.stage()),
            wrap_task_worker: Some(runtime.wrap_task_worker()),
            allocation: facts.clone(),
            on_handoff,
        };
        let secrets = Arc::new(Secrets::default());
        let engine = RecipeEngine::new(Arc::new(runtime), options, ops, secrets, Handle::current())
            .expect("the options are the runtime's own");
        let owner = Claimant {
            namespace: Namespace::default(),
            worker: WorkerId::new(name).expect("a plain name"),
            process: ProcessId::generate(),
        };
        Worker { engine, owner, allocation: facts, handoffs }
    }

    /// Ops of these names, all the same: each notes every run, and holds that no recorded success ever runs again.
    pub fn ops(&self, worker: &str, names: &[&str]) -> Ops {
        let mut ops = Ops::new();
        for name in names {
            let store = self.harness.recipes();
            let (ledger, worker) = (Arc::clone(&self.ledger), worker.to_owned());
            let work = move |task: Task| work(Arc::clone(&store), Arc::clone(&ledger), worker.clone(), task);
            ops.register_fn(*name, work).expect("a good name");
        }
        ops
    }

    /// Submits a recipe of one file.
    pub async fn submit(&self, yaml: &str) -> JobId {
        self.submit_with(yaml, |_, _| {}).await
    }

    pub async fn submit_with(&self, yaml: &str, change: impl FnOnce(&mut RecipeSpec, &mut NewJob)) -> JobId {
        let mut spec = spec_of(yaml);
        let mut job = NewJob::ad_hoc(JobDefinition::Handler { name: "none".to_owned() });
        change(&mut spec, &mut job);
        job.definition = Some(JobDefinition::Recipe(spec));
        self.harness.submit(&job).await
    }

    /// Lets this worker claim what is due. None when the claim leaves it out.
    pub async fn claim(&self, worker: &Worker) -> Option<Arc<Grant>> {
        let store = self.harness.store();
        store.dispatch(&Namespace::default(), 100).await.expect("the store answers");
        let request = OpenClaim {
            owner: worker.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            routes: worker.engine.routes("recipe").collect(),
            limit: 1,
            lease: self.lease,
            facts: Some(Arc::new(facts_of(&worker.allocation))),
        };
        let answer = store.claim(&request).await.expect("the store answers");
        answer.grants.into_iter().next().map(Arc::new)
    }

    /// One lease: claimed, run, and reported as a LeaseActor does.
    pub async fn turn(&self, worker: &Worker) -> Option<Turn> {
        let grant = self.claim(worker).await?;
        Some(self.run(worker, &grant, std::future::pending()).await.expect("nobody dies"))
    }

    /// The rest of a lease; none when the worker's death comes first: then everything that it had begun is gone.
    pub async fn run(
        &self,
        worker: &Worker,
        grant: &Arc<Grant>,
        death: impl Future<Output = ()>,
    ) -> Option<Turn> {
        let watch = Watch::unfenced(Terms {
            job: grant.authority.job,
            epoch: grant.authority.epoch,
            deadline: Anchor::now().after(self.lease),
            lease: self.lease,
            stop_grace: Duration::from_secs(5),
        });
        let lease = LeaseContext::new(Arc::clone(grant), self.harness.store(), &watch);
        let outcome = tokio::select! {
            biased;
            outcome = worker.engine.run(grant, &lease) => outcome,
            () = death => return None,
        };
        Some(self.report(grant, &lease, outcome).await)
    }

    async fn report(&self, grant: &Grant, lease: &LeaseContext, outcome: WorkOutcome) -> Turn {
        let end = match outcome.clone() {
            WorkOutcome::Completed { exit_code, output } => End::Complete { exit_code, output },
            WorkOutcome::Failed(failure) => End::Fail { failure, defaults: defaults() },
            WorkOutcome::FailedForGood(failure) => End::FailForGood { failure },
            WorkOutcome::GoesOn { end } => *end,
            WorkOutcome::Stopped => End::Release { delay: Duration::ZERO, reason: "drain" },
            WorkOutcome::Abandoned => return Turn { outcome, ended: None },
        };
        let command = lease.pledged().unwrap_or_else(CommandId::generate);
        let ended = self.harness.store().end(&grant.authority, command, &end).await.expect("it answers");
        Turn { outcome, ended: Some(ended) }
    }

    /// Turns of these workers, over waits, until the job has ended.
    pub async fn finish(&self, workers: &[&Worker], job: JobId) -> JobView {
        for _ in 0..400 {
            let view = self.view(job).await;
            if view.state.is_terminal() {
                return view;
            }
            let mut moved = false;
            for worker in workers {
                moved |= self.turn(worker).await.is_some();
            }
            if !moved {
                crate::support::eventually::pass(Duration::from_millis(50)).await;
            }
        }
        panic!("the job does not end: {:?}", self.view(job).await);
    }

    /// Recovers a lease whose holder is gone; the job is due at once.
    pub async fn recover(&self, worker: &Worker, job: JobId) {
        self.harness.expire(job).await;
        let request = RecoverRequest {
            owner: worker.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            limit: 10,
            lease: LEASE,
            running_here: Arc::new([]),
        };
        let store = self.harness.store();
        let takeovers = store.recover(&request).await.expect("it answers").takeovers;
        let authority = &takeovers.first().expect("one lease has expired").grant.authority;
        let end = End::Lost { defaults: defaults(), loss_limit: 100, message: "died".to_owned() };
        store.end(authority, CommandId::generate(), &end).await.expect("it answers");
        if self.view(job).await.state == JobState::Pending {
            self.harness.make_due(job).await;
        }
    }

    pub async fn view(&self, job: JobId) -> JobView {
        self.harness.job(&Namespace::default(), job).await.expect("the job is there")
    }

    /// The whole log.
    pub async fn log(&self, job: JobId) -> Vec<Event> {
        log(&*self.harness.recipes(), job).await
    }

    pub async fn payload(&self, job: JobId) -> String {
        let store = self.harness.recipes();
        let job = store.recipe_job(&Namespace::default(), job).await.expect("it answers");
        job.expect("the job is there").payload.to_string()
    }

    pub fn runs(&self) -> Vec<Run> {
        self.ledger.lock().unwrap().clone()
    }

    /// The paths that ran, with the worker, in order.
    pub fn ran(&self) -> Vec<String> {
        self.runs().iter().map(|run| format!("{} on {}", run.path, run.worker)).collect()
    }
}

fn defaults() -> RetryPolicy {
    RetryPolicy { max_system: Some(20), backoff_ms: Some(0), ..RetryPolicy::default() }
}

/// A recipe of one file, as it is submitted.
pub fn spec_of(yaml: &str) -> RecipeSpec {
    let bundle = Bundle::new("r.yaml", BTreeMap::from([("r.yaml".to_owned(), yaml.to_owned())]));
    if let Err(mistakes) = leasehold::recipe::compile(&bundle) {
        panic!("{mistakes}");
    }
    RecipeSpec {
        recipe: "r".to_owned(),
        job_type: RecipeSpec::DEFAULT_JOB_TYPE.to_owned(),
        language: bundle.language,
        digest: bundle.digest(),
        bundle: RawJson::new(bundle.to_json()).expect("a bundle is JSON"),
        inputs: RawJson::default(),
        require: RawJson::default(),
    }
}

/// The output of a completed job.
pub fn output(view: &JobView) -> &str {
    assert_eq!(view.state, JobState::Completed, "{view:?}");
    view.output.as_deref().expect("a recipe has an output")
}

async fn log(store: &dyn RecipeStore, job: JobId) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let after = events.last().map_or(0, |event| event.ordinal);
        let page = store.events(&Namespace::default(), job, after).await.expect("it answers");
        if page.is_empty() {
            return events;
        }
        events.extend(page);
    }
}

async fn work(
    store: Arc<dyn RecipeStore>,
    ledger: Arc<Mutex<Vec<Run>>>,
    worker: String,
    task: Task,
) -> Result<JsonText, TaskError> {
    let recorded = log(&*store, task.job).await.into_iter().find(|event| {
        event.path == task.path
            && matches!(event.body, EventBody::Task { outcome: TaskOutcome::Succeeded { .. }, .. })
    });
    assert_eq!(recorded, None, "{} runs again", task.path);
    let run = Run { worker, path: task.path.clone(), key: task.idempotency_key.clone() };
    ledger.lock().unwrap().push(run);
    let wanted: Wanted = task.input()?;
    if let Some(ask) = &wanted.ask {
        task.context.suspend_execution(&ask.to_string())?;
    }
    tokio::select! {
        () = crate::support::eventually::pass(Duration::from_millis(wanted.takes_ms)) => {}
        stop = task.context.cancelled() => return Err(TaskError::system("stopped", format!("{stop:?}"))),
    }
    let inside = wanted.fails_in.is_some_and(|outer| task.path.starts_with(&outer));
    if inside || task.attempt <= wanted.fails {
        let message = wanted.message.unwrap_or_else(|| "as asked".to_owned()).replace("<NUL>", "\0");
        return Err(TaskError::user("broken", message + &"x".repeat(wanted.message_bytes)));
    }
    assert!(!wanted.panics, "as asked");
    if wanted.bytes > 0 {
        return Ok(format!("\"{}\"", "x".repeat(wanted.bytes - 2)).into());
    }
    if let Some(raw) = wanted.raw {
        return Ok(raw.replace("<NUL>", "\0").into());
    }
    Ok(wanted.give.map_or_else(|| JsonText::from("null"), |give| give.to_string().into()))
}
