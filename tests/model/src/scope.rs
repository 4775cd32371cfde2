//! How much of the world an exploration covers. Every bound is named here; README.md says what it loses.

/// What a permit may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Claims only: `EXECUTION_WORKER_CONCURRENCY`.
    Claim,
    /// Recovery only: `EXECUTION_WORKER_RECOVERY_PERMITS`.
    Recovery,
    /// Either. More than the product allows, so nothing is lost by it.
    Any,
    /// Not there.
    None,
}

impl Role {
    /// Whether it may be reserved for a claim.
    #[must_use]
    pub const fn claims(self) -> bool {
        matches!(self, Self::Claim | Self::Any)
    }

    /// Whether it may be reserved for a recovery.
    #[must_use]
    pub const fn recovers(self) -> bool {
        matches!(self, Self::Recovery | Self::Any)
    }
}

/// Which statements take their snapshot as a step of its own, so that anything may happen between the
/// snapshot and the rows. The others take both at once. Each is still older than the clock that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshots {
    /// Every statement.
    All,
    /// Claims and recoveries. A renewal or an end looks for one row by its token: that row is in every
    /// snapshot, or it is gone for good, so there is nothing to be told apart.
    Searches,
    /// None. A claim whose snapshot is stale grants nothing, or grants what a claim made just then would.
    None,
}

/// The bounds of one exploration. Steps, grants, losses, restarts and time are not bounded.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Its name on the command line.
    pub name: &'static str,
    /// Lease duration in ticks.
    pub lease: u8,
    /// Safety margin in ticks.
    pub margin: u8,
    /// How many late requests travel at once.
    pub late: usize,
    /// How many jobs there are.
    pub jobs: usize,
    /// What the permits of each worker are for.
    pub roles: [[Role; 2]; 2],
    /// Whether somebody may request cancellation.
    pub cancel: bool,
    /// Whether processes may be killed and started again.
    pub restarts: bool,
    /// Whether a workload may refuse to die.
    pub blocks: bool,
    /// Whether states are tidied; see [`crate::tidy`].
    pub tidy: bool,
    /// Which statements take their snapshot as a step of its own.
    pub snapshots: Snapshots,
}

/// One job, nothing tidied, every snapshot a step of its own: checks that what the other scopes leave out
/// hides nothing.
pub const PLAIN: Scope = Scope {
    name: "plain",
    lease: 2,
    margin: 1,
    late: 1,
    jobs: 1,
    roles: [[Role::Claim, Role::Recovery]; 2],
    cancel: false,
    restarts: true,
    blocks: false,
    tidy: false,
    snapshots: Snapshots::All,
};

/// One job with everything: late requests, restarts, cancels, a workload that may refuse to die. Most mutants
/// are caught here.
pub const ONE_JOB: Scope = Scope { name: "one-job", cancel: true, blocks: true, tidy: true, ..PLAIN };

/// Two jobs, late requests, restarts.
pub const TWO_JOBS: Scope =
    Scope { name: "two-jobs", jobs: 2, tidy: true, snapshots: Snapshots::Searches, ..PLAIN };

/// Two jobs, small enough for every run of the tests.
pub const TWO_JOBS_QUICK: Scope = Scope { name: "two-jobs-quick", late: 0, cancel: true, ..TWO_JOBS };

/// Two jobs and batch claims: both permits of a worker may be reserved by one claim.
pub const BATCH: Scope =
    Scope { name: "batch", late: 0, roles: [[Role::Any; 2]; 2], snapshots: Snapshots::Searches, ..TWO_JOBS };

/// Two jobs with late requests and cancels.
pub const TWO_JOBS_CANCEL: Scope =
    Scope { name: "two-jobs-cancel", cancel: true, snapshots: Snapshots::None, ..TWO_JOBS };

/// One job, with two late requests at once.
pub const TWO_LATE: Scope =
    Scope { name: "two-late", late: 2, tidy: true, snapshots: Snapshots::Searches, ..PLAIN };

/// One job, with a finer clock: three ticks to a lease.
pub const THREE_TICKS: Scope = Scope { name: "three-ticks", lease: 3, ..ONE_JOB };

/// Explored by the tests and by default.
pub const QUICK: [Scope; 3] = [ONE_JOB, TWO_JOBS_QUICK, BATCH];

/// Explored by `leasehold-model full`.
pub const FULL: [Scope; 7] = [ONE_JOB, THREE_TICKS, TWO_LATE, PLAIN, BATCH, TWO_JOBS, TWO_JOBS_CANCEL];
