//! Handoff permits: how many jobs this worker may hold, and what has become of each.
//!
//! ```text
//!            ┌───────────── answered: not granted ◀───────────────┐
//!            ▼                                                     │
//!  free ──reserve──▶ reserved ──granted──▶ active ──confirmed──▶ free
//!                       │ dropped             │ dropped
//!                       ▼                     ▼
//!               awaiting replay      awaiting reconciliation ──expired or changed──▶ free
//!             (asked again under       (read-only; live: held,
//!               its command id)         the job is suppressed)
//! ```
//!
//! There are two pools: one for what is claimed, and one on top of it that serves recovery only, so that a worker
//! full of long jobs still recovers. They differ in what is asked for a permit ([`Ask`]); the states are the same. A
//! recovery that turns into a run moves to the pool of the runs.
//!
//! A permit is a value with a drop guard. Dropped for whatever cause, a panic included, it goes to one of the
//! two *awaiting* states; only an explicit word of the store makes it free, and not while its workload goes
//! on. A permit whose workload was ended by force and goes on all the same counts as *stuck*: that is derived
//! from the workload's entry at the fence, so it can neither drift nor be forgotten.
//!
//! Free permits are what the others leave of the capacity: the six states always add up to it.

mod guards;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use tokio::sync::Notify;

use crate::{
    domain::{CommandId, Epoch, JobId},
    fence::Entry,
    ports::{Grant, OpenClaim},
};

pub use guards::{ActivePermit, Handover, Reservation, Unreconciled};

/// How many permits are in each state. They add up to the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PermitCounts {
    /// Taken for a claim whose answer is awaited.
    pub reserved: u32,
    /// A LeaseActor has a grant in hand.
    pub active: u32,
    /// The answer to the claim was lost; it is asked again under its command id.
    pub awaiting_replay: u32,
    /// The end of the lease is not confirmed, or its actor died; the store is asked what became of it.
    pub awaiting_reconciliation: u32,
    /// The workload was ended by force and goes on.
    pub stuck: u32,
    /// May be reserved.
    pub free: u32,
}

impl PermitCounts {
    /// The sum over all states.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.reserved
            + self.active
            + self.awaiting_replay
            + self.awaiting_reconciliation
            + self.stuck
            + self.free
    }
}

/// What is asked of the store for a permit: a call that may be repeated under its command id.
pub trait Ask: Send + 'static {
    /// Its command id.
    fn command(&self) -> CommandId;
    /// From now on it is a repeat: an answer may have been lost.
    fn repeats(&mut self);
}

impl Ask for OpenClaim {
    fn command(&self) -> CommandId {
        self.command
    }

    fn repeats(&mut self) {
        self.repeat = true;
    }
}

/// One pool of permits. Cheap to clone. It is [`Hands`], and knows what is asked for its permits.
pub struct Permits<Q = OpenClaim> {
    hands: Hands,
    replays: Replays<Q>,
}

/// Calls to be asked again that nobody is asking at the moment, each with its permits.
type Replays<Q> = Arc<Mutex<VecDeque<(Q, u32)>>>;

impl<Q> Clone for Permits<Q> {
    fn clone(&self) -> Self {
        Self { hands: self.hands.clone(), replays: Arc::clone(&self.replays) }
    }
}

impl<Q> Deref for Permits<Q> {
    type Target = Hands;

    fn deref(&self) -> &Hands {
        &self.hands
    }
}

/// A pool, whatever is asked for its permits: what it has in hand, and how many are in which state. Cheap to clone.
#[derive(Clone)]
pub struct Hands {
    pool: Arc<Pool>,
}

struct Pool {
    state: Mutex<State>,
    /// The worker's other pool.
    neighbour: OnceLock<Weak<Pool>>,
    /// A permit became free.
    freed: Notify,
    /// A permit began to await its replay.
    replay: Notify,
    /// A permit began to await reconciliation.
    reconcile: Notify,
    /// The last permit became free.
    quiet: Notify,
}

struct State {
    capacity: u32,
    reserved: u32,
    awaiting_replay: u32,
    /// The jobs in hand: active, awaiting reconciliation or stuck.
    held: HashMap<JobId, Held>,
    /// Jobs that await reconciliation and that nobody reconciles at the moment.
    unreconciled: VecDeque<JobId>,
}

struct Held {
    grant: Arc<Grant>,
    work: Option<Arc<Entry>>,
    reconciling: bool,
}

impl Held {
    fn work_goes_on(&self) -> bool {
        self.work.as_ref().is_some_and(|work| !work.is_over())
    }
}

impl State {
    fn free(&self) -> u32 {
        let held = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        self.capacity.saturating_sub(self.reserved + self.awaiting_replay).saturating_sub(held)
    }
}

impl Pool {
    /// A lock that is also taken after a panic elsewhere: every critical section leaves whole values.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a grant of this job is in hand here.
    fn holds(&self, job: JobId) -> bool {
        self.lock().held.contains_key(&job)
    }

    /// Whether the work of this job goes on under a permit of the worker's other pool. One that only waits for its
    /// report to be confirmed is in nobody's way: the store would not have granted the job again.
    fn neighbour_runs(&self, job: JobId) -> bool {
        let neighbour = self.neighbour.get().and_then(Weak::upgrade);
        neighbour.is_some_and(|pool| pool.lock().held.get(&job).is_some_and(Held::work_goes_on))
    }

    fn after_free(&self, state: MutexGuard<'_, State>) {
        let quiet = state.free() == state.capacity;
        drop(state);
        self.freed.notify_one();
        if quiet {
            self.quiet.notify_waiters();
        }
    }
}

impl<Q> fmt::Debug for Permits<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts().fmt(f)
    }
}

impl fmt::Debug for Hands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts().fmt(f)
    }
}

impl<Q> Permits<Q> {
    /// `capacity` free permits.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        let state = State {
            capacity,
            reserved: 0,
            awaiting_replay: 0,
            held: HashMap::new(),
            unreconciled: VecDeque::new(),
        };
        let pool = Pool {
            state: Mutex::new(state),
            neighbour: OnceLock::new(),
            freed: Notify::new(),
            replay: Notify::new(),
            reconcile: Notify::new(),
            quiet: Notify::new(),
        };
        Self { hands: Hands { pool: Arc::new(pool) }, replays: Arc::default() }
    }

    /// As [`Self::new`], beside another pool of the same worker: neither hands a job over whose work goes on under
    /// a permit of the other.
    #[must_use]
    pub fn beside(capacity: u32, other: &Hands) -> Self {
        let permits = Self::new(capacity);
        let _ = permits.pool.neighbour.set(Arc::downgrade(&other.pool));
        let _ = other.pool.neighbour.set(Arc::downgrade(&permits.pool));
        permits
    }

    /// The pool without what is asked for its permits.
    #[must_use]
    pub fn hands(&self) -> Hands {
        self.hands.clone()
    }

    /// Reserves as many permits as are free, `at_most` this many, for the call that `ask` makes of their number;
    /// none when no permit is free.
    pub fn reserve(&self, at_most: u32, ask: impl FnOnce(u32) -> Q) -> Option<Reservation<Q>>
    where
        Q: Ask,
    {
        let mut state = self.pool.lock();
        let count = state.free().min(at_most);
        if count == 0 {
            return None;
        }
        state.reserved += count;
        drop(state);
        let (pool, replays) = (Arc::clone(&self.hands.pool), Arc::clone(&self.replays));
        // A panic in `ask` would lose the permits; so the guard exists before it is called.
        let mut reservation = Reservation { pool, replays, ask: None, count, replayed: false };
        reservation.ask = Some(ask(count));
        Some(reservation)
    }

    /// Takes the oldest call that is to be asked again.
    #[must_use]
    pub fn take_replay(&self) -> Option<Reservation<Q>>
    where
        Q: Ask,
    {
        let (ask, count) = self.replays.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        let (pool, replays) = (Arc::clone(&self.hands.pool), Arc::clone(&self.replays));
        Some(Reservation { pool, replays, ask: Some(ask), count, replayed: true })
    }
}

impl Hands {
    /// How many there are.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.pool.lock().capacity
    }

    /// How many may be reserved now.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.pool.lock().free()
    }

    /// Counts by state. Walks over the jobs in hand: for health and metrics, not for the hot path.
    #[must_use]
    pub fn counts(&self) -> PermitCounts {
        let state = self.pool.lock();
        let mut counts = PermitCounts {
            reserved: state.reserved,
            awaiting_replay: state.awaiting_replay,
            free: state.free(),
            ..PermitCounts::default()
        };
        for held in state.held.values() {
            if held.work.as_ref().is_some_and(|work| work.is_stuck()) {
                counts.stuck += 1;
            } else if held.reconciling {
                counts.awaiting_reconciliation += 1;
            } else {
                counts.active += 1;
            }
        }
        counts
    }

    /// Takes a grant whose fate is to be found out.
    #[must_use]
    pub fn take_unreconciled(&self) -> Option<Unreconciled> {
        let mut state = self.pool.lock();
        loop {
            let job = state.unreconciled.pop_front()?;
            if let Some(held) = state.held.get(&job) {
                let (grant, work) = (Arc::clone(&held.grant), held.work.clone());
                drop(state);
                return Some(Unreconciled { pool: Arc::clone(&self.pool), grant, work, freed: false });
            }
        }
    }

    /// Whether a grant of this job is still in hand: no other one may be run beside it.
    #[must_use]
    pub fn suppresses(&self, job: JobId) -> bool {
        self.pool.holds(job)
    }

    /// The jobs in hand, each with its epoch.
    #[must_use]
    pub fn held(&self) -> Vec<(JobId, Epoch)> {
        self.pool.lock().held.iter().map(|(job, held)| (*job, held.grant.authority.epoch)).collect()
    }

    /// Resolves when a permit has become free since the last time; for one waiter.
    pub async fn freed(&self) {
        self.pool.freed.notified().await;
    }

    /// Resolves when a call has begun to await its replay since the last time; for one waiter.
    pub async fn awaits_replay(&self) {
        self.pool.replay.notified().await;
    }

    /// Resolves when a grant has begun to await reconciliation since the last time; for one waiter.
    pub async fn awaits_reconciliation(&self) {
        self.pool.reconcile.notified().await;
    }

    /// Whether every permit is free.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let state = self.pool.lock();
        state.free() == state.capacity
    }

    /// Resolves when every permit is free.
    pub async fn quiet(&self) {
        loop {
            let quiet = self.pool.quiet.notified();
            let mut quiet = std::pin::pin!(quiet);
            // Registered before the look, so that the change in between is not missed.
            quiet.as_mut().enable();
            if self.is_quiet() {
                return;
            }
            quiet.await;
        }
    }
}
