//! Asks the engine, over and over, whether it is well.

use std::time::Duration;

use leasehold_actors::ports::{ContainerEngine as _, EngineInfo};
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use crate::docker::DockerEngine;

/// What the last answer, or the lack of one, said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Health {
    /// It answered, and this is who it is.
    Well(EngineInfo),
    /// It did not, and why.
    Ill(String),
}

/// The probing task; it ends with this handle.
pub(super) struct Probe {
    pub(super) health: watch::Receiver<Health>,
    task: JoinHandle<()>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) fn start(engine: DockerEngine, interval: Duration, known: EngineInfo) -> Probe {
    let (publish, health) = watch::channel(Health::Well(known));
    let task = tokio::spawn(async move {
        loop {
            sleep(interval).await;
            let found = match engine.info().await {
                Ok(info) => Health::Well(info),
                Err(error) => Health::Ill(error.message),
            };
            // Only a change wakes the loop that beats.
            publish.send_if_modified(|last| {
                let changed = *last != found;
                *last = found;
                changed
            });
        }
    });
    Probe { health, task }
}
