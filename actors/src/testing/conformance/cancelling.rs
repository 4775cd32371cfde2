//! Cancelling: at once for what waits, with a flag for what runs, and from then on no way back to PENDING.

use std::time::Duration;

use chrono::{TimeDelta, Utc};

use super::bench::{Bench, LAG, LEASE, complete, fail, release, reschedule};
use crate::{
    domain::{FailureKind, JobId, JobState, Namespace},
    ports::{ClaimRejection, End, Ended, Renewal},
    testing::harness::{CancelAnswer, StoreHarness},
};

const GRACE: Duration = Duration::from_secs(7);

/// CL-15: a waiting job is CANCELED at once, and an old dispatch message grants nothing.
pub async fn a_waiting_job_is_canceled_at_once(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let queued = bench.queued().await;
    let message = bench.message(queued).await;
    let pending = bench.submit(|job| job.run_at = Some(Utc::now() + TimeDelta::days(40_000))).await;
    for job in [queued, pending] {
        let answer = harness.request_cancel(&bench.namespace, job, GRACE).await;
        assert_eq!(answer, CancelAnswer::Canceled);
        assert_eq!(bench.state(job).await, JobState::Canceled);
        // AP-13: a second request changes nothing and says what is.
        let again = harness.request_cancel(&bench.namespace, job, GRACE).await;
        assert_eq!(again, CancelAnswer::AlreadyEnded(JobState::Canceled));
    }
    let rejection = bench.claim_message(message).await.err();
    assert_eq!(rejection, Some(ClaimRejection::AlreadyEnded { state: JobState::Canceled }));
    bench.dispatch().await;
    assert!(bench.claim_open(10).await.is_empty());
}

/// The holder is told at its next renewal, stops the work and cancels with its token.
pub async fn a_running_job_is_canceled_by_its_holder(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let job = grant.authority.job;
    assert_eq!(harness.request_cancel(&bench.namespace, job, GRACE).await, CancelAnswer::Requested);
    let view = bench.view(job).await;
    assert_eq!((view.state, view.cancel_requested), (JobState::Running, true));
    let told = bench.renew(&grant.authority).await;
    assert!(matches!(told, Renewal::Held { cancel_requested: true, .. }));
    assert_eq!(bench.end(&grant, End::Cancel).await, Ended::Terminal(JobState::Canceled));
    assert_eq!(bench.state(job).await, JobState::Canceled);
    assert_eq!(harness.history(job).await[0].how, "canceled");
}

/// CL-07: from the request on, what would go back to PENDING ends CANCELED in that same statement.
pub async fn after_the_request_a_job_never_waits_again(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (name, end) in [
        ("release", release()),
        ("reschedule", reschedule()),
        ("retryable fail", fail(FailureKind::System)),
        ("cancel", End::Cancel),
    ] {
        let grant = bench.held().await;
        harness.request_cancel(&bench.namespace, grant.authority.job, GRACE).await;
        assert_eq!(bench.end(&grant, end).await, Ended::Terminal(JobState::Canceled), "{name}");
        assert_eq!(bench.state(grant.authority.job).await, JobState::Canceled, "{name}");
        let history = harness.history(grant.authority.job).await;
        assert_eq!(history[0].how, "canceled", "{name}");
    }
}

/// CL-07: a real outcome that comes first stands.
pub async fn after_the_request_a_real_outcome_stands(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (end, state) in [(complete(), JobState::Completed), (fail(FailureKind::User), JobState::Failed)] {
        let grant = bench.held().await;
        harness.request_cancel(&bench.namespace, grant.authority.job, GRACE).await;
        assert_eq!(bench.end(&grant, end).await, Ended::Terminal(state));
        assert_eq!(bench.state(grant.authority.job).await, state);
    }
}

/// The deadline is the request plus the stop grace plus one lease, and a second request does not move it.
pub async fn a_second_request_gives_no_more_time(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let job = grant.authority.job;
    harness.request_cancel(&bench.namespace, job, GRACE).await;
    let view = bench.view(job).await;
    let deadline = view.cancel_deadline.expect("the request sets a deadline");
    let expiry = view.lease_expires_at.expect("the job is RUNNING");
    let beyond = (deadline - expiry).to_std().expect("later than the present expiry");
    assert!(beyond >= GRACE && beyond < GRACE + LAG, "{beyond:?} beyond a lease of {LEASE:?}");
    let answer = harness.request_cancel(&bench.namespace, job, Duration::from_mins(10)).await;
    assert_eq!(answer, CancelAnswer::Requested);
    assert_eq!(bench.view(job).await.cancel_deadline, Some(deadline));
}

pub async fn an_ended_job_cannot_be_canceled(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (end, state) in [(complete(), JobState::Completed), (fail(FailureKind::User), JobState::Failed)] {
        let grant = bench.held().await;
        bench.end(&grant, end).await;
        let answer = harness.request_cancel(&bench.namespace, grant.authority.job, GRACE).await;
        assert_eq!(answer, CancelAnswer::AlreadyEnded(state));
    }
}

pub async fn only_a_job_of_the_namespace_can_be_canceled(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let elsewhere = Namespace::new("elsewhere").expect("a valid name");
    for (namespace, job) in [(&elsewhere, grant.authority.job), (&bench.namespace, JobId(987_654_321))] {
        let answer = harness.request_cancel(namespace, job, GRACE).await;
        assert_eq!(answer, CancelAnswer::NotFound);
    }
    assert!(!bench.view(grant.authority.job).await.cancel_requested);
}

/// A cancel of an expired lease is a request like any other: it is recovery that will act on it.
pub async fn an_expired_lease_keeps_the_request(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    harness.expire(grant.authority.job).await;
    let answer = harness.request_cancel(&bench.namespace, grant.authority.job, GRACE).await;
    assert_eq!(answer, CancelAnswer::Requested);
    let view = bench.view(grant.authority.job).await;
    assert_eq!((view.state, view.cancel_requested), (JobState::Running, true));
    assert_eq!(bench.renew(&grant.authority).await, Renewal::NotLive);
}
