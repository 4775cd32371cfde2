//! Rules for CONTAINER definitions: what the engine would refuse later is refused now.

use leasehold_actors::domain::{ContainerSpec, InvalidDefinition};

use super::{image, no_nul, range, text_name};

/// The least memory that engines accept.
pub const MIN_MEMORY_BYTES: i64 = 6 << 20;
/// The most memory that can be asked for (1 PiB).
pub const MAX_MEMORY_BYTES: i64 = 1 << 50;
/// The least share of a core that engines accept.
pub const MIN_CPU_MILLIS: i64 = 10;
/// The most cores that can be asked for, in thousandths.
pub const MAX_CPU_MILLIS: i64 = 1_024_000;
/// The most processes that can be asked for: the kernel's own limit.
pub const MAX_PIDS: i64 = 1 << 22;
/// The longest stop grace.
pub const MAX_STOP_GRACE_MS: i64 = 3_600_000;
/// The most output of one attempt that can be kept (64 GiB).
pub const MAX_LOG_QUOTA_BYTES: i64 = 1 << 36;
/// The kernel's limit on one argument or one `NAME=value`, with its closing NUL (128 KiB).
pub const MAX_ARGUMENT_BYTES: usize = 131_072;

/// Checks a CONTAINER definition.
///
/// # Errors
/// [`InvalidDefinition`] for the first rule that is broken.
pub fn check(spec: &ContainerSpec) -> Result<(), InvalidDefinition> {
    image::check(&spec.image)?;
    arguments("command", &spec.command)?;
    arguments("entrypoint", spec.entrypoint.as_deref().unwrap_or_default())?;
    for (name, value) in &spec.env {
        environment(name, value)?;
    }
    if let Some(workdir) = &spec.workdir {
        no_nul("workdir", workdir)?;
        if !workdir.starts_with('/') {
            return Err(InvalidDefinition::new("workdir", "must be an absolute path"));
        }
    }
    if let Some(user) = &spec.user {
        text_name("user", user)?;
    }
    if let Some(network) = &spec.network {
        let good = network.len() <= 200
            && network.starts_with(|c: char| c.is_ascii_alphanumeric())
            && network.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
        if !good {
            return Err(InvalidDefinition::new("network", "must be the name of an engine network"));
        }
    }
    range("memory_bytes", spec.memory_bytes, MIN_MEMORY_BYTES, MAX_MEMORY_BYTES)?;
    range("cpu_millis", spec.cpu_millis, MIN_CPU_MILLIS, MAX_CPU_MILLIS)?;
    range("pids_limit", spec.pids_limit, 1, MAX_PIDS)?;
    range("stop_grace_ms", spec.stop_grace_ms, 0, MAX_STOP_GRACE_MS)?;
    log_quota(spec.log_quota_bytes)
}

/// Checks how much output is kept.
///
/// # Errors
/// [`InvalidDefinition`] when it is less than nothing, or too much.
pub fn log_quota(bytes: Option<i64>) -> Result<(), InvalidDefinition> {
    range("log_quota_bytes", bytes, 0, MAX_LOG_QUOTA_BYTES)
}

fn arguments(field: &str, arguments: &[String]) -> Result<(), InvalidDefinition> {
    for (n, argument) in arguments.iter().enumerate() {
        no_nul(&format!("{field}[{n}]"), argument)?;
        if argument.len() >= MAX_ARGUMENT_BYTES {
            return Err(InvalidDefinition::new(
                format!("{field}[{n}]"),
                format!("is {} bytes long; at most {} are allowed", argument.len(), MAX_ARGUMENT_BYTES - 1),
            ));
        }
    }
    Ok(())
}

/// Checks a variable of a program.
pub(crate) fn environment(name: &str, value: &str) -> Result<(), InvalidDefinition> {
    let field = format!("env.{}", name.replace('\0', "\\0"));
    if name.is_empty() || name.contains('=') {
        return Err(InvalidDefinition::new(field, "a name must not be empty or contain `=`"));
    }
    no_nul(&field, name)?;
    no_nul(&field, value)?;
    let length = name.len() + 1 + value.len();
    if length >= MAX_ARGUMENT_BYTES {
        return Err(InvalidDefinition::new(
            field,
            format!(
                "NAME=value is {length} bytes long; at most {} fit into a process's environment",
                MAX_ARGUMENT_BYTES - 1
            ),
        ));
    }
    Ok(())
}
