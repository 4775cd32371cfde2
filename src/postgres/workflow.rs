//! Workflows: named, versioned definitions; what is read of them. How they change is in `workflow_change`.

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{InvalidDefinition, JobKind, Namespace, RetryPolicy},
    error::StoreError,
};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::Row;

use super::{
    PgStore,
    read::Page,
    row::Columns,
    session::Param,
    sql_file::{Sql, sql},
};
use crate::submission::document::Overlap;

const LIST: Sql = sql!("workflow_list", [TEXT, TEXT, INT8]);
const SHOW: Sql = sql!("workflow_show", [TEXT, TEXT]);
const HISTORY: Sql = sql!("workflow_history", [TEXT, TEXT]);

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

impl std::str::FromStr for WorkflowState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ACTIVE" => Ok(Self::Active),
            "PAUSED" => Ok(Self::Paused),
            "TERMINATED" => Ok(Self::Terminated),
            _ => Err(format!("unknown workflow state {text:?}")),
        }
    }
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
        /// Resume: runs that wait no more. Pause: RECIPE runs in flight that wait from now on.
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

impl PgStore {
    /// Workflows by name, `limit` (1 to 1000) a page; `after` is [`Page::next`] of the page before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn workflow_list(
        &self,
        namespace: &Namespace,
        limit: u32,
        after: Option<&str>,
    ) -> Result<Page<WorkflowRow>, StoreError> {
        let limit = i64::from(limit.clamp(1, 1000));
        let rows = self.call("workflow_list", &LIST, &[&namespace.as_str(), &after, &(limit + 1)]).await?;
        let items = rows.iter().map(workflow_row).collect::<Result<Vec<_>, _>>()?;
        Ok(Page::cut(items, limit, |row| row.name.clone()))
    }

    /// One workflow with all that is known of it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn workflow_show(
        &self,
        namespace: &Namespace,
        name: &str,
    ) -> Result<Option<WorkflowDetail>, StoreError> {
        let key: [Param<'_>; 2] = [&namespace.as_str(), &name];
        let rows = self.call("workflow_show", &SHOW, &key).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let columns = Columns::new("workflow_show", row);
        let history = self.call("workflow_history", &HISTORY, &key).await?;
        Ok(Some(WorkflowDetail {
            row: workflow_row(row)?,
            definition: columns.raw("definition")?,
            payload: columns.raw("payload")?,
            timeout_ms: columns.get("timeout_ms")?,
            retry: RetryPolicy {
                max_user: columns.get("max_user")?,
                max_system: columns.get("max_system")?,
                max_timeout: columns.get("max_timeout")?,
                backoff_ms: columns.get("backoff_ms")?,
                backoff_cap_ms: columns.get("backoff_cap_ms")?,
            },
            jobs: UnfinishedRuns {
                pending: columns.get("pending")?,
                queued: columns.get("queued")?,
                running: columns.get("running")?,
            },
            history: history.iter().map(workflow_change).collect::<Result<_, _>>()?,
        }))
    }
}

fn workflow_row(row: &Row) -> Result<WorkflowRow, StoreError> {
    let columns = Columns::new("workflow", row);
    let overlap = match (columns.get("overlap_serial")?, columns.get("overlap_limit")?) {
        (true, _) => Overlap::Serial,
        (false, Some(n)) => Overlap::AllowN(n),
        (false, None) => Overlap::Allow,
    };
    Ok(WorkflowRow {
        name: columns.get("name")?,
        namespace: columns.parse("namespace")?,
        state: columns.parse("state")?,
        generation: columns.get("generation")?,
        kind: columns.parse("kind")?,
        route: columns.get("route")?,
        overlap: overlap.to_string(),
        priority: columns.get("priority")?,
        created_at: columns.get("created_at")?,
        updated_at: columns.get("updated_at")?,
    })
}

fn workflow_change(row: &Row) -> Result<WorkflowChange, StoreError> {
    let columns = Columns::new("workflow_history", row);
    Ok(WorkflowChange {
        generation: columns.get("generation")?,
        change: columns.get("change")?,
        changed_at: columns.get("changed_at")?,
        definition: columns.raw("definition")?,
    })
}
