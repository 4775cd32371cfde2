//! One program under a task: started in a process group of its own, read, and ended as a group.
//!
//! All programs of a worker live on one thread of their own. The kernel ends a program when the thread that started it
//! is gone, so that thread lasts as long as the process; and nothing blocks it, so a program is ended in time also
//! when every thread that runs Rust ops is blocked. The fence's abort drops the task on that thread, and with it
//! [`Group`], which kills the group and lets go of the lease only once the program is known to be dead.

use std::{
    io,
    process::{ExitStatus, Stdio},
    sync::OnceLock,
    time::Duration,
};

use leasehold_actors::{fence::Hold, work::StopReason};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
    runtime::Handle,
};

use super::printed::{self, Destination, Printed};
use crate::{
    process::bind_to_us,
    recipe::op::{TaskContext, TaskStop},
};

/// Between asking a program to stop and killing it; less where the lease leaves less.
const GRACE: Duration = Duration::from_secs(2);
/// How long what a program wrote is waited for when it has ended, in case something else holds its output open.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the storing of what it printed is waited for when it has ended by itself; …
const LAST_OUTPUT: Duration = Duration::from_secs(10);
/// … and when it was ended: less than its session waits for it, with the grace.
const STOPPED_OUTPUT: Duration = Duration::from_secs(1);
/// How much of the end of standard error is kept.
const TAIL: usize = 16 * 1024;

/// How a program ended.
#[derive(Debug)]
pub(super) enum End {
    /// By itself.
    Exited(Exited),
    /// It never started.
    NotStarted(io::Error),
    /// It took longer than it may.
    TimedOut,
    /// Its task had to end.
    Stopped(TaskStop),
}

/// What is left of a program that ended by itself.
#[derive(Debug)]
pub(super) struct Exited {
    pub(super) status: ExitStatus,
    /// The last line of standard output that is not blank.
    pub(super) last_line: LastLine,
    /// The end of standard error.
    pub(super) errors: Vec<u8>,
}

/// Runs a program to its end. Dropped, it ends the program.
pub(super) async fn run(
    command: std::process::Command,
    limit: Option<Duration>,
    longest_line: usize,
    context: &TaskContext,
    printed: Option<Destination>,
) -> End {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(reason) => return End::NotStarted(io::Error::other(reason)),
    };
    let work = drive(command, limit, longest_line, context.clone(), context.hold(), printed);
    let task = runtime.spawn(work);
    context.runs_as(task.abort_handle());
    let mut task = AbortOnDrop(task);
    match (&mut task.0).await {
        Ok(end) => end,
        // Only the fence aborts it, when the lease is over.
        Err(error) if error.is_cancelled() => End::Stopped(TaskStop::Job(StopReason::LeaseLost)),
        Err(error) => End::NotStarted(io::Error::other(error)),
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<End>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The thread that programs live on.
fn runtime() -> Result<&'static Handle, &'static str> {
    static RUNTIME: OnceLock<Result<Handle, String>> = OnceLock::new();
    let started = RUNTIME.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let handle = runtime.handle().clone();
        let forever = move || runtime.block_on(std::future::pending::<()>());
        let thread = std::thread::Builder::new().name("leasehold-programs".to_owned());
        thread.spawn(forever).map_err(|error| error.to_string())?;
        Ok(handle)
    });
    started.as_ref().map_err(String::as_str)
}

async fn drive(
    mut command: std::process::Command,
    limit: Option<Duration>,
    longest_line: usize,
    context: TaskContext,
    hold: Option<Hold>,
    printed: Option<Destination>,
) -> End {
    if !context.is_live() {
        return End::Stopped(context.cancelled().await);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    bind_to_us(&mut command, Signal::KILL);
    let mut child = match Command::from(command).spawn() {
        Ok(child) => child,
        Err(error) => return End::NotStarted(error),
    };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut group = Group { leader: child.id().and_then(pid), child: Some(child), hold };
    let (log_out, log_err, storing) = printed::begin(printed);
    let reading = async move { tokio::join!(last_line(out, longest_line, log_out), tail(err, log_err)) };
    let mut reading = Box::pin(reading);
    let mut read = None;
    let overdue = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let mut overdue = std::pin::pin!(overdue);
    let end = loop {
        tokio::select! {
            status = group.wait() => match status {
                Ok(status) => break Ok(status),
                Err(error) => return End::NotStarted(error),
            },
            words = &mut reading, if read.is_none() => read = Some(words),
            why = context.cancelled() => break Err(End::Stopped(why)),
            () = &mut overdue => break Err(End::TimedOut),
        }
    };
    // From here on it is read as fast as it can be.
    storing.over();
    match end {
        Ok(status) => {
            // What it left behind in its group goes with it.
            group.over();
            let (last_line, errors) = match read {
                Some(words) => words,
                None => tokio::time::timeout(LAST_WORDS, &mut reading).await.unwrap_or_default(),
            };
            drop(reading);
            tokio::select! {
                () = storing.finish(LAST_OUTPUT) => {}
                () = async { context.cancelled().await; tokio::time::sleep(STOPPED_OUTPUT).await } => {}
            }
            End::Exited(Exited { status, last_line, errors })
        }
        Err(end) => {
            group.signal(Signal::TERM);
            let mut grace = std::pin::pin!(tokio::time::sleep(GRACE.min(context.stop_budget())));
            loop {
                tokio::select! {
                    _ = group.wait() => break,
                    () = &mut grace => break,
                    // A full pipe must not keep it from ending.
                    words = &mut reading, if read.is_none() => read = Some(words),
                }
            }
            group.signal(Signal::KILL);
            // Killed, it ends; unless the kernel cannot let it, and then the lease is held, and said to be stuck.
            let _ = group.wait().await;
            group.over();
            if read.is_none() {
                let _ = tokio::time::timeout(STOPPED_OUTPUT, &mut reading).await;
            }
            drop(reading);
            storing.finish(STOPPED_OUTPUT.min(context.stop_budget())).await;
            end
        }
    }
}

fn pid(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

/// A program with all that it started. Dropped while it may run, it is killed.
struct Group {
    leader: Option<Pid>,
    child: Option<Child>,
    hold: Option<Hold>,
}

impl Group {
    /// To every process of the group, the leader's end or not.
    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // There may be nobody left.
            let _ = kill_process_group(leader, signal);
        }
    }

    async fn wait(&mut self) -> io::Result<ExitStatus> {
        match &mut self.child {
            Some(child) => child.wait().await,
            None => std::future::pending().await,
        }
    }

    /// The leader has ended: the rest of the group ends, and the group's number is nobody's any more.
    fn over(&mut self) {
        self.signal(Signal::KILL);
        self.leader = None;
        self.child = None;
        self.hold = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let (Some(mut child), hold) = (self.child.take(), self.hold.take()) else { return };
        let reap = async move {
            let _ = child.wait().await;
            drop(hold);
        };
        // Without a runtime the process itself is ending.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(reap);
        }
    }
}

/// A line of output.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct LastLine {
    /// Its bytes; the first ones, where it is too long.
    pub(super) text: Vec<u8>,
    /// How long it is.
    pub(super) length: usize,
}

impl LastLine {
    fn push(&mut self, piece: &[u8], longest: usize) {
        let room = longest.saturating_sub(self.text.len()).min(piece.len());
        self.text.extend_from_slice(&piece[..room]);
        self.length += piece.len();
    }

    fn is_blank(&self) -> bool {
        self.length == self.text.len() && self.text.iter().all(u8::is_ascii_whitespace)
    }
}

async fn last_line(from: Option<impl AsyncRead + Unpin>, longest: usize, mut log: Printed) -> LastLine {
    let Some(mut from) = from else { return LastLine::default() };
    let (mut last, mut line) = (LastLine::default(), LastLine::default());
    let mut chunk = vec![0; 16 * 1024];
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        for (number, piece) in chunk[..n].split(|byte| *byte == b'\n').enumerate() {
            if number > 0 {
                let ended = std::mem::take(&mut line);
                if !ended.is_blank() {
                    last = ended;
                }
            }
            line.push(piece, longest);
        }
        log.push(&chunk[..n]).await;
    }
    if line.is_blank() { last } else { line }
}

async fn tail(from: Option<impl AsyncRead + Unpin>, mut log: Printed) -> Vec<u8> {
    let Some(mut from) = from else { return Vec::new() };
    let mut kept = Vec::new();
    let mut chunk = vec![0; TAIL];
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..n]);
        let beyond = kept.len().saturating_sub(TAIL);
        kept.drain(..beyond);
        log.push(&chunk[..n]).await;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> Printed {
        printed::begin(None).0
    }

    #[tokio::test]
    async fn the_last_line_is_the_last_one_that_is_not_blank() {
        for (written, line) in [
            ("", ""),
            ("one", "one"),
            ("one\ntwo\n", "two"),
            ("one\ntwo\n\n  \n", "two"),
            ("one\n \n", "one"),
            ("\n\n", ""),
        ] {
            let found = last_line(Some(written.as_bytes()), 100, nowhere()).await;
            assert_eq!(String::from_utf8(found.text).unwrap(), line, "{written:?}");
        }
        let long = format!("short\n{}\n", "x".repeat(50_000));
        let found = last_line(Some(long.as_bytes()), 10, nowhere()).await;
        assert_eq!((found.text.len(), found.length), (10, 50_000));
        assert_eq!(tail(Some("y".repeat(50_000).as_bytes()), nowhere()).await.len(), TAIL);
    }
}
