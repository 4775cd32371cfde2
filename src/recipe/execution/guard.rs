//! The wrapper that makes a runtime execution-aware, and the guard that stands before every task.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use leasehold_actors::{
    domain::{
        CommandId, Failure, JobId, Namespace, Route,
        execution::{Allocation, Mismatch, Requirements, compare},
    },
    error::StoreError,
    ports::{
        Authority, ClaimAnswer, Ended, ListedAnswer, ListedClaim, OpenClaim, Renewal,
        recipe::{Event, JsonText, NewEvent, RecipeJob, Recorded, Refusal, RouteSchemas, SchemaText},
    },
    work::LeaseContext,
};
use serde::Serialize;
use tokio::{runtime::Handle, task::JoinHandle};
use tracing::Instrument as _;

use super::runtime::{JobRuntime, Reschedule};
use crate::recipe::op::{Op, Task, TaskError};

/// A task was handed on: this worker does not have what it needs. Not a failure, and not a completion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExecutionHandoff {
    /// `environment_required`
    pub kind: &'static str,
    /// The job.
    pub job: JobId,
    /// The task.
    pub path: String,
    /// What it needs.
    pub requirements: Requirements,
    /// What is here.
    pub allocation: Allocation,
    /// What of it does not fit.
    pub mismatches: Vec<Mismatch>,
    /// Whether the client payload was changed; false where it said the same already.
    pub published: bool,
}

/// Told of every handoff that the jobs service has acknowledged, once each.
pub type OnHandoff = Arc<dyn Fn(&ExecutionHandoff) + Send + Sync>;

/// What the parts of one wrapper share.
pub(super) struct Inner {
    pub(super) allocation: Allocation,
    pub(super) on_handoff: OnHandoff,
}

impl Inner {
    fn new(allocation: Allocation, on_handoff: OnHandoff) -> Arc<Self> {
        Arc::new(Self { allocation, on_handoff })
    }

    /// What guards an engine that was built without a wrapper: it lets through what needs nothing.
    pub(super) fn of_nothing() -> Arc<Self> {
        Self::new(Allocation::default(), Arc::new(|_| {}))
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("allocation", &self.allocation).finish_non_exhaustive()
    }
}

/// Any [`JobRuntime`], made aware of what this worker has: it is one itself, and gives [`Stage`] and
/// [`WrapTaskWorker`] to the engine that is built on it.
pub struct ExecutionRuntime {
    runtime: Arc<dyn JobRuntime>,
    pub(super) inner: Arc<Inner>,
}

impl fmt::Debug for ExecutionRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutionRuntime").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl ExecutionRuntime {
    /// Wraps a runtime for a worker that has this, and says who is told of handoffs.
    #[must_use]
    pub fn new(runtime: Arc<dyn JobRuntime>, allocation: Allocation, on_handoff: OnHandoff) -> Self {
        Self { runtime, inner: Inner::new(allocation, on_handoff) }
    }

    /// What the recipe engine stages the needs of each task with.
    #[must_use]
    pub fn stage(&self) -> Stage {
        Stage { inner: Arc::clone(&self.inner) }
    }

    /// What the recipe engine wraps each of its ops with.
    #[must_use]
    pub fn wrap_task_worker(&self) -> WrapTaskWorker {
        WrapTaskWorker { inner: Arc::clone(&self.inner) }
    }

    /// What this worker has.
    #[must_use]
    pub fn allocation(&self) -> &Allocation {
        &self.inner.allocation
    }
}

/// Stages what the next task needs.
#[derive(Debug, Clone)]
pub struct Stage {
    pub(super) inner: Arc<Inner>,
}

impl Stage {
    /// Stages the effective requirements of a task that is about to be called. What is staged belongs to the walk, not
    /// to a snapshot of its lease: a renewal drops nothing.
    pub(in crate::recipe) fn stage(&self, needs: &Requirements) -> Staged {
        Staged { needs: needs.clone() }
    }

    /// What of them does not fit this worker.
    pub(in crate::recipe) fn compare(&self, needs: &Requirements) -> Vec<Mismatch> {
        compare(needs, &self.inner.allocation)
    }
}

/// The staged needs of one task.
#[derive(Debug)]
pub(in crate::recipe) struct Staged {
    needs: Requirements,
}

/// Makes guarded tasks.
#[derive(Debug, Clone)]
pub struct WrapTaskWorker {
    pub(super) inner: Arc<Inner>,
}

impl WrapTaskWorker {
    /// Guards an op.
    #[must_use]
    pub fn wrap(&self, op: Arc<dyn Op>) -> GuardedTask {
        GuardedTask { op, inner: Arc::clone(&self.inner) }
    }
}

/// An op behind its guard: it runs only what was staged and fits. Nothing but [`WrapTaskWorker::wrap`] makes one.
///
/// ```compile_fail
/// use leasehold::recipe::execution::GuardedTask;
/// fn forge(op: std::sync::Arc<dyn leasehold::recipe::op::Op>) -> GuardedTask {
///     GuardedTask { op, inner: Default::default() }
/// }
/// ```
pub struct GuardedTask {
    op: Arc<dyn Op>,
    inner: Arc<Inner>,
}

impl fmt::Debug for GuardedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedTask").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// What a task needs and this worker does not have.
#[derive(Debug)]
pub(in crate::recipe) struct Declined(pub(in crate::recipe) Vec<Mismatch>);

impl GuardedTask {
    /// Compares. Called only for a task that the log says is unfinished.
    pub(in crate::recipe) fn admit(&self, staged: Staged) -> Result<Admitted, Declined> {
        let mismatches = compare(&staged.needs, &self.inner.allocation);
        if mismatches.is_empty() {
            Ok(Admitted { op: Arc::clone(&self.op) })
        } else {
            Err(Declined(mismatches))
        }
    }
}

/// A task that passed its guard.
pub(in crate::recipe) struct Admitted {
    op: Arc<dyn Op>,
}

impl Admitted {
    /// Starts it on threads of its own. The lease keeps counting it as running until it has really ended.
    pub(in crate::recipe) fn start(self, task: Task, lease: &LeaseContext, threads: &Handle) -> Running {
        let hold = lease.hold();
        let work = async move {
            let _hold = hold;
            self.op.run(task).await
        };
        let task = threads.spawn(work.in_current_span());
        lease.runs_as(task.abort_handle());
        Running(task)
    }
}

/// A task that runs. Dropped, it is ended at its next `.await`.
pub(in crate::recipe) struct Running(JoinHandle<Result<JsonText, TaskError>>);

impl Running {
    /// Its end. A panic is a failure of its own.
    pub(in crate::recipe) async fn ended(&mut self) -> Result<JsonText, TaskError> {
        match (&mut self.0).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => {
                    let fixed = panic.downcast_ref::<&str>().copied();
                    let text = fixed.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                    let text = text.unwrap_or("with a value that is no text");
                    Err(TaskError::system("panic", format!("the op panicked: {text}")))
                }
                Err(_aborted) => Err(TaskError::system("aborted", "the op was ended by force")),
            },
        }
    }

    /// Ends it by force.
    pub(in crate::recipe) async fn abort(mut self) {
        self.0.abort();
        // However it ended: it is gone.
        let _ = self.ended().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[async_trait]
impl JobRuntime for ExecutionRuntime {
    async fn poll_work(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        self.runtime.poll_work(request).await
    }

    async fn get_job_lease(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        self.runtime.get_job_lease(request).await
    }

    async fn read_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError> {
        self.runtime.read_job(namespace, job).await
    }

    async fn history(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError> {
        self.runtime.history(namespace, job, after).await
    }

    async fn lookup(&self, namespace: &Namespace, job: JobId, path: &str) -> Result<Vec<Event>, StoreError> {
        self.runtime.lookup(namespace, job, path).await
    }

    async fn record(
        &self,
        lease: &LeaseContext,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError> {
        self.runtime.record(lease, path, event).await
    }

    async fn reschedule(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        next: &Reschedule,
    ) -> Result<Ended, StoreError> {
        self.runtime.reschedule(lease, command, next).await
    }

    async fn complete(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        output: &JsonText,
    ) -> Result<Ended, StoreError> {
        self.runtime.complete(lease, command, output).await
    }

    async fn fail(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        failure: &Failure,
    ) -> Result<Ended, StoreError> {
        self.runtime.fail(lease, command, failure).await
    }

    async fn refuse(&self, lease: &LeaseContext, reason: &str) -> Result<Refusal, StoreError> {
        self.runtime.refuse(lease, reason).await
    }

    async fn register_schema(
        &self,
        namespace: &Namespace,
        route: &Route,
        schemas: &RouteSchemas,
    ) -> Result<bool, StoreError> {
        self.runtime.register_schema(namespace, route, schemas).await
    }

    async fn schema_texts(
        &self,
        namespace: &Namespace,
        digests: &[String],
    ) -> Result<Vec<SchemaText>, StoreError> {
        self.runtime.schema_texts(namespace, digests).await
    }

    async fn renew_supplied(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.runtime.renew_supplied(authority).await
    }

    fn execution(&self) -> Option<&ExecutionRuntime> {
        Some(self)
    }
}
