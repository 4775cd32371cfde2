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
}

/// When somebody may request the cancellation of a RUNNING job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancels {
    /// Never.
    No,
    /// Just before a release takes the row. A request is seen by renewals and by ends only; what a renewal
    /// tells of it, its holder may do at any time (end the job); so before a release is when it counts.
    BeforeRelease,
    /// At any time.
    Anytime,
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
    /// When somebody may request cancellation; of a PENDING or QUEUED job at any time, if at all.
    pub cancel: Cancels,
    /// Whether processes may be killed and started again.
    pub restarts: bool,
    /// Whether a workload may refuse to die.
    pub blocks: bool,
    /// Whether a statement that holds its rows reads the clock in a step of its own. Elsewhere both are one
    /// step, the later of the two: until then the rows can still be taken by others, and who would have
    /// skipped them may still find nothing.
    pub clock_apart: bool,
    /// Whether an answer travels while other things happen. Elsewhere it arrives or is lost at once; the worker
    /// may still be slow to act on it.
    pub slow_answers: bool,
    /// Whether states are tidied; see [`crate::tidy`].
    pub tidy: bool,
    /// Which statements take their snapshot as a step of its own.
    pub snapshots: Snapshots,
}

/// Two jobs and everything but workloads that refuse to die: late requests, restarts, cancels, snapshots and row
/// locks. The other scopes look closer at less.
pub const TWO_JOBS: Scope = Scope {
    name: "two-jobs",
    lease: 2,
    margin: 1,
    late: 1,
    jobs: 2,
    roles: [[Role::Claim, Role::Recovery]; 2],
    cancel: Cancels::BeforeRelease,
    restarts: true,
    blocks: false,
    clock_apart: false,
    slow_answers: false,
    tidy: true,
    snapshots: Snapshots::Searches,
};

/// Two jobs, small enough for every run of the tests.
pub const TWO_JOBS_QUICK: Scope = Scope { name: "two-jobs-quick", late: 0, blocks: true, ..TWO_JOBS };

/// Two jobs and batch claims: both permits of a worker may be reserved by one claim.
pub const BATCH: Scope = Scope {
    name: "batch",
    late: 0,
    roles: [[Role::Any; 2]; 2],
    cancel: Cancels::No,
    blocks: false,
    ..TWO_JOBS
};

/// One job in the smallest steps there are.
pub const ONE_JOB: Scope = Scope {
    name: "one-job",
    jobs: 1,
    cancel: Cancels::Anytime,
    blocks: true,
    clock_apart: true,
    slow_answers: true,
    snapshots: Snapshots::All,
    ..TWO_JOBS
};

/// One job in the steps of `two-jobs`. Most mutants are caught here.
pub const ONE_JOB_QUICK: Scope =
    Scope { name: "one-job-quick", jobs: 1, cancel: Cancels::Anytime, blocks: true, ..TWO_JOBS };

/// One job, with two late requests at once.
pub const TWO_LATE: Scope = Scope { name: "two-late", late: 2, ..ONE_JOB_QUICK };

/// One job, with a finer clock: three ticks to a lease.
pub const THREE_TICKS: Scope = Scope { name: "three-ticks", lease: 3, ..ONE_JOB_QUICK };

/// One job, one permit a worker, and nothing tidied: checks that what the other scopes leave out hides
/// nothing.
pub const PLAIN: Scope = Scope {
    name: "plain",
    roles: [[Role::Any, Role::None]; 2],
    cancel: Cancels::No,
    blocks: false,
    tidy: false,
    snapshots: Snapshots::All,
    ..ONE_JOB_QUICK
};

/// Explored by the tests and by default.
pub const QUICK: [Scope; 4] = [PLAIN, ONE_JOB_QUICK, TWO_JOBS_QUICK, BATCH];

/// Explored by `leasehold-model full`: these after the quick ones.
pub const FULL: [Scope; 4] = [TWO_JOBS, ONE_JOB, TWO_LATE, THREE_TICKS];
