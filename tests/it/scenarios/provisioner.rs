//! `examples/provisioner` on a real database and a real engine: killed at each of its points, it leaves a job that runs
//! once, a lease that ends in time, and no container.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use bollard::query_parameters::ListContainersOptionsBuilder;
use leasehold::{
    postgres::{
        PgStore,
        read::{JobDetail, LeaseRow},
    },
    protocol::domain::{JobId, JobState, Namespace},
};
use rustix::process::{Pid, Signal, kill_process};

use super::worker_process::example;
use crate::{
    cli::leasehold::Leasehold,
    support::{
        database::TestDatabase,
        engine::{IMAGE, TestEngine},
        eventually::eventually,
        services,
    },
};

const PATIENCE: Duration = Duration::from_secs(180);
/// Where nothing is to run out, however busy the machine is.
const LONG: Duration = Duration::from_secs(30);
/// So that what a killed provisioner held is soon over.
const SHORT: Duration = Duration::from_secs(6);

/// A process of this test, killed when it is dropped.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(name: &str, folder: &Path, mut command: Command) -> Self {
        let log = folder.join(format!("{name}-{}", uuid::Uuid::new_v4().simple()));
        let open = || File::options().create(true).append(true).open(&log).unwrap();
        let (out, err) = (open(), open());
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
        Self { child, log }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn kill(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::KILL).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}: {}", self.log.display(), self.said());
        }
    }
}

/// A database, a node, a worker that is too small, and a job that has found that out.
struct Bed {
    database: TestDatabase,
    store: PgStore,
    engine: TestEngine,
    folder: PathBuf,
    leasehold: Leasehold,
    job: JobId,
    lease: Duration,
    // Last, and in this order: what is dropped first ends first.
    _small: Process,
    _node: Process,
}

/// The second step needs twice what the first worker has, and is slow enough to be killed beside.
const RECIPE: &str = r#"
id: grow
execution: { resources: { memory: 64Mi } }
sequence:
  - id: probe
    op: command
    inputs: { argv: [sh, -c, 'echo "probe $LEASEHOLD_FENCING_EPOCH" >> "$LEDGER/steps"; echo "{\"memory\": \"512Mi\"}"'], env: { LEDGER: "LEDGER_SMALL" } }
  - id: heavy
    execution_needs: { resources: { cpu: "1", memory: "${{ sequence.probe.outputs.memory }}" } }
    op: command
    inputs: { argv: [sh, -c, 'echo "heavy $LEASEHOLD_FENCING_EPOCH" >> /ledger/steps; until [ -e /ledger/go ]; do sleep 0.1; done; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null | head -1'] }
"#;

impl Bed {
    async fn make(lease: Duration) -> Self {
        // Built before any clock runs.
        let _ = example("provisioner");
        let database = TestDatabase::create().await;
        let store = database.store().await;
        let engine = TestEngine::at(&services::docker_endpoint(1)).await;
        let folder = std::env::temp_dir().join(format!("lh-provisioner-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir_all(folder.join("ledger")).unwrap();
        let mut leasehold = Leasehold::on(database.url())
            .with("EXECUTION_WORKER_RECOVERY_INTERVAL", "200ms")
            .with("LEASEHOLD_LOG", "info");
        if lease == SHORT {
            leasehold = leasehold
                .with("EXECUTION_WORKER_LEASE_DURATION", "6s")
                .with("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "1s")
                .with("EXECUTION_WORKER_STORE_TIMEOUT", "1500ms")
                .with("EXECUTION_WORKER_SAFETY_MARGIN", "500ms");
        }
        let node = leasehold.command(&["node", "--docker-endpoint", &engine.endpoint, "--node-id", "n1"]);
        let node = Process::start("node", &folder, node);
        let small = leasehold.command(&[
            "worker",
            "--worker-id",
            "small",
            "--no-containers",
            "--allow-commands",
            "--poll-interval",
            "100ms",
            "--allocation-cpu",
            "1",
            "--allocation-memory",
            "256Mi",
        ]);
        let small = Process::start("small", &folder, small);
        let recipe = folder.join("grow.yaml");
        std::fs::write(&recipe, RECIPE.replace("LEDGER_SMALL", folder.join("ledger").to_str().unwrap()))
            .unwrap();
        let said = leasehold.run(&["submit", "--recipe", recipe.to_str().unwrap()]);
        assert_eq!(said.code, 0, "{said:?}");
        let job = JobId(said.out.trim().parse().unwrap());
        Self { database, store, engine, folder, leasehold, job, lease, _small: small, _node: node }
    }

    /// With everything that the program needs mounted into a container of one busybox.
    fn provisioner(&self, pause_at: &str) -> Process {
        let mut command = Command::new(example("provisioner"));
        let program = env!("CARGO_BIN_EXE_leasehold");
        for (name, value) in self.leasehold.command(&[]).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("PROVISIONER_PAUSE_AT", pause_at).env("EXECUTION_WORKER_ID", "provisioner");
        command.args(["--image", IMAGE, "--program", "/leasehold", "--network", "host", "--poll", "100ms"]);
        command.args(["--bind", &format!("{program}:/leasehold:ro")]);
        command.args(["--bind", &format!("{}:/ledger", self.folder.join("ledger").display())]);
        for library in libraries(program) {
            command.args(["--bind", &format!("{library}:{library}:ro")]);
        }
        command.args(["--", "--allow-commands"]);
        Process::start("provisioner", &self.folder, command)
    }

    fn steps(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("ledger/steps")).unwrap_or_default();
        text.lines().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    }

    async fn detail(&self) -> JobDetail {
        self.store.show_job(&Namespace::default(), self.job).await.unwrap().expect("the job exists")
    }

    async fn containers(&self) -> usize {
        let fleet = format!("leasehold.provisioner={}", self.store.fleet().await.unwrap());
        let filters = std::collections::HashMap::from([("label", vec![fleet])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        self.engine.stranger.list_containers(Some(options)).await.unwrap().len()
    }

    /// Lets the second step end.
    fn go(&self) {
        File::create(self.folder.join("ledger/go")).unwrap();
    }

    /// The job completes, each step ran once, no lease was held for longer than it lasts without a renewal, and no
    /// container is left.
    async fn expect_one_run_each(&self) -> JobDetail {
        let detail = eventually(PATIENCE, "the job ends", async || {
            Some(self.detail().await).filter(|detail| detail.row.state.is_terminal())
        })
        .await;
        assert_eq!(detail.row.state, JobState::Completed, "{detail:?}");
        assert_eq!(self.steps(), ["probe", "heavy"], "{detail:?}");
        for lease in detail.leases.iter().filter(|lease| lease.how == "expired") {
            let held = (lease.ended_at.unwrap() - lease.granted_at).to_std().unwrap();
            let allowed = self.lease * u32::try_from(lease.renewals + 1).unwrap();
            // What takes it over looks five times a second, on a machine that may be busy.
            assert!(held < allowed + Duration::from_secs(20), "{lease:?}");
        }
        eventually(PATIENCE, "no container is left", async || (self.containers().await == 0).then_some(()))
            .await;
        let by: Vec<&str> = detail.leases.iter().map(|lease| lease.worker.as_str()).collect();
        assert_eq!(by.last(), Some(&"provisioner"), "{by:?}");
        detail
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
        let _ = self.database.name();
    }
}

/// The shared libraries of a program, and its loader.
fn libraries(program: &str) -> Vec<String> {
    let said = Command::new("ldd").arg(program).output().expect("ldd can be run");
    let text = String::from_utf8(said.stdout).unwrap();
    let paths: Vec<String> =
        text.split_whitespace().filter(|word| word.starts_with('/')).map(ToOwned::to_owned).collect();
    assert!(!paths.is_empty(), "{text}");
    paths
}

fn leases_of<'d>(detail: &'d JobDetail, worker: &str) -> Vec<&'d LeaseRow> {
    detail.leases.iter().filter(|lease| lease.worker == worker).collect()
}

/// Kills a provisioner at a point, perhaps only once the task runs; another one brings the job to its end.
async fn killed_at(bed: &Bed, pause_at: &str, while_it_runs: bool) -> JobDetail {
    let mut first = bed.provisioner(pause_at);
    eventually(PATIENCE, pause_at, async || {
        first.said().contains(&format!("paused at {pause_at}")).then_some(())
    })
    .await;
    if while_it_runs {
        eventually(PATIENCE, "the task runs", async || {
            bed.steps().contains(&"heavy".to_owned()).then_some(())
        })
        .await;
    }
    first.kill();
    bed.go();
    let _second = bed.provisioner("");
    bed.expect_one_run_each().await
}

/// E7
#[tokio::test]
async fn a_provisioner_starts_the_worker_that_a_handoff_asks_for_and_says_what_it_really_has() {
    let bed = Bed::make(LONG).await;
    let provisioner = bed.provisioner("");
    bed.go();
    let detail = bed.expect_one_run_each().await;
    let output: serde_json::Value = serde_json::from_str(detail.output.as_ref().unwrap().get()).unwrap();
    assert_eq!(output["heavy"], 512 << 20, "the container's own limit");
    let last = leases_of(&detail, "provisioner");
    assert_eq!((last.len(), last[0].how.as_str()), (1, "completed"), "{detail:?}");
    eventually(PATIENCE, "its end is told", async || {
        let said = provisioner.said();
        let ended = said.lines().find_map(|line| line.split_once("the worker ended with 0: "))?.1.to_owned();
        let line: serde_json::Value = serde_json::from_str(&ended).unwrap();
        assert_eq!((&line["outcome"], &line["job"]), (&"completed".into(), &bed.job.0.into()), "{line}");
        Some(())
    })
    .await;
}

/// E10. The lease runs out, the job waits again, and the next provisioner serves it; what the first one left is removed: a
/// container that was never started, and a worker that found no capability in its pipe.
#[tokio::test]
async fn a_provisioner_killed_before_the_handing_over_leaves_a_lease_that_runs_out_and_nothing_that_ran() {
    // Made one after the other: that blocks the test's thread now and then. Most of the rest is waiting.
    let beds = [Bed::make(SHORT).await, Bed::make(SHORT).await, Bed::make(SHORT).await];
    let (acquired, created, started) = tokio::join!(
        killed_at(&beds[0], "acquired", false),
        killed_at(&beds[1], "created", false),
        killed_at(&beds[2], "started", false)
    );
    for detail in [acquired, created, started] {
        let ends: Vec<&str> =
            leases_of(&detail, "provisioner").iter().map(|lease| lease.how.as_str()).collect();
        assert_eq!((ends[0], ends[ends.len() - 1]), ("expired", "completed"), "{detail:?}");
        assert_eq!(
            leases_of(&detail, "provisioner")[0].renewals,
            0,
            "nobody renews for the dead: {detail:?}"
        );
    }
}

/// E10. From the handing over on the worker needs nobody: it completes the job under the first lease.
#[tokio::test]
async fn a_provisioner_killed_after_the_handing_over_or_while_the_worker_runs_is_not_missed() {
    let beds = [Bed::make(LONG).await, Bed::make(LONG).await];
    let (handed_over, running) =
        tokio::join!(killed_at(&beds[0], "handed-over", false), killed_at(&beds[1], "handed-over", true));
    for detail in [handed_over, running] {
        let ends: Vec<&str> =
            leases_of(&detail, "provisioner").iter().map(|lease| lease.how.as_str()).collect();
        assert_eq!(ends, ["completed"], "{detail:?}");
    }
}
