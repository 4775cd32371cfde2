//! The ports: what the actors ask of the outside. A method is one whole transition with a closed enum of
//! answers; there is no get, no put, no transaction and no clock (the database alone decides expiry, and
//! answers say how much time is left).

mod needs;
pub mod recipe;
mod tasks;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::BoxStream;

pub use self::tasks::{NodeNeeds, TaskContainer, TaskOccurrence, TaskPlace, TaskPlaced, TaskUnplaced};
use crate::{
    domain::{
        CommandId, ContainerId, ContainerSpec, Epoch, Failure, JobId, JobKind, JobState, LeaseToken,
        Namespace, NodeId, ProcessId, PullPolicy, RetryPolicy, Route, TaskKey, WorkerId,
    },
    error::{EngineError, StoreError},
    work::{LeaseContext, WorkOutcome},
};

// ---------------------------------------------------------------------------------------------------
// The store
// ---------------------------------------------------------------------------------------------------

/// Who asks: one worker process in one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claimant {
    /// The tenant whose jobs are asked for.
    pub namespace: Namespace,
    /// The worker's name.
    pub worker: WorkerId,
    /// This life of it.
    pub process: ProcessId,
}

/// Everything that proves the right to change one job: the one predicate's arguments.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Authority {
    /// The owner of the lease.
    pub owner: Claimant,
    /// The job.
    pub job: JobId,
    /// The secret of this grant.
    pub token: LeaseToken,
    /// The epoch of this grant: names the grant's row in the lease history.
    pub epoch: Epoch,
}

/// A claim of "the next `limit` jobs for these routes".
#[derive(Debug, Clone)]
pub struct OpenClaim {
    /// Who asks.
    pub owner: Claimant,
    /// Names this claim; a repeat under the same id is the same claim.
    pub command: CommandId,
    /// True when an answer to this command may have been lost: recorded grants are read first.
    pub repeat: bool,
    /// What the worker can run.
    pub routes: Arc<[Route]>,
    /// How many jobs at most.
    pub limit: u32,
    /// How long each grant lasts between renewals.
    pub lease: Duration,
    /// What the worker has: a RECIPE job whose published needs it does not fit is left to others. None: nothing is
    /// known, which fits only what needs nothing. No part of a claim's identity.
    pub facts: Option<Arc<recipe::Facts>>,
}

/// One job as a dispatch message named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DispatchedJob {
    /// The job.
    pub job: JobId,
    /// The generation that it was scheduled under.
    pub generation: i64,
    /// The dispatch attempt that queued it.
    pub dispatch_attempt: i32,
}

/// A claim of exactly these jobs. A single claim is a list of one.
#[derive(Debug, Clone)]
pub struct ListedClaim {
    /// Who asks.
    pub owner: Claimant,
    /// Names this claim; a repeat under the same id is the same claim.
    pub command: CommandId,
    /// True when an answer to this command may have been lost.
    pub repeat: bool,
    /// The jobs, each with what the asker believes of it.
    pub jobs: Vec<DispatchedJob>,
    /// How long each grant lasts between renewals.
    pub lease: Duration,
}

/// The runtime node that a claim placed a CONTAINER job on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The node.
    pub node: NodeId,
    /// Which registration of the node: a changed endpoint or engine is a new one.
    pub incarnation: i64,
    /// Where its engine listens.
    pub endpoint: String,
    /// The engine's own id, compared before anything is cleaned up.
    pub engine_id: String,
}

/// Exclusive, time-bounded ownership of one job, and all that its execution needs to know.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The proof of ownership.
    pub authority: Authority,
    /// The kind of job.
    pub kind: JobKind,
    /// The route that it was claimed under.
    pub route: Route,
    /// The workflow, or `adhoc`.
    pub workflow: String,
    /// The generation that the job was scheduled under.
    pub generation: i64,
    /// The dispatch attempt that this grant took.
    pub dispatch_attempt: i32,
    /// Which attempt this is, from 1.
    pub attempt: i32,
    /// The lease duration stored with the grant; every renewal uses it.
    pub lease: Duration,
    /// `jobs.definition`, as stored.
    pub definition: Arc<str>,
    /// `jobs.payload`, as stored: raw JSON text.
    pub payload: Arc<str>,
    /// The longest that this attempt may run.
    pub timeout: Option<Duration>,
    /// The job's own retry policy; the worker fills in its defaults when it fails the job.
    pub retry: RetryPolicy,
    /// The submitter's W3C `traceparent`.
    pub trace_parent: Option<String>,
    /// CONTAINER only: where to run it.
    pub placement: Option<Placement>,
}

/// The answer to an open claim.
#[derive(Debug, Clone, Default)]
pub struct ClaimAnswer {
    /// The grants that are live, in the order in which they were taken.
    pub grants: Vec<Grant>,
}

/// Why a listed job was not granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimRejection {
    /// No job has this id in this namespace.
    #[error("job_not_found")]
    JobNotFound,
    /// Its workflow has moved on.
    #[error("stale_generation{{current: {current}}}")]
    StaleGeneration {
        /// The generation in force.
        current: i64,
    },
    /// It was dispatched again since.
    #[error("stale_dispatch_attempt{{current: {current}}}")]
    StaleDispatchAttempt {
        /// The dispatch attempt in force.
        current: i32,
    },
    /// It is not QUEUED.
    #[error("not_queued{{status: {status}}}")]
    NotQueued {
        /// Where it stands instead.
        status: JobState,
    },
    /// It has ended.
    #[error("already_ended{{state: {state}}}")]
    AlreadyEnded {
        /// How.
        state: JobState,
    },
    /// Its workflow is paused.
    #[error("workflow_paused")]
    WorkflowPaused,
    /// Its workflow is terminated.
    #[error("workflow_terminated")]
    WorkflowTerminated,
    /// The overlap policy holds it back.
    #[error("blocked_by{{job: {job}}}")]
    BlockedBy {
        /// A run of the same workflow that must end first.
        job: JobId,
    },
    /// Another claim holds its row at this moment.
    #[error("contended")]
    Contended,
    /// No fresh READY node has a free slot.
    #[error("no_runtime_node")]
    NoRuntimeNode,
}

/// The answer for one job of a listed claim.
#[derive(Debug, Clone)]
pub enum ListedAnswer {
    /// It is ours.
    Granted(Box<Grant>),
    /// It is not, and why.
    Rejected(JobId, ClaimRejection),
}

/// The answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The lease is ours for this much longer, counted from before the request was sent.
    Held {
        /// Time from the database's "now" to the new expiry.
        remaining: Duration,
        /// Somebody asked for the job to be cancelled.
        cancel_requested: bool,
    },
    /// The lease is not live for this authority; nothing was changed.
    NotLive,
}

/// The answer to an attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attach {
    /// The container is recorded; a repeat for the same container answers the same.
    Attached,
    /// The lease is not live.
    NotLive,
    /// The job was placed on another node.
    WrongRuntimeNode,
    /// Another container is attached already.
    ContainerConflict {
        /// That container.
        attached: ContainerId,
    },
}

/// Which output stream a log batch belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Leasehold's own remarks, such as "output over the quota was dropped".
    System,
}

/// A piece of one stream. Two batches of one (job, task, claim, stream) never overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogBatch {
    /// RECIPE: the task whose container or program wrote it.
    pub task: Option<TaskKey>,
    /// The stream.
    pub stream: LogStream,
    /// How many bytes of this stream came before.
    pub first_byte: u64,
    /// The bytes, exactly as the program wrote them.
    pub data: Bytes,
}

/// The answer to a log append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogAppend {
    /// Everything is stored (a repeat of a stored batch included).
    Stored,
    /// The lease is not live; nothing was stored.
    NotLive,
}

/// How many bytes of each stream are stored of a job's latest claim: where whoever took the job over goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogOffsets {
    /// Of standard output.
    pub stdout: u64,
    /// Of standard error.
    pub stderr: u64,
    /// Of Leasehold's own remarks.
    pub system: u64,
}

/// The answer to [`LeaseStore::log_offsets`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredLogs {
    /// So much is stored, and nobody else stores any more.
    Offsets(LogOffsets),
    /// The lease is not live.
    NotLive,
}

/// How a holder ends its lease.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The work succeeded.
    Complete {
        /// The program's exit code, where there was one.
        exit_code: Option<i32>,
        /// The result as raw JSON text.
        output: Option<String>,
    },
    /// The work failed; the database decides whether a try is left.
    Fail {
        /// Why.
        failure: Failure,
        /// The worker's defaults, used where the job's own policy is silent.
        defaults: RetryPolicy,
    },
    /// The work failed for good, whatever the retry policy says: a recipe's own failure, which its nodes' policies
    /// have decided on.
    FailForGood {
        /// Why.
        failure: Failure,
    },
    /// A requested cancel was carried out.
    Cancel,
    /// Given back untouched or stopped by a drain: no attempt, failure or loss is counted.
    Release {
        /// Not to be dispatched before this much time has passed.
        delay: Duration,
        /// A word for the history: `drain`, `startup`, …
        reason: &'static str,
    },
    /// The lease that was taken over had been lost: a SYSTEM failure `lease_lost`, and one more loss. Whether a
    /// try is left is decided in the database, where `loss_limit` losses in a row end the job as FAILED, code
    /// `crash_loop`. A loss that overlapped a restart or a promotion of the database counts neither.
    Lost {
        /// The worker's defaults, used where the job's own policy is silent.
        defaults: RetryPolicy,
        /// How many losses in a row end the job.
        loss_limit: i32,
        /// What was found, for people.
        message: String,
    },
    /// Goes on later or elsewhere; not a failure, and the next claim is not a new attempt.
    Reschedule {
        /// The route to go on with; none keeps the present one.
        route: Option<Route>,
        /// Not to be dispatched before this much time has passed.
        delay: Duration,
        /// Replaces the client payload, if its revision is still the expected one.
        payload: Option<PayloadUpdate>,
        /// RECIPE: what makes it due, whichever comes first; with none it is due after `delay`. What has come already
        /// makes it due after `delay`.
        wake: Vec<recipe::Wake>,
        /// RECIPE: the needs of the task to go on with. Where that is the tenth handoff in a row with nothing recorded
        /// between, the job fails instead: SYSTEM, `handoff_loop`.
        publish: Option<recipe::Publication>,
    },
}

/// A revision-checked change of a job's payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadUpdate {
    /// The new raw JSON text.
    pub value: String,
    /// The revision that it was computed from.
    pub expected_revision: i64,
}

/// The answer to an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The job is now in this terminal state. (A fail, release or reschedule of a job whose cancel was
    /// requested, or of a superseded generation, answers `Canceled`.)
    Terminal(JobState),
    /// A try is left: PENDING until this instant.
    Retrying {
        /// When it becomes due, by the database's clock.
        at: DateTime<Utc>,
    },
    /// Given back.
    Released,
    /// Rescheduled; PENDING or QUEUED.
    Rescheduled,
    /// The payload's revision was another one; nothing was changed and the lease is still held.
    PayloadConflict {
        /// The revision in force.
        current_revision: i64,
    },
    /// The lease is not live and this command has not ended it; nothing was changed.
    NotLive,
}

/// The answer to a reconciliation: what became of a grant. Read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconciliation {
    /// Exactly this authority is still live.
    Live {
        /// Time to its expiry.
        remaining: Duration,
    },
    /// It is still recorded, but its time is over.
    Expired,
    /// The job has ended, moved on, or belongs to somebody else.
    Changed,
}

/// A request to take over expired leases, the oldest first.
#[derive(Debug, Clone)]
pub struct RecoverRequest {
    /// Who takes over.
    pub owner: Claimant,
    /// Names this batch; a repeat under the same id is the same batch.
    pub command: CommandId,
    /// True when an answer to this command may have been lost: recorded takeovers are read first.
    pub repeat: bool,
    /// How many at most.
    pub limit: u32,
    /// How long each takeover lasts between renewals.
    pub lease: Duration,
    /// Jobs whose workload this process still runs: it never takes those over. No part of the batch's identity.
    pub running_here: Arc<[JobId]>,
}

/// The answer to a recovery.
#[derive(Debug, Clone, Default)]
pub struct RecoverAnswer {
    /// What was taken over, the oldest expiry first. (A repeat: those of the recorded ones that are still live.)
    pub takeovers: Vec<Takeover>,
    /// Time until the next look is worth while: never later than the next expiry, or than the time of the next lease
    /// that was given up for a while, but perhaps earlier where those are far (15 s or more); none when there is no
    /// lease.
    pub next_expiry: Option<Duration>,
    /// How many expired leases this pass left behind, whatever the reason.
    pub backlog: u64,
    /// How long ago the oldest of those expired.
    pub oldest: Option<Duration>,
}

/// Whether the engine that a job ran on can be asked to clean up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeStanding {
    /// Its node heartbeats and is not UNHEALTHY, or the job needs none.
    Available,
    /// Its node is forgotten, or has been silent, UNHEALTHY or at another engine for `RUNTIME_LOST_AFTER`.
    Unavailable,
}

/// One lease taken over: the job as its new holder must know it.
#[derive(Debug, Clone)]
pub struct Takeover {
    /// The grant, with a token and an epoch of its own. Its placement is the stored one.
    pub grant: Grant,
    /// The container that was attached.
    pub container: Option<ContainerId>,
    /// Whether that container's engine can be asked.
    pub runtime: RuntimeStanding,
    /// RECIPE: the tasks that have a node, and perhaps a container there.
    pub tasks: Vec<TaskContainer>,
    /// The epoch of the job's latest claim, which its containers carry; a takeover keeps it.
    pub claim_epoch: Epoch,
    /// The claim was renewed at least once. If not, nothing was ever started.
    pub started: bool,
    /// Somebody asked for the job to be cancelled.
    pub cancel_requested: bool,
    /// How long ago its cleanup was first given up for a while ([`LeaseStore::postpone_recovery`]).
    pub cleanup_pending_for: Option<Duration>,
    /// How much of the attempt's timeout was left at the takeover; none without a timeout.
    pub timeout_left: Option<Duration>,
}

/// The answer to [`LeaseStore::postpone_recovery`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Postponed {
    /// The lease is given up; nobody takes the job over before the delay has passed.
    Done,
    /// The lease is not live; nothing was changed.
    NotLive,
}

/// The answer to a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatched {
    /// How many jobs became QUEUED.
    pub moved: u32,
    /// Time until the next PENDING job is due; none when nothing waits for a time.
    pub next_due: Option<Duration>,
}

/// The jobs service as a worker sees it. One implementation on PostgreSQL, one in memory
/// (`testing::MemoryStore`); the conformance suite runs on both.
///
/// # Errors
/// Every method answers [`StoreError`] when there was no answer; its `applied` says whether it may have
/// happened. No method retries by itself what may have happened: that is the caller's decision.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// Moves at most `limit` due PENDING jobs to QUEUED, each with its dispatch attempt raised by one.
    async fn dispatch(&self, namespace: &Namespace, limit: u32) -> Result<Dispatched, StoreError>;

    /// Grants the next jobs for the asked routes, highest priority and earliest due first. With `repeat`,
    /// recorded grants of the command that are still live are returned, and nothing new is granted once
    /// the command is recorded.
    async fn claim(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError>;

    /// Grants exactly the listed jobs, or says of each why not.
    async fn claim_listed(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError>;

    /// Extends a live lease by its stored duration. Never revives an expired one.
    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError>;

    /// Records the container of a CONTAINER job under a live lease.
    async fn attach(
        &self,
        authority: &Authority,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError>;

    /// Gives a task of a RECIPE job a slot of a fresh READY node that has what is needed, the least loaded first, in one
    /// statement under the live lease. It is kept until [`LeaseStore::unplace_task`] or the end of the lease: a takeover
    /// inherits it. A job may hold several, one for each task.
    async fn place_task(&self, authority: &Authority, place: &TaskPlace) -> Result<TaskPlaced, StoreError>;

    /// Records the container of a task that was placed, under a live lease.
    async fn attach_task(
        &self,
        authority: &Authority,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError>;

    /// Gives the slot of a task back under a live lease, once nothing of it runs any more. May be repeated.
    async fn unplace_task(&self, authority: &Authority, task: &TaskKey) -> Result<TaskUnplaced, StoreError>;

    /// Appends output under a live lease. A batch whose offset is stored already is not stored twice. Output
    /// belongs to the claim: after a takeover it goes on under the claim's epoch, where the lost holder left off.
    async fn append_logs(&self, authority: &Authority, batches: &[LogBatch])
    -> Result<LogAppend, StoreError>;

    /// Tells, under a live lease, how much output of the job's latest claim is stored; of that of one of its tasks, where
    /// one is named.
    async fn log_offsets(
        &self,
        authority: &Authority,
        task: Option<&TaskKey>,
    ) -> Result<StoredLogs, StoreError>;

    /// Replaces the job's progress note (JSON text, at most 4 KiB) under a live lease.
    async fn report_progress(&self, authority: &Authority, progress: &str) -> Result<Renewal, StoreError>;

    /// Ends the lease. A repeat under the same command id reports the recorded outcome.
    async fn end(&self, authority: &Authority, command: CommandId, end: &End) -> Result<Ended, StoreError>;

    /// Takes over expired leases, the oldest first, each with a token and an epoch of its own; node, container,
    /// slots and attempt stay. Passed over are rows that somebody holds, jobs that `running_here` names, leases
    /// that were given up for a while, and CONTAINER jobs of a node that has been silent for less than its
    /// `RUNTIME_LOST_AFTER`. With `repeat`, recorded takeovers that are still live are returned, and nothing new
    /// is taken over once the command is recorded.
    async fn recover(&self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError>;

    /// Gives a lease up whose cleanup cannot be done now: it expires at once, and nobody takes it over before
    /// `delay` has passed. The job keeps its container, its node and its slots.
    async fn postpone_recovery(
        &self,
        authority: &Authority,
        delay: Duration,
    ) -> Result<Postponed, StoreError>;

    /// Tells what became of a grant, from the primary, without changing anything.
    async fn reconcile(&self, authority: &Authority) -> Result<Reconciliation, StoreError>;
}

// ---------------------------------------------------------------------------------------------------
// The container engine
// ---------------------------------------------------------------------------------------------------

/// What an engine says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// The engine's own id, stable over restarts, different on another machine.
    pub engine_id: String,
    /// Operating system, as the engine names it.
    pub os: String,
    /// Architecture, as the engine names it.
    pub architecture: String,
    /// Processors, in thousandths of a core.
    pub cpu_millis: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// Version, for people.
    pub version: String,
}

/// A container that is to exist: its identity is fixed before it is created (D10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPlan {
    /// Derived from fleet, job and epoch, so that a repeated create finds its own container.
    pub name: String,
    /// Labels by which it can be found and told from foreign ones.
    pub labels: Vec<(String, String)>,
    /// What to run.
    pub spec: ContainerSpec,
    /// Environment added by Leasehold (epoch, job, attempt, trace context); it wins over the spec's.
    pub env: Vec<(String, String)>,
}

/// What an engine says of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerStatus {
    /// The engine's id of it.
    pub id: ContainerId,
    /// Its name, without a leading slash.
    pub name: String,
    /// Where it stands.
    pub state: ContainerState,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// When it was last started, by the engine's clock.
    pub started_at: Option<DateTime<Utc>>,
    /// When it last ended, by the engine's clock.
    pub finished_at: Option<DateTime<Utc>>,
    /// False when it ended and the engine, in its present life, has not seen that: the engine was down or being
    /// restarted, so nobody can tell whose exit it is. Only [`ContainerEngine::wait`] finds that out.
    pub witnessed: bool,
}

/// Where a container stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    /// Created, never started.
    Created,
    /// Running, restarting or paused.
    Running {
        /// Frozen by `docker pause`.
        paused: bool,
    },
    /// Ended.
    Exited {
        /// The main process's exit code.
        code: i32,
        /// The engine has evidence that the kernel killed for memory.
        oom_killed: bool,
        /// The engine's own error text, for example when the command could not be started.
        error: String,
    },
    /// Dead or being removed.
    Dead,
}

/// A piece of a container's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChunk {
    /// Which stream.
    pub stream: LogStream,
    /// The bytes.
    pub data: Bytes,
}

/// One Docker engine. Every step is idempotent, and a non-zero exit code is never an error.
#[async_trait]
pub trait ContainerEngine: Send + Sync + 'static {
    /// Asks the engine who it is; also the health check.
    async fn info(&self) -> Result<EngineInfo, EngineError>;
    /// Makes the image available according to the policy.
    async fn ensure_image(&self, image: &str, pull: PullPolicy) -> Result<(), EngineError>;
    /// Creates the container, or finds the one of that name *and* these labels. A foreign container of that
    /// name is a [`crate::error::EngineErrorKind::Conflict`] and is not touched.
    async fn create(&self, plan: &ContainerPlan) -> Result<ContainerId, EngineError>;
    /// Starts it; a running one counts as started. An answer that was lost is resolved by inspection.
    async fn start(&self, id: &ContainerId) -> Result<(), EngineError>;
    /// Looks at it; `None` when there is no such container.
    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>, EngineError>;
    /// Waits until it is no longer running and returns its final status, with all that can be found out about
    /// its end. A broken wait is an error, never an exit code.
    async fn wait(&self, id: &ContainerId) -> Result<ContainerStatus, EngineError>;
    /// Streams its output from the very first byte, and follows until it ends.
    fn logs(&self, id: &ContainerId) -> BoxStream<'static, Result<LogChunk, EngineError>>;
    /// Marks it as stopped by us, before it is stopped, by renaming it to `NAME.stopped`.
    async fn mark_stopped(&self, id: &ContainerId, name: &str) -> Result<(), EngineError>;
    /// Asks it to stop, and kills it after `grace`. A container that is not running counts as stopped.
    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<(), EngineError>;
    /// Kills it at once. A container that is not running counts as killed.
    async fn kill(&self, id: &ContainerId) -> Result<(), EngineError>;
    /// Removes it by force. One that is gone, or being removed, counts as removed.
    async fn remove(&self, id: &ContainerId) -> Result<(), EngineError>;
    /// Lists containers, running or not, that carry all these labels.
    async fn list(&self, labels: &[(String, String)]) -> Result<Vec<ContainerStatus>, EngineError>;
}

/// Opens the engine that stands at a placement's endpoint; owned by the node's actor from then on.
pub trait EngineFactory: Send + Sync + 'static {
    /// # Errors
    /// [`EngineError`] when the endpoint cannot be understood, or its TLS files cannot be read.
    fn connect(&self, placement: &Placement) -> Result<Box<dyn ContainerEngine>, EngineError>;
}

// ---------------------------------------------------------------------------------------------------
// What runs inside the worker process
// ---------------------------------------------------------------------------------------------------

/// Runs jobs that need no container: HEARTBEAT and HANDLER.
#[async_trait]
pub trait WorkRunner: Send + Sync + 'static {
    /// Runs the job of a grant to its end. Called only after the immediate renewal was confirmed. Must
    /// return soon after [`LeaseContext::stopped`] resolves; what does not is dropped at the local deadline.
    async fn run(&self, grant: Arc<Grant>, lease: LeaseContext) -> WorkOutcome;
}
