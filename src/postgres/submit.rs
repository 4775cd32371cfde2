//! Submission: one job, through the SQL function `leasehold.submit_job` that every language calls.

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{InvalidDefinition, JobDefinition, JobId, NewJob, RetryPolicy},
    error::StoreError,
};
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    PgStore, error,
    row::Columns,
    session::Param,
    sql_file::{Sql, sql},
};
use crate::submission;

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

pub(crate) const SUBMIT: Sql =
    sql!("submit_job", [TEXT, TEXT, TEXT, TEXT, TEXT, INT4, TIMESTAMPTZ, TEXT, INT8, TEXT, TEXT]);

/// A request as `leasehold.submit_job` takes it. What a run of a workflow leaves out is the workflow's.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) kind: Option<&'static str>,
    pub(crate) definition: Option<String>,
    pub(crate) payload: Option<&'a str>,
    pub(crate) namespace: &'a str,
    pub(crate) workflow: Option<&'a str>,
    pub(crate) priority: Option<i32>,
    pub(crate) run_at: Option<DateTime<Utc>>,
    pub(crate) key: Option<&'a str>,
    pub(crate) timeout_ms: Option<i64>,
    retry: Option<String>,
    trace_parent: Option<&'a str>,
}

impl<'a> Asked<'a> {
    pub(crate) fn of(job: &'a NewJob) -> Self {
        let workflow = submission::run_of(job);
        let definition = job.definition.as_ref().filter(|_| workflow.is_none());
        let its_own = |says_nothing: bool| workflow.is_none() || !says_nothing;
        Self {
            kind: definition.map(|d| d.kind().as_str()),
            definition: definition.map(JobDefinition::to_json),
            payload: its_own(job.payload == "null").then_some(job.payload.as_str()),
            namespace: job.namespace.as_str(),
            workflow,
            priority: its_own(job.priority == 0).then_some(i32::from(job.priority)),
            run_at: job.run_at,
            key: job.idempotency_key.as_deref(),
            timeout_ms: job.timeout_ms,
            retry: (job.retry != RetryPolicy::default())
                .then(|| serde_json::to_string(&job.retry).expect("five numbers always serialize")),
            trace_parent: job.trace_parent.as_deref(),
        }
    }

    pub(crate) fn params(&self) -> [Param<'_>; 11] {
        [
            &self.kind,
            &self.definition,
            &self.payload,
            &self.namespace,
            &self.workflow,
            &self.priority,
            &self.run_at,
            &self.key,
            &self.timeout_ms,
            &self.retry,
            &self.trace_parent,
        ]
    }
}

/// What the function answered or raised.
pub(crate) fn answer(
    job: &NewJob,
    rows: Result<Vec<Row>, tokio_postgres::Error>,
) -> Result<Submitted, SubmitError> {
    match rows {
        Ok(rows) => {
            let columns = Columns::only("submit", &rows)?;
            Ok(Submitted { job: JobId(columns.get("job_id")?), created: columns.get("created")? })
        }
        Err(e) => Err(refusal(job, &e).unwrap_or_else(|| error::store_error("submit", &e).into())),
    }
}

/// The typed reason behind one of the function's own SQLSTATEs.
fn refusal(job: &NewJob, error: &tokio_postgres::Error) -> Option<SubmitError> {
    let db = error.as_db_error()?;
    let name = || job.workflow.clone().unwrap_or_default();
    Some(match db.code().code() {
        "LH001" => {
            let field = db.column().unwrap_or("request");
            let reason = db.message().strip_prefix(field).and_then(|rest| rest.strip_prefix(": "));
            InvalidDefinition::new(field, reason.unwrap_or_else(|| db.message())).into()
        }
        "LH002" => SubmitError::IdempotencyConflict { job: JobId(db.detail()?.parse().ok()?) },
        "LH003" => SubmitError::WorkflowNotFound { name: name() },
        "LH004" => SubmitError::WorkflowTerminated { name: name() },
        _ => return None,
    })
}

impl PgStore {
    /// Submits one job: durable, and visible to workers, once this answers. With an idempotency key a repeat
    /// after a lost answer is safe; without one it would be another job.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was written, unless it is a [`SubmitError::Store`] that says "maybe".
    pub async fn submit(&self, job: &NewJob) -> Result<Submitted, SubmitError> {
        submission::validate(job)?;
        Box::pin(self.check_inputs(job)).await?;
        let asked = Asked::of(job);
        let session = self.session("submit").await?;
        let limit = self.inner.pools.timeout;
        let before = self.inner.pools.unreplicated().count();
        match tokio::time::timeout(limit, session.query(&SUBMIT, &asked.params())).await {
            Ok(Ok(_)) if self.inner.pools.unreplicated().count() != before => {
                Err(error::unreplicated("submit").into())
            }
            Ok(rows) => {
                if rows.as_ref().is_err_and(error::spoils_connection) {
                    session.discard();
                }
                answer(job, rows)
            }
            Err(_) => {
                session.discard();
                Err(error::timed_out("submit", limit).into())
            }
        }
    }
}
