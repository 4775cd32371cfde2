//! The registry of runtime nodes: Docker engines that jobs may be placed on.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{ContainerId, Epoch, Failure, FailureKind, JobId, Namespace, NodeId, ProcessId, TaskKey},
    error::StoreError,
    ports::EngineInfo,
};
use serde::Serialize;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    PgStore, error,
    row::Columns,
    session::{Param, Session},
    sql_file::{Sql, sql},
    transaction::{Stop, transaction},
};

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
    /// How long a silent or UNHEALTHY node is waited for before its jobs count as lost.
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

/// Who asks which jobs are RUNNING: an agent that has listed its engine's containers.
#[derive(Debug, Clone, Copy)]
pub struct ClaimsQuestion<'a> {
    /// The tenant.
    pub namespace: &'a Namespace,
    /// The node.
    pub node: &'a NodeId,
    /// The agent's process.
    pub process: ProcessId,
    /// The engine that was listed.
    pub engine_id: &'a str,
    /// The fleet whose containers were listed.
    pub fleet: Uuid,
    /// The jobs that the containers name.
    pub jobs: &'a [JobId],
}

/// A RUNNING job, as far as its containers are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingClaim {
    /// The job.
    pub job: JobId,
    /// The epoch of its latest claim; a takeover keeps it.
    pub epoch: Epoch,
    /// The container that is attached to it.
    pub attached: Option<ContainerId>,
    /// RECIPE: the tasks of it that this node was given to, each with its container, if that is attached by now.
    pub tasks: Vec<(TaskKey, Option<ContainerId>)>,
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

const REGISTER: Sql =
    sql!("node_register", [TEXT, TEXT, TEXT, TEXT, UUID, INT4, TEXT, TEXT, INT8, INT8, TEXT, INT4, INT4]);
const HOLDER: Sql = sql!("node_holder", [TEXT, TEXT]);
const HEARTBEAT: Sql = sql!("node_heartbeat", [TEXT, TEXT, UUID, TEXT, TEXT, BOOL]);
const CORDON: Sql = sql!("node_cordon", [TEXT, TEXT, BOOL]);
const LIST: Sql = sql!("node_list", [TEXT]);
const TAKE: Sql = sql!("node_take", [TEXT, TEXT]);
const RUNNING: Sql = sql!("node_running", [TEXT, TEXT]);
const FORGET: Sql = sql!("node_forget", [TEXT, TEXT]);
const CLAIMS: Sql = sql!("node_claims", [TEXT, TEXT, UUID, TEXT, UUID, INT8_ARRAY]);

impl NodeState {
    /// The name in the database, in JSON and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::Draining => "DRAINING",
            Self::Unhealthy => "UNHEALTHY",
        }
    }
}

impl std::str::FromStr for NodeState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "READY" => Ok(Self::Ready),
            "DRAINING" => Ok(Self::Draining),
            "UNHEALTHY" => Ok(Self::Unhealthy),
            _ => Err(format!("unknown node state {text:?}")),
        }
    }
}

impl PgStore {
    /// Takes charge of a node for an agent's process. Refused while another process's heartbeat is fresh; a
    /// changed endpoint or engine is a new incarnation.
    ///
    /// # Errors
    /// [`StoreError`]. A repeat by the same process is always safe.
    pub async fn node_register(&self, node: &NodeRegistration) -> Result<NodeRegistered, StoreError> {
        let millis = |d: Duration| i32::try_from(d.as_millis()).unwrap_or(i32::MAX);
        let slots = i32::try_from(node.max_concurrency).unwrap_or(i32::MAX);
        let params: [Param<'_>; 13] = [
            &node.namespace.as_str(),
            &node.node.as_str(),
            &node.endpoint,
            &node.engine.engine_id,
            &node.process.0,
            &slots,
            &node.engine.os,
            &node.engine.architecture,
            &node.engine.cpu_millis,
            &node.engine.memory_bytes,
            &node.engine.version,
            &millis(node.heartbeat_ttl),
            &millis(node.lost_after),
        ];
        // The holder may be forgotten, or fall silent, between the two statements: then it is tried anew.
        for _ in 0..3 {
            let rows = self.call("node_register", &REGISTER, &params).await?;
            if let Some(row) = rows.first() {
                let columns = Columns::new("node_register", row);
                return Ok(NodeRegistered::Registered {
                    incarnation: columns.get("incarnation")?,
                    state: columns.parse("state")?,
                });
            }
            let rows = self.call("node_register", &HOLDER, &params[..2]).await?;
            if let Some(row) = rows.first() {
                let columns = Columns::new("node_register", row);
                let retry_after: i64 = columns.get("retry_after_ms")?;
                return Ok(NodeRegistered::LiveElsewhere {
                    endpoint: columns.get("endpoint")?,
                    process: ProcessId(columns.get("process_id")?),
                    retry_after: Duration::from_millis(retry_after.unsigned_abs()),
                });
            }
        }
        Err(error::garbled("node_register", "the node is forgotten and registered again and again"))
    }

    /// Says that the agent is alive, and how its engine is: `Ready`, `Draining` or `Unhealthy`, with words for
    /// people.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn node_heartbeat(
        &self,
        namespace: &Namespace,
        node: &NodeId,
        process: ProcessId,
        state: NodeState,
        reason: Option<&str>,
    ) -> Result<NodeBeat, StoreError> {
        self.beat(namespace, node, process, state, reason, false).await
    }

    /// Says that the agent ends: the node takes no more jobs, and the next process may take charge at once.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn node_farewell(
        &self,
        namespace: &Namespace,
        node: &NodeId,
        process: ProcessId,
    ) -> Result<NodeBeat, StoreError> {
        self.beat(namespace, node, process, NodeState::Draining, Some("its agent has stopped"), true).await
    }

    async fn beat(
        &self,
        namespace: &Namespace,
        node: &NodeId,
        process: ProcessId,
        state: NodeState,
        reason: Option<&str>,
        farewell: bool,
    ) -> Result<NodeBeat, StoreError> {
        // Engines' words may hold anything; what is stored may not.
        let reason = reason.map(|words| Failure::new(FailureKind::System, "", words).message);
        let params: [Param<'_>; 6] =
            [&namespace.as_str(), &node.as_str(), &process.0, &state.as_str(), &reason, &farewell];
        let rows = self.call("node_heartbeat", &HEARTBEAT, &params).await?;
        match rows.first() {
            Some(row) => Ok(NodeBeat::Recorded(Columns::new("node_heartbeat", row).parse("state")?)),
            None => Ok(NodeBeat::NotOurs),
        }
    }

    /// An operator drains a node (it takes no new jobs, also after a restart of its agent), or lets it take
    /// jobs again. Answers the state in force, or nothing when there is no such node.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn node_drain(
        &self,
        namespace: &Namespace,
        node: &NodeId,
        drain: bool,
    ) -> Result<Option<NodeState>, StoreError> {
        let rows = self.call("node_drain", &CORDON, &[&namespace.as_str(), &node.as_str(), &drain]).await?;
        rows.first().map(|row| Columns::new("node_drain", row).parse("state")).transpose()
    }

    /// Every node of a namespace.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn node_list(&self, namespace: &Namespace) -> Result<Vec<NodeRow>, StoreError> {
        let rows = self.call("node_list", &LIST, &[&namespace.as_str()]).await?;
        rows.iter().map(node_row).collect()
    }

    /// Which of these jobs are RUNNING, and under which claim. Nothing when the asker has no say over that
    /// engine (any more): it must touch nothing then.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn node_claims(
        &self,
        ask: &ClaimsQuestion<'_>,
    ) -> Result<Option<Vec<StandingClaim>>, StoreError> {
        let jobs: Vec<i64> = ask.jobs.iter().map(|job| job.0).collect();
        let params: [Param<'_>; 6] =
            [&ask.namespace.as_str(), &ask.node.as_str(), &ask.process.0, &ask.engine_id, &ask.fleet, &jobs];
        let rows = self.call("node_claims", &CLAIMS, &params).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let mut standing = Vec::with_capacity(rows.len());
        for row in &rows {
            let columns = Columns::new("node_claims", row);
            // None of the jobs is RUNNING: one row without any.
            let Some(job) = columns.get::<Option<i64>>("job_id")? else { continue };
            standing.push(StandingClaim {
                job: JobId(job),
                epoch: Epoch(columns.get("claim_epoch")?),
                attached: columns.parse_opt("container_id")?,
                tasks: tasks_of(columns)?,
            });
        }
        Ok(Some(standing))
    }

    /// Deletes a node. Refused while jobs are RUNNING on it, unless forced: then their runtime counts as
    /// unavailable, and what still runs there is nobody's any more.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn node_forget(
        &self,
        namespace: &Namespace,
        node: &NodeId,
        force: bool,
    ) -> Result<NodeForgotten, StoreError> {
        transaction!(self, "node_forget", 1, session => forget(session, namespace, node, force))
    }
}

fn tasks_of(columns: Columns<'_>) -> Result<Vec<(TaskKey, Option<ContainerId>)>, StoreError> {
    let keys: Vec<String> = columns.get("tasks")?;
    let containers: Vec<String> = columns.get("containers")?;
    let garbled = |error| error::garbled("node_claims", error);
    let tasks = keys.into_iter().zip(containers).map(|(key, container)| {
        let container = Some(container).filter(|id| !id.is_empty()).map(ContainerId::new).transpose();
        Ok((TaskKey::new(key).map_err(garbled)?, container.map_err(garbled)?))
    });
    tasks.collect()
}

async fn forget(
    session: &Session,
    namespace: &Namespace,
    node: &NodeId,
    force: bool,
) -> Result<NodeForgotten, Stop<StoreError>> {
    let key: [Param<'_>; 2] = [&namespace.as_str(), &node.as_str()];
    if session.query(&TAKE, &key).await?.is_empty() {
        return Ok(NodeForgotten::NotFound);
    }
    let rows = session.query(&RUNNING, &key).await?;
    let running = rows.iter().map(|row| row.try_get("job_id").map(JobId)).collect::<Result<Vec<_>, _>>()?;
    if !running.is_empty() && !force {
        return Ok(NodeForgotten::HasRunningJobs { running });
    }
    session.query(&FORGET, &key).await?;
    Ok(NodeForgotten::Forgotten { running })
}

fn node_row(row: &Row) -> Result<NodeRow, StoreError> {
    let columns = Columns::new("node_list", row);
    Ok(NodeRow {
        id: columns.parse("node_id")?,
        namespace: columns.parse("namespace")?,
        state: columns.parse("state")?,
        reason: columns.get("reason")?,
        fresh: columns.get("fresh")?,
        lost: columns.get("lost")?,
        endpoint: columns.get("endpoint")?,
        engine_id: columns.get("engine_id")?,
        incarnation: columns.get("incarnation")?,
        slots_used: columns.get("slots_used")?,
        slots: columns.get("max_concurrency")?,
        os: columns.get("os")?,
        architecture: columns.get("architecture")?,
        cpu_millis: columns.get("cpu_millis")?,
        memory_bytes: columns.get("memory_bytes")?,
        engine_version: columns.get("engine_version")?,
        heartbeat_at: columns.get("heartbeat_at")?,
        heartbeat_age_ms: columns.get("heartbeat_age_ms")?,
        registered_at: columns.get("registered_at")?,
    })
}
