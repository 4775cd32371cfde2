//! Recipes of any shape on two workers that differ, one of which dies somewhere: the end is that of an undisturbed run.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A node without its id.
#[derive(Debug, Clone)]
enum Shape {
    Leaf { big: bool, takes: u64, fails: i32, attempts: u32, caught: bool, asks: bool },
    Sequence(Vec<Shape>),
    Parallel(Vec<Shape>, bool),
}

fn shape() -> impl Strategy<Value = Shape> {
    let leaf = (any::<bool>(), 0_u64..40, 0_i32..3, 1_u32..3, any::<bool>(), any::<bool>()).prop_map(
        |(big, takes, fails, attempts, caught, asks)| Shape::Leaf {
            big,
            takes,
            // Most succeed: a recipe that fails at once shows little.
            fails: if fails == 2 { 2 } else { 0 },
            attempts,
            caught,
            asks: asks && takes < 10,
        },
    );
    leaf.prop_recursive(3, 16, 3, |inner| {
        let some = proptest::collection::vec(inner, 1..4);
        prop_oneof![
            some.clone().prop_map(Shape::Sequence),
            (some, any::<bool>()).prop_map(|(nodes, caught)| Shape::Parallel(nodes, caught)),
        ]
    })
}

/// The node as a recipe writes it. Leaves that need much are told by their ids.
fn written(shape: &Shape, place: usize) -> Value {
    let children =
        |nodes: &[Shape]| nodes.iter().enumerate().map(|(n, node)| written(node, n)).collect::<Vec<_>>();
    let catch = json!({ "op": "work", "inputs": { "give": "caught" } });
    match shape {
        Shape::Leaf { big, takes, fails, attempts, caught, asks } => {
            let mut inputs = json!({ "give": place, "takes_ms": takes, "fails": fails });
            if *asks {
                inputs["ask"] = json!({ "resources": { "memory": "1Gi" } });
            }
            let id = format!("{}{place}", if *big { "big" } else { "leaf" });
            let mut node = json!({ "id": id, "op": "work", "inputs": inputs });
            if *big {
                node["execution_needs"] = json!({ "resources": { "cpu": "2" } });
            }
            if *attempts > 1 {
                node["retry"] = json!({ "max_attempts": attempts, "backoff": "10ms" });
            }
            if *caught {
                node["catch"] = catch;
            }
            node
        }
        Shape::Sequence(nodes) => json!({ "id": format!("s{place}"), "sequence": children(nodes) }),
        Shape::Parallel(nodes, caught) => {
            let mut node =
                json!({ "id": format!("p{place}"), "parallel": children(nodes), "timeout": "10m" });
            if *caught {
                node["catch"] = catch;
            }
            node
        }
    }
}

/// The state and the output that the job ends with.
async fn run(yaml: &str, at: u32, how: Do) -> (JobState, Option<String>) {
    let bed = Bed::new();
    let runtime = Between::new(&bed.store, move |number, _| if number == at { how } else { Do::Pass });
    let dead = Arc::clone(&runtime);
    let small = bed.worker_on(runtime, "small", "cpu=1,memory=2Gi", &bed.ops("small"));
    let large = bed.worker("large", "cpu=2,memory=2Gi");
    let job = bed.submit(yaml).await;
    let mut died = false;
    for turn in 0.. {
        assert!(turn < 400, "it does not end: {yaml}");
        if bed.view(job).await.state.is_terminal() {
            break;
        }
        if !died && turn % 2 == 0 {
            let Some(grant) = bed.claim(&small).await else { continue };
            let (lease, _watch) = bed.lease(&grant);
            tokio::select! {
                outcome = small.engine.run(&grant, &lease) => {
                    bed.report(&grant, &lease, outcome).await;
                }
                () = dead.dead.notified() => died = true,
            }
            if died && bed.view(job).await.state == JobState::Running {
                bed.recover(&large, job).await;
            }
        } else if bed.turn(&large).await.is_none() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    for run in bed.runs() {
        let last = run.path.split('/').rfind(|part| !part.starts_with("catch")).unwrap_or_default();
        // `catch` of a leaf stands inside the leaf's scope.
        assert!(run.worker == "large" || !last.starts_with("big"), "{run:?} in {yaml}");
    }
    let view = bed.view(job).await;
    (view.state, view.output)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// E1, E2: the op itself holds that no recorded success runs again.
    #[test]
    fn any_recipe_comes_to_the_same_end_wherever_a_worker_dies(root in shape(), at in 1_u32..40, after in any::<bool>()) {
        let yaml = json!({ "id": "r", "sequence": [written(&root, 0)] }).to_string();
        let how = if after { Do::DieAfter } else { Do::DieBefore };
        let paused = || {
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
        };
        let undisturbed = paused().block_on(run(&yaml, u32::MAX, Do::Pass));
        let disturbed = paused().block_on(run(&yaml, at, how));
        prop_assert_eq!(disturbed, undisturbed, "{}", yaml);
    }
}
