//! Strands: the branches of a walk that go on at once, and whether any of them still moves.
//!
//! A session is one task. Its strands are futures inside it, polled one after the other, so that "does any strand still
//! move" is a plain count. A strand is *busy* while it replays, runs a task or waits for a record; it rests where it
//! needs what is not there yet. Every strand belongs to a group and with it to all groups around that: the count of a
//! group tells when a `parallel`, or the whole recipe, has come to rest.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use super::lock;
use crate::recipe::op::TaskStop;

/// Strands that end together: those of one `parallel`, of one attempt under a timeout, or of the whole recipe.
#[derive(Debug, Default)]
pub(super) struct Group {
    around: Option<Arc<Group>>,
    busy: AtomicUsize,
    stopped: AtomicBool,
    why: Mutex<Option<TaskStop>>,
    told: Notify,
}

impl Group {
    /// The whole recipe.
    pub(super) fn root() -> Arc<Self> {
        Arc::default()
    }

    /// A group inside this one.
    pub(super) fn inside(self: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { around: Some(Arc::clone(self)), ..Self::default() })
    }

    /// Whether no strand of it moves.
    pub(super) fn rests(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }

    /// Counts a strand of it as moving until the guard is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        for group in self.outwards() {
            group.busy.fetch_add(1, Ordering::Relaxed);
        }
        Busy(Arc::clone(self))
    }

    /// Stops it: its tasks are told, and it starts no more.
    pub(super) fn stop(&self, why: TaskStop) {
        lock(&self.why).get_or_insert(why);
        self.stopped.store(true, Ordering::Relaxed);
        self.told.notify_waiters();
    }

    /// Why it, or a group around it, was stopped.
    pub(super) fn stop_reason(&self) -> Option<TaskStop> {
        let group = self.outwards().find(|group| group.stopped.load(Ordering::Relaxed))?;
        *lock(&group.why)
    }

    /// Resolves when it, or a group around it, is stopped.
    pub(super) async fn stopped(&self) -> TaskStop {
        loop {
            let told: Vec<_> = self.outwards().map(|group| Box::pin(group.told.notified())).collect();
            let mut told = told;
            // Registered before the look, so that a stop in between is not missed.
            for notified in &mut told {
                notified.as_mut().enable();
            }
            if let Some(why) = self.stop_reason() {
                return why;
            }
            futures_util::future::select_all(told).await;
        }
    }

    fn outwards(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |group| group.around.as_deref())
    }
}

/// A strand that moves.
#[derive(Debug)]
pub(super) struct Busy(Arc<Group>);

impl Drop for Busy {
    fn drop(&mut self) {
        for group in self.0.outwards() {
            group.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// One strand of a walk.
#[derive(Debug)]
pub(super) struct Strand {
    pub(super) group: Arc<Group>,
    busy: Option<Busy>,
}

impl Strand {
    /// A strand that moves.
    pub(super) fn new(group: &Arc<Group>) -> Self {
        Self { group: Arc::clone(group), busy: Some(group.busy()) }
    }

    /// One that rests.
    pub(super) fn resting(group: &Arc<Group>) -> Self {
        Self { group: Arc::clone(group), busy: None }
    }

    /// It rests from now on.
    pub(super) fn rest(&mut self) {
        self.busy = None;
    }

    /// It moves from now on.
    pub(super) fn resume(&mut self) {
        if self.busy.is_none() {
            self.busy = Some(self.group.busy());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strand_moves_for_all_groups_around_it() {
        let root = Group::root();
        let (inner, other) = (root.inside(), root.inside());
        let busy = inner.busy();
        assert!(!inner.rests() && !root.rests() && other.rests());
        drop(busy);
        assert!(root.rests());
    }

    #[tokio::test]
    async fn a_stop_reaches_the_groups_inside_and_no_other() {
        let root = Group::root();
        let (inner, other) = (root.inside(), root.inside());
        let innermost = inner.inside();
        inner.stop(TaskStop::SiblingFailed);
        inner.stop(TaskStop::TimedOut);
        assert_eq!(innermost.stopped().await, TaskStop::SiblingFailed, "the first reason stands");
        assert_eq!(other.stop_reason(), None);
    }
}
