//! Workers as processes of their own, to be signalled and killed.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::database::TestDatabase;

/// A process of `tests/it/scenarios/worker`. Killed when dropped.
pub struct WorkerProcess {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// How one ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// `{"free", "capacity", "exit"}`.
    pub last_words: Value,
    /// From the call of [`WorkerProcess::wait`].
    pub waited: Duration,
}

impl WorkerProcess {
    /// Starts a worker of this name and waits until it is ready. `settings` are environment variables.
    pub fn start(database: &TestDatabase, name: &str, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(example("scenario-worker"));
        for (variable, _) in std::env::vars() {
            if ["DATABASE_", "EXECUTION_", "LEASEHOLD_"].iter().any(|prefix| variable.starts_with(prefix)) {
                command.env_remove(variable);
            }
        }
        let mut child = command
            .env("DATABASE_URL", database.url())
            .env("EXECUTION_WORKER_ID", name)
            .env("LEASEHOLD_LOG", "warn")
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the scenario worker can be started");
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let mut this = Self { child, output };
        assert_eq!(this.line(), "ready", "the worker does not start; its own words are above");
        this
    }

    /// The next line that it prints; empty once it has ended.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output is text");
        line.trim_end().to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid fits");
        kill_process(Pid::from_raw(pid).expect("a pid is not zero"), signal).expect("it still runs");
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Ended {
        let begun = Instant::now();
        let words = self.line();
        let status = self.child.wait().expect("it is our child");
        Ended {
            status,
            last_words: serde_json::from_str(&words).unwrap_or(Value::Null),
            waited: begun.elapsed(),
        }
    }
}

impl Ended {
    /// Asserts a clean drain: exit code 0, every permit free again.
    pub fn assert_drained(&self) {
        assert_eq!(self.status.code(), Some(0), "{self:?}");
        assert!(self.last_words["capacity"].as_u64().is_some_and(|n| n > 0), "{self:?}");
        assert_eq!(self.last_words["free"], self.last_words["capacity"], "{self:?}");
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An example of this package, built once a test process if it is not up to date: a run of `--test it` alone
/// builds no examples.
pub fn example(name: &str) -> PathBuf {
    static EXAMPLES: OnceLock<PathBuf> = OnceLock::new();
    let folder = EXAMPLES.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--examples"]);
        build.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        // What cargo and nextest say to a test is not meant for a build: build scripts would run again.
        for (name, _) in std::env::vars() {
            let kept = ["CARGO_HOME", "CARGO_BUILD_JOBS", "CARGO_INCREMENTAL", "CARGO_NET_OFFLINE"];
            let set_by_cargo = name.starts_with("CARGO_") && !kept.contains(&name.as_str());
            if set_by_cargo || ["LD_LIBRARY_PATH", "OUT_DIR"].contains(&name.as_str()) {
                build.env_remove(name);
            }
        }
        let this = std::env::current_exe().expect("a test knows its own program");
        let profile =
            this.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps/it").to_owned();
        build.arg("--target-dir").arg(profile.parent().expect("target/PROFILE"));
        assert!(build.status().expect("cargo can be run").success(), "the examples do not build");
        profile.join("examples")
    });
    folder.join(name)
}
