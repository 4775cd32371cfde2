//! What there is: workflows, nodes, jobs and the one row of each job, as the tables of the database hold them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, TimeZone, Utc};
use tokio::time::Instant;

use crate::{
    domain::{
        CommandId, ContainerId, Epoch, Failure, JobId, JobKind, JobState, LeaseToken, Namespace, NodeId,
        RetryPolicy, Route, TaskKey,
    },
    ports::{Authority, Claimant, LogStream, Placement, TaskOccurrence, recipe::SchemaDigests},
    testing::harness::{HistoryView, WorkflowState},
};

use super::recipe::{Child, Recipe};

/// The name of the workflow of every ad-hoc run; it has no row of its own.
pub(super) const AD_HOC: &str = "adhoc";

/// The next look at a job that the overlap policy holds back.
pub(super) const BLOCKED_LOOK: Duration = Duration::from_secs(5);

/// Everything, under one lock: each transition is atomic.
#[derive(Debug)]
pub(super) struct World {
    origin: Instant,
    pub(super) cluster_generation: i64,
    /// How often the service was restarted.
    pub(super) restarts: u64,
    pub(super) last_job: i64,
    pub(super) jobs: BTreeMap<JobId, Submission>,
    pub(super) rows: BTreeMap<JobId, Row>,
    pub(super) keys: HashMap<(Namespace, String), (String, JobId)>,
    pub(super) workflows: HashMap<(Namespace, String), Workflow>,
    pub(super) workflow_slots: BTreeMap<(Namespace, String, i32), JobId>,
    pub(super) nodes: BTreeMap<(Namespace, NodeId), Node>,
    /// Each with its job, and the task of that which has it.
    pub(super) node_slots: BTreeMap<(Namespace, NodeId, i32), (JobId, Option<TaskKey>)>,
    pub(super) task_containers: BTreeMap<(JobId, TaskKey), PlacedTask>,
    pub(super) history: BTreeMap<(JobId, Epoch), PastLease>,
    pub(super) commands: HashMap<CommandId, Command>,
    pub(super) logs: Vec<StoredBatch>,
    pub(super) progress: HashMap<JobId, String>,
    pub(super) recipes: BTreeMap<JobId, Recipe>,
    /// By child.
    pub(super) children: BTreeMap<JobId, Child>,
    pub(super) last_signal: i64,
    /// By namespace and digest.
    pub(super) schemas: BTreeMap<(Namespace, String), Arc<str>>,
    /// By namespace and job type; there by op.
    pub(super) schema_routes: BTreeMap<(Namespace, String), BTreeMap<String, SchemaDigests>>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            cluster_generation: 0,
            restarts: 0,
            last_job: 0,
            jobs: BTreeMap::new(),
            rows: BTreeMap::new(),
            keys: HashMap::new(),
            workflows: HashMap::new(),
            workflow_slots: BTreeMap::new(),
            nodes: BTreeMap::new(),
            node_slots: BTreeMap::new(),
            task_containers: BTreeMap::new(),
            history: BTreeMap::new(),
            commands: HashMap::new(),
            logs: Vec::new(),
            progress: HashMap::new(),
            recipes: BTreeMap::new(),
            children: BTreeMap::new(),
            last_signal: 0,
            schemas: BTreeMap::new(),
            schema_routes: BTreeMap::new(),
        }
    }
}

/// The node of a recipe's task (table `task_containers`).
#[derive(Debug, Clone)]
pub(super) struct PlacedTask {
    pub(super) path: String,
    pub(super) epoch: i64,
    pub(super) placement: Placement,
    pub(super) container: Option<ContainerId>,
    pub(super) occurrence: TaskOccurrence,
}

/// A piece of output (table `job_logs`).
#[derive(Debug, Clone)]
pub(super) struct StoredBatch {
    pub(super) job: JobId,
    pub(super) task: Option<TaskKey>,
    pub(super) epoch: Epoch,
    pub(super) stream: LogStream,
    pub(super) first_byte: u64,
    pub(super) data: Bytes,
}

/// What submission said (table `jobs`).
#[derive(Debug, Clone)]
pub(super) struct Submission {
    pub(super) definition: Arc<str>,
    pub(super) payload: Arc<str>,
    pub(super) payload_revision: i64,
    pub(super) timeout: Option<Duration>,
    pub(super) retry: RetryPolicy,
    pub(super) trace_parent: Option<String>,
    pub(super) kind: JobKind,
    pub(super) submitted_at: DateTime<Utc>,
}

/// The row that moves (tables `waiting`, `ready`, `leases`, `ended`): what travels with it, and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) namespace: Namespace,
    pub(super) workflow: String,
    pub(super) route: Route,
    pub(super) overlap: Overlap,
    /// Minus the priority: claims take the lowest first.
    pub(super) rank: i16,
    pub(super) generation: i64,
    pub(super) dispatch_attempt: i32,
    pub(super) attempt: i32,
    pub(super) epoch: i64,
    /// USER, SYSTEM, TIMEOUT.
    pub(super) failures: [i32; 3],
    /// Claims in a row that were lost.
    pub(super) losses: i32,
    pub(super) place: Place,
}

/// How many runs of the workflow may be RUNNING at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Overlap {
    pub(super) limit: Option<i32>,
    pub(super) serial: bool,
}

/// Where a job's row stands; its state follows from that.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Waiting(Waiting),
    Ready(Ready),
    Leased(Box<Lease>),
    Ended(Box<Terminal>),
}

#[derive(Debug, Clone)]
pub(super) struct Waiting {
    /// None while a paused workflow holds it, and while it waits for no time at all.
    pub(super) due_at: Option<DateTime<Utc>>,
    /// What resume restores.
    pub(super) held_due_at: Option<DateTime<Utc>>,
    pub(super) blocked_by: Option<JobId>,
    pub(super) keep_attempt: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Ready {
    pub(super) due_at: DateTime<Utc>,
    pub(super) keep_attempt: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) owner: Claimant,
    pub(super) token: LeaseToken,
    pub(super) duration: Duration,
    pub(super) expires_at: DateTime<Utc>,
    pub(super) renewals: i32,
    /// The epoch of the latest claim; a takeover keeps it.
    pub(super) claim_epoch: i64,
    /// The claim's own holder renewed it: work may have begun.
    pub(super) claim_renewed: bool,
    /// Nobody takes it over before this.
    pub(super) not_before: Option<DateTime<Utc>>,
    pub(super) cleanup_pending_since: Option<DateTime<Utc>>,
    /// How often the service had been restarted when it was last renewed.
    pub(super) renewed_after: u64,
    /// Its loss overlapped a restart or a promotion.
    pub(super) excused: bool,
    pub(super) cancel_requested: bool,
    pub(super) cancel_deadline: Option<DateTime<Utc>>,
    pub(super) run_deadline: Option<DateTime<Utc>>,
    pub(super) placement: Option<Placement>,
    pub(super) container: Option<ContainerId>,
    /// The command that put the present token in the place of another one.
    pub(super) redeemed: Option<CommandId>,
}

#[derive(Debug, Clone)]
pub(super) struct Terminal {
    pub(super) state: JobState,
    pub(super) exit_code: Option<i32>,
    pub(super) failure: Option<Failure>,
    pub(super) output: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Workflow {
    pub(super) generation: i64,
    pub(super) state: WorkflowState,
    pub(super) route: Route,
    pub(super) definition: Arc<str>,
    pub(super) overlap: Overlap,
    pub(super) timeout: Option<Duration>,
    pub(super) retry: RetryPolicy,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) endpoint: String,
    pub(super) engine_id: String,
    pub(super) incarnation: i64,
    /// Since when it is at this engine.
    pub(super) registered_at: DateTime<Utc>,
    pub(super) ready: bool,
    /// Since when it is UNHEALTHY.
    pub(super) unhealthy_since: Option<DateTime<Utc>>,
    pub(super) fresh: bool,
    /// Silent for so long that it is not waited for any more.
    pub(super) lost: bool,
    pub(super) max_concurrency: i32,
}

/// One row of the lease history; also the memory of end commands.
#[derive(Debug, Clone)]
pub(super) struct PastLease {
    pub(super) namespace: Namespace,
    pub(super) view: HistoryView,
    pub(super) due_at: Option<DateTime<Utc>>,
}

/// A recorded claim.
#[derive(Debug, Clone)]
pub(super) struct Command {
    /// Everything that was asked for, so that another request under the id is noticed.
    pub(super) request: String,
    /// The grants as they were made.
    pub(super) grants: Vec<(JobId, LeaseToken)>,
}

impl Row {
    pub(super) fn state(&self) -> JobState {
        match &self.place {
            Place::Waiting(_) => JobState::Pending,
            Place::Ready(_) => JobState::Queued,
            Place::Leased(_) => JobState::Running,
            Place::Ended(terminal) => terminal.state,
        }
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        match &self.place {
            Place::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    pub(super) fn lease_mut(&mut self) -> Option<&mut Lease> {
        match &mut self.place {
            Place::Leased(lease) => Some(lease),
            _ => None,
        }
    }
}

impl World {
    /// The one clock.
    pub(super) fn now(&self) -> DateTime<Utc> {
        let start = Utc.timestamp_opt(1_700_000_000, 0).single().expect("a plain instant");
        start + delta(Instant::now().duration_since(self.origin))
    }

    /// The one predicate: the row of the job whose lease is live for exactly this authority.
    pub(super) fn live(&self, authority: &Authority) -> Option<&Lease> {
        let lease = self.held(authority)?;
        (lease.expires_at > self.now()).then_some(lease)
    }

    /// The lease of exactly this authority, expired or not.
    pub(super) fn held(&self, authority: &Authority) -> Option<&Lease> {
        let row = self.rows.get(&authority.job)?;
        let lease = row.lease()?;
        (row.namespace == authority.owner.namespace
            && lease.owner == authority.owner
            && lease.token == authority.token)
            .then_some(lease)
    }

    pub(super) fn live_mut(&mut self, authority: &Authority) -> Option<&mut Lease> {
        self.live(authority)?;
        self.rows.get_mut(&authority.job)?.lease_mut()
    }

    /// The generation in force for a row; ad-hoc runs have only one.
    pub(super) fn current_generation(&self, row: &Row) -> i64 {
        self.workflow_of(row).map_or(row.generation, |w| w.generation)
    }

    pub(super) fn workflow_of(&self, row: &Row) -> Option<&Workflow> {
        self.workflows.get(&(row.namespace.clone(), row.workflow.clone()))
    }
}

/// A duration on the scale of the wall clock.
pub(super) fn delta(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).expect("no test waits for millions of years")
}

/// Time from `now` to `then`; zero when that has passed.
pub(super) fn until(now: DateTime<Utc>, then: DateTime<Utc>) -> Duration {
    (then - now).to_std().unwrap_or_default()
}

pub(super) fn millis(ms: Option<i64>) -> Option<Duration> {
    ms.map(|ms| Duration::from_millis(u64::try_from(ms).expect("submission refuses negative durations")))
}
