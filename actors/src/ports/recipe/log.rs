//! What both stores ask of events: what names them, what may be stored, what a repeat is, and how much it takes.

use super::{EventBody, JsonText, NewEvent, TaskOutcome};
use crate::domain::json;

impl EventBody {
    /// The sort of event: with path and reopening it names an event.
    #[must_use]
    pub fn sort(&self) -> &'static str {
        match self {
            Self::Task { .. } => "task",
            Self::TimerSet { .. } => "timer_set",
            Self::TimerFired => "timer_fired",
            Self::Signal { .. } => "signal",
            Self::ChildStarted { .. } => "child_started",
            Self::ChildEnded { .. } => "child_ended",
            Self::Reopened { .. } => "reopened",
        }
    }

    /// Whether a standing event of the same name says what was to be said. A timer keeps its first deadline, and a
    /// child is named by its idempotency key.
    #[must_use]
    pub fn says(&self, event: &NewEvent) -> bool {
        match (self, event) {
            (
                Self::Task { op, input_hash, attempt, outcome, directive },
                NewEvent::Task { op: o, input_hash: i, attempt: a, outcome: c, directive: d },
            ) => op == o && input_hash == i && attempt == a && outcome == c && directive == d,
            (Self::Signal { name, .. }, NewEvent::TakeSignal { name: wanted }) => name == wanted,
            _ => self.sort() == event.sort(),
        }
    }

    /// How many bytes of the log it takes, beside those of its path.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let length = |text: &Option<JsonText>| text.as_ref().map_or(0, |text| text.len());
        match self {
            Self::Task { op, input_hash, outcome, directive, .. } => {
                task_bytes(op, input_hash, outcome, length(directive))
            }
            Self::Signal { name, data, .. } => name.len() + data.len(),
            Self::ChildEnded { output, failure, .. } => {
                length(output) + failure.as_ref().map_or(0, |f| f.code.len() + f.message.len())
            }
            Self::Reopened { again } => 16 * again.len(),
            Self::TimerSet { .. } | Self::TimerFired | Self::ChildStarted { .. } => 0,
        }
    }
}

impl NewEvent {
    /// As [`EventBody::sort`].
    #[must_use]
    pub fn sort(&self) -> &'static str {
        match self {
            Self::Task { .. } => "task",
            Self::TimerSet { .. } => "timer_set",
            Self::TimerFired => "timer_fired",
            Self::TakeSignal { .. } => "signal",
            Self::StartChild { .. } => "child_started",
            Self::ChildEnded => "child_ended",
        }
    }

    /// As [`EventBody::bytes`], as far as the store need not be asked for it.
    #[must_use]
    pub fn known_bytes(&self) -> usize {
        match self {
            Self::Task { op, input_hash, outcome, directive, .. } => {
                task_bytes(op, input_hash, outcome, directive.as_ref().map_or(0, |text| text.len()))
            }
            Self::TakeSignal { name } => name.len(),
            Self::TimerSet { .. } | Self::TimerFired | Self::StartChild { .. } | Self::ChildEnded => 0,
        }
    }

    /// Checks what cannot be stored at all.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn check(&self, path: &str) -> Result<(), String> {
        if path.contains('\0') {
            return Err("path: contains NUL".to_owned());
        }
        match self {
            Self::Task { op, input_hash, outcome, directive, .. } => {
                if op.contains('\0') || input_hash.contains('\0') {
                    return Err("op: contains NUL".to_owned());
                }
                if let TaskOutcome::Succeeded { output } = outcome {
                    value("result", output)?;
                }
                directive.as_ref().map_or(Ok(()), |directive| value("directive", directive))
            }
            Self::TakeSignal { name } if name.contains('\0') => Err("signal: contains NUL".to_owned()),
            Self::TakeSignal { .. }
            | Self::TimerSet { .. }
            | Self::TimerFired
            | Self::StartChild { .. }
            | Self::ChildEnded => Ok(()),
        }
    }
}

fn task_bytes(op: &str, input_hash: &str, outcome: &TaskOutcome, directive: usize) -> usize {
    let outcome = match outcome {
        TaskOutcome::Succeeded { output } => output.len(),
        TaskOutcome::Failed(failure) => failure.code.len() + failure.message.len(),
        TaskOutcome::Canceled => 0,
    };
    op.len() + input_hash.len() + outcome + directive
}

/// Whoever is handed it later must be able to read it.
fn value(field: &str, text: &str) -> Result<(), String> {
    json::check(field, text).map_err(|invalid| invalid.to_string())
}
