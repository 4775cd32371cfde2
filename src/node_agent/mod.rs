//! `leasehold node`: registers a Docker engine as a runtime node and keeps it fresh.
//!
//! | part | file | does |
//! |---|---|---|
//! | loop | `beat` | a heartbeat at each interval and at each change; the drain |
//! | probe | `probe` | asks the engine whether it is well |
//! | reaper | [`orphans`] | removes containers that no claim stands behind, if PostgreSQL says so |
//! | fence | `fence` | kills what runs here before PostgreSQL may call the node lost |
//!
//! None waits for another: an engine that hangs does not make its node look dead, a database that hangs does not
//! hide the engine's state, and nothing holds up the fence.

mod beat;
mod fence;
pub mod orphans;
mod probe;

use std::{future::Future, time::Duration};

use leasehold_actors::{
    clock::BootInstant,
    domain::{InvalidId, NodeId, ProcessId},
    error::{EngineError, StoreError},
    ports::{ContainerEngine as _, EngineInfo},
};
use tokio::time::{Instant, sleep};

use crate::{
    config::NodeSettings,
    docker::{ConnectError, DockerEngine},
    postgres::{
        PgStore,
        nodes::{NodeRegistered, NodeRegistration, NodeState},
    },
};
use beat::Agent;
use fence::{NodeFence, Way};
use orphans::{Domain, Reaper};

/// How an agent ended that was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeExit {
    /// No job runs on the node any more.
    Drained,
    /// The grace was over, or nobody wanted to wait: jobs still run on the engine, under their workers' leases.
    StillRunning {
        /// How many, as far as it is known.
        jobs: Option<i64>,
    },
}

impl std::fmt::Display for NodeExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Drained => f.write_str("drained: no job runs on the node"),
            Self::StillRunning { jobs: Some(jobs) } => {
                write!(
                    f,
                    "stopped with {jobs} jobs still running on the engine; their workers go on with them"
                )
            }
            Self::StillRunning { jobs: None } => {
                f.write_str("stopped without an answer from the database as to what still runs on the node")
            }
        }
    }
}

/// Why an agent cannot go on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NodeError {
    /// The node's name is none.
    #[error("RUNTIME_NODE_ID: {0}")]
    Name(#[from] InvalidId),
    /// The endpoint or its TLS files cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The engine did not answer when the agent started.
    #[error("the Docker engine at {endpoint} cannot be used: {error}")]
    Engine {
        /// Where it should listen.
        endpoint: String,
        /// What happened.
        error: EngineError,
    },
    /// Another agent serves this node.
    #[error(
        "node {node} is served by another live process (for the engine at {endpoint}): stop that one, or choose another --node-id"
    )]
    LiveElsewhere {
        /// The node.
        node: NodeId,
        /// The engine that the other one serves.
        endpoint: String,
    },
    /// The node was taken away from this agent.
    #[error(
        "node {node} was forgotten, or taken over by another agent while this one was silent; start it again to register anew"
    )]
    TakenAway {
        /// The node.
        node: NodeId,
    },
    /// A part of the agent died; a process that goes on would say that all is well for ever.
    #[error("a part of node {node}'s agent died; this is a defect, please report it")]
    PartDied {
        /// The node.
        node: NodeId,
    },
    /// The operating system gives no thread for the fence.
    #[error("the operating system gives node {node}'s agent no thread: {reason}")]
    NoThread {
        /// The node.
        node: NodeId,
        /// In its words.
        reason: String,
    },
    /// The database refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Between two tries to reach the database, and between two looks at who else serves the node.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// Serves a node until `shutdown` resolves, then drains: no new jobs, and an end as soon as none runs there or
/// the grace is over. Outages of database and engine after the registration are survived.
///
/// # Errors
/// [`NodeError`]; at the start for anything that keeps the node from being registered, later only when the node
/// was taken away.
pub async fn run<S>(settings: NodeSettings, store: PgStore, shutdown: S) -> Result<NodeExit, NodeError>
where
    S: Future<Output = ()>,
{
    run_or_now(settings, store, shutdown, std::future::pending()).await
}

/// As [`run`]; once `now` resolves, the drain waits no longer.
///
/// # Errors
/// As [`run`].
pub async fn run_or_now<S, N>(
    settings: NodeSettings,
    store: PgStore,
    shutdown: S,
    now: N,
) -> Result<NodeExit, NodeError>
where
    S: Future<Output = ()>,
    N: Future<Output = ()>,
{
    let mut shutdown = std::pin::pin!(shutdown);
    let now = std::pin::pin!(now);
    let node = NodeId::new(settings.node_id.clone())?;
    let engine = DockerEngine::connect(&settings.endpoint, settings.tls.as_ref())?;
    let info = engine
        .info()
        .await
        .map_err(|error| NodeError::Engine { endpoint: settings.endpoint.clone(), error })?;
    let registration = registration(&settings, node, info);
    let fleet = tokio::select! {
        fleet = fleet(&store) => fleet?,
        () = shutdown.as_mut() => return Ok(NodeExit::Drained),
    };
    // Between the registration and the loop nothing is waited for: a shutdown that came in between would leave a READY
    // node behind whose agent is gone.
    let registered = tokio::select! {
        biased;
        registered = register(&store, &registration) => registered?,
        () = shutdown.as_mut() => {
            // Its request may be on its way, or done.
            if let Err(error) = store.node_farewell(&registration.namespace, &registration.node, registration.process).await {
                tracing::warn!(node = %registration.node, %error, "stopped while it registered; the heartbeat will lapse");
            }
            return Ok(NodeExit::Drained);
        }
    };
    tracing::info!(
        node = %registration.node, endpoint = %settings.endpoint, engine = %registration.engine.version,
        slots = registration.max_concurrency, incarnation = registered.incarnation, state = registered.state.as_str(),
        "runtime node registered"
    );
    let domain = Domain {
        namespace: registration.namespace.clone(),
        node: registration.node.clone(),
        process: registration.process,
        engine_id: registration.engine.engine_id.clone(),
        fleet,
    };
    let way = Way { endpoint: settings.endpoint.clone(), tls: settings.tls.clone() };
    let fence =
        NodeFence::start(way, domain.clone(), settings.lost_after, registered.sent).map_err(|error| {
            NodeError::NoThread { node: registration.node.clone(), reason: error.to_string() }
        })?;
    let reaper = Reaper::start(engine.clone(), store.clone(), domain, settings.orphan_interval);
    let probe = probe::start(engine, settings.heartbeat_interval, registration.engine.clone());
    let agent = Agent::new(store, registration, &settings, registered.state, fence, reaper);
    agent.serve(probe, shutdown, now, settings.drain_grace).await
}

/// Which fleet this is, however long the database is away.
async fn fleet(store: &PgStore) -> Result<uuid::Uuid, StoreError> {
    loop {
        match store.fleet().await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, retry_in = ?RETRY, "cannot read the fleet's id yet");
                sleep(RETRY).await;
            }
            answer => return answer,
        }
    }
}

fn registration(settings: &NodeSettings, node: NodeId, engine: EngineInfo) -> NodeRegistration {
    NodeRegistration {
        namespace: settings.namespace.clone(),
        node,
        process: ProcessId::generate(),
        endpoint: settings.endpoint.clone(),
        max_concurrency: settings.max_concurrency,
        engine,
        heartbeat_ttl: settings.heartbeat_ttl,
        lost_after: settings.lost_after,
    }
}

/// A registration that the database has taken note of.
struct Confirmed {
    sent: BootInstant,
    incarnation: i64,
    state: NodeState,
}

/// Registers, however long the database is away. A process that holds the node's name is watched until it
/// beats (then it lives, and we are refused) or falls silent for good (then its name is ours).
async fn register(store: &PgStore, registration: &NodeRegistration) -> Result<Confirmed, NodeError> {
    let mut delay = RETRY;
    let mut lapses_at: Option<Instant> = None;
    loop {
        let sent = BootInstant::now();
        match store.node_register(registration).await {
            Ok(NodeRegistered::Registered { incarnation, state }) => {
                return Ok(Confirmed { sent, incarnation, state });
            }
            Ok(NodeRegistered::LiveElsewhere { endpoint, retry_after, .. }) => {
                let lapse = Instant::now() + retry_after;
                // It lapses later than it did at the last look: it has beaten meanwhile.
                if lapses_at.is_some_and(|known| lapse > known + RETRY / 2) {
                    return Err(NodeError::LiveElsewhere { node: registration.node.clone(), endpoint });
                }
                if lapses_at.is_none() {
                    tracing::warn!(
                        node = %registration.node, %endpoint, wait = ?retry_after,
                        "another process has served this node a moment ago; looking whether it is alive"
                    );
                }
                lapses_at = Some(lapse);
                sleep(retry_after.min(RETRY)).await;
            }
            Err(error) if error.is_retryable() => {
                tracing::warn!(node = %registration.node, %error, retry_in = ?delay, "cannot register yet");
                sleep(delay).await;
                delay = (delay * 2).min(LONGEST_RETRY);
            }
            Err(error) => return Err(error.into()),
        }
    }
}
