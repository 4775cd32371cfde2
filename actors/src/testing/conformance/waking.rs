//! What a recipe waits for: signals, times, and the ends of its children.

use std::time::Duration;

use super::bench::{Bench, complete};
use crate::{
    domain::{CommandId, JobState},
    ports::{
        End, Ended,
        recipe::{EventBody, MAX_PENDING_SIGNALS, NewEvent, NewSignal, Recorded, SignalAnswer, Wake},
    },
    testing::harness::{CancelAnswer, StoreHarness},
};

pub(super) fn signal(name: &str, data: &str) -> NewSignal {
    NewSignal { name: name.to_owned(), data: data.to_owned(), key: None }
}

pub(super) fn waits_for(wake: Vec<Wake>) -> End {
    End::Reschedule { route: None, delay: Duration::ZERO, payload: None, wake, publish: None }
}

fn take(name: &str) -> NewEvent {
    NewEvent::TakeSignal { name: name.to_owned() }
}

/// Signals are kept before anybody waits, come in their order by name, and each is taken once.
pub async fn signals_are_taken_in_order(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    assert_eq!(bench.record(&grant, "w1", &take("go")).await, Recorded::NotYet);
    for (name, data) in [("go", "1"), ("stop", "2"), ("go", r#"{"n": 1.0}"#)] {
        let answer = bench.send(job, &signal(name, data)).await;
        assert!(matches!(answer, SignalAnswer::Stored { created: true, .. }), "{answer:?}");
    }
    let mut taken = Vec::new();
    for (path, name) in [("w1", "go"), ("w2", "go"), ("w3", "stop")] {
        let answer = bench.record(&grant, path, &take(name)).await;
        assert_eq!(bench.record(&grant, path, &take(name)).await, answer, "a repeat takes no other");
        let Recorded::Recorded(event) = answer else { panic!("{answer:?}") };
        let EventBody::Signal { data, .. } = event.body else { panic!("{event:?}") };
        taken.push(data.to_string());
    }
    assert_eq!(taken, ["1", r#"{"n": 1.0}"#, "2"]);
    assert_eq!(bench.record(&grant, "w4", &take("go")).await, Recorded::NotYet);
    assert!(matches!(bench.record(&grant, "w1", &take("stop")).await, Recorded::Conflict(_)));
}

/// Nobody fills the database with signals that are not taken; what is taken makes room.
pub async fn signals_that_nobody_takes_have_a_limit(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    for n in 0..MAX_PENDING_SIGNALS {
        let answer = bench.send(job, &signal("go", "1")).await;
        assert!(matches!(answer, SignalAnswer::Stored { created: true, .. }), "{n}: {answer:?}");
    }
    assert_eq!(bench.send(job, &signal("stop", "1")).await, SignalAnswer::TooMany);
    bench.record(&grant, "a", &take("go")).await;
    let keyed = NewSignal { key: Some("k".to_owned()), ..signal("stop", "1") };
    let SignalAnswer::Stored { id, .. } = bench.send(job, &keyed).await else { panic!("there is room") };
    assert_eq!(bench.send(job, &signal("go", "1")).await, SignalAnswer::TooMany);
    assert_eq!(
        bench.send(job, &keyed).await,
        SignalAnswer::Stored { id, created: false },
        "a repeat is none"
    );

    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    let large = format!("\"{}\"", "x".repeat((1 << 20) - 10));
    for n in 0..4 {
        let answer = bench.send(job, &signal("go", &large)).await;
        assert!(matches!(answer, SignalAnswer::Stored { .. }), "{n}: {answer:?}");
    }
    assert_eq!(bench.send(job, &signal("go", &large)).await, SignalAnswer::TooMany);
    let small = bench.send(job, &signal("go", "1")).await;
    assert!(matches!(small, SignalAnswer::Stored { .. }), "{small:?}");
}

/// A signal with a key is sent once; after the job's end none is taken in.
pub async fn a_signal_with_a_key_is_sent_once(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    let keyed = |data: &str| NewSignal { key: Some("k".to_owned()), ..signal("go", data) };
    let SignalAnswer::Stored { id, created: true } = bench.send(job, &keyed("1")).await else { panic!() };
    assert_eq!(bench.send(job, &keyed("1")).await, SignalAnswer::Stored { id, created: false });
    assert_eq!(bench.send(job, &keyed("2")).await, SignalAnswer::KeyConflict);
    bench.end(&grant, complete()).await;
    assert_eq!(bench.send(job, &keyed("1")).await, SignalAnswer::Stored { id, created: false });
    let ended = SignalAnswer::JobEnded { state: JobState::Completed };
    assert_eq!(bench.send(job, &signal("go", "3")).await, ended);
    let handler = bench.queued().await;
    assert_eq!(bench.send(handler, &signal("go", "3")).await, SignalAnswer::NotFound);
}

/// A job that waits for a signal is due when it comes, and not before.
pub async fn a_signal_wakes_who_waits_for_it(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    let command = CommandId::generate();
    let end = waits_for(vec![Wake::Signal("go".to_owned()), Wake::Signal("stop".to_owned())]);
    assert_eq!(bench.end_as(&grant.authority, command, &end).await, Ended::Rescheduled);
    assert_eq!(bench.end_as(&grant.authority, command, &end).await, Ended::Rescheduled, "a repeat");
    assert_eq!((bench.state(job).await, bench.view(job).await.due_at), (JobState::Pending, None));
    bench.send(job, &signal("other", "1")).await;
    assert_eq!(bench.dispatch().await, 0);
    bench.send(job, &signal("stop", "1")).await;
    assert_eq!(bench.dispatch().await, 1);
    let again = bench.claim(job).await;
    assert_eq!(again.attempt, 1, "to wait is no attempt");
    // What it waited for then wakes it no more.
    bench.end(&again, waits_for(vec![Wake::Signal("go".to_owned())])).await;
    bench.send(job, &signal("stop", "2")).await;
    assert_eq!(bench.dispatch().await, 0);
}

/// What is there already makes the job due at once; of several, one is enough.
pub async fn what_has_come_already_is_not_waited_for(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    let now = bench.recipe(&grant).await.submitted_at;
    bench.send(job, &signal("go", "1")).await;
    let far = Wake::At(now + chrono::TimeDelta::hours(1));
    bench.end(&grant, waits_for(vec![far.clone(), Wake::Signal("go".to_owned())])).await;
    assert_eq!(bench.dispatch().await, 1);
    let grant = bench.claim(job).await;
    bench.end(&grant, waits_for(vec![far.clone(), Wake::At(now)])).await;
    assert_eq!(bench.dispatch().await, 1);
    let grant = bench.claim(job).await;
    bench.record(&grant, "w", &take("go")).await;
    bench.end(&grant, waits_for(vec![far, Wake::Signal("go".to_owned())])).await;
    assert_eq!(bench.dispatch().await, 0, "a taken signal does not count");
    assert!(bench.view(job).await.due_at.is_some_and(|at| at > now + chrono::TimeDelta::minutes(59)));
}

/// A signal that comes while the job is being put to sleep is never slept through.
pub async fn no_signal_is_slept_through(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for _ in 0..10 {
        let grant = bench.held_recipe().await;
        let job = grant.authority.job;
        let (go, end) = (signal("go", "1"), waits_for(vec![Wake::Signal("go".to_owned())]));
        let (_, ended) = tokio::join!(bench.send(job, &go), bench.end(&grant, end));
        assert_eq!(ended, Ended::Rescheduled);
        assert_eq!(bench.dispatch().await, 1);
    }
}

/// A paused workflow does not matter to ad-hoc jobs; a cancelled wait is over.
pub async fn a_waiting_recipe_can_be_cancelled(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    bench.end(&grant, waits_for(vec![Wake::Signal("go".to_owned())])).await;
    let answer = harness.request_cancel(&bench.namespace, job, Duration::ZERO).await;
    assert_eq!(answer, CancelAnswer::Canceled);
    let canceled = SignalAnswer::JobEnded { state: JobState::Canceled };
    assert_eq!(bench.send(job, &signal("go", "1")).await, canceled);
}
