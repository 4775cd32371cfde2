//! Renew, report progress, reconcile: what a live lease can do without ending.

use serde::de::IgnoredAny;

use super::{
    refused,
    world::{World, delta, until},
};
use crate::{
    error::StoreError,
    ports::{Authority, Reconciliation, Renewal},
};

/// The most bytes of a progress note.
const PROGRESS_LIMIT: usize = 4096;

impl World {
    pub(super) fn renew(&mut self, authority: &Authority) -> Renewal {
        let now = self.now();
        let restarts = self.restarts;
        let epoch = self.rows.get(&authority.job).map_or(0, |row| row.epoch);
        let Some(lease) = self.live_mut(authority) else { return Renewal::NotLive };
        // Who took it over begins nothing that the claim's holder had not begun.
        lease.claim_renewed |= epoch == lease.claim_epoch;
        let passed = |deadline: Option<chrono::DateTime<chrono::Utc>>| deadline.is_some_and(|at| at <= now);
        // Past a deadline the lease runs out by itself, so that a worker that ignores it loses the job.
        if !passed(lease.cancel_deadline) && !passed(lease.run_deadline) {
            lease.expires_at = now + delta(lease.duration);
            lease.renewals += 1;
            lease.renewed_after = restarts;
        }
        Renewal::Held { remaining: until(now, lease.expires_at), cancel_requested: lease.cancel_requested }
    }

    pub(super) fn report_progress(
        &mut self,
        authority: &Authority,
        progress: &str,
    ) -> Result<Renewal, StoreError> {
        if progress.len() > PROGRESS_LIMIT {
            return Err(refused(
                "report_progress",
                format!("the note is {} bytes long; at most {PROGRESS_LIMIT} are kept", progress.len()),
            ));
        }
        if serde_json::from_str::<IgnoredAny>(progress).is_err() {
            return Err(refused("report_progress", "the note is not JSON"));
        }
        let now = self.now();
        let Some(lease) = self.live(authority) else { return Ok(Renewal::NotLive) };
        let answer = Renewal::Held {
            remaining: until(now, lease.expires_at),
            cancel_requested: lease.cancel_requested,
        };
        self.progress.insert(authority.job, progress.to_owned());
        Ok(answer)
    }

    pub(super) fn reconcile(&self, authority: &Authority) -> Reconciliation {
        match self.held(authority) {
            None => Reconciliation::Changed,
            Some(lease) if lease.expires_at > self.now() => {
                Reconciliation::Live { remaining: until(self.now(), lease.expires_at) }
            }
            Some(_) => Reconciliation::Expired,
        }
    }
}
