//! How a command ends: its exit code, and one line that says why and what to do next.

use std::{io, path::Path};

use super::text;
use crate::{
    config::ConfigError,
    dev::{cluster::ClusterError, folder::FolderError},
};

/// The exit codes of `spec/interfaces`: the same word always means the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It did what it was asked for.
    Ok,
    /// The job or the check failed.
    Failed,
    /// The command line or a setting cannot be used.
    Usage,
    /// A lease was refused or lost.
    Lease,
    /// There is no such thing.
    NotFound,
    /// Refused, or in conflict with what is there.
    Refused,
    /// The database could not be reached, or its answer is unknown.
    Unreachable,
    /// `run`: the program's own code.
    Program(u8),
}

impl Exit {
    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Lease => 3,
            Self::NotFound => 4,
            Self::Refused => 5,
            Self::Unreachable => 6,
            Self::Program(code) => code,
        }
    }

    /// What becomes of a command whose file has mistakes: there is none, or it cannot be used.
    #[must_use]
    pub fn of_file(file: &Path) -> Self {
        if matches!(file.try_exists(), Ok(false)) { Self::NotFound } else { Self::Usage }
    }

    /// Of two files of one command, what counts: a mistake more than a file that is not there.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let weight = |exit| match exit {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::NotFound => 2,
            _ => 3,
        };
        if weight(other) > weight(self) { other } else { self }
    }
}

/// A command that could not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// The exit code.
    pub exit: Exit,
    /// Cause and next step. Printed as one line; empty prints nothing.
    pub message: String,
}

impl CliError {
    /// Names the code and the words.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// A mistake on the command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// A file that the command line names cannot be read.
    pub fn unreadable(message: impl Into<String>, error: &io::Error) -> Self {
        let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Usage };
        Self::new(exit, message)
    }

    /// The message as it is printed: one line without control characters.
    #[must_use]
    pub fn line(&self) -> String {
        let joined: Vec<&str> = self.message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        text::one_line(&joined.join("; ")).into_owned()
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::new(Exit::Usage, error.to_string())
    }
}

impl From<FolderError> for CliError {
    fn from(error: FolderError) -> Self {
        let exit = match error {
            FolderError::InUse { .. } => Exit::Refused,
            FolderError::Io { .. } => Exit::Usage,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<ClusterError> for CliError {
    fn from(error: ClusterError) -> Self {
        let exit = match error {
            ClusterError::NoPrograms { .. } | ClusterError::Io { .. } => Exit::Usage,
            ClusterError::Occupied { .. } => Exit::Refused,
            ClusterError::Failed { .. } | ClusterError::Refused(_) => Exit::Failed,
            ClusterError::TooSlow { .. } => Exit::Unreachable,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<std::io::Error> for CliError {
    /// Writing to our own output. A reader that went away (`leasehold jobs | head`) is no error.
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::new(Exit::Ok, "");
        }
        Self::new(Exit::Failed, format!("cannot write the output: {error}"))
    }
}
