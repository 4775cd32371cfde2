//! Ends: complete, fail with its decision, release, reschedule; and the repeat of each.

use std::time::Duration;

use super::bench::{Bench, claimant, complete, every_end, fail, id, release, reschedule};
use crate::{
    domain::{CommandId, Failure, FailureKind, JobState, RetryPolicy, Route},
    ports::{End, Ended, PayloadUpdate, Renewal},
    testing::harness::{CancelAnswer, StoreHarness},
};

pub async fn a_completion_keeps_exit_code_and_output(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    bench.attach(&grant, "c1").await;
    bench.renew(&grant.authority).await;
    let output = r#"{"b":1.50,"a":[]}"#.to_owned();
    let end = End::Complete { exit_code: Some(0), output: Some(output.clone()) };
    assert_eq!(bench.end(&grant, end).await, Ended::Terminal(JobState::Completed));
    let view = bench.view(grant.authority.job).await;
    assert_eq!((view.state, view.exit_code), (JobState::Completed, Some(0)));
    assert_eq!(view.output, Some(output));
    assert_eq!(view.failure_code, None);
    let history = harness.history(grant.authority.job).await;
    assert_eq!(history.len(), 1);
    let lease = &history[0];
    assert_eq!((lease.epoch, lease.how.as_str()), (grant.authority.epoch, "completed"));
    assert_eq!((&lease.worker, lease.process), (&bench.owner.worker, bench.owner.process));
    assert_eq!((lease.attempt, lease.renewals), (1, 1));
    let node = grant.placement.map(|placement| placement.node);
    assert_eq!((lease.node.clone(), lease.container.clone()), (node, Some(id("c1"))));
}

/// USER and TIMEOUT failures are final unless the policy says otherwise.
pub async fn a_failure_without_a_try_left_is_final(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (kind, counted) in [(FailureKind::User, [1, 0, 0]), (FailureKind::Timeout, [0, 0, 1])] {
        let grant = bench.held().await;
        let failure = Failure::new(kind, "3", "the program said so").with_exit_code(3);
        let end = End::Fail { failure: failure.clone(), defaults: RetryPolicy::default() };
        assert_eq!(bench.end(&grant, end).await, Ended::Terminal(JobState::Failed));
        let view = bench.view(grant.authority.job).await;
        assert_eq!((view.state, view.exit_code), (JobState::Failed, Some(3)));
        assert_eq!((view.failure_code.as_deref(), view.failures), (Some("3"), counted));
        let history = harness.history(grant.authority.job).await;
        assert_eq!((history[0].how.as_str(), &history[0].failure), ("failed", &Some(failure)));
    }
}

/// RC-09: with tries left the job waits for its back-off, and the history tells of each.
pub async fn a_failure_with_a_try_left_is_tried_again(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.submit(|job| job.retry.max_user = Some(3)).await;
    for attempt in 1..=3 {
        let grant = bench.claim(job).await;
        assert_eq!(grant.attempt, attempt);
        let answer = bench.end(&grant, fail(FailureKind::User)).await;
        let view = bench.view(job).await;
        assert_eq!(view.failures, [attempt, 0, 0]);
        if attempt < 3 {
            assert!(matches!(answer, Ended::Retrying { .. }), "{answer:?}");
            assert_eq!(view.state, JobState::Pending);
            bench.requeue(job).await;
        } else {
            assert_eq!(answer, Ended::Terminal(JobState::Failed));
            assert_eq!(view.state, JobState::Failed);
        }
    }
    let how: Vec<String> = harness.history(job).await.into_iter().map(|lease| lease.how).collect();
    assert_eq!(how, ["retrying", "retrying", "failed"]);
}

/// Each kind has its own number of tries.
pub async fn failures_are_counted_by_kind(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench
        .submit(|job| {
            job.retry.max_user = Some(2);
            job.retry.max_timeout = Some(2);
        })
        .await;
    let mut answers = Vec::new();
    for kind in [FailureKind::User, FailureKind::System, FailureKind::Timeout, FailureKind::System] {
        let grant = bench.claim(job).await;
        answers.push(bench.end(&grant, fail(kind)).await);
        bench.requeue(job).await;
    }
    assert!(answers.iter().all(|answer| matches!(answer, Ended::Retrying { .. })), "{answers:?}");
    assert_eq!(bench.view(job).await.failures, [1, 2, 1]);
    let grant = bench.claim(job).await;
    assert_eq!(bench.end(&grant, fail(FailureKind::User)).await, Ended::Terminal(JobState::Failed));
    assert_eq!(bench.view(job).await.failures, [2, 2, 1]);
}

/// The job's own policy wins; where it is silent, the worker's settings count.
pub async fn the_job_s_policy_comes_before_the_worker_s(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let worker = |max_system| End::Fail {
        failure: Failure::new(FailureKind::System, "engine_lost", "gone"),
        defaults: RetryPolicy { max_system: Some(max_system), ..RetryPolicy::default() },
    };
    let own = bench.claim(bench.submit(|job| job.retry.max_system = Some(1)).await).await;
    assert_eq!(bench.end(&own, worker(5)).await, Ended::Terminal(JobState::Failed));
    let silent = bench.held().await;
    assert!(matches!(bench.end(&silent, worker(2)).await, Ended::Retrying { .. }));
    let silent = bench.held().await;
    assert_eq!(bench.end(&silent, worker(1)).await, Ended::Terminal(JobState::Failed));
}

/// The back-off lies between nothing and base × 2^(failures − 1), and never beyond the cap.
pub async fn the_back_off_keeps_to_its_policy(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench
        .submit(|job| {
            job.retry.max_user = Some(100);
            job.retry.backoff_ms = Some(100_000);
            job.retry.backoff_cap_ms = Some(400_000);
        })
        .await;
    for longest in [100, 200, 400, 400] {
        let grant = bench.claim(job).await;
        let Ended::Retrying { at } = bench.end(&grant, fail(FailureKind::User)).await else {
            panic!("a try is left")
        };
        let view = bench.view(job).await;
        assert_eq!(view.due_at.map(|at| at.timestamp_micros()), Some(at.timestamp_micros()));
        let next = bench.store.dispatch(&bench.namespace, 10).await.expect("the store answers").next_due;
        if let Some(next) = next {
            assert!(next <= Duration::from_secs(longest), "{next:?} after {longest}");
        }
        if bench.state(job).await == JobState::Pending {
            bench.requeue(job).await;
        }
    }
}

pub async fn without_a_back_off_a_retry_is_due_at_once(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench
        .submit(|job| {
            job.retry.max_user = Some(2);
            job.retry.backoff_ms = Some(0);
        })
        .await;
    let grant = bench.claim(job).await;
    assert!(matches!(bench.end(&grant, fail(FailureKind::User)).await, Ended::Retrying { .. }));
    bench.dispatch().await;
    assert_eq!(bench.claim(job).await.attempt, 2);
}

/// A drained job is given back as if it had never been taken: no attempt and no failure is counted.
pub async fn a_release_counts_nothing(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let job = grant.authority.job;
    assert_eq!(bench.end(&grant, release()).await, Ended::Released);
    let view = bench.view(job).await;
    assert!(!view.state.is_terminal());
    assert_eq!((view.failures, view.attempt), ([0; 3], 1));
    assert_eq!(harness.history(job).await[0].how, "released");
    bench.requeue(job).await;
    let again = bench.claim(job).await;
    assert_eq!(again.attempt, 1, "the next claim goes on with the same attempt");
    assert!(again.authority.epoch > grant.authority.epoch);
    bench.end(&again, fail(FailureKind::System)).await;
    bench.requeue(job).await;
    assert_eq!(bench.claim(job).await.attempt, 2, "a failure does count");
}

pub async fn a_delayed_release_waits(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let end = End::Release { delay: Duration::from_mins(10), reason: "startup" };
    assert_eq!(bench.end(&grant, end).await, Ended::Released);
    assert_eq!(bench.dispatch().await, 0);
    assert_eq!(bench.state(grant.authority.job).await, JobState::Pending);
    bench.requeue(grant.authority.job).await;
}

/// A reschedule may change the route and the payload, and is no new attempt.
pub async fn a_reschedule_goes_on_elsewhere(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let job = grant.authority.job;
    let end = End::Reschedule {
        route: Some(Route::handler("elsewhere")),
        delay: Duration::ZERO,
        payload: Some(PayloadUpdate { value: r#"{"step": 2}"#.to_owned(), expected_revision: 1 }),
        wake: Vec::new(),
        publish: None,
    };
    assert_eq!(bench.end(&grant, end).await, Ended::Rescheduled);
    let view = bench.view(job).await;
    assert_eq!(view.route, ("elsewhere".to_owned(), String::new()));
    assert_eq!((view.payload_revision, view.failures), (2, [0; 3]));
    assert_eq!(harness.history(job).await[0].how, "rescheduled");
    bench.requeue(job).await;
    assert!(bench.claim_open(10).await.is_empty(), "the old route does not find it any more");
    let again = bench.claim(job).await;
    assert_eq!((again.attempt, &again.route), (1, &Route::handler("elsewhere")));
    assert_eq!(&*again.payload, r#"{"step": 2}"#);
}

/// A payload that changed meanwhile refuses the reschedule, and the lease goes on.
pub async fn a_payload_conflict_changes_nothing(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let before = bench.picture(grant.authority.job).await;
    let end = End::Reschedule {
        route: Some(Route::handler("elsewhere")),
        delay: Duration::ZERO,
        payload: Some(PayloadUpdate { value: "2".to_owned(), expected_revision: 7 }),
        wake: Vec::new(),
        publish: None,
    };
    let command = CommandId::generate();
    let answer = bench.end_as(&grant.authority, command, &end).await;
    assert_eq!(answer, Ended::PayloadConflict { current_revision: 1 });
    assert_eq!(bench.picture(grant.authority.job).await, before);
    assert!(matches!(bench.renew(&grant.authority).await, Renewal::Held { .. }));
    assert_eq!(bench.end_as(&grant.authority, command, &reschedule()).await, Ended::Rescheduled);
}

/// L10: after a lost answer the same command is told what it did; nothing happens twice.
pub async fn a_repeated_end_reports_the_recorded_outcome(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (name, end) in every_end() {
        let grant = bench.held().await;
        let job = grant.authority.job;
        let command = CommandId::generate();
        let first = bench.end_as(&grant.authority, command, &end).await;
        assert_ne!(first, Ended::NotLive, "{name}");
        let before = bench.picture(job).await;
        assert_eq!(bench.end_as(&grant.authority, command, &end).await, first, "{name}");
        assert_eq!(bench.picture(job).await, before, "{name}");
        if !bench.state(job).await.is_terminal() {
            // SH-07 (b): also after somebody else has taken the job on.
            bench.requeue(job).await;
            let second = bench.claim(job).await;
            assert_eq!(bench.end_as(&grant.authority, command, &end).await, first, "{name}");
            assert!(matches!(bench.renew(&second.authority).await, Renewal::Held { .. }), "{name}");
        }
    }
}

/// L2: only the command that ended the lease is told; any other finds it not live.
pub async fn another_command_finds_an_ended_lease_not_live(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (name, end) in every_end() {
        let grant = bench.held().await;
        let command = CommandId::generate();
        bench.end_as(&grant.authority, command, &end).await;
        let before = bench.picture(grant.authority.job).await;
        assert_eq!(bench.end(&grant, end.clone()).await, Ended::NotLive, "{name}");
        let mut other_process = grant.authority.clone();
        other_process.owner = claimant(&bench.namespace, bench.owner.worker.as_str());
        assert_eq!(bench.end_as(&other_process, command, &end).await, Ended::NotLive, "{name}");
        assert_eq!(bench.picture(grant.authority.job).await, before, "{name}");
    }
}

/// L2: an expired lease ends nothing, and its job is still there for recovery.
pub async fn an_expired_lease_cannot_end_the_job(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (name, end) in every_end() {
        let grant = bench.held().await;
        harness.expire(grant.authority.job).await;
        let before = bench.picture(grant.authority.job).await;
        assert_eq!(bench.end(&grant, end).await, Ended::NotLive, "{name}");
        assert_eq!(bench.picture(grant.authority.job).await, before, "{name}");
    }
}

/// L6: a terminal state never changes again.
pub async fn a_terminal_state_is_final(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (first, state) in [
        (complete(), JobState::Completed),
        (fail(FailureKind::User), JobState::Failed),
        (End::Cancel, JobState::Canceled),
    ] {
        let grant = bench.held().await;
        let job = grant.authority.job;
        bench.end(&grant, first).await;
        let before = bench.picture(job).await;
        for (name, end) in every_end() {
            assert_eq!(bench.end(&grant, end).await, Ended::NotLive, "{name}");
        }
        assert_eq!(bench.renew(&grant.authority).await, Renewal::NotLive);
        let answer = harness.request_cancel(&bench.namespace, job, Duration::ZERO).await;
        assert_eq!(answer, CancelAnswer::AlreadyEnded(state));
        bench.dispatch().await;
        assert_eq!(bench.picture(job).await, before);
    }
}

/// The longest texts that a failure can carry, with NUL and multi-byte characters, are stored.
pub async fn any_failure_text_is_stored(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let message = format!("\0{}\u{1F980}{}", "é".repeat(2040), "x".repeat(100));
    let failure = Failure::new(FailureKind::User, "c\0de", message);
    let end = End::Fail { failure: failure.clone(), defaults: RetryPolicy::default() };
    assert_eq!(bench.end(&grant, end).await, Ended::Terminal(JobState::Failed));
    assert_eq!(harness.history(grant.authority.job).await[0].failure, Some(failure));
}
