//! The overlap policy: how many runs of one workflow may be RUNNING, decided by slots and not by counting.

use std::time::Duration;

use futures_util::future::join_all;

use super::bench::{Bench, complete, every_end, fail, release};
use crate::{
    domain::{FailureKind, JobDefinition, JobId, JobState},
    ports::ClaimRejection,
    testing::harness::{StoreHarness, TestWorkflow},
};

async fn workflow(bench: &Bench<'_>, limit: Option<i32>, serial: bool) {
    let definition = JobDefinition::Handler { name: "work".to_owned() };
    let workflow = TestWorkflow {
        overlap_limit: limit,
        overlap_serial: serial,
        ..TestWorkflow::new(&bench.namespace, "etl", definition)
    };
    bench.harness.define_workflow(&workflow).await;
}

async fn slots(bench: &Bench<'_>) -> Vec<(i32, JobId)> {
    bench.harness.workflow_slots(&bench.namespace, "etl").await
}

/// The jobs that hold a slot, each slot within the limit of two.
async fn running(bench: &Bench<'_>) -> Vec<JobId> {
    let slots = slots(bench).await;
    assert!(slots.iter().all(|(slot, _)| (1..=2).contains(slot)), "{slots:?}");
    let mut jobs: Vec<JobId> = slots.into_iter().map(|(_, job)| job).collect();
    jobs.sort_unstable();
    jobs
}

async fn assert_blocked(bench: &Bench<'_>, job: JobId, blocker: JobId) {
    let rejection = bench.try_claim(job).await.err();
    assert_eq!(rejection, Some(ClaimRejection::BlockedBy { job: blocker }));
    let view = bench.view(job).await;
    assert_eq!((view.state, view.blocked_by), (JobState::Pending, Some(blocker)));
    let next = bench.store.dispatch(&bench.namespace, 0).await.expect("the store answers").next_due;
    let next = next.expect("a blocked job has a next look");
    assert!(next <= Duration::from_secs(5), "{next:?}");
}

pub async fn without_a_policy_runs_overlap(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, None, false).await;
    for _ in 0..3 {
        bench.run_of("etl").await;
    }
    assert_eq!(bench.claim_open(10).await.len(), 3);
    assert!(slots(&bench).await.is_empty());
}

/// Serial: the second waits for the first, and is due the moment that it ends.
pub async fn serial_runs_go_one_after_the_other(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, None, true).await;
    let (first, second) = (bench.run_of("etl").await, bench.run_of("etl").await);
    let grant = bench.claim(first).await;
    assert_eq!(slots(&bench).await, [(1, first)]);
    assert_blocked(&bench, second, first).await;
    bench.end(&grant, complete()).await;
    assert!(slots(&bench).await.is_empty());
    assert_eq!(bench.dispatch().await, 1, "the end makes it due at once");
    bench.claim(second).await;
}

/// Serial: a later run does not overtake an earlier one that has not begun, or waits for its next try.
pub async fn serial_runs_do_not_overtake(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, None, true).await;
    let (first, second) = (bench.run_of("etl").await, bench.run_of("etl").await);
    assert_blocked(&bench, second, first).await;
    let grant = bench.claim(first).await;
    bench.end(&grant, fail(FailureKind::System)).await;
    bench.dispatch().await;
    if bench.state(second).await == JobState::Pending {
        bench.requeue(second).await;
    }
    assert_blocked(&bench, second, first).await;
    harness.request_cancel(&bench.namespace, first, Duration::ZERO).await;
    bench.requeue(second).await;
    bench.claim(second).await;
}

/// allow(n): n at once, the next one waits for any of them.
pub async fn a_limit_allows_that_many_at_once(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, Some(2), false).await;
    let (a, b, c) = (bench.run_of("etl").await, bench.run_of("etl").await, bench.run_of("etl").await);
    bench.claim(a).await;
    let held = bench.claim(b).await;
    assert_eq!(running(&bench).await, [a, b]);
    let Some(ClaimRejection::BlockedBy { job: blocker }) = bench.try_claim(c).await.err() else {
        panic!("the third must wait")
    };
    assert!(blocker == a || blocker == b, "{blocker}");
    bench.end(&held, complete()).await;
    assert_eq!(bench.dispatch().await, 1, "the end makes it due at once");
    bench.claim(c).await;
    assert_eq!(running(&bench).await, [a, c]);
}

/// An open claim never grants past the policy, leaves the blocked one waiting and takes the others.
pub async fn an_open_claim_keeps_to_the_policy(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, Some(1), false).await;
    let (first, second) = (bench.run_of("etl").await, bench.run_of("etl").await);
    let plain = bench.queued().await;
    let mut taken = Vec::new();
    // A claim may come back short when it meets a blocked job, and may look past one for a moment.
    let mut view = bench.view(second).await;
    for _ in 0..100 {
        taken.extend(bench.claim_open(10).await.into_iter().map(|grant| grant.authority.job));
        view = bench.view(second).await;
        if taken.len() == 2 && view.state == JobState::Pending {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    taken.sort_unstable();
    assert_eq!(taken, [first, plain]);
    assert_eq!((view.state, view.blocked_by), (JobState::Pending, Some(first)));
}

/// Two claims of different runs, each of which sees nobody running, cannot both win.
pub async fn concurrent_claims_keep_to_the_policy(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, Some(2), false).await;
    let mut messages = Vec::new();
    for _ in 0..10 {
        let job = bench.run_of("etl").await;
        messages.push(bench.message(job).await);
    }
    let claims = messages.into_iter().map(|message| bench.claim_message(message));
    let answers = join_all(claims).await;
    let granted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(granted <= 2, "{granted} runs at once");
    for rejection in answers.into_iter().filter_map(Result::err) {
        assert!(
            matches!(rejection, ClaimRejection::BlockedBy { .. } | ClaimRejection::Contended),
            "{rejection}"
        );
    }
    assert_eq!(slots(&bench).await.len(), granted);
}

/// Whichever way a run ends, the next may begin.
pub async fn every_end_frees_the_workflow_s_slot(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, Some(1), false).await;
    for (name, end) in every_end() {
        let grant = bench.claim(bench.run_of("etl").await).await;
        let next = bench.run_of("etl").await;
        assert_blocked(&bench, next, grant.authority.job).await;
        bench.end(&grant, end).await;
        assert!(slots(&bench).await.is_empty(), "{name}");
        bench.dispatch().await;
        let next = bench.claim(next).await;
        bench.end(&next, complete()).await;
        // What was given back must not stand in the way of the next round.
        harness.request_cancel(&bench.namespace, grant.authority.job, Duration::ZERO).await;
    }
}

/// An expired lease still counts as running until somebody has cleaned up.
pub async fn an_expired_run_still_blocks(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, Some(1), false).await;
    let grant = bench.claim(bench.run_of("etl").await).await;
    harness.expire(grant.authority.job).await;
    let next = bench.run_of("etl").await;
    assert_blocked(&bench, next, grant.authority.job).await;
}

/// A released serial run keeps its turn.
pub async fn a_released_serial_run_keeps_its_turn(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, None, true).await;
    let (first, second) = (bench.run_of("etl").await, bench.run_of("etl").await);
    let grant = bench.claim(first).await;
    bench.end(&grant, release()).await;
    assert_blocked(&bench, second, first).await;
}
