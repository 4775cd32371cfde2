//! What a run leaves behind, in one form for the checker: the promises made at submission, every change of a
//! lease and of an end as the database recorded it, and what the workloads themselves wrote outside of it.
//!
//! All instants are microseconds of the machine's real wall clock, whichever clock a process was shown.

/// Microseconds since 1970.
pub type Micros = i64;

pub const SECOND: Micros = 1_000_000;

/// How a job's script says that it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Completed,
    Failed { code: String },
    Canceled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Handler,
    Heartbeat,
    Container,
}

/// A job that was accepted, and its script.
#[derive(Debug, Clone)]
pub struct Accepted {
    pub job: i64,
    pub kind: Kind,
    pub outcome: Outcome,
}

/// A lease as a row shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub epoch: i64,
    /// A digest.
    pub token: String,
    /// Worker and process.
    pub owner: String,
    pub expires: Micros,
}

/// One change of one row of `leases`, in the order of the row's changes.
#[derive(Debug, Clone)]
pub struct LeaseEvent {
    pub at: Micros,
    pub job: i64,
    pub before: Option<Holder>,
    pub after: Option<Holder>,
    /// The epoch of the claim that containers carry.
    pub claim_epoch: i64,
    pub lease: Micros,
    /// A request to cancel arrived: nobody's mutation under a token.
    pub cancel: bool,
    /// Recovery gave the lease up for now.
    pub postponed: bool,
    pub node: Option<String>,
    pub container: Option<String>,
    /// The worker (or agent) whose session made the change, if it was one of the fleet.
    pub member: Option<String>,
}

/// What a change of a lease was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Granted,
    TakenOver,
    Renewed,
    Postponed,
    CancelRequested,
    /// An attach, or a renewal past a deadline.
    Touched,
    Gone,
}

impl LeaseEvent {
    pub fn change(&self) -> Change {
        let (Some(before), Some(after)) = (&self.before, &self.after) else {
            return if self.before.is_none() { Change::Granted } else { Change::Gone };
        };
        if (before.epoch, &before.token) != (after.epoch, &after.token) || before.owner != after.owner {
            Change::TakenOver
        } else if self.cancel {
            Change::CancelRequested
        } else if self.postponed {
            Change::Postponed
        } else if before.expires == after.expires {
            Change::Touched
        } else {
            Change::Renewed
        }
    }
}

/// A row that came to `ended`, was changed there, or left it.
#[derive(Debug, Clone)]
pub struct EndEvent {
    pub at: Micros,
    pub job: i64,
    pub op: EndOp,
    pub state: String,
    pub code: Option<String>,
    pub epoch: i64,
    pub attempt: i32,
    /// USER, SYSTEM, TIMEOUT.
    pub failures: [i32; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOp {
    Came,
    Changed,
    Left,
}

/// A row of `lease_history`.
#[derive(Debug, Clone)]
pub struct Past {
    pub job: i64,
    pub epoch: i64,
    pub how: String,
    pub owner: String,
    pub granted: Micros,
    pub ended: Micros,
    pub attempt: i32,
    pub kind: Option<String>,
    pub code: Option<String>,
}

/// Who wrote to the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writer {
    /// A handler in this process.
    Handler {
        pid: u32,
    },
    Container,
}

/// One execution of a workload, as the ledger has it: a connection that was open for as long as it lived.
#[derive(Debug, Clone)]
pub struct Run {
    pub job: i64,
    pub epoch: i64,
    pub writer: Writer,
    /// By the workload's own monotonic clock.
    pub started: Micros,
    pub ticks: Vec<Micros>,
    /// It wrote that it came to its end by itself.
    pub ended: Option<Micros>,
    /// The ledger saw the connection close; none when it never did.
    pub closed: Option<Micros>,
}

impl Run {
    /// The last sign of life that it gave itself.
    pub fn last_word(&self) -> Micros {
        self.ended.or_else(|| self.ticks.last().copied()).unwrap_or(self.started)
    }
}

/// A process that was stopped by a signal, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Freeze {
    pub pid: u32,
    pub from: Micros,
    pub to: Micros,
}

/// A container of the fleet, as looks at an engine found it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub engine: String,
    pub id: String,
    /// From its labels.
    pub node: String,
    pub job: i64,
    pub epoch: i64,
    pub last_seen: Micros,
}

/// While a node could not act: its engine, its agent or the way to them was disturbed.
#[derive(Debug, Clone)]
pub struct Outage {
    pub node: String,
    pub from: Micros,
    pub to: Micros,
}

/// Slots and placed RUNNING jobs in one snapshot, as (node, job).
#[derive(Debug, Clone)]
pub struct SlotSample {
    pub at: Micros,
    pub slots: Vec<(String, i64)>,
    pub running: Vec<(String, i64)>,
}

/// A worker's permits by state.
#[derive(Debug, Clone)]
pub struct PermitSample {
    pub at: Micros,
    pub worker: String,
    pub capacity: u32,
    /// reserved, active, awaiting replay, awaiting reconciliation, stuck, free
    pub states: [u32; 6],
    /// Taken when all work was done and all was quiet.
    pub last: bool,
}

/// How close to call it.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Between the moment that a statement reads its clock and the moment that the row's change is stamped.
    pub statement: Micros,
    /// How late the ledger may notice that a connection has closed.
    pub notice: Micros,
    /// How long a woken process may take to end what it found running.
    pub waking: Micros,
    /// How long a container may outlive its grant on a reachable node.
    pub leftover: Micros,
    pub slots_per_node: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            statement: SECOND / 2,
            notice: 3 * SECOND / 10,
            waking: 2 * SECOND,
            leftover: 30 * SECOND,
            slots_per_node: 4,
        }
    }
}

/// Everything.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub limits: Limits,
    pub accepted: Vec<Accepted>,
    pub leases: Vec<LeaseEvent>,
    pub ends: Vec<EndEvent>,
    pub past: Vec<Past>,
    pub runs: Vec<Run>,
    pub freezes: Vec<Freeze>,
    pub containers: Vec<Seen>,
    /// Which engine belongs to which node: (node, engine).
    pub nodes: Vec<(String, String)>,
    pub outages: Vec<Outage>,
    /// Containers that requests through a node's way named, once each: (node, container id).
    pub touched: Vec<(String, String)>,
    pub slots: Vec<SlotSample>,
    pub permits: Vec<PermitSample>,
    /// At the end: where each job stood, (job, table).
    pub standing: Vec<(i64, String)>,
    /// At the end: containers of the fleet left on an engine.
    pub left: Vec<String>,
}
