//! Who holds leases here: a process has one owner, a server with many workers has a few. Calls share them
//! instead of copying two names each, and statements name each owner once.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_actors::ports::{Authority, Claimant};
use uuid::Uuid;

/// The most owners remembered.
const MOST: usize = 64;

/// Owners seen lately.
#[derive(Debug, Default)]
pub(super) struct Owners(Mutex<Vec<Arc<Claimant>>>);

impl Owners {
    /// The shared copy of an owner.
    pub(super) fn share(&self, owner: &Claimant) -> Arc<Claimant> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.iter().find(|o| o.process == owner.process && ***o == *owner) {
            return Arc::clone(found);
        }
        if known.len() == MOST {
            known.remove(0);
        }
        let shared = Arc::new(owner.clone());
        known.push(Arc::clone(&shared));
        shared
    }
}

/// An authority, cheap to keep. Its `Debug` shows no token.
#[derive(Clone)]
pub(super) struct Holder {
    pub(super) owner: Arc<Claimant>,
    pub(super) job: i64,
    pub(super) token: Uuid,
    pub(super) epoch: i64,
}

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Holder").field("job", &self.job).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Holder {
    pub(super) fn new(owners: &Owners, authority: &Authority) -> Self {
        Self {
            owner: owners.share(&authority.owner),
            job: authority.job.0,
            token: authority.token.expose_to_store(),
            epoch: authority.epoch.0,
        }
    }
}

/// The arrays that name many authorities in one statement.
#[derive(Default)]
pub(super) struct Holders<'a> {
    pub(super) jobs: Vec<i64>,
    pub(super) tokens: Vec<Uuid>,
    pub(super) owners: Vec<i32>,
    pub(super) namespaces: Vec<&'a str>,
    pub(super) workers: Vec<&'a str>,
    pub(super) processes: Vec<Uuid>,
    seen: Vec<&'a Arc<Claimant>>,
}

impl<'a> FromIterator<&'a Holder> for Holders<'a> {
    fn from_iter<I: IntoIterator<Item = &'a Holder>>(holders: I) -> Self {
        let mut all = Self::default();
        for holder in holders {
            all.jobs.push(holder.job);
            all.tokens.push(holder.token);
            let at = all.seen.iter().position(|o| Arc::ptr_eq(o, &holder.owner)).unwrap_or_else(|| {
                all.seen.push(&holder.owner);
                all.namespaces.push(holder.owner.namespace.as_str());
                all.workers.push(holder.owner.worker.as_str());
                all.processes.push(holder.owner.process.0);
                all.seen.len() - 1
            });
            all.owners.push(i32::try_from(at + 1).unwrap_or(i32::MAX));
        }
        all
    }
}
