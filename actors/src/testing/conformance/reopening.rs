//! Reopening: a person opens a recipe that ended again. Its log keeps everything, says what counts as unfinished, and
//! takes every (path, sort) once more.

use std::time::Duration;

use super::{
    bench::{Bench, complete},
    recording::success,
    waking::waits_for,
};
use crate::{
    domain::{CommandId, Failure, FailureKind, JobId, JobState, NewJob, Route},
    ports::{
        End, Grant, OpenClaim,
        recipe::{
            EventBody, Hint, MAX_LOG_EVENTS, NewEvent, Publication, Recorded, ReopenAnswer, Reopening, Wake,
        },
    },
    testing::harness::{StoreHarness, TestWorkflow, WorkflowChange},
};

impl Bench<'_> {
    async fn reopen(&self, job: JobId, reopening: &Reopening) -> ReopenAnswer {
        self.recipes.reopen(&self.namespace, job, reopening).await.expect("the store answers")
    }

    async fn fails_for_good(&self, grant: &Grant) {
        let failure = Failure::new(FailureKind::User, "boom", "it did not work");
        self.end(grant, End::FailForGood { failure }).await;
    }

    /// A child under a key of its own.
    async fn child_of(&self, grant: &Grant, path: &str, cancel_with_parent: bool) -> JobId {
        let key = CommandId::generate().to_string();
        let job = Box::new(NewJob { idempotency_key: Some(key), ..self.new_job() });
        let answer = self.record(grant, path, &NewEvent::StartChild { job, cancel_with_parent }).await;
        let Recorded::Recorded(event) = answer else { panic!("{answer:?}") };
        let EventBody::ChildStarted { job } = event.body else { panic!("{event:?}") };
        job
    }
}

fn all(path: &str, again: &[(i64, i64)], events: i64) -> Reopening {
    Reopening { path: path.to_owned(), again: again.to_vec(), events }
}

const QUEUED: ReopenAnswer = ReopenAnswer::Reopened { state: JobState::Queued };

/// The events stay; the paths take a record each once more; attempt, epoch and counters are those of a retry.
pub async fn an_ended_recipe_is_reopened_and_its_log_keeps_everything(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    bench.record(&grant, "a", &success("op", "1")).await;
    bench.record(&grant, "b", &success("op", "2")).await;
    bench.fails_for_good(&grant).await;
    assert_eq!(bench.reopen(job, &all("b", &[(2, 2)], 2)).await, QUEUED);
    let view = bench.view(job).await;
    assert_eq!((view.state, view.failures, view.attempt), (JobState::Queued, [0, 0, 0], 1));
    assert_eq!(view.failure_code, None);
    let events = bench.events(&grant).await;
    let Some(reopened) = events.get(2) else { panic!("{events:?}") };
    assert_eq!((events.len(), reopened.ordinal, reopened.path.as_str()), (3, 3, "b"));
    assert_eq!(reopened.body, EventBody::Reopened { again: vec![(2, 2)] });
    assert_eq!((reopened.worker.as_ref(), reopened.epoch), (None, grant.authority.epoch));
    // Under the old lease nothing is recorded any more, under a new one everything once more.
    assert_eq!(bench.record(&grant, "b", &success("op", "3")).await, Recorded::NotLive);
    let again = bench.claim(job).await;
    assert_eq!(bench.view(job).await.attempt, 2);
    let first = bench.record(&again, "b", &success("op", "3")).await;
    assert!(matches!(&first, Recorded::Recorded(event) if event.ordinal == 4), "{first:?}");
    assert_eq!(bench.record(&again, "b", &success("op", "3")).await, first);
    assert!(matches!(bench.record(&again, "b", &success("op", "2")).await, Recorded::Conflict(_)));
    bench.fails_for_good(&again).await;
    assert_eq!(bench.reopen(job, &all("a", &[(1, 1), (4, 4)], 4)).await, QUEUED);
    assert_eq!(bench.recipe(&grant).await.events, 5);
    bench.end(&bench.claim(job).await, complete()).await;
}

/// What goes on, or came to a good end, is left alone; so is what does not exist.
pub async fn only_what_failed_or_was_cancelled_is_reopened(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued_recipe().await;
    let nothing = Reopening::default();
    let stands = |state| ReopenAnswer::NotRetryable { state };
    assert_eq!(bench.reopen(job, &nothing).await, stands(JobState::Queued));
    let grant = bench.claim(job).await;
    assert_eq!(bench.reopen(job, &nothing).await, stands(JobState::Running));
    bench.end(&grant, waits_for(vec![Wake::Signal("go".to_owned())])).await;
    assert_eq!(bench.reopen(job, &nothing).await, stands(JobState::Pending));
    harness.request_cancel(&bench.namespace, job, Duration::ZERO).await;
    assert_eq!(bench.reopen(job, &nothing).await, QUEUED);
    bench.end(&bench.claim(job).await, complete()).await;
    assert_eq!(bench.reopen(job, &all("", &[], 1)).await, stands(JobState::Completed));
    assert_eq!(bench.events(&grant).await.len(), 1);
    let handler = bench.held().await;
    bench.fails_for_good(&handler).await;
    assert_eq!(bench.reopen(handler.authority.job, &nothing).await, ReopenAnswer::NotFound);
    assert_eq!(bench.reopen(JobId(1_000_000), &nothing).await, ReopenAnswer::NotFound);
}

/// Whoever read another log knows nothing of what counts as unfinished.
pub async fn a_log_that_changed_meanwhile_is_not_reopened(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    bench.record(&grant, "a", &success("op", "1")).await;
    bench.fails_for_good(&grant).await;
    for events in [0, 2] {
        assert_eq!(bench.reopen(job, &all("a", &[(1, 1)], events)).await, ReopenAnswer::LogChanged);
    }
    assert_eq!((bench.state(job).await, bench.events(&grant).await.len()), (JobState::Failed, 1));
}

/// A timer and a child from before the reopening are fired, and seen to end, after it.
pub async fn what_was_begun_before_a_reopening_goes_on_after_it(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    bench.record(&grant, "nap", &NewEvent::TimerSet { after: Duration::ZERO }).await;
    bench.record(&grant, "limit", &NewEvent::TimerSet { after: Duration::ZERO }).await;
    let child = bench.child_of(&grant, "c", false).await;
    bench.fails_for_good(&grant).await;
    assert_eq!(bench.reopen(job, &all("", &[], 3)).await, QUEUED);
    bench.end(&bench.claim(child).await, complete()).await;
    let again = bench.claim(job).await;
    // Set anew, the new one counts.
    bench.record(&again, "limit", &NewEvent::TimerSet { after: Duration::from_hours(1) }).await;
    assert_eq!(bench.record(&again, "limit", &NewEvent::TimerFired).await, Recorded::NotYet);
    let fired = bench.record(&again, "nap", &NewEvent::TimerFired).await;
    assert!(matches!(&fired, Recorded::Recorded(event) if event.body == EventBody::TimerFired), "{fired:?}");
    let ended = bench.record(&again, "c", &NewEvent::ChildEnded).await;
    let Recorded::Recorded(event) = ended else { panic!("{ended:?}") };
    let seen =
        matches!(event.body, EventBody::ChildEnded { job, state: JobState::Completed, .. } if job == child);
    assert!(seen, "{event:?}");
}

/// A child that was cancelled with its parent will not come to a good end: it is named as unfinished, and another is
/// started in its place. One that goes on, or completed, is not.
pub async fn a_cancelled_child_counts_as_unfinished(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    let waiting = bench.child_of(&grant, "a", true).await;
    let running = bench.child_of(&grant, "b", true).await;
    bench.child_of(&grant, "c", false).await;
    let done = bench.child_of(&grant, "d", true).await;
    bench.claim(running).await;
    bench.end(&bench.claim(done).await, complete()).await;
    bench.fails_for_good(&grant).await;
    assert_eq!(bench.state(waiting).await, JobState::Canceled);
    assert_eq!(bench.reopen(job, &all("", &[], 4)).await, QUEUED);
    let events = bench.events(&grant).await;
    assert_eq!(events[4].body, EventBody::Reopened { again: vec![(1, 1), (2, 2)] });
    let again = bench.claim(job).await;
    let other = bench.child_of(&again, "a", true).await;
    assert_ne!(other, waiting);
    assert_eq!(bench.record(&again, "a", &NewEvent::ChildEnded).await, Recorded::NotYet, "the new one");
    bench.end(&bench.claim(other).await, complete()).await;
    let Recorded::Recorded(event) = bench.record(&again, "a", &NewEvent::ChildEnded).await else { panic!() };
    assert!(matches!(event.body, EventBody::ChildEnded { job, .. } if job == other), "{event:?}");
}

/// What was published for the task that the job stood at says nothing about where it begins again.
pub async fn a_reopening_makes_an_exact_hint_stale(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    let hint = Hint { cpu_millis: Some(64_000), ..Hint::default() };
    let publish = Some(Publication { hint, handoff: true, declined_by: None });
    let route = Some(Route::recipe("recipe", "op"));
    let end = End::Reschedule { route, delay: Duration::ZERO, payload: None, wake: Vec::new(), publish };
    bench.end(&grant, end).await;
    harness.request_cancel(&bench.namespace, job, Duration::ZERO).await;
    assert_eq!(bench.reopen(job, &Reopening::default()).await, QUEUED);
    assert_eq!(bench.view(job).await.route, ("recipe".to_owned(), String::new()), "it begins at the top");
    let claim = OpenClaim { routes: vec![Route::recipe("recipe", "")].into(), ..bench.open(1) };
    assert!(bench.store.claim(&claim).await.expect("the store answers").grants.is_empty());
    harness.age_queued(job, Duration::from_secs(6)).await;
    let claim = OpenClaim { command: CommandId::generate(), ..claim };
    assert_eq!(bench.store.claim(&claim).await.expect("the store answers").grants.len(), 1);
}

/// A log without room for the event that says so cannot go on anyway.
pub async fn a_full_log_is_not_reopened(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    bench.fails_for_good(&grant).await;
    harness.pretend_log(job, MAX_LOG_EVENTS, 0).await;
    assert_eq!(bench.reopen(job, &all("", &[], MAX_LOG_EVENTS)).await, ReopenAnswer::Full);
    assert_eq!(bench.state(job).await, JobState::Failed);
}

/// Of several people one reopens it.
pub async fn concurrent_reopenings_are_one(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    bench.fails_for_good(&grant).await;
    let nothing = Reopening::default();
    let answers = futures_util::future::join_all((0..6).map(|_| bench.reopen(job, &nothing))).await;
    assert_eq!(answers.iter().filter(|answer| **answer == QUEUED).count(), 1, "{answers:?}");
    assert_eq!(bench.events(&grant).await.len(), 1);
}

/// As every retry: a paused workflow holds the run, a terminated one takes it no more.
pub async fn a_terminated_workflow_s_run_stays_ended_and_a_paused_one_s_is_held(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    harness.define_workflow(&TestWorkflow::new(&bench.namespace, "pipeline", super::bench::recipe())).await;
    let job = bench.run_of("pipeline").await;
    bench.fails_for_good(&bench.claim(job).await).await;
    harness.change_workflow(&bench.namespace, "pipeline", WorkflowChange::Pause).await;
    let held = ReopenAnswer::Reopened { state: JobState::Pending };
    assert_eq!(bench.reopen(job, &Reopening::default()).await, held);
    harness.change_workflow(&bench.namespace, "pipeline", WorkflowChange::Resume).await;
    let grant = bench.claim(job).await;
    assert_eq!(bench.view(job).await.generation, 2);
    bench.fails_for_good(&grant).await;
    harness.change_workflow(&bench.namespace, "pipeline", WorkflowChange::Terminate).await;
    assert_eq!(bench.reopen(job, &all("", &[], 1)).await, ReopenAnswer::WorkflowTerminated);
}
