//! The op `container` under a lease that somebody else acquired: `run-with-lease` is a process, and there is no worker.

use std::process::{Child, Stdio};

use super::*;
use crate::cli::leasehold::{Said, wait};

/// What every run here says of itself.
const HAS: [&str; 4] = ["--allocation-cpu", "4000", "--allocation-memory", "1Pi"];

impl Bench {
    /// Acquires the job's lease, long enough that a busy machine comes to import it.
    async fn acquire(&mut self, job: JobId) -> String {
        let path = std::env::temp_dir().join(format!("lh-supplied-{}.lease", uuid::Uuid::new_v4()));
        let (id, file) = (job.to_string(), path.to_str().unwrap().to_owned());
        self.files.push(path);
        eventually(SOON, "the job can be acquired", async || {
            let args = ["lease", "acquire", "--job", &id, "--lease-file", &file, "--lease-duration", "60s"];
            let said = self.leasehold.run(&args);
            assert!([0, 4].contains(&said.code), "{said:?}");
            (said.code == 0).then_some(())
        })
        .await;
        file
    }

    fn run_with_lease(&self, job: JobId, file: &str) -> Child {
        let job = job.to_string();
        let run = ["run-with-lease", "--job", &job, "--lease-file", file, "--secret", "SECRET_OF_TASKS"];
        let mut command = self.leasehold.command(&[&run[..], &HAS].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// The exit code, and the one line of output.
fn ended(run: Child) -> (i32, Value) {
    let said = Said::of(wait(run, SOON, &["run-with-lease"]));
    let line = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    (said.code, line)
}

/// E7: on the node, with the limits that the task needs, under the epoch that was acquired; what it prints is stored, and
/// the next task may be on the same node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supplied_lease_runs_containers_on_a_node_to_the_end_of_the_recipe() {
    let mut bench = Bench::on(1).await;
    bench.node(2).await;
    let needs = json!({ "execution_needs": { "resources": { "cpu": "500m", "memory": "64Mi" } } });
    let print = format!("echo \"$TOKEN\"; {WAIT}; echo '{{\"n\": 1.50}}'");
    let first =
        inputs(script("first", &print), &json!({ "env": { "TOKEN": "${{ secrets.SECRET_OF_TASKS }}" } }));
    let second = script("second", "echo behind; echo '${{ sequence.first.outputs.n }}'");
    let job = bench.submit(&json!({ "id": "supplied", "sequence": [with(first, &needs), second] }));
    let file = bench.acquire(job).await;
    let run = bench.run_with_lease(job, &file);

    let running = bench.runs(1).await.remove(0);
    assert_eq!(bench.slots().await, 1);
    let shown = bench.engine.stranger.inspect_container(running.id.as_str(), None).await.unwrap();
    let limits = shown.host_config.unwrap();
    assert_eq!((limits.memory, limits.nano_cpus), (Some(64 << 20), Some(500_000_000)));
    let acquired: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let epoch = bench.variable(&running.id, "LEASEHOLD_FENCING_EPOCH").await;
    assert_eq!(epoch, acquired["epoch"].to_string());
    bench.go(&running.id).await;

    assert_eq!(ended(run), (0, json!({ "outcome": "completed", "job": job.0 })));
    let ended = bench.ended(job).await;
    assert_eq!((&ended["state"], &ended["output"]["second"]), (&json!("COMPLETED"), &json!(1.5)), "{ended}");
    assert_eq!(ended["leases"].as_array().unwrap().len(), 1, "{ended}");
    let log = bench.log(job).await;
    assert!(
        log.contains("****************\n") && log.contains("behind\n") && !log.contains("s3cret"),
        "{log}"
    );
    bench.finish().await;
}

/// A node that cannot have the task is none: the job waits for a while, on no process, and no attempt is used. What is
/// stopped in the middle of a container leaves none, and whoever comes next goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supplied_lease_waits_without_a_process_where_no_node_fits_and_leaves_no_container_when_stopped() {
    let mut bench = Bench::on(2).await;
    bench.node(1).await;
    // More than any node has, and no more than the process says of itself.
    let huge = json!({ "execution_needs": { "resources": { "memory": "512Ti" } } });
    let job = bench.submit(&json!({ "id": "huge", "sequence": [with(script("x", "echo 7"), &huge)] }));
    let file = bench.acquire(job).await;
    let (code, line) = ended(bench.run_with_lease(job, &file));
    assert_eq!((code, &line["outcome"]), (0, &json!("waiting")), "{line}");
    assert!(line["waiting"]["time"].is_string() && line["waiting"].as_object().unwrap().len() == 1, "{line}");
    assert_eq!((bench.results(job), bench.slots().await), (vec![], 0), "nothing has begun");
    let why = bench.leasehold.run(&["job", "why", &job.to_string()]).out;
    assert!(why.contains("none of 1 usable runtime node had that") && why.contains("memory=512Ti"), "{why}");
    // And once more, when its time has come.
    let file = bench.acquire(job).await;
    assert_eq!(ended(bench.run_with_lease(job, &file)).1["outcome"], "waiting");
    bench.leasehold.run(&["job", "cancel", &job.to_string()]);
    let canceled = bench.ended(job).await;
    assert_eq!((&canceled["state"], &canceled["attempt"]), (&json!("CANCELED"), &json!(1)), "{canceled}");

    // The one slot is taken by another job's task.
    let small =
        bench.submit(&json!({ "id": "small", "sequence": [script("x", &format!("{WAIT}; echo 7"))] }));
    let file = bench.acquire(small).await;
    let holds = bench.run_with_lease(small, &file);
    let running = bench.runs(1).await.remove(0);
    let other = bench.submit(&json!({ "id": "other", "sequence": [script("x", "echo 8")] }));
    let file = bench.acquire(other).await;
    assert_eq!(ended(bench.run_with_lease(other, &file)).1["outcome"], "waiting");

    // SIGTERM gives the job back; its container is gone with the process.
    kill_process(Pid::from_child(&holds), Signal::TERM).unwrap();
    let (code, line) = ended(holds);
    assert_eq!((code, &line["outcome"]), (0, &json!("released")), "{line}");
    let left: Vec<_> =
        bench.containers().await.into_iter().filter(|status| status.id == running.id).collect();
    assert!(left.is_empty(), "{left:?}");

    for (job, output) in [(small, 7), (other, 8)] {
        let file = bench.acquire(job).await;
        let run = bench.run_with_lease(job, &file);
        if job == small {
            let running = bench.runs(1).await.remove(0);
            bench.go(&running.id).await;
        }
        assert_eq!(ended(run).1["outcome"], "completed");
        let ended = bench.ended(job).await;
        assert_eq!((&ended["output"]["x"], &ended["attempt"]), (&json!(output), &json!(1)), "{ended}");
    }
    bench.finish().await;
}
