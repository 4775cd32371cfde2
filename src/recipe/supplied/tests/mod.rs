//! Supplied leases on a memory store with paused time, whose acquisition calls fail the test (E7).

mod acquireless;
mod ending;
mod losing;
mod refusing;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold_actors::{
    domain::{
        CommandId, JobDefinition, JobId, JobState, Namespace, NewJob, ProcessId, RawJson, RecipeSpec,
        RetryPolicy, Route, WorkerId, execution::Allocation,
    },
    ports::{Claimant, Grant, LeaseStore as _, OpenClaim},
    settings::LeaseTimings,
    testing::{JobView, MemoryStore, StoreHarness as _},
};
use tokio::{runtime::Handle, sync::Notify};

use self::acquireless::{Acquireless, Lose};
use super::{Capability, LeaseEvent, RunContext, RunEnd, RunRequest, RunStop, Supplied, run_here};
use crate::recipe::{
    bundle::Bundle,
    execution::{ExecutionRuntime, OnHandoff, RecipeEngine, RecipeWorkerOptions, StoreRuntime},
    op::{Ops, Task, TaskError},
    ops::secrets::Secrets,
};

const LEASE: Duration = Duration::from_secs(30);

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Runs a test as the arbiter of a system whose clock stands still until everybody waits for it.
fn paused<F: Future>(test: F) -> F::Output {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a test may have a runtime")
    };
    actix::System::with_tokio_rt(runtime).block_on(test)
}

/// A jobs service, somebody who acquires, and everything that ops did.
struct Bed {
    store: MemoryStore,
    net: Acquireless,
    owner: Claimant,
    runs: Arc<Mutex<Vec<String>>>,
    events: Arc<Mutex<Vec<LeaseEvent>>>,
    /// A task has begun that goes on until it is stopped.
    long_began: Arc<Notify>,
}

impl Bed {
    fn new() -> Self {
        let store = MemoryStore::new();
        Self {
            net: Acquireless::new(store.clone()),
            store,
            owner: Claimant {
                namespace: Namespace::default(),
                worker: WorkerId::new("supervisor").expect("a plain name"),
                process: ProcessId::generate(),
            },
            runs: Arc::default(),
            events: Arc::default(),
            long_began: Arc::default(),
        }
    }

    async fn submit(&self, yaml: &str) -> JobId {
        self.submit_with(yaml, |_| {}).await
    }

    async fn submit_with(&self, yaml: &str, change: impl FnOnce(&mut NewJob)) -> JobId {
        let bundle = Bundle::new("r.yaml", BTreeMap::from([("r.yaml".to_owned(), yaml.to_owned())]));
        if let Err(mistakes) = crate::recipe::compile(&bundle) {
            panic!("{mistakes}");
        }
        let spec = RecipeSpec {
            recipe: "r".to_owned(),
            job_type: RecipeSpec::DEFAULT_JOB_TYPE.to_owned(),
            language: bundle.language,
            digest: bundle.digest(),
            bundle: RawJson::new(bundle.to_json()).expect("a bundle is JSON"),
            inputs: RawJson::default(),
            require: RawJson::default(),
        };
        let mut job = NewJob::ad_hoc(JobDefinition::Recipe(spec));
        change(&mut job);
        self.store.submit(&job).await
    }

    /// The supervisor's part: it acquires the job that is next.
    async fn acquire(&self) -> Grant {
        let tasks = ["", "work", "long", "fail", "elsewhere"];
        self.acquire_of(tasks.iter().map(|task| Route::recipe("recipe", *task)).collect()).await
    }

    async fn acquire_of(&self, routes: Arc<[Route]>) -> Grant {
        self.store.dispatch(&self.owner.namespace, 100).await.expect("the memory store answers");
        let request = OpenClaim {
            owner: self.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            routes,
            limit: 1,
            lease: LEASE,
            facts: None,
        };
        let answer = self.store.claim(&request).await.expect("the memory store answers");
        answer.grants.into_iter().next().expect("a job is queued")
    }

    /// As [`Bed::acquire`], exported.
    async fn export(&self) -> Capability {
        Capability::from(self.acquire().await.authority)
    }

    fn ops(&self) -> Ops {
        let mut ops = Ops::new();
        let runs = Arc::clone(&self.runs);
        let work = move |task: Task| {
            runs.lock().unwrap().push(task.path.clone());
            async { Ok("{\"done\":true}".into()) }
        };
        ops.register_fn("work", work).expect("a good name");
        let fail = |_: Task| async { Err(TaskError::user("broken", "as asked")) };
        ops.register_fn("fail", fail).expect("a good name");
        let (runs, began) = (Arc::clone(&self.runs), Arc::clone(&self.long_began));
        let long = move |task: Task| {
            let (runs, began) = (Arc::clone(&runs), Arc::clone(&began));
            async move {
                runs.lock().unwrap().push(task.path.clone());
                // Also when it is ended by force.
                let _end = EndOfRun(format!("{} stopped", task.path), runs);
                began.notify_one();
                let why = task.context.cancelled().await;
                Err(TaskError::system("stopped", format!("{why:?}")))
            }
        };
        ops.register_fn("long", long).expect("a good name");
        ops
    }

    fn context(&self, allocation: &str) -> RunContext {
        let allocation = match allocation {
            "" => Allocation::default(),
            facts => Allocation::parse_facts(facts).expect("facts"),
        };
        let on_handoff: OnHandoff = Arc::new(|_| {});
        let store = Arc::new(self.net.clone());
        let runtime = ExecutionRuntime::new(
            Arc::new(StoreRuntime::new(store.clone())),
            allocation.clone(),
            Arc::clone(&on_handoff),
        );
        let options = RecipeWorkerOptions {
            stage_execution: Some(runtime.stage()),
            wrap_task_worker: Some(runtime.wrap_task_worker()),
            allocation,
            on_handoff,
        };
        let secrets = Arc::new(Secrets::default());
        let engine = RecipeEngine::new(Arc::new(runtime), options, &self.ops(), secrets, Handle::current());
        RunContext {
            store,
            engine: Arc::new(engine.expect("the options are the runtime's own")),
            threads: Handle::current(),
            start_node: Box::new(|placement| panic!("no container is run here, but {placement:?}")),
            timings: LeaseTimings {
                lease: LEASE,
                renew_interval: s(10),
                safety_margin: s(3),
                store_timeout: s(2),
                stop_grace: s(3),
            },
            retry_defaults: RetryPolicy { max_system: Some(3), ..RetryPolicy::default() },
            grace: s(20),
            destination: "postgres://app:***@db/app".to_owned(),
            stop: RunStop::default(),
        }
    }

    fn request(&self, job: JobId) -> RunRequest {
        RunRequest::new(Namespace::default(), job, [Route::recipe("recipe", "")])
    }

    async fn run(&self, lease: impl Into<Supplied>, job: JobId) -> RunEnd {
        self.run_with(self.context(""), lease, self.request(job)).await
    }

    async fn run_with(&self, ctx: RunContext, lease: impl Into<Supplied>, request: RunRequest) -> RunEnd {
        let events = Arc::clone(&self.events);
        let listener = Arc::new(move |event: &LeaseEvent| events.lock().unwrap().push(event.clone()));
        run_here(ctx, lease.into(), request, listener).await
    }

    async fn view(&self, job: JobId) -> JobView {
        self.store.job(&Namespace::default(), job).await.expect("the job is there")
    }

    async fn state(&self, job: JobId) -> JobState {
        self.view(job).await.state
    }

    fn ran(&self) -> Vec<String> {
        self.runs.lock().unwrap().clone()
    }

    /// What the listener was told, in a word each.
    fn told(&self) -> Vec<String> {
        let word = |event: &LeaseEvent| match event {
            LeaseEvent::Renewed { .. } => "renewed".to_owned(),
            LeaseEvent::TaskStarted { path, .. } => format!("{path} started"),
            LeaseEvent::TaskFinished { path, .. } => format!("{path} finished"),
            LeaseEvent::Waiting(_) => "waiting".to_owned(),
            LeaseEvent::Handoff(handoff) => format!("{} handed off", handoff.path),
            LeaseEvent::OtherRoute { path, .. } => format!("{path} elsewhere"),
            LeaseEvent::Lost => "lost".to_owned(),
        };
        self.events.lock().unwrap().iter().map(word).collect()
    }
}

/// Says that a run has ended.
struct EndOfRun(String, Arc<Mutex<Vec<String>>>);

impl Drop for EndOfRun {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(std::mem::take(&mut self.0));
    }
}

/// Waits, in the test's own time, until something is the case.
async fn until(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never came to this: {what}");
}
