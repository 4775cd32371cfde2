//! Recover: who takes an expired lease over, what a takeover keeps, and how a lost lease is counted.

use chrono::{DateTime, TimeDelta, Utc};

use super::world::{Lease, Node, PastLease, World, delta, until};
use crate::{
    domain::{Epoch, JobId, LeaseToken, Namespace},
    error::StoreError,
    ports::{
        Authority, Claimant, Placement, Postponed, RecoverAnswer, RecoverRequest, RuntimeStanding, Takeover,
    },
    testing::harness::HistoryView,
};

/// What every test node registers as its `RUNTIME_LOST_AFTER`; see [`crate::testing::StoreHarness`].
const LOST_AFTER: TimeDelta = TimeDelta::hours(2);

impl World {
    pub(super) fn recover(&mut self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        super::claim::check_duration("recover", request.lease)?;
        let owner = &request.owner;
        // Which jobs run here by now is no part of the question that was asked.
        let asked = format!("recover {owner:?} {} {:?}", request.limit, request.lease);
        if let Some(recorded) = self.recorded("recover", request.command, &asked)? {
            let live = recorded.iter().filter_map(|(job, token)| self.retaken(owner, *job, *token));
            let takeovers = live.collect();
            return Ok(self.outlook(&owner.namespace, takeovers));
        }
        let mut takeovers = Vec::new();
        for (_, job) in self.expired(&owner.namespace) {
            if takeovers.len() >= request.limit as usize {
                break;
            }
            if !request.running_here.contains(&job) && self.may_be_taken_over(job) {
                takeovers.extend(self.take_over(request, job));
            }
        }
        if request.repeat || !takeovers.is_empty() {
            let grants = takeovers.iter().map(|t| (t.grant.authority.job, t.grant.authority.token));
            let grants = grants.collect();
            self.record(request.command, asked, grants);
        }
        Ok(self.outlook(&owner.namespace, takeovers))
    }

    /// Expired leases of a namespace, the oldest first.
    fn expired(&self, namespace: &Namespace) -> Vec<(DateTime<Utc>, JobId)> {
        let now = self.now();
        let rows = self.rows.iter().filter(|(_, row)| row.namespace == *namespace);
        let expired = rows.filter_map(|(id, row)| Some((row.lease()?.expires_at, *id)));
        let mut expired: Vec<_> = expired.filter(|(at, _)| *at <= now).collect();
        expired.sort_unstable();
        expired
    }

    fn may_be_taken_over(&self, job: JobId) -> bool {
        let Some(row) = self.rows.get(&job) else { return false };
        let Some(lease) = row.lease() else { return false };
        lease.not_before.is_none_or(|at| at <= self.now())
            && self.standing(&row.namespace, lease.placement.as_ref()).is_some()
    }

    /// Whether the engine of a placement can be asked; none while its node has been silent, or UNHEALTHY, for
    /// less than the time after which it counts as lost.
    pub(super) fn standing(
        &self,
        namespace: &Namespace,
        placement: Option<&Placement>,
    ) -> Option<RuntimeStanding> {
        let Some(placement) = placement else { return Some(RuntimeStanding::Available) };
        let Some(node) = self.nodes.get(&(namespace.clone(), placement.node.clone())) else {
            return Some(RuntimeStanding::Unavailable);
        };
        if node.engine_id != placement.engine_id {
            // The recorded engine's agent is not heard any more; from when it can be counted as lost.
            let lost = node.registered_at + LOST_AFTER <= self.now();
            return lost.then_some(RuntimeStanding::Unavailable);
        }
        let given_up = node.unhealthy_since.is_some_and(|since| since + LOST_AFTER <= self.now());
        match node {
            Node { lost: true, .. } => Some(RuntimeStanding::Unavailable),
            Node { .. } if given_up => Some(RuntimeStanding::Unavailable),
            Node { fresh: false, .. } | Node { unhealthy_since: Some(_), .. } => None,
            Node { .. } => Some(RuntimeStanding::Available),
        }
    }

    fn take_over(&mut self, request: &RecoverRequest, job: JobId) -> Option<Takeover> {
        let (now, generation, restarts) = (self.now(), self.cluster_generation, self.restarts);
        let row = self.rows.get_mut(&job)?;
        let (epoch, attempt, namespace) = (row.epoch, row.attempt, row.namespace.clone());
        let lease = row.lease_mut()?;
        let view = HistoryView {
            epoch: Epoch(epoch),
            how: "expired".to_owned(),
            worker: lease.owner.worker.clone(),
            process: lease.owner.process,
            attempt,
            renewals: lease.renewals,
            command: None,
            node: lease.placement.as_ref().map(|placement| placement.node.clone()),
            container: lease.container.clone(),
            failure: None,
        };
        let later = |deadline: Option<DateTime<Utc>>| deadline.map(|at| at.max(now + delta(request.lease)));
        *lease = Lease {
            owner: request.owner.clone(),
            token: LeaseToken::generate(),
            duration: request.lease,
            expires_at: now + delta(request.lease),
            renewals: 0,
            // Cleanup has time, whatever the work had.
            cancel_deadline: later(lease.cancel_deadline),
            run_deadline: later(lease.run_deadline),
            not_before: None,
            redeemed: None,
            renewed_after: restarts,
            excused: lease.excused || lease.renewed_after < restarts || epoch >> 40 < generation,
            ..lease.clone()
        };
        row.epoch = epoch.max(generation << 40) + 1;
        self.history.insert((job, Epoch(epoch)), PastLease { namespace, view, due_at: None });
        self.takeover(job)
    }

    /// The present lease of a job as whoever took it over is told of it.
    fn takeover(&self, job: JobId) -> Option<Takeover> {
        let row = self.rows.get(&job)?;
        let lease = row.lease()?;
        Some(Takeover {
            grant: self.grant(job)?,
            container: lease.container.clone(),
            // A node that fell silent since is one that can be asked, for all that is known.
            runtime: self
                .standing(&row.namespace, lease.placement.as_ref())
                .unwrap_or(RuntimeStanding::Available),
            tasks: self.tasks_of(job, &row.namespace),
            claim_epoch: Epoch(lease.claim_epoch),
            started: lease.claim_renewed,
            cancel_requested: lease.cancel_requested,
            cleanup_pending_for: lease.cleanup_pending_since.map(|since| until(since, self.now())),
            // A run deadline is the timeout and one lease.
            timeout_left: lease.run_deadline.map(|at| until(self.now(), at - delta(lease.duration))),
        })
    }

    /// A recorded takeover, if it is still live with the token that it was made with.
    fn retaken(&self, owner: &Claimant, job: JobId, token: LeaseToken) -> Option<Takeover> {
        self.live_grant(owner, job, token)?;
        self.takeover(job)
    }

    fn outlook(&self, namespace: &Namespace, takeovers: Vec<Takeover>) -> RecoverAnswer {
        let now = self.now();
        let left = self.expired(namespace);
        let leases = self.rows.values().filter(|row| row.namespace == *namespace);
        let ahead = leases.filter_map(|row| {
            let lease = row.lease()?;
            Some(lease.not_before.map_or(lease.expires_at, |at| at.max(lease.expires_at)))
        });
        RecoverAnswer {
            takeovers,
            next_expiry: ahead.filter(|at| *at > now).min().map(|at| until(now, at)),
            backlog: left.len() as u64,
            oldest: left.first().map(|(at, _)| until(*at, now)),
        }
    }

    pub(super) fn postpone_recovery(
        &mut self,
        authority: &Authority,
        delay: std::time::Duration,
    ) -> Postponed {
        let now = self.now();
        let Some(lease) = self.live_mut(authority) else { return Postponed::NotLive };
        lease.expires_at = now;
        lease.not_before = Some(now + delta(delay));
        lease.cleanup_pending_since.get_or_insert(now);
        Postponed::Done
    }
}
