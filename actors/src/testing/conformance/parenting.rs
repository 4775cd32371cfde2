//! Child jobs: submitted with the event that says so, waited for, and cancelled with a parent that fails.

use std::time::Duration;

use super::{
    bench::{Bench, complete, fail},
    waking::waits_for,
};
use crate::{
    domain::{CommandId, Failure, FailureKind, JobDefinition, JobId, JobState, NewJob},
    ports::{
        End, Ended, Grant,
        recipe::{EventBody, MAX_CHILD_DEPTH, NewEvent, Recorded, Wake},
    },
    testing::harness::{StoreHarness, TestWorkflow},
};

impl Bench<'_> {
    fn child(&self, key: &str) -> NewJob {
        NewJob { idempotency_key: Some(key.to_owned()), ..self.new_job() }
    }

    async fn start(&self, grant: &Grant, path: &str, job: NewJob, cancel_with_parent: bool) -> Recorded {
        self.record(grant, path, &NewEvent::StartChild { job: Box::new(job), cancel_with_parent }).await
    }

    async fn started(&self, grant: &Grant, path: &str, cancel_with_parent: bool) -> JobId {
        let key = CommandId::generate().to_string();
        let answer = self.start(grant, path, self.child(&key), cancel_with_parent).await;
        let Recorded::Recorded(event) = answer else { panic!("{answer:?}") };
        let EventBody::ChildStarted { job } = event.body else { panic!("{event:?}") };
        job
    }
}

/// A child is submitted once, whatever is repeated, and by a live lease only.
pub async fn a_child_is_started_once(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let first = bench.start(&grant, "c", bench.child("k"), true).await;
    let Recorded::Recorded(event) = &first else { panic!("{first:?}") };
    let EventBody::ChildStarted { job } = event.body else { panic!("{event:?}") };
    assert_eq!(bench.state(job).await, JobState::Queued);
    assert_eq!(bench.start(&grant, "c", bench.child("k"), true).await, first);
    assert_eq!(bench.claim_open(10).await.len(), 1, "there is one child");
    harness.expire(grant.authority.job).await;
    assert_eq!(bench.start(&grant, "d", bench.child("other"), true).await, Recorded::NotLive);
    assert!(bench.claim_open(10).await.is_empty(), "a fenced-out parent spawns nothing");
}

/// A child that breaks a rule is refused, and nothing is written.
pub async fn a_child_that_cannot_be_is_refused(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let mut nowhere = NewJob::of_workflow("nowhere");
    nowhere.namespace = bench.namespace.clone();
    let answer = bench.start(&grant, "c", nowhere, true).await;
    assert!(matches!(answer, Recorded::Refused { code: "workflow_not_found", .. }), "{answer:?}");
    bench.harness.submit(&bench.child("taken")).await;
    let other = NewJob { priority: 7, ..bench.child("taken") };
    let answer = bench.start(&grant, "c", other, true).await;
    assert!(matches!(answer, Recorded::Refused { code: "idempotency_conflict", .. }), "{answer:?}");
    assert!(bench.events(&grant).await.is_empty());
    assert!(matches!(bench.start(&grant, "c", bench.child("mine"), true).await, Recorded::Recorded(_)));
}

/// The end of a child, with its result or its failure, is an event; before it there is none.
pub async fn the_end_of_a_child_is_recorded(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let (good, bad) = (bench.started(&grant, "good", true).await, bench.started(&grant, "bad", true).await);
    assert_eq!(bench.record(&grant, "good", &NewEvent::ChildEnded).await, Recorded::NotYet);
    let nowhere = bench.record(&grant, "nowhere", &NewEvent::ChildEnded).await;
    assert!(matches!(nowhere, Recorded::Refused { code: "not_begun", .. }), "{nowhere:?}");
    let end = End::Complete { exit_code: None, output: Some(r#"{"n": 1.0}"#.to_owned()) };
    bench.end(&bench.claim(good).await, end).await;
    bench.end(&bench.claim(bad).await, fail(FailureKind::User)).await;
    let Recorded::Recorded(event) = bench.record(&grant, "good", &NewEvent::ChildEnded).await else {
        panic!()
    };
    let output = Some(r#"{"n": 1.0}"#.into());
    assert_eq!(
        event.body,
        EventBody::ChildEnded { job: good, state: JobState::Completed, output, failure: None }
    );
    let Recorded::Recorded(event) = bench.record(&grant, "bad", &NewEvent::ChildEnded).await else {
        panic!()
    };
    let failure = Some(Failure::new(FailureKind::User, "boom", "it did not work"));
    assert_eq!(
        event.body,
        EventBody::ChildEnded { job: bad, state: JobState::Failed, output: None, failure }
    );
}

/// Every end of a child wakes the parent that waits for it.
pub async fn every_end_of_a_child_wakes_its_parent(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for how in ["completed", "failed", "cancelled by its holder", "cancelled at once", "before"] {
        let grant = bench.held_recipe().await;
        let job = grant.authority.job;
        let child = bench.started(&grant, "c", true).await;
        if how == "before" {
            bench.end(&bench.claim(child).await, complete()).await;
        }
        bench.end(&grant, waits_for(vec![Wake::Child(child)])).await;
        match how {
            "completed" => {
                bench.end(&bench.claim(child).await, complete()).await;
            }
            "failed" => {
                bench.end(&bench.claim(child).await, fail(FailureKind::User)).await;
            }
            "cancelled by its holder" => {
                bench.end(&bench.claim(child).await, End::Cancel).await;
            }
            "cancelled at once" => {
                assert_eq!(bench.dispatch().await, 0, "{how}");
                harness.request_cancel(&bench.namespace, child, Duration::ZERO).await;
            }
            _ => {}
        }
        assert_eq!(bench.dispatch().await, 1, "{how}");
        let again = bench.claim(job).await;
        assert!(
            matches!(bench.record(&again, "c", &NewEvent::ChildEnded).await, Recorded::Recorded(_)),
            "{how}"
        );
    }
}

/// A child that ends while its parent is being put to sleep is never slept through.
pub async fn no_end_of_a_child_is_slept_through(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for _ in 0..10 {
        let grant = bench.held_recipe().await;
        let child = bench.started(&grant, "c", true).await;
        let held = bench.claim(child).await;
        let waits = bench.end(&grant, waits_for(vec![Wake::Child(child)]));
        let (ended, done) = tokio::join!(waits, bench.end(&held, complete()));
        assert_eq!((ended, done), (Ended::Rescheduled, Ended::Terminal(JobState::Completed)));
        assert_eq!(bench.dispatch().await, 1);
    }
}

/// A parent that ends without success takes its unfinished children along, and theirs, except those that may stay.
pub async fn children_are_cancelled_with_their_parent(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let waiting = bench.started(&grant, "a", true).await;
    let running = bench.started(&grant, "b", true).await;
    let stays = bench.started(&grant, "c", false).await;
    let done = bench.started(&grant, "d", true).await;
    let holder = bench.claim(running).await;
    bench.end(&bench.claim(done).await, complete()).await;
    let failure = Failure::new(FailureKind::User, "boom", "it did not work");
    let answer = bench.end(&grant, End::FailForGood { failure }).await;
    assert_eq!(answer, Ended::Terminal(JobState::Failed));
    assert_eq!(bench.state(waiting).await, JobState::Canceled);
    assert!(bench.view(running).await.cancel_requested);
    assert_eq!(bench.state(stays).await, JobState::Queued);
    assert_eq!(bench.state(done).await, JobState::Completed);
    bench.end(&holder, End::Cancel).await;
    let grant = bench.held_recipe().await;
    let child = bench.started(&grant, "a", true).await;
    bench.end(&grant, complete()).await;
    assert_eq!(bench.state(child).await, JobState::Queued, "a success leaves its children alone");
}

/// The same where nobody holds the parent.
pub async fn a_parent_that_is_cancelled_while_it_waits_takes_its_children_along(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let waiting = bench.started(&grant, "a", true).await;
    let running = bench.started(&grant, "b", true).await;
    let stays = bench.started(&grant, "c", false).await;
    let key = CommandId::generate().to_string();
    let below = NewJob { definition: Some(super::bench::recipe()), ..bench.child(&key) };
    let Recorded::Recorded(event) = bench.start(&grant, "d", below, true).await else { panic!() };
    let EventBody::ChildStarted { job: below } = event.body else { panic!("{event:?}") };
    bench.claim(running).await;
    let held = bench.claim(below).await;
    let grandchild = bench.started(&held, "a", true).await;
    bench.end(&held, waits_for(vec![Wake::Child(grandchild)])).await;
    bench.end(&grant, waits_for(vec![Wake::Child(running)])).await;
    harness.request_cancel(&bench.namespace, grant.authority.job, Duration::ZERO).await;
    for job in [grant.authority.job, waiting, below, grandchild] {
        assert_eq!(bench.state(job).await, JobState::Canceled, "{job}");
    }
    assert!(bench.view(running).await.cancel_requested);
    assert_eq!(bench.state(stays).await, JobState::Queued);
}

/// Whichever comes first, both end, and neither call fails.
pub async fn the_cancel_of_a_parent_meets_the_end_of_its_child(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for _ in 0..50 {
        let grant = bench.held_recipe().await;
        let parent = grant.authority.job;
        let child = bench.started(&grant, "c", true).await;
        let held = bench.claim(child).await;
        bench.end(&grant, waits_for(vec![Wake::Child(child)])).await;
        let cancel = harness.request_cancel(&bench.namespace, parent, Duration::ZERO);
        let (_, ended) = tokio::join!(cancel, bench.end(&held, complete()));
        assert_eq!(ended, Ended::Terminal(JobState::Completed));
        assert_eq!(bench.state(parent).await, JobState::Canceled);
    }
}

/// A serial workflow that an ancestor is a run of cannot have a child run: both would wait for ever.
pub async fn a_child_of_its_own_serial_workflow_is_refused(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let definition = JobDefinition::Handler { name: "work".to_owned() };
    let serial =
        TestWorkflow { overlap_serial: true, ..TestWorkflow::new(&bench.namespace, "nightly", definition) };
    harness.define_workflow(&serial).await;
    let grant = bench.held_recipe().await;
    let run = || NewJob { namespace: bench.namespace.clone(), ..NewJob::of_workflow("nightly") };
    assert!(matches!(bench.start(&grant, "a", run(), true).await, Recorded::Recorded(_)));
    let recipes = TestWorkflow {
        overlap_serial: true,
        ..TestWorkflow::new(&bench.namespace, "recipes", super::bench::recipe())
    };
    harness.define_workflow(&recipes).await;
    let mine = NewJob { namespace: bench.namespace.clone(), ..NewJob::of_workflow("recipes") };
    let parent = bench.claim(harness.submit(&mine).await).await;
    let answer = bench.start(&parent, "a", mine.clone(), true).await;
    assert!(matches!(answer, Recorded::Refused { code: "would_deadlock", .. }), "{answer:?}");
    // Nor can a child of its child.
    let key = CommandId::generate().to_string();
    let below = NewJob { definition: Some(super::bench::recipe()), ..bench.child(&key) };
    let Recorded::Recorded(event) = bench.start(&parent, "b", below, true).await else { panic!() };
    let EventBody::ChildStarted { job } = event.body else { panic!("{event:?}") };
    let below = bench.claim(job).await;
    let answer = bench.start(&below, "a", mine, true).await;
    assert!(matches!(answer, Recorded::Refused { code: "would_deadlock", .. }), "{answer:?}");
}

/// One that starts itself cannot fill the database with jobs that wait for each other; and the first one's cancel still
/// reaches the last.
pub async fn a_recipe_that_starts_itself_comes_to_an_end(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let mut grant = bench.held_recipe().await;
    let first = grant.authority.job;
    for depth in 1..=MAX_CHILD_DEPTH {
        let child = bench.child(&CommandId::generate().to_string());
        let child = NewJob { definition: Some(super::bench::recipe()), ..child };
        let Recorded::Recorded(event) = bench.start(&grant, "c", child, true).await else {
            panic!("{depth}")
        };
        let EventBody::ChildStarted { job } = event.body else { panic!("{event:?}") };
        bench.end(&grant, waits_for(vec![Wake::Child(job)])).await;
        grant = bench.claim(job).await;
    }
    let answer = bench.start(&grant, "c", bench.child("too deep"), true).await;
    assert!(matches!(answer, Recorded::Refused { code: "too_deep", .. }), "{answer:?}");
    harness.request_cancel(&bench.namespace, first, Duration::ZERO).await;
    assert!(bench.view(grant.authority.job).await.cancel_requested);
}
