//! A recipe with a loop, a retried sequence and a `parallel`, whose worker dies before and after every call that it
//! makes: whatever was recorded stands, and another worker goes on from there. (With real processes and SIGKILL:
//! `crash::recipes`.)

use std::{collections::BTreeMap, sync::Arc};

use leasehold_actors::{
    domain::JobState,
    testing::crash_points::{CrashPoints, Deed, Fault, Side},
};

use super::bed::{Bed, Run, output};
use crate::support::size::rounds;

const RECIPE: &str = r#"
id: r
sequence:
  - id: loop
    state:
      initial: poll
      states:
        - id: poll
          op: work
          inputs: { give: "${{ transition.payload == null ? 1 : transition.payload + 1 }}" }
          transitions:
            - { to: done, when: "${{ states.poll.outputs >= 2 }}" }
            - { to: poll, payload: "${{ states.poll.outputs }}" }
        - { id: done, op: work, inputs: { give: "${{ states.poll.outputs }}" } }
  - id: again
    retry: { max_attempts: 3, backoff: 100ms }
    sequence:
      - { id: a, op: work, inputs: { give: 5 } }
      - { id: b, op: work, inputs: { fails_in: "again!1", give: 6 }, timeout: 1h }
  - id: both
    parallel:
      - id: left
        sequence:
          - { id: a, op: work, inputs: { takes_ms: 20, give: "${{ sequence.loop.outputs }}", ask: { resources: { cpu: "2" } } } }
          - { id: b, op: work, inputs: { takes_ms: 20 } }
      - { id: right, op: work, inputs: { takes_ms: 30, give: 8 } }
      - id: bad
        sequence: [ { id: a, op: work, inputs: { takes_ms: 5, fails: 9 } } ]
        catch: { op: work, inputs: { give: "${{ error.path }}" } }
"#;

const OUTPUT: &str =
    r#"{"loop":2,"again":{"a":5,"b":6},"both":{"left":{"a":2,"b":null},"right":8,"bad":"both/bad/a"}}"#;

/// Lets one worker run until it dies, and another to the end. True when it died.
async fn with(bed: &Bed, points: &CrashPoints, fault: Option<&Fault>) -> (bool, Vec<String>) {
    let first = bed.worker_behind(points, "first", "cpu=2");
    let second = bed.worker("second", "cpu=2");
    let job = bed.submit(RECIPE).await;
    let grant = bed.claim(&first).await.expect("it is queued");
    let death = async {
        match fault.filter(|fault| fault.deed == Deed::Hang) {
            Some(fault) => points.until_done_at(&fault.call, fault.side).await,
            None => std::future::pending().await,
        }
    };
    let died = bed.run(&first, &grant, death).await.is_none();
    // What it had begun is gone with it.
    tokio::task::yield_now().await;
    if died && bed.view(job).await.state == JobState::Running {
        bed.recover(&second, job).await;
    }
    let view = bed.finish(&[&second], job).await;
    assert_eq!(output(&view), OUTPUT, "{fault:?}");
    let events = bed.log(job).await;
    let ordinals: Vec<i64> = events.iter().map(|event| event.ordinal).collect();
    assert_eq!(ordinals, (1..=ordinals.len() as i64).collect::<Vec<_>>(), "{fault:?}");
    let mut names: Vec<String> =
        events.iter().map(|event| format!("{} {}", event.path, event.body.sort())).collect();
    names.sort();
    (died, names)
}

/// The points that an undisturbed run comes by, and what it records.
async fn undisturbed(bed: &Bed) -> (Vec<(String, Side, Option<String>)>, Vec<String>) {
    let points = CrashPoints::recording();
    let (died, names) = with(bed, &points, None).await;
    assert!(!died);
    assert_eq!(bed.runs().len(), 12);
    let found = points.reached().into_keys().map(|point| {
        let (point, place) = match point.split_once('@') {
            Some((point, place)) => (point.to_owned(), Some(place.to_owned())),
            None => (point, None),
        };
        let (call, side) = point.rsplit_once('.').expect("a call and a side");
        let side = if side == "before" { Side::Before } else { Side::After };
        (call.to_owned(), side, place)
    });
    (found.collect(), names)
}

/// E1
pub async fn a_worker_that_dies_at_any_call_costs_no_result_and_no_recorded_success_runs_again(bed: Bed) {
    let (points, names) = undisturbed(&bed).await;
    assert!(points.len() > 30, "{points:?}");
    // In real time a part of them; all of them die by SIGKILL in `crash::recipes`.
    let every = if bed.is_memory() { 1 } else { rounds(4, 1) };
    for (call, side, place) in points.into_iter().step_by(every as usize) {
        let bed = bed.anew();
        let fault = Fault { place, ..Fault::once(&call, side, Deed::Hang) };
        let points = CrashPoints::with([fault.clone()]);
        let (died, found) = with(&bed, &points, Some(&fault)).await;
        assert!(died, "{fault}");
        assert_eq!(found, names, "{fault}");
        // That a recorded success never runs again, the op itself holds.
        let mut by_path: BTreeMap<String, Vec<Run>> = BTreeMap::new();
        for run in bed.runs() {
            by_path.entry(run.path.clone()).or_default().push(run);
        }
        for (path, runs) in by_path {
            assert!(runs.len() <= 2, "{fault}: {path}: {runs:?}");
            assert!(runs.iter().all(|run| run.key == runs[0].key), "{fault}: {path}: {runs:?}");
        }
    }
}

/// E1
pub async fn a_call_whose_request_or_answer_is_lost_is_made_once(bed: Bed) {
    let (points, names) = undisturbed(&bed).await;
    let records = points.into_iter().filter(|(call, _, _)| call.starts_with("recipe.record"));
    let every = if bed.is_memory() { 1 } else { rounds(5, 1) };
    for (call, side, place) in records.step_by(every as usize) {
        let bed = Arc::new(bed.anew());
        let deed = if side == Side::Before { Deed::RequestLost } else { Deed::ReplyLost };
        let fault = Fault { place, ..Fault::once(&call, side, deed) };
        let points = CrashPoints::with([fault.clone()]);
        let (died, found) = with(&bed, &points, Some(&fault)).await;
        assert!(!died && points.done() == 1, "{fault}");
        assert_eq!(found, names, "{fault}");
        assert_eq!(bed.runs().len(), 12, "{fault}");
    }
}
