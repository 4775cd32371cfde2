//! How the run of a supplied lease ended, and the exit code of a process that is nothing but this run.

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{Failure, JobId, JobKind, Namespace, Route},
    error::{StoreError, StoreErrorKind},
    ports::recipe::JsonText,
};

use crate::recipe::execution::{ExecutionHandoff, Waiting};

/// How it ended: one lease lifecycle.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RunEnd {
    /// The recipe came to its end.
    Completed {
        /// Its output, as raw JSON text.
        output: Option<JsonText>,
    },
    /// The job waits, on no worker.
    Waiting(Waiting),
    /// The op of the next task is not here: the job goes on elsewhere.
    OtherRoute {
        /// Where.
        route: Route,
    },
    /// The next task does not fit here: the job goes on elsewhere.
    EnvironmentRequired(Box<ExecutionHandoff>),
    /// The job failed for good.
    Failed(Failure),
    /// This attempt failed, and the job is tried again.
    Retrying {
        /// Why it failed; none where the database alone knows.
        failure: Option<Failure>,
        /// When.
        at: DateTime<Utc>,
    },
    /// Somebody asked for the job to be cancelled, and it was.
    Canceled,
    /// It was stopped before its end, and the job given back: it goes on from what is recorded.
    Released(Given),
    /// Nothing was started.
    Refused(Refused),
    /// The lease was lost on the way: nothing was reported.
    Lost(LostLease),
    /// The database brought no answer: nothing is known to be reported.
    Unknown(Unanswered),
    /// The work could not be ended in its time, or this program is at fault; end the process.
    Broken {
        /// What went wrong.
        reason: String,
    },
}

/// Why a job was given back before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// The run was told to stop.
    Stopped,
    /// Its deadline was over.
    Deadline,
    /// The hook before the run said no.
    BeforeRun(String),
}

/// Why nothing was started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The lease is not of the job that was asked for.
    #[error(
        "the capability is for job {job} of namespace {namespace}, not for job {asked_job} of {asked_namespace}"
    )]
    OtherJob {
        /// The capability's.
        namespace: Namespace,
        /// The capability's.
        job: JobId,
        /// The request's.
        asked_namespace: Namespace,
        /// The request's.
        asked_job: JobId,
    },
    /// There is no such job there.
    #[error(
        "there is no job {job} in namespace {namespace}; the capability is of another database or namespace"
    )]
    JobNotFound {
        /// The capability's.
        namespace: Namespace,
        /// The capability's.
        job: JobId,
    },
    /// The lease has expired or ended, or somebody else redeemed it.
    #[error(
        "lease_not_live: the lease has expired or ended, or was redeemed by another process; acquire a new one"
    )]
    NotLive,
    /// Only recipes are run so.
    #[error("wrong_kind: the job is a {kind}, and only RECIPE jobs are run with a supplied lease")]
    WrongKind {
        /// What it is.
        kind: JobKind,
    },
    /// Its job type is not served here.
    #[error("route_not_served: nobody here serves jobs of the type {:?}", route.name)]
    RouteNotServed {
        /// Its route.
        route: Route,
    },
    /// Its execution payload cannot be read here.
    #[error("not admitted: {0}")]
    NotAdmitted(String),
}

/// How a lease was lost. Distinct from a database that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LostLease {
    /// The database said so.
    #[error(
        "lease_not_live: the lease was lost while the recipe ran; recovery goes on from what is recorded"
    )]
    NotLive,
    /// This process was held up for longer than its lease.
    #[error("the lease ran out while this process stood still; recovery goes on from what is recorded")]
    RanOut,
}

/// In which part of a run an answer stayed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunPhase {
    /// The look at the lease.
    Validation,
    /// The redemption of an imported lease.
    Redemption,
    /// The immediate renewal.
    FirstRenewal,
    /// A renewal while the recipe ran.
    Renewal,
    /// The report of the end.
    Report,
}

impl std::fmt::Display for RunPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Validation => "validation",
            Self::Redemption => "redemption",
            Self::FirstRenewal => "first renewal",
            Self::Renewal => "renewal",
            Self::Report => "report",
        })
    }
}

/// A failure of transport: an answer that stayed out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{phase}: `{operation}` brought no answer from {destination} ({category}): {detail}")]
pub struct Unanswered {
    /// The call.
    pub operation: &'static str,
    /// Where in the run.
    pub phase: RunPhase,
    /// What kind of trouble: `unreachable`, `timeout`, …
    pub category: &'static str,
    /// The database, without a password.
    pub destination: String,
    /// One line for people.
    pub detail: String,
}

impl Unanswered {
    pub(super) fn of(phase: RunPhase, destination: &str, error: &StoreError) -> Self {
        Self {
            operation: error.operation,
            phase,
            category: match error.kind {
                StoreErrorKind::Unreachable => "unreachable",
                StoreErrorKind::Timeout => "timeout",
                StoreErrorKind::RowLocked => "row_locked",
                StoreErrorKind::ReadOnly => "read_only",
                StoreErrorKind::Refused => "refused",
                StoreErrorKind::CommandConflict => "command_conflict",
            },
            destination: destination.to_owned(),
            detail: error.message.clone(),
        }
    }

    pub(super) fn silent(
        phase: RunPhase,
        operation: &'static str,
        destination: &str,
        detail: impl Into<String>,
    ) -> Self {
        let destination = destination.to_owned();
        Self { operation, phase, category: "timeout", destination, detail: detail.into() }
    }
}

impl RunEnd {
    pub(super) fn broken(reason: impl Into<String>) -> Self {
        Self::Broken { reason: reason.into() }
    }

    /// A stable word for each.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Waiting(_) => "waiting",
            Self::OtherRoute { .. } => "other_route",
            Self::EnvironmentRequired(_) => "environment_required",
            Self::Failed(_) => "failed",
            Self::Retrying { .. } => "retrying",
            Self::Canceled => "canceled",
            Self::Released(_) => "released",
            Self::Refused(_) => "refused",
            Self::Lost(_) => "lost",
            Self::Unknown(_) => "unknown",
            Self::Broken { .. } => "broken",
        }
    }

    /// The exit code of a process that is nothing but this run: 0 completed, rescheduled, handed off or given back; 1 the
    /// recipe failed or was cancelled; 3 the lease was refused or lost; 5 it is of another job or namespace; 6 no answer.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Completed { .. }
            | Self::Waiting(_)
            | Self::OtherRoute { .. }
            | Self::EnvironmentRequired(_)
            | Self::Released(_) => 0,
            Self::Failed(_) | Self::Retrying { .. } | Self::Canceled | Self::Broken { .. } => 1,
            Self::Refused(Refused::OtherJob { .. } | Refused::JobNotFound { .. }) => 5,
            Self::Refused(_) | Self::Lost(_) => 3,
            Self::Unknown(_) => 6,
        }
    }
}
