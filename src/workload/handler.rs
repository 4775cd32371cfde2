//! HANDLER: Rust functions of the embedding program, registered by name.
//!
//! A handler takes its argument already decoded and a [`LeaseHandle`], and returns a result or a
//! [`HandlerError`]. What becomes of the job:
//!
//! | the handler | the job |
//! |---|---|
//! | returns `Ok(value)` | COMPLETED, the value is its output |
//! | returns `Err(HandlerError::user(…))`, or any other error through `?` | fails as `USER` |
//! | returns `Err(HandlerError::system(…))` | fails as `SYSTEM` |
//! | cannot be given the payload | fails as `USER`, code `bad_payload` |
//! | panics | fails as `SYSTEM`, code `panic`, with the panic's text; nothing else in the process notices |
//! | returns a value of more than 1 MiB as JSON, or without a JSON form | fails as `USER`, code `bad_output` |
//! | returns an error after it was told to stop | cancelled, timed out or given back, as the stop said |
//!
//! # Stopping
//!
//! [`LeaseHandle::cancelled`] resolves when the work must end. A handler that goes on has the worker's stop
//! grace (5 s), and never longer than its lease, until its future is dropped at the next `.await`.
//!
//! # Exactly once
//!
//! What a handler writes to the database of its jobs can be tied to its lease ([`LeaseHandle::fence_in`]) or to the end
//! of the job ([`LeaseHandle::complete_in`]). Elsewhere the epoch protects: see `docs/fencing.md`.
//!
//! # Blocking
//!
//! Handlers run on threads of their own, apart from those that renew leases and talk to the database, so a
//! handler that blocks loses no lease. But it cannot be dropped while it blocks, and it occupies one of few
//! threads: wrap blocking work in [`tokio::task::spawn_blocking`]. A handler that is still blocked at its
//! deadline keeps its permit, which is then reported as *stuck*, until it returns.

use std::{any::Any, collections::BTreeMap, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use leasehold_actors::{
    domain::{Epoch, Failure, FailureKind, JobDefinition, JobId, Namespace, Route},
    ports::{Grant, Renewal},
    work::{LeaseCallError, LeaseContext, StopReason, WorkOutcome},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::runtime::Handle;
use tracing::Instrument as _;

use super::task::AbortOnDrop;

/// One job as its handler sees it.
#[derive(Debug, Clone)]
pub struct Job<T> {
    /// The job.
    pub id: JobId,
    /// The tenant that it belongs to.
    pub namespace: Namespace,
    /// The workflow that it is a run of, or `adhoc`.
    pub workflow: String,
    /// Which attempt this is, from 1.
    pub attempt: i32,
    /// The submitter's W3C `traceparent`.
    pub trace_parent: Option<String>,
    /// The payload.
    pub payload: T,
}

/// Why a handler did not succeed.
///
/// Any error converts into one by `?`, as a `USER` failure with code `handler_error`: the job's own code
/// failed, and whether that is worth another try is for the job's retry policy (`max_user`) to say. Use
/// [`HandlerError::system`] for trouble of the surroundings, which is retried by default.
#[derive(Debug)]
pub struct HandlerError {
    failure: Option<Failure>,
}

impl HandlerError {
    /// The job's own fault: bad input, a refused request. Final by default.
    #[must_use]
    pub fn user(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::of(FailureKind::User, code, message)
    }

    /// The surroundings' fault: a service that is down. Retried by default.
    #[must_use]
    pub fn system(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::of(FailureKind::System, code, message)
    }

    /// Something took longer than it may.
    #[must_use]
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::of(FailureKind::Timeout, "timeout", message)
    }

    /// The handler stopped because [`LeaseHandle::cancelled`] asked for it. (Any error after that request
    /// counts as this one.)
    #[must_use]
    pub fn stopped() -> Self {
        Self { failure: None }
    }

    fn of(kind: FailureKind, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { failure: Some(Failure::new(kind, code, message)) }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            Some(failure) => write!(f, "{} {}: {}", failure.kind, failure.code, failure.message),
            None => f.write_str("stopped as asked"),
        }
    }
}

impl<E: std::error::Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::user("handler_error", message)
    }
}

/// A handler's hold on its lease. Cheap to clone; may be moved into tasks of its own.
#[derive(Debug, Clone)]
pub struct LeaseHandle {
    context: LeaseContext,
}

impl LeaseHandle {
    /// The job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.context.authority().job
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> i32 {
        self.context.grant().attempt
    }

    /// The fencing epoch: hand it to every system that is written to, so that it can refuse an older writer.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.context.authority().epoch
    }

    /// Time until the work must be over, unless a renewal moves that on; zero once the lease is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.context.remaining()
    }

    /// Whether the work may go on: the lease is held, as far as this process can know, and nobody asked for
    /// a stop. Look at it before every effect that must not happen twice.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.context.stop_reason().is_none() && !self.context.remaining().is_zero()
    }

    /// Why the work must stop, if it must.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.context.stop_reason()
    }

    /// Resolves when the work must stop, with the reason. Safe to drop and to await again.
    pub async fn cancelled(&self) -> StopReason {
        self.context.stopped().await
    }

    /// Replaces the job's progress note, which people see beside it; at most 4 KiB of JSON.
    ///
    /// # Errors
    /// [`ProgressError`] when the note is too long, the lease is lost, or the database did not answer.
    pub async fn progress<P: Serialize + Sync>(&self, note: &P) -> Result<(), ProgressError> {
        let json = serde_json::to_string(note).map_err(|e| ProgressError::NotJson(e.to_string()))?;
        if json.len() > PROGRESS_LIMIT {
            return Err(ProgressError::TooLong(json.len()));
        }
        match self.context.report_progress(&json).await? {
            Renewal::Held { .. } => Ok(()),
            Renewal::NotLive => Err(ProgressError::Lease(LeaseCallError::Lost)),
        }
    }
}

/// The most bytes of a progress note.
const PROGRESS_LIMIT: usize = 4096;

/// A progress note that was not stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProgressError {
    /// The note has no JSON form.
    #[error("the progress note cannot be written as JSON: {0}")]
    NotJson(String),
    /// The note is too long.
    #[error("the progress note is {0} bytes long; at most 4096 are kept")]
    TooLong(usize),
    /// The lease is lost, or the store did not answer.
    #[error(transparent)]
    Lease(#[from] LeaseCallError),
}

/// The most bytes of a result.
const OUTPUT_LIMIT: usize = 1024 * 1024;

type BoxedRun = Pin<Box<dyn Future<Output = Result<Option<String>, HandlerError>> + Send>>;
type Erased = dyn Fn(&Grant, LeaseContext) -> Result<BoxedRun, Failure> + Send + Sync;

/// The handlers of one worker, by name.
#[derive(Clone, Default)]
pub struct Handlers {
    by_name: BTreeMap<String, Arc<Erased>>,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

impl Handlers {
    /// Adds a handler; one of the same name is replaced.
    pub fn register<T, R, F, Fut>(&mut self, name: impl Into<String>, handler: F)
    where
        T: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
        F: Fn(Job<T>, LeaseHandle) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let erased = move |grant: &Grant, context: LeaseContext| -> Result<BoxedRun, Failure> {
            let payload = serde_json::from_str::<T>(&grant.payload).map_err(|e| {
                Failure::new(FailureKind::User, "bad_payload", format!("the payload does not fit: {e}"))
            })?;
            let job = Job {
                id: grant.authority.job,
                namespace: grant.authority.owner.namespace.clone(),
                workflow: grant.workflow.clone(),
                attempt: grant.attempt,
                trace_parent: grant.trace_parent.clone(),
                payload,
            };
            let run = handler(job, LeaseHandle { context });
            Ok(Box::pin(async move { run.await.and_then(|value| to_output(&value)) }))
        };
        self.by_name.insert(name.into(), Arc::new(erased));
    }

    /// What a worker with these handlers polls for.
    pub fn routes(&self) -> impl Iterator<Item = Route> {
        self.by_name.keys().map(Route::handler)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Runs the job of a grant on `runtime`. Returns only when the handler's future is really gone: also a
    /// handler that blocks past every limit is never reported as ended while it still runs. Dropping the
    /// returned future drops the handler's at its next `.await`.
    pub(crate) async fn run(&self, grant: &Arc<Grant>, lease: LeaseContext, runtime: &Handle) -> WorkOutcome {
        let name = match JobDefinition::from_json(grant.kind, &grant.definition) {
            Ok(JobDefinition::Handler { name }) => name,
            Ok(_) => grant.route.name.clone(),
            Err(error) => return failed(FailureKind::User, "bad_definition", error.to_string()),
        };
        let Some(handler) = self.by_name.get(&name).cloned() else {
            let text =
                format!("this worker has no handler {name:?}; register it, or run a worker that has it");
            return failed(FailureKind::System, "no_such_handler", text);
        };

        // The user's code begins with the call itself (a panic before its first `.await`, or in its
        // `Deserialize`), so the call is made inside the task too.
        let (for_call, context) = (Arc::clone(grant), lease.clone());
        let hold = lease.hold();
        let work = async move {
            let _hold = hold;
            match handler(&for_call, context) {
                Ok(run) => Ended::Returned(run.await),
                Err(failure) => Ended::Refused(failure),
            }
        };
        // What a handler logs stands under its job.
        let task = runtime.spawn(work.in_current_span());
        lease.runs_as(task.abort_handle());
        let mut task = AbortOnDrop(task);
        let ended = tokio::select! {
            ended = &mut task.0 => ended,
            reason = lease.stopped() => {
                let grace = lease.stop_budget();
                tracing::debug!(job = %grant.authority.job, ?reason, ?grace, "handler told to stop");
                if let Ok(ended) = tokio::time::timeout(grace, &mut task.0).await { ended } else {
                    task.0.abort();
                    (&mut task.0).await
                }
            }
        };
        outcome(ended, lease.stop_reason())
    }
}

/// How a handler's task ended by itself.
enum Ended {
    Returned(Result<Option<String>, HandlerError>),
    Refused(Failure),
}

fn outcome(ended: Result<Ended, tokio::task::JoinError>, stop: Option<StopReason>) -> WorkOutcome {
    match ended {
        Ok(Ended::Returned(Ok(output))) => WorkOutcome::Completed { exit_code: None, output },
        // What goes wrong after the request to stop is a consequence of it, and costs the job no try.
        Ok(Ended::Returned(Err(_))) if stop.is_some() => WorkOutcome::Stopped,
        Ok(Ended::Returned(Err(error))) => match error.failure {
            Some(failure) => WorkOutcome::Failed(failure),
            None => failed(
                FailureKind::User,
                "handler_error",
                "the handler said that it was stopped, but nobody asked it to stop",
            ),
        },
        Ok(Ended::Refused(failure)) => WorkOutcome::Failed(failure),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => failed(FailureKind::System, "panic", panic_text(panic.as_ref())),
            Err(_aborted) if stop.is_some() => WorkOutcome::Stopped,
            Err(_aborted) => failed(
                FailureKind::System,
                "aborted",
                "the runtime that runs handlers was shut down before the handler ended",
            ),
        },
    }
}

fn failed(kind: FailureKind, code: &str, message: impl Into<String>) -> WorkOutcome {
    WorkOutcome::Failed(Failure::new(kind, code, message))
}

fn to_output<R: Serialize>(value: &R) -> Result<Option<String>, HandlerError> {
    match serde_json::to_string(value) {
        Ok(json) if json == "null" => Ok(None),
        Ok(json) if json.len() > OUTPUT_LIMIT => Err(HandlerError::user(
            "bad_output",
            format!("the result is {} bytes long as JSON; at most {OUTPUT_LIMIT} are kept", json.len()),
        )),
        Ok(json) => Ok(Some(json)),
        Err(error) => {
            Err(HandlerError::user("bad_output", format!("the result cannot be written as JSON: {error}")))
        }
    }
}

/// The text of a panic, where it has one.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let fixed = panic.downcast_ref::<&str>().copied();
    match fixed.or_else(|| panic.downcast_ref::<String>().map(String::as_str)) {
        Some(text) => format!("the handler panicked: {text}"),
        None => "the handler panicked with a value that is no text".to_owned(),
    }
}

mod transaction;

pub use transaction::InTransactionError;

#[cfg(test)]
mod tests;
