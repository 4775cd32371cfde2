//! Results that a recovery finds, recorded for the op whose worker is gone.

use leasehold_actors::{
    domain::{Epoch, FailureKind, NodeId, TaskKey},
    ports::{Placement, RuntimeStanding, TaskContainer, TaskOccurrence},
    runtime_node_actor::{
        NotRecorded, TaskResults as _,
        task::{TaskEnded, TaskOutput},
    },
};

use super::*;
use crate::recipe::canonical::input_hash;

fn container(path: &str) -> TaskContainer {
    TaskContainer {
        task: TaskKey::new("k").expect("a plain key"),
        path: path.to_owned(),
        epoch: Epoch(1),
        placement: Placement {
            node: NodeId::new("n1").expect("a plain name"),
            incarnation: 1,
            endpoint: "unix:///nowhere".to_owned(),
            engine_id: "e".to_owned(),
        },
        container: None,
        runtime: RuntimeStanding::Available,
        occurrence: None,
    }
}

fn occurrence(input: &str, attempt: i32) -> TaskOccurrence {
    let (op, input_hash) = ("work".to_owned(), input_hash("work", input));
    TaskOccurrence { op, input_hash, attempt, secrets: vec!["TOKEN".to_owned()], log_quota_bytes: None }
}

fn exit(code: i32, stdout: &str, stderr: &str) -> TaskEnded {
    let outcome = match code {
        0 => WorkOutcome::Completed { exit_code: Some(0), output: None },
        _ => WorkOutcome::Failed(
            Failure::new(FailureKind::User, code.to_string(), format!("exit code {code}"))
                .with_exit_code(code),
        ),
    };
    TaskEnded { outcome, output: TaskOutput::of(stdout.as_bytes(), stderr.as_bytes(), 1000) }
}

/// The recipe goes on as if its op had recorded them: the output, a failed attempt that is tried again, secrets by stars.
/// What stands in the log already goes on standing there.
#[tokio::test(start_paused = true)]
async fn what_a_recovery_records_is_what_the_op_would_have() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
sequence:
  - { id: a, op: work, inputs: { give: 1 } }
  - { id: b, op: work, inputs: { give: 2 }, retry: { max_attempts: 2 } }
"#;
    let job = bed.submit(yaml).await;
    let grant = bed.claim(&worker).await.expect("it is due");
    let (lease, watch) = bed.lease(&grant);
    let (one, two) = (occurrence(r#"{"give":1}"#, 1), occurrence(r#"{"give":2}"#, 1));
    let printed = exit(0, "talk\n{\"n\": 1.50, \"t\": \"s3cret-value\"}\n", "");
    worker.engine.record(&lease, &container("a"), &one, printed).await.expect("it is recorded");
    for _ in 0..2 {
        let failed = exit(3, "", "no s3cret-value\n");
        worker.engine.record(&lease, &container("b!1"), &two, failed).await.expect("it is recorded");
    }
    let other = exit(0, "1\n", "");
    worker.engine.record(&lease, &container("a"), &one, other).await.expect("something is recorded there");
    let events = bed.log(job).await;
    assert_eq!(events.len(), 2, "{events:?}");
    let EventBody::Task { outcome: TaskOutcome::Failed(failure), .. } = &events[1].body else {
        panic!("{events:?}")
    };
    assert_eq!((failure.code.as_str(), failure.exit_code), ("3", Some(3)));
    assert_eq!(failure.message, "exit code 3: no ***");
    drop((lease, watch));
    bed.recover(&worker, job).await;
    assert_eq!(output(&bed.finish(&worker, job).await), r#"{"a":{"n": 1.50, "t": "***"},"b":2}"#);
    assert_eq!(bed.ran(), ["b!2 on w"]);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_a_recovery_finds_keeps_to_its_schema_and_to_the_lease() {
    let bed = Bed::new();
    bed.asks("work", None, Some(r#"{"type": "integer"}"#)).await;
    let worker = bed.worker("w", "");
    let job = bed.submit("id: r\nsequence: [{ id: a, op: work, inputs: { give: 1 } }]\n").await;
    let grant = bed.claim(&worker).await.expect("it is due");
    let (lease, _watch) = bed.lease(&grant);
    let told = occurrence(r#"{"give":1}"#, 1);
    worker.engine.record(&lease, &container("a"), &told, exit(0, "\"text\"\n", "")).await.expect("recorded");
    let events = bed.log(job).await;
    assert!(format!("{events:?}").contains("schema_violation"), "{events:?}");

    let job = bed.submit("id: r\nsequence: [{ id: a, op: work, inputs: { give: 1 } }]\n").await;
    let grant = bed.claim(&worker).await.expect("it is due");
    let (lease, _watch) = bed.lease(&grant);
    bed.store.expire(job).await;
    let late = worker.engine.record(&lease, &container("a"), &told, exit(0, "1\n", "")).await;
    assert_eq!(late, Err(NotRecorded::Lost));
    assert!(bed.log(job).await.is_empty());
    let unknown = ["TOKEN".to_owned(), "NO".to_owned()];
    assert_eq!(worker.engine.unknown(&unknown), Some("NO"));
    assert_eq!(worker.engine.unknown(&unknown[..1]), None);
}
