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
//! A process that was frozen (a suspend, a paused container, SIGSTOP) finds its deadlines long past when it wakes up. Its
//! work was frozen too and had no time to end, so the second after which it counts as stuck begins anew whenever the
//! fence's own thread comes half a second too late to look.
//!
//! What has *ended* is never guessed: an entry is over when every [`Hold`] on it is dropped and its container,
//! if it had one, is known to be gone. Until then its permit cannot become free.

mod entry;
mod guards;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{sync::Notify, task::AbortHandle};

use crate::{
    clock::BootInstant,
    domain::{Epoch, JobId},
};

pub use entry::{Entry, Terms};
pub use guards::{ContainerGuard, Hold, Watch};

/// How long after its kill a workload that has still not ended counts as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(1);

/// A look at an entry that comes later than planned by this much says that the whole process stood still.
const OVERSLEPT: Duration = Duration::from_millis(500);

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
        // It stands nowhere in the table now, so nobody moves it.
        let planned = BootInstant::from_nanos(entry.position.load(Ordering::Relaxed));
        let (todo, next) = entry.on_time(now, planned);
        if todo.lost {
            tracing::warn!(job = %entry.terms.job, epoch = %entry.terms.epoch,
                "lease not renewed in time: the fence asks its work to stop");
        }
        if todo.by_force {
            tracing::warn!(job = %entry.terms.job, epoch = %entry.terms.epoch, "the fence ends the work by force");
        }
        todo.aborts.iter().for_each(AbortHandle::abort);
        for (id, kill) in todo.kills {
            self.kill(entry, id, kill);
        }
        if todo.stuck {
            tracing::error!(job = %entry.terms.job, epoch = %entry.terms.epoch,
                "the work does not end: its permit is stuck until it does");
            on_stuck(entry.terms.job, entry.terms.epoch);
        }
        if let Some(next) = next {
            let mut table = lock(&self.table);
            // It may have ended, been told to stop or lost its actor, in the instant in which it stood nowhere.
            let state = lock(&entry.state);
            if !state.is_over() {
                let mut next = next;
                if state.killed_at.is_none() {
                    next = next.min(state.killed_when().boot());
                }
                if state.has_orphans() {
                    next = next.min(now.after(KILL_RETRY));
                }
                entry.position.store(next.as_nanos(), Ordering::Relaxed);
                table.by_due.insert((next, entry.id), Arc::clone(entry));
            }
        }
    }

    fn kill(self: &Arc<Self>, entry: &Arc<Entry>, id: u64, kill: Arc<dyn Kill>) {
        let entry = Arc::clone(entry);
        tokio::spawn(async move {
            let killed = tokio::time::timeout(KILL_LIMIT, kill.kill()).await;
            let mut state = lock(&entry.state);
            if let Some(container) = state.container(id) {
                container.killing = false;
            }
            match killed {
                Ok(Ok(())) => {
                    state.container_is_gone(id);
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
