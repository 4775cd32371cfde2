//! Victims: in this process, to survive what happens to them; in one of their own, to be killed or stopped. What goes
//! wrong with one is told as a message, so that its cell can be named with it.

use std::{
    fs::File,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use leasehold::worker::{RunError, WorkerExit};
use leasehold_actors::testing::crash_points::{CrashPoints, Fault};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{sync::oneshot, task::JoinHandle};

use super::victim::{self, Place};
use crate::{scenarios::worker_process::example, support::eventually::pass};

const SOON: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// A worker in this process.
pub struct Resident {
    pub points: CrashPoints,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<WorkerExit, RunError>>,
}

impl Resident {
    pub async fn start(place: &Place, faults: Vec<Fault>) -> Result<Self, String> {
        let points = CrashPoints::with(faults);
        let started = victim::start(place, &points).await;
        let worker = started.map_err(|e| format!("the worker {} cannot be built: {e}", place.name))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
        Ok(Self { points, stop: Some(stop), task })
    }

    /// Tells it to drain; it has no grace.
    pub fn tell_to_drain(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Tells it to drain, and waits for its end.
    pub async fn end(mut self) -> Result<(), String> {
        self.tell_to_drain();
        let ended = tokio::time::timeout(SOON, self.task).await;
        let ended = ended.map_err(|_| format!("a worker in this process did not drain within {SOON:?}"))?;
        let exit = ended.map_err(|e| format!("a worker in this process: {e}"))?;
        exit.map(drop).map_err(|e| format!("a worker in this process ended with an error: {e}"))
    }
}

/// A worker in a process of its own. Killed when dropped.
pub struct Victim {
    child: Child,
    name: String,
    /// What it says.
    log: PathBuf,
}

impl Victim {
    pub fn start(place: &Place, faults: &[Fault]) -> Self {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        // Dies with the test, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(example("crash-worker"));
        for (variable, _) in std::env::vars() {
            if ["DATABASE_", "EXECUTION_", "LEASEHOLD_"].iter().any(|prefix| variable.starts_with(prefix)) {
                command.env_remove(variable);
            }
        }
        let log = place.ledger.with_file_name(format!("{}-{}.log", place.namespace, place.name));
        let said = File::create(&log).expect("the folder of a bed is there");
        let child = command
            .env("CRASH_DATABASE", &place.url)
            .env("CRASH_NAMESPACE", &place.namespace)
            .env("CRASH_NAME", &place.name)
            .env("CRASH_LEDGER", &place.ledger)
            .env("CRASH_FAULTS", faults.join(" "))
            .env("CRASH_PLATFORM", place.platform.as_deref().unwrap_or_default())
            .stdin(Stdio::null())
            .stdout(said.try_clone().expect("an open file can be shared"))
            .stderr(said)
            .spawn()
            .expect("the crash worker can be started");
        Self { child, name: place.name.clone(), log }
    }

    /// What went wrong with it, and its last words.
    fn told(&self, what: &str) -> String {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(30)..].join("\n    ");
        format!("the process {}: {what}; its last words:\n    {last}", self.name)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // `PID (NAME) STATE …`
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// How it ended, if it has.
    fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        self.child.try_wait().map_err(|e| format!("the process {} cannot be waited for: {e}", self.name))
    }

    /// Waits until it is dead.
    pub async fn dies(&mut self) -> Result<(), String> {
        let status = self.ends("it did not come to its point").await?;
        if status.signal() == Some(9) {
            Ok(())
        } else {
            Err(self.told(&format!("it ended otherwise: {status}")))
        }
    }

    /// Waits until it is stopped.
    pub async fn stops(&mut self) -> Result<(), String> {
        let until = Instant::now() + SOON;
        while !self.is_stopped() {
            if let Some(status) = self.ended()? {
                return Err(self.told(&format!("it ended instead of being stopped: {status}")));
            }
            if Instant::now() > until {
                return Err(self.told("it did not come to its point"));
            }
            pass(LOOK).await;
        }
        Ok(())
    }

    /// Waits for its end, once it was told to drain: in order, that is with exit code 0.
    pub async fn drains(mut self) -> Result<(), String> {
        let status = self.ends("it did not drain").await?;
        if status.success() { Ok(()) } else { Err(self.told(&format!("it drained with {status}"))) }
    }

    async fn ends(&mut self, otherwise: &str) -> Result<ExitStatus, String> {
        let until = Instant::now() + SOON;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() > until {
                return Err(self.told(otherwise));
            }
            pass(LOOK).await;
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
