//! Generations: a workflow that moves on leaves what runs alone, and ends what waits.

use super::bench::{Bench, complete, fail, release, reschedule};
use crate::{
    domain::{FailureKind, JobDefinition, JobId, JobState},
    ports::{ClaimRejection, DispatchedJob, End, Ended, Renewal},
    testing::harness::{StoreHarness, TestWorkflow, WorkflowChange},
};

async fn workflow(bench: &Bench<'_>, name: &str) {
    let definition = JobDefinition::Handler { name: "work".to_owned() };
    bench.harness.define_workflow(&TestWorkflow::new(&bench.namespace, name, definition)).await;
}

async fn change(bench: &Bench<'_>, change: WorkflowChange) {
    bench.harness.change_workflow(&bench.namespace, "etl", change).await;
}

async fn assert_superseded(bench: &Bench<'_>, job: JobId) {
    let view = bench.view(job).await;
    assert_eq!((view.state, view.failure_code.as_deref()), (JobState::Canceled, Some("superseded")));
}

/// Each run carries the generation that it was scheduled under.
pub async fn a_run_carries_its_generation(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    let first = bench.claim(bench.run_of("etl").await).await;
    change(&bench, WorkflowChange::Edit).await;
    let second = bench.claim(bench.run_of("etl").await).await;
    assert_eq!((first.generation, second.generation), (1, 2));
    assert_eq!((first.workflow.as_str(), second.workflow.as_str()), ("etl", "etl"));
}

/// An edit and a terminate each end what waits under the older generation.
pub async fn a_raised_generation_ends_what_waits(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    for raise in [WorkflowChange::Edit, WorkflowChange::Terminate] {
        let queued = bench.run_of("etl").await;
        let retrying = bench.claim(bench.run_of("etl").await).await;
        bench.end(&retrying, fail(FailureKind::System)).await;
        let message = bench.message(queued).await;
        change(&bench, raise).await;
        assert_superseded(&bench, queued).await;
        assert_superseded(&bench, retrying.authority.job).await;
        let rejection = bench.claim_message(message).await.err();
        assert_eq!(rejection, Some(ClaimRejection::AlreadyEnded { state: JobState::Canceled }));
    }
}

/// What runs is not touched: it renews, and its outcome stands.
pub async fn a_raised_generation_leaves_what_runs(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    let done = bench.claim(bench.run_of("etl").await).await;
    let failed = bench.claim(bench.run_of("etl").await).await;
    for raise in [WorkflowChange::Edit, WorkflowChange::Terminate] {
        change(&bench, raise).await;
        let renewal = bench.renew(&done.authority).await;
        assert!(matches!(renewal, Renewal::Held { cancel_requested: false, .. }), "{renewal:?}");
    }
    assert_eq!(bench.end(&done, complete()).await, Ended::Terminal(JobState::Completed));
    let answer = bench.end(&failed, fail(FailureKind::User)).await;
    assert_eq!(answer, Ended::Terminal(JobState::Failed));
}

/// A superseded run that would wait again is canceled instead.
pub async fn a_superseded_run_does_not_wait_again(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    let mut runs = Vec::new();
    for end in [release(), reschedule(), fail(FailureKind::System)] {
        runs.push((bench.claim(bench.run_of("etl").await).await, end));
    }
    change(&bench, WorkflowChange::Edit).await;
    for (grant, end) in runs {
        let answer = bench.end(&grant, end).await;
        assert_eq!(answer, Ended::Terminal(JobState::Canceled));
        assert_superseded(&bench, grant.authority.job).await;
    }
}

/// Pause holds what waits and what is submitted; resume stamps it with the generation in force and lets it go.
pub async fn a_pause_holds_runs_until_the_resume(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    let queued = bench.run_of("etl").await;
    let message = bench.message(queued).await;
    let retrying = bench.claim(bench.run_of("etl").await).await;
    bench.end(&retrying, fail(FailureKind::System)).await;
    change(&bench, WorkflowChange::Pause).await;
    let submitted = bench.run_of("etl").await;
    let held = [queued, retrying.authority.job, submitted];
    for job in held {
        let view = bench.view(job).await;
        assert_eq!((view.state, view.due_at), (JobState::Pending, None));
    }
    assert_eq!(bench.dispatch().await, 0);
    let rejection = bench.claim_message(message).await.err();
    assert_eq!(rejection, Some(ClaimRejection::NotQueued { status: JobState::Pending }));
    change(&bench, WorkflowChange::Resume).await;
    for job in held {
        bench.requeue(job).await;
        let grant = bench.claim(job).await;
        assert_eq!(grant.generation, 2, "the generation in force");
    }
    assert_eq!(bench.claim(bench.run_of("etl").await).await.generation, 2);
}

/// A message from before the pause is stale after it, though its job lives on.
pub async fn a_pause_makes_older_messages_stale(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    let job = bench.run_of("etl").await;
    let old = bench.message(job).await;
    change(&bench, WorkflowChange::Pause).await;
    change(&bench, WorkflowChange::Resume).await;
    bench.requeue(job).await;
    let current = bench.message(job).await;
    let stale = DispatchedJob { dispatch_attempt: current.dispatch_attempt, ..old };
    let rejection = bench.claim_message(stale).await.err();
    assert_eq!(rejection, Some(ClaimRejection::StaleGeneration { current: 2 }));
    assert!(bench.claim_message(current).await.is_ok());
}

/// An edit of a paused workflow ends what it holds: that was scheduled under the old definition.
pub async fn an_edit_ends_held_runs(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    let job = bench.run_of("etl").await;
    change(&bench, WorkflowChange::Pause).await;
    change(&bench, WorkflowChange::Edit).await;
    assert_superseded(&bench, job).await;
}

/// A terminate also ends what a pause holds.
pub async fn a_terminate_ends_held_runs(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    change(&bench, WorkflowChange::Pause).await;
    let job = bench.run_of("etl").await;
    change(&bench, WorkflowChange::Terminate).await;
    assert_superseded(&bench, job).await;
}

/// An ad-hoc run belongs to no workflow that could move on, whatever another one does.
pub async fn other_runs_do_not_notice(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    workflow(&bench, "other").await;
    let (ad_hoc, other) = (bench.queued().await, bench.run_of("other").await);
    change(&bench, WorkflowChange::Terminate).await;
    for job in [ad_hoc, other] {
        let grant = bench.claim(job).await;
        assert_eq!(bench.end(&grant, End::Cancel).await, Ended::Terminal(JobState::Canceled));
    }
}
