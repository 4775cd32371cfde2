//! Waiting for facts instead of for time: the only place in the tests that sleeps.

use std::time::{Duration, Instant};

/// Asks again until `check` finds what is waited for, and panics, naming it, when `limit` has passed.
pub async fn eventually<T>(limit: Duration, what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Panics as soon as `check` finds something within `span`: for what must *not* happen.
pub async fn never<T: std::fmt::Debug>(
    span: Duration,
    what: &str,
    mut check: impl AsyncFnMut() -> Option<T>,
) {
    let started = Instant::now();
    while started.elapsed() < span {
        if let Some(found) = check().await {
            panic!("{what}: {found:?}");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Lets time pass where time itself is the subject: a lease that must expire, a delay of a proxy.
pub async fn pass(span: Duration) {
    tokio::time::sleep(span).await;
}
