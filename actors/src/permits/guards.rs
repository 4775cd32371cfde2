//! The permits as values. Each does by its `Drop` what is safe when the one who held it died.

use std::{
    fmt,
    sync::{Arc, PoisonError},
};

use super::{Ask, Hands, Held, Pool, Replays};
use crate::{
    domain::JobId,
    fence::Entry,
    ports::{Grant, OpenClaim},
};

/// Permits taken for one call. Dropped, they await the call's replay.
pub struct Reservation<Q: Ask = OpenClaim> {
    pub(super) pool: Arc<Pool>,
    pub(super) replays: Replays<Q>,
    pub(super) ask: Option<Q>,
    pub(super) count: u32,
    pub(super) replayed: bool,
}

impl<Q: Ask> fmt::Debug for Reservation<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("command", &self.ask.as_ref().map(Ask::command))
            .field("count", &self.count)
            .field("replayed", &self.replayed)
            .finish_non_exhaustive()
    }
}

/// What a grant that an answer brought means here.
#[derive(Debug)]
pub enum Handover {
    /// To be run under this permit.
    Active(ActivePermit),
    /// This very grant is in hand already: a replay named it again.
    InHand,
    /// It may not be run: another grant of the job is in hand, or no permit is left for it.
    Refused,
}

impl<Q: Ask> Reservation<Q> {
    /// The call to make.
    ///
    /// # Panics
    /// Never: the call is there from the reservation on until it is settled or dropped.
    #[must_use]
    pub fn ask(&self) -> &Q {
        self.ask.as_ref().expect("a reservation has its call until it is dropped")
    }

    /// How many permits it still has.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether an answer to this call was lost before.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.replayed
    }

    /// Turns one permit into the permit of a grant.
    pub fn grant(&mut self, grant: &Arc<Grant>) -> Handover {
        let job = grant.authority.job;
        if self.pool.neighbour_runs(job) {
            return Handover::Refused;
        }
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

    /// The call is answered, or surely never took effect: what is left of the permits is free.
    pub fn settle(mut self) {
        self.ask = None;
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

impl<Q: Ask> Drop for Reservation<Q> {
    fn drop(&mut self) {
        let Some(mut ask) = self.ask.take() else {
            // Settled; or a panic before the call was made, so that none was sent.
            let count = std::mem::take(&mut self.count);
            if count > 0 {
                let mut state = self.pool.lock();
                state.reserved -= count;
                self.pool.after_free(state);
            }
            return;
        };
        ask.repeats();
        let mut state = self.pool.lock();
        if !self.replayed {
            state.reserved -= self.count;
            state.awaiting_replay += self.count;
        }
        drop(state);
        // Also with no permit left: it may have granted what nobody has in hand yet.
        self.replays.lock().unwrap_or_else(PoisonError::into_inner).push_back((ask, self.count));
        self.pool.replay.notify_one();
    }
}

/// The permit of a grant in hand. Dropped, it awaits reconciliation.
pub struct ActivePermit {
    pub(super) pool: Arc<Pool>,
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

    /// Moves the job under a permit of the other pool, if one is free there; this one becomes free.
    pub fn move_to(&mut self, other: &Hands) -> bool {
        let job = self.grant.authority.job;
        let mut target = other.pool.lock();
        if target.free() == 0 || target.held.contains_key(&job) {
            return false;
        }
        let grant = Arc::clone(&self.grant);
        target.held.insert(job, Held { grant, work: None, reconciling: false });
        drop(target);
        let mut state = self.pool.lock();
        let work = state.held.remove(&job).and_then(|held| held.work);
        self.pool.after_free(state);
        self.pool = Arc::clone(&other.pool);
        if let Some(work) = work {
            self.works(work);
        }
        true
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
    pub(super) pool: Arc<Pool>,
    pub(super) grant: Arc<Grant>,
    pub(super) work: Option<Arc<Entry>>,
    pub(super) freed: bool,
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
