//! Engines with points around their calls.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::{CrashPoints, Lost, Outcome, Side};
use crate::{
    domain::{ContainerId, PullPolicy},
    error::EngineError,
    ports::{
        ContainerEngine, ContainerPlan, ContainerStatus, EngineFactory, EngineInfo, LogChunk, Placement,
    },
};

pub(super) struct Factory {
    inner: Arc<dyn EngineFactory>,
    points: CrashPoints,
}

impl Factory {
    pub(super) fn new(inner: Arc<dyn EngineFactory>, points: CrashPoints) -> Self {
        Self { inner, points }
    }
}

impl EngineFactory for Factory {
    fn connect(&self, placement: &Placement) -> Result<Box<dyn ContainerEngine>, EngineError> {
        // Nothing is sent yet.
        let inner = self.inner.connect(placement)?;
        Ok(Box::new(Pointed { inner, points: self.points.clone() }))
    }
}

struct Pointed {
    inner: Box<dyn ContainerEngine>,
    points: CrashPoints,
}

fn any<T>(_: &T) -> bool {
    true
}

#[async_trait]
impl ContainerEngine for Pointed {
    async fn info(&self) -> Result<EngineInfo, EngineError> {
        self.points.around("engine.info", self.inner.info(), any).await
    }

    async fn ensure_image(&self, image: &str, pull: PullPolicy) -> Result<(), EngineError> {
        self.points.around("engine.ensure_image", self.inner.ensure_image(image, pull), any).await
    }

    async fn create(&self, plan: &ContainerPlan) -> Result<ContainerId, EngineError> {
        self.points.around("engine.create", self.inner.create(plan), any).await
    }

    async fn start(&self, id: &ContainerId) -> Result<(), EngineError> {
        self.points.around("engine.start", self.inner.start(id), any).await
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>, EngineError> {
        self.points.around("engine.inspect", self.inner.inspect(id), any).await
    }

    async fn wait(&self, id: &ContainerId) -> Result<ContainerStatus, EngineError> {
        self.points.around("engine.wait", self.inner.wait(id), any).await
    }

    /// The point after it is that of the first piece of output, or of the end where there is none.
    fn logs(&self, id: &ContainerId) -> BoxStream<'static, Result<LogChunk, EngineError>> {
        const CALL: &str = "engine.logs";
        if let Outcome::Lost = self.points.reach(CALL, Side::Before, None) {
            return stream::iter([Err(EngineError::lost(CALL))]).boxed();
        }
        let points = self.points.clone();
        stream::unfold((self.inner.logs(id), true), move |(mut inner, first)| {
            let points = points.clone();
            async move {
                let piece = inner.next().await;
                let outcome = if first { points.reach(CALL, Side::After, None) } else { Outcome::Fine };
                match outcome {
                    Outcome::Fine => {}
                    Outcome::Lost => {
                        return Some((Err(EngineError::lost(CALL)), (stream::empty().boxed(), false)));
                    }
                    Outcome::Late(late) => tokio::time::sleep(late).await,
                    Outcome::AtCancel => points.until_canceled().await,
                    Outcome::Never => std::future::pending().await,
                }
                piece.map(|piece| (piece, (inner, false)))
            }
        })
        .boxed()
    }

    async fn mark_stopped(&self, id: &ContainerId, name: &str) -> Result<(), EngineError> {
        self.points.around("engine.mark_stopped", self.inner.mark_stopped(id, name), any).await
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<(), EngineError> {
        self.points.around("engine.stop", self.inner.stop(id, grace), any).await
    }

    async fn kill(&self, id: &ContainerId) -> Result<(), EngineError> {
        self.points.around("engine.kill", self.inner.kill(id), any).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), EngineError> {
        self.points.around("engine.remove", self.inner.remove(id), any).await
    }

    async fn list(&self, labels: &[(String, String)]) -> Result<Vec<ContainerStatus>, EngineError> {
        self.points.around("engine.list", self.inner.list(labels), any).await
    }
}
