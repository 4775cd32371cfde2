//! The words of a script.

use std::time::Duration;

use bytes::Bytes;

use crate::{error::EngineErrorKind, ports::LogStream};

/// What a container does once it is started.
#[derive(Debug, Clone, Default)]
pub struct Script {
    pub(super) output: Vec<(Duration, LogStream, Bytes)>,
    /// How long after its last output it exits, with which code, and whether for lack of memory; none hangs.
    pub(super) exit: Option<(Duration, i32, bool)>,
    pub(super) on_stop: OnStop,
    pub(super) paused: bool,
}

/// How a container takes being asked to stop.
#[derive(Debug, Clone, Default)]
pub enum OnStop {
    /// Not at all: it is killed after the grace.
    #[default]
    Ignores,
    /// It ends by itself.
    Ends {
        /// After this long.
        after: Duration,
        /// With this code.
        code: i32,
        /// Printing this first.
        says: Option<&'static str>,
    },
}

impl Script {
    /// Exits with a code at once.
    #[must_use]
    pub fn exits(code: i32) -> Self {
        Self::exits_after(Duration::ZERO, code)
    }

    /// Exits with a code after this long.
    #[must_use]
    pub fn exits_after(after: Duration, code: i32) -> Self {
        Self { exit: Some((after, code, false)), ..Self::default() }
    }

    /// Runs until it is stopped.
    #[must_use]
    pub fn hangs() -> Self {
        Self::default()
    }

    /// The kernel kills something in it for memory; its main process exits with this code.
    #[must_use]
    pub fn runs_out_of_memory(code: i32) -> Self {
        Self { exit: Some((Duration::from_secs(1), code, true)), ..Self::default() }
    }

    /// Prints something, this long after what it did before.
    #[must_use]
    pub fn prints(mut self, pause: Duration, stream: LogStream, data: impl Into<Bytes>) -> Self {
        self.output.push((pause, stream, data.into()));
        self
    }

    /// How it takes being asked to stop.
    #[must_use]
    pub fn on_stop(mut self, on_stop: OnStop) -> Self {
        self.on_stop = on_stop;
        self
    }

    /// Somebody freezes it right after its start.
    #[must_use]
    pub fn paused(mut self) -> Self {
        self.paused = true;
        self
    }
}

/// A call of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// [`crate::ports::ContainerEngine::info`]
    Info,
    /// [`crate::ports::ContainerEngine::ensure_image`]
    EnsureImage,
    /// [`crate::ports::ContainerEngine::create`]
    Create,
    /// [`crate::ports::ContainerEngine::start`]
    Start,
    /// [`crate::ports::ContainerEngine::inspect`]
    Inspect,
    /// [`crate::ports::ContainerEngine::wait`]
    Wait,
    /// [`crate::ports::ContainerEngine::logs`]
    Logs,
    /// [`crate::ports::ContainerEngine::mark_stopped`]
    Mark,
    /// [`crate::ports::ContainerEngine::stop`]
    Stop,
    /// [`crate::ports::ContainerEngine::kill`]
    Kill,
    /// [`crate::ports::ContainerEngine::remove`]
    Remove,
    /// [`crate::ports::ContainerEngine::list`]
    List,
}

impl Call {
    /// Its name in errors and in the record of calls.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::EnsureImage => "ensure_image",
            Self::Create => "create",
            Self::Start => "start",
            Self::Inspect => "inspect",
            Self::Wait => "wait",
            Self::Logs => "logs",
            Self::Mark => "mark",
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::Remove => "remove",
            Self::List => "list",
        }
    }
}

/// What goes wrong with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It is done; the answer is lost.
    AnswerLost,
    /// It is not done, and nobody can tell.
    RequestLost,
    /// The engine refuses, in these words.
    Fails(EngineErrorKind, &'static str),
    /// It is done, and yet the engine answers with an error, in these words.
    DoneButFails(EngineErrorKind, &'static str),
    /// The engine refuses because the command cannot be run, with the exit code that this stands for.
    CannotRun(i32, &'static str),
    /// It takes this long.
    Slow(Duration),
    /// It is never answered.
    Silent,
    /// The adapter has a defect.
    Panics,
}
