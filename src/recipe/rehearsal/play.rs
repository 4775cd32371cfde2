//! One job of a recipe, played to its end: the real engine on a memory store, one lease at a time, in a time of its own.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold_actors::{
    clock::Anchor,
    domain::{
        CommandId, Failure, JobDefinition, JobId, JobState, Namespace, NewJob, ProcessId, RetryPolicy,
        execution::{Allocation, Requirements, payload},
    },
    fence::{Terms, Watch},
    ports::{
        Claimant, End, Grant, LeaseStore as _, OpenClaim, RecoverRequest, Renewal,
        recipe::{Event, RecipeStore as _},
    },
    testing::{JobView, MemoryStore},
    work::{LeaseContext, WorkOutcome},
};
use tokio::{runtime::Handle, time::Instant};

use super::{
    file::{Suite, Test, Worker},
    outside::{Outside, Player},
    watched::{Crash, Watched},
};
use crate::recipe::{
    Mistake,
    compiled::{Body, Node},
    execution::{
        ExecutionHandoff, ExecutionRuntime, JobRuntime, OnHandoff, RecipeEngine, RecipeWorkerOptions,
        facts_of,
    },
    op::{Op, Ops, SESSION_OPS},
};

/// The longest lease that there is; it is renewed, in the time of the test.
const LEASE: Duration = Duration::from_mins(15);
/// The most leases of one job: a recipe that goes on for ever ends here.
const MOST_LEASES: u32 = 5_000;
/// A job that no worker takes for so long is not held back by a stale hint any more.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_secs(1);
/// For failures of a worker's own.
const RETRIES: RetryPolicy = RetryPolicy {
    max_user: None,
    max_system: Some(3),
    max_timeout: None,
    backoff_ms: None,
    backoff_cap_ms: None,
};

/// A handoff, and who made it.
#[derive(Debug, Clone)]
pub(super) struct Handoff {
    pub(super) path: String,
    pub(super) from: String,
    pub(super) needs: Requirements,
}

/// How a job went.
#[derive(Debug)]
pub(super) struct Played {
    /// None: it waits for what never comes.
    pub(super) state: Option<JobState>,
    /// What it waits for.
    pub(super) waits: String,
    pub(super) output: Option<String>,
    pub(super) failure: Option<Failure>,
    pub(super) events: Vec<Event>,
    pub(super) handoffs: Vec<Handoff>,
    pub(super) payload: String,
    pub(super) took: Duration,
    pub(super) crashes: u32,
    /// What the test says too little of, or what went against its fixtures.
    pub(super) problems: Vec<Mistake>,
    /// What it holds and was never asked for.
    pub(super) unused: Vec<Mistake>,
}

/// Plays a test.
pub(super) fn play(suite: &Suite, test: &Arc<Test>, crash: Crash) -> Played {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without sockets needs nothing from the operating system");
    let job = async {
        let outside = Outside::new(test, &suite.file, &suite.recipe, &suite.bundle, MemoryStore::new());
        Stage::new(outside, &suite.ops, crash).play().await
    };
    runtime.block_on(job)
}

/// The ops that a recipe names.
pub(super) fn ops_of(node: &Node, ops: &mut BTreeSet<String>) {
    match &node.body {
        Body::Op { op, .. } if SESSION_OPS.contains(&op.as_str()) => {}
        Body::Op { op, .. } => drop(ops.insert(op.clone())),
        Body::Sequence(nodes) | Body::Parallel(nodes) => nodes.iter().for_each(|node| ops_of(node, ops)),
        Body::States(machine) => machine.states.iter().for_each(|state| ops_of(&state.node, ops)),
        Body::Include { recipe, .. } => ops_of(&recipe.root, ops),
    }
    if let Some(catch) = &node.catch {
        ops_of(catch, ops);
    }
}

/// A worker of the test, as long as it does not crash.
struct Process {
    engine: RecipeEngine,
    owner: Claimant,
    allocation: Allocation,
}

struct Stage<'t> {
    outside: Arc<Outside>,
    runtime: Arc<Watched>,
    ops: &'t BTreeSet<String>,
    handoffs: Arc<Mutex<Vec<Handoff>>>,
    crashes: u32,
    leases: u32,
    since: Instant,
    /// When the latest lease ended.
    last: Instant,
    /// For how long nobody has taken the job, although it was there to be taken.
    left_alone: Duration,
}

/// What one lease came to.
enum Turn {
    Ended,
    Crashed,
    Stuck,
}

impl<'t> Stage<'t> {
    fn new(outside: Arc<Outside>, ops: &'t BTreeSet<String>, crash: Crash) -> Self {
        Self {
            runtime: Watched::new(&outside, crash),
            outside,
            ops,
            handoffs: Arc::default(),
            crashes: 0,
            leases: 0,
            since: Instant::now(),
            last: Instant::now(),
            left_alone: Duration::ZERO,
        }
    }

    async fn play(mut self) -> Played {
        let test = Arc::clone(&self.outside.test);
        let mut job = NewJob::ad_hoc(JobDefinition::Recipe(test.spec.clone()));
        job.payload.clone_from(&test.payload);
        let submitted = self.outside.store.submit_job(&job);
        let id = match submitted {
            Ok(submitted) => submitted.job,
            Err(refused) => {
                return self.played(JobId(0), Some(format!("the job is refused: {refused}"))).await;
            }
        };
        (self.since, self.last) = (Instant::now(), Instant::now());
        let mut signals = Box::pin(Arc::clone(&self.outside).send_signals(id, self.since));
        // Those that are there from the beginning are there before anybody looks.
        let all_sent = futures_util::future::poll_immediate(&mut signals).await.is_some();
        if !all_sent {
            tokio::spawn(signals);
        }
        let mut workers: Vec<Process> = test.workers.iter().map(|worker| self.process(worker)).collect();
        let problem = loop {
            if self.view(id).state.is_terminal() {
                break None;
            }
            let Some((number, grant)) = self.claim(&workers).await else {
                if self.wait(id).await {
                    continue;
                }
                break None;
            };
            self.leases += 1;
            if self.leases > MOST_LEASES {
                break Some(format!("the job has not ended after {MOST_LEASES} leases"));
            }
            match self.turn(&workers[number], &grant).await {
                Turn::Ended => {}
                Turn::Stuck => break None,
                Turn::Crashed => {
                    self.crashes += 1;
                    workers[number] = self.process(&test.workers[number]);
                    self.recover(&workers[number].owner, id).await;
                }
            }
        };
        self.played(id, problem).await
    }

    /// A new process of a worker, wired as every entry point is that runs tasks.
    fn process(&self, worker: &Worker) -> Process {
        let (handoffs, from) = (Arc::clone(&self.handoffs), worker.id.to_string());
        let on_handoff: OnHandoff = Arc::new(move |handoff: &ExecutionHandoff| {
            let told = Handoff {
                path: handoff.path.clone(),
                from: from.clone(),
                needs: handoff.requirements.clone(),
            };
            handoffs.lock().unwrap_or_else(PoisonError::into_inner).push(told);
        });
        let watched = Arc::clone(&self.runtime) as Arc<dyn JobRuntime>;
        let runtime = ExecutionRuntime::new(watched, worker.allocation.clone(), Arc::clone(&on_handoff));
        let options = RecipeWorkerOptions {
            stage_execution: Some(runtime.stage()),
            wrap_task_worker: Some(runtime.wrap_task_worker()),
            allocation: worker.allocation.clone(),
            on_handoff,
        };
        let player = Arc::new(Player(Arc::clone(&self.outside)));
        let mut ops = Ops::new();
        let has = |op: &&String| worker.ops.as_ref().is_none_or(|ops| ops.contains(*op));
        for op in self.ops.iter().filter(has) {
            // A recipe may name an op that nobody can have: the job then waits for one.
            let _ = ops.register_shared(op, Arc::clone(&player) as Arc<dyn Op>);
        }
        let secrets = Arc::clone(&self.outside.secrets);
        let engine = RecipeEngine::new(Arc::new(runtime), options, &ops, secrets, Handle::current())
            .expect("the options are the runtime's own");
        let owner = Claimant {
            namespace: Namespace::default(),
            worker: worker.id.clone(),
            process: ProcessId::generate(),
        };
        Process { engine, owner, allocation: worker.allocation.clone() }
    }

    /// The first worker that the job is offered to takes it.
    async fn claim(&self, workers: &[Process]) -> Option<(usize, Arc<Grant>)> {
        let store = &self.outside.store;
        store.dispatch(&Namespace::default(), 100).await.expect(ANSWERS);
        for (number, worker) in workers.iter().enumerate() {
            let request = OpenClaim {
                owner: worker.owner.clone(),
                command: CommandId::generate(),
                repeat: false,
                routes: worker.engine.routes(&self.outside.test.spec.job_type).collect(),
                limit: 1,
                lease: LEASE,
                facts: Some(Arc::new(facts_of(&worker.allocation))),
            };
            let answer = store.claim(&request).await.expect(ANSWERS);
            if let Some(grant) = answer.grants.into_iter().next() {
                return Some((number, Arc::new(grant)));
            }
        }
        None
    }

    /// Lets time pass until the job may be claimed. False when it waits for what never comes.
    async fn wait(&mut self, id: JobId) -> bool {
        let view = self.view(id);
        let pause = match (view.state, view.due_at) {
            (JobState::Pending, Some(at)) => {
                let left = (at - self.outside.store.clock()).to_std().unwrap_or_default();
                Some(left.max(Duration::from_millis(1)))
            }
            (JobState::Pending, None) if self.outside.is_awaited() => None,
            (JobState::Pending, None) => return false,
            // Nothing that is still to come brings a worker.
            _ if self.left_alone >= PATIENCE => return false,
            _ => {
                self.left_alone += LOOK;
                Some(LOOK)
            }
        };
        let passes = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.outside.stuck.notified() => false,
            () = self.outside.changed.notified() => true,
            () = passes => true,
        }
    }

    /// One lease, to its end.
    async fn turn(&mut self, worker: &Process, grant: &Arc<Grant>) -> Turn {
        self.left_alone = Duration::ZERO;
        let terms = Terms {
            job: grant.authority.job,
            epoch: grant.authority.epoch,
            deadline: Anchor::now().after(LEASE),
            lease: LEASE,
            stop_grace: Duration::from_secs(5),
        };
        let watch = Watch::unfenced(terms);
        let lease = LeaseContext::new(Arc::clone(grant), self.outside.store.port(), &watch);
        let outcome = tokio::select! {
            biased;
            () = self.outside.stuck.notified() => return Turn::Stuck,
            () = self.runtime.crashed.notified() => None,
            outcome = worker.engine.run(grant, &lease) => Some(outcome),
            never = self.renew(grant, &watch) => match never {},
        };
        let turn = match outcome {
            Some(outcome) => self.report(grant, &lease, outcome).await,
            None => Turn::Crashed,
        };
        // What it had begun is gone with it.
        drop((watch, lease));
        tokio::task::yield_now().await;
        self.last = Instant::now();
        turn
    }

    async fn renew(&self, grant: &Grant, watch: &Watch) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(LEASE / 3).await;
            let anchor = Anchor::now();
            let renewed = self.outside.store.renew(&grant.authority).await;
            if let Ok(Renewal::Held { remaining, .. }) = renewed {
                watch.renewed(anchor.after(remaining));
            }
        }
    }

    /// Reports as a LeaseActor does. What is not reported is left to recovery.
    async fn report(&self, grant: &Grant, lease: &LeaseContext, outcome: WorkOutcome) -> Turn {
        let end = match outcome {
            WorkOutcome::Completed { exit_code, output } => End::Complete { exit_code, output },
            WorkOutcome::Failed(failure) => End::Fail { failure, defaults: RETRIES },
            WorkOutcome::FailedForGood(failure) => End::FailForGood { failure },
            WorkOutcome::GoesOn { end } => *end,
            WorkOutcome::Stopped => End::Release { delay: Duration::ZERO, reason: "drain" },
            WorkOutcome::Abandoned => return Turn::Crashed,
        };
        let command = lease.pledged().unwrap_or_else(CommandId::generate);
        self.outside.store.end(&grant.authority, command, &end).await.expect(ANSWERS);
        Turn::Ended
    }

    /// Takes over a lease whose holder is gone, and gives the job back, as recovery does.
    async fn recover(&self, owner: &Claimant, id: JobId) {
        let store = &self.outside.store;
        if self.view(id).state != JobState::Running {
            return;
        }
        store.expire_lease(id);
        let request = RecoverRequest {
            owner: owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            limit: 10,
            lease: LEASE,
            running_here: Arc::new([]),
        };
        for takeover in store.recover(&request).await.expect(ANSWERS).takeovers {
            let end = End::Reschedule {
                route: None,
                delay: Duration::ZERO,
                payload: None,
                wake: Vec::new(),
                publish: None,
            };
            let authority = &takeover.grant.authority;
            store.end(authority, CommandId::generate(), &end).await.expect(ANSWERS);
        }
    }

    async fn played(self, id: JobId, problem: Option<String>) -> Played {
        let store = &self.outside.store;
        let mut problems = self.outside.problems();
        if let Some(message) = problem {
            problems.push(Mistake {
                file: self.outside.file.clone(),
                place: self.outside.test.place,
                message,
            });
        }
        let mut events: Vec<Event> = Vec::new();
        loop {
            let after = events.last().map_or(0, |event| event.ordinal);
            let page = store.events(&Namespace::default(), id, after).await.expect(ANSWERS);
            if page.is_empty() {
                break;
            }
            events.extend(page);
        }
        let view = store.view(&Namespace::default(), id);
        let payload = store.payload(id).map_or_else(|| "null".to_owned(), |payload| payload.to_string());
        Played {
            state: view.as_ref().map(|view| view.state).filter(|state| state.is_terminal()),
            waits: view.as_ref().map_or_else(String::new, |view| waits(view, &payload)),
            output: view.and_then(|view| view.output),
            failure: store.failure(&Namespace::default(), id),
            handoffs: self.handoffs.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            payload,
            took: self.last.duration_since(self.since),
            crashes: self.crashes,
            unused: self.outside.unused(&events),
            problems,
            events,
        }
    }

    fn view(&self, id: JobId) -> JobView {
        self.outside.store.view(&Namespace::default(), id).expect("it was submitted")
    }
}

const ANSWERS: &str = "the memory store answers whatever is asked rightly";

/// What a job that does not go on waits for.
fn waits(view: &JobView, payload: &str) -> String {
    if view.state == JobState::Pending {
        return "it waits for a signal or a child that never comes".to_owned();
    }
    let task = match view.route.1.as_str() {
        "" => "the next task".to_owned(),
        op => format!("op {op}"),
    };
    match payload::read(payload).ok().flatten() {
        Some(published) if !published.requirements.is_empty() => {
            format!("no worker of the test takes it: {task} needs {}", published.requirements)
        }
        _ => format!("no worker of the test takes it: {task} is wanted"),
    }
}
