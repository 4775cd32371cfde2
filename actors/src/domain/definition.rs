//! What submission says about a job: its definition by kind, and the request around it.
//!
//! The JSON forms of these types are what `jobs.definition` stores, what the command line's flags and the
//! YAML of a workflow are turned into, and what a worker reads back from a grant. Unknown keys are errors.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{
    ids::{Namespace, Route},
    job::JobKind,
    recipe_spec::RecipeSpec,
};

/// A definition, or a request around it, that cannot be run; refused before anything is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidDefinition {
    /// The field as a user wrote it, for example `env.HOME`.
    pub field: String,
    /// What is wrong with it and what is allowed.
    pub reason: String,
}

impl InvalidDefinition {
    /// Names the field and the rule that it breaks.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

/// When the engine fetches the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PullPolicy {
    /// Only when the node does not have it.
    #[default]
    Missing,
    /// Before every run.
    Always,
    /// Not at all: a missing image fails the job.
    Never,
}

/// What becomes of a running container whose worker lost its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnOrphan {
    /// It is stopped, and the job is tried again.
    #[default]
    Stop,
    /// The worker that takes the job over follows it on to its end.
    Adopt,
}

impl OnOrphan {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A container to run to its end on a runtime node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerSpec {
    /// The image reference, by Docker's rules.
    pub image: String,
    /// Arguments (Docker's `Cmd`); empty keeps the image's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Replaces the image's entrypoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// Environment, byte for byte.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory inside the container; absolute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// `user`, `uid`, `user:group` or `uid:gid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Memory limit in bytes, swap included; none means the engine's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    /// CPU limit in thousandths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<i64>,
    /// The most processes inside the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_limit: Option<i64>,
    /// The engine network to join (`none` for no network); none means the engine's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Time between asking the program to stop and killing it, in milliseconds; default 10 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_grace_ms: Option<i64>,
    /// When to fetch the image.
    pub pull: PullPolicy,
    /// The most bytes of output kept for one attempt, both streams together; default 64 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_quota_bytes: Option<i64>,
    /// What becomes of it when its worker loses the lease while it runs.
    #[serde(skip_serializing_if = "OnOrphan::is_default")]
    pub on_orphan: OnOrphan,
}

impl ContainerSpec {
    /// Stop grace when the definition names none, in milliseconds.
    pub const DEFAULT_STOP_GRACE_MS: i64 = 10_000;
    /// Log quota when the definition names none, in bytes.
    pub const DEFAULT_LOG_QUOTA_BYTES: i64 = 64 * 1024 * 1024;
}

/// An HTTP probe that the worker makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatSpec {
    /// `http` or `https` address.
    pub url: String,
    /// GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS.
    #[serde(default = "default_method")]
    pub method: String,
    /// Statuses that count as healthy; empty means 200 to 299.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expected_status: Vec<u16>,
    /// Request headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Request body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// A regular expression that the response body (its first MiB) must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_match: Option<String>,
    /// How many redirects to follow, each checked before it is contacted; default 0, at most 10.
    #[serde(default)]
    pub max_redirects: u8,
    /// Time for the whole probe in milliseconds; default 10 s.
    #[serde(default = "default_probe_timeout")]
    pub timeout_ms: i64,
    /// Accepts any certificate. Shown wherever the job is shown.
    #[serde(default)]
    pub insecure_skip_tls_verify: bool,
}

fn default_method() -> String {
    "GET".to_owned()
}

fn default_probe_timeout() -> i64 {
    10_000
}

/// What a job does, by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobDefinition {
    /// Runs a container.
    Container(ContainerSpec),
    /// Probes an address.
    Heartbeat(HeartbeatSpec),
    /// Calls a registered Rust function; its argument is the job's payload.
    Handler {
        /// The name that the function was registered under.
        name: String,
    },
    /// Runs a recipe of durable tasks.
    Recipe(RecipeSpec),
}

impl JobDefinition {
    /// The kind of the job.
    #[must_use]
    pub fn kind(&self) -> JobKind {
        match self {
            Self::Container(_) => JobKind::Container,
            Self::Heartbeat(_) => JobKind::Heartbeat,
            Self::Handler { .. } => JobKind::Handler,
            Self::Recipe(_) => JobKind::Recipe,
        }
    }

    /// What a worker must poll for to be given this job.
    #[must_use]
    pub fn route(&self) -> Route {
        match self {
            Self::Container(_) => Route::container(),
            Self::Heartbeat(_) => Route::heartbeat(),
            Self::Handler { name } => Route::handler(name.clone()),
            Self::Recipe(spec) => Route::recipe(spec.job_type.clone(), ""),
        }
    }

    /// The JSON text stored as `jobs.definition`.
    ///
    /// # Panics
    /// Never: these types always serialize.
    #[must_use]
    pub fn to_json(&self) -> String {
        match self {
            Self::Container(spec) => serde_json::to_string(spec),
            Self::Heartbeat(spec) => serde_json::to_string(spec),
            Self::Handler { name } => serde_json::to_string(&serde_json::json!({ "handler": name })),
            Self::Recipe(spec) => serde_json::to_string(spec),
        }
        .expect("a definition is plain data and always serializes")
    }

    /// Reads a stored definition back.
    ///
    /// # Errors
    /// [`InvalidDefinition`] when the text is not a definition of that kind, or the kind has none here.
    pub fn from_json(kind: JobKind, text: &str) -> Result<Self, InvalidDefinition> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Handler {
            handler: String,
        }
        let bad = |e: serde_json::Error| InvalidDefinition::new("definition", e.to_string());
        match kind {
            JobKind::Container => serde_json::from_str(text).map(Self::Container).map_err(bad),
            JobKind::Heartbeat => serde_json::from_str(text).map(Self::Heartbeat).map_err(bad),
            JobKind::Handler => {
                serde_json::from_str::<Handler>(text).map(|h| Self::Handler { name: h.handler }).map_err(bad)
            }
            JobKind::Recipe => serde_json::from_str(text).map(Self::Recipe).map_err(bad),
        }
    }
}

/// How often a job is tried. A missing value means the worker's own setting.
///
/// `max_*` counts failures of that kind that end the job: 1 means that the first failure is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// USER failures that end the job; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_user: Option<i32>,
    /// SYSTEM failures that end the job; default `EXECUTION_WORKER_SYSTEM_RETRY_LIMIT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_system: Option<i32>,
    /// TIMEOUT failures that end the job; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_timeout: Option<i32>,
    /// First back-off in milliseconds; default `EXECUTION_WORKER_SYSTEM_RETRY_BACKOFF`. Doubles with every failure, full jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_ms: Option<i64>,
    /// Longest back-off in milliseconds; default 1 hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_cap_ms: Option<i64>,
}

/// One request to run something.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// The tenant.
    pub namespace: Namespace,
    /// The workflow that this is a run of; none is an ad-hoc run. With a workflow, `definition` is the workflow's.
    pub workflow: Option<String>,
    /// What to do. None only together with `workflow`.
    pub definition: Option<JobDefinition>,
    /// The handler's argument or the client's data, as raw JSON text that is never rewritten; default `null`.
    pub payload: String,
    /// Higher runs first; −100 to 100, default 0.
    pub priority: i16,
    /// Not before this instant (by the database's clock); none means at once.
    pub run_at: Option<DateTime<Utc>>,
    /// Makes a repeat of this request return the first job.
    pub idempotency_key: Option<String>,
    /// The longest that one attempt may run, in milliseconds; none means no limit.
    pub timeout_ms: Option<i64>,
    /// How often to try.
    pub retry: RetryPolicy,
    /// W3C `traceparent` of the submitter.
    pub trace_parent: Option<String>,
}

impl NewJob {
    /// An ad-hoc run of a definition with every option at its default.
    #[must_use]
    pub fn ad_hoc(definition: JobDefinition) -> Self {
        Self {
            namespace: Namespace::default(),
            workflow: None,
            definition: Some(definition),
            payload: "null".to_owned(),
            priority: 0,
            run_at: None,
            idempotency_key: None,
            timeout_ms: None,
            retry: RetryPolicy::default(),
            trace_parent: None,
        }
    }

    /// An ad-hoc run of a registered handler with this argument. An argument that has no JSON form (a map with
    /// keys that are no strings, for example) becomes a payload that every submission refuses.
    #[must_use]
    pub fn handler(name: impl Into<String>, payload: &impl Serialize) -> Self {
        let mut job = Self::ad_hoc(JobDefinition::Handler { name: name.into() });
        job.payload = serde_json::to_string(payload).unwrap_or_else(|e| format!("no JSON form: {e}"));
        job
    }

    /// A run of a workflow, with the workflow's definition.
    #[must_use]
    pub fn of_workflow(name: impl Into<String>) -> Self {
        let mut job = Self::ad_hoc(JobDefinition::Handler { name: String::new() });
        job.definition = None;
        job.workflow = Some(name.into());
        job
    }
}
