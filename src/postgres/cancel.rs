//! Cancel requests by people. The holder of a lease carries the cancel out (see the lease protocol).

use chrono::{DateTime, Utc};
use leasehold_actors::domain::JobState;
use serde::Serialize;

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
