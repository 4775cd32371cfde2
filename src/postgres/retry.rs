//! Reopening a job that ended: a person's decision, and the only way out of a terminal state.

use leasehold_actors::domain::JobState;
use serde::Serialize;

/// What a request to reopen a job did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum RetryAnswer {
    /// It is open again with fresh failure counters; its history keeps what was.
    Reopened {
        /// QUEUED, or PENDING while its workflow is paused.
        state: JobState,
    },
    /// Only FAILED and CANCELED jobs can be reopened; nothing was changed.
    NotRetryable {
        /// Where it stands.
        state: JobState,
    },
    /// Its workflow was terminated; nothing was changed.
    WorkflowTerminated,
    /// No job has this id in this namespace.
    NotFound,
}
