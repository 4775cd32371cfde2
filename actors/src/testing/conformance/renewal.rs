//! Renewal: a live lease is extended by its stored duration, an expired one never.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::bench::{Bench, LAG, LEASE};
use crate::{
    domain::{JobId, JobState},
    error::{Applied, StoreErrorKind},
    ports::{OpenClaim, Renewal},
    testing::harness::{CancelAnswer, StoreHarness},
};

fn held(renewal: Renewal) -> (Duration, bool) {
    match renewal {
        Renewal::Held { remaining, cancel_requested } => (remaining, cancel_requested),
        Renewal::NotLive => panic!("the lease is live"),
    }
}

/// Until when, and how often renewed: on a clock that stands still only the second tells whether it was extended.
async fn extent(bench: &Bench<'_>, job: JobId) -> (Option<DateTime<Utc>>, i32) {
    let view = bench.view(job).await;
    (view.lease_expires_at, view.renewals)
}

pub async fn a_renewal_extends_by_the_stored_duration(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    for renewals in 1..=3 {
        let (remaining, cancel) = held(bench.renew(&grant.authority).await);
        assert!(remaining <= LEASE && remaining > LEASE - LAG, "{remaining:?}");
        assert!(!cancel);
        assert_eq!(bench.view(grant.authority.job).await.renewals, renewals);
    }
}

/// RN-03: the duration is the grant's, not that of whoever asks or looks on.
pub async fn each_lease_has_its_own_duration(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (_, _) = (bench.queued().await, bench.queued().await);
    let mut granted = Vec::new();
    for lease in [Duration::from_mins(10), LEASE] {
        let request = OpenClaim { lease, ..bench.open(1) };
        granted.extend(bench.store.claim(&request).await.expect("the store answers").grants);
    }
    let (long, _) = held(bench.renew(&granted[0].authority).await);
    let (short, _) = held(bench.renew(&granted[1].authority).await);
    assert!(long > Duration::from_mins(10) - LAG, "{long:?}");
    assert!(short <= LEASE, "{short:?}");
}

/// L3: what has expired stays expired, and nothing of the job changes.
pub async fn an_expired_lease_is_never_revived(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    bench.renew(&grant.authority).await;
    harness.expire(grant.authority.job).await;
    let before = bench.picture(grant.authority.job).await;
    for _ in 0..3 {
        assert_eq!(bench.renew(&grant.authority).await, Renewal::NotLive);
    }
    assert_eq!(bench.picture(grant.authority.job).await, before);
}

pub async fn a_renewal_tells_of_a_requested_cancel(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let answer = harness.request_cancel(&bench.namespace, grant.authority.job, Duration::from_secs(5)).await;
    assert_eq!(answer, CancelAnswer::Requested);
    let (remaining, cancel) = held(bench.renew(&grant.authority).await);
    assert!(cancel);
    assert!(remaining > LEASE - LAG, "the holder has time to stop the work: {remaining:?}");
}

/// A holder that never acts on the cancel loses the job at last.
pub async fn past_the_cancel_deadline_a_renewal_extends_nothing(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let job = grant.authority.job;
    harness.request_cancel(&bench.namespace, job, Duration::from_secs(5)).await;
    bench.renew(&grant.authority).await;
    harness.pass_cancel_deadline(job).await;
    let before = extent(&bench, job).await;
    let (remaining, cancel) = held(bench.renew(&grant.authority).await);
    assert!(remaining <= LEASE && cancel);
    assert_eq!(extent(&bench, job).await, before);
    harness.expire(job).await;
    assert_eq!(bench.renew(&grant.authority).await, Renewal::NotLive);
}

/// RN-11: a worker that does not enforce the timeout loses the job at last.
pub async fn past_the_run_deadline_a_renewal_extends_nothing(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.claim(bench.submit(|job| job.timeout_ms = Some(30_000)).await).await;
    let job = grant.authority.job;
    assert!(bench.view(job).await.run_deadline.is_some(), "a timeout sets a deadline at the grant");
    harness.pass_run_deadline(job).await;
    let before = extent(&bench, job).await;
    let (remaining, cancel) = held(bench.renew(&grant.authority).await);
    assert!(remaining <= LEASE && !cancel);
    assert_eq!(extent(&bench, job).await, before);
}

/// The worker ends the work at the timeout, and must still be able to say so afterwards.
pub async fn the_run_deadline_leaves_time_to_report_the_timeout(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let plain = bench.held().await;
    assert_eq!(bench.view(plain.authority.job).await.run_deadline, None);
    let grant = bench.claim(bench.submit(|job| job.timeout_ms = Some(30_000)).await).await;
    let view = bench.view(grant.authority.job).await;
    let (deadline, expiry) = (view.run_deadline.expect("set"), view.lease_expires_at.expect("running"));
    let after_grant = (deadline - expiry).to_std().expect("later than the first expiry") + LEASE;
    assert!(after_grant >= Duration::from_secs(30) + LEASE, "{after_grant:?}");
    assert!(after_grant <= Duration::from_secs(60) + LEASE, "{after_grant:?}");
}

pub async fn progress_is_kept_under_a_live_lease(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let job = grant.authority.job;
    for note in [r#"{"done":1}"#, r#"{"done":2}"#] {
        let answer = bench.store.report_progress(&grant.authority, note).await.expect("the store answers");
        assert!(matches!(answer, Renewal::Held { cancel_requested: false, .. }));
        assert_eq!(harness.progress_note(job).await.as_deref(), Some(note));
    }
    assert_eq!(bench.view(job).await.renewals, 0, "a note is no renewal");
    harness.request_cancel(&bench.namespace, job, Duration::ZERO).await;
    let answer = bench.store.report_progress(&grant.authority, "3").await.expect("the store answers");
    assert!(matches!(answer, Renewal::Held { cancel_requested: true, .. }));
    harness.expire(job).await;
    let answer = bench.store.report_progress(&grant.authority, "4").await.expect("the store answers");
    assert_eq!(answer, Renewal::NotLive);
    assert_eq!(harness.progress_note(job).await.as_deref(), Some("3"));
}

pub async fn a_progress_note_must_be_small_and_json(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let long = format!("\"{}\"", "x".repeat(4095));
    for bad in [long.as_str(), "{not json", ""] {
        let error =
            bench.store.report_progress(&grant.authority, bad).await.expect_err("this is no progress note");
        assert_eq!((error.kind, error.applied), (StoreErrorKind::Refused, Applied::No), "{error}");
    }
    let fits = format!("\"{}\"", "x".repeat(4094));
    let answer = bench.store.report_progress(&grant.authority, &fits).await.expect("the store answers");
    assert!(matches!(answer, Renewal::Held { .. }));
    assert_eq!(bench.state(grant.authority.job).await, JobState::Running);
}
