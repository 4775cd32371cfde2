//! What recipes ask of the store beyond their lease: the durable log of a job, its signals and children, its
//! client payload, and the redemption of a lease that was handed over.
//!
//! The log is one sequence of events with contiguous ordinals. An event is written once, under a live lease, in the
//! statement that checks the lease; (job, path, sort of event, reopening) names it, so that a repeat needs no command
//! id: the same content answers *recorded*, another content *conflict*, and what was recorded first stands.

mod log;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::{Authority, Grant, LeaseStore};
use crate::{
    domain::{CommandId, Epoch, Failure, JobId, JobState, LeaseToken, Namespace, NewJob, Route, WorkerId},
    error::{Applied, StoreError, StoreErrorKind},
};

/// JSON exactly as it was written: big numbers, the order of keys and white space included.
pub type JsonText = Arc<str>;

/// The most events of a job's log.
pub const MAX_LOG_EVENTS: i64 = 50_000;
/// The most bytes of a job's log, all events together.
pub const MAX_LOG_BYTES: i64 = 64 << 20;

/// The most signals of a job that nobody has taken.
pub const MAX_PENDING_SIGNALS: i64 = 1_000;
/// The most bytes of names and data of those signals, all together.
pub const MAX_PENDING_SIGNAL_BYTES: i64 = 4 << 20;
/// The most ops of one job type that schemas are kept of, the job type itself counted.
pub const MAX_SCHEMA_TASKS: i64 = 200;

/// The most jobs above each other from the first parent down to the parent of a child. A recipe that starts itself ends
/// here; and so does the cancel that an end passes on from each job to the ones below it.
pub const MAX_CHILD_DEPTH: i64 = 16;

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskOutcome {
    /// With this output.
    Succeeded {
        /// Raw JSON text.
        output: JsonText,
    },
    /// With this failure. A failure is a result too: whether there is another attempt is read from the log.
    Failed(Failure),
    /// It was cancelled, since a sibling in a `parallel` failed.
    Canceled,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventBody {
    /// A task came to its end.
    Task {
        /// Its op.
        op: String,
        /// Hash over the op's name and its canonical input.
        input_hash: String,
        /// Which attempt of its node this was, from 1.
        attempt: i32,
        /// How it ended.
        outcome: TaskOutcome,
        /// The change of needs that the op asked for (`suspend_execution`): a patch as raw JSON text.
        directive: Option<JsonText>,
    },
    /// A timer was set.
    TimerSet {
        /// When it fires, by the database's clock.
        deadline: DateTime<Utc>,
    },
    /// A timer fired.
    TimerFired,
    /// A signal was taken.
    Signal {
        /// Its name.
        name: String,
        /// Its id.
        id: i64,
        /// What came with it.
        data: JsonText,
    },
    /// A child job was submitted.
    ChildStarted {
        /// The child.
        job: JobId,
    },
    /// A child job's end was seen.
    ChildEnded {
        /// The child.
        job: JobId,
        /// Its end.
        state: JobState,
        /// Its result, where it has one.
        output: Option<JsonText>,
        /// Its failure, where it failed.
        failure: Option<Failure>,
    },
    /// A person reopened the job. Nothing is deleted; what is named here counts as unfinished from then on.
    Reopened {
        /// The first and the last of each run of ordinals that count as unfinished.
        again: Vec<(i64, i64)>,
    },
}

/// One event of a job's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its place in the log, from 1, without gaps.
    pub ordinal: i64,
    /// The occurrence that it is about: ids from the root, with visits and attempts.
    pub path: String,
    /// What it says.
    pub body: EventBody,
    /// When it was recorded, by the database's clock.
    pub at: DateTime<Utc>,
    /// Who recorded it; none for what a person did.
    pub worker: Option<WorkerId>,
    /// Under which lease.
    pub epoch: Epoch,
}

/// An event that shall be recorded.
#[derive(Debug, Clone, PartialEq)]
pub enum NewEvent {
    /// A task's end.
    Task {
        /// Its op.
        op: String,
        /// Hash over the op's name and its canonical input.
        input_hash: String,
        /// Which attempt of its node this was, from 1.
        attempt: i32,
        /// How it ended.
        outcome: TaskOutcome,
        /// The change of needs that the op asked for.
        directive: Option<JsonText>,
    },
    /// A timer that fires this much later than now; set already, it keeps its first deadline, whatever is asked.
    TimerSet {
        /// From the database's "now".
        after: std::time::Duration,
    },
    /// The timer set at this path has fired. Not yet, while its deadline lies ahead by the database's clock.
    TimerFired,
    /// The oldest signal of this name that nobody has taken. Not yet, while there is none.
    TakeSignal {
        /// Its name.
        name: String,
    },
    /// A child job, submitted in the same statement.
    StartChild {
        /// What to submit. Its idempotency key is the task's.
        job: Box<NewJob>,
        /// Cancelled when the parent ends without success.
        cancel_with_parent: bool,
    },
    /// The end of the child that was started at this path. Not yet, while it has not ended.
    ChildEnded,
}

/// The answer to a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// It stands in the log: this is it. A repeat answers the same.
    Recorded(Box<Event>),
    /// Something else stands in the log in this place, and goes on standing there.
    Conflict(Box<Event>),
    /// The timer is not due, no such signal has come, the child has not ended; nothing was changed.
    NotYet,
    /// The log is full; nothing was changed.
    Full {
        /// `events` or `bytes`.
        what: &'static str,
        /// How many are allowed.
        limit: i64,
    },
    /// Refused, and why; nothing was changed. A child: `would_deadlock`, `too_deep`, `invalid`,
    /// `workflow_not_found`, `workflow_terminated`, `idempotency_conflict`. A timer's firing or a child's end where neither was begun at this
    /// path: `not_begun`.
    Refused {
        /// A word for programs.
        code: &'static str,
        /// For people.
        message: String,
    },
    /// The lease is not live; nothing was changed.
    NotLive,
}

/// What wakes a job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// This instant, by the database's clock.
    At(DateTime<Utc>),
    /// A signal of this name.
    Signal(String),
    /// The end of this child.
    Child(JobId),
}

/// Needs as a claim compares them with what a worker has: kept beside the job in typed columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hint {
    /// Thousandths of a core.
    pub cpu_millis: Option<i64>,
    /// Bytes.
    pub memory_bytes: Option<i64>,
    /// Bytes.
    pub ephemeral_storage_bytes: Option<i64>,
    /// Operating system and architecture, and a variant where one is asked for.
    pub platform: Option<(String, String, Option<String>)>,
    /// A normalised image reference that must be the launch reference.
    pub image_reference: Option<String>,
    /// A manifest digest that must be the actual one.
    pub image_digest: Option<String>,
}

/// What a worker has, as a claim compares it with hints.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Thousandths of a core.
    pub cpu_millis: Option<i64>,
    /// Bytes.
    pub memory_bytes: Option<i64>,
    /// Bytes.
    pub ephemeral_storage_bytes: Option<i64>,
    /// Operating system, architecture, variant.
    pub platform: Option<(String, String, Option<String>)>,
    /// The normalised launch reference.
    pub image_reference: Option<String>,
    /// The actual manifest digest.
    pub image_digest: Option<String>,
}

/// What a reschedule publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// The needs of the next task.
    pub hint: Hint,
    /// True for a handoff: counted, and the hint is exact until anything else happens to the job.
    pub handoff: bool,
    /// What declined the task, for people: raw JSON text.
    pub declined_by: Option<JsonText>,
}

/// A recipe job as its runner must know it, from the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipeJob {
    /// Where it stands.
    pub state: JobState,
    /// `jobs.definition`: the pinned recipe, its inputs and overrides.
    pub definition: JsonText,
    /// The client's payload.
    pub payload: JsonText,
    /// Its revision.
    pub payload_revision: i64,
    /// When it was submitted.
    pub submitted_at: DateTime<Utc>,
    /// The needs that were last published.
    pub published: Option<Hint>,
    /// Handoffs in a row with nothing recorded between.
    pub handoffs: i32,
    /// How many events its log has.
    pub events: i64,
    /// The schemas that it was submitted under, by op; its own under the empty name. They never change.
    pub schemas: BTreeMap<String, SchemaDigests>,
}

/// A JSON Schema under its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaText {
    /// SHA-256 of its canonical form, in hex.
    pub digest: String,
    /// Raw JSON text.
    pub text: JsonText,
}

/// What is asked of a route: of what goes in, and of what comes out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouteSchemas {
    /// Of inputs.
    pub input: Option<SchemaText>,
    /// Of the output.
    pub output: Option<SchemaText>,
}

/// The schemas of a route by their digests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct SchemaDigests {
    /// Of inputs.
    #[serde(default)]
    pub input: Option<String>,
    /// Of the output.
    #[serde(default)]
    pub output: Option<String>,
}

/// A signal to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSignal {
    /// Its name.
    pub name: String,
    /// What comes with it: raw JSON text.
    pub data: String,
    /// Makes a repeat the same signal.
    pub key: Option<String>,
}

/// The answer to a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignalAnswer {
    /// It is stored.
    Stored {
        /// Its id.
        id: i64,
        /// False for a repeat.
        created: bool,
    },
    /// A signal with this key has another name or data.
    KeyConflict,
    /// So many that nobody has taken are kept already; nothing was stored.
    TooMany,
    /// The job has ended.
    JobEnded {
        /// How.
        state: JobState,
    },
    /// There is no such job, or it is no recipe.
    NotFound,
}

/// The answer to a change of a client payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayloadSet {
    /// Done.
    Set {
        /// The new revision.
        revision: i64,
    },
    /// It has another revision; nothing was changed.
    Conflict {
        /// The revision in force.
        current_revision: i64,
    },
    /// The job has ended.
    JobEnded {
        /// How.
        state: JobState,
    },
    /// There is no such job.
    NotFound,
}

/// The answer to a redemption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redeemed {
    /// The lease is now proven by the new token alone.
    Redeemed {
        /// Time from the database's "now" to the expiry.
        remaining: std::time::Duration,
    },
    /// The lease is not live for the presented token; nothing was changed.
    NotLive,
}

/// What a person reopens of a job that ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reopening {
    /// From where: the path that was asked for, or that of the failure; empty where nothing had failed.
    pub path: String,
    /// The first and the last of each run of ordinals that shall count as unfinished.
    pub again: Vec<(i64, i64)>,
    /// How many events the log has, as far as the caller knows: with more, or fewer, nothing is changed.
    pub events: i64,
}

/// The answer to a reopening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReopenAnswer {
    /// It is open again, and its log says so.
    Reopened {
        /// QUEUED, or PENDING while its workflow is paused.
        state: JobState,
    },
    /// Only FAILED and CANCELED jobs can be reopened; nothing was changed.
    NotRetryable {
        /// Where it stands.
        state: JobState,
    },
    /// Its log is another one than the caller read: somebody reopened it meanwhile. Nothing was changed.
    LogChanged,
    /// Its log has no room for one more event; nothing was changed.
    Full,
    /// Its workflow was terminated; nothing was changed.
    WorkflowTerminated,
    /// There is no such job, or it is no recipe.
    NotFound,
}

/// A live lease as whoever was given it must know it: read from the database, whatever else was said of it.
#[derive(Debug, Clone)]
pub struct HeldLease {
    /// The grant, with the token that was presented.
    pub grant: Grant,
    /// Time to its expiry.
    pub remaining: std::time::Duration,
    /// How much of the attempt's timeout is left; none without a timeout.
    pub timeout_left: Option<std::time::Duration>,
}

/// The answer to [`RecipeStore::read_lease`].
#[derive(Debug, Clone)]
pub enum LeaseRead {
    /// It is live.
    Live(Box<HeldLease>),
    /// There is such a job, but this lease of it is not live.
    NotLive,
    /// There is no such job in this namespace.
    JobNotFound,
}

/// The answer to a refusal of a job's execution payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is recorded.
    Recorded {
        /// How many in a row, this one included.
        in_a_row: i32,
    },
    /// The lease is not live; nothing was changed.
    NotLive,
}

/// The answer of a store, or of something in front of one, that keeps no schemas: said aloud, since a job with schemas
/// must not run unchecked.
#[must_use]
pub fn no_schemas(operation: &'static str) -> StoreError {
    StoreError {
        operation,
        kind: StoreErrorKind::Refused,
        applied: Applied::No,
        message: "no schemas are kept here".to_owned(),
    }
}

/// The jobs service as a recipe sees it. One implementation on PostgreSQL, one in memory; the conformance suite runs
/// on both.
///
/// # Errors
/// As [`LeaseStore`]: an error means that there was no answer, and says whether it may have happened.
#[async_trait]
pub trait RecipeStore: LeaseStore {
    /// Reads a recipe job; none when there is no such job, or it is no recipe. Needs no lease.
    async fn recipe_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError>;

    /// Reads the log behind an ordinal, oldest first: a bounded page, empty at the end. Needs no lease.
    async fn events(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError>;

    /// Reads what the log says of one path, oldest first; more than one task only where the job was reopened. Needs no
    /// lease.
    async fn events_at(
        &self,
        namespace: &Namespace,
        job: JobId,
        path: &str,
    ) -> Result<Vec<Event>, StoreError>;

    /// Appends one event at a path, under a live lease.
    async fn record(
        &self,
        authority: &Authority,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError>;

    /// Records under a live lease that the job's execution payload was refused.
    async fn refuse(&self, authority: &Authority, reason: &str) -> Result<Refusal, StoreError>;

    /// Reads a live lease with all that its execution needs, from the primary, without changing anything.
    async fn read_lease(&self, authority: &Authority) -> Result<LeaseRead, StoreError>;

    /// Puts a new token in the place of a live lease's: same owner, same epoch. From then on the old one proves
    /// nothing. A repeat under the same command with the same new token answers the same.
    async fn redeem(
        &self,
        authority: &Authority,
        command: CommandId,
        new_token: &LeaseToken,
    ) -> Result<Redeemed, StoreError>;

    /// Says what is asked of recipes of a type, or of one of its ops, from now on; what was submitted before stays under
    /// what it was submitted under. The same again changes nothing. True when it changed something.
    async fn register_schema(
        &self,
        namespace: &Namespace,
        route: &Route,
        schemas: &RouteSchemas,
    ) -> Result<bool, StoreError> {
        let _ = (namespace, route, schemas);
        Err(no_schemas("register_schema"))
    }

    /// The schemas under these digests, as far as they are kept.
    async fn schema_texts(
        &self,
        namespace: &Namespace,
        digests: &[String],
    ) -> Result<Vec<SchemaText>, StoreError> {
        let _ = (namespace, digests);
        Err(no_schemas("schema_texts"))
    }

    /// Reopens a FAILED or CANCELED recipe as a new attempt with fresh failure counters. In the same statement its log
    /// says what counts as unfinished: beside what is asked for, children that were cancelled, or ended without
    /// success, before their end was recorded. From then on each (path, sort) can be recorded once more.
    async fn reopen(
        &self,
        namespace: &Namespace,
        job: JobId,
        reopening: &Reopening,
    ) -> Result<ReopenAnswer, StoreError>;

    /// Stores a signal for a job that has not ended, also before anybody waits for it; wakes the job if it waits.
    async fn send_signal(
        &self,
        namespace: &Namespace,
        job: JobId,
        signal: &NewSignal,
    ) -> Result<SignalAnswer, StoreError>;

    /// Replaces the client payload of a job that has not ended, if its revision is still the expected one.
    async fn set_payload(
        &self,
        namespace: &Namespace,
        job: JobId,
        update: &super::PayloadUpdate,
    ) -> Result<PayloadSet, StoreError>;
}
