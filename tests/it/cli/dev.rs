//! `leasehold dev` and `leasehold run`, as a person uses them: real cluster, real engine, real signals.

use std::{
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use leasehold::protocol::ports::ContainerEngine as _;
use rustix::process::{Pid, Signal, kill_process};

use super::leasehold::{Leasehold, Said, wait};
use crate::support::{
    engine::{IMAGE, TestEngine},
    eventually::eventually,
    services,
};

const START: Duration = Duration::from_secs(90);

/// A data folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new("/tmp")
            .join(format!("lh-dev-{name}-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o711)).unwrap();
        Self(path)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Processes that name this folder, or work in it.
    fn processes(&self) -> Vec<String> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter_map(|entry| {
                let line = std::fs::read(entry.path().join("cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                let lives_here =
                    std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&self.0));
                (line.contains(self.text()) || lives_here).then_some(line)
            })
            .collect()
    }

    async fn expect_nothing_running(&self) {
        eventually(Duration::from_secs(20), "everything that dev started has ended", async || {
            self.processes().is_empty().then_some(())
        })
        .await;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running `dev`, ended by SIGINT at the latest when the test ends.
struct Dev {
    child: Option<Child>,
    folder: PathBuf,
}

impl Dev {
    async fn start(leasehold: &Leasehold, folder: &Folder) -> Self {
        let errors = std::fs::File::create(folder.0.join("stderr")).unwrap();
        let mut command = leasehold.command(&["dev", "--data-dir", folder.text()]);
        command.stdout(errors.try_clone().unwrap()).stderr(errors);
        let mut dev = Self { child: Some(command.spawn().unwrap()), folder: folder.0.clone() };
        eventually(START, "dev is ready", async || {
            if let Some(status) = dev.child.as_mut().unwrap().try_wait().unwrap() {
                panic!("dev ended: {status}: {}", dev.said());
            }
            dev.said().contains("Ctrl-C stops everything").then_some(())
        })
        .await;
        dev
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.join("stderr")).unwrap_or_default()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().unwrap())
    }

    /// The other commands, as told by the file that dev writes.
    fn client(&self) -> Leasehold {
        let env = std::fs::read_to_string(self.folder.join("env")).unwrap();
        let mode = std::fs::metadata(self.folder.join("env")).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "the file holds a password");
        Leasehold::on(env.trim().strip_prefix("DATABASE_URL=").unwrap())
    }

    fn stop(mut self) -> i32 {
        kill_process(self.pid(), Signal::INT).unwrap();
        let output = wait(self.child.take().unwrap(), Duration::from_secs(60), &["dev"]);
        assert!(!self.folder.join("env").exists(), "no address of a dev that is gone");
        output.status.code().unwrap()
    }

    fn kill(mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
        }
    }
}

/// On the tests' engine, so that only one test needs to start one of its own.
async fn on_shared_engine() -> (Leasehold, TestEngine) {
    let engine = TestEngine::at(&services::docker_endpoint(1)).await;
    (Leasehold::bare().with("RUNTIME_DOCKER_ENDPOINT", &engine.endpoint), engine)
}

async fn expect_no_container(engine: &TestEngine, dev: &Dev) {
    let url = std::fs::read_to_string(dev.folder.join("env")).unwrap();
    let client = crate::support::database::client(url.trim().strip_prefix("DATABASE_URL=").unwrap()).await;
    let fleet: uuid::Uuid =
        client.query_one("select fleet_id from leasehold.fleet", &[]).await.unwrap().get(0);
    let label = ("leasehold.fleet".to_owned(), fleet.to_string());
    eventually(Duration::from_secs(20), "no container of this fleet is left", async || {
        engine.engine.list(std::slice::from_ref(&label)).await.unwrap().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_demo_ends_well_again_and_again_and_leaves_nothing_running() {
    let folder = Folder::new("demo");
    // An engine of its own where we may start one; the shared one for an ordinary user.
    let leasehold = if rustix::process::geteuid().is_root() && !Path::new("/var/run/docker.sock").exists() {
        Leasehold::bare()
    } else {
        on_shared_engine().await.0
    };
    let leasehold = leasehold.with("DEMO_EXIT", "1");
    for round in 1..=2 {
        let mut command = leasehold.command(&["dev", "--demo", "--data-dir", folder.text()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let said = Said::of(wait(command.spawn().unwrap(), Duration::from_secs(180), &["dev", "--demo"]));
        assert_eq!(said.code, 0, "round {round}: {said:?}");
        for ending in [
            "an HTTP probe: COMPLETED",
            "a Rust function: COMPLETED",
            "a recipe that moves to where there is more memory: COMPLETED",
            "handoff: the next task needs cpu=500m,memory=16Gi; the worker has \
             cpu=1,memory=1Gi,ephemeral-storage=10Gi,platform=linux/amd64",
            "a recipe that goes from amd64 to arm64 and back: COMPLETED",
            "a loop: COMPLETED",
            "branches at once, one of which fails and is caught: COMPLETED",
            "a recipe that waits for somebody to approve: COMPLETED",
            "a container: COMPLETED",
            "FAILED (USER 7",
        ] {
            assert!(said.out.contains(ending), "round {round}: {ending}: {said:?}");
        }
        assert_eq!(said.out.matches("EPOCH").count(), 9, "each job with its lease history: {said:?}");
        folder.expect_nothing_running().await;
    }
}

#[tokio::test]
async fn a_run_passes_both_streams_and_the_exit_code_on() {
    let folder = Folder::new("run");
    let (leasehold, engine) = on_shared_engine().await;
    let dev = Dev::start(&leasehold, &folder).await;
    let client = dev.client();
    let script = "echo out; echo err >&2; exit 3";
    let said = client.run(&["run", "--image", IMAGE, "--network", "none", "--", "sh", "-c", script]);
    assert_eq!((said.code, said.out.as_str()), (3, "out\n"), "{said:?}");
    let lines: Vec<&str> = said.err.lines().collect();
    assert!(lines.contains(&"err"), "{said:?}");
    assert!(lines.last().unwrap().contains("exit code 3"), "it is said where the code comes from: {said:?}");
    let job = client.run(&["job", "show", "1", "--json"]).json();
    assert_eq!(
        (
            job["state"].as_str(),
            job["failure"]["kind"].as_str(),
            job["failure"]["code"].as_str(),
            job["exit_code"].as_i64()
        ),
        (Some("FAILED"), Some("USER"), Some("3"), Some(3))
    );
    let lease = &job["leases"][0];
    for key in ["epoch", "worker", "granted_at", "ended_at", "how"] {
        assert!(!lease[key].is_null(), "{key} is missing in {lease}");
    }
    let ok = client.run(&[
        "run",
        "--image",
        IMAGE,
        "--network",
        "none",
        "--env",
        "A=b c",
        "--",
        "sh",
        "-c",
        "printf '%s' \"$A\"",
    ]);
    assert_eq!((ok.code, ok.out.as_str()), (0, "b c"), "the last line needs no end: {ok:?}");
    // AP-05: output is not text, and all of it arrives.
    let mut command =
        client.command(&["run", "--image", IMAGE, "--network", "none", "--", "printf", "a\\000b\\377"]);
    assert_eq!(command.output().unwrap().stdout, b"a\0b\xff");
    expect_no_container(&engine, &dev).await;
    assert_eq!(dev.stop(), 0);
    folder.expect_nothing_running().await;
}

/// AP-13
#[tokio::test]
async fn a_running_job_is_cancelled_by_command_and_by_ctrl_c() {
    let folder = Folder::new("cancel");
    let (leasehold, engine) = on_shared_engine().await;
    let dev = Dev::start(&leasehold, &folder).await;
    let client = dev.client();
    let sleeper =
        ["--image", IMAGE, "--network", "none", "--stop-grace", "1s", "--", "sh", "-c", "echo up; sleep 600"];
    let running = async |id: &str| {
        eventually(Duration::from_secs(60), "the job runs and has said so", async || {
            client.run(&["job", "logs", id]).out.contains("up").then_some(())
        })
        .await;
    };

    let id = client.run(&[&["submit"][..], &sleeper].concat()).out.trim().to_owned();
    running(&id).await;
    let cancelled = client.run(&["job", "cancel", &id, "--wait"]);
    assert_eq!(cancelled.code, 0, "{cancelled:?}");
    assert_eq!(client.run(&["job", "show", &id, "--json"]).json()["state"], "CANCELED");
    assert_eq!(client.run(&["job", "cancel", &id]).code, 0, "a second cancel is no mistake");

    let mut command = client.command(&[&["run"][..], &sleeper].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().unwrap();
    let id = eventually(Duration::from_secs(30), "run has submitted", async || {
        let jobs = client.run(&["jobs", "--state", "RUNNING", "--json"]).json_lines();
        jobs.first().map(|job| job["id"].to_string())
    })
    .await;
    running(&id).await;
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let said = Said::of(wait(child, Duration::from_secs(60), &["run"]));
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("asked for the cancel") && said.err.contains("CANCELED"), "{said:?}");

    // Two at once: the second one detaches and leaves the cancel to itself.
    let mut command = client.command(&[
        "run",
        "--image",
        IMAGE,
        "--network",
        "none",
        "--stop-grace",
        "5s",
        "--",
        "sh",
        "-c",
        "trap '' TERM; echo up; sleep 600 & wait; wait; sleep 600",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().unwrap();
    let id = eventually(Duration::from_secs(30), "run has submitted", async || {
        let jobs = client.run(&["jobs", "--state", "RUNNING", "--json"]).json_lines();
        jobs.first().map(|job| job["id"].to_string())
    })
    .await;
    running(&id).await;
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    eventually(Duration::from_secs(30), "the cancel is requested", async || {
        let job = client.run(&["job", "show", &id, "--json"]).json();
        (!job["cancel_requested_at"].is_null() || job["state"] == "CANCELED").then_some(())
    })
    .await;
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let said = Said::of(wait(child, Duration::from_secs(60), &["run"]));
    assert_eq!(said.code, 130, "{said:?}");
    assert!(said.err.contains("detached"), "{said:?}");
    eventually(Duration::from_secs(60), "the cancel converges without us", async || {
        (client.run(&["job", "show", &id, "--json"]).json()["state"] == "CANCELED").then_some(())
    })
    .await;
    expect_no_container(&engine, &dev).await;
    assert_eq!(dev.stop(), 0);
}

#[tokio::test]
async fn a_second_dev_on_the_same_folder_is_refused_and_the_first_goes_on() {
    let folder = Folder::new("twice");
    let (leasehold, _engine) = on_shared_engine().await;
    let dev = Dev::start(&leasehold, &folder).await;
    let second = leasehold.run(&["dev", "--data-dir", folder.text()]);
    let line = second.refused(5);
    let pid = dev.child.as_ref().unwrap().id();
    assert!(line.contains(&format!("(pid {pid})")) && line.contains("--data-dir"), "{line}");
    assert_eq!(dev.client().run(&["jobs"]).code, 0);
    assert_eq!(dev.stop(), 0);
    folder.expect_nothing_running().await;
}

#[tokio::test]
async fn after_kill_9_the_next_dev_has_the_same_cluster_and_takes_over_what_was_running() {
    let folder = Folder::new("kill");
    let (leasehold, engine) = on_shared_engine().await;
    let dev = Dev::start(&leasehold, &folder).await;
    let client = dev.client();
    let submitted = client.run(&[
        "submit",
        "--image",
        IMAGE,
        "--network",
        "none",
        "--stop-grace",
        "1s",
        "--",
        "sleep",
        "600",
    ]);
    let id = submitted.out.trim().to_owned();
    eventually(Duration::from_secs(60), "the job runs", async || {
        (client.run(&["job", "show", &id, "--json"]).json()["container"].is_string()).then_some(())
    })
    .await;
    let container =
        client.run(&["job", "show", &id, "--json"]).json()["container"].as_str().unwrap().to_owned();
    dev.kill();
    // The database ends with us, although nobody was left to stop it.
    eventually(Duration::from_secs(20), "the server has ended", async || {
        (!folder.0.join("pg/postmaster.pid").exists()).then_some(())
    })
    .await;

    let next = Dev::start(&leasehold, &folder).await;
    assert!(next.said().contains("the same cluster"), "{}", next.said());
    assert!(next.said().contains("were RUNNING when dev was killed"), "{}", next.said());
    let container = leasehold::protocol::domain::ContainerId::new(container).unwrap();
    let client = next.client();
    eventually(
        Duration::from_secs(120),
        "the lost lease is taken over and its container removed",
        async || {
            let job = client.run(&["job", "show", &id, "--json"]).json();
            let taken = job["leases"].as_array().unwrap().iter().any(|lease| lease["how"] == "expired");
            (taken && engine.engine.inspect(&container).await.unwrap().is_none()).then_some(())
        },
    )
    .await;
    client.run(&["job", "cancel", &id, "--wait"]);
    assert_eq!(client.run(&["job", "show", &id, "--json"]).json()["state"], "CANCELED");
    assert_eq!(next.stop(), 0);
    folder.expect_nothing_running().await;
}

#[tokio::test]
async fn the_other_commands_find_the_dev_of_the_default_folder() {
    let folder = Folder::new("default");
    let (leasehold, _engine) = on_shared_engine().await;
    let inner = folder.0.join(".leasehold");
    std::fs::create_dir(&inner).unwrap();
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o711)).unwrap();
    let in_folder = |args: &[&str]| {
        let mut command = leasehold.command(args);
        command.current_dir(&folder.0);
        command
    };
    let errors = std::fs::File::create(folder.0.join("stderr")).unwrap();
    let child = in_folder(&["dev"]).stdout(Stdio::null()).stderr(errors).spawn().unwrap();
    let dev = Dev { child: Some(child), folder: folder.0.clone() };
    eventually(START, "dev is ready", async || dev.said().contains("Ctrl-C stops everything").then_some(()))
        .await;
    let listed = Said::of(in_folder(&["jobs", "--json"]).output().unwrap());
    assert_eq!(listed.code, 0, "{listed:?}");
    let rows = Said::of(in_folder(&["config", "--json"]).output().unwrap()).json_lines();
    let url = rows.iter().find(|row| row["name"] == "DATABASE_URL").unwrap();
    assert!(url["from"].as_str().unwrap().contains("leasehold dev"), "{url}");
    assert!(url["value"].as_str().unwrap().contains("password=***"), "{url}");
    assert_eq!(dev.stop(), 0);
    let gone = Said::of(in_folder(&["jobs"]).output().unwrap());
    assert!(gone.refused(2).contains("no `leasehold dev` runs"), "{gone:?}");
}

#[tokio::test]
async fn without_any_right_dev_runs_what_needs_no_container_and_says_what_is_missing() {
    if !rustix::process::geteuid().is_root() {
        return; // an ordinary user is what all other tests of this file run as then
    }
    let folder = Folder::new("nobody");
    let program = folder.0.join("leasehold");
    std::fs::copy(env!("CARGO_BIN_EXE_leasehold"), &program).unwrap();
    let home = folder.0.join("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    let mut command = std::process::Command::new(&program);
    command
        .args(["dev", "--demo", "--data-dir", "data"])
        .uid(65534)
        .gid(65534)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("DEMO_EXIT", "1")
        .env("RUNTIME_DOCKER_ENDPOINT", format!("unix://{}/none.sock", home.display()))
        .current_dir(&home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let said = Said::of(wait(command.spawn().unwrap(), Duration::from_secs(120), &["dev", "--demo"]));
    assert_eq!(said.code, 1, "the demo is not whole: {said:?}");
    for words in ["an HTTP probe: COMPLETED", "a Rust function: COMPLETED"] {
        assert!(said.out.contains(words), "{words}: {said:?}");
    }
    assert!(said.err.contains("no Docker engine answers"), "{said:?}");
    folder.expect_nothing_running().await;
}
