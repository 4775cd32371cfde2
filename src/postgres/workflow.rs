//! Workflows: named, versioned definitions. Every change that makes scheduled work stale raises the
//! generation, and the same transaction ends the PENDING and QUEUED jobs of older ones.

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{InvalidDefinition, JobKind, Namespace, RetryPolicy},
    error::StoreError,
};
use serde::Serialize;
use serde_json::value::RawValue;

/// Whether a workflow's runs may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum WorkflowState {
    /// They may.
    Active,
    /// They wait until it is resumed.
    Paused,
    /// Never again.
    Terminated,
}

/// A workflow as a listing shows it.
#[derive(Debug, Clone, Serialize)]
pub struct WorkflowRow {
    /// Its name.
    pub name: String,
    /// The tenant.
    pub namespace: Namespace,
    /// Whether its runs may start.
    pub state: WorkflowState,
    /// Rises at every change that makes scheduled work stale.
    pub generation: i64,
    /// What executes its runs.
    pub kind: JobKind,
    /// HANDLER: the handler's name.
    pub route: String,
    /// `allow`, `allow(n)` or `serial`.
    pub overlap: String,
    /// Priority of its runs.
    pub priority: i16,
    /// When it was first applied.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
}

/// A workflow with all that is known of it.
#[derive(Debug, Clone, Serialize)]
pub struct WorkflowDetail {
    /// What a listing shows.
    #[serde(flatten)]
    pub row: WorkflowRow,
    /// What its runs do.
    pub definition: Box<RawValue>,
    /// The payload of runs that bring none.
    pub payload: Box<RawValue>,
    /// The longest that one attempt may run.
    pub timeout_ms: Option<i64>,
    /// How often to try.
    pub retry: RetryPolicy,
    /// Unfinished runs by state.
    pub jobs: UnfinishedRuns,
    /// What each generation changed, newest first, at most 100.
    pub history: Vec<WorkflowChange>,
}

/// Unfinished runs of a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct UnfinishedRuns {
    /// PENDING.
    pub pending: i64,
    /// QUEUED.
    pub queued: i64,
    /// RUNNING.
    pub running: i64,
}

/// One generation of a workflow.
#[derive(Debug, Clone, Serialize)]
pub struct WorkflowChange {
    /// The generation that began.
    pub generation: i64,
    /// `created`, `edited`, `paused` or `terminated`.
    pub change: String,
    /// When.
    pub changed_at: DateTime<Utc>,
    /// The definition in force from then on.
    pub definition: Box<RawValue>,
}

/// What a change of a workflow did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum WorkflowChanged {
    /// It is new.
    Created {
        /// The generation in force.
        generation: i64,
    },
    /// It changed.
    Changed {
        /// The generation in force.
        generation: i64,
        /// PENDING and QUEUED runs that ended CANCELED, code `superseded`.
        superseded: i64,
        /// Runs that wait from now on (pause), or wait no more (resume).
        moved: i64,
    },
    /// It was so already; nothing was written.
    Unchanged {
        /// The generation in force.
        generation: i64,
    },
}

/// Why a workflow was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WorkflowError {
    /// The document breaks a rule.
    #[error(transparent)]
    Invalid(#[from] InvalidDefinition),
    /// There is no such workflow.
    #[error("workflow_not_found: there is no workflow {name:?}; see `leasehold workflow list`")]
    NotFound {
        /// The name asked for.
        name: String,
    },
    /// `adhoc` stands for runs without a workflow.
    #[error("`adhoc` stands for runs without a workflow: it cannot be edited, paused or terminated")]
    Reserved,
    /// It was terminated, for good.
    #[error("workflow_terminated: workflow {name:?} was terminated; apply the definition under another name")]
    Terminated {
        /// The name asked for.
        name: String,
    },
    /// The database gave no answer, or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}
