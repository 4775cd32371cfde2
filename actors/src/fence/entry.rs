//! One workload's entry at the fence: what its LeaseActor, its tasks and the fence's thread share.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, task::AbortHandle};

use super::{
    KILL_RETRY, Kill, OVERSLEPT, STUCK_AFTER, Shared,
    guards::{ContainerGuard, Hold},
    lock,
};
use crate::{
    clock::{BootInstant, Deadline},
    domain::{CommandId, Epoch, JobId},
    work::StopReason,
};

/// What a workload is tied to.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The job.
    pub job: JobId,
    /// The epoch of the grant.
    pub epoch: Epoch,
    /// When the work must be dead, unless a renewal moves that on.
    pub deadline: Deadline,
    /// The lease's duration.
    pub lease: Duration,
    /// How long the work may take to stop.
    pub stop_grace: Duration,
}

/// One workload's entry: what its actor, its task and the fence's thread share.
pub struct Entry {
    pub(super) id: u64,
    pub(super) terms: Terms,
    pub(super) state: Mutex<State>,
    pub(super) changed: Notify,
    pub(super) fence: Weak<Shared>,
    /// Where it stands in the table; read and written under the table's lock only.
    pub(super) position: AtomicU64,
}

pub(super) struct State {
    pub(super) deadline: Deadline,
    pub(super) stop: Option<StopReason>,
    /// When a work that was told to stop is ended by force; never later than `deadline` in effect.
    pub(super) kill_at: Option<Deadline>,
    pub(super) stop_grace: Duration,
    /// The tasks that run the work, wherever.
    pub(super) aborts: Vec<AbortHandle>,
    /// A recipe may have several at once.
    pub(super) containers: Vec<Guarded>,
    pub(super) last_container: u64,
    /// When it was first ended by force.
    pub(super) killed_at: Option<BootInstant>,
    pub(super) stuck: bool,
    /// The process stood still, so until then its work is given time to end.
    pub(super) spared_until: Option<BootInstant>,
    pub(super) holds: u32,
    pub(super) begun: bool,
    /// The work ends the lease itself, under this command.
    pub(super) pledge: Option<CommandId>,
}

/// A container of the work that may be running.
pub(super) struct Guarded {
    pub(super) id: u64,
    kill: Arc<dyn Kill>,
    stop_grace: Duration,
    /// Nobody looks after it any more.
    pub(super) orphaned: bool,
    pub(super) killing: bool,
}

impl State {
    pub(super) fn is_over(&self) -> bool {
        self.begun && self.holds == 0 && self.containers.is_empty()
    }

    pub(super) fn has_orphans(&self) -> bool {
        self.containers.iter().any(|container| container.orphaned)
    }

    pub(super) fn container(&mut self, id: u64) -> Option<&mut Guarded> {
        self.containers.iter_mut().find(|container| container.id == id)
    }

    pub(super) fn container_is_gone(&mut self, id: u64) {
        self.containers.retain(|container| container.id != id);
    }

    pub(super) fn killed_when(&self) -> Deadline {
        self.kill_at.map_or(self.deadline, |at| at.min(self.deadline))
    }
}

/// What the fence's thread has to do for an entry now.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) lost: bool,
    pub(super) by_force: bool,
    pub(super) aborts: Vec<AbortHandle>,
    pub(super) kills: Vec<(u64, Arc<dyn Kill>)>,
    pub(super) stuck: bool,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Entry")
            .field("job", &self.terms.job)
            .field("epoch", &self.terms.epoch)
            .field("stop", &state.stop)
            .field("over", &state.is_over())
            .field("stuck", &state.stuck)
            .finish_non_exhaustive()
    }
}

impl Entry {
    pub(super) fn new(id: u64, terms: Terms, fence: Weak<Shared>) -> Self {
        let state = State {
            deadline: terms.deadline,
            stop: None,
            kill_at: None,
            stop_grace: terms.stop_grace,
            aborts: Vec::new(),
            containers: Vec::new(),
            last_container: 0,
            killed_at: None,
            stuck: false,
            spared_until: None,
            holds: 0,
            begun: false,
            pledge: None,
        };
        Self {
            id,
            terms,
            state: Mutex::new(state),
            changed: Notify::new(),
            fence,
            position: AtomicU64::new(u64::MAX),
        }
    }

    pub(super) fn first_due(&self) -> BootInstant {
        self.ask_at(&lock(&self.state)).boot()
    }

    fn ask_at(&self, state: &State) -> Deadline {
        state.deadline.earlier(state.stop_grace.min(self.terms.lease / 8))
    }

    /// The local deadline.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        lock(&self.state).deadline
    }

    /// When the work is asked to stop unless a renewal comes first.
    #[must_use]
    pub fn asked_when(&self) -> Deadline {
        self.ask_at(&lock(&self.state))
    }

    /// When the work is ended by force, as things stand.
    #[must_use]
    pub fn killed_when(&self) -> Deadline {
        lock(&self.state).killed_when()
    }

    /// Why the work must stop, if it must. Set once; it can only get worse, to a lost lease.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        lock(&self.state).stop
    }

    /// The work has ended the lease under this command, in a transaction of its own that may or may not be committed.
    pub fn pledge(&self, command: CommandId) {
        lock(&self.state).pledge = Some(command);
    }

    /// The command of such an end.
    #[must_use]
    pub fn pledged(&self) -> Option<CommandId> {
        lock(&self.state).pledge
    }

    /// True once the work has begun and has surely ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        lock(&self.state).is_over()
    }

    /// True when the work was ended by force and goes on all the same.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let state = lock(&self.state);
        let spared = state.spared_until.is_some_and(|until| !until.remaining().is_zero());
        !state.is_over() && state.begun && !spared && state.killed_when().later(STUCK_AFTER).has_passed()
    }

    /// Resolves when the work must stop.
    pub async fn stopped(&self) -> StopReason {
        self.wait_for(|state| state.stop).await
    }

    /// Resolves when the work has surely ended.
    pub async fn over(&self) {
        self.wait_for(|state| state.is_over().then_some(())).await;
    }

    async fn wait_for<T>(&self, mut what: impl FnMut(&State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Registered before the look, so that a change in between is not missed.
            changed.as_mut().enable();
            if let Some(found) = what(&lock(&self.state)) {
                return found;
            }
            changed.await;
        }
    }

    /// Keeps the work counted as going on until the guard is dropped.
    #[must_use]
    pub fn hold(self: &Arc<Self>) -> Hold {
        let mut state = lock(&self.state);
        state.holds += 1;
        state.begun = true;
        drop(state);
        Hold { entry: Arc::clone(self) }
    }

    /// Names a task that runs the work or a part of it, so that the fence can end it from outside.
    pub fn runs_as(&self, task: AbortHandle) {
        let mut state = lock(&self.state);
        if state.killed_when().has_passed() {
            task.abort();
        } else {
            state.aborts.push(task);
        }
    }

    /// Hands over what kills a container of this work, *before* the container is created: from here on
    /// the work is over only when the container is known to be gone.
    #[must_use]
    pub fn guard_container(self: &Arc<Self>, kill: Arc<dyn Kill>, stop_grace: Duration) -> ContainerGuard {
        let mut state = lock(&self.state);
        state.last_container += 1;
        let id = state.last_container;
        state.containers.push(Guarded { id, kill, stop_grace, orphaned: false, killing: false });
        state.begun = true;
        // Whichever needs the longest time is asked in time, and so are the others.
        let longest = state.containers.iter().map(|container| container.stop_grace).max();
        state.stop_grace = longest.unwrap_or(stop_grace);
        let due = self.ask_at(&state).boot();
        drop(state);
        self.hurry(due);
        ContainerGuard { entry: Arc::clone(self), id, gone: false }
    }

    /// A look at `now` that was due at `planned`: what is to be done, and when the next look is due.
    pub(super) fn on_time(&self, now: BootInstant, planned: BootInstant) -> (Todo, Option<BootInstant>) {
        let mut state = lock(&self.state);
        if now >= planned.after(OVERSLEPT) {
            state.spared_until = Some(now.after(STUCK_AFTER));
        }
        let mut todo = Todo::default();
        if state.is_over() {
            return (todo, None);
        }
        let ask_at = self.ask_at(&state).boot();
        if state.stop != Some(StopReason::LeaseLost) && now >= ask_at {
            todo.lost = true;
            state.stop = Some(StopReason::LeaseLost);
            self.changed.notify_waiters();
        }
        let kill_at = state.killed_when().boot();
        let lost = state.stop == Some(StopReason::LeaseLost);
        let next = if lost { kill_at } else { kill_at.min(ask_at) };
        let by_force = now >= kill_at;
        if !by_force && !state.has_orphans() {
            return (todo, Some(next));
        }
        // What has not begun has nothing to be killed; its owner sees the lost lease and starts nothing.
        if by_force && state.killed_at.is_none() {
            state.killed_at = Some(now);
            todo.aborts = std::mem::take(&mut state.aborts);
            todo.by_force = state.begun;
            if state.begun
                && let Some(fence) = self.fence.upgrade()
            {
                fence.kills.fetch_add(1, Ordering::Relaxed);
            }
        }
        for container in &mut state.containers {
            if !container.killing && (by_force || container.orphaned) {
                container.killing = true;
                todo.kills.push((container.id, Arc::clone(&container.kill)));
            }
        }
        let spared = state.spared_until.is_some_and(|until| now < until);
        if state.begun && !state.stuck && !spared && now >= kill_at.after(STUCK_AFTER) {
            state.stuck = true;
            todo.stuck = true;
        }
        let again = now.after(KILL_RETRY);
        (todo, Some(if by_force { again } else { next.min(again) }))
    }

    pub(super) fn hurry(self: &Arc<Self>, due: BootInstant) {
        if let Some(fence) = self.fence.upgrade() {
            fence.hurry(self, due);
        }
    }

    /// Publishes a change of the state, and leaves the table when the work is over.
    pub(super) fn after_change(&self, state: MutexGuard<'_, State>) {
        let over = state.is_over();
        drop(state);
        if over && let Some(fence) = self.fence.upgrade() {
            fence.forget(self);
        }
        self.changed.notify_waiters();
    }
}
