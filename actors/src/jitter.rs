//! Waits that differ from worker to worker, so that a fleet that started together does not ask together.

use std::time::Duration;

/// Between three and five quarters of `around`, drawn anew each time.
#[must_use]
pub(crate) fn about(around: Duration) -> Duration {
    around.mul_f64(rand::random_range(0.75..=1.25))
}

/// How long to wait after the `failures`-th failure in a row: doubling from `first`, at most `longest`.
#[must_use]
pub(crate) fn backoff(first: Duration, longest: Duration, failures: u32) -> Duration {
    about(first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_limit_and_never_agree() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(5));
        for failures in 1..40 {
            let expected = (first * (1 << (failures - 1).min(16))).min(longest);
            let wait = backoff(first, longest, failures);
            assert!(wait >= expected.mul_f64(0.74) && wait <= expected.mul_f64(1.26), "{failures}: {wait:?}");
        }
        assert_ne!(about(longest), about(longest));
    }
}
