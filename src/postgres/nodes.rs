//! The registry of runtime nodes: Docker engines that jobs may be placed on.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{JobId, Namespace, NodeId, ProcessId},
    ports::EngineInfo,
};
use serde::Serialize;

/// Whether claims may place jobs on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum NodeState {
    /// They may, as long as it is fresh.
    Ready,
    /// Its jobs run to their end, no new one comes.
    Draining,
    /// Its agent says that the engine does not answer.
    Unhealthy,
}

/// What an agent says when it takes charge of an engine.
#[derive(Debug, Clone)]
pub struct NodeRegistration {
    /// The tenant.
    pub namespace: Namespace,
    /// The node's name.
    pub node: NodeId,
    /// The agent's process.
    pub process: ProcessId,
    /// Where workers reach the engine.
    pub endpoint: String,
    /// Slots, 1 to 10,000.
    pub max_concurrency: u32,
    /// What the engine says of itself.
    pub engine: EngineInfo,
    /// How long a heartbeat keeps the node fresh.
    pub heartbeat_ttl: Duration,
    /// How long a silent node is waited for before its jobs count as lost.
    pub lost_after: Duration,
}

/// The answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRegistered {
    /// The node is this process's.
    Registered {
        /// Rises when endpoint or engine changed.
        incarnation: i64,
        /// `Draining` when an operator drained the node earlier.
        state: NodeState,
    },
    /// Another process heartbeats under this id; nothing was changed.
    LiveElsewhere {
        /// The endpoint that it serves.
        endpoint: String,
        /// Its process.
        process: ProcessId,
        /// Time until its heartbeat lapses if it has died.
        retry_after: Duration,
    },
}

/// The answer to a heartbeat or a farewell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeBeat {
    /// Recorded; this state is in force (an operator's drain outlasts a `Ready`).
    Recorded(NodeState),
    /// The node was forgotten, or belongs to another process: stop acting for it.
    NotOurs,
}

/// The answer to a forget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum NodeForgotten {
    /// It is gone.
    Forgotten {
        /// Jobs that were RUNNING there; their runtime now counts as unavailable.
        running: Vec<JobId>,
    },
    /// Jobs are RUNNING there; nothing was changed.
    HasRunningJobs {
        /// Those jobs.
        running: Vec<JobId>,
    },
    /// There is no such node.
    NotFound,
}

/// A node as a listing shows it.
#[derive(Debug, Clone, Serialize)]
pub struct NodeRow {
    /// Its name.
    pub id: NodeId,
    /// The tenant.
    pub namespace: Namespace,
    /// Whether claims may place jobs on it.
    pub state: NodeState,
    /// Why it is UNHEALTHY or DRAINING.
    pub reason: Option<String>,
    /// Its heartbeat is younger than its TTL.
    pub fresh: bool,
    /// Silent for so long that its jobs count as lost.
    pub lost: bool,
    /// Where its engine listens.
    pub endpoint: String,
    /// The engine's own id.
    pub engine_id: String,
    /// Rises when endpoint or engine changes.
    pub incarnation: i64,
    /// Slots in use: a row each, never a counter.
    pub slots_used: i64,
    /// All slots.
    pub slots: i32,
    /// Operating system.
    pub os: String,
    /// Architecture.
    pub architecture: String,
    /// Processors, in thousandths.
    pub cpu_millis: i64,
    /// Memory.
    pub memory_bytes: i64,
    /// The engine's version.
    pub engine_version: String,
    /// The last heartbeat.
    pub heartbeat_at: DateTime<Utc>,
    /// Its age by the database's clock.
    pub heartbeat_age_ms: i64,
    /// When it was first registered.
    pub registered_at: DateTime<Utc>,
}
