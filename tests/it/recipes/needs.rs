//! Needs in nested scopes: which task ran where, how often needs are published, and when a job is given up.

use std::collections::BTreeSet;

use leasehold_actors::{
    domain::{JobState, Namespace},
    ports::Ended,
    testing::crash_points::{CrashPoints, Deed, Fault, Side},
};

use super::bed::Bed;

/// Scopes in scopes, in `parallel`, in a state machine, and changed by tasks on the way.
const NESTED: &str = r#"
id: r
execution: { resources: { cpu: "1" }, platform: linux/amd64 }
sequence:
  - { id: start, op: work, inputs: { give: 4Gi } }
  - id: build
    execution_needs: { resources: { memory: "${{ sequence.start.outputs }}" } }
    sequence:
      - { id: fetch, op: work }
      - id: arm
        execution_needs: { platform: linux/arm64 }
        sequence:
          - { id: compile, op: work }
          - { id: test, execution_needs: { resources: { cpu: "4" } }, op: work }
      - { id: sign, op: work }
  - id: again
    state:
      initial: try
      states:
        - id: try
          execution_needs: { platform: linux/arm64 }
          op: work
          inputs: { give: "${{ transition.payload == null ? 1 : 2 }}" }
          transitions: [ { to: done, when: "${{ states.try.outputs == 2 }}" }, { to: check, payload: 1 } ]
        - { id: check, op: work, transitions: [ { to: try, payload: 1 } ] }
        - { id: done, op: work, inputs: { ask: { platform: linux/arm64 } } }
  - id: fan
    parallel:
      - { id: one, op: work }
      - { id: two, execution_needs: { resources: { memory: 1Gi } }, op: work }
"#;

/// The tasks in their order, each with the one worker that fits it: `amd` has 1 cpu, `arm` 1 and 4 GiB, `big` is an arm with
/// 4 cpus and 4 GiB, `amd-4g` an amd with 4 GiB.
const TABLE: &[(&str, &str)] = &[
    ("start", "amd"),
    ("build/fetch", "amd-4g"),
    ("build/arm/compile", "arm"),
    ("build/arm/test", "big"),
    ("build/sign", "amd-4g"),
    ("again/try#1", "arm"),
    ("again/check#1", "amd"),
    ("again/try#2", "arm"),
    ("again/done#1", "amd"),
    // After `done` everything wants an arm.
    ("fan/one", "arm"),
    ("fan/two", "arm"),
];

/// E2, E4
pub async fn each_task_of_nested_scopes_runs_where_the_table_says_and_replays_ask_for_nothing(bed: Bed) {
    // Of two that fit, the order in which they are asked decides: the smaller ones are asked first.
    let workers = [
        bed.worker("amd", "cpu=1,platform=linux/amd64"),
        bed.worker("arm", "cpu=1,memory=4Gi,platform=linux/arm64"),
        bed.worker("amd-4g", "cpu=1,memory=4Gi,platform=linux/amd64"),
        bed.worker("big", "cpu=4,memory=4Gi,platform=linux/arm64"),
    ];
    let job = bed.submit(NESTED).await;
    let mut turns = 0;
    while !bed.view(job).await.state.is_terminal() {
        turns += 1;
        assert!(turns < 40, "{:?}", bed.ran());
        let mut moved = 0;
        for worker in &workers {
            // One at a time, and then again from the first: so it is the smallest one that fits.
            if bed.turn(worker).await.is_some() {
                moved += 1;
                break;
            }
        }
        assert_eq!(moved, 1, "an exact hint that nobody fits: {:?}", bed.ran());
    }
    assert_eq!(bed.view(job).await.state, JobState::Completed);
    let mut ran: Vec<(String, String)> = bed.runs().into_iter().map(|run| (run.path, run.worker)).collect();
    let both = ran.len() - 2;
    ran[both..].sort();
    let table: Vec<_> =
        TABLE.iter().map(|(path, worker)| ((*path).to_owned(), (*worker).to_owned())).collect();
    assert_eq!(ran, table);
    // Every invocation replayed what was before, and only the first unfinished task was ever handed off.
    let handed: Vec<String> =
        workers.iter().flat_map(|worker| worker.handoffs()).map(|handoff| handoff.path).collect();
    let distinct: BTreeSet<&String> = handed.iter().collect();
    assert_eq!(distinct.len(), handed.len(), "{handed:?}");
    let changes = TABLE.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    assert_eq!(handed.len(), changes, "{handed:?}");
    assert_eq!(bed.view(job).await.attempt, 1);
}

/// RP-17: who tries in vain, and tries again in vain, publishes once.
pub async fn the_same_insufficient_attempts_raise_no_revision(bed: Bed) {
    let small = bed.worker("small", "cpu=1");
    // The same need, written otherwise each time it is looked at, is the same need.
    let job = bed.submit("id: r\nexecution: { resources: { cpu: 2000m, memory: 1024Mi } }\nop: work\n").await;
    let before = bed.view(job).await.payload_revision;
    bed.turn(&small).await.expect("nothing is published yet");
    let published = bed.view(job).await.payload_revision;
    assert_eq!(published, before + 1);
    let payload = bed.payload(job).await;
    for n in 1..=4 {
        // Somebody who fits takes it and dies: the hint is stale, and the small one gets it again.
        let points = CrashPoints::with([Fault::once("recipe.history", Side::Before, Deed::Hang)]);
        let dies = bed.worker_behind(&points, "dies", "cpu=2,memory=1Gi");
        let grant = bed.claim(&dies).await.expect("it fits");
        let death = points.until_done_at("recipe.history", Side::Before);
        assert!(bed.run(&dies, &grant, death).await.is_none());
        bed.recover(&small, job).await;
        bed.harness.store().dispatch(&Namespace::default(), 10).await.unwrap();
        bed.harness.age_queued(job, std::time::Duration::from_secs(5)).await;
        let turn = bed.turn(&small).await.expect("a stale hint keeps nobody for long");
        assert_eq!(turn.ended, Some(Ended::Rescheduled));
        assert_eq!(bed.view(job).await.payload_revision, published, "attempt {n}");
        assert_eq!(bed.payload(job).await, payload, "attempt {n}");
        assert!(!small.handoffs().last().unwrap().published);
    }
    assert_eq!((bed.runs().len(), small.handoffs().len()), (0, 5));
}

/// E2: more than is needed is never a reason to go.
pub async fn an_allocation_that_is_larger_than_needed_never_yields(bed: Bed) {
    let facts = "cpu=64,memory=512Gi,ephemeral-storage=2Ti,platform=linux/arm64/v8,image=busybox:1";
    let huge = bed.worker("huge", facts);
    let yaml = r#"
id: r
execution: { resources: { cpu: 100m, memory: 1Mi, ephemeral-storage: 1Mi }, platform: linux/arm64 }
sequence:
  - { id: a, op: work }
  - { id: b, execution_needs: { resources: { cpu: "63.999", memory: 511Gi } }, op: work, inputs: { ask: { resources: { cpu: 1m } } } }
  - { id: c, execution_needs: { image: docker.io/library/busybox:1 }, op: work }
  - { id: d, op: work }
"#;
    let job = bed.submit(yaml).await;
    bed.turn(&huge).await.expect("it is queued");
    assert_eq!(bed.view(job).await.state, JobState::Completed);
    assert_eq!(bed.ran(), ["a on huge", "b on huge", "c on huge", "d on huge"]);
    assert_eq!(
        (huge.handoffs(), bed.view(job).await.epoch, bed.payload(job).await.as_str()),
        (vec![], 1, "null")
    );
}

/// The two workers have one op and one half of the needs each: neither can ever run it.
pub async fn two_workers_with_half_of_the_needs_each_do_not_bounce_a_job_for_ever(bed: Bed) {
    let points = CrashPoints::recording();
    let cpu = bed.worker_with("cpu", "cpu=8", &bed.ops("cpu", &["crunch"]), &points);
    let memory = bed.worker_with("memory", "memory=64Gi", &bed.ops("memory", &["sort"]), &points);
    let yaml = r#"
id: r
execution: { resources: { cpu: "8" } }
sequence:
  - { id: a, op: crunch }
  - { id: b, execution_needs: { resources: { memory: 64Gi } }, op: sort }
"#;
    let job = bed.submit(yaml).await;
    let mut turns = 0;
    // A hint that nobody fits holds the job; here it is made stale each time, by an owner that lets go.
    while !bed.view(job).await.state.is_terminal() {
        turns += 1;
        assert!(turns <= 40, "it bounces for ever: {:?}", bed.view(job).await);
        for worker in [&cpu, &memory] {
            bed.turn(worker).await;
        }
        if bed.view(job).await.state.is_terminal() {
            break;
        }
        // Any worker that fits, and goes again: a drain, an update, a crash.
        let fits =
            bed.worker_with("fits", "cpu=8,memory=64Gi", &bed.ops("fits", &["crunch", "sort"]), &points);
        bed.harness.store().dispatch(&Namespace::default(), 10).await.unwrap();
        let grant = bed.claim(&fits).await.expect("it fits");
        assert!(bed.run(&fits, &grant, std::future::ready(())).await.is_none());
        bed.recover(&fits, job).await;
        bed.harness.store().dispatch(&Namespace::default(), 10).await.unwrap();
        bed.harness.age_queued(job, std::time::Duration::from_secs(5)).await;
    }
    let view = bed.view(job).await;
    assert_eq!((view.state, view.failure_code.as_deref()), (JobState::Failed, Some("handoff_loop")));
    assert_eq!(bed.ran(), ["a on cpu"], "what fits ran once, the rest nowhere");
    let handed = cpu.handoffs().len() + memory.handoffs().len();
    assert!((9..=11).contains(&handed), "{handed} handoffs with nothing recorded between");
}
