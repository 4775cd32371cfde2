//! Generations: a workflow that moves on leaves what runs alone, and ends what waits.

use super::bench::{Bench, complete, fail, release, reschedule};
use crate::{
    domain::{FailureKind, JobDefinition, JobId, JobState, Route},
    ports::{ClaimRejection, End, Ended, OpenClaim, Renewal, recipe::Wake},
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

/// An edit, a pause and a terminate each end what waits under the older generation.
pub async fn a_raised_generation_ends_what_waits(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    for raise in [WorkflowChange::Edit, WorkflowChange::Pause, WorkflowChange::Terminate] {
        let queued = bench.run_of("etl").await;
        let retrying = bench.claim(bench.run_of("etl").await).await;
        bench.end(&retrying, fail(FailureKind::System)).await;
        let message = bench.message(queued).await;
        change(&bench, raise).await;
        assert_superseded(&bench, queued).await;
        assert_superseded(&bench, retrying.authority.job).await;
        let rejection = bench.claim_message(message).await.err();
        assert_eq!(rejection, Some(ClaimRejection::AlreadyEnded { state: JobState::Canceled }));
        if raise == WorkflowChange::Pause {
            change(&bench, WorkflowChange::Resume).await;
        }
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

/// Pause holds what is submitted; resume stamps it with the generation in force and lets it go.
pub async fn a_pause_holds_new_runs_until_the_resume(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    workflow(&bench, "etl").await;
    change(&bench, WorkflowChange::Pause).await;
    let job = bench.run_of("etl").await;
    let view = bench.view(job).await;
    assert_eq!((view.state, view.due_at), (JobState::Pending, None));
    assert_eq!(bench.dispatch().await, 0);
    change(&bench, WorkflowChange::Edit).await;
    change(&bench, WorkflowChange::Resume).await;
    bench.dispatch().await;
    let grant = bench.claim(job).await;
    let running = bench.view(job).await;
    assert_eq!((grant.generation, running.state), (running.generation, JobState::Running));
    let newcomer = bench.claim(bench.run_of("etl").await).await;
    assert_eq!(newcomer.generation, grant.generation, "the generation in force");
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

/// An edit changes no recipe that was claimed once: it goes on, under the definition that it was submitted with. A pause
/// holds it, a terminate ends it.
pub async fn a_recipe_in_flight_goes_on_under_what_it_was_submitted_with(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let workflow = TestWorkflow::new(&bench.namespace, "pipeline", super::bench::recipe());
    harness.define_workflow(&workflow).await;
    let (first, waits, never) =
        (bench.run_of("pipeline").await, bench.run_of("pipeline").await, bench.run_of("pipeline").await);
    let grant = bench.claim(first).await;
    bench.end(&grant, reschedule()).await;
    bench.requeue(first).await;
    let sleeps = bench.claim(waits).await;
    bench.end(&sleeps, super::waking::waits_for(vec![Wake::Signal("go".to_owned())])).await;
    harness.change_workflow(&bench.namespace, "pipeline", WorkflowChange::Edit).await;
    assert_eq!(bench.state(first).await, JobState::Queued);
    assert_eq!(bench.state(waits).await, JobState::Pending);
    assert_eq!(bench.view(never).await.failure_code.as_deref(), Some("superseded"));
    let open = OpenClaim { routes: vec![Route::recipe("recipe", "")].into(), ..bench.open(10) };
    let grants = bench.store.claim(&open).await.expect("the store answers").grants;
    assert_eq!(grants.iter().map(|grant| grant.authority.job).collect::<Vec<_>>(), [first]);
    assert_eq!((&grants[0].definition, grants[0].generation), (&grant.definition, grant.generation));
    bench.end(&grants[0], reschedule()).await;
    bench.requeue(first).await;
    let again = bench.claim(first).await;
    bench.end(&again, reschedule()).await;
    bench.requeue(first).await;

    harness.change_workflow(&bench.namespace, "pipeline", WorkflowChange::Pause).await;
    assert_eq!((bench.state(first).await, bench.state(waits).await), (JobState::Pending, JobState::Pending));
    assert_eq!(bench.dispatch().await, 0, "a pause holds it");
    let signal = super::waking::signal("go", "1");
    bench.recipes.send_signal(&bench.namespace, waits, &signal).await.expect("the store answers");
    assert_eq!(bench.dispatch().await, 0, "whatever comes");
    harness.change_workflow(&bench.namespace, "pipeline", WorkflowChange::Resume).await;
    for job in [first, waits] {
        assert_eq!(bench.state(job).await, JobState::Queued);
        assert_eq!(bench.claim(job).await.generation, 1, "as it was submitted");
    }
}
