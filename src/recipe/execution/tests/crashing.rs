//! A recipe with a loop, a retried sequence and a `parallel`, whose worker dies before and after every call that it
//! makes: whatever was recorded stands, and another worker goes on from there.

use super::*;

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

/// Lets one worker run until it dies at that call, and another to the end.
async fn with_a_death(at: u32, how: Do) -> (bool, Bed, JobView, Vec<Event>) {
    let bed = Bed::new();
    let runtime = Between::new(&bed.store, move |number, _| if number == at { how } else { Do::Pass });
    let dead = Arc::clone(&runtime);
    let first = bed.worker_on(runtime, "first", "cpu=2", &bed.ops("first"));
    let second = bed.worker("second", "cpu=2");
    let job = bed.submit(RECIPE).await;
    let grant = bed.claim(&first).await.expect("it is queued");
    let (lease, watch) = bed.lease(&grant);
    let died = tokio::select! {
        outcome = first.engine.run(&grant, &lease) => {
            bed.report(&grant, &lease, outcome).await;
            false
        }
        () = dead.dead.notified() => true,
    };
    drop((watch, lease));
    // What it had begun is gone with it.
    tokio::task::yield_now().await;
    if died && bed.view(job).await.state == JobState::Running {
        bed.recover(&second, job).await;
    }
    let view = bed.finish(&second, job).await;
    let events = bed.log(job).await;
    (died, bed, view, events)
}

/// E1
#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_at_any_call_costs_no_result_and_no_recorded_success_runs_again() {
    let (died, bed, view, events) = with_a_death(u32::MAX, Do::Pass).await;
    assert!(!died);
    let expected = output(&view).to_owned();
    assert_eq!(
        expected,
        r#"{"loop":2,"again":{"a":5,"b":6},"both":{"left":{"a":2,"b":null},"right":8,"bad":"both/bad/a"}}"#
    );
    let mut paths: Vec<String> = events.iter().map(|event| event.path.clone()).collect();
    paths.sort();
    assert_eq!(bed.runs().len(), 12);

    let mut calls = 0;
    for at in 1.. {
        for how in [Do::DieBefore, Do::DieAfter] {
            let (died, bed, view, events) = with_a_death(at, how).await;
            if !died {
                assert!(calls > 10, "{calls}");
                return;
            }
            calls += 1;
            assert_eq!(output(&view), expected, "{how:?} at call {at}");
            let mut found: Vec<String> = events.iter().map(|event| event.path.clone()).collect();
            found.sort();
            assert_eq!(found, paths, "{how:?} at call {at}");
            let ordinals: Vec<i64> = events.iter().map(|event| event.ordinal).collect();
            assert_eq!(ordinals, (1..=ordinals.len() as i64).collect::<Vec<_>>());
            // That a recorded success never runs again, the op itself holds.
            let mut by_path: BTreeMap<String, Vec<Run>> = BTreeMap::new();
            for run in bed.runs() {
                by_path.entry(run.path.clone()).or_default().push(run);
            }
            for (path, runs) in by_path {
                assert!(runs.len() <= 2, "{path}: {runs:?}");
                assert!(runs.iter().all(|run| run.key == runs[0].key), "{path}: {runs:?}");
            }
            assert!(view.attempt <= 2);
        }
    }
}

/// Calls and answers that are lost and repeated change nothing.
#[tokio::test(start_paused = true)]
async fn a_record_whose_answer_is_lost_is_made_once() {
    for how in [Do::LoseCall, Do::LoseAnswer] {
        for at in [1, 2, 3, 5, 8, 11] {
            let (died, bed, view, events) = with_a_death(at, how).await;
            assert!(!died);
            assert_eq!(view.state, JobState::Completed);
            assert_eq!(bed.runs().len(), 12, "{how:?} at call {at}");
            let mut names: Vec<_> =
                events.iter().map(|e| (e.path.clone(), std::mem::discriminant(&e.body))).collect();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }
}
