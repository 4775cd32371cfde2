//! What a task may give back, and what becomes of what it may not.

use leasehold_actors::{
    domain::{FailureKind, JobState},
    ports::recipe::{EventBody, TaskOutcome},
};

use super::bed::Bed;

/// Runs one task, and gives how the job ended and the bytes of its log.
async fn once(bed: &Bed, inputs: &str) -> (JobState, Option<String>, Vec<EventBody>) {
    let worker = bed.worker("w", "");
    let job = bed.submit(&format!("id: r\nsequence: [ {{ id: a, op: work, inputs: {inputs} }} ]\n")).await;
    let view = bed.finish(&[&worker], job).await;
    (view.state, view.failure_code, bed.log(job).await.into_iter().map(|event| event.body).collect())
}

/// RP-07: limit − 1, limit, limit + 1, 64 MB: what is over is a failure of fixed size, recorded like any other.
pub async fn a_result_or_an_error_over_the_limit_is_a_short_failure_and_no_endless_retry(bed: Bed) {
    const LIMIT: usize = 1 << 20;
    // The recipe's own result, {"a":…}, has the same limit.
    for bytes in [LIMIT - 7, LIMIT - 6] {
        assert_eq!(once(&bed, &format!("{{ bytes: {bytes} }}")).await.0, JobState::Completed, "{bytes}");
    }
    for bytes in [LIMIT - 5, LIMIT - 1, LIMIT] {
        let (state, code, log) = once(&bed, &format!("{{ bytes: {bytes} }}")).await;
        assert_eq!((state, code.as_deref(), log.len()), (JobState::Failed, Some("result_too_large"), 1));
        assert!(matches!(&log[0], EventBody::Task { outcome: TaskOutcome::Succeeded { .. }, .. }), "{bytes}");
    }
    for bytes in [LIMIT + 1, 64 << 20] {
        let (state, code, log) = once(&bed, &format!("{{ bytes: {bytes} }}")).await;
        assert_eq!((state, code.as_deref(), log.len()), (JobState::Failed, Some("result_too_large"), 1));
        match &log[0] {
            EventBody::Task { outcome: TaskOutcome::Failed(failure), .. } => {
                assert!(failure.message.len() < 500, "{failure:?}");
                assert!(failure.message.contains(&bytes.to_string()), "{failure:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    let (state, code, log) = once(&bed, "{ fails: 9, message_bytes: 67108864 }").await;
    assert_eq!((state, code.as_deref()), (JobState::Failed, Some("broken")));
    match &log[0] {
        EventBody::Task { outcome: TaskOutcome::Failed(failure), .. } => {
            assert_eq!(failure.message.len(), 4096, "cut, and kept");
        }
        other => panic!("{other:?}"),
    }
}

/// RP-15: what cannot be stored is the task's own failure, at once, and runs once.
pub async fn a_result_that_cannot_be_stored_is_the_tasks_own_failure(bed: Bed) {
    let deep = format!("{}1{}", "[".repeat(101), "]".repeat(101));
    for raw in
        [r#""a\u0000b""#, "\"a<NUL>b\"", r#"{"a\u0000":1}"#, r#""\ud800""#, r#"{"a":1,"a":2}"#, "{", &deep]
    {
        let raw = serde_json::to_string(raw).unwrap();
        let before = bed.runs().len();
        let (state, code, log) = once(&bed, &format!("{{ raw: {raw} }}")).await;
        assert_eq!((state, code.as_deref(), log.len()), (JobState::Failed, Some("bad_output"), 1), "{raw}");
        assert!(
            matches!(&log[0], EventBody::Task { outcome: TaskOutcome::Failed(f), .. } if f.kind == FailureKind::User),
            "{raw}: {log:?}"
        );
        assert_eq!(bed.runs().len(), before + 1, "{raw}");
    }
    // What a task says of its failure is kept without it.
    let (state, _, log) = once(&bed, r#"{ fails: 9, message: "no<NUL>thing" }"#).await;
    assert_eq!(state, JobState::Failed);
    assert!(
        matches!(&log[0], EventBody::Task { outcome: TaskOutcome::Failed(f), .. } if f.message == "nothing"),
        "{log:?}"
    );
    // Each by itself can be kept, and the whole cannot: it is nested too deep.
    let nested = serde_json::to_string(&format!("{}1{}", "[".repeat(100), "]".repeat(100))).unwrap();
    let (state, code, log) = once(&bed, &format!("{{ raw: {nested} }}")).await;
    assert_eq!((state, code.as_deref(), log.len()), (JobState::Failed, Some("bad_output"), 1));
}

/// RP-09: one poison recipe and twenty good ones on the same worker.
pub async fn a_poison_recipe_ends_after_its_attempts_and_the_others_go_on(bed: Bed) {
    let worker = bed.worker("w", "");
    let poison = "id: r\nsequence: [ { id: a, op: work, inputs: { panics: true }, retry: { max_attempts: 3, backoff: 10ms } } ]\n";
    let too_large = "id: r\nop: work\nwith: { bytes: 2000000 }\n";
    let mut jobs = vec![
        (bed.submit(poison).await, Some("panic")),
        (bed.submit(too_large).await, Some("result_too_large")),
    ];
    for _ in 0..20 {
        jobs.push((bed.submit("id: r\nop: work\n").await, None));
    }
    for (job, code) in jobs {
        let view = bed.finish(&[&worker], job).await;
        assert_eq!(view.failure_code.as_deref(), code, "{view:?}");
    }
    assert_eq!(bed.runs().len(), 3 + 1 + 20);
}
