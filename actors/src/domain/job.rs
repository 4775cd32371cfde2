//! What a job is and how it can end.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What executes a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum JobKind {
    /// An image and a command on a runtime node.
    Container,
    /// An HTTP probe made by the worker.
    Heartbeat,
    /// A Rust function that the embedding program registered by name.
    Handler,
    /// A durable multi-step recipe.
    Recipe,
}

impl JobKind {
    /// The name in the database, in JSON and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Container => "CONTAINER",
            Self::Heartbeat => "HEARTBEAT",
            Self::Handler => "HANDLER",
            Self::Recipe => "RECIPE",
        }
    }
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for JobKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_uppercase().as_str() {
            "CONTAINER" => Ok(Self::Container),
            "HEARTBEAT" => Ok(Self::Heartbeat),
            "HANDLER" => Ok(Self::Handler),
            "RECIPE" => Ok(Self::Recipe),
            _ => Err(format!("unknown kind {text:?}: use CONTAINER, HEARTBEAT, HANDLER or RECIPE")),
        }
    }
}

/// Where a job stands. The last three are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum JobState {
    /// Waits for its time, for another run of its workflow, or for its workflow to be resumed.
    Pending,
    /// May be claimed.
    Queued,
    /// Owned by a worker under a lease.
    Running,
    /// Ended well.
    Completed,
    /// Ended badly; no try is left.
    Failed,
    /// Ended because somebody asked for it.
    Canceled,
}

impl JobState {
    /// The name in the database, in JSON and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Queued => "QUEUED",
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Canceled => "CANCELED",
        }
    }

    /// True for the three states that never change again.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for JobState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_uppercase().as_str() {
            "PENDING" => Ok(Self::Pending),
            "QUEUED" => Ok(Self::Queued),
            "RUNNING" => Ok(Self::Running),
            "COMPLETED" => Ok(Self::Completed),
            "FAILED" => Ok(Self::Failed),
            "CANCELED" => Ok(Self::Canceled),
            _ => Err(format!(
                "unknown state {text:?}: use PENDING, QUEUED, RUNNING, COMPLETED, FAILED or CANCELED"
            )),
        }
    }
}

/// Whose fault a failure is; each kind has its own number of tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum FailureKind {
    /// The job's own program or definition: an exit code, OOM, a refused definition.
    User,
    /// The surroundings: an engine, a node, a lost lease, a panic.
    System,
    /// The job ran longer than it may.
    Timeout,
}

impl FailureKind {
    /// The name in the database, in JSON and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "USER",
            Self::System => "SYSTEM",
            Self::Timeout => "TIMEOUT",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for FailureKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_uppercase().as_str() {
            "USER" => Ok(Self::User),
            "SYSTEM" => Ok(Self::System),
            "TIMEOUT" => Ok(Self::Timeout),
            _ => Err(format!("unknown kind of failure {text:?}: use USER, SYSTEM or TIMEOUT")),
        }
    }
}

/// Why an attempt failed. `message` is at most [`Failure::MESSAGE_LIMIT`] bytes of UTF-8 without NUL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Whose fault it is.
    pub kind: FailureKind,
    /// A stable word or an exit code, for programs: `137`, `oom`, `image_not_found`, `panic`, …
    pub code: String,
    /// One line or a few, for people.
    pub message: String,
    /// The program's own exit code, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

impl Failure {
    /// The most bytes of a message that are kept.
    pub const MESSAGE_LIMIT: usize = 4096;
    /// The most bytes of a code that are kept.
    pub const CODE_LIMIT: usize = 100;

    /// A failure whose texts are made storable: NUL removed, cut at a character boundary.
    #[must_use]
    pub fn new(kind: FailureKind, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind,
            code: storable(code.into(), Self::CODE_LIMIT),
            message: storable(message.into(), Self::MESSAGE_LIMIT),
            exit_code: None,
        }
    }

    /// The same failure with the program's exit code.
    #[must_use]
    pub fn with_exit_code(mut self, code: i32) -> Self {
        self.exit_code = Some(code);
        self
    }
}

/// Makes any text storable in PostgreSQL within `limit` bytes without ever cutting a character in two.
fn storable(mut text: String, limit: usize) -> String {
    if text.contains('\0') {
        text = text.replace('\0', "");
    }
    if text.len() > limit {
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_between_characters_and_has_no_nul() {
        let long = "é".repeat(3000);
        let failure = Failure::new(FailureKind::User, "x\0y", format!("\0{long}"));
        assert_eq!(failure.code, "xy");
        assert!(failure.message.len() <= Failure::MESSAGE_LIMIT);
        assert!(failure.message.chars().all(|c| c == 'é'));
    }

    #[test]
    fn names_parse_back() {
        for state in [
            JobState::Pending,
            JobState::Queued,
            JobState::Running,
            JobState::Completed,
            JobState::Failed,
            JobState::Canceled,
        ] {
            assert_eq!(state.as_str().parse::<JobState>(), Ok(state));
        }
        assert!("DONE".parse::<JobState>().is_err());
    }
}
