//! The processes of a run: workers with handlers, workers of the real binary for containers and probes, node
//! agents; each with a wire of its own to the database, some with a wall clock that is hours off.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
};

use rustix::process::{Pid, Signal, kill_process};

use super::{defects::Defect, ledger::Ledger, wire::Wire, world::World};
use crate::scenarios::worker_process::example;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs handlers: a program that embeds the library.
    Handlers,
    /// `leasehold worker`: containers and probes.
    Runner,
    /// `leasehold node`.
    Node,
}

/// One place in the fleet: the process there dies and is started again.
#[derive(Debug)]
pub struct Member {
    pub name: String,
    pub role: Role,
    pub wire: Wire,
    url: String,
    /// What the process is told beyond the common settings.
    settings: Vec<(String, String)>,
    /// How far its wall clock is off.
    pub clock: Option<&'static str>,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

/// Lease and renewal of every run.
const SETTINGS: &[(&str, &str)] = &[
    ("EXECUTION_WORKER_LEASE_DURATION", "5s"),
    ("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "1s"),
    ("EXECUTION_WORKER_SAFETY_MARGIN", "1s"),
    ("EXECUTION_WORKER_STORE_TIMEOUT", "600ms"),
    ("EXECUTION_WORKER_RECOVERY_INTERVAL", "2s"),
    ("EXECUTION_WORKER_RECOVERY_PERMITS", "8"),
    ("EXECUTION_WORKER_LOSS_LIMIT", "1000"),
    ("EXECUTION_WORKER_SHUTDOWN_GRACE", "5s"),
    ("DATABASE_POOL_SIZE", "4"),
    ("RUNTIME_HEARTBEAT_INTERVAL", "500ms"),
    ("RUNTIME_HEARTBEAT_TTL", "3s"),
    ("RUNTIME_LOST_AFTER", "20s"),
    ("RUNTIME_ORPHAN_INTERVAL", "5s"),
    ("RECOVERY_GIVE_UP", "5m"),
    ("HEARTBEAT_ALLOW", "127.0.0.1"),
];
pub const SLOTS: usize = 6;
pub const CONCURRENCY: u32 = 16;

impl Member {
    pub async fn new(
        world: &World,
        ledger: &Ledger,
        name: &str,
        role: Role,
        clock: Option<&'static str>,
    ) -> Self {
        let (wire, url) = world.database_wire(name).await;
        let mut settings = vec![
            ("EXECUTION_WORKER_CONCURRENCY".to_owned(), CONCURRENCY.to_string()),
            ("CHAOS_LEDGER".to_owned(), ledger.address.to_string()),
        ];
        if let Some(engine) = world.engines.iter().find(|engine| engine.node == name) {
            settings.push(("RUNTIME_DOCKER_ENDPOINT".to_owned(), engine.endpoint()));
            settings.push(("RUNTIME_MAX_CONCURRENCY".to_owned(), SLOTS.to_string()));
        }
        let log = world.folder().join(format!("{name}.log"));
        Self { name: name.to_owned(), role, wire, url, settings, clock, log, child: Mutex::default() }
    }

    /// Switches a defect on in this process from its next start.
    pub fn with(mut self, defect: Option<Defect>) -> Self {
        if let Some(defect) = defect {
            self.settings.push(("CHAOS_DEFECT".to_owned(), defect.name().to_owned()));
        }
        self
    }

    pub fn start(&self) {
        let mut command = Command::new("setpriv");
        // Dies with this test's process, however that ends.
        command.args(["--pdeathsig", "KILL", "--"]);
        match self.role {
            Role::Handlers => command.arg(example("chaos-worker")),
            Role::Runner => command.arg(env!("CARGO_BIN_EXE_leasehold")).arg("worker"),
            Role::Node => command.arg(env!("CARGO_BIN_EXE_leasehold")).arg("node"),
        };
        for (variable, _) in std::env::vars() {
            if ["DATABASE_", "EXECUTION_", "LEASEHOLD_", "RUNTIME_", "CHAOS_"]
                .iter()
                .any(|p| variable.starts_with(p))
            {
                command.env_remove(variable);
            }
        }
        if let Some(offset) = self.clock {
            command
                .env("LD_PRELOAD", faketime())
                .env("FAKETIME", offset)
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        command
            .env("DATABASE_URL", &self.url)
            .env("EXECUTION_WORKER_ID", &self.name)
            .env("RUNTIME_NODE_ID", &self.name)
            .env("LEASEHOLD_LOG", std::env::var("CHAOS_LOG").unwrap_or_else(|_| "info".to_owned()))
            .envs(SETTINGS.iter().copied())
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        *self.child.lock().unwrap() = Some(command.spawn().expect("the process can be started"));
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.lock().unwrap().as_ref().map(Child::id)
    }

    /// Starts it again if it has ended by itself, and says so; true when it should not have.
    pub fn revive(&self) -> bool {
        let ended = match self.child.lock().unwrap().as_mut() {
            Some(child) => child.try_wait().unwrap(),
            None => return false,
        };
        let Some(status) = ended else { return false };
        self.start();
        // A process that is started while the database, or its engine, is away says so and ends.
        let refused = status.code() == Some(6);
        if !refused {
            println!("chaos: {} ended by itself: {status}; see {}", self.name, self.log.display());
        }
        !refused
    }

    pub fn signal(&self, signal: Signal) {
        let Some(pid) = self.pid() else { return };
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.wait().unwrap();
        }
    }

    /// SIGTERM; how it ended.
    pub fn end(&self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.child.lock().unwrap().take().and_then(|mut child| child.wait().unwrap().code())
    }

    pub fn log(&self) -> &Path {
        &self.log
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The library that shows processes another wall clock (Debian's package `faketime`).
fn faketime() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib")
        .unwrap()
        .flatten()
        .map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"))
        .find(|path| path.exists());
    found.expect("libfaketime is installed (apt-get install faketime)")
}
