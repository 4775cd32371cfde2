//! Starts the actors of runtime nodes: which engine adapter, which fleet, which runtime.

use std::sync::Arc;

use leasehold_actors::{
    nodes::StartNode,
    ports::EngineFactory,
    runtime_node_actor::{self, NodeRunSettings, RunLimits},
};
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::{config::WorkerSettings, docker::DockerEngineFactory};

/// Runs live on `io`, away from the actors' thread: reading fast output costs time that renewals should not
/// wait for.
pub(super) fn starter(
    fleet: Uuid,
    settings: &WorkerSettings,
    io: Handle,
    between: impl FnOnce(Arc<dyn EngineFactory>) -> Arc<dyn EngineFactory>,
) -> StartNode {
    let factory = between(Arc::new(DockerEngineFactory::new(settings.runtime_tls.clone())));
    let settings = NodeRunSettings { fleet, limits: RunLimits::default(), runtime: Some(io) };
    runtime_node_actor::starter(factory, settings)
}
