//! Who looks on while the recipe of a lease runs: what happens, in order, and never what proves the lease.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use leasehold_actors::{
    domain::{Epoch, FailureKind, JobId, Namespace, Route},
    ports::recipe::{TaskOutcome, Wake},
};
use serde::Serialize;

use super::guard::ExecutionHandoff;

/// What happens under a lease.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum LeaseEvent {
    /// A renewal was confirmed.
    Renewed {
        /// Time to the expiry, by the database's clock.
        remaining: Duration,
    },
    /// A task begins.
    TaskStarted {
        /// Which one.
        path: String,
        /// Its op.
        op: String,
        /// Which attempt of its node.
        attempt: i32,
    },
    /// A task's end is recorded.
    TaskFinished {
        /// Which one.
        path: String,
        /// Its op.
        op: String,
        /// Which attempt of its node.
        attempt: i32,
        /// How.
        end: TaskEnd,
    },
    /// The job waits, on no worker.
    Waiting(Waiting),
    /// The next task does not fit here: the job goes on elsewhere.
    Handoff(Box<ExecutionHandoff>),
    /// The op of the next task is not here: the job goes on elsewhere.
    OtherRoute {
        /// The task.
        path: String,
        /// Where.
        route: Route,
    },
    /// The lease is lost: what runs is ended, nothing more begins, and nothing is reported.
    Lost,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum TaskEnd {
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed {
        /// Whose fault it is.
        kind: FailureKind,
        /// A stable word.
        code: String,
    },
    /// It was cancelled, since a sibling failed.
    Canceled,
}

impl From<&TaskOutcome> for TaskEnd {
    fn from(outcome: &TaskOutcome) -> Self {
        match outcome {
            TaskOutcome::Succeeded { .. } => Self::Succeeded,
            TaskOutcome::Failed(failure) => Self::Failed { kind: failure.kind, code: failure.code.clone() },
            TaskOutcome::Canceled => Self::Canceled,
        }
    }
}

/// What a job waits for; any of it wakes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Waiting {
    /// The earliest instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<DateTime<Utc>>,
    /// Signals of these names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<String>,
    /// The ends of these jobs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobId>,
}

impl Waiting {
    /// What wakes it, by sort.
    #[must_use]
    pub fn of(wake: &[Wake]) -> Self {
        let mut waiting = Self::default();
        for wake in wake {
            match wake {
                Wake::At(at) => waiting.time = Some(waiting.time.map_or(*at, |sooner| sooner.min(*at))),
                Wake::Signal(name) => waiting.signals.push(name.clone()),
                Wake::Child(job) => waiting.jobs.push(*job),
            }
        }
        waiting.signals.sort();
        waiting.signals.dedup();
        waiting.jobs.sort_unstable();
        waiting.jobs.dedup();
        waiting
    }
}

/// A run that is about to begin: it was admitted, and its lease is being renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunStart {
    /// The tenant.
    pub namespace: Namespace,
    /// The job.
    pub job: JobId,
    /// The epoch of its lease.
    pub epoch: Epoch,
    /// How many events are recorded already.
    pub recorded: usize,
}

/// Called once a run was admitted, under its renewing lease, before anything of it begins. An error gives the job back
/// with nothing started.
pub type BeforeRun = Arc<dyn Fn(RunStart) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

type Tell = Box<dyn Fn(LeaseEvent) + Send + Sync>;

/// Who looks on at one run.
#[derive(Default)]
pub(crate) struct RunWatch {
    tell: Option<Tell>,
    pub(crate) before_run: Option<BeforeRun>,
    notes: Mutex<Notes>,
}

/// Why a run came to no end that could be reported.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes {
    /// It was not admitted.
    pub(crate) not_admitted: Option<String>,
    /// What it asked for at its end was refused, or brought no answer.
    pub(crate) not_given_back: Option<String>,
    /// The hook before the run said no.
    pub(crate) held_back: Option<String>,
}

impl fmt::Debug for RunWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunWatch").field("notes", &self.notes).finish_non_exhaustive()
    }
}

impl RunWatch {
    pub(crate) fn new(
        tell: impl Fn(LeaseEvent) + Send + Sync + 'static,
        before_run: Option<BeforeRun>,
    ) -> Self {
        Self { tell: Some(Box::new(tell)), before_run, notes: Mutex::default() }
    }

    /// Events are made only for somebody who listens.
    pub(crate) fn tell(&self, event: impl FnOnce() -> LeaseEvent) {
        if let Some(tell) = &self.tell {
            tell(event());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, write: impl FnOnce(&mut Notes)) {
        write(&mut self.lock());
    }

    pub(crate) fn notes(&self) -> Notes {
        self.lock().clone()
    }
}
