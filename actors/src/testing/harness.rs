//! What the conformance suite needs of a store beyond the port: to fill it, to make time pass for one row,
//! and to look at what became of a job. The memory store and the PostgreSQL tests both implement it.
//!
//! Methods panic when the store itself fails: a test has nothing better to do with such an error.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};

use crate::{
    domain::{
        CommandId, ContainerId, Epoch, Failure, JobDefinition, JobId, JobState, Namespace, NewJob, NodeId,
        ProcessId, RetryPolicy, WorkerId,
    },
    ports::{LeaseStore, LogStream, recipe::RecipeStore},
};

/// A workflow as a test defines it.
#[derive(Debug, Clone)]
pub struct TestWorkflow {
    /// The tenant.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// What a run of it does.
    pub definition: JobDefinition,
    /// How many runs may be RUNNING at once; none is no limit.
    pub overlap_limit: Option<i32>,
    /// No run while an earlier one is unfinished; implies a limit of one.
    pub overlap_serial: bool,
    /// The longest that one attempt may run.
    pub timeout_ms: Option<i64>,
    /// How often a run is tried.
    pub retry: RetryPolicy,
}

impl TestWorkflow {
    /// A workflow without any limit.
    #[must_use]
    pub fn new(namespace: &Namespace, name: &str, definition: JobDefinition) -> Self {
        Self {
            namespace: namespace.clone(),
            name: name.to_owned(),
            definition,
            overlap_limit: None,
            overlap_serial: false,
            timeout_ms: None,
            retry: RetryPolicy::default(),
        }
    }
}

/// What a person does to a workflow. Each change but `Resume` raises its generation, and ends the PENDING and
/// QUEUED jobs of the older one as CANCELED, code `superseded`, before the method returns. What a pause holds gets
/// its generation only at the resume: nothing but a terminate ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkflowChange {
    /// Changes the definition (to any other of the same kind and route).
    Edit,
    /// Holds what is submitted from now on.
    Pause,
    /// Lets go what was held, under the present generation.
    Resume,
    /// Takes no more runs, for good.
    Terminate,
}

/// Where a workflow stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkflowState {
    /// Runs are claimed.
    Active,
    /// Runs are held.
    Paused,
    /// No run is taken or claimed.
    Terminated,
}

/// A runtime node as a test registers it; READY and fresh.
#[derive(Debug, Clone)]
pub struct TestNode {
    /// The tenant.
    pub namespace: Namespace,
    /// Its name.
    pub node: NodeId,
    /// Where its engine listens.
    pub endpoint: String,
    /// The engine's own id.
    pub engine_id: String,
    /// Slots.
    pub max_concurrency: i32,
}

impl TestNode {
    /// The operating system of every test node, as its engine names it.
    pub const OS: &'static str = "linux";
    /// The architecture of every test node, as its engine names it.
    pub const ARCHITECTURE: &'static str = "x86_64";
    /// The processors of every test node, in thousandths of a core.
    pub const CPU_MILLIS: i64 = 2000;
    /// The memory of every test node.
    pub const MEMORY_BYTES: i64 = 1 << 30;

    /// A node with this many slots.
    ///
    /// # Panics
    /// When `name` is no node id.
    #[must_use]
    pub fn new(namespace: &Namespace, name: &str, max_concurrency: i32) -> Self {
        Self {
            namespace: namespace.clone(),
            node: NodeId::new(name).expect("the test names a valid node"),
            endpoint: format!("unix:///run/{name}.sock"),
            engine_id: format!("ENGINE-{name}"),
            max_concurrency,
        }
    }
}

/// The answer to a request to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelAnswer {
    /// It was PENDING or QUEUED and is CANCELED now.
    Canceled,
    /// It is RUNNING; its holder will see the flag. Also the answer to a second request.
    Requested,
    /// Too late.
    AlreadyEnded(JobState),
    /// No such job in this namespace.
    NotFound,
}

/// One job as it stands now.
#[derive(Debug, Clone, PartialEq)]
pub struct JobView {
    /// Where it stands.
    pub state: JobState,
    /// The generation that it belongs to.
    pub generation: i64,
    /// How often it was queued.
    pub dispatch_attempt: i32,
    /// How often it was claimed (releases and reschedules not counted).
    pub attempt: i32,
    /// The epoch of its latest grant; zero before the first.
    pub epoch: i64,
    /// Failures by kind: USER, SYSTEM, TIMEOUT.
    pub failures: [i32; 3],
    /// Claims in a row that were lost.
    pub losses: i32,
    /// PENDING: when it becomes due; none while a paused workflow holds it. QUEUED: when it was due.
    pub due_at: Option<DateTime<Utc>>,
    /// PENDING: the run that it waits for.
    pub blocked_by: Option<JobId>,
    /// RUNNING: until when, if not renewed.
    pub lease_expires_at: Option<DateTime<Utc>>,
    /// RUNNING: how often it was renewed since its grant.
    pub renewals: i32,
    /// RUNNING: somebody asked for it to be cancelled.
    pub cancel_requested: bool,
    /// RUNNING: a later renewal extends nothing, because of a requested cancel.
    pub cancel_deadline: Option<DateTime<Utc>>,
    /// RUNNING: a later renewal extends nothing, because of the job's timeout.
    pub run_deadline: Option<DateTime<Utc>>,
    /// RUNNING: where it was placed.
    pub node: Option<NodeId>,
    /// RUNNING: its container.
    pub container: Option<ContainerId>,
    /// The route's name, and the task to go on with.
    pub route: (String, String),
    /// The revision of its payload.
    pub payload_revision: i64,
    /// Ended: the program's exit code.
    pub exit_code: Option<i32>,
    /// Ended as FAILED, or CANCELED with a code: why.
    pub failure_code: Option<String>,
    /// Ended: the result, as raw JSON text.
    pub output: Option<String>,
}

/// One ended lease.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryView {
    /// Its epoch.
    pub epoch: Epoch,
    /// How it ended: `completed`, `failed`, `retrying`, `canceled`, `released`, `rescheduled` or `expired`.
    pub how: String,
    /// Whose it was.
    pub worker: WorkerId,
    /// Which life of the worker.
    pub process: ProcessId,
    /// The attempt.
    pub attempt: i32,
    /// How often it was renewed.
    pub renewals: i32,
    /// The command that ended it.
    pub command: Option<CommandId>,
    /// Where it ran.
    pub node: Option<NodeId>,
    /// Its container.
    pub container: Option<ContainerId>,
    /// The failure that ended it, where one did.
    pub failure: Option<Failure>,
}

/// One stored batch of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLog {
    /// The grant that wrote it.
    pub epoch: Epoch,
    /// The stream.
    pub stream: LogStream,
    /// How many bytes of the stream came before.
    pub first_byte: u64,
    /// The bytes.
    pub data: Bytes,
}

/// A store under test, with the hands that a test needs besides the port.
#[async_trait]
pub trait StoreHarness: Send + Sync {
    /// The store itself.
    fn store(&self) -> Arc<dyn LeaseStore>;

    /// The same store, as recipes see it.
    fn recipes(&self) -> Arc<dyn RecipeStore>;

    /// Makes the log of a RECIPE job count so many events and bytes more than are in it.
    async fn pretend_log(&self, job: JobId, events: i64, bytes: i64);

    /// Makes a QUEUED job due so much earlier.
    async fn age_queued(&self, job: JobId, by: Duration);

    /// Accepts a job.
    async fn submit(&self, job: &NewJob) -> JobId;

    /// Defines a workflow, generation 1, active.
    async fn define_workflow(&self, workflow: &TestWorkflow);

    /// Does to a workflow what a person would.
    async fn change_workflow(&self, namespace: &Namespace, name: &str, change: WorkflowChange);

    /// Writes a workflow's generation and state and nothing else, as if its jobs had not been swept yet.
    async fn force_workflow(&self, namespace: &Namespace, name: &str, generation: i64, state: WorkflowState);

    /// Asks for a job to be cancelled.
    async fn request_cancel(&self, namespace: &Namespace, job: JobId, grace: Duration) -> CancelAnswer;

    /// Registers a node, READY and fresh, or registers it anew.
    async fn register_node(&self, node: &TestNode);

    /// Makes a node's last heartbeat so old that it is not fresh any more, but not so old that it is lost.
    async fn silence_node(&self, namespace: &Namespace, node: &NodeId);

    /// Sets a node to DRAINING.
    async fn drain_node(&self, namespace: &Namespace, node: &NodeId);

    /// Makes a node's last heartbeat so old that it is not waited for any more.
    async fn lose_node(&self, namespace: &Namespace, node: &NodeId);

    /// Sets a node to UNHEALTHY, from now on.
    async fn sicken_node(&self, namespace: &Namespace, node: &NodeId);

    /// Makes it so long ago that a node became UNHEALTHY that it is not waited for any more.
    async fn age_sickness(&self, namespace: &Namespace, node: &NodeId);

    /// Removes a node, whatever runs on it.
    async fn forget_node(&self, namespace: &Namespace, node: &NodeId);

    /// Makes it so long ago that the node was registered at its engine that whatever heartbeated under its id before
    /// counts as lost.
    async fn age_registration(&self, namespace: &Namespace, node: &NodeId);

    /// Moves the expiry of a RUNNING job's lease into the past: since its last renewal the service was not restarted.
    async fn expire(&self, job: JobId);

    /// As [`StoreHarness::expire`], so long ago.
    async fn expire_ago(&self, job: JobId, ago: Duration);

    /// As [`StoreHarness::expire`], but since its last renewal the service was restarted.
    async fn expire_over_a_restart(&self, job: JobId);

    /// Raises the fleet's generation, as the promotion of a standby does.
    async fn promote(&self);

    /// Ends the time for which a job's recovery was postponed.
    async fn end_postponement(&self, job: JobId);

    /// Makes a PENDING job due now.
    async fn make_due(&self, job: JobId);

    /// Moves the cancel deadline of a RUNNING job into the past.
    async fn pass_cancel_deadline(&self, job: JobId);

    /// Moves the run deadline of a RUNNING job into the past.
    async fn pass_run_deadline(&self, job: JobId);

    /// One job as it stands; none when there is none in this namespace.
    async fn job(&self, namespace: &Namespace, job: JobId) -> Option<JobView>;

    /// The ended leases of a job, oldest first.
    async fn history(&self, job: JobId) -> Vec<HistoryView>;

    /// The stored output of a job, in the order in which it was stored.
    async fn logs(&self, job: JobId) -> Vec<StoredLog>;

    /// The last progress note of a job.
    async fn progress_note(&self, job: JobId) -> Option<String>;

    /// The occupied slots of a node, in ascending order, each with its job.
    async fn node_slots(&self, namespace: &Namespace, node: &NodeId) -> Vec<(i32, JobId)>;

    /// The occupied slots of a workflow, in ascending order, each with its job.
    async fn workflow_slots(&self, namespace: &Namespace, name: &str) -> Vec<(i32, JobId)>;
}
