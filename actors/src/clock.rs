//! Local time, which only ever makes a worker stop *earlier*: no decision about authority is taken by it.
//!
//! A [`Deadline`] is kept on two clocks and has passed as soon as either says so: tokio's, which timers and
//! tests with paused time follow, and `CLOCK_BOOTTIME`, which goes on while the machine is suspended. A
//! laptop lid or a paused virtual machine would otherwise hold a lease back that the database has long
//! given to somebody else.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// An instant of `CLOCK_BOOTTIME`: time since the machine started, suspend included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(u64);

impl BootInstant {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        // Neither part is ever negative on this clock, and 64 bits of nanoseconds are 584 years.
        Self(now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs())
    }

    /// Time from now until then; zero when it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(Self::now().0))
    }

    /// This instant and `by` later.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }

    /// This instant and `by` earlier.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(by)))
    }

    /// The instant that many nanoseconds after the machine started.
    #[must_use]
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the machine started.
    #[must_use]
    pub fn as_nanos(self) -> u64 {
        self.0
    }
}

fn nanos(by: Duration) -> u64 {
    u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)
}

/// An instant on both clocks. Taken *before* a request is sent, so that what the answer promises is counted
/// from a time that the database's own reading of its clock cannot precede.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    tokio: Instant,
    boot: BootInstant,
}

impl Anchor {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self { tokio: Instant::now(), boot: BootInstant::now() }
    }

    /// The deadline that lies `by` after this instant.
    #[must_use]
    pub fn after(self, by: Duration) -> Deadline {
        Deadline { tokio: self.tokio + by, boot: self.boot.after(by) }
    }

    /// This instant on tokio's clock.
    #[must_use]
    pub fn instant(self) -> Instant {
        self.tokio
    }
}

/// A point in time that has passed as soon as one of two clocks says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    tokio: Instant,
    boot: BootInstant,
}

impl Deadline {
    /// Time left: the smaller of the two clocks' answers.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.tokio.saturating_duration_since(Instant::now()).min(self.boot.remaining())
    }

    /// Whether one of the clocks has reached it.
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// The later of the two, on each clock.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { tokio: self.tokio.max(other.tokio), boot: self.boot.max(other.boot) }
    }

    /// The earlier of the two, on each clock.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self { tokio: self.tokio.min(other.tokio), boot: self.boot.min(other.boot) }
    }

    /// The point `by` before this one.
    #[must_use]
    pub fn earlier(self, by: Duration) -> Self {
        Self { tokio: self.tokio.checked_sub(by).unwrap_or(self.tokio), boot: self.boot.before(by) }
    }

    /// The point `by` after this one.
    #[must_use]
    pub fn later(self, by: Duration) -> Self {
        Self { tokio: self.tokio + by, boot: self.boot.after(by) }
    }

    /// This point on tokio's clock, for timers.
    #[must_use]
    pub fn instant(self) -> Instant {
        self.tokio
    }

    /// This point on the clock that counts suspend, for the fence.
    #[must_use]
    pub fn boot(self) -> BootInstant {
        self.boot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_has_passed_when_the_first_clock_says_so() {
        let deadline = Anchor::now().after(Duration::from_secs(10));
        assert!(!deadline.has_passed());
        assert!(deadline.remaining() <= Duration::from_secs(10));
        // Only tokio's clock is moved; the machine's own has hardly gone on.
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(deadline.has_passed());

        let by_boot = Deadline { tokio: Instant::now() + Duration::from_secs(10), boot: BootInstant::now() };
        assert!(by_boot.has_passed(), "a suspend moves only the boot clock, and that suffices");
    }

    #[tokio::test(start_paused = true)]
    async fn earlier_and_later_are_opposites() {
        let deadline = Anchor::now().after(Duration::from_secs(10));
        let there_and_back = deadline.earlier(Duration::from_secs(3)).later(Duration::from_secs(3));
        assert_eq!(deadline, there_and_back);
        assert_eq!(deadline.max(deadline.earlier(Duration::from_secs(1))), deadline);
        assert_eq!(deadline.min(deadline.later(Duration::from_secs(1))), deadline);
    }
}
