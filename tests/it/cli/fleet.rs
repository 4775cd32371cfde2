//! `leasehold worker` and `leasehold node` as processes of their own.

use std::{
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use super::leasehold::{Leasehold, wait};
use crate::support::{
    database::TestDatabase,
    engine::{IMAGE, TestEngine},
    eventually::eventually,
    services,
};

/// A process that runs until it is told to stop; killed if the test fails.
struct Process {
    child: Option<Child>,
    errors: PathBuf,
}

impl Process {
    fn start(leasehold: &Leasehold, args: &[&str]) -> Self {
        let errors = std::env::temp_dir().join(format!("lh-fleet-{}", uuid::Uuid::new_v4().simple()));
        let mut command = leasehold.command(args);
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&errors).unwrap());
        Self { child: Some(command.spawn().unwrap()), errors }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().unwrap()), signal).unwrap();
    }

    fn end(mut self) -> i32 {
        wait(self.child.take().unwrap(), Duration::from_secs(60), &["a process of the fleet"])
            .status
            .code()
            .unwrap_or(-1)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            eprintln!("{}", self.said());
        }
        let _ = std::fs::remove_file(&self.errors);
    }
}

async fn state_is(leasehold: &Leasehold, id: &str, state: &str) {
    eventually(Duration::from_secs(60), state, async || {
        (leasehold.run(&["job", "show", id, "--json"]).json()["state"] == state).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_fleet_of_two_processes_runs_a_container_and_both_drain_at_sigterm() {
    let database = TestDatabase::create().await;
    let engine = TestEngine::at(&services::docker_endpoint(1)).await;
    let leasehold = Leasehold::on(database.url()).with("EXECUTION_WORKER_SHUTDOWN_GRACE", "20s");
    let node = Process::start(
        &leasehold,
        &["node", "--docker-endpoint", &engine.endpoint, "--max-concurrency", "2", "--node-id", "n 1"],
    );
    let worker = Process::start(
        &leasehold,
        &["worker", "--worker-id", "w-1", "--concurrency", "3", "--allocation-memory", "2048Mi"],
    );
    let nodes = eventually(Duration::from_secs(30), "the node is listed", async || {
        let nodes = leasehold.run(&["node", "list", "--json"]).json_lines();
        (!nodes.is_empty()).then_some(nodes)
    })
    .await;
    assert_eq!(
        (nodes[0]["id"].as_str(), nodes[0]["state"].as_str(), nodes[0]["slots"].as_i64()),
        (Some("n 1"), Some("READY"), Some(2))
    );
    eventually(Duration::from_secs(30), "the worker is listed", async || {
        let workers = leasehold.run(&["worker", "list", "--json"]).json_lines();
        let worker = workers.into_iter().find(|worker| worker["id"] == "w-1" && worker["alive"] == true)?;
        assert_eq!(worker["status"]["allocation"]["resources"]["memory"], "2Gi", "{worker}");
        Some(())
    })
    .await;
    // Told to stop while a job runs: the job ends in peace, then both end.
    let id = leasehold.run(&[
        "submit",
        "--image",
        IMAGE,
        "--network",
        "none",
        "--",
        "sh",
        "-c",
        "echo up; sleep 3; echo done",
    ]);
    let id = id.out.trim().to_owned();
    eventually(Duration::from_secs(60), "the job has begun", async || {
        leasehold.run(&["job", "logs", &id]).out.contains("up").then_some(())
    })
    .await;
    worker.signal(Signal::TERM);
    node.signal(Signal::TERM);
    assert_eq!(worker.end(), 0);
    assert_eq!(node.end(), 0);
    let job = leasehold.run(&["job", "show", &id, "--json"]).json();
    assert_eq!((job["state"].as_str(), job["node"].as_str()), (Some("COMPLETED"), Some("n 1")), "{job}");
    assert_eq!(leasehold.run(&["job", "logs", &id]).out, "up\ndone\n");
}

#[tokio::test]
async fn a_second_sigterm_stops_the_work_and_gives_it_back() {
    let database = TestDatabase::create().await;
    let engine = TestEngine::at(&services::docker_endpoint(1)).await;
    let leasehold = Leasehold::on(database.url());
    let node = Process::start(&leasehold, &["node", "--docker-endpoint", &engine.endpoint]);
    let worker = Process::start(&leasehold, &["worker"]);
    let id = leasehold
        .run(&[
            "submit",
            "--image",
            IMAGE,
            "--network",
            "none",
            "--stop-grace",
            "500ms",
            "--",
            "sleep",
            "600",
        ])
        .out
        .trim()
        .to_owned();
    state_is(&leasehold, &id, "RUNNING").await;
    worker.signal(Signal::TERM);
    eventually(Duration::from_secs(60), "the first signal was seen", async || {
        worker.said().contains("send it again").then_some(())
    })
    .await;
    crate::support::eventually::pass(Duration::from_millis(1200)).await;
    worker.signal(Signal::TERM);
    assert_eq!(worker.end(), 1);
    let job = leasehold.run(&["job", "show", &id, "--json"]).json();
    assert_eq!(job["leases"][0]["how"], "released", "{job}");
    assert_eq!((job["failures"]["system"].as_i64(), job["losses"].as_i64()), (Some(0), Some(0)), "{job}");
    assert_eq!(leasehold.run(&["job", "cancel", &id]).code, 0);
    node.signal(Signal::TERM);
    assert_eq!(node.end(), 0);
}

#[tokio::test]
async fn a_node_that_cannot_serve_says_why_and_ends() {
    let database = TestDatabase::create().await;
    let engine = TestEngine::at(&services::docker_endpoint(1)).await;
    let leasehold = Leasehold::on(database.url()).with("LEASEHOLD_LOG", "error");
    assert!(
        leasehold
            .run(&["node", "--docker-endpoint", "unix:///no/such.sock"])
            .refused(6)
            .contains("/no/such.sock")
    );
    for (endpoint, word) in
        [("docker.sock", "scheme"), ("https://host:2376", "RUNTIME_TLS_CA"), ("ssh://host", "scheme")]
    {
        let said = leasehold.run(&["node", "--docker-endpoint", endpoint]);
        assert!(said.refused(2).contains(word), "{said:?}");
    }
    // A directory in the place of a key: CF-09.
    let said = leasehold.run(&[
        "node",
        "--docker-endpoint",
        "tcp://127.0.0.1:1",
        "--tls-ca",
        "/",
        "--tls-cert",
        "/",
        "--tls-key",
        "/",
    ]);
    assert!(said.refused(2).contains("RUNTIME_TLS_CA"), "{said:?}");
    let first =
        Process::start(&leasehold, &["node", "--docker-endpoint", &engine.endpoint, "--node-id", "same"]);
    eventually(Duration::from_secs(30), "the node is listed", async || {
        (!leasehold.run(&["node", "list", "--json"]).json_lines().is_empty()).then_some(())
    })
    .await;
    let second = leasehold.run(&["node", "--docker-endpoint", &engine.endpoint, "--node-id", "same"]);
    assert!(second.refused(5).contains("another live process"), "{second:?}");
    assert_eq!(leasehold.run(&["node", "drain", "same"]).code, 0);
    assert_eq!(leasehold.run(&["node", "list", "--json"]).json_lines()[0]["state"], "DRAINING");
    assert_eq!(leasehold.run(&["node", "undrain", "same"]).code, 0);
    first.signal(Signal::TERM);
    assert_eq!(first.end(), 0);
    assert_eq!(leasehold.run(&["node", "forget", "same"]).code, 0);
    leasehold.run(&["node", "forget", "same"]).refused(4);
}

#[tokio::test]
async fn a_worker_that_cannot_start_says_why_and_ends() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url()).with("LEASEHOLD_LOG", "error");
    let said = leasehold.run(&["worker", "--renew-interval", "40s"]);
    assert!(said.refused(2).contains("≤ lease does not hold"), "{said:?}");
    assert_eq!(leasehold.run(&["worker", "--print-config"]).code, 0);
    Leasehold::on("postgres://u@127.0.0.1:1/x").with("LEASEHOLD_LOG", "error").run(&["worker"]).refused(6);
    Leasehold::on(database.url()).with("LEASEHOLD_LOG_FORMAT", "xml").run(&["worker"]).refused(2);
}
