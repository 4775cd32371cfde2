//! What was published decides who is offered a job while it is exact, and only orders once it is stale.

use std::time::Duration;

use leasehold_actors::{
    domain::Namespace,
    ports::Ended,
    testing::crash_points::{CrashPoints, Deed, Fault, Side},
};

use super::bed::{Bed, output};

const RECIPE: &str = r#"
id: r
sequence:
  - { id: heavy, execution_needs: { resources: { memory: 16Gi } }, op: work }
  - { id: light, op: work }
"#;

/// RP-17
pub async fn an_exact_hint_keeps_the_job_from_who_declined_it_and_from_nobody_who_fits(bed: Bed) {
    let small = bed.worker("small", "memory=1Gi");
    let job = bed.submit(RECIPE).await;
    let turn = bed.turn(&small).await.expect("nothing is published yet");
    assert_eq!(turn.ended, Some(Ended::Rescheduled));
    let handed_off = bed.view(job).await;
    // Nobody has what it needs, one by a single byte: it waits, however long, and does not go to and fro.
    let almost = bed.worker("almost", "memory=17179869183");
    for _ in 0..3 {
        assert!(bed.turn(&small).await.is_none());
        assert!(bed.turn(&almost).await.is_none());
        bed.harness.age_queued(job, Duration::from_secs(3600)).await;
    }
    let waits = bed.view(job).await;
    assert_eq!((waits.attempt, waits.epoch), (handed_off.attempt, handed_off.epoch));
    // Such a worker comes: it has the job at its first claim.
    let exact = bed.worker("exact", "memory=17179869184");
    bed.turn(&exact).await.expect("it fits");
    assert_eq!(output(&bed.view(job).await), r#"{"heavy":null,"light":null}"#);
    assert_eq!(bed.ran(), ["heavy on exact", "light on exact"]);
}

/// E9
pub async fn a_stale_hint_orders_and_keeps_a_runnable_job_waiting_for_five_seconds_at_most(bed: Bed) {
    let small = bed.worker("small", "memory=1Gi");
    let points = CrashPoints::with([Fault::at("recipe.record.task", Side::After, "heavy", Deed::Hang)]);
    let large = bed.worker_behind(&points, "large", "memory=32Gi");
    let job = bed.submit(RECIPE).await;
    bed.turn(&small).await.expect("nothing is published yet");
    // The one that fits records the heavy task, and dies: what is published is now about work that is done.
    let grant = bed.claim(&large).await.expect("it fits");
    let death = points.until_done_at("recipe.record.task", Side::After);
    assert!(bed.run(&large, &grant, death).await.is_none());
    bed.recover(&large, job).await;
    bed.harness.store().dispatch(&Namespace::default(), 10).await.unwrap();
    assert!(bed.turn(&small).await.is_none(), "for a moment it is kept for who fits");
    bed.harness.age_queued(job, Duration::from_secs(5)).await;
    bed.turn(&small).await.expect("but not for longer than 5 s");
    assert_eq!(bed.ran(), ["heavy on large", "light on small"]);
    assert_eq!(output(&bed.view(job).await), r#"{"heavy":null,"light":null}"#);
    let counted = bed.view(job).await.failures;
    assert_eq!(counted, [0, 0, 0], "it had got on before the death, and a handoff is no failure");
}
