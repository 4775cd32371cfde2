//! Relations between settings: unsafe ones are refused with their formula, marginal ones are warned about.

use std::time::Duration;

use super::{ConfigError, NodeSettings, WorkerSettings, value::show};

/// The part of a lease that is kept for asking a workload to stop before it is killed.
fn stop_share(lease: Duration) -> Duration {
    lease / 8
}

impl WorkerSettings {
    /// The start-up rule: one renewal may be lost and asked again, and the workload is still dead in time.
    ///
    /// # Errors
    /// [`ConfigError`] with the formula and its numbers.
    pub fn check(&self) -> Result<(), ConfigError> {
        let needed =
            self.renew_interval + 2 * self.store_timeout + self.safety_margin + stop_share(self.lease);
        if needed <= self.lease {
            return Ok(());
        }
        Err(ConfigError::relation(
            "EXECUTION_WORKER_LEASE_DURATION",
            format!(
                "renew interval + 2 × store timeout + safety margin + lease / 8 ≤ lease does not hold: \
                 {} + 2 × {} + {} + {} = {} > {}; shorten EXECUTION_WORKER_LEASE_RENEW_INTERVAL or \
                 EXECUTION_WORKER_STORE_TIMEOUT, or lengthen EXECUTION_WORKER_LEASE_DURATION",
                show(self.renew_interval),
                show(self.store_timeout),
                show(self.safety_margin),
                show(stop_share(self.lease)),
                show(needed),
                show(self.lease),
            ),
        ))
    }

    /// How many renewals in a row may stay without an answer, each for the whole store timeout, before the
    /// workload must be asked to stop. The start-up rule makes it at least 1.
    #[must_use]
    pub fn lost_renewals_survived(&self) -> u64 {
        let room = self
            .lease
            .saturating_sub(self.safety_margin)
            .saturating_sub(stop_share(self.lease))
            .saturating_sub(self.renew_interval);
        let attempts = room.as_nanos() / self.store_timeout.as_nanos().max(1);
        u64::try_from(attempts).unwrap_or(u64::MAX).saturating_sub(1)
    }

    /// What is allowed but leaves little room, one line each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        let survived = self.lost_renewals_survived();
        if survived < 2 {
            out.push(format!(
                "these settings survive only {survived} lost renewal: a short outage of the database stops running \
                 work; shorten EXECUTION_WORKER_LEASE_RENEW_INTERVAL ({}) or EXECUTION_WORKER_STORE_TIMEOUT ({})",
                show(self.renew_interval),
                show(self.store_timeout)
            ));
        }
        if self.safety_margin < self.lease / 20 {
            out.push(format!(
                "EXECUTION_WORKER_SAFETY_MARGIN ({}) is less than a twentieth of the lease ({}): clocks that tick \
                 at slightly different rates could let work overlap",
                show(self.safety_margin),
                show(self.lease)
            ));
        }
        if self.poll_interval > self.lease {
            out.push(format!(
                "EXECUTION_WORKER_POLL_INTERVAL ({}) is longer than the lease ({}): after a lost notification jobs \
                 wait that long",
                show(self.poll_interval),
                show(self.lease)
            ));
        }
        out
    }
}

impl NodeSettings {
    /// Heartbeats must fit into their TTL twice, and a node may not be lost before it is stale.
    ///
    /// # Errors
    /// [`ConfigError`] with the formula and its numbers.
    pub fn check(&self) -> Result<(), ConfigError> {
        if 2 * self.heartbeat_interval > self.heartbeat_ttl {
            return Err(ConfigError::relation(
                "RUNTIME_HEARTBEAT_TTL",
                format!(
                    "2 × heartbeat interval ≤ heartbeat TTL does not hold: 2 × {} > {}; shorten \
                     RUNTIME_HEARTBEAT_INTERVAL or lengthen RUNTIME_HEARTBEAT_TTL",
                    show(self.heartbeat_interval),
                    show(self.heartbeat_ttl)
                ),
            ));
        }
        if self.lost_after < self.heartbeat_ttl {
            return Err(ConfigError::relation(
                "RUNTIME_LOST_AFTER",
                format!(
                    "heartbeat TTL ≤ lost after does not hold: {} > {}; lengthen RUNTIME_LOST_AFTER",
                    show(self.heartbeat_ttl),
                    show(self.lost_after)
                ),
            ));
        }
        Ok(())
    }

    /// What is allowed but leaves little room, one line each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        if 3 * self.heartbeat_interval > self.heartbeat_ttl {
            out.push(format!(
                "RUNTIME_HEARTBEAT_TTL ({}) is less than three heartbeat intervals ({}): one late heartbeat takes \
                 the node out of placement",
                show(self.heartbeat_ttl),
                show(self.heartbeat_interval)
            ));
        }
        if self.lost_after < 2 * self.heartbeat_ttl {
            out.push(format!(
                "RUNTIME_LOST_AFTER ({}) is less than twice RUNTIME_HEARTBEAT_TTL ({}): a short outage makes the \
                 node's jobs count as lost",
                show(self.lost_after),
                show(self.heartbeat_ttl)
            ));
        }
        out
    }
}
