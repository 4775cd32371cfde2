//! One invocation of a recipe: a walk from the top, against what was recorded before.
//!
//! A walk has two parts. First it **replays**: every node is entered, and whatever is recorded at its path is taken
//! from there; a strand that comes to something that is not recorded rests. When every strand rests, all that was
//! recorded has been walked over (what has not is a contradiction, [`Fatal::NotDeterministic`]), and nothing was
//! compared, published, waited for or run. Only then the walk goes **live**: tasks are staged under all recorded
//! changes of needs, compared and run, timers are set, signals are taken; each is recorded before its strand goes on.
//! The walk is over when the root has a result, or when every strand rests again: what it rests on says whether the
//! job is handed on or waits.
//!
//! The whole walk is one task that yields at every node. [`strand`] counts what moves; [`walk`] does what all nodes
//! have in common, [`blocks`] what is made of nodes, [`task`] ops, [`waits`] timers, signals and children.

mod blocks;
mod env;
mod failure;
mod live;
mod log;
mod order;
mod path;
mod reopen;
mod strand;
mod task;
mod waits;
mod walk;

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{
        Failure, JobId, Namespace,
        execution::{Mismatch, Requirements},
    },
    ports::recipe::{Event, JsonText, Wake},
};
use tokio::{sync::Notify, time::Instant};

use self::{
    env::{Env, Scopes, bind_inputs},
    failure::{Fatal, NodeFailure},
    log::Log,
    path::Path,
    strand::{Group, Strand},
    walk::Place,
};
pub(in crate::recipe) use self::{
    live::Hands,
    reopen::{Refused, plan},
    task::{failed, succeeded},
};
use super::{
    compiled::Recipe,
    execution::{Contradiction, ReplayedTask},
};

/// What a walk is made from.
#[derive(Debug, Clone)]
pub(in crate::recipe) struct Job {
    pub(in crate::recipe) namespace: Namespace,
    pub(in crate::recipe) job: JobId,
    pub(in crate::recipe) submitted_at: DateTime<Utc>,
    pub(in crate::recipe) recipe: Arc<Recipe>,
    /// The job's input, as it was given.
    pub(in crate::recipe) inputs: JsonText,
    /// The requirements that were given at submission.
    pub(in crate::recipe) overrides: Requirements,
}

/// How a walk ended.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::recipe) enum SessionEnd {
    /// The recipe came to its end, with this output.
    Completed(JsonText),
    /// It failed, and nothing caught that; or it and its log do not fit.
    Failed(Failure),
    /// Nothing runs, and the first unfinished task cannot run here.
    HandOff {
        path: String,
        op: String,
        needs: Requirements,
        /// Empty when only the op is missing.
        mismatches: Vec<Mismatch>,
    },
    /// Nothing runs, and every strand waits.
    Waits { wake: Vec<Wake>, needs: Option<Requirements> },
    /// It was told to stop.
    Stopped,
    /// The lease is not live, or an answer stayed out until it was not.
    Lost,
    /// This machine or the store is at fault.
    Machine(Failure),
    /// Read-only: the first thing that is not recorded.
    CacheMiss { path: String },
}

/// What a strand rests on.
#[derive(Debug, Clone)]
enum Parked {
    Declined {
        op: String,
        needs: Requirements,
        mismatches: Vec<Mismatch>,
    },
    Waits {
        wake: Wake,
        needs: Option<Requirements>,
    },
    /// The timer of a timeout: wakes, but alone it is nothing to wait for.
    Limit(DateTime<Utc>),
    /// Not recorded, in a replay.
    Missing,
}

/// The key of a parked strand: its place in the order of the document.
type ParkKey = (Vec<(usize, u32, u32)>, String);

/// A walk.
pub(in crate::recipe) struct Session {
    job: Job,
    /// None: read-only.
    hands: Option<Hands>,
    log: Mutex<Log>,
    root: Arc<Group>,
    live: AtomicBool,
    went_live: Notify,
    /// The needs of later tasks were changed.
    directed: Notify,
    /// Strands that rest may move again although nothing has woken them yet.
    poked: AtomicBool,
    stopping: AtomicBool,
    parked: Mutex<BTreeMap<ParkKey, Parked>>,
    fatal: Mutex<Option<Fatal>>,
    /// One record at a time, so that ordinals are known in their order.
    recording: tokio::sync::Mutex<()>,
    /// The database's clock, as of the latest record.
    clock: Mutex<Option<(DateTime<Utc>, Instant)>>,
    /// Read-only: what was walked over.
    trace: Mutex<Vec<ReplayedTask>>,
    /// What the log says and the recipe does not.
    contradicted: Mutex<Option<Contradiction>>,
    /// Which failure of a node ended it.
    failed: Mutex<Option<NodeFailure>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("job", &self.job.job).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every critical section here leaves whole values.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Folds the events of a job. Without hands, the walk is read-only.
    pub(in crate::recipe) fn new(
        job: Job,
        events: Vec<Event>,
        hands: Option<Hands>,
    ) -> Result<Self, Failure> {
        let log = Log::fold(events).map_err(|bad| {
            not_deterministic(
                &bad.path,
                bad.ordinal,
                "a change of needs",
                "one that this program cannot read",
            )
        })?;
        Ok(Self {
            job,
            hands,
            log: Mutex::new(log),
            root: Group::root(),
            live: AtomicBool::new(false),
            went_live: Notify::new(),
            directed: Notify::new(),
            poked: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            parked: Mutex::default(),
            fatal: Mutex::new(None),
            recording: tokio::sync::Mutex::new(()),
            clock: Mutex::new(None),
            trace: Mutex::default(),
            contradicted: Mutex::default(),
            failed: Mutex::default(),
        })
    }

    /// Whether any task needs, or was told to need, anything at all.
    pub(in crate::recipe) fn needs_anything(&self) -> bool {
        self.job.recipe.declares_needs()
            || !self.job.overrides.is_empty()
            || !lock(&self.log).directed().is_empty()
    }

    /// The recorded tasks that a read-only walk came by.
    pub(in crate::recipe) fn walked_over(&self) -> Vec<ReplayedTask> {
        std::mem::take(&mut *lock(&self.trace))
    }

    /// Walks until there is an end.
    pub(in crate::recipe) async fn run(&self) -> SessionEnd {
        let Some(hands) = &self.hands else { return self.drive().await };
        let drive = self.drive();
        let mut drive = std::pin::pin!(drive);
        tokio::select! {
            biased;
            end = &mut drive => return end,
            _reason = hands.lease.stopped() => {}
        }
        // What runs is told by the lease itself. What comes to its end in time is recorded; nothing new begins.
        self.stopping.store(true, Ordering::Relaxed);
        let grace = hands.lease.stop_budget();
        tokio::time::timeout(grace, drive).await.unwrap_or(SessionEnd::Stopped)
    }

    async fn drive(&self) -> SessionEnd {
        let mut strand = Strand::new(&self.root);
        let walk = async {
            let recipe = &self.job.recipe;
            let inputs = match bind_inputs(recipe, &self.job.inputs) {
                Ok(inputs) => inputs,
                Err(fault) => return Err(self.fault(fault, ".", 0, &mut strand).await),
            };
            let env = Env::of_job(self.job.job, self.job.submitted_at, recipe, inputs);
            let scopes = Scopes::default().inside(&recipe.execution, &env);
            let place = Place { path: Path::root(), env, scopes, since: 0 };
            self.node(&recipe.root, place, &mut strand).await
        };
        let mut walk = std::pin::pin!(walk);
        let result = poll_fn(|cx| {
            loop {
                self.poked.store(false, Ordering::Relaxed);
                let polled = walk.as_mut().poll(cx);
                if let Some(fatal) = lock(&self.fatal).take() {
                    return Poll::Ready(Err(Ok(fatal)));
                }
                if let Poll::Ready(result) = polled {
                    return Poll::Ready(Ok(result));
                }
                if !self.root.rests() {
                    return Poll::Pending;
                }
                // What the lease is told may not have come here yet.
                let told = self.hands.as_ref().is_some_and(|hands| hands.lease.stop_reason().is_some());
                if self.stopping.load(Ordering::Relaxed) || told {
                    return Poll::Ready(Err(Err(SessionEnd::Stopped)));
                }
                if !self.live.load(Ordering::Relaxed) {
                    if let Some(contradiction) = self.contradiction("this path is not walked over any more") {
                        return Poll::Ready(Err(Ok(contradiction)));
                    }
                    if self.hands.is_some() {
                        self.live.store(true, Ordering::Relaxed);
                        self.went_live.notify_waiters();
                        continue;
                    }
                } else if self.poked.load(Ordering::Relaxed) {
                    continue;
                }
                return Poll::Ready(Err(Err(self.at_rest())));
            }
        })
        .await;
        match result {
            Ok(result) => self.ended(result),
            Err(Ok(fatal)) => self.end_of(fatal),
            Err(Err(end)) => end,
        }
    }

    /// What the log says and the recipe does not.
    pub(in crate::recipe) fn contradicted(&self) -> Option<Contradiction> {
        lock(&self.contradicted).clone()
    }

    fn end_of(&self, fatal: Fatal) -> SessionEnd {
        if let Fatal::NotDeterministic { path, ordinal, expected, found } = &fatal {
            *lock(&self.contradicted) = Some(Contradiction {
                path: path.clone(),
                ordinal: *ordinal,
                expected: expected.clone(),
                found: found.clone(),
            });
        }
        end_of(fatal)
    }

    /// What stands in the log and was not walked over.
    fn contradiction(&self, found: &str) -> Option<Fatal> {
        let event = lock(&self.log).unvisited()?;
        Some(Fatal::NotDeterministic {
            path: event.path.clone(),
            ordinal: event.ordinal,
            expected: task::describe(&event),
            found: found.to_owned(),
        })
    }

    fn ended(&self, result: Result<walk::Done, NodeFailure>) -> SessionEnd {
        if let Some(contradiction) = self.contradiction("the recipe ended without it") {
            return self.end_of(contradiction);
        }
        match result {
            Ok(done) => match task::checked(".", &done.output) {
                Ok(output) => SessionEnd::Completed(output),
                Err(failure) => SessionEnd::Failed(failure),
            },
            Err(failed) => {
                *lock(&self.failed) = Some(failed.clone());
                let mut failure = failed.failure;
                failure.message = format!("{}: {}", failed.path, failure.message);
                let exit_code = failure.exit_code;
                let mut failure = Failure::new(failure.kind, failure.code, failure.message);
                failure.exit_code = exit_code;
                SessionEnd::Failed(failure)
            }
        }
    }

    /// What it means that every strand rests.
    fn at_rest(&self) -> SessionEnd {
        let parked = lock(&self.parked);
        let mut waits = (Vec::new(), None, false);
        for ((_, path), parked) in parked.iter() {
            match parked {
                Parked::Missing => return SessionEnd::CacheMiss { path: path.clone() },
                Parked::Declined { op, needs, mismatches } => {
                    return SessionEnd::HandOff {
                        path: path.clone(),
                        op: op.clone(),
                        needs: needs.clone(),
                        mismatches: mismatches.clone(),
                    };
                }
                Parked::Waits { wake, needs } => {
                    waits.0.push(wake.clone());
                    if !waits.2 {
                        waits.1.clone_from(needs);
                    }
                    waits.2 = true;
                }
                Parked::Limit(at) => waits.0.push(Wake::At(*at)),
            }
        }
        if waits.2 {
            return SessionEnd::Waits { wake: waits.0, needs: waits.1 };
        }
        SessionEnd::Machine(Failure::new(
            leasehold_actors::domain::FailureKind::System,
            "recipe_stuck",
            "the recipe neither runs nor waits for anything; this is a defect of Leasehold",
        ))
    }
}

fn end_of(fatal: Fatal) -> SessionEnd {
    use leasehold_actors::domain::FailureKind::{System, User};
    match fatal {
        Fatal::Lost => SessionEnd::Lost,
        Fatal::NotDeterministic { path, ordinal, expected, found } => {
            SessionEnd::Failed(not_deterministic(&path, ordinal, &expected, &found))
        }
        Fatal::LogFull { what, limit } => SessionEnd::Failed(Failure::new(
            User,
            "log_full",
            format!("the log of the job is full: at most {limit} {what} are kept"),
        )),
        Fatal::Machine { code, message } => SessionEnd::Machine(Failure::new(System, code, message)),
    }
}

fn not_deterministic(path: &str, ordinal: i64, expected: &str, found: &str) -> Failure {
    Failure::new(
        leasehold_actors::domain::FailureKind::User,
        "not_deterministic",
        format!("{path} (record {ordinal}): recorded was {expected}, found is {found}"),
    )
}
