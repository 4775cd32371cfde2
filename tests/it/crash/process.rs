//! Victims: in this process, to survive what happens to them; in one of their own, to be killed or stopped.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use leasehold::worker::{RunError, WorkerExit};
use leasehold_actors::testing::crash_points::{CrashPoints, Fault};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{sync::oneshot, task::JoinHandle};

use super::victim::{self, Place};
use crate::{scenarios::worker_process::example, support::eventually::pass};

const SOON: Duration = Duration::from_secs(60);

/// A worker in this process.
pub struct Resident {
    pub points: CrashPoints,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<WorkerExit, RunError>>,
}

impl Resident {
    pub async fn start(place: &Place, faults: Vec<Fault>) -> Self {
        let points = CrashPoints::with(faults);
        let worker = victim::worker(place, &points).build().await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
        Self { points, stop: Some(stop), task }
    }

    /// Tells it to drain; it has no grace.
    pub fn tell_to_drain(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    pub async fn end(mut self) -> Result<WorkerExit, RunError> {
        self.tell_to_drain();
        tokio::time::timeout(SOON, self.task).await.expect("a worker drains").unwrap()
    }
}

/// A worker in a process of its own. Killed when dropped.
pub struct Victim {
    child: Child,
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
        let child = command
            .env("CRASH_DATABASE", &place.url)
            .env("CRASH_NAMESPACE", &place.namespace)
            .env("CRASH_NAME", &place.name)
            .env("CRASH_LEDGER", &place.ledger)
            .env("CRASH_FAULTS", faults.join(" "))
            .stdin(Stdio::null())
            .spawn()
            .expect("the crash worker can be started");
        Self { child }
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

    /// Waits until it is dead.
    pub async fn dies(&mut self) -> Result<(), String> {
        let ended = within(async || self.child.try_wait().unwrap()).await;
        let status = ended.ok_or("it did not come to its point")?;
        if status.signal() == Some(9) { Ok(()) } else { Err(format!("it ended otherwise: {status}")) }
    }

    /// Waits until it is stopped.
    pub async fn stops(&mut self) -> Result<(), String> {
        let stopped = within(async || {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(Err(format!("it ended instead: {status}")));
            }
            self.is_stopped().then_some(Ok(()))
        })
        .await;
        stopped.unwrap_or_else(|| Err("it did not come to its point".to_owned()))
    }

    /// Waits for its end, once it was told to drain.
    pub async fn drains(mut self) -> Result<i32, String> {
        let ended = within(async || self.child.try_wait().unwrap()).await;
        ended.and_then(|status| status.code()).ok_or_else(|| "it did not drain".to_owned())
    }
}

async fn within<T>(mut check: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        if let Some(found) = check().await {
            return Some(found);
        }
        pass(Duration::from_millis(20)).await;
    }
    None
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
