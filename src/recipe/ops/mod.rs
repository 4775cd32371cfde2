//! The ops that every worker can have: `command`, `container` and `http`. What they take and give: `docs/recipes.md`.

mod command;
pub(super) mod container;
mod http;
mod printed;
mod process;
pub mod secrets;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use leasehold_actors::{
    domain::{Failure, TaskKey},
    ports::recipe::JsonText,
    runtime_node_actor::task::TaskNodes,
};
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};

use self::{command::CommandOp, container::ContainerOp, http::HttpOp, secrets::Secrets};
use super::{
    exact::Json,
    grammar,
    op::{Ops, Task, TaskError},
};
use crate::{
    config::WorkerSettings,
    submission,
    workload::{exchange::Exchange, heartbeat::HeartbeatSettingsError},
};

/// The op that runs a program.
pub const COMMAND: &str = "command";
/// The op that runs a container on a runtime node.
pub const CONTAINER: &str = "container";
/// The op that makes a request.
pub const HTTP: &str = "http";

/// Of what a failing program said on standard error, the end of at most this many bytes is shown.
const SHOWN: usize = 2048;
/// The most bytes of an output.
pub(super) const OUTPUT_LIMIT: usize = 1024 * 1024;
/// The longest that an op itself waits. A node's `timeout` may be longer, and can be in other units.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The ops that a worker with these settings has: `http`, and `command` where programs are allowed.
///
/// # Errors
/// [`HeartbeatSettingsError`] when the settings for requests cannot be used.
pub fn built_in(settings: &WorkerSettings, secrets: &Arc<Secrets>) -> Result<Ops, HeartbeatSettingsError> {
    let mut ops = Ops::new();
    let exchange = Exchange::new(&settings.heartbeat_allow, settings.heartbeat_ca_file.as_deref())?;
    ops.register(HTTP, HttpOp { exchange, secrets: Arc::clone(secrets) }).expect("it is a good name");
    if settings.allow_commands {
        ops.register(COMMAND, CommandOp { secrets: Arc::clone(secrets) }).expect("it is a good name");
    }
    Ok(ops)
}

/// These ops, and `container`, which runs containers through `nodes`.
#[must_use]
pub fn with_containers(mut ops: Ops, nodes: Arc<TaskNodes>, secrets: &Arc<Secrets>) -> Ops {
    ops.register(CONTAINER, ContainerOp { nodes, secrets: Arc::clone(secrets) }).expect("it is a good name");
    ops
}

/// The input. What does not fit is told with its place and in words that show no secret.
fn decode<'t, T: Deserialize<'t>>(task: &'t Task, secrets: &Secrets) -> Result<T, TaskError> {
    let misfit =
        |reason: String| masked(TaskError::user("bad_input", format!("{}: {reason}", task.op)), secrets);
    let json = Json::parse(&task.inputs).map_err(|error| misfit(format!("the input {error}")))?;
    grammar::ops::check_given(&task.op, &json).map_err(misfit)?;
    serde_json::from_str(&task.inputs).map_err(|error| {
        masked(TaskError::user("bad_input", format!("{}: the input does not fit: {error}", task.op)), secrets)
    })
}

/// An input that is nothing was left out, as the grammar has it.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(given: D) -> Result<T, D::Error> {
    Option::deserialize(given).map(Option::unwrap_or_default)
}

fn duration(text: &str) -> Result<Duration, TaskError> {
    let bad = |why: &str| TaskError::user("bad_input", format!("timeout: {why}; write it like 30s or 250ms"));
    let value = humantime::parse_duration(text).map_err(|_| bad("is no duration"))?;
    if value.is_zero() || value > LONGEST {
        return Err(bad("is zero, or longer than a year"));
    }
    Ok(value)
}

/// A failure of what ops share with other kinds of jobs.
fn failed(failure: Failure) -> TaskError {
    let Failure { kind, code, message, exit_code } = failure;
    TaskError { kind, code, message, exit_code }
}

/// The end of what a failing program said on standard error; without any, its last line on standard output. Masked
/// before it is cut, so that no half of a secret is left.
fn last_words(secrets: &Secrets, errors: &[u8], last_line: &[u8]) -> String {
    let bytes = if errors.iter().all(u8::is_ascii_whitespace) {
        &last_line[..last_line.len().min(16 * 1024)]
    } else {
        errors
    };
    let text = String::from_utf8_lossy(bytes);
    let text = secrets.mask(text.trim());
    let mut from = text.len().saturating_sub(SHOWN);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_owned()
}

/// An error as it may leave the worker.
fn masked(mut error: TaskError, secrets: &Secrets) -> TaskError {
    error.message = secrets.mask(&error.message).into_owned();
    error
}

/// An output as it may leave the worker, if it can be kept.
fn bounded(json: &str, secrets: &Secrets) -> Result<JsonText, TaskError> {
    let json = secrets.mask_json(json);
    if json.len() > OUTPUT_LIMIT {
        return Err(too_large(json.len()));
    }
    submission::json::check("output", &json)
        .map_err(|broken| TaskError::user("bad_output", format!("the output cannot be kept: {broken}")))?;
    Ok(json.into())
}

/// What the store knows a task by: short, and the same for the same path.
fn task_key(path: &str) -> TaskKey {
    let hash = Sha256::digest(format!("leasehold/place/1\n{path}"));
    let text: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    TaskKey::new(text).expect("32 hexadecimal digits are a key")
}

fn too_large(bytes: usize) -> TaskError {
    TaskError::user(
        "result_too_large",
        format!("the output has {bytes} bytes or more; at most {OUTPUT_LIMIT} are kept"),
    )
}
