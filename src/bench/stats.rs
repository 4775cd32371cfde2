//! Numbers out of many measurements: percentiles, medians of rounds, and how people read them.

use std::time::Duration;

use serde::Serialize;

/// Where half, 95 and 99 of a hundred measurements lie, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// How many were measured.
    pub count: usize,
    /// Half of them took no longer.
    pub p50_ms: f64,
    /// 95 in a hundred took no longer.
    pub p95_ms: f64,
    /// 99 in a hundred took no longer.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Percentiles {
    /// None of nothing.
    #[must_use]
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let last = *times.last()?;
        let at = |hundredths: usize| {
            // The nearest rank: the smallest value that so many are not above.
            let rank = (times.len() * hundredths).div_ceil(100).max(1);
            millis(times[rank - 1])
        };
        Some(Self {
            count: times.len(),
            p50_ms: at(50),
            p95_ms: at(95),
            p99_ms: at(99),
            max_ms: millis(last),
        })
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The middle of some values; the mean of the middle two when their number is even.
#[must_use]
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_ranks() {
        let times = (1..=200).rev().map(Duration::from_millis).collect();
        let of = Percentiles::of(times).expect("there are measurements");
        assert_eq!((of.count, of.p50_ms, of.p95_ms, of.p99_ms, of.max_ms), (200, 100.0, 190.0, 198.0, 200.0));
        let one = Percentiles::of(vec![Duration::from_millis(7)]).expect("there is one");
        assert_eq!((one.p50_ms, one.p99_ms), (7.0, 7.0));
        assert_eq!(Percentiles::of(Vec::new()), None);
    }

    #[test]
    fn the_median_of_rounds_ignores_the_outlier() {
        assert_eq!(median(&[3.0, 1000.0, 1.0]), Some(3.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }
}
