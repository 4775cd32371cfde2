//! What a recipe does when nothing goes wrong around it.

use leasehold_actors::{domain::FailureKind, ports::recipe::NewSignal};

use super::*;

fn failure_of(turn: &Turn) -> Failure {
    match &turn.outcome {
        WorkOutcome::FailedForGood(failure) | WorkOutcome::Failed(failure) => failure.clone(),
        other => panic!("this is no failure: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_sequence_runs_in_order_and_passes_outputs_on_as_they_are() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let job = bed
        .submit(
            r#"
id: r
sequence:
  - id: a
    op: work
    inputs: { give: { n: 123456789012345678901234567890 } }
  - id: b
    op: work
    inputs: { note: "${{ sequence.a.outputs.n }}", give: [1, "${{ sequence.a.outputs.n }}"] }
"#,
        )
        .await;
    let view = bed.finish(&worker, job).await;
    assert!(output(&view).starts_with(r#"{"a":{"n":1"#), "{}", output(&view));
    assert_eq!(bed.ran(), ["a on w", "b on w"]);
    assert_eq!(bed.log(job).await.len(), 2);
    assert_eq!(view.attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn a_skipped_node_gives_null_and_runs_nothing() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
sequence:
  - { id: a, when: "${{ 1 > 2 }}", execution_needs: { resources: { cpu: "64" } }, op: work }
  - { id: b, op: work, inputs: { give: "${{ sequence.a.outputs == null }}" } }
"#;
    let job = bed.submit(yaml).await;
    assert_eq!(output(&bed.finish(&worker, job).await), r#"{"a":null,"b":true}"#);
    assert_eq!(bed.ran(), ["b on w"]);
}

/// RP-01: three polls with the same input are three executions with three results.
#[tokio::test(start_paused = true)]
async fn a_state_machine_visits_a_state_as_often_as_it_is_led_there() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
state:
  initial: poll
  states:
    - id: poll
      op: work
      inputs: { give: "${{ transition.payload == null ? 1 : transition.payload + 1 }}" }
      transitions:
        - { to: done, when: "${{ states.poll.outputs >= 3 }}" }
        - { to: poll, payload: "${{ states.poll.outputs }}" }
    - id: done
      op: work
      inputs: { give: "${{ states.poll.outputs }}" }
"#;
    let job = bed.submit(yaml).await;
    assert_eq!(output(&bed.finish(&worker, job).await), "3");
    assert_eq!(bed.ran(), ["poll#1 on w", "poll#2 on w", "poll#3 on w", "done#1 on w"]);
}

#[tokio::test(start_paused = true)]
async fn retry_waits_and_catch_sees_the_last_failure() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
sequence:
  - id: twice
    op: work
    inputs: { fails: 1, give: 7 }
    retry: { max_attempts: 3, backoff: 10s }
  - id: never
    op: work
    inputs: { fails: 9, code: nope }
    retry: { max_attempts: 2, backoff: 10s }
    catch:
      op: work
      inputs: { give: "${{ error.code + ' at ' + error.path }}" }
"#;
    let job = bed.submit(yaml).await;
    let began = tokio::time::Instant::now();
    let view = bed.finish(&worker, job).await;
    assert_eq!(output(&view), r#"{"twice":7,"never":"nope at never!2"}"#);
    assert_eq!(
        bed.ran(),
        ["twice!1 on w", "twice!2 on w", "never!1 on w", "never!2 on w", "never/catch on w"]
    );
    assert!(began.elapsed() >= Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(view.attempt, 1, "a wait is no attempt of the job");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_an_attempt_and_is_recorded_before_anything_goes_on() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
sequence:
  - id: slow
    op: work
    inputs: { takes_ms: 3600000 }
    timeout: 30s
    catch: { op: work, inputs: { give: "${{ error.kind + ' ' + error.code }}" } }
"#;
    let job = bed.submit(yaml).await;
    let view = bed.finish(&worker, job).await;
    assert_eq!(output(&view), r#"{"slow":"TIMEOUT timeout"}"#);
    let fired = bed.log(job).await.iter().any(|event| event.body == EventBody::TimerFired);
    assert!(fired);
}

#[tokio::test(start_paused = true)]
async fn a_sleep_gives_the_job_back_and_its_deadline_stands() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let job = bed.submit("id: r\nsequence:\n  - { id: nap, op: sleep, inputs: { for: 1h } }\n").await;
    let turn = bed.turn(&worker).await.expect("it is queued");
    assert_eq!(turn.ended, Some(Ended::Rescheduled), "{turn:?}");
    assert_eq!(bed.view(job).await.state, JobState::Pending);
    tokio::time::sleep(Duration::from_secs(3599)).await;
    assert!(bed.turn(&worker).await.is_none(), "not yet due");
    tokio::time::sleep(Duration::from_secs(2)).await;
    bed.turn(&worker).await.expect("it is due");
    assert_eq!(output(&bed.view(job).await), r#"{"nap":null}"#);
}

#[tokio::test(start_paused = true)]
async fn a_signal_counts_before_and_after_anybody_waits_for_it() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
sequence:
  - { id: one, op: wait_for_signal, inputs: { name: go } }
  - { id: two, op: wait_for_signal, inputs: { name: go } }
"#;
    let job = bed.submit(yaml).await;
    let send = async |data: &str| {
        let signal = NewSignal { name: "go".to_owned(), data: data.to_owned(), key: None };
        bed.store.send_signal(&Namespace::default(), job, &signal).await.expect("it answers")
    };
    send("1").await;
    bed.turn(&worker).await.expect("it is queued");
    assert!(bed.turn(&worker).await.is_none(), "it waits for the second");
    send("2").await;
    assert_eq!(output(&bed.finish(&worker, job).await), r#"{"one":1,"two":2}"#);
}

/// AP-05: a name that no signal can have, out of a template, would be waited for without end.
#[tokio::test(start_paused = true)]
async fn a_signal_that_nobody_can_send_is_not_waited_for() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    for name in [r#""""#, r#""a\u001bb""#, r#"" a""#, &format!("\"{}\"", "a".repeat(201)), "7"] {
        let yaml = format!(
            "id: r\nsequence:\n  - {{ id: a, op: work, inputs: {{ give: {name} }} }}\n  - id: w\n    op: wait_for_signal\n    \
             inputs: {{ name: \"${{{{ sequence.a.outputs }}}}\" }}\n"
        );
        bed.submit(&yaml).await;
        let turn = bed.turn(&worker).await.expect("it is queued");
        let failure = failure_of(&turn);
        assert_eq!(
            (failure.kind, failure.code.as_str()),
            (FailureKind::User, "bad_input"),
            "{name}: {failure:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn branches_run_at_once_and_a_failure_cancels_its_siblings() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
parallel:
  - { id: long, op: work, inputs: { takes_ms: 5000 } }
  - { id: bad, op: work, inputs: { takes_ms: 1000, fails: 1, code: first } }
  - { id: worse, op: work, inputs: { takes_ms: 2000, fails: 1, code: second } }
"#;
    let job = bed.submit(yaml).await;
    let began = tokio::time::Instant::now();
    let turn = bed.turn(&worker).await.expect("it is queued");
    assert_eq!(failure_of(&turn).code, "first");
    assert!(began.elapsed() < Duration::from_secs(2));
    let mut canceled: Vec<String> = bed
        .log(job)
        .await
        .into_iter()
        .filter(|e| matches!(e.body, EventBody::Task { outcome: TaskOutcome::Canceled, .. }))
        .map(|event| event.path)
        .collect();
    canceled.sort();
    assert_eq!(canceled, ["long", "worse"]);
    assert_eq!(bed.view(job).await.state, JobState::Failed, "a recipe's own failure is final");
}

#[tokio::test(start_paused = true)]
async fn a_machine_without_a_way_out_and_one_that_only_turns_are_failures() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let stuck = "id: r\nstate:\n  initial: a\n  states:\n    - { id: a, op: work, transitions: [{ to: a, when: '${{ false }}' }] }\n";
    bed.submit(stuck).await;
    assert_eq!(failure_of(&bed.turn(&worker).await.expect("queued")).code, "no_transition");
    let turning = "id: r\nstate:\n  initial: a\n  states:\n    - { id: a, op: work, when: '${{ false }}', transitions: [{ to: a }] }\n";
    bed.submit(turning).await;
    assert_eq!(failure_of(&bed.turn(&worker).await.expect("queued")).code, "no_progress");
    assert_eq!(bed.ran(), ["a#1 on w"]);
}

/// RP-07: limit − 1, limit, limit + 1: what is over is a failure of fixed size.
#[tokio::test(start_paused = true)]
async fn a_result_over_the_limit_is_not_stored_and_fails_its_task() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    for (bytes, code) in [(1 << 19, None), ((1 << 20) + 1, Some("result_too_large"))] {
        let job = bed
            .submit(&format!("id: r\nsequence: [ {{ id: a, op: work, inputs: {{ bytes: {bytes} }} }} ]\n"))
            .await;
        let turn = bed.turn(&worker).await.expect("it is queued");
        let found = match &turn.outcome {
            WorkOutcome::FailedForGood(failure) => Some(failure.code.clone()),
            _ => None,
        };
        assert_eq!(found.as_deref(), code);
        assert_eq!(bed.log(job).await.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_secret_reaches_the_op_and_neither_log_nor_hash() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = "id: r\nsequence: [ { id: a, op: work, inputs: { note: \"${{ secrets.TOKEN }}\", give: \"s3cret-value!\" } } ]\n";
    let job = bed.submit(yaml).await;
    let view = bed.finish(&worker, job).await;
    assert_eq!(output(&view), r#"{"a":"***!"}"#);
    assert!(!format!("{:?}", bed.log(job).await).contains("s3cret"));
}

#[tokio::test(start_paused = true)]
async fn a_child_job_is_submitted_once_and_its_end_is_the_result() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml =
        "id: r\nsequence: [ { id: a, op: child_job, inputs: { handler: resize, payload: { n: 1 } } } ]\n";
    let job = bed.submit(yaml).await;
    bed.turn(&worker).await.expect("it is queued");
    let child = match &bed.log(job).await[0].body {
        EventBody::ChildStarted { job } => *job,
        other => panic!("{other:?}"),
    };
    let state = bed.store.job(&Namespace::default(), child).await.expect("it was submitted").state;
    assert!(!state.is_terminal());
    assert!(bed.turn(&worker).await.is_none(), "it waits for its child");
    bed.store.request_cancel(&Namespace::default(), child, Duration::ZERO).await;
    let turn = bed.turn(&worker).await.expect("the child's end wakes it");
    assert_eq!(failure_of(&turn).code, "child_canceled");
}
