//! Submission: one job, through the SQL function `leasehold.submit_job` that every language calls.

use leasehold_actors::{
    domain::{InvalidDefinition, JobId},
    error::StoreError,
};
use serde::Serialize;

/// A job that is durable, or will be once the caller's transaction commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Submitted {
    /// The job.
    pub job: JobId,
    /// False when the idempotency key brought back an earlier submission's job.
    pub created: bool,
}

/// Why nothing was submitted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SubmitError {
    /// The request breaks a rule.
    #[error(transparent)]
    Invalid(#[from] InvalidDefinition),
    /// The idempotency key stands for another request.
    #[error(
        "idempotency_conflict: that key was used for another request, which is job {job}; use a fresh key"
    )]
    IdempotencyConflict {
        /// The job that has the key.
        job: JobId,
    },
    /// There is no such workflow.
    #[error("workflow_not_found: there is no workflow {name:?}; see `leasehold workflow list`")]
    WorkflowNotFound {
        /// The name asked for.
        name: String,
    },
    /// The workflow takes no more runs.
    #[error("workflow_terminated: workflow {name:?} was terminated and takes no more runs")]
    WorkflowTerminated {
        /// The name asked for.
        name: String,
    },
    /// The database gave no answer, or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}
