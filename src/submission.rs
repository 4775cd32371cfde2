//! Validation of everything that is submitted, before anything is written.
//!
//! A refusal names the field and the rule. `leasehold.submit_job` checks the same rules in SQL as far as SQL
//! can, since any language may call it; a test compares both over one table of bad inputs.

pub mod container;
pub mod document;
pub mod heartbeat;
pub mod image;
pub mod recipe;
mod yaml_json;

use chrono::{DateTime, Utc};
use leasehold_actors::domain::execution::payload;
pub use leasehold_actors::domain::json;
use leasehold_actors::domain::{InvalidDefinition, JobDefinition, Namespace, NewJob, RetryPolicy};

/// The name that stands for "no workflow".
pub const AD_HOC: &str = "adhoc";
/// Bounds of a priority, both inclusive.
pub const PRIORITY: std::ops::RangeInclusive<i16> = -100..=100;
/// The longest that one attempt may be allowed to run: 365 days.
pub const MAX_TIMEOUT_MS: i64 = 31_536_000_000;
/// The longest idempotency key, in bytes.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 1024;
/// The most tries of one kind.
pub const MAX_TRIES: i32 = 1000;
/// The longest first back-off: a day.
pub const MAX_BACKOFF_MS: i64 = 86_400_000;
/// The longest back-off at all: 30 days.
pub const MAX_BACKOFF_CAP_MS: i64 = 2_592_000_000;
/// `run_at` from here (1970-01-01) …
const EARLIEST_RUN_SECONDS: i64 = 0;
/// … to before here (2200-01-01).
const LATEST_RUN_SECONDS: i64 = 7_258_118_400;

/// Checks a request completely; nothing needs to be asked of the database.
///
/// # Errors
/// [`InvalidDefinition`] for the first rule that is broken.
pub fn validate(job: &NewJob) -> Result<(), InvalidDefinition> {
    match (run_of(job), &job.definition) {
        (Some(name), None) => text_name("workflow", name)?,
        (Some(_), Some(_)) => {
            return Err(InvalidDefinition::new(
                "definition",
                "a run of a workflow has the workflow's definition; leave it out",
            ));
        }
        (None, Some(definition)) => validate_definition(definition)?,
        (None, None) => {
            return Err(InvalidDefinition::new("definition", "say what to run: a definition or a workflow"));
        }
    }
    json::check("payload", &job.payload)?;
    if matches!(job.definition, Some(JobDefinition::Recipe(_))) {
        payload::check(&job.payload)?;
    }
    priority(job.priority)?;
    if let Some(at) = job.run_at {
        run_at(at)?;
    }
    if let Some(key) = &job.idempotency_key {
        idempotency_key(key)?;
    }
    range("timeout_ms", job.timeout_ms, 1, MAX_TIMEOUT_MS)?;
    validate_retry(&job.retry)?;
    job.trace_parent.as_deref().map_or(Ok(()), trace_parent)
}

/// The workflow that a request is a run of; `adhoc` is none.
#[must_use]
pub fn run_of(job: &NewJob) -> Option<&str> {
    job.workflow.as_deref().filter(|name| *name != AD_HOC)
}

/// Checks what a job does.
///
/// # Errors
/// [`InvalidDefinition`] for the first rule that is broken.
pub fn validate_definition(definition: &JobDefinition) -> Result<(), InvalidDefinition> {
    match definition {
        JobDefinition::Container(spec) => container::check(spec)?,
        JobDefinition::Heartbeat(spec) => heartbeat::check(spec)?,
        JobDefinition::Handler { name } => text_name("handler", name)?,
        JobDefinition::Recipe(spec) => recipe::check(spec)?,
    }
    let length = definition.to_json().len();
    if length > json::MAX_BYTES {
        return Err(InvalidDefinition::new(
            "definition",
            format!("is {length} bytes long as JSON; at most {} (1 MiB) are allowed", json::MAX_BYTES),
        ));
    }
    Ok(())
}

/// Checks a retry policy.
///
/// # Errors
/// [`InvalidDefinition`] for the first rule that is broken.
pub fn validate_retry(retry: &RetryPolicy) -> Result<(), InvalidDefinition> {
    for (field, value) in [
        ("retry.max_user", retry.max_user),
        ("retry.max_system", retry.max_system),
        ("retry.max_timeout", retry.max_timeout),
    ] {
        range(field, value.map(i64::from), 1, i64::from(MAX_TRIES))?;
    }
    range("retry.backoff_ms", retry.backoff_ms, 0, MAX_BACKOFF_MS)?;
    range("retry.backoff_cap_ms", retry.backoff_cap_ms, 0, MAX_BACKOFF_CAP_MS)?;
    match (retry.backoff_ms, retry.backoff_cap_ms) {
        (Some(first), Some(cap)) if cap < first => {
            Err(InvalidDefinition::new("retry.backoff_cap_ms", "must not be less than backoff_ms"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn priority(priority: i16) -> Result<(), InvalidDefinition> {
    range("priority", Some(i64::from(priority)), i64::from(*PRIORITY.start()), i64::from(*PRIORITY.end()))
}

fn run_at(at: DateTime<Utc>) -> Result<(), InvalidDefinition> {
    if (EARLIEST_RUN_SECONDS..LATEST_RUN_SECONDS).contains(&at.timestamp()) {
        return Ok(());
    }
    Err(InvalidDefinition::new("run_at", "must be between the years 1970 and 2199"))
}

pub(crate) fn idempotency_key(key: &str) -> Result<(), InvalidDefinition> {
    if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_BYTES {
        return Err(InvalidDefinition::new(
            "idempotency_key",
            format!("is {} bytes long; 1 to {MAX_IDEMPOTENCY_KEY_BYTES} are allowed", key.len()),
        ));
    }
    if key.chars().any(char::is_control) {
        return Err(InvalidDefinition::new("idempotency_key", "must not contain control characters"));
    }
    Ok(())
}

fn trace_parent(text: &str) -> Result<(), InvalidDefinition> {
    let lengths = [2, 32, 16, 2];
    let parts: Vec<&str> = text.split('-').collect();
    let good = parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, length)| {
            part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        });
    if good { Ok(()) } else { Err(InvalidDefinition::new("trace_parent", "is not a W3C traceparent")) }
}

/// The rules of every name, by way of the type that states them.
pub(crate) fn text_name(field: &str, name: &str) -> Result<(), InvalidDefinition> {
    Namespace::new(name).map(|_| ()).map_err(|e| InvalidDefinition::new(field, e.reason))
}

pub(crate) fn no_nul(field: &str, text: &str) -> Result<(), InvalidDefinition> {
    if text.contains('\0') {
        return Err(InvalidDefinition::new(field, r"must not contain NUL (\u0000)"));
    }
    Ok(())
}

pub(crate) fn range(field: &str, value: Option<i64>, low: i64, high: i64) -> Result<(), InvalidDefinition> {
    match value {
        Some(value) if !(low..=high).contains(&value) => {
            Err(InvalidDefinition::new(field, format!("must be between {low} and {high}, not {value}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
