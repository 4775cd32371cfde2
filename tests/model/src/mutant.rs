//! Defects that can be switched on, one at a time. Each breaks one rule of the protocol, and each must be
//! caught: a model that lets one pass proves nothing about that rule.

use crate::scope::{self, Scope, Snapshots};

/// One defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Renewals and ends compare the token, and not the expiry.
    NoExpiryCheck,
    /// Renewals and ends find the lease by job id alone.
    UpdateByIdAlone,
    /// The death of the actor that holds a permit frees it.
    PermitFreedOnDrop,
    /// A batch claim gives all its grants the same token.
    OneTokenForABatch,
    /// The clock is read in the snapshot, before the row is held.
    ClockBeforeTheLock,
    /// A repeated claim or recovery grants anew instead of reading what was recorded.
    ReplayGrantsAgain,
    /// A repeated claim believes what its first, older snapshot shows of the recorded grants.
    StaleSnapshotClaim,
    /// A repeated end believes what its first, older snapshot shows of the history.
    StaleSnapshotEnd,
    /// A renewal that skipped a row held by somebody else answers "not live" at once.
    SkippedRowBelieved,
    /// A process takes over a job whose workload it still runs.
    RecoveryWhileRunning,
    /// A renewal (and nothing else) leaves out the expiry.
    RenewalRevives,
    /// Work starts on the claim's answer, without the immediate renewal.
    StartWithoutRenewal,
    /// The local deadline counts from the answer, not from before the request.
    DeadlineFromAnswer,
    /// The local deadline leaves no safety margin.
    NoMargin,
    /// A takeover keeps the epoch.
    TakeoverKeepsEpoch,
    /// A release loses the epoch.
    ReleaseForgetsEpoch,
    /// A repeated claim that grants nothing is not recorded, so that its first copy may still grant.
    EmptyRepeatNotRecorded,
    /// Recovery does not look at the expiry again once it holds the row.
    RecoverWithoutRecheck,
    /// Reconciliation compares an expiry of its snapshot with a younger clock.
    ReconcileClockAfterSnapshot,
    /// Reconciliation reads beside a renewal whose commit is on its way.
    ReconcileDoesNotWait,
    /// A recovered job is ended without dealing with its container.
    CleanupSkipped,
    /// A takeover forgets that the claim was renewed, so that the next recovery sees nothing to clean up.
    TakeoverForgetsRenewals,
    /// A release ignores a requested cancel.
    CancelForgotten,
    /// Recovery looks only at leases whose process is still there.
    DeadOwnersForgotten,
}

impl Mutant {
    /// Every mutant, in the order of the report.
    pub const ALL: [Self; 24] = [
        Self::NoExpiryCheck,
        Self::UpdateByIdAlone,
        Self::PermitFreedOnDrop,
        Self::OneTokenForABatch,
        Self::ClockBeforeTheLock,
        Self::ReplayGrantsAgain,
        Self::StaleSnapshotClaim,
        Self::StaleSnapshotEnd,
        Self::SkippedRowBelieved,
        Self::RecoveryWhileRunning,
        Self::RenewalRevives,
        Self::StartWithoutRenewal,
        Self::DeadlineFromAnswer,
        Self::NoMargin,
        Self::TakeoverKeepsEpoch,
        Self::ReleaseForgetsEpoch,
        Self::EmptyRepeatNotRecorded,
        Self::RecoverWithoutRecheck,
        Self::ReconcileClockAfterSnapshot,
        Self::ReconcileDoesNotWait,
        Self::CleanupSkipped,
        Self::TakeoverForgetsRenewals,
        Self::CancelForgotten,
        Self::DeadOwnersForgotten,
    ];

    /// The property that must catch it.
    #[must_use]
    pub const fn breaks(self) -> &'static str {
        match self {
            Self::RecoverWithoutRecheck => "L1",
            Self::UpdateByIdAlone | Self::OneTokenForABatch | Self::NoExpiryCheck => "L2",
            Self::ClockBeforeTheLock | Self::RenewalRevives => "L3",
            Self::TakeoverKeepsEpoch | Self::ReleaseForgetsEpoch => "L4",
            Self::RecoveryWhileRunning
            | Self::StartWithoutRenewal
            | Self::DeadlineFromAnswer
            | Self::NoMargin
            | Self::CleanupSkipped
            | Self::TakeoverForgetsRenewals => "L5",
            Self::PermitFreedOnDrop
            | Self::StaleSnapshotClaim
            | Self::SkippedRowBelieved
            | Self::EmptyRepeatNotRecorded
            | Self::ReconcileClockAfterSnapshot
            | Self::ReconcileDoesNotWait => "L8",
            Self::ReplayGrantsAgain => "L10 grants",
            Self::StaleSnapshotEnd => "L10 answers",
            Self::CancelForgotten => "cancel",
            Self::DeadOwnersForgotten => "L10 progress",
        }
    }

    /// A scope that shows it, with no more steps in it than are needed.
    #[must_use]
    pub const fn scope(self) -> Scope {
        let brief = scope::ONE_JOB_QUICK;
        match self {
            Self::OneTokenForABatch => scope::BATCH,
            Self::ClockBeforeTheLock | Self::StaleSnapshotEnd => Scope { snapshots: Snapshots::All, ..brief },
            _ => brief,
        }
    }

    /// Whether it makes something of a lease that is lost, or of a call made under it.
    #[must_use]
    pub const fn lets_lost_leases_act(self) -> bool {
        matches!(
            self,
            Self::ClockBeforeTheLock
                | Self::NoExpiryCheck
                | Self::OneTokenForABatch
                | Self::ReconcileClockAfterSnapshot
                | Self::ReconcileDoesNotWait
                | Self::RenewalRevives
                | Self::StaleSnapshotEnd
                | Self::UpdateByIdAlone
        )
    }

    /// What it does wrong, in one line.
    #[must_use]
    pub const fn defect(self) -> &'static str {
        match self {
            Self::NoExpiryCheck => "renewals and ends do not look at the expiry",
            Self::UpdateByIdAlone => "renewals and ends find the lease by job id alone",
            Self::PermitFreedOnDrop => "a permit is freed when its actor dies",
            Self::OneTokenForABatch => "a batch claim gives one token to all its grants",
            Self::ClockBeforeTheLock => "the clock is read in the snapshot, before the row is held",
            Self::ReplayGrantsAgain => "a replay grants anew instead of reading the record",
            Self::StaleSnapshotClaim => "a replay believes a snapshot older than the first copy's commit",
            Self::StaleSnapshotEnd => "a repeated end believes a snapshot older than the first copy's commit",
            Self::SkippedRowBelieved => "a renewal that skipped a locked row answers not live",
            Self::RecoveryWhileRunning => "a process takes over a job whose workload it still runs",
            Self::RenewalRevives => "only renewals do not look at the expiry",
            Self::StartWithoutRenewal => "work starts on the claim's answer, without a renewal",
            Self::DeadlineFromAnswer => "the local deadline counts from the answer",
            Self::NoMargin => "the local deadline leaves no safety margin",
            Self::TakeoverKeepsEpoch => "a takeover keeps the epoch",
            Self::ReleaseForgetsEpoch => "a release loses the epoch",
            Self::EmptyRepeatNotRecorded => "a replay that grants nothing is not recorded",
            Self::RecoverWithoutRecheck => "recovery does not check the expiry again under the row lock",
            Self::ReconcileClockAfterSnapshot => "reconcile compares its snapshot with a younger clock",
            Self::ReconcileDoesNotWait => {
                "reconcile does not wait for the row, and misses an uncommitted renewal"
            }
            Self::CleanupSkipped => "a recovered job is ended and its container left running",
            Self::TakeoverForgetsRenewals => "a takeover forgets that the claim was renewed",
            Self::CancelForgotten => "a release ignores a requested cancel",
            Self::DeadOwnersForgotten => "recovery looks only at leases of processes that are alive",
        }
    }
}
