//! What the actors are told at their start: plain values, validated by whoever reads the configuration.

use std::{sync::Arc, time::Duration};

use crate::{domain::RetryPolicy, domain::Route, ports::Claimant};

/// The times of one lease.
///
/// They must satisfy [`LeaseTimings::check`], or a lost renewal can cost the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimings {
    /// How long a grant lasts between renewals.
    pub lease: Duration,
    /// From one confirmed renewal's sending to the next.
    pub renew_interval: Duration,
    /// How much earlier than the database's expiry the work must be dead here.
    pub safety_margin: Duration,
    /// How long one call is waited for before it is asked again.
    pub store_timeout: Duration,
    /// How long work that is told to stop may take, unless it says otherwise itself.
    pub stop_grace: Duration,
}

/// Timings under which one lost answer already costs the lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "renew interval + 2 x store timeout + safety margin + lease / 8 must be at most the lease, but \
     {renew_interval:?} + 2 x {store_timeout:?} + {safety_margin:?} + {eighth:?} > {lease:?}; raise \
     EXECUTION_WORKER_LEASE_DURATION or lower EXECUTION_WORKER_LEASE_RENEW_INTERVAL, \
     EXECUTION_WORKER_STORE_TIMEOUT or EXECUTION_WORKER_SAFETY_MARGIN",
    renew_interval = .0.renew_interval, store_timeout = .0.store_timeout,
    safety_margin = .0.safety_margin, eighth = .0.lease / 8, lease = .0.lease
)]
pub struct TimingsTooTight(pub LeaseTimings);

impl LeaseTimings {
    /// Whether two calls that bring no answer still leave time to end the work before the deadline.
    ///
    /// # Errors
    /// [`TimingsTooTight`], which names the formula.
    pub fn check(&self) -> Result<(), TimingsTooTight> {
        let needed = self.renew_interval + 2 * self.store_timeout + self.safety_margin + self.lease / 8;
        if needed <= self.lease { Ok(()) } else { Err(TimingsTooTight(*self)) }
    }

    /// These times for a lease of another duration: what is too long for a shorter one is shortened with it, so that a
    /// lease that came from elsewhere is held by the same rules.
    #[must_use]
    pub fn fitted(self, lease: Duration) -> Self {
        if lease >= self.lease || self.lease.is_zero() {
            return Self { lease, ..self };
        }
        let shorter = |time: Duration| time.mul_f64(lease.as_secs_f64() / self.lease.as_secs_f64());
        Self {
            lease,
            renew_interval: shorter(self.renew_interval),
            safety_margin: shorter(self.safety_margin),
            store_timeout: shorter(self.store_timeout),
            stop_grace: self.stop_grace,
        }
    }

    /// How many renewals in a row may stay without an answer, each for the whole store timeout, before
    /// the work is asked to stop.
    #[must_use]
    pub fn survivable_losses(&self) -> u32 {
        if self.store_timeout.is_zero() {
            return 0;
        }
        let spare = self
            .lease
            .saturating_sub(self.safety_margin)
            .saturating_sub(self.lease / 8)
            .saturating_sub(self.renew_interval);
        // The last attempt must come back in time, so one of those that fit is not a loss.
        u32::try_from(spare.as_nanos() / self.store_timeout.as_nanos()).unwrap_or(u32::MAX).saturating_sub(1)
    }
}

/// What a worker claims, and how eagerly.
#[derive(Debug, Clone)]
pub struct ClaimSettings {
    /// Who claims.
    pub owner: Claimant,
    /// What this worker can run.
    pub routes: Arc<[Route]>,
    /// Handoff permits: jobs held at once.
    pub concurrency: u32,
    /// Most jobs in one claim.
    pub batch: u32,
    /// The longest wait between claims when no hint comes.
    pub poll_interval: Duration,
    /// What this worker has, for RECIPE jobs; see [`crate::ports::OpenClaim::facts`].
    pub facts: Option<Arc<crate::ports::recipe::Facts>>,
}

/// How due jobs become QUEUED.
#[derive(Debug, Clone)]
pub struct DispatchSettings {
    /// Most jobs in one statement.
    pub batch: u32,
    /// The longest wait between two looks when no hint comes.
    pub poll_interval: Duration,
}

/// What a worker takes over from others, and how eagerly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoverySettings {
    /// Jobs in recovery at once, on top of those that were claimed.
    pub permits: u32,
    /// Most leases in one statement.
    pub batch: u32,
    /// The longest wait between two passes.
    pub interval: Duration,
    /// How long a job's cleanup may be put off because its engine answers with errors, before that engine counts
    /// as unavailable.
    pub give_up: Duration,
    /// How many losses in a row end a job as `crash_loop`.
    pub loss_limit: i32,
}

/// Everything that the actors of a worker are told.
#[derive(Debug, Clone)]
pub struct ActorSettings {
    /// What to claim.
    pub claim: ClaimSettings,
    /// The times of each lease.
    pub timings: LeaseTimings,
    /// What a failure is worth where the job's own policy is silent.
    pub retry_defaults: RetryPolicy,
    /// Whether, and how, this process dispatches.
    pub dispatch: Option<DispatchSettings>,
    /// What to take over.
    pub recovery: RecoverySettings,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(lease: u64, renew: u64, margin: u64, timeout: u64) -> LeaseTimings {
        let s = Duration::from_secs;
        LeaseTimings {
            lease: s(lease),
            renew_interval: s(renew),
            safety_margin: s(margin),
            store_timeout: s(timeout),
            stop_grace: s(10),
        }
    }

    /// RN-13
    #[test]
    fn timings_that_one_lost_renewal_would_use_up_are_refused_by_name() {
        secs(30, 10, 3, 5).check().expect("10 + 10 + 3 + 3.75 <= 30");
        let text = secs(30, 20, 3, 5).check().expect_err("20 + 10 + 3 + 3.75 > 30").to_string();
        assert!(text.contains("EXECUTION_WORKER_LEASE_RENEW_INTERVAL") && text.contains("20s"), "{text}");
    }

    /// RN-13
    #[test]
    fn the_number_of_losses_that_the_settings_survive_is_told() {
        assert_eq!(secs(30, 10, 3, 5).survivable_losses(), 1);
        assert_eq!(secs(30, 10, 3, 1).survivable_losses(), 12);
        assert_eq!(secs(30, 30, 3, 5).survivable_losses(), 0);
    }
}
