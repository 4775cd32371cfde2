//! Server processes that must not outlive us, whatever happens to us.

use std::{
    io,
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::bind_to_us;

/// A child that gets `signal` when we die, even by SIGKILL.
///
/// Linux ties this to the *thread* that spawns: call it from one that lives as long as the process.
#[derive(Debug)]
pub(super) struct BoundChild {
    child: Child,
    signal: Signal,
    name: &'static str,
}

impl BoundChild {
    /// Starts it in a process group of its own, so that a Ctrl-C on our terminal reaches only us.
    pub(super) fn spawn(command: &mut Command, name: &'static str, signal: Signal) -> io::Result<Self> {
        bind_to_us(command, signal);
        let child = command.spawn()?;
        Ok(Self { child, signal, name })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    fn send(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Asks it to end, waits for `grace`, then kills it.
    pub(super) async fn stop(&mut self, grace: Duration) {
        if self.ended().is_some() {
            return;
        }
        self.send(self.signal);
        let until = tokio::time::Instant::now() + grace;
        while tokio::time::Instant::now() < until {
            if self.ended().is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tracing::warn!(server = self.name, pid = self.pid(), "did not stop in time and is killed");
        self.send(Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for BoundChild {
    /// The way out of an error: blocking, and bounded by the server's own shutdown.
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.send(self.signal);
            let _ = self.child.wait();
        }
    }
}
