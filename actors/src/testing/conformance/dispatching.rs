//! Dispatch: due PENDING jobs become QUEUED, each once, and the answer tells when to look again.

use std::{collections::HashSet, time::Duration};

use chrono::{TimeDelta, Utc};
use futures_util::future::join_all;

use super::bench::{Bench, release};
use crate::{
    domain::{JobId, JobState, Namespace},
    testing::harness::StoreHarness,
};

async fn far_off(bench: &Bench<'_>) -> JobId {
    bench.submit(|job| job.run_at = Some(Utc::now() + TimeDelta::days(40_000))).await
}

/// The hot path: what is due when it is submitted needs no dispatcher.
pub async fn a_job_due_at_submit_is_queued_at_once(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let view = bench.view(bench.queued().await).await;
    assert_eq!((view.state, view.dispatch_attempt), (JobState::Queued, 1));
    let early = bench.submit(|job| job.run_at = Some(chrono::DateTime::UNIX_EPOCH)).await;
    assert_eq!(bench.state(early).await, JobState::Queued);
}

pub async fn only_due_jobs_are_dispatched(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (due, later) = (far_off(&bench).await, far_off(&bench).await);
    assert_eq!(bench.dispatch().await, 0);
    harness.make_due(due).await;
    assert_eq!(bench.dispatch().await, 1);
    let view = bench.view(due).await;
    assert_eq!((view.state, view.dispatch_attempt), (JobState::Queued, 1));
    assert_eq!(bench.state(later).await, JobState::Pending);
    assert_eq!(bench.claim(due).await.attempt, 1);
}

/// Each time a job becomes QUEUED is a dispatch attempt of its own.
pub async fn each_dispatch_is_counted(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    for attempt in 1..=3 {
        let grant = bench.claim(job).await;
        assert_eq!(grant.dispatch_attempt, attempt);
        bench.end(&grant, release()).await;
        bench.requeue(job).await;
    }
}

/// The answer says when to come back: never, in a while, or at once.
pub async fn the_answer_tells_when_to_look_again(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let ask = |limit| async move {
        harness.store().dispatch(&Namespace::default(), limit).await.expect("the store answers")
    };
    assert_eq!(ask(10).await.next_due, None, "nothing waits");
    let grant = bench.held().await;
    let end = crate::ports::End::Release { delay: Duration::from_secs(100), reason: "startup" };
    bench.end(&grant, end).await;
    let next = ask(10).await.next_due.expect("one job waits");
    assert!(next > Duration::from_secs(80) && next <= Duration::from_secs(100), "{next:?}");
    for _ in 0..2 {
        let job = far_off(&bench).await;
        harness.make_due(job).await;
    }
    let answer = ask(1).await;
    assert_eq!((answer.moved, answer.next_due), (1, Some(Duration::ZERO)), "another one is due now");
    assert_eq!(ask(1).await.moved, 1);
    assert_eq!(ask(1).await.moved, 0);
}

pub async fn a_dispatch_keeps_to_its_namespace(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = far_off(&bench).await;
    harness.make_due(job).await;
    let elsewhere = Namespace::new("elsewhere").expect("a valid name");
    let answer = bench.store.dispatch(&elsewhere, 10).await.expect("the store answers");
    assert_eq!((answer.moved, answer.next_due), (0, None));
    assert_eq!(bench.state(job).await, JobState::Pending);
}

/// CL-11: many dispatchers at once; no job twice under one dispatch attempt, none left behind.
pub async fn concurrent_dispatchers_share_the_work(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let mut jobs = HashSet::new();
    for _ in 0..40 {
        let job = far_off(&bench).await;
        harness.make_due(job).await;
        jobs.insert(job);
    }
    let mut moved = 0;
    for _ in 0..20 {
        let store = &bench.store;
        let round = join_all((0..4).map(|_| store.dispatch(&bench.namespace, 7))).await;
        moved += round.into_iter().map(|answer| answer.expect("the store answers").moved).sum::<u32>();
        if moved >= 40 {
            break;
        }
    }
    assert_eq!(moved, 40);
    for job in jobs {
        let view = bench.view(job).await;
        assert_eq!((view.state, view.dispatch_attempt), (JobState::Queued, 1));
    }
}
