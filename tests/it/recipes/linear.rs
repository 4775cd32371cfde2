//! What a replay costs, counted and not timed: how often its walk is polled, and what is read.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use leasehold::recipe::{
    execution::{ReplayEnd, replay},
    op::{Ops, Task},
};
use leasehold_actors::{domain::Namespace, ports::recipe::EventBody, testing::crash_points::CrashPoints};

use super::bed::Bed;

/// Counts how often it is polled.
struct Counted<F>(Pin<Box<F>>, Arc<AtomicUsize>);

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.as_mut().poll(cx)
    }
}

fn looping(steps: usize) -> String {
    format!(
        r#"
id: r
sequence:
  - id: loop
    state:
      initial: step
      states:
        - id: step
          op: count
          inputs: {{ previous: "${{{{ transition.payload }}}}" }}
          transitions:
            - {{ to: done, when: "${{{{ states.step.outputs.n >= {steps} }}}}" }}
            - {{ to: step, payload: "${{{{ states.step.outputs }}}}" }}
        - {{ id: done, op: wait_for_signal, inputs: {{ name: go }} }}
"#
    )
}

pub async fn a_replay_takes_as_many_steps_and_reads_as_much_for_each_record_of_a_long_log_as_of_a_short_one(
    bed: Bed,
) {
    let mut ops = Ops::new();
    let count = |task: Task| async move {
        let input: serde_json::Value = task.input()?;
        let n = input["previous"]["n"].as_u64().unwrap_or(0) + 1;
        Ok(format!(r#"{{"n":{n},"text":"{}"}}"#, "x".repeat(1000)).into())
    };
    ops.register_fn("count", count).unwrap();
    let mut costs = Vec::new();
    for steps in [60, 180, 720] {
        let worker = bed.worker_with("w", "", &ops, &CrashPoints::recording());
        let job = bed.submit(&looping(steps)).await;
        bed.turn(&worker).await.expect("it is queued");
        let about = bed.harness.recipes().recipe_job(&Namespace::default(), job).await.unwrap().unwrap();
        let events = bed.log(job).await;
        assert_eq!(events.len(), steps);
        let bytes: usize = events.iter().map(|event| event.path.len() + event.body.bytes()).sum();
        assert!(events.iter().all(|event| matches!(event.body, EventBody::Task { .. })));

        // Read once: as many pages as it has, and one that is empty.
        let points = CrashPoints::recording();
        let reader = bed.worker_with("reader", "", &ops, &points);
        bed.harness.make_due(job).await;
        let turn = bed.turn(&reader).await.expect("it is due");
        assert!(turn.ended.is_some());
        let pages = points.reached()["recipe.history.after"] as usize;
        assert!(pages <= 2 + steps / 100, "{pages} pages of {steps} records");

        let polls = Arc::new(AtomicUsize::new(0));
        let namespace = Namespace::default();
        let walk = replay(&namespace, job, &about, events);
        let walked = Counted(Box::pin(walk), Arc::clone(&polls)).await.unwrap();
        assert!(matches!(walked.end, ReplayEnd::CacheMiss { .. }), "{:?}", walked.end);
        assert_eq!(walked.tasks.len(), steps);
        costs.push((steps, polls.load(Ordering::Relaxed) as f64 / steps as f64, bytes as f64 / steps as f64));
    }
    let (_, polls, bytes) = costs[0];
    for (steps, of_one, bytes_of_one) in &costs {
        assert!(of_one / polls < 1.1, "{steps} steps: {of_one:.2} polls each, {polls:.2} in a short log");
        assert!(
            bytes_of_one / bytes < 1.1,
            "{steps} steps: {bytes_of_one} bytes each, {bytes} in a short log"
        );
    }
}
