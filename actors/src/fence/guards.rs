//! The hands that hold an entry: its owner's, its workload's, its container's. Each does by its `Drop` what is
//! safe when the one who held it died.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::task::AbortHandle;

use super::{
    entry::{Entry, Terms},
    lock,
};
use crate::{
    clock::{Anchor, BootInstant, Deadline},
    work::StopReason,
};

/// The owner's side of an entry, held by the LeaseActor. Dropped while the work goes on (the actor died), it
/// tells the work that its lease is lost: nobody renews it any more.
#[derive(Debug)]
pub struct Watch {
    pub(super) entry: Arc<Entry>,
}

impl Watch {
    /// An entry that no thread watches, for tests of workloads.
    #[must_use]
    pub fn unfenced(terms: Terms) -> Self {
        Self { entry: Arc::new(Entry::new(0, terms, Weak::new())) }
    }

    /// The shared side.
    #[must_use]
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// A confirmed renewal moves the deadline on. It never brings it back, and never revives a lost lease.
    pub fn renewed(&self, deadline: Deadline) {
        let mut state = lock(&self.entry.state);
        if state.stop != Some(StopReason::LeaseLost) {
            state.deadline = state.deadline.max(deadline);
        }
    }

    /// Asks the work to stop, and lets it be killed when it has not ended within `grace`, or within its own
    /// stop grace if that is none. The first reason stands, except that a lost lease overrides every other.
    pub fn stop(&self, reason: StopReason, grace: Option<Duration>) {
        let mut state = lock(&self.entry.state);
        let worse = match (state.stop, reason) {
            (None, _) => true,
            (Some(StopReason::LeaseLost), _) => false,
            (Some(_), StopReason::LeaseLost) => true,
            (Some(_), _) => false,
        };
        if worse {
            state.stop = Some(reason);
        }
        if reason != StopReason::LeaseLost || grace.is_some() {
            let at = Anchor::now().after(grace.unwrap_or(state.stop_grace));
            state.kill_at = Some(state.kill_at.map_or(at, |old| old.min(at)));
        }
        let due = state.killed_when().boot();
        drop(state);
        self.entry.changed.notify_waiters();
        self.entry.hurry(due);
    }

    /// Ends the work by force, now: its task at its next `.await`, its container through the fence.
    pub fn kill(&self) {
        let mut state = lock(&self.entry.state);
        let now = Anchor::now().after(Duration::ZERO);
        state.kill_at = Some(state.kill_at.map_or(now, |old| old.min(now)));
        let aborts = std::mem::take(&mut state.aborts);
        drop(state);
        aborts.iter().for_each(AbortHandle::abort);
        self.entry.hurry(now.boot());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let begun = {
            let state = lock(&self.entry.state);
            if state.is_over() {
                return;
            }
            state.begun
        };
        if begun {
            self.stop(StopReason::LeaseLost, None);
        } else if let Some(fence) = self.entry.fence.upgrade() {
            fence.forget(&self.entry);
        }
    }
}

/// Keeps a work counted as going on. Whatever executes a part of it on another task or thread takes one
/// along: a workload has ended when the last one is dropped.
#[derive(Debug)]
pub struct Hold {
    pub(super) entry: Arc<Entry>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = lock(&self.entry.state);
        state.holds -= 1;
        self.entry.after_change(state);
    }
}

/// Stands for a container that may be running. Dropped without [`ContainerGuard::gone`] (its actor died), it
/// has the fence kill the container, again and again until that is confirmed.
#[derive(Debug)]
pub struct ContainerGuard {
    pub(super) entry: Arc<Entry>,
    pub(super) id: u64,
    pub(super) gone: bool,
}

impl ContainerGuard {
    /// The container has ended, or surely never came to be.
    pub fn gone(mut self) {
        self.gone = true;
    }
}

impl Drop for ContainerGuard {
    fn drop(&mut self) {
        let mut state = lock(&self.entry.state);
        if self.gone {
            state.container_is_gone(self.id);
            self.entry.after_change(state);
        } else {
            // Only the container: the task that waits for it hears of its actor's death by itself.
            if let Some(container) = state.container(self.id) {
                container.orphaned = true;
            }
            drop(state);
            self.entry.hurry(BootInstant::now());
        }
    }
}
