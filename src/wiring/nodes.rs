//! What runs containers: which engine adapter, which fleet, which runtime. The actors of runtime nodes for CONTAINER jobs
//! and for recovery, and engine clients of their own for the tasks of recipes.

use std::sync::Arc;

use leasehold_actors::{
    nodes::StartNode,
    ports::EngineFactory,
    runtime_node_actor::{self, NodeRunSettings, RunLimits, task::TaskNodes},
};
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::{config::WorkerSettings, docker::DockerEngineFactory};

/// The engines that a worker with these settings can reach.
pub(super) fn engines(settings: &WorkerSettings) -> Arc<dyn EngineFactory> {
    Arc::new(DockerEngineFactory::new(settings.runtime_tls.clone()))
}

/// Runs live on `io`, away from the actors' thread: reading fast output costs time that renewals should not
/// wait for.
pub(super) fn starter(fleet: Uuid, io: Handle, engines: Arc<dyn EngineFactory>) -> StartNode {
    runtime_node_actor::starter(engines, run_settings(fleet, io))
}

/// What the op `container` runs containers through.
pub(crate) fn for_tasks(fleet: Uuid, io: Handle, engines: Arc<dyn EngineFactory>) -> Arc<TaskNodes> {
    Arc::new(TaskNodes::new(engines, run_settings(fleet, io)))
}

fn run_settings(fleet: Uuid, io: Handle) -> NodeRunSettings {
    NodeRunSettings { fleet, limits: RunLimits::default(), runtime: Some(io) }
}
