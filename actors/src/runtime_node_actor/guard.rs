//! The kill switch that the fence holds for a container, from before its creation until it is known to be dead.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;

use super::Node;
use crate::{
    domain::ContainerId,
    error::EngineErrorKind,
    fence::Kill,
    ports::{ContainerEngine, ContainerPlan},
};

/// How far the container has come; decides what makes it surely not running.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// At most being created: nothing can run, since a start is only asked for once the id is known.
    Unstarted,
    /// A start was asked for and may arrive late: only a removal forestalls it.
    Starting(ContainerId),
    /// It runs, or has run: a kill ends it for good.
    Started(ContainerId),
}

/// Kills the container of one run over a connection of its own.
pub(super) struct KillSwitch {
    node: Arc<Node>,
    name: String,
    labels: Vec<(String, String)>,
    stage: Mutex<Stage>,
}

/// The longest wait for the mark: its time is over. A SIGKILL without it is not taken for the program's own end
/// either, unless the kernel has killed something in it for memory before.
const MARK_LIMIT: Duration = Duration::from_millis(500);

impl KillSwitch {
    pub(super) fn new(node: &Arc<Node>, plan: &ContainerPlan) -> Arc<Self> {
        let stage = Mutex::new(Stage::Unstarted);
        let (name, labels) = (plan.name.clone(), plan.labels.clone());
        Arc::new(Self { node: Arc::clone(node), name, labels, stage })
    }

    /// Called before a start is sent.
    pub(super) fn starting(&self, id: &ContainerId) {
        *self.stage() = Stage::Starting(id.clone());
    }

    /// Called when it is certain that it was started.
    pub(super) fn started(&self, id: &ContainerId) {
        *self.stage() = Stage::Started(id.clone());
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kill for KillSwitch {
    fn kill(&self) -> BoxFuture<'static, Result<(), String>> {
        let stage = self.stage().clone();
        let (node, name, labels) = (Arc::clone(&self.node), self.name.clone(), self.labels.clone());
        Box::pin(async move {
            // What an aborted run left behind unstarted is swept by its labels, not waited for.
            if stage == Stage::Unstarted {
                return Ok(());
            }
            let engine = node.factory.connect(&node.placement).map_err(|error| error.to_string())?;
            same_engine(&*engine, &node.placement.engine_id).await?;
            match stage {
                Stage::Unstarted => Ok(()),
                Stage::Starting(id) => {
                    tracing::warn!(container = %id, "removing a container whose start may still be on its way");
                    engine.remove(&id).await.map_err(|error| error.to_string())
                }
                Stage::Started(id) => {
                    tracing::warn!(container = %id, labels = ?labels, "killing a container past its time");
                    // Whatever comes of it, it is killed.
                    let _ = tokio::time::timeout(MARK_LIMIT, engine.mark_stopped(&id, &name)).await;
                    match engine.kill(&id).await {
                        Err(error) if error.kind == EngineErrorKind::NoSuchContainer => Ok(()),
                        other => other.map_err(|error| error.to_string()),
                    }
                }
            }
        })
    }
}

/// Another engine under the endpoint is left alone, whatever runs there.
async fn same_engine(engine: &dyn ContainerEngine, expected: &str) -> Result<(), String> {
    let info = engine.info().await.map_err(|error| error.to_string())?;
    if info.engine_id == expected {
        return Ok(());
    }
    Err(format!("engine {} answers where {expected} was; nothing is touched", info.engine_id))
}
