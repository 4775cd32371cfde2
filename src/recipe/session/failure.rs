//! Failures of a recipe's own, which `retry` and `catch` may see, and ends of an invocation, which they never do.

use leasehold_actors::{
    domain::{Failure, FailureKind},
    ports::recipe::JsonText,
};

use crate::recipe::{exact::Json, template::TemplateError};

/// What is wrong, before it is known at which path and after which record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The recipe's own: seen by `retry` and `catch`.
    Own(Failure),
    /// This machine's: the invocation ends, and the job is tried again elsewhere.
    Machine(String),
}

impl Fault {
    pub(super) fn user(code: &str, message: impl Into<String>) -> Self {
        Self::Own(Failure::new(FailureKind::User, code, message))
    }

    pub(super) fn of_template(error: &TemplateError) -> Self {
        match error {
            TemplateError::Thread(_) => Self::Machine(error.to_string()),
            _ => Self::user(error.code(), error.to_string()),
        }
    }
}

/// A node has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeFailure {
    pub(super) failure: Failure,
    /// Where.
    pub(super) path: String,
    /// The ordinal of the latest record that it follows from: of two failures in a `parallel` the lower one counts.
    pub(super) at: i64,
}

impl NodeFailure {
    /// What `catch` reads as `error`.
    pub(super) fn to_json(&self) -> JsonText {
        let text = |text: &str| Json::String(text.to_owned()).to_string();
        format!(
            r#"{{"kind":{},"code":{},"message":{},"path":{}}}"#,
            text(self.failure.kind.as_str()),
            text(&self.failure.code),
            text(&self.failure.message),
            text(&self.path)
        )
        .into()
    }
}

/// What ends an invocation whatever the recipe says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fatal {
    /// The lease is not live, or a record stayed without an answer until it ran out.
    Lost,
    /// The recipe and the log of the job do not fit.
    NotDeterministic { path: String, ordinal: i64, expected: String, found: String },
    /// The log is full.
    LogFull { what: &'static str, limit: i64 },
    /// This machine or the store is at fault: tried again elsewhere.
    Machine { code: &'static str, message: String },
}
