//! The fence: it ends every workload in time, whatever has become of the actors.
//!
//! Each running workload is tied to an entry in a table that an OS thread watches: its local deadline, the
//! handle that cancels its task, and the handle that kills its container. The entry, not the actor, is what
//! ends the work: also when the LeaseActor died, when a handler blocks every async thread, or when the
//! machine slept (deadlines are kept on a clock that counts suspend, see [`crate::clock`]).
//!
//! ```text
//!        work starts          asked to stop                    killed            stuck
//!  ───────────┼─────────────────────┼────────────────────────────┼─────────────────┼──▶ time
//!             deadline moves on     deadline − min(stop grace,   deadline          deadline + 1 s:
//!             at every renewal      lease / 8): LeaseLost                          counted, reported
//! ```
//!
//! A workload that is told to stop for another reason (cancel, timeout, drain) gets a kill time of its own,
//! never later than the deadline.
//!
//! What has *ended* is never guessed: an entry is over when every [`Hold`] on it is dropped and its container,
//! if it had one, is known to be gone. Until then its permit cannot become free.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{sync::Notify, task::AbortHandle};

use crate::{
    clock::{Anchor, BootInstant, Deadline},
    domain::{Epoch, JobId},
    work::StopReason,
};

/// How long after its kill a workload that has still not ended counts as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(1);

/// The longest sleep of the fence's thread while it watches anything: a suspend freezes sleeps, so this is
/// how soon after waking up an overdue workload is ended.
const LONGEST_NAP: Duration = Duration::from_millis(250);

/// Time between two attempts to kill a container, and the longest that one attempt may take.
const KILL_RETRY: Duration = Duration::from_secs(1);
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Kills one container from the fence's own thread.
///
/// The future is driven by the fence's own little runtime, so it must open a connection of its own: one that
/// is shared with the actors could hang with them. It must be right to call it again, also when the
/// container is gone or never came to be.
pub trait Kill: Send + Sync + 'static {
    /// Resolves to `Ok` only when the container is surely not running.
    fn kill(&self) -> BoxFuture<'static, Result<(), String>>;
}

/// What happens when a workload cannot be ended. Called on the fence's thread, once a workload.
pub type OnStuck = Box<dyn Fn(JobId, Epoch) + Send>;

/// The watched table. Cheap to clone; its thread ends when all clones are gone and nothing is watched.
#[derive(Clone)]
pub struct Fence {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.shared.table).closing = true;
        self.shared.wake.notify_one();
    }
}

struct Shared {
    table: Mutex<Table>,
    wake: Notify,
    next_id: AtomicU64,
    kills: AtomicU64,
}

#[derive(Default)]
struct Table {
    /// By the time at which the thread looks at the entry next. A renewal does not touch it: the thread
    /// finds the later deadline when it gets there.
    by_due: BTreeMap<(BootInstant, u64), Arc<Entry>>,
    /// The thread sleeps without limit because there is nothing to watch.
    idle: bool,
    closing: bool,
}

/// A lock that is also taken after a panic elsewhere: every critical section here leaves whole values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("watched", &self.watched()).finish_non_exhaustive()
    }
}

impl Fence {
    /// Starts the thread. `on_stuck` is told of every workload that could not be ended.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn start(on_stuck: OnStuck) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            table: Mutex::default(),
            wake: Notify::new(),
            next_id: AtomicU64::new(0),
            kills: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let watching = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("lease-fence".to_owned())
            .spawn(move || runtime.block_on(watching.watch(on_stuck)))?;
        Ok(Self { handle: Arc::new(Handle { shared }) })
    }

    /// Ties a workload, which is about to start, to its lease. `stop_grace` is how long before the deadline
    /// it is asked to stop, an eighth of the lease at most.
    #[must_use]
    pub fn tie(&self, terms: Terms) -> Watch {
        let shared = &self.handle.shared;
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(Entry::new(id, terms, Arc::downgrade(shared)));
        let due = entry.first_due();
        entry.position.store(due.as_nanos(), Ordering::Relaxed);
        let mut table = lock(&shared.table);
        table.by_due.insert((due, id), Arc::clone(&entry));
        if table.idle {
            table.idle = false;
            shared.wake.notify_one();
        }
        drop(table);
        Watch { entry }
    }

    /// How many workloads are watched now.
    #[must_use]
    pub fn watched(&self) -> usize {
        lock(&self.handle.shared.table).by_due.len()
    }

    /// How many workloads were ended by force since the start.
    #[must_use]
    pub fn kills(&self) -> u64 {
        self.handle.shared.kills.load(Ordering::Relaxed)
    }
}

impl Shared {
    async fn watch(self: Arc<Self>, on_stuck: OnStuck) {
        loop {
            let now = BootInstant::now();
            for entry in self.take_due(now) {
                self.act(&entry, now, &on_stuck);
            }
            let nap = {
                let mut table = lock(&self.table);
                table.idle = table.by_due.is_empty();
                match table.by_due.first_key_value() {
                    None if table.closing => return,
                    None => None,
                    Some(((due, _), _)) => Some(due.remaining().min(LONGEST_NAP)),
                }
            };
            match nap {
                None => self.wake.notified().await,
                // An answer either way means the same: look again.
                Some(nap) => drop(tokio::time::timeout(nap, self.wake.notified()).await),
            }
        }
    }

    fn take_due(&self, now: BootInstant) -> Vec<Arc<Entry>> {
        let mut table = lock(&self.table);
        let mut due = Vec::new();
        while let Some(first) = table.by_due.first_entry() {
            if first.key().0 > now {
                break;
            }
            due.push(first.remove());
        }
        due
    }

    /// Does what an entry's time has come for, and puts it back for the next time.
    fn act(self: &Arc<Self>, entry: &Arc<Entry>, now: BootInstant, on_stuck: &OnStuck) {
        let (todo, next) = entry.on_time(now);
        if todo.lost {
            tracing::warn!(job = %entry.terms.job, epoch = %entry.terms.epoch,
                "lease not renewed in time: the fence asks its work to stop");
        }
        if let Some(abort) = todo.abort {
            tracing::warn!(job = %entry.terms.job, epoch = %entry.terms.epoch, "the fence ends the work by force");
            abort.abort();
        }
        if let Some(kill) = todo.kill {
            self.kill(entry, kill);
        }
        if todo.stuck {
            tracing::error!(job = %entry.terms.job, epoch = %entry.terms.epoch,
                "the work does not end: its permit is stuck until it does");
            on_stuck(entry.terms.job, entry.terms.epoch);
        }
        if let Some(next) = next {
            let mut table = lock(&self.table);
            // It may have ended, or been told to stop, in the instant in which it stood nowhere.
            let state = lock(&entry.state);
            if !state.is_over() {
                let next =
                    if state.killed_at.is_none() { next.min(state.killed_when().boot()) } else { next };
                entry.position.store(next.as_nanos(), Ordering::Relaxed);
                table.by_due.insert((next, entry.id), Arc::clone(entry));
            }
        }
    }

    fn kill(self: &Arc<Self>, entry: &Arc<Entry>, kill: Arc<dyn Kill>) {
        let entry = Arc::clone(entry);
        tokio::spawn(async move {
            let killed = tokio::time::timeout(KILL_LIMIT, kill.kill()).await;
            let mut state = lock(&entry.state);
            state.killing = false;
            match killed {
                Ok(Ok(())) => {
                    state.container = None;
                    entry.after_change(state);
                }
                Ok(Err(error)) => {
                    tracing::warn!(job = %entry.terms.job, error, "the container could not be killed");
                }
                Err(_) => tracing::warn!(job = %entry.terms.job, "no answer to the kill of the container"),
            }
        });
    }

    /// Moves an entry forward in time, if `due` is before the time at which the thread would look at it.
    fn hurry(&self, entry: &Arc<Entry>, due: BootInstant) {
        let mut table = lock(&self.table);
        let position = BootInstant::from_nanos(entry.position.load(Ordering::Relaxed));
        if due < position
            && let Some(found) = table.by_due.remove(&(position, entry.id))
        {
            entry.position.store(due.as_nanos(), Ordering::Relaxed);
            table.by_due.insert((due, entry.id), found);
            self.wake.notify_one();
        }
    }

    fn forget(&self, entry: &Entry) {
        let mut table = lock(&self.table);
        let position = BootInstant::from_nanos(entry.position.load(Ordering::Relaxed));
        table.by_due.remove(&(position, entry.id));
    }
}

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
    id: u64,
    terms: Terms,
    state: Mutex<State>,
    changed: Notify,
    fence: Weak<Shared>,
    /// Where it stands in the table; read and written under the table's lock only.
    position: AtomicU64,
}

struct State {
    deadline: Deadline,
    stop: Option<StopReason>,
    /// When a work that was told to stop is ended by force; never later than `deadline` in effect.
    kill_at: Option<Deadline>,
    stop_grace: Duration,
    abort: Option<AbortHandle>,
    container: Option<Arc<dyn Kill>>,
    killing: bool,
    /// When it was first ended by force.
    killed_at: Option<BootInstant>,
    stuck: bool,
    holds: u32,
    begun: bool,
}

impl State {
    fn is_over(&self) -> bool {
        self.begun && self.holds == 0 && self.container.is_none()
    }

    fn killed_when(&self) -> Deadline {
        self.kill_at.map_or(self.deadline, |at| at.min(self.deadline))
    }
}

/// What the fence's thread has to do for an entry now.
#[derive(Default)]
struct Todo {
    lost: bool,
    abort: Option<AbortHandle>,
    kill: Option<Arc<dyn Kill>>,
    stuck: bool,
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
    fn new(id: u64, terms: Terms, fence: Weak<Shared>) -> Self {
        let state = State {
            deadline: terms.deadline,
            stop: None,
            kill_at: None,
            stop_grace: terms.stop_grace,
            abort: None,
            container: None,
            killing: false,
            killed_at: None,
            stuck: false,
            holds: 0,
            begun: false,
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

    fn first_due(&self) -> BootInstant {
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

    /// True once the work has begun and has surely ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        lock(&self.state).is_over()
    }

    /// True when the work was ended by force and goes on all the same.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let state = lock(&self.state);
        !state.is_over() && state.begun && state.killed_when().later(STUCK_AFTER).has_passed()
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

    /// Hands over what kills the container of this work, *before* the container is created: from here on
    /// the work is over only when the container is known to be gone.
    #[must_use]
    pub fn guard_container(self: &Arc<Self>, kill: Arc<dyn Kill>, stop_grace: Duration) -> ContainerGuard {
        let mut state = lock(&self.state);
        state.container = Some(kill);
        state.begun = true;
        state.stop_grace = stop_grace;
        let due = self.ask_at(&state).boot();
        drop(state);
        self.hurry(due);
        ContainerGuard { entry: Arc::clone(self), gone: false }
    }

    fn on_time(&self, now: BootInstant) -> (Todo, Option<BootInstant>) {
        let mut state = lock(&self.state);
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
        let mut next = kill_at;
        if now < kill_at {
            if state.stop != Some(StopReason::LeaseLost) {
                next = next.min(ask_at);
            }
            return (todo, Some(next));
        }
        // What has not begun has nothing to be killed; its owner sees the lost lease and starts nothing.
        if state.killed_at.is_none() {
            state.killed_at = Some(now);
            todo.abort = state.abort.take();
            if state.begun
                && let Some(fence) = self.fence.upgrade()
            {
                fence.kills.fetch_add(1, Ordering::Relaxed);
            }
        }
        if !state.killing
            && let Some(kill) = state.container.clone()
        {
            state.killing = true;
            todo.kill = Some(kill);
        }
        if state.begun && !state.stuck && now >= kill_at.after(STUCK_AFTER) {
            state.stuck = true;
            todo.stuck = true;
        }
        (todo, Some(now.after(KILL_RETRY)))
    }

    fn hurry(self: &Arc<Self>, due: BootInstant) {
        if let Some(fence) = self.fence.upgrade() {
            fence.hurry(self, due);
        }
    }

    /// Publishes a change of the state, and leaves the table when the work is over.
    fn after_change(&self, state: MutexGuard<'_, State>) {
        let over = state.is_over();
        drop(state);
        if over && let Some(fence) = self.fence.upgrade() {
            fence.forget(self);
        }
        self.changed.notify_waiters();
    }
}

/// The owner's side of an entry, held by the LeaseActor. Dropped while the work goes on (the actor died), it
/// tells the work that its lease is lost: nobody renews it any more.
#[derive(Debug)]
pub struct Watch {
    entry: Arc<Entry>,
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

    /// Names the task that runs the work, so that it can be ended from outside.
    pub fn cancels(&self, task: AbortHandle) {
        let mut state = lock(&self.entry.state);
        if state.killed_when().has_passed() {
            task.abort();
        } else {
            state.abort = Some(task);
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
        let abort = state.abort.take();
        drop(state);
        if let Some(abort) = abort {
            abort.abort();
        }
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
    entry: Arc<Entry>,
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
    entry: Arc<Entry>,
    gone: bool,
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
            state.container = None;
            self.entry.after_change(state);
        } else {
            let now = Anchor::now().after(Duration::ZERO);
            state.kill_at = Some(state.kill_at.map_or(now, |old| old.min(now)));
            drop(state);
            self.entry.hurry(now.boot());
        }
    }
}

#[cfg(test)]
mod tests;
