//! What the model knows at one instant: the jobs' rows, the permits of the two workers, the requests that
//! travel without anybody waiting for them, and the statements in the middle of their work.
//!
//! Time has no absolute value here. A lease stores the ticks that are left, a fence entry the ticks to its
//! deadline, so that a history that goes on for ever still visits finitely many states.

use crate::names::{Job, JobSet, Worker};

/// Permits of one worker.
pub const PERMITS: usize = 2;
/// Room for late requests; a [`crate::scope::Scope`] may use less of it.
pub const LATE: usize = 2;

/// A process of a worker: the one alive, or any of its predecessors. Predecessors need no numbers, because
/// all that they left behind (a lease, a request) is told apart by its token or its command id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The worker.
    pub worker: Worker,
    /// Whether this is the process that runs now.
    pub alive: bool,
}

/// The lease columns of a RUNNING job's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The owner: worker id and process id.
    pub owner: Process,
    /// The token's number. Unique among the tokens that any row holds, unless a mutant breaks that.
    pub token: u8,
    /// Ticks until it expires by the database's clock; live means more than zero.
    pub left: u8,
    /// Whether it was renewed since the claim; a takeover does not change that.
    pub renewed: bool,
    /// The command that granted it; 0 when nobody can ask for that command any more.
    pub command: u8,
}

/// Where a job's row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// PENDING.
    Pending,
    /// QUEUED: the row is the dispatch message.
    Queued,
    /// RUNNING, under a lease (live or expired).
    Running(Lease),
    /// COMPLETED, FAILED or CANCELED.
    Ended,
}

/// A job: its row, and the container that nobody of this world keeps an eye on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// Where it stands.
    pub place: Place,
    /// Somebody requested its cancellation while it was RUNNING.
    pub cancel: bool,
    /// Its container outlived the process that had started it, and still runs.
    pub orphan: bool,
    /// By how much the row's epoch is below the highest epoch ever handed out for the job. Always 0 in the
    /// protocol as specified; only a mutant makes it more.
    pub epoch_lag: u8,
}

/// A token as somebody outside the database remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A row holds this token.
    Is(u8),
    /// No row holds it any more. Tokens are never used twice, so it can never match again.
    Replaced,
    /// No row holds it any more, and the history says that this holder's own end command ended it.
    Ended,
}

/// A grant as its holder remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The job.
    pub job: Job,
    /// The secret.
    pub token: Token,
}

/// How a holder ends its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Complete, final fail, or cancel of a claimed job.
    Terminal,
    /// Release, reschedule, or a fail with a try left: PENDING again.
    Back,
    /// Of a recovered lease only: cleanup is not possible now. The job stays RUNNING, its lease expires at
    /// once, and a later recovery goes on.
    Postpone,
}

/// A request to the jobs service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// An open claim of at most `room` jobs.
    Claim {
        /// Names the claim.
        command: u8,
        /// Whether an answer to it may have been lost.
        repeat: bool,
        /// How many permits were reserved for it.
        room: u8,
    },
    /// Recovery of one expired lease.
    Recover {
        /// Names the recovery.
        command: u8,
        /// Whether an answer to it may have been lost.
        repeat: bool,
        /// Jobs that this process still has a permit for.
        except: JobSet,
    },
    /// Renewal of a lease.
    Renew(Grant),
    /// End of a lease.
    End(Grant, Outcome),
    /// What became of a grant?
    Reconcile(Grant),
}

impl Request {
    /// The command id of a claim or a recovery, otherwise 0.
    #[must_use]
    pub const fn command(self) -> u8 {
        match self {
            Self::Claim { command, .. } | Self::Recover { command, .. } => command,
            _ => 0,
        }
    }
}

/// What a statement remembers from its snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Rows that it saw and may take; later, the rows that it holds.
    pub jobs: JobSet,
    /// Only a mutant looks at this: whether the lease was live by a clock read this early.
    pub live: bool,
    /// Only a mutant looks at this: whether its command was recorded already.
    pub recorded: bool,
    /// The ticks left of the expiry that was written and is to be committed. (A mutant keeps the expiry of
    /// its snapshot here.)
    pub left: u8,
}

/// An answer on its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To a claim or a recovery: these jobs are granted; none is an answer too.
    Granted(JobSet),
    /// To a renewal: extended.
    Held {
        /// Somebody requested cancellation.
        cancel: bool,
    },
    /// To a renewal or an end: the lease is not live.
    NotLive,
    /// To an end: recorded, now or by an earlier copy of the command.
    Done,
    /// To a reconciliation: exactly this authority is live.
    Live,
    /// To a reconciliation: expired, or changed.
    Over,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The request travels.
    Sent,
    /// The statement has its snapshot and holds no row.
    Snapped(View),
    /// The statement holds its rows (`View::jobs`); others wait for them or skip them.
    Holding(View),
    /// It has read the clock and written (`View::left` is left of the expiry that it wrote), and nobody sees
    /// that yet: the commit is on its way. Its rows are still held.
    Written(View),
    /// Committed; the answer travels.
    Replied(Answer),
}

/// A call: a request, and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who sent it.
    pub from: Process,
    /// What is asked.
    pub request: Request,
    /// How far it has come.
    pub stage: Stage,
    /// Renewals only: ticks since it was sent, by the sender's own clock.
    pub age: u8,
}

/// Where a grant came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A claim.
    Claim,
    /// A takeover of a lease that was renewed since its claim.
    Started,
    /// A takeover of a lease that was never renewed: nothing can have been started.
    Untouched,
}

/// What a permit stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Free.
    Free,
    /// Reserved for a claim or recovery in flight; with `repeat`, awaiting replay.
    Asking {
        /// The command id.
        command: u8,
        /// An earlier copy brought no answer.
        repeat: bool,
        /// A recovery, not a claim.
        recovery: bool,
    },
    /// Reserved together with another permit, for the same batch claim.
    Joined {
        /// The command id.
        command: u8,
    },
    /// Active: the immediate renewal is not confirmed yet; nothing has been started or touched.
    Starting {
        /// The grant.
        grant: Grant,
        /// Where it came from.
        origin: Origin,
    },
    /// Active: the workload runs.
    Running {
        /// The grant.
        grant: Grant,
        /// Ticks until the workload must be dead, by the worker's own clock.
        deadline: u8,
    },
    /// Active: a recovered lease is confirmed; the old container is being dealt with.
    Cleaning {
        /// The grant.
        grant: Grant,
        /// The claim was renewed, so that there may be a container to deal with.
        started: bool,
    },
    /// Active: no workload any more; the end is to be confirmed.
    Ending {
        /// The grant.
        grant: Grant,
        /// How it ended.
        outcome: Outcome,
    },
    /// Stuck: the owner of the lease in this process is gone, and the workload still runs.
    Stuck {
        /// The grant.
        grant: Grant,
        /// Ticks until the fence kills it.
        deadline: u8,
        /// It cannot be killed (a handler that blocks): the named exception of L5.
        blocked: bool,
    },
    /// Awaiting reconciliation: no workload, renewals have stopped for good.
    Reconciling {
        /// The grant.
        grant: Grant,
    },
}

impl Phase {
    /// The grant that the permit holds.
    #[must_use]
    pub const fn grant(self) -> Option<Grant> {
        match self {
            Self::Starting { grant, .. }
            | Self::Running { grant, .. }
            | Self::Cleaning { grant, .. }
            | Self::Ending { grant, .. }
            | Self::Stuck { grant, .. }
            | Self::Reconciling { grant } => Some(grant),
            Self::Free | Self::Asking { .. } | Self::Joined { .. } => None,
        }
    }

    /// Whether a workload runs under it.
    #[must_use]
    pub const fn works(self) -> bool {
        matches!(self, Self::Running { .. } | Self::Stuck { .. })
    }

    /// The command that it is reserved for, otherwise 0.
    #[must_use]
    pub const fn command(self) -> u8 {
        match self {
            Self::Asking { command, .. } | Self::Joined { command } => command,
            _ => 0,
        }
    }
}

/// A permit, and the call whose answer it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// What it stands for.
    pub phase: Phase,
    /// The call.
    pub call: Option<Call>,
}

impl Stage {
    /// The rows that a statement at this stage holds.
    #[must_use]
    pub const fn held(self) -> JobSet {
        match self {
            Self::Holding(view) | Self::Written(view) => view.jobs,
            Self::Sent | Self::Snapped(_) | Self::Replied(_) => JobSet::NONE,
        }
    }
}

impl Permit {
    /// A free permit.
    pub const FREE: Self = Self { phase: Phase::Free, call: None };
}

/// Whose call: one that a permit waits for, or a late one that nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The call of a worker's permit.
    Permit(Worker, usize),
    /// A late call.
    Late(usize),
}

/// What may change places without making another state; follows from the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alike {
    /// The workers: their permits have the same roles.
    pub workers: bool,
    /// The permits of each worker: they have the same role.
    pub permits: bool,
}

/// The whole world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The jobs.
    pub jobs: [JobRow; 2],
    /// The permits of each worker.
    pub permits: [[Permit; PERMITS]; 2],
    /// Requests whose sender has stopped waiting, or has died; they may still take effect.
    pub late: [Option<Call>; LATE],
    /// Bit c: command c is recorded.
    pub recorded: u16,
    /// What a step has broken; see [`crate::properties`].
    pub broken: u16,
    /// What is interchangeable.
    pub alike: Alike,
}
