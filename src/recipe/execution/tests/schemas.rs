//! Recipes and ops whose inputs and outputs must keep to a schema.

use leasehold_actors::domain::Route;

use super::*;
use crate::recipe::schemas::route_schemas;

impl Bed {
    pub(super) async fn asks(&self, op: &str, input: Option<&str>, output: Option<&str>) {
        let schemas = route_schemas(input, output).expect("good schemas");
        let route = Route::recipe("recipe", op);
        let runtime = StoreRuntime::new(Arc::new(self.store.clone()));
        let on_handoff: OnHandoff = Arc::new(|_| {});
        let guarded = ExecutionRuntime::new(Arc::new(runtime), Allocation::default(), on_handoff);
        guarded.register_schema(&Namespace::default(), &route, &schemas).await.expect("it answers");
    }
}

fn failure(view: &JobView) -> &str {
    assert_eq!(view.state, JobState::Failed, "{view:?}");
    view.failure_code.as_deref().expect("a failure has a code")
}

#[tokio::test(start_paused = true)]
async fn an_op_is_not_run_with_inputs_that_break_its_schema() {
    let bed = Bed::new();
    bed.asks(
        "work",
        Some(r#"{"properties": {"give": {"maximum": 3}, "note": {"pattern": "^secrets?"}}}"#),
        None,
    )
    .await;
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
sequence:
  - { id: a, op: work, inputs: { give: 2 } }
  - id: b
    op: work
    inputs: { give: "${{ sequence.a.outputs + 2 }}" }
    catch: { op: work, inputs: { give: 1, note: "secret: ${{ error.code }}" } }
"#;
    let job = bed.submit(yaml).await;
    assert_eq!(output(&bed.finish(&worker, job).await), r#"{"a":2,"b":1}"#);
    assert_eq!(bed.ran(), ["a on w", "b/catch on w"]);
    let events = bed.log(job).await;
    let EventBody::Task { outcome: TaskOutcome::Failed(failed), .. } = &events[1].body else {
        panic!("{events:?}")
    };
    assert_eq!(failed.code, "schema_violation");
    assert!(failed.message.starts_with("inputs of op work, at \"/give\": "), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_output_that_breaks_its_schema_is_not_recorded() {
    let bed = Bed::new();
    bed.asks("work", None, Some(r#"{"type": "integer"}"#)).await;
    bed.asks("", None, Some(r#"{"required": ["b"]}"#)).await;
    let worker = bed.worker("w", "");
    let job = bed.submit("id: r\nsequence: [{ id: a, op: work, inputs: { give: text } }]\n").await;
    assert_eq!(failure(&bed.finish(&worker, job).await), "schema_violation");
    let events = bed.log(job).await;
    let text = format!("{events:?}");
    assert!(text.contains("output of op work, at the top: ") && !text.contains("text\\\""), "{text}");
    // And of the recipe itself.
    let job = bed.submit("id: r\nsequence: [{ id: a, op: work, inputs: { give: 1 } }]\n").await;
    assert_eq!(failure(&bed.finish(&worker, job).await), "schema_violation");
    let job = bed.submit("id: r\nsequence: [{ id: b, op: work, inputs: { give: 1 } }]\n").await;
    assert_eq!(output(&bed.finish(&worker, job).await), r#"{"b":1}"#);
}

#[tokio::test(start_paused = true)]
async fn a_job_is_held_to_what_it_was_submitted_under_whoever_runs_it() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml =
        "id: r\ninputs: { n: { type: integer } }\nsequence: [{ id: a, op: work, inputs: { give: 7 } }]\n";
    let with = |n: &str| {
        let inputs = RawJson::new(format!(r#"{{"n": {n}}}"#)).expect("JSON");
        move |spec: &mut RecipeSpec, _: &mut NewJob| spec.inputs = inputs
    };
    let before = bed.submit_with(yaml, with("1")).await;
    bed.asks("", Some(r#"{"properties": {"n": {"minimum": 5}}}"#), None).await;
    bed.asks("work", None, Some(r#"{"minimum": 5}"#)).await;
    let under = bed.submit_with(yaml, with("5")).await;
    let breaks = bed.submit_with(yaml, with("4")).await;
    bed.asks("", Some("false"), None).await;
    bed.asks("work", None, Some("false")).await;
    assert_eq!(output(&bed.finish(&worker, before).await), r#"{"a":7}"#);
    assert_eq!(failure(&bed.finish(&worker, breaks).await), "schema_violation");
    assert!(bed.log(breaks).await.is_empty(), "nothing ran");
    // The holder goes away before it ran anything; the schemas stay those of the submission.
    if bed.view(under).await.state == JobState::Queued {
        bed.claim(&worker).await.expect("it is queued");
        bed.recover(&worker, under).await;
    }
    assert_eq!(output(&bed.finish(&bed.worker("other", ""), under).await), r#"{"a":7}"#);
}
