//! The log of a recipe: one sequence without gaps, each event once, under a live lease.

use std::time::Duration;

use super::bench::Bench;
use crate::{
    domain::{Failure, FailureKind},
    ports::recipe::{EventBody, MAX_LOG_BYTES, MAX_LOG_EVENTS, NewEvent, Recorded, TaskOutcome},
    testing::harness::StoreHarness,
};

/// A success of an op.
pub(super) fn success(op: &str, output: &str) -> NewEvent {
    NewEvent::Task {
        op: op.to_owned(),
        input_hash: "h".to_owned(),
        attempt: 1,
        outcome: TaskOutcome::Succeeded { output: output.into() },
        directive: None,
    }
}

/// E1: ordinals count from 1 without gaps, and a result comes back as it was written.
pub async fn events_are_one_sequence_without_gaps(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let output = r#"{"b": 1.50, "a": 123456789012345678901234567890}"#;
    let failure = Failure::new(FailureKind::User, "boom", "it did not work").with_exit_code(3);
    let failed = NewEvent::Task {
        op: "command".to_owned(),
        input_hash: "i".to_owned(),
        attempt: 2,
        outcome: TaskOutcome::Failed(failure.clone()),
        directive: Some(r#"{"cpu":  "2"}"#.into()),
    };
    for (path, event) in [
        ("a", success("probe", output)),
        ("b", failed),
        ("c", NewEvent::TimerSet { after: Duration::ZERO }),
        ("c", NewEvent::TimerFired),
    ] {
        let Recorded::Recorded(_) = bench.record(&grant, path, &event).await else { panic!("{event:?}") };
    }
    let events = bench.events(&grant).await;
    let ordinals: Vec<i64> = events.iter().map(|event| event.ordinal).collect();
    assert_eq!(ordinals, [1, 2, 3, 4]);
    let EventBody::Task { op, outcome: TaskOutcome::Succeeded { output: kept }, .. } = &events[0].body else {
        panic!("{:?}", events[0])
    };
    assert_eq!((op.as_str(), &**kept), ("probe", output));
    assert_eq!(events[0].worker.as_ref(), Some(&bench.owner.worker));
    assert_eq!(events[0].epoch, grant.authority.epoch);
    let EventBody::Task { outcome, directive, attempt, .. } = &events[1].body else { panic!("{events:?}") };
    assert_eq!((outcome, *attempt), (&TaskOutcome::Failed(failure), 2));
    assert_eq!(directive.as_deref(), Some(r#"{"cpu":  "2"}"#));
    assert_eq!(bench.recipe(&grant).await.events, 4);
    assert_eq!(
        bench.recipes.events(&bench.namespace, grant.authority.job, 3).await.expect("it answers").len(),
        1
    );
}

/// E1: the same content again is the same event; another content is a conflict, and the first one stands.
pub async fn a_repeated_record_answers_what_stands(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let first = bench.record(&grant, "a", &success("op", "1")).await;
    assert!(matches!(first, Recorded::Recorded(_)), "{first:?}");
    assert_eq!(bench.record(&grant, "a", &success("op", "1")).await, first);
    for other in [success("op", "2"), success("another", "1")] {
        let Recorded::Conflict(standing) = bench.record(&grant, "a", &other).await else {
            panic!("{other:?}")
        };
        assert_eq!(Recorded::Recorded(standing), first);
    }
    assert_eq!(bench.events(&grant).await.len(), 1);
    // Another sort of event at the path is another event.
    let timer = bench.record(&grant, "a", &NewEvent::TimerSet { after: Duration::ZERO }).await;
    assert!(matches!(timer, Recorded::Recorded(event) if event.ordinal == 2));
}

/// L2: only a live lease records.
pub async fn only_the_holder_records(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let mut stranger = grant.clone();
    stranger.authority.owner = bench.rescuer.clone();
    assert_eq!(bench.record(&stranger, "a", &success("op", "1")).await, Recorded::NotLive);
    harness.expire(grant.authority.job).await;
    assert_eq!(bench.record(&grant, "a", &success("op", "1")).await, Recorded::NotLive);
    assert!(bench.events(&grant).await.is_empty());
    let taken = bench.recover(1).await.takeovers.remove(0).grant;
    assert_eq!(bench.record(&grant, "a", &success("op", "1")).await, Recorded::NotLive);
    assert!(matches!(bench.record(&taken, "a", &success("op", "1")).await, Recorded::Recorded(_)));
}

/// Branches of a recipe record at once: no ordinal twice, none left out.
pub async fn concurrent_records_take_turns(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let paths: Vec<String> = (0..20).map(|n| format!("branch-{}", n % 10)).collect();
    let event = success("op", "1");
    let calls = paths.iter().map(|path| bench.record(&grant, path, &event));
    for answer in futures_util::future::join_all(calls).await {
        assert!(matches!(answer, Recorded::Recorded(_)), "{answer:?}");
    }
    let ordinals: Vec<i64> = bench.events(&grant).await.iter().map(|event| event.ordinal).collect();
    assert_eq!(ordinals, (1..=10).collect::<Vec<_>>());
}

/// A timer's deadline is computed once, and it fires only then.
pub async fn a_timer_keeps_its_first_deadline(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let hour = NewEvent::TimerSet { after: Duration::from_hours(1) };
    let first = bench.record(&grant, "sleep", &hour).await;
    let again = bench.record(&grant, "sleep", &NewEvent::TimerSet { after: Duration::ZERO }).await;
    assert_eq!(again, first);
    assert_eq!(bench.record(&grant, "sleep", &NewEvent::TimerFired).await, Recorded::NotYet);
    let nowhere = bench.record(&grant, "nowhere", &NewEvent::TimerFired).await;
    assert!(matches!(nowhere, Recorded::Refused { code: "not_begun", .. }), "{nowhere:?}");
    bench.record(&grant, "nap", &NewEvent::TimerSet { after: Duration::ZERO }).await;
    let fired = bench.record(&grant, "nap", &NewEvent::TimerFired).await;
    assert!(matches!(&fired, Recorded::Recorded(event) if event.body == EventBody::TimerFired), "{fired:?}");
    assert_eq!(bench.record(&grant, "nap", &NewEvent::TimerFired).await, fired);
}

/// A full log takes nothing more, and still answers what stands in it.
pub async fn a_full_log_takes_nothing_more(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (events, bytes, what, limit) in
        [(MAX_LOG_EVENTS - 1, 0, "events", MAX_LOG_EVENTS), (0, MAX_LOG_BYTES - 10, "bytes", MAX_LOG_BYTES)]
    {
        let grant = bench.held_recipe().await;
        let first = bench.record(&grant, "a", &success("op", "1")).await;
        harness.pretend_log(grant.authority.job, events, bytes).await;
        let full = Recorded::Full { what, limit };
        assert_eq!(bench.record(&grant, "bb", &success("op", "12345678")).await, full);
        assert_eq!(bench.record(&grant, "a", &success("op", "1")).await, first);
    }
}

/// What is no JSON, or too long, is refused before anything is written.
pub async fn what_cannot_be_kept_is_refused(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    for bad in ["{", r#""\u0000""#, r#"{"a":1,"a":2}"#, &long] {
        let answer = bench.recipes.record(&grant.authority, "a", &success("op", bad)).await;
        assert!(answer.is_err(), "{}", &bad[..bad.len().min(20)]);
    }
    assert!(bench.events(&grant).await.is_empty());
    // A path may be longer than any index takes.
    let path = "step/".repeat(2000);
    assert!(matches!(bench.record(&grant, &path, &success("op", "1")).await, Recorded::Recorded(_)));
    assert_eq!(bench.events(&grant).await[0].path, path);
}
