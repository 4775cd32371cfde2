//! What tells one step from another, and that a replay goes the same way wherever it goes on.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::recipe::{
    bundle::Bundle,
    op::{Ops, Task},
};
use leasehold_actors::{
    domain::{JobId, JobState, Namespace, RawJson},
    testing::crash_points::{CrashPoints, Deed, Fault, Side},
};

use super::bed::{Bed, output};
use crate::support::{eventually::pass, size::rounds};

/// Calls that are alike in everything but their place: one after the other, in a loop, in a recipe that is included
/// twice, at once.
const MAIN: &str = r#"
id: r
sequence:
  - { id: one, op: poll, inputs: { of: x } }
  - { id: two, op: poll, inputs: { of: x } }
  - id: loop
    state:
      initial: look
      states:
        - { id: look, op: poll, inputs: { of: x }, transitions: [ { to: end, when: "${{ states.look.outputs >= 5 }}" }, { to: look } ] }
        - { id: end, op: poll, inputs: { of: x } }
  - { id: first, include: part.yaml }
  - { id: second, include: part.yaml }
  - id: both
    parallel:
      - { id: left, op: poll, inputs: { of: x } }
      - { id: right, op: poll, inputs: { of: x } }
"#;
const PART: &str = "id: part\nsequence:\n  - { id: one, op: poll, inputs: { of: x } }\n  - { id: two, op: poll, inputs: { of: x } }\n";

const PATHS: &[&str] = &[
    "one",
    "two",
    "loop/look#1",
    "loop/look#2",
    "loop/look#3",
    "loop/end#1",
    "first/one",
    "first/two",
    "second/one",
    "second/two",
    "both/left",
    "both/right",
];

/// Every occurrence that was asked for, by its key: the first is answered with 1, the second with 2, and a repeat of one as
/// it was before.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<(String, String)>>>);

impl Answers {
    fn ops(&self) -> Ops {
        let answers = self.clone();
        let mut ops = Ops::new();
        let poll = move |task: Task| {
            let answers = answers.clone();
            async move { Ok(answers.to(&task).to_string().into()) }
        };
        ops.register_fn("poll", poll).unwrap();
        ops
    }

    fn to(&self, task: &Task) -> usize {
        let mut asked = self.0.lock().unwrap();
        let found = asked.iter().position(|(key, _)| *key == task.idempotency_key);
        let at = found.unwrap_or_else(|| {
            asked.push((task.idempotency_key.clone(), task.path.clone()));
            asked.len() - 1
        });
        assert_eq!(asked[at].1, task.path, "two occurrences have one key");
        at + 1
    }
}

async fn submit(bed: &Bed) -> JobId {
    let files = [("r.yaml", MAIN), ("part.yaml", PART)];
    let files: BTreeMap<String, String> =
        files.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    let bundle = Bundle::new("r.yaml", files);
    leasehold::recipe::compile(&bundle).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    bed.submit_with("id: r\nop: work\n", |spec, _| {
        spec.digest = bundle.digest();
        spec.bundle = RawJson::new(bundle.to_json()).unwrap();
    })
    .await
}

/// RP-01: a crash before and after each record; what is recorded at one place is never the answer of another.
pub async fn steps_that_are_alike_in_all_but_their_place_have_results_of_their_own(bed: Bed) {
    let every = if bed.is_memory() { 1 } else { rounds(5, 1) as usize };
    let crashes = PATHS.iter().flat_map(|path| [(*path, Side::Before), (*path, Side::After)]);
    for (path, side) in crashes.step_by(every) {
        let bed = bed.anew();
        let answers = Answers::default();
        let points = CrashPoints::with([Fault::at("recipe.record.task", side, path, Deed::Hang)]);
        let first = bed.worker_with("first", "", &answers.ops(), &points);
        let second = bed.worker_with("second", "", &answers.ops(), &CrashPoints::recording());
        let job = submit(&bed).await;
        let grant = bed.claim(&first).await.expect("it is queued");
        let death = points.until_done_at("recipe.record.task", side);
        assert!(bed.run(&first, &grant, death).await.is_none(), "{path}: nobody died");
        if bed.view(job).await.state == JobState::Running {
            bed.recover(&second, job).await;
        }
        let view = bed.finish(&[&second], job).await;
        let both: serde_json::Value = serde_json::from_str(output(&view)).unwrap();
        let (left, right) = (both["both"]["left"].clone(), both["both"]["right"].clone());
        let mut last = [left.as_u64().unwrap(), right.as_u64().unwrap()];
        last.sort_unstable();
        assert_eq!(last, [11, 12], "{path}: branches begin in either order");
        assert_eq!(
            both,
            serde_json::json!({
                "one": 1, "two": 2, "loop": 6,
                "first": { "one": 7, "two": 8 }, "second": { "one": 9, "two": 10 },
                "both": { "left": left, "right": right },
            }),
            "{path}.{side}"
        );
        assert_eq!(answers.0.lock().unwrap().len(), PATHS.len(), "{path}.{side}");
    }
}

/// RP-03: three at once, in every order of their ends, and a death after each record: the places stay, and it ends.
pub async fn the_order_in_which_branches_end_is_no_part_of_what_they_are(bed: Bed) {
    let orders = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]];
    let paths = ["a", "b", "c"];
    let every = if bed.is_memory() { 1 } else { rounds(4, 1) as usize };
    let rounds = orders.iter().flat_map(|order| paths.iter().map(move |path| (order, *path)));
    for (order, path) in rounds.step_by(every) {
        let bed = bed.anew();
        let branch = |n: usize| {
            let id = paths[n];
            format!("  - {{ id: {id}, op: work, inputs: {{ takes_ms: {}, give: {n} }} }}\n", 40 * order[n])
        };
        let yaml = format!("id: r\nparallel:\n{}{}{}", branch(0), branch(1), branch(2));
        let points = CrashPoints::with([Fault::at("recipe.record.task", Side::After, path, Deed::Hang)]);
        let (first, second) = (bed.worker_behind(&points, "first", ""), bed.worker("second", ""));
        let job = bed.submit(&yaml).await;
        let grant = bed.claim(&first).await.expect("it is queued");
        let death = points.until_done_at("recipe.record.task", Side::After);
        assert!(bed.run(&first, &grant, death).await.is_none());
        bed.recover(&second, job).await;
        let view = bed.finish(&[&second], job).await;
        assert_eq!(output(&view), r#"{"a":0,"b":1,"c":2}"#, "{order:?}, died behind {path}");
        assert_eq!(bed.log(job).await.len(), 3, "{order:?}, died behind {path}");
    }
}

/// A recipe whose way depends on all that is recorded: outputs, failures, needs that tasks asked for, a wait.
const WAY: &str = r#"
id: r
sequence:
  - { id: a, op: work, inputs: { give: { n: 2, memory: 3Gi } } }
  - { id: b, op: work, inputs: { ask: { resources: { cpu: "1" } } } }
  - { id: c, op: work, inputs: { fails: 1 }, retry: { max_attempts: 2, backoff: 1ms } }
  - { id: nap, op: sleep, inputs: { for: 1500ms } }
  - id: d
    when: "${{ sequence.a.outputs.n == 2 }}"
    execution_needs: { resources: { memory: "${{ sequence.a.outputs.memory }}" } }
    op: work
    inputs: { give: "${{ sequence.a.outputs.n + 1 }}" }
  - { id: e, when: "${{ sequence.d.outputs != 3 }}", op: work }
  - id: f
    state:
      initial: s
      states:
        - { id: s, op: work, inputs: { give: "${{ transition.payload == null ? 1 : transition.payload + 1 }}" }, transitions: [ { to: z, when: "${{ states.s.outputs >= sequence.d.outputs }}" }, { to: s, payload: "${{ states.s.outputs }}" } ] }
        - { id: z, execution_needs: { resources: { ephemeral-storage: 9Gi } }, op: work }
"#;

/// RP-05: the second half of one history on the process that made the first half and has seen other jobs, on one that
/// has seen nothing, and on a successor of the same name.
pub async fn warm_cold_and_restarted_workers_go_the_same_way(bed: Bed) {
    let facts = "cpu=1,memory=3Gi,ephemeral-storage=1Gi";
    let mut ways = Vec::new();
    for who in ["warm", "cold", "restarted"] {
        let bed = bed.anew();
        let first = bed.worker("first", facts);
        // Others of the same recipe, and of another one, come by before.
        for yaml in [WAY, "id: other\nsequence: [ { id: a, op: work, inputs: { give: 9 } } ]\n"] {
            let other = bed.submit(yaml).await;
            bed.turn(&first).await.expect("it is queued");
            bed.harness.request_cancel(&Namespace::default(), other, Duration::ZERO).await;
        }
        let job = bed.submit(WAY).await;
        let before = bed.runs().len();
        bed.turn(&first).await.expect("it is queued");
        assert_eq!(bed.view(job).await.state, JobState::Pending, "{who}: it waits in the middle");
        let (cold, restarted) = (bed.worker("second", facts), bed.worker("first", facts));
        let worker = match who {
            "warm" => &first,
            "cold" => &cold,
            _ => &restarted,
        };
        while worker.handoffs().is_empty() {
            assert!(!bed.view(job).await.state.is_terminal());
            if bed.turn(worker).await.is_none() {
                pass(Duration::from_millis(50)).await;
            }
        }
        let paths: Vec<String> = bed.runs()[before..].iter().map(|run| run.path.clone()).collect();
        let handoff = worker.handoffs().remove(0);
        let log: Vec<String> =
            bed.log(job).await.iter().map(|event| format!("{} {}", event.path, event.body.sort())).collect();
        bed.harness.request_cancel(&Namespace::default(), job, Duration::ZERO).await;
        ways.push((paths, handoff.path, handoff.requirements.to_string(), log));
    }
    assert_eq!(ways[0].0, ["a", "b", "c!1", "c!2", "d", "f/s#1", "f/s#2", "f/s#3"]);
    assert_eq!((ways[0].1.as_str(), ways[0].2.as_str()), ("f/z#1", "cpu=1,ephemeral-storage=9Gi"));
    assert!(ways.iter().all(|way| *way == ways[0]), "{ways:#?}");
}
