//! Errors of the two outside worlds. Each answers two separate questions: may it have happened after all,
//! and is asking again useful?

/// Whether a request that ended in an error may have taken effect (D4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It surely did not.
    No,
    /// Nobody knows: the connection broke, the answer was lost, or the time ran out.
    Maybe,
}

/// What kind of trouble a store is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// No connection could be had, or it broke.
    Unreachable,
    /// The call's own time ran out.
    Timeout,
    /// A row stayed locked by somebody else for longer than the call may wait.
    RowLocked,
    /// The server refuses writes: a standby, or a read-only database.
    ReadOnly,
    /// The request itself was refused: bad data, a constraint, a missing table.
    Refused,
    /// The same command id was used for another request.
    CommandConflict,
}

/// A call to the store that brought no answer.
///
/// Losing a lease is not an error but an answer; see the enums in [`crate::ports`].
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct StoreError {
    /// The call, for example `renew`.
    pub operation: &'static str,
    /// What kind of trouble it is.
    pub kind: StoreErrorKind,
    /// Whether the call may have taken effect.
    pub applied: Applied,
    /// One line for people, never with a token or a password.
    pub message: String,
}

impl StoreError {
    /// Whether the same call may succeed later without anybody changing anything else.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        !matches!(self.kind, StoreErrorKind::Refused | StoreErrorKind::CommandConflict)
    }
}

/// What kind of trouble a container engine is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineErrorKind {
    /// The engine could not be reached, or the connection broke in the middle.
    Unreachable,
    /// The engine did not answer in time.
    Timeout,
    /// There is no such container: an inspection finds none. Not what a container that is there lacks.
    NoSuchContainer,
    /// There is no such image, and none can be pulled.
    NoSuchImage,
    /// The registry refused or failed; a later pull may succeed.
    PullFailed,
    /// Another container has that name, or the container is in a state that forbids the call.
    Conflict,
    /// The container's command, user, directory or option cannot be used: the job's own fault.
    BadRequest,
    /// Any other refusal by the engine.
    Engine,
}

/// A call to a container engine that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct EngineError {
    /// The call, for example `create`.
    pub operation: &'static str,
    /// What kind of trouble it is.
    pub kind: EngineErrorKind,
    /// Whether the call may have taken effect.
    pub applied: Applied,
    /// The engine's own words, or the transport's, in one line.
    pub message: String,
    /// Exit code that the engine's words imply (126, 127), where they do.
    pub exit_code: Option<i32>,
}

impl EngineError {
    /// Whether the same call may succeed later without anybody changing the job.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        !matches!(
            self.kind,
            EngineErrorKind::NoSuchImage | EngineErrorKind::BadRequest | EngineErrorKind::NoSuchContainer
        )
    }
}
