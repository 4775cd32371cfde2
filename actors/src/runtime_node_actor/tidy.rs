//! Removal: it always happens. What cannot be removed in time is tried on beside the run, and what is left
//! over at last is said; the node's agent finds it by its labels.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::run::{Patience, Run};
use crate::{domain::ContainerId, error::EngineErrorKind, fence::ContainerGuard};

/// Even a run without any time left tries once, for this long.
const LAST_TRY: Duration = Duration::from_secs(1);

/// How long a leftover is tried to be removed beside everything else.
const SWEEP: Duration = Duration::from_mins(5);

impl Run {
    /// Removes an ended container, within the time that there is.
    pub(super) async fn remove(self: &Arc<Self>, id: &ContainerId) {
        if !self.try_remove(id, self.removal_time()).await {
            self.sweep(id.clone());
        }
    }

    /// Removes whatever a run that did not begin has left on the engine.
    pub(super) async fn discard(self: &Arc<Self>, guard: ContainerGuard) {
        let limit = self.removal_time();
        let found = timeout(limit, self.leftovers()).await.unwrap_or_default();
        let Some(found) = found else {
            // Nobody can tell what is there; the fence takes care that it does not run.
            drop(guard);
            return self.sweep_labelled();
        };
        for id in found {
            if !self.try_remove(&id, limit).await {
                drop(guard);
                return self.sweep(id);
            }
        }
        guard.gone();
    }

    /// None when the engine does not answer.
    async fn leftovers(&self) -> Option<Vec<ContainerId>> {
        let mut patience = Patience::of(self.limits().removal);
        loop {
            match self.call("list", self.limits().look_every, self.engine().list(&self.plan.labels)).await {
                Ok(found) => return Some(found.into_iter().map(|status| status.id).collect()),
                Err(error) => {
                    tracing::debug!(container = %self.plan.name, %error, "what is left over?");
                    if !patience.wait().await {
                        return None;
                    }
                }
            }
        }
    }

    fn removal_time(&self) -> Duration {
        match self.lease.stop_reason() {
            Some(_) => self.lease.stop_budget().min(self.limits().removal).max(LAST_TRY),
            None => self.limits().removal,
        }
    }

    async fn try_remove(&self, id: &ContainerId, limit: Duration) -> bool {
        timeout(limit, self.remove_patiently(id, limit)).await.unwrap_or(false)
    }

    async fn remove_patiently(&self, id: &ContainerId, limit: Duration) -> bool {
        let mut patience = Patience::of(limit);
        loop {
            match self.call("remove", self.limits().look_every, self.engine().remove(id)).await {
                Ok(()) => return true,
                Err(error) if error.kind == EngineErrorKind::NoSuchContainer => return true,
                Err(error) => {
                    tracing::debug!(container = %self.plan.name, %error, "not removed, trying again");
                    if !patience.wait().await {
                        return false;
                    }
                }
            }
        }
    }

    /// Goes on removing beside the run, which need not wait for it.
    pub(super) fn sweep(self: &Arc<Self>, id: ContainerId) {
        tracing::warn!(container = %self.plan.name, "the container is not removed yet, going on beside");
        let run = Arc::clone(self);
        tokio::spawn(async move {
            if !run.try_remove(&id, SWEEP).await {
                run.say_left_over();
            }
        });
    }

    fn sweep_labelled(self: &Arc<Self>) {
        let run = Arc::clone(self);
        tokio::spawn(async move {
            let mut patience = Patience::of(SWEEP);
            while patience.wait().await {
                let Some(found) = run.leftovers().await else { continue };
                let mut all = true;
                for id in found {
                    all &= run.try_remove(&id, run.limits().removal).await;
                }
                if all {
                    return;
                }
            }
            run.say_left_over();
        });
    }

    fn say_left_over(&self) {
        tracing::error!(container = %self.plan.name, node = %self.node.placement.node,
            "a container is left over; the node's agent removes it, or remove it by hand");
    }
}
