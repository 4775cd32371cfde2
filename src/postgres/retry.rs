//! Reopening a job that ended: a person's decision, and the only way out of a terminal state.

use leasehold_actors::{
    domain::{JobId, JobState, Namespace},
    error::StoreError,
    ports::recipe::{MAX_LOG_BYTES, MAX_LOG_EVENTS, ReopenAnswer, Reopening},
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
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
    /// A recipe: what of its log counts as unfinished has to be said. [`crate::recipe::execution::reopen`] does that.
    /// Nothing was changed.
    Recipe,
    /// No job has this id in this namespace.
    NotFound,
}

const LOCK: Sql = sql!("retry_lock", [TEXT, INT8]);
const REOPEN: Sql =
    sql!("retry_job", [TEXT, INT8, TEXT, BYTEA, INT8_ARRAY, INT8_ARRAY, INT8, INT4, INT8, INT8]);

impl PgStore {
    /// Reopens a FAILED or CANCELED job: the same job, a new attempt, fresh failure counters. Its leases and
    /// its end stay in its history.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn retry_job(&self, namespace: &Namespace, job: JobId) -> Result<RetryAnswer, StoreError> {
        let answer = transaction!(self, "retry_job", 1, session => retry(session, namespace, job, None))?;
        if answer == Verdict::Retry(RetryAnswer::NotFound) {
            // Or its row is missing: that is said by the error.
            self.show_job(namespace, job).await?;
        }
        Ok(match answer {
            Verdict::Retry(answer) => answer,
            Verdict::LogChanged | Verdict::Full => RetryAnswer::Recipe,
        })
    }

    /// [`RecipeStore::reopen`](leasehold_actors::ports::recipe::RecipeStore::reopen)
    pub(super) async fn reopen_recipe(
        &self,
        namespace: &Namespace,
        job: JobId,
        reopening: &Reopening,
    ) -> Result<ReopenAnswer, StoreError> {
        let answer =
            transaction!(self, "reopen", 1, session => retry(session, namespace, job, Some(reopening)))?;
        Ok(match answer {
            Verdict::Retry(RetryAnswer::Reopened { state }) => ReopenAnswer::Reopened { state },
            Verdict::Retry(RetryAnswer::NotRetryable { state }) => ReopenAnswer::NotRetryable { state },
            Verdict::Retry(RetryAnswer::WorkflowTerminated) => ReopenAnswer::WorkflowTerminated,
            Verdict::Retry(RetryAnswer::Recipe | RetryAnswer::NotFound) => ReopenAnswer::NotFound,
            Verdict::LogChanged => ReopenAnswer::LogChanged,
            Verdict::Full => ReopenAnswer::Full,
        })
    }
}

/// What the statement says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Retry(RetryAnswer),
    LogChanged,
    Full,
}

async fn retry(
    session: &Session,
    namespace: &Namespace,
    job: JobId,
    recipe: Option<&Reopening>,
) -> Result<Verdict, Stop<StoreError>> {
    let namespace = namespace.as_str();
    let flow = session.query(&LOCK, &[&namespace, &job.0]).await?;
    if flow.first().map(|row| row.try_get::<_, &str>("state")).transpose()? == Some("TERMINATED") {
        return Ok(Verdict::Retry(RetryAnswer::WorkflowTerminated));
    }
    let path = recipe.map(|recipe| recipe.path.as_str());
    let hash = path.map(|path| Sha256::digest(path.as_bytes()).to_vec());
    let (first, last): (Vec<i64>, Vec<i64>) =
        recipe.map(|recipe| recipe.again.iter().copied().unzip()).unwrap_or_default();
    let bytes = path.map_or(0, |path| i32::try_from(path.len()).unwrap_or(i32::MAX / 2));
    let events = recipe.map(|recipe| recipe.events);
    let params: [Param<'_>; 10] =
        [&namespace, &job.0, &path, &hash, &first, &last, &events, &bytes, &MAX_LOG_EVENTS, &MAX_LOG_BYTES];
    let rows = session.query(&REOPEN, &params).await?;
    read(&rows, recipe.is_some()).map_err(Stop::Refused)
}

fn read(rows: &[Row], as_recipe: bool) -> Result<Verdict, StoreError> {
    let columns = Columns::only("retry_job", rows)?;
    let answer = if columns.get("queued")? {
        RetryAnswer::Reopened { state: JobState::Queued }
    } else if columns.get("held")? {
        RetryAnswer::Reopened { state: JobState::Pending }
    } else {
        let is_recipe = columns.get::<Option<bool>>("is_recipe")?;
        match columns.parse_opt("state_before")? {
            None => RetryAnswer::NotFound,
            Some(_) if as_recipe && is_recipe != Some(true) => RetryAnswer::NotFound,
            Some(JobState::Failed | JobState::Canceled) if is_recipe == Some(true) => {
                if !as_recipe {
                    RetryAnswer::Recipe
                } else if columns.get::<Option<bool>>("changed")? == Some(false)
                    && columns.get::<Option<bool>>("is_full")? == Some(true)
                {
                    return Ok(Verdict::Full);
                } else {
                    // Or somebody reopened it while we waited for him.
                    return Ok(Verdict::LogChanged);
                }
            }
            Some(state) => RetryAnswer::NotRetryable { state },
        }
    };
    Ok(Verdict::Retry(answer))
}
