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
//! A permit is a value with a drop guard. Dropped for whatever cause, a panic included, it goes to one of the
//! two *awaiting* states; only an explicit word of the store makes it free, and not while its workload goes
//! on. A permit whose workload was ended by force and goes on all the same counts as *stuck*: that is derived
//! from the workload's entry at the fence, so it can neither drift nor be forgotten.
//!
//! Free permits are what the others leave of the capacity: the six states always add up to it.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::{
    domain::{Epoch, JobId},
    fence::Entry,
    ports::{Grant, OpenClaim},
};

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

/// The permits of one worker. Cheap to clone.
#[derive(Clone)]
pub struct Permits {
    pool: Arc<Pool>,
}

struct Pool {
    state: Mutex<State>,
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
    /// Claims to be asked again that nobody is asking at the moment.
    replays: VecDeque<(OpenClaim, u32)>,
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

    fn after_free(&self, state: MutexGuard<'_, State>) {
        let quiet = state.free() == state.capacity;
        drop(state);
        self.freed.notify_one();
        if quiet {
            self.quiet.notify_waiters();
        }
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts().fmt(f)
    }
}

impl Permits {
    /// `capacity` free permits.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        let state = State {
            capacity,
            reserved: 0,
            awaiting_replay: 0,
            replays: VecDeque::new(),
            held: HashMap::new(),
            unreconciled: VecDeque::new(),
        };
        Self {
            pool: Arc::new(Pool {
                state: Mutex::new(state),
                freed: Notify::new(),
                replay: Notify::new(),
                reconcile: Notify::new(),
                quiet: Notify::new(),
            }),
        }
    }

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

    /// Reserves as many permits as are free, `at_most` this many, for the claim that `claim` makes of their
    /// number; none when no permit is free.
    pub fn reserve(&self, at_most: u32, claim: impl FnOnce(u32) -> OpenClaim) -> Option<Reservation> {
        let mut state = self.pool.lock();
        let count = state.free().min(at_most);
        if count == 0 {
            return None;
        }
        state.reserved += count;
        drop(state);
        let (pool, replayed) = (Arc::clone(&self.pool), false);
        // A panic in `claim` would lose the permits; so the guard exists before it is called.
        let mut reservation = Reservation { pool, claim: None, count, replayed };
        reservation.claim = Some(claim(count));
        Some(reservation)
    }

    /// Takes the oldest claim that is to be asked again.
    #[must_use]
    pub fn take_replay(&self) -> Option<Reservation> {
        let (claim, count) = self.pool.lock().replays.pop_front()?;
        Some(Reservation { pool: Arc::clone(&self.pool), claim: Some(claim), count, replayed: true })
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
        self.pool.lock().held.contains_key(&job)
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

    /// Resolves when a claim has begun to await its replay since the last time; for one waiter.
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

/// Permits taken for one claim. Dropped, they await the claim's replay.
pub struct Reservation {
    pool: Arc<Pool>,
    claim: Option<OpenClaim>,
    count: u32,
    replayed: bool,
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("command", &self.claim.as_ref().map(|claim| claim.command))
            .field("count", &self.count)
            .field("replayed", &self.replayed)
            .finish_non_exhaustive()
    }
}

/// What a grant that a claim brought means here.
#[derive(Debug)]
pub enum Handover {
    /// To be run under this permit.
    Active(ActivePermit),
    /// This very grant is in hand already: a replay named it again.
    InHand,
    /// It may not be run: another grant of the job is in hand, or no permit is left for it.
    Refused,
}

impl Reservation {
    /// The claim to ask.
    ///
    /// # Panics
    /// Never: the claim is there from the reservation on until it is settled or dropped.
    #[must_use]
    pub fn claim(&self) -> &OpenClaim {
        self.claim.as_ref().expect("a reservation has its claim until it is dropped")
    }

    /// How many permits it still has.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether an answer to this claim was lost before.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.replayed
    }

    /// Turns one permit into the permit of a grant.
    pub fn grant(&mut self, grant: &Arc<Grant>) -> Handover {
        let job = grant.authority.job;
        let mut state = self.pool.lock();
        match state.held.get(&job) {
            Some(held) if held.grant.authority.epoch == grant.authority.epoch => return Handover::InHand,
            Some(_) => return Handover::Refused,
            None if self.count == 0 && state.free() == 0 => return Handover::Refused,
            None => {}
        }
        if self.count > 0 {
            self.count -= 1;
            if self.replayed {
                state.awaiting_replay -= 1;
            } else {
                state.reserved -= 1;
            }
        }
        state.held.insert(job, Held { grant: Arc::clone(grant), work: None, reconciling: false });
        drop(state);
        Handover::Active(ActivePermit {
            pool: Arc::clone(&self.pool),
            grant: Arc::clone(grant),
            freed: false,
        })
    }

    /// The claim is answered, or surely never took effect: what is left of the permits is free.
    pub fn settle(mut self) {
        self.claim = None;
        let count = std::mem::take(&mut self.count);
        let mut state = self.pool.lock();
        if self.replayed {
            state.awaiting_replay -= count;
        } else {
            state.reserved -= count;
        }
        if count > 0 {
            self.pool.after_free(state);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Some(mut claim) = self.claim.take() else {
            // Settled; or a panic before the claim was made, so that none was sent.
            let count = std::mem::take(&mut self.count);
            if count > 0 {
                let mut state = self.pool.lock();
                state.reserved -= count;
                self.pool.after_free(state);
            }
            return;
        };
        claim.repeat = true;
        let mut state = self.pool.lock();
        if !self.replayed {
            state.reserved -= self.count;
            state.awaiting_replay += self.count;
        }
        // Also with no permit left: it may have granted what nobody has in hand yet.
        state.replays.push_back((claim, self.count));
        drop(state);
        self.pool.replay.notify_one();
    }
}

/// The permit of a grant in hand. Dropped, it awaits reconciliation.
pub struct ActivePermit {
    pool: Arc<Pool>,
    grant: Arc<Grant>,
    freed: bool,
}

impl fmt::Debug for ActivePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivePermit").field("job", &self.grant.authority.job).finish_non_exhaustive()
    }
}

impl ActivePermit {
    /// The grant.
    #[must_use]
    pub fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    /// Ties the permit to a workload: until that is over, nothing makes the permit free.
    pub fn works(&self, work: Arc<Entry>) {
        if let Some(held) = self.pool.lock().held.get_mut(&self.grant.authority.job) {
            held.work = Some(work);
        }
    }

    /// The store has said that this grant is over. With a workload that still goes on, the permit awaits
    /// reconciliation all the same.
    pub fn free(mut self) {
        self.freed = free(&self.pool, self.grant.authority.job);
    }
}

impl Drop for ActivePermit {
    fn drop(&mut self) {
        if self.freed {
            return;
        }
        let job = self.grant.authority.job;
        let mut state = self.pool.lock();
        if let Some(held) = state.held.get_mut(&job) {
            held.reconciling = true;
            state.unreconciled.push_back(job);
        }
        drop(state);
        self.pool.reconcile.notify_one();
    }
}

fn free(pool: &Pool, job: JobId) -> bool {
    let mut state = pool.lock();
    if state.held.get(&job).is_some_and(Held::work_goes_on) {
        return false;
    }
    state.held.remove(&job);
    pool.after_free(state);
    true
}

/// A grant whose fate is being found out. Dropped, it is to be found out by somebody else.
pub struct Unreconciled {
    pool: Arc<Pool>,
    grant: Arc<Grant>,
    work: Option<Arc<Entry>>,
    freed: bool,
}

impl fmt::Debug for Unreconciled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unreconciled").field("job", &self.grant.authority.job).finish_non_exhaustive()
    }
}

impl Unreconciled {
    /// The grant.
    #[must_use]
    pub fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    /// The workload, if one was started.
    #[must_use]
    pub fn work(&self) -> Option<&Arc<Entry>> {
        self.work.as_ref()
    }

    /// The store has said that this grant is expired or changed. With a workload that still goes on, it
    /// stays to be found out.
    pub fn free(mut self) {
        self.freed = free(&self.pool, self.grant.authority.job);
    }
}

impl Drop for Unreconciled {
    fn drop(&mut self) {
        if !self.freed {
            self.pool.lock().unreconciled.push_back(self.grant.authority.job);
            self.pool.reconcile.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
