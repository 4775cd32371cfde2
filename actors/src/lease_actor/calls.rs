//! When to send the next call of one sort, and which calls are still waited for.

use std::time::Duration;

use actix::SpawnHandle;
use tokio::time::Instant;

/// The first wait before a call that failed is repeated; it doubles with every failure.
pub(super) const FIRST_RETRY: Duration = Duration::from_millis(50);

/// Calls of one sort: when to send the next one, and which are still waited for. A call that has had its time
/// is waited for a little longer, beside its successor: a late answer counts too. The one before it is not.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) number: u32,
    pub(super) newest: Option<SpawnHandle>,
    pub(super) older: Option<SpawnHandle>,
    /// The newest call is not answered, and no other has succeeded since it was sent.
    pub(super) pending: bool,
    /// When the next call is due while none is pending.
    pub(super) due: Instant,
    /// When the pending call has had its time.
    pub(super) overdue: Instant,
    pub(super) failures: u32,
}

impl Calls {
    pub(super) fn due_now() -> Self {
        let now = Instant::now();
        Self { number: 0, newest: None, older: None, pending: false, due: now, overdue: now, failures: 0 }
    }

    pub(super) fn next(&self) -> Instant {
        if self.pending { self.overdue } else { self.due }
    }

    /// Begins a call that may take `timeout`; returns its number.
    pub(super) fn begin(&mut self, timeout: Duration) -> u32 {
        self.number += 1;
        self.pending = true;
        self.overdue = Instant::now() + timeout;
        self.number
    }

    /// The call begun last runs as `handle`; returns the one that is waited for no longer.
    pub(super) fn runs_as(&mut self, handle: SpawnHandle) -> Option<SpawnHandle> {
        std::mem::replace(&mut self.older, self.newest.replace(handle))
    }

    pub(super) fn ended(&mut self, number: u32) {
        if number == self.number {
            self.newest = None;
        } else {
            self.older = None;
        }
    }

    pub(super) fn succeeded(&mut self, number: u32) {
        self.ended(number);
        self.pending = false;
        self.failures = 0;
    }

    pub(super) fn failed(&mut self, number: u32, longest: Duration) {
        self.ended(number);
        if number == self.number && self.pending {
            self.pending = false;
            self.due = Instant::now() + FIRST_RETRY.saturating_mul(1 << self.failures.min(10)).min(longest);
            self.failures += 1;
        }
    }
}
