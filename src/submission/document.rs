//! The YAML form of a workflow.

use std::fmt;

use leasehold_actors::domain::{JobDefinition, Namespace, RetryPolicy};
use serde::Serialize;

/// How many runs of one workflow may be RUNNING at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// No limit.
    #[default]
    Allow,
    /// At most this many.
    AllowN(i32),
    /// One, and in order: none starts while an earlier one is unfinished.
    Serial,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("allow"),
            Self::AllowN(n) => write!(f, "allow({n})"),
            Self::Serial => f.write_str("serial"),
        }
    }
}

/// A workflow as its author wrote it.
///
/// ```yaml
/// name: nightly-report
/// container:                 # or `heartbeat:`, or `handler: name`
///   image: busybox
///   command: [sh, -c, "echo report"]
///   memory_bytes: 67108864
/// payload: {day: monday}     # for runs that bring none
/// priority: 10               # -100 to 100
/// overlap: serial            # or `allow` (default), `allow(3)`
/// timeout_ms: 600000
/// retry: {max_user: 3, max_system: 5, backoff_ms: 1000, backoff_cap_ms: 60000}
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowDocument {
    /// The tenant: the document's `namespace`, or the one it is applied in.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// What its runs do.
    pub definition: JobDefinition,
    /// The payload of runs that bring none, as raw JSON text.
    pub payload: String,
    /// Priority of its runs.
    pub priority: i16,
    /// How many runs at once.
    pub overlap: Overlap,
    /// The longest that one attempt may run.
    pub timeout_ms: Option<i64>,
    /// How often to try.
    pub retry: RetryPolicy,
}

/// A document that is no workflow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{}{message}", at(*.line, *.column))]
pub struct DocumentError {
    /// Line of the mistake, from 1; 0 when it is nowhere in particular.
    pub line: u64,
    /// Column of the mistake, from 1.
    pub column: u64,
    /// What is wrong, in one line.
    pub message: String,
}

fn at(line: u64, column: u64) -> String {
    if line == 0 { String::new() } else { format!("line {line}, column {column}: ") }
}
