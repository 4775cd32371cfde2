//! The container of a recipe's task: the same run as a CONTAINER job's, from its plan to its removal, under the lease
//! of the recipe's job. Several may run under one lease.
//!
//! What a run of its own does not have: it can be stopped alone ([`LeaseContext::for_part`]), its output is listened to
//! for the result of the task, and what must not be shown is blotted out of it before it is stored.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::{Bytes, BytesMut};

use super::{
    Node, NodeRunSettings,
    guard::KillSwitch,
    logs::Journal,
    plan,
    run::{Halt, Run},
};
use crate::{
    domain::{ContainerSpec, Failure, FailureKind, NodeId, TaskKey},
    error::EngineError,
    ports::{ContainerEngine, EngineFactory, LogOffsets, LogStream, Placement},
    work::{LeaseContext, WorkOutcome},
};

/// Of standard error, the end of at most this many bytes is remembered.
const TAIL: usize = 16 * 1024;

/// Blots out of a piece of output what must not be shown, without changing its length. It is told how many bytes at the
/// beginning belong to something that began before them and must not be shown, and whether the output ends here. It
/// says how many bytes can be shown now (the rest may be the beginning of more, and is given again, as it was printed,
/// with what follows) and how many behind these belong to something that began among them.
pub type Redact = Arc<dyn Fn(&mut [u8], usize, bool) -> (usize, usize) + Send + Sync>;

/// The end of a stream that may be the beginning of something that is not to be shown.
#[derive(Debug, Default)]
pub struct HeldBack {
    bytes: BytesMut,
    begun: usize,
}

impl HeldBack {
    /// How many bytes are held back.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing is held back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes a piece, and gives what can be shown of what is held back and of it.
    pub fn take(&mut self, piece: &[u8], redact: &Redact) -> Bytes {
        self.bytes.extend_from_slice(piece);
        self.let_go(redact, false)
    }

    /// Gives the rest: nothing comes after it.
    pub fn rest(&mut self, redact: &Redact) -> Bytes {
        self.let_go(redact, true)
    }

    fn let_go(&mut self, redact: &Redact, last: bool) -> Bytes {
        let (shown, begun) = redact(&mut self.bytes, self.begun, last);
        self.begun = begun;
        self.bytes.split_to(shown.min(self.bytes.len())).freeze()
    }
}

/// A container to run for a task.
pub struct TaskRun {
    /// The lease of its job; perhaps a part of it that can be stopped alone.
    pub lease: LeaseContext,
    /// The task.
    pub task: TaskKey,
    /// Its path.
    pub path: String,
    /// Where the store has placed it.
    pub placement: Placement,
    /// What to run.
    pub spec: ContainerSpec,
    /// What its program is told beside what every program is told.
    pub env: Vec<(String, String)>,
    /// The longest line of standard output that is remembered whole.
    pub longest_line: usize,
    /// What must not be shown.
    pub redact: Option<Redact>,
}

impl fmt::Debug for TaskRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskRun")
            .field("path", &self.path)
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

/// How the container of a task ended.
#[derive(Debug)]
pub struct TaskEnded {
    /// As that of a CONTAINER job; with an exit code of zero, the output is none.
    pub outcome: WorkOutcome,
    /// What was heard of its output.
    pub output: TaskOutput,
}

/// What is remembered of a program's output.
#[derive(Debug, Default)]
pub struct TaskOutput {
    /// The last line of standard output that is not blank.
    pub last_line: Line,
    /// The end of standard error.
    pub errors: Vec<u8>,
    /// All of it was read.
    pub complete: bool,
    line: Line,
    longest_line: usize,
}

/// A line of output.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its bytes; the first ones, where it is too long.
    pub text: Vec<u8>,
    /// How long it is.
    pub length: usize,
}

impl Line {
    fn push(&mut self, piece: &[u8], longest: usize) {
        let room = longest.saturating_sub(self.text.len()).min(piece.len());
        self.text.extend_from_slice(&piece[..room]);
        self.length += piece.len();
    }

    fn is_blank(&self) -> bool {
        self.length == self.text.len() && self.text.iter().all(u8::is_ascii_whitespace)
    }
}

impl TaskOutput {
    /// What is remembered of an output that is known whole.
    #[must_use]
    pub fn of(stdout: &[u8], stderr: &[u8], longest_line: usize) -> Self {
        let mut output = Self { longest_line, ..Self::default() };
        output.hears(LogStream::Stdout, stdout);
        output.hears(LogStream::Stderr, stderr);
        output.end_line();
        output.complete = true;
        output
    }

    fn hears(&mut self, stream: LogStream, data: &[u8]) {
        if stream == LogStream::Stderr {
            self.errors.extend_from_slice(&data[data.len().saturating_sub(TAIL)..]);
            let beyond = self.errors.len().saturating_sub(TAIL);
            self.errors.drain(..beyond);
            return;
        }
        for (number, piece) in data.split(|byte| *byte == b'\n').enumerate() {
            if number > 0 {
                self.end_line();
            }
            self.line.push(piece, self.longest_line);
        }
    }

    fn end_line(&mut self) {
        let ended = std::mem::take(&mut self.line);
        if !ended.is_blank() {
            self.last_line = ended;
        }
    }
}

/// What makes a run that of a task.
pub(super) struct OfTask {
    pub(super) key: TaskKey,
    redact: Option<Redact>,
    output: Mutex<TaskOutput>,
}

impl OfTask {
    pub(super) fn new(key: TaskKey, longest_line: usize, redact: Option<Redact>) -> Arc<Self> {
        let output = TaskOutput { longest_line, ..TaskOutput::default() };
        Arc::new(Self { key, redact, output: Mutex::new(output) })
    }

    /// What was heard; nothing of it stays here.
    pub(super) fn take_output(&self) -> TaskOutput {
        std::mem::take(&mut *self.output())
    }

    fn output(&self) -> MutexGuard<'_, TaskOutput> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hears(&self, stream: LogStream, data: &[u8]) {
        self.output().hears(stream, data);
    }

    pub(super) fn redact(&self) -> Option<&Redact> {
        self.redact.as_ref()
    }

    pub(super) fn output_is_over(&self, complete: bool) {
        let mut output = self.output();
        output.end_line();
        output.complete = complete;
    }
}

/// Runs the containers of tasks. Has engine clients of its own: tasks run on other threads than the nodes' actors.
pub struct TaskNodes {
    factory: Arc<dyn EngineFactory>,
    settings: NodeRunSettings,
    nodes: Mutex<HashMap<(NodeId, i64), Arc<Node>>>,
}

impl fmt::Debug for TaskNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskNodes").finish_non_exhaustive()
    }
}

impl TaskNodes {
    /// With these engines. Runs live on the runtime that the settings name, else on the caller's.
    #[must_use]
    pub fn new(factory: Arc<dyn EngineFactory>, settings: NodeRunSettings) -> Self {
        Self { factory, settings, nodes: Mutex::default() }
    }

    fn node(&self, placement: &Placement) -> Result<Arc<Node>, EngineError> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (placement.node.clone(), placement.incarnation);
        if let Some(node) = nodes.get(&key).filter(|node| node.placement == *placement) {
            return Ok(Arc::clone(node));
        }
        let engine: Box<dyn ContainerEngine> = self.factory.connect(placement)?;
        let node = Arc::new(Node {
            placement: placement.clone(),
            engine,
            factory: Arc::clone(&self.factory),
            settings: self.settings.clone(),
        });
        nodes.retain(|(name, incarnation), _| *name != key.0 || *incarnation >= key.1);
        nodes.insert(key, Arc::clone(&node));
        Ok(node)
    }

    /// Runs a container to its end and removes it. Once begun it goes on also when this future is dropped: stop its
    /// part of the lease to end it.
    pub async fn run(&self, run: TaskRun) -> TaskEnded {
        let failed = |code: &str, message: String| TaskEnded {
            outcome: WorkOutcome::Failed(Failure::new(FailureKind::System, code, message)),
            output: TaskOutput::default(),
        };
        let TaskRun { lease, task, path, placement, spec, env, longest_line, redact } = run;
        let node = match self.node(&placement) {
            Ok(node) => node,
            Err(error) => return failed("node_unusable", error.to_string()),
        };
        let grant = lease.grant();
        let (fleet, claim) = (node.settings.fleet, grant.authority.epoch);
        let plan = plan::plan_of_task(fleet, &placement.node, grant, claim, (&task, &path), spec, env);
        let switch = KillSwitch::new(&node, &plan);
        let call = node.settings.limits.store_call;
        let journal = Journal::new(lease.clone(), call, 0, Some(task.clone()));
        let of_task = OfTask::new(task, longest_line, redact);
        let (hold, heard) = (lease.hold(), Arc::clone(&of_task));
        let stored = LogOffsets::default();
        let run = Arc::new(Run { node, lease, plan, switch, journal, stored, task: Some(of_task) });
        let work = async move {
            let _hold = hold;
            run.to_its_end().await
        };
        let work = tracing::Instrument::in_current_span(work);
        let running = match &self.settings.runtime {
            Some(runtime) => runtime.spawn(work),
            None => tokio::spawn(work),
        };
        let outcome = match running.await {
            Ok(outcome) => outcome,
            Err(error) if error.is_panic() => Halt::fail(
                FailureKind::System,
                "panic",
                "running the container failed inside Leasehold; its log tells where",
            )
            .outcome(),
            // The runtime is going away; the fence has the container.
            Err(_) => WorkOutcome::Stopped,
        };
        TaskEnded { outcome, output: heard.take_output() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(pieces: &[&str]) -> TaskOutput {
        let task = OfTask::new(TaskKey::new("k").expect("a plain key"), 10, None);
        for piece in pieces {
            task.hears(LogStream::Stdout, piece.as_bytes());
        }
        task.output_is_over(true);
        task.take_output()
    }

    #[test]
    fn the_last_line_that_is_not_blank_is_remembered_however_it_comes_in_pieces() {
        for (pieces, line) in [
            (&["one\ntwo\n"][..], "two"),
            (&["on", "e\nt", "wo"], "two"),
            (&["one\n", "\n", "  \n"], "one"),
            (&["\n\n"], ""),
            (&[], ""),
        ] {
            assert_eq!(String::from_utf8(heard(pieces).last_line.text).expect("text"), line, "{pieces:?}");
        }
        let long = heard(&["short\n", &"x".repeat(5000), &"x".repeat(5000), "\n"]).last_line;
        assert_eq!((long.text.len(), long.length), (10, 10_000));
    }

    #[test]
    fn the_end_of_the_errors_is_remembered() {
        let task = OfTask::new(TaskKey::new("k").expect("a plain key"), 10, None);
        task.hears(LogStream::Stderr, "y".repeat(50_000).as_bytes());
        task.hears(LogStream::Stderr, b"end");
        let errors = task.take_output().errors;
        assert_eq!(errors.len(), TAIL);
        assert!(errors.ends_with(b"yend"));
    }
}
