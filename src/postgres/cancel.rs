//! Cancel requests by people. The holder of a lease carries the cancel out (see the lease protocol).

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{JobId, JobState, Namespace},
    error::StoreError,
};
use serde::Serialize;

use super::{
    PgStore, error,
    row::Columns,
    session::Param,
    sql_file::{Sql, sql},
};
use crate::submission::container::MAX_STOP_GRACE_MS;

/// What a cancel request did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum CancelAnswer {
    /// It had not started, and is CANCELED now.
    Canceled,
    /// It is RUNNING: its holder was told, and loses the lease at the deadline if it does not obey.
    Requested {
        /// When the first request came.
        requested_at: DateTime<Utc>,
        /// A renewal later than this extends nothing.
        deadline: DateTime<Utc>,
    },
    /// It had ended; nothing was changed.
    AlreadyEnded {
        /// How.
        state: JobState,
    },
    /// No job has this id in this namespace.
    NotFound,
}

const CANCEL: Sql = sql!("cancel_job", [TEXT, INT8, INT8]);

/// A job that is passed from table to table is asked for this often before the caller is told to try again.
const LOOKS: usize = 50;

impl PgStore {
    /// Cancels a job that has not started, or asks the holder of its lease to stop it within `stop_grace`
    /// (a CONTAINER's own stop grace goes before). Asking twice changes nothing.
    ///
    /// # Errors
    /// [`StoreError`]. A repeat is always safe.
    pub async fn request_cancel(
        &self,
        namespace: &Namespace,
        job: JobId,
        stop_grace: Duration,
    ) -> Result<CancelAnswer, StoreError> {
        let grace = i64::try_from(stop_grace.as_millis()).unwrap_or(i64::MAX).clamp(0, MAX_STOP_GRACE_MS);
        let params: [Param<'_>; 3] = [&namespace.as_str(), &job.0, &grace];
        for look in 0..LOOKS {
            let rows = self.call("request_cancel", &CANCEL, &params).await?;
            let columns = Columns::only("request_cancel", &rows)?;
            if columns.get("canceled")? {
                return Ok(CancelAnswer::Canceled);
            }
            if let (Some(requested_at), Some(deadline)) =
                (columns.get("cancel_requested_at")?, columns.get("cancel_deadline")?)
            {
                return Ok(CancelAnswer::Requested { requested_at, deadline });
            }
            if let Some(state) = columns.parse_opt("ended_state")? {
                return Ok(CancelAnswer::AlreadyEnded { state });
            }
            if !columns.get("known")? {
                return Ok(CancelAnswer::NotFound);
            }
            if look == LOOKS / 2 {
                // In one snapshot it stands somewhere, unless its row is gone.
                self.show_job(namespace, job).await?;
            }
            // It moved between two tables while the statement looked: its snapshot shows it in neither.
            // A younger one does.
        }
        Err(error::garbled("request_cancel", format!("job {job} moves too fast to be caught; try again")))
    }
}
