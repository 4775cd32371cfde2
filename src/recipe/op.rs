//! Ops: what the tasks of a recipe do, in Rust.
//!
//! ```
//! use leasehold::recipe::op::{Ops, Task, TaskError};
//!
//! let mut ops = Ops::new();
//! ops.register_fn("resize", |task: Task| async move {
//!     let input: serde_json::Value = task.input()?;
//!     if input["width"].is_null() {
//!         return Err(TaskError::user("no_width", "say how wide: inputs.width"));
//!     }
//!     // Written to under the key, so that running twice writes once.
//!     Ok(format!(r#"{{"key":"{}"}}"#, task.idempotency_key).into())
//! })?;
//! # Ok::<(), leasehold::recipe::op::BadOpName>(())
//! ```
//!
//! A task runs **at least once**: the worker may die between its effects and the record of its result, and another
//! one then runs it again. Its result is recorded at most once. What makes effects repeatable is
//! [`Task::idempotency_key`], the same at each run of one attempt; [`Task::epoch`] lets a system that is written to
//! refuse a worker that has lost the job.
//!
//! # Stopping
//!
//! [`TaskContext::cancelled`] resolves when the task must end: its job is cancelled, drained, or lost; its node's
//! timeout is over; a sibling in a `parallel` has failed. A task that goes on is dropped at its next `.await` a little
//! later, and never later than its lease. Ops run on threads of their own, apart from those that renew leases; wrap
//! blocking work in [`tokio::task::spawn_blocking`].
//!
//! # Asking for another environment
//!
//! [`TaskContext::suspend_execution`] changes what all later tasks of the job need. It counts only if the task
//! succeeds, and is then stored with its result in one write.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_actors::{
    clock::{Anchor, Deadline},
    domain::{
        Epoch, Failure, FailureKind, JobId, Namespace,
        execution::{Requirements, overlay},
    },
    fence::Hold,
    ports::{TaskOccurrence, recipe::JsonText},
    work::{LeaseContext, StopReason},
};
use serde::de::DeserializeOwned;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

/// Ops that the session does itself: they run nowhere, and are never registered.
pub const SESSION_OPS: [&str; 3] = ["sleep", "wait_for_signal", "child_job"];

/// The longest name of an op, in bytes.
const NAME_LIMIT: usize = 100;

/// Code that runs tasks.
#[async_trait]
pub trait Op: Send + Sync + 'static {
    /// Runs one task to its end, and gives its output: raw JSON text of at most 1 MiB.
    ///
    /// # Errors
    /// [`TaskError`], which is recorded as the task's result; whether it is tried again is for the node's `retry` to
    /// say.
    async fn run(&self, task: Task) -> Result<JsonText, TaskError>;

    /// A JSON Schema that its inputs are held against before it runs: of jobs that are submitted after a worker with
    /// this op has started. None by default.
    fn input_schema(&self) -> Option<&str> {
        None
    }

    /// The same for its output, before that is recorded.
    fn output_schema(&self) -> Option<&str> {
        None
    }
}

/// One run of one task.
#[derive(Debug)]
pub struct Task {
    /// The tenant.
    pub namespace: Namespace,
    /// The job.
    pub job: JobId,
    /// Which occurrence this is: ids from the root, with visits and attempts (`work/poll#3/fetch!2`).
    pub path: String,
    /// The op.
    pub op: String,
    /// Which attempt of its node this is, from 1.
    pub attempt: i32,
    /// The fencing epoch: hand it to every system that is written to, so that it can refuse an older writer.
    pub epoch: Epoch,
    /// The same at each run of this attempt of this task, and no other's.
    pub idempotency_key: String,
    /// What it needs in effect: this worker has it, and where it brings about something elsewhere, that place must have
    /// it too.
    pub needs: Requirements,
    /// The input: raw JSON text, with secrets in their places. Do not log it.
    pub inputs: JsonText,
    /// The task's hold on its lease.
    pub context: TaskContext,
}

impl Task {
    /// The input, decoded.
    ///
    /// # Errors
    /// [`TaskError`] of kind `USER`, code `bad_input`, when it does not fit; without the input's values, which may
    /// hold secrets.
    pub fn input<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        serde_json::from_str(&self.inputs).map_err(|error| {
            let place = format!("line {}, column {}", error.line(), error.column());
            TaskError::user("bad_input", format!("the input of op {} does not fit, at {place}", self.op))
        })
    }
}

/// Why a task must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskStop {
    /// Its job must stop.
    Job(StopReason),
    /// Its node has a timeout, which is over.
    TimedOut,
    /// A sibling in the same `parallel` has failed.
    SiblingFailed,
}

/// A task's hold on its lease. Cheap to clone; may be moved into tasks of its own.
#[derive(Clone)]
pub struct TaskContext {
    lease: Tie,
    stop: TaskStopper,
    patch: Arc<Mutex<Option<Requirements>>>,
    later: Arc<Mutex<Option<Later>>>,
    occurrence: Arc<TaskOccurrence>,
}

/// A task that could not begin for want of a runtime node, and when it is to be tried again.
#[derive(Debug, Clone, Copy)]
pub(in crate::recipe) struct Later {
    /// By the database's clock.
    pub(in crate::recipe) at: DateTime<Utc>,
    /// How far ahead that was.
    pub(in crate::recipe) after: Duration,
}

#[derive(Clone)]
enum Tie {
    Lease(LeaseContext),
    Alone(Deadline),
}

impl fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskContext").field("remaining", &self.remaining()).finish_non_exhaustive()
    }
}

impl TaskContext {
    /// Ties a task to its lease.
    #[must_use]
    pub fn of(lease: LeaseContext, stop: TaskStopper) -> Self {
        Self::tied(Tie::Lease(lease), stop)
    }

    /// A context without a lease, for tests of ops: it has this much time.
    #[must_use]
    pub fn alone(time: Duration, stop: TaskStopper) -> Self {
        Self::tied(Tie::Alone(Anchor::now().after(time)), stop)
    }

    fn tied(lease: Tie, stop: TaskStopper) -> Self {
        Self { lease, stop, patch: Arc::default(), later: Arc::default(), occurrence: Arc::default() }
    }

    /// Says what the task's result is recorded as.
    pub(in crate::recipe) fn recorded_as(self, occurrence: TaskOccurrence) -> Self {
        Self { occurrence: Arc::new(occurrence), ..self }
    }

    /// What the task's result is recorded as.
    pub(in crate::recipe) fn occurrence(&self) -> &TaskOccurrence {
        &self.occurrence
    }

    /// Resolves when the task must end, with the reason. Safe to drop and to await again.
    pub async fn cancelled(&self) -> TaskStop {
        let lease = async {
            match &self.lease {
                Tie::Lease(lease) => lease.stopped().await,
                Tie::Alone(deadline) => {
                    tokio::time::sleep(deadline.remaining()).await;
                    StopReason::LeaseLost
                }
            }
        };
        tokio::select! {
            biased;
            reason = lease => TaskStop::Job(reason),
            reason = self.stop.stopped() => reason,
        }
    }

    /// Whether the task may go on. Look at it before every effect that must not happen twice.
    #[must_use]
    pub fn is_live(&self) -> bool {
        let told = match &self.lease {
            Tie::Lease(lease) => lease.stop_reason().is_some(),
            Tie::Alone(_) => false,
        };
        !told && !self.stop.is_stopped() && !self.remaining().is_zero()
    }

    /// Time until the task must be over, unless a renewal moves that on; zero once the lease is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match &self.lease {
            Tie::Lease(lease) => lease.remaining(),
            Tie::Alone(deadline) => deadline.remaining(),
        }
    }

    /// Changes what all later tasks of this job need, if this task succeeds. Several calls compose: a later one
    /// replaces the earlier field by field.
    ///
    /// `patch` is JSON as a recipe writes it: `{"resources": {"memory": "16Gi"}, "platform": "linux/arm64"}`.
    ///
    /// # Errors
    /// [`BadPatch`] when it cannot be read; nothing is changed then.
    pub fn suspend_execution(&self, patch: &str) -> Result<(), BadPatch> {
        let patch: Requirements = serde_json::from_str(patch).map_err(|error| BadPatch(error.to_string()))?;
        self.suspend_for(&patch);
        Ok(())
    }

    /// As [`TaskContext::suspend_execution`], with values.
    pub fn suspend_for(&self, patch: &Requirements) {
        let mut held = self.patch.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Some(held.as_ref().map_or_else(|| patch.clone(), |held| overlay(held, patch)));
    }

    /// Keeps the workload counted as going on; see [`LeaseContext::hold`].
    #[must_use]
    pub fn hold(&self) -> Option<Hold> {
        match &self.lease {
            Tie::Lease(lease) => Some(lease.hold()),
            Tie::Alone(_) => None,
        }
    }

    /// Names a task that runs a part of this one, so that the fence can end it; see [`LeaseContext::runs_as`].
    pub fn runs_as(&self, task: AbortHandle) {
        if let Tie::Lease(lease) = &self.lease {
            lease.runs_as(task);
        }
    }

    /// Time until a task that was told to stop is ended by force.
    #[must_use]
    pub fn stop_budget(&self) -> Duration {
        match &self.lease {
            Tie::Lease(lease) => lease.stop_budget(),
            Tie::Alone(deadline) => deadline.remaining(),
        }
    }

    /// The lease itself.
    pub(in crate::recipe) fn lease(&self) -> Option<&LeaseContext> {
        match &self.lease {
            Tie::Lease(lease) => Some(lease),
            Tie::Alone(_) => None,
        }
    }

    /// The task has done nothing, for want of a runtime node. Whatever it returns now is no result: it is called again.
    pub(in crate::recipe) fn wait_for_a_node(&self, at: DateTime<Utc>, after: Duration) {
        *self.later.lock().unwrap_or_else(PoisonError::into_inner) = Some(Later { at, after });
    }

    /// When it is to be called again, if it has done nothing.
    pub(in crate::recipe) fn waits_for_a_node(&self) -> Option<Later> {
        *self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was asked for so far.
    #[must_use]
    pub fn asked_for(&self) -> Option<Requirements> {
        self.patch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A change of needs that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("suspend_execution: {0}")]
pub struct BadPatch(String);

/// Stops one task and no other. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct TaskStopper {
    token: CancellationToken,
    why: Arc<Mutex<Option<TaskStop>>>,
}

impl TaskStopper {
    /// Stops the task; the first reason stands.
    pub fn stop(&self, why: TaskStop) {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.token.cancel();
    }

    /// Whether it was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.token.is_cancelled()
    }

    async fn stopped(&self) -> TaskStop {
        self.token.cancelled().await;
        let why = *self.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.expect("the reason is set before the token is cancelled")
    }
}

/// Why a task did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskError {
    /// Whose fault it is.
    pub kind: FailureKind,
    /// A stable word, for programs.
    pub code: String,
    /// For people; at most 4 KiB are kept.
    pub message: String,
    /// The exit code of the task's program, where it was one that failed.
    pub exit_code: Option<i32>,
}

impl TaskError {
    /// The task's own fault: bad input, a refused request.
    #[must_use]
    pub fn user(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: FailureKind::User, code: code.into(), message: message.into(), exit_code: None }
    }

    /// The surroundings' fault: a service that is down.
    #[must_use]
    pub fn system(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: FailureKind::System, code: code.into(), message: message.into(), exit_code: None }
    }

    /// It took longer than it may.
    #[must_use]
    pub fn timeout(message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Timeout,
            code: "timeout".to_owned(),
            message: message.into(),
            exit_code: None,
        }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.code, self.message)
    }
}

impl<E: std::error::Error> From<E> for TaskError {
    /// Any other error is a `USER` failure, code `task_error`.
    fn from(error: E) -> Self {
        Self::user("task_error", error.to_string())
    }
}

impl From<TaskError> for Failure {
    fn from(error: TaskError) -> Self {
        Self { exit_code: error.exit_code, ..Self::new(error.kind, error.code, error.message) }
    }
}

/// A name that no op can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no name for an op: {reason}")]
pub struct BadOpName {
    /// The name.
    pub name: String,
    /// The rule that it breaks.
    pub reason: &'static str,
}

/// The ops that a worker has, by name. Cheap to clone.
#[derive(Clone, Default)]
pub struct Ops {
    by_name: BTreeMap<String, Arc<dyn Op>>,
}

impl fmt::Debug for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

impl Ops {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an op; one of the same name is replaced.
    ///
    /// # Errors
    /// [`BadOpName`] for an empty or overlong name, control characters, and the names that recipes have already.
    pub fn register(&mut self, name: impl Into<String>, op: impl Op) -> Result<&mut Self, BadOpName> {
        self.register_shared(name, Arc::new(op))
    }

    /// As [`Ops::register`], with an op that others hold as well.
    ///
    /// # Errors
    /// As [`Ops::register`].
    pub fn register_shared(
        &mut self,
        name: impl Into<String>,
        op: Arc<dyn Op>,
    ) -> Result<&mut Self, BadOpName> {
        let name = name.into();
        let reason = if name.is_empty() {
            "it is empty"
        } else if name.len() > NAME_LIMIT {
            "it is longer than 100 bytes"
        } else if name.chars().any(char::is_control) || name.trim() != name {
            "it has control characters, or white space around it"
        } else if SESSION_OPS.contains(&name.as_str()) {
            "recipes have that one already"
        } else {
            self.by_name.insert(name, op);
            return Ok(self);
        };
        Err(BadOpName { name, reason })
    }

    /// Adds an op that is one async function.
    ///
    /// # Errors
    /// As [`Ops::register`].
    pub fn register_fn<F, Fut>(&mut self, name: impl Into<String>, run: F) -> Result<&mut Self, BadOpName>
    where
        F: Fn(Task) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<JsonText, TaskError>> + Send + 'static,
    {
        self.register(name, Function(run))
    }

    /// These, and those of `others` whose names are free.
    #[must_use]
    pub fn or(mut self, others: &Self) -> Self {
        for (name, op) in &others.by_name {
            self.by_name.entry(name.clone()).or_insert_with(|| Arc::clone(op));
        }
        self
    }

    /// The op of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Op>> {
        self.by_name.get(name)
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }
}

struct Function<F>(F);

#[async_trait]
impl<F, Fut> Op for Function<F>
where
    F: Fn(Task) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<JsonText, TaskError>> + Send + 'static,
{
    async fn run(&self, task: Task) -> Result<JsonText, TaskError> {
        (self.0)(task).await
    }
}
