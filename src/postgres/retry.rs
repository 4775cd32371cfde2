//! Reopening a job that ended: a person's decision, and the only way out of a terminal state.

use leasehold_actors::{
    domain::{JobId, JobState, Namespace},
    error::StoreError,
};
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    PgStore,
    row::Columns,
    session::{Param, Session},
    sql_file::{Sql, sql},
    transaction::{Stop, transaction},
};

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

const LOCK: Sql = sql!("retry_lock", [TEXT, INT8]);
const REOPEN: Sql = sql!("retry_job", [TEXT, INT8]);

impl PgStore {
    /// Reopens a FAILED or CANCELED job: the same job, a new attempt, fresh failure counters. Its leases and
    /// its end stay in its history.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn retry_job(&self, namespace: &Namespace, job: JobId) -> Result<RetryAnswer, StoreError> {
        let answer = transaction!(self, "retry_job", 1, session => reopen(session, namespace, job))?;
        if answer == RetryAnswer::NotFound {
            // Or its row is missing: that is said by the error.
            self.show_job(namespace, job).await?;
        }
        Ok(answer)
    }
}

async fn reopen(
    session: &Session,
    namespace: &Namespace,
    job: JobId,
) -> Result<RetryAnswer, Stop<StoreError>> {
    let params: [Param<'_>; 2] = [&namespace.as_str(), &job.0];
    let flow = session.query(&LOCK, &params).await?;
    if flow.first().map(|row| row.try_get::<_, &str>("state")).transpose()? == Some("TERMINATED") {
        return Ok(RetryAnswer::WorkflowTerminated);
    }
    let rows = session.query(&REOPEN, &params).await?;
    read(&rows).map_err(Stop::Refused)
}

fn read(rows: &[Row]) -> Result<RetryAnswer, StoreError> {
    let columns = Columns::only("retry_job", rows)?;
    Ok(if columns.get("queued")? {
        RetryAnswer::Reopened { state: JobState::Queued }
    } else if columns.get("held")? {
        RetryAnswer::Reopened { state: JobState::Pending }
    } else {
        match columns.parse_opt("state_before")? {
            Some(state) => RetryAnswer::NotRetryable { state },
            None => RetryAnswer::NotFound,
        }
    })
}
