//! A handler that works until a gate is opened, and counts how often it was entered.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use leasehold::workload::handler::{HandlerError, Job, LeaseHandle};
use tokio::sync::watch;

use super::eventually::eventually;

/// Clones are the same gate.
#[derive(Debug, Clone, Default)]
pub struct Gate {
    entered: Arc<AtomicU32>,
    open: watch::Sender<bool>,
}

impl Gate {
    /// What waits at it, until it is open or the lease tells it to stop.
    pub fn handler(
        &self,
    ) -> impl Fn(Job<()>, LeaseHandle) -> BoxFuture<'static, Result<(), HandlerError>> + use<> {
        let gate = self.clone();
        move |_, lease| {
            gate.entered.fetch_add(1, Ordering::SeqCst);
            let mut open = gate.open.subscribe();
            async move {
                tokio::select! {
                    _ = open.wait_for(|open| *open) => Ok(()),
                    _ = lease.cancelled() => Err(HandlerError::stopped()),
                }
            }
            .boxed()
        }
    }

    /// How often work was begun.
    pub fn entered(&self) -> usize {
        self.entered.load(Ordering::SeqCst) as usize
    }

    /// Waits until so many wait at it.
    pub async fn until_entered_by(&self, count: usize) {
        eventually(Duration::from_secs(60), "all run", async || (self.entered() == count).then_some(()))
            .await;
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }
}
