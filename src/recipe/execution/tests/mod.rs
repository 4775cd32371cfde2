//! Recipes on a memory store with paused time: workers are played by hand, one lease at a time, so that every order
//! of things is the test's own.

mod between;
mod handing_off;
mod random;
mod reopening;
mod replaying;
mod results;
mod schemas;
mod walking;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use leasehold_actors::{
    clock::Anchor,
    domain::{
        CommandId, Failure, JobDefinition, JobId, JobState, Namespace, NewJob, ProcessId, RawJson,
        RecipeSpec, RetryPolicy, WorkerId, execution::Allocation,
    },
    error::StoreError,
    fence::{Terms, Watch},
    ports::{
        Authority, ClaimAnswer, Claimant, End, Ended, Grant, LeaseStore as _, ListedAnswer, ListedClaim,
        OpenClaim, RecoverRequest, Renewal,
        recipe::{
            Event, EventBody, JsonText, NewEvent, RecipeJob, RecipeStore as _, Recorded, Refusal, TaskOutcome,
        },
    },
    testing::{JobView, MemoryStore, StoreHarness as _},
    work::{LeaseContext, WorkOutcome},
};
use serde::Deserialize;
use tokio::runtime::Handle;

use self::between::{Between, Do};
use super::{
    ExecutionHandoff, ExecutionRuntime, JobRuntime, OnHandoff, RecipeEngine, RecipeWorkerOptions, Reschedule,
    StoreRuntime, facts_of,
};
use crate::recipe::{
    bundle::Bundle,
    op::{Ops, Task, TaskError},
    ops::secrets::Secrets,
};

const LEASE: Duration = Duration::from_secs(900);

/// One run of an op.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    worker: String,
    path: String,
    key: String,
    epoch: i64,
}

type Ledger = Arc<Mutex<Vec<Run>>>;

/// A jobs service, and everything that ops did.
struct Bed {
    store: MemoryStore,
    ledger: Ledger,
}

/// A worker that is played by hand.
struct Worker {
    engine: RecipeEngine,
    owner: Claimant,
    allocation: Allocation,
    handoffs: Arc<Mutex<Vec<ExecutionHandoff>>>,
}

/// One lease of a job, from its claim to its end.
#[derive(Debug)]
struct Turn {
    outcome: WorkOutcome,
    /// None where nothing was reported.
    ended: Option<Ended>,
}

/// What the op `work` is asked for.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    /// Fails so many attempts.
    fails: i32,
    code: Option<String>,
    /// Fails inside this occurrence.
    fails_in: Option<String>,
    /// Takes so long.
    takes_ms: u64,
    /// Takes its time only when this occurrence runs for the first time.
    slow_once: bool,
    /// Fails when this occurrence runs for the first so many times.
    breaks: usize,
    /// Gives this.
    give: Option<serde_json::Value>,
    /// Changes what later tasks need.
    ask: Option<serde_json::Value>,
    /// Gives so many bytes.
    bytes: usize,
    /// Is not looked at.
    note: Option<serde_json::Value>,
}

impl Bed {
    fn new() -> Self {
        Self { store: MemoryStore::new(), ledger: Ledger::default() }
    }

    /// A worker with the op `work`, and with these facts.
    fn worker(&self, name: &str, allocation: &str) -> Worker {
        let runtime = Arc::new(StoreRuntime::new(Arc::new(self.store.clone())));
        self.worker_on(runtime, name, allocation, &self.ops(name))
    }

    fn worker_on(&self, runtime: Arc<dyn JobRuntime>, name: &str, allocation: &str, ops: &Ops) -> Worker {
        let mut facts = Allocation::default();
        for (fact, text) in allocation.split(',').filter_map(|pair| pair.split_once('=')) {
            let fact = leasehold_actors::domain::execution::Fact::ALL
                .into_iter()
                .find(|known| known.as_str() == fact)
                .expect("a fact");
            facts.set(fact, text).expect("a value of that fact");
        }
        let handoffs = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&handoffs);
        let on_handoff: OnHandoff =
            Arc::new(move |handoff: &ExecutionHandoff| told.lock().unwrap().push(handoff.clone()));
        let runtime = ExecutionRuntime::new(runtime, facts.clone(), Arc::clone(&on_handoff));
        let options = RecipeWorkerOptions {
            stage_execution: Some(runtime.stage()),
            wrap_task_worker: Some(runtime.wrap_task_worker()),
            allocation: facts.clone(),
            on_handoff,
        };
        let secrets = Secrets::of(BTreeMap::from([("TOKEN".to_owned(), "s3cret-value".to_owned())]));
        let engine = RecipeEngine::new(Arc::new(runtime), options, ops, Arc::new(secrets), Handle::current())
            .expect("the options are the runtime's own");
        let owner = Claimant {
            namespace: Namespace::default(),
            worker: WorkerId::new(name).expect("a plain name"),
            process: ProcessId::generate(),
        };
        Worker { engine, owner, allocation: facts, handoffs }
    }

    /// The op `work`: it notes every run, and holds that no recorded success ever runs again.
    fn ops(&self, worker: &str) -> Ops {
        let (store, ledger, worker) = (self.store.clone(), Arc::clone(&self.ledger), worker.to_owned());
        let mut ops = Ops::new();
        let work = move |task: Task| {
            let (store, ledger, worker) = (store.clone(), Arc::clone(&ledger), worker.clone());
            async move {
                let events = log(&store, task.job).await;
                let reopened = |ordinal: i64| {
                    events.iter().any(|event| {
                        matches!(&event.body, EventBody::Reopened { again }
                            if again.iter().any(|(first, last)| (*first..=*last).contains(&ordinal)))
                    })
                };
                let recorded = events.iter().find(|event| {
                    event.path == task.path
                        && !reopened(event.ordinal)
                        && matches!(
                            event.body,
                            EventBody::Task { outcome: TaskOutcome::Succeeded { .. }, .. }
                        )
                });
                assert_eq!(recorded, None, "{} runs again", task.path);
                ledger.lock().unwrap().push(Run {
                    worker,
                    path: task.path.clone(),
                    key: task.idempotency_key.clone(),
                    epoch: task.epoch.0,
                });
                let wanted: Wanted = task.input()?;
                let runs = ledger.lock().unwrap().iter().filter(|run| run.path == task.path).count();
                let takes = if wanted.slow_once && runs > 1 { 0 } else { wanted.takes_ms };
                if let Some(ask) = &wanted.ask {
                    task.context.suspend_execution(&ask.to_string())?;
                }
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(takes)) => {}
                    stop = task.context.cancelled() => {
                        return Err(TaskError::system("stopped", format!("{stop:?}")));
                    }
                }
                let inside = wanted.fails_in.is_some_and(|outer| task.path.starts_with(&outer));
                if inside || task.attempt <= wanted.fails || runs <= wanted.breaks {
                    let code = wanted.code.unwrap_or_else(|| "broken".to_owned());
                    return Err(TaskError::user(code, "as asked"));
                }
                if wanted.bytes > 0 {
                    return Ok(format!("\"{}\"", "x".repeat(wanted.bytes - 2)).into());
                }
                Ok(wanted.give.map_or_else(|| JsonText::from("null"), |give| give.to_string().into()))
            }
        };
        ops.register_fn("work", work).expect("a good name");
        ops
    }

    /// Submits a recipe of one file.
    async fn submit(&self, yaml: &str) -> JobId {
        self.submit_with(yaml, |_, _| {}).await
    }

    async fn submit_with(&self, yaml: &str, change: impl FnOnce(&mut RecipeSpec, &mut NewJob)) -> JobId {
        let bundle = Bundle::new("r.yaml", BTreeMap::from([("r.yaml".to_owned(), yaml.to_owned())]));
        if let Err(mistakes) = crate::recipe::compile(&bundle) {
            panic!("{mistakes}");
        }
        let mut spec = RecipeSpec {
            recipe: "r".to_owned(),
            job_type: "recipe".to_owned(),
            language: bundle.language,
            digest: bundle.digest(),
            bundle: RawJson::new(bundle.to_json()).expect("a bundle is JSON"),
            inputs: RawJson::default(),
            require: RawJson::default(),
        };
        let mut job = NewJob::ad_hoc(JobDefinition::Handler { name: String::new() });
        change(&mut spec, &mut job);
        job.definition = Some(JobDefinition::Recipe(spec));
        self.store.submit(&job).await
    }

    /// Lets time pass until the job is due, and lets this worker claim it. None when the claim leaves it out.
    async fn claim(&self, worker: &Worker) -> Option<Arc<Grant>> {
        self.store.dispatch(&Namespace::default(), 100).await.expect("the memory store answers");
        let request = OpenClaim {
            owner: worker.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            routes: worker.engine.routes("recipe").collect(),
            limit: 1,
            lease: LEASE,
            facts: Some(Arc::new(facts_of(&worker.allocation))),
        };
        let answer = self.store.claim(&request).await.expect("the memory store answers");
        answer.grants.into_iter().next().map(Arc::new)
    }

    /// One lease: claimed, run, and reported as a LeaseActor does.
    async fn turn(&self, worker: &Worker) -> Option<Turn> {
        let grant = self.claim(worker).await?;
        let (lease, _watch) = self.lease(&grant);
        let outcome = worker.engine.run(&grant, &lease).await;
        Some(self.report(&grant, &lease, outcome).await)
    }

    fn lease(&self, grant: &Arc<Grant>) -> (LeaseContext, Watch) {
        let watch = Watch::unfenced(Terms {
            job: grant.authority.job,
            epoch: grant.authority.epoch,
            deadline: Anchor::now().after(LEASE),
            lease: LEASE,
            stop_grace: Duration::from_secs(5),
        });
        (LeaseContext::new(Arc::clone(grant), self.store.port(), &watch), watch)
    }

    async fn report(&self, grant: &Grant, lease: &LeaseContext, outcome: WorkOutcome) -> Turn {
        let defaults = RetryPolicy { max_system: Some(3), ..RetryPolicy::default() };
        let end = match outcome.clone() {
            WorkOutcome::Completed { exit_code, output } => End::Complete { exit_code, output },
            WorkOutcome::Failed(failure) => End::Fail { failure, defaults },
            WorkOutcome::FailedForGood(failure) => End::FailForGood { failure },
            WorkOutcome::GoesOn { end } => *end,
            WorkOutcome::Stopped => End::Release { delay: Duration::ZERO, reason: "drain" },
            WorkOutcome::Abandoned => return Turn { outcome, ended: None },
        };
        let command = lease.pledged().unwrap_or_else(CommandId::generate);
        let ended = self.store.end(&grant.authority, command, &end).await.expect("it answers");
        Turn { outcome, ended: Some(ended) }
    }

    /// Turns of one worker, over waits, until the job has ended.
    async fn finish(&self, worker: &Worker, job: JobId) -> JobView {
        for _ in 0..200 {
            let view = self.view(job).await;
            if view.state.is_terminal() {
                return view;
            }
            if self.turn(worker).await.is_none() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        panic!("the job does not end: {:?}", self.view(job).await);
    }

    /// Recovers a lease whose holder is gone.
    async fn recover(&self, worker: &Worker, job: JobId) {
        self.store.expire(job).await;
        let request = RecoverRequest {
            owner: worker.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            limit: 10,
            lease: LEASE,
            running_here: Arc::new([]),
        };
        let takeovers = self.store.recover(&request).await.expect("it answers").takeovers;
        let authority = &takeovers.first().expect("one lease has expired").grant.authority;
        let end = End::Reschedule {
            route: None,
            delay: Duration::ZERO,
            payload: None,
            wake: Vec::new(),
            publish: None,
        };
        self.store.end(authority, CommandId::generate(), &end).await.expect("it answers");
    }

    async fn view(&self, job: JobId) -> JobView {
        self.store.job(&Namespace::default(), job).await.expect("the job is there")
    }

    async fn log(&self, job: JobId) -> Vec<Event> {
        log(&self.store, job).await
    }

    fn runs(&self) -> Vec<Run> {
        self.ledger.lock().unwrap().clone()
    }

    /// The paths that ran, with the worker, in order.
    fn ran(&self) -> Vec<String> {
        self.runs().iter().map(|run| format!("{} on {}", run.path, run.worker)).collect()
    }
}

async fn log(store: &MemoryStore, job: JobId) -> Vec<Event> {
    store.events(&Namespace::default(), job, 0).await.expect("the memory store answers")
}

/// The output of a completed job.
fn output(view: &JobView) -> &str {
    assert_eq!(view.state, JobState::Completed, "{view:?}");
    view.output.as_deref().expect("a recipe has an output")
}
