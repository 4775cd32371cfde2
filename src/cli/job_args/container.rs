//! What belongs to `--image`.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use leasehold_actors::domain::{ContainerSpec, OnOrphan, PullPolicy, quantity};

use super::{super::error::CliError, NOT_IMAGE, duration, millis};

const CONTAINER: &str = "Container";

#[derive(Debug, Clone, Default, Args)]
pub(super) struct ContainerArgs {
    /// A variable, or the name of one that is set here; may be repeated
    #[arg(long, short = 'e', value_name = "NAME=VALUE", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    env: Vec<String>,
    /// A file of NAME=VALUE lines; `#` begins a comment; may be repeated
    #[arg(long, value_name = "FILE", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    env_file: Vec<String>,
    /// Working directory inside the container
    #[arg(long, short = 'w', value_name = "DIR", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    workdir: Option<String>,
    /// USER, UID, USER:GROUP or UID:GID
    #[arg(long, short = 'u', value_name = "USER", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    user: Option<String>,
    /// Memory limit: bytes, or with k M G T (1000) or Ki Mi Gi Ti (1024), such as 512Mi
    #[arg(long, short = 'm', value_name = "AMOUNT", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE, allow_hyphen_values = true)]
    memory: Option<String>,
    /// CPU limit: cores, such as 2 or 0.5, or thousandths, such as 500m
    #[arg(long, value_name = "AMOUNT", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE, allow_hyphen_values = true)]
    cpu: Option<String>,
    /// The most processes inside the container
    #[arg(long, value_name = "N", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE, allow_negative_numbers = true)]
    pids: Option<i64>,
    /// The engine's network to join; `none` for no network
    #[arg(long, value_name = "NAME", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    network: Option<String>,
    /// Time between asking the program to stop and killing it [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    pub(super) stop_grace: Option<Duration>,
    /// When to fetch the image [default: missing]
    #[arg(long, value_name = "WHEN", value_parser = pull, help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    pull: Option<PullPolicy>,
    /// Replaces the image's entrypoint
    #[arg(long, value_name = "PROGRAM", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    entrypoint: Option<String>,
    /// The most output that is kept [default: 64Mi]
    #[arg(long, value_name = "AMOUNT", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE, allow_hyphen_values = true)]
    log_quota: Option<String>,
    /// What becomes of it when its worker loses the lease: stop, or adopt to let it run on [default: stop]
    #[arg(long, value_name = "WHAT", value_parser = on_orphan, help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    on_orphan: Option<OnOrphan>,
}

impl ContainerArgs {
    /// The definition.
    pub(super) fn spec(&self, image: &str, command: &[String]) -> Result<ContainerSpec, CliError> {
        let memory = |flag: &str, text: &String| {
            quantity::parse_memory(text).map_err(|e| CliError::usage(format!("--{flag}: {e}")))
        };
        let mut env = BTreeMap::new();
        for file in &self.env_file {
            read_env_file(file, &mut env)?;
        }
        for entry in &self.env {
            let (name, value) = env_entry(entry)?;
            env.insert(name, value);
        }
        Ok(ContainerSpec {
            image: image.to_owned(),
            command: command.to_vec(),
            entrypoint: self.entrypoint.as_ref().map(|program| vec![program.clone()]),
            env,
            workdir: self.workdir.clone(),
            user: self.user.clone(),
            memory_bytes: self.memory.as_ref().map(|text| memory("memory", text)).transpose()?,
            cpu_millis: self
                .cpu
                .as_ref()
                .map(|text| quantity::parse_cpu(text).map_err(|e| CliError::usage(format!("--cpu: {e}"))))
                .transpose()?,
            pids_limit: self.pids,
            network: self.network.clone(),
            stop_grace_ms: self.stop_grace.map(|t| millis("stop-grace", t)).transpose()?,
            pull: self.pull.unwrap_or_default(),
            log_quota_bytes: self.log_quota.as_ref().map(|text| memory("log-quota", text)).transpose()?,
            on_orphan: self.on_orphan.unwrap_or_default(),
        })
    }
}

fn pull(text: &str) -> Result<PullPolicy, String> {
    match text {
        "missing" => Ok(PullPolicy::Missing),
        "always" => Ok(PullPolicy::Always),
        "never" => Ok(PullPolicy::Never),
        _ => Err("use missing, always or never".to_owned()),
    }
}

fn on_orphan(text: &str) -> Result<OnOrphan, String> {
    match text {
        "stop" => Ok(OnOrphan::Stop),
        "adopt" => Ok(OnOrphan::Adopt),
        _ => Err("use stop or adopt".to_owned()),
    }
}

/// `NAME=VALUE`, or `NAME` for a variable of our own environment.
fn env_entry(entry: &str) -> Result<(String, String), CliError> {
    match entry.split_once('=') {
        Some(("", _)) => Err(CliError::usage(format!("--env {entry:?} has no name; write NAME=VALUE"))),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(entry) {
            Ok(value) => Ok((entry.to_owned(), value)),
            Err(std::env::VarError::NotPresent) => Err(CliError::usage(format!(
                "--env {entry:?} is not set here; write {entry}=VALUE, or export it"
            ))),
            Err(std::env::VarError::NotUnicode(_)) => Err(CliError::usage(format!(
                "--env {entry:?}: its value here is not UTF-8; write {entry}=VALUE"
            ))),
        },
    }
}

fn read_env_file(path: &str, env: &mut BTreeMap<String, String>) -> Result<(), CliError> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        CliError::unreadable(format!("--env-file {path}: {e}; name a readable UTF-8 file"), &e)
    })?;
    for (number, line) in text.lines().enumerate() {
        let entry = line.trim_start();
        if entry.is_empty() || entry.starts_with('#') {
            continue;
        }
        let (name, value) =
            env_entry(entry).map_err(|e| CliError::usage(format!("{path}:{}: {}", number + 1, e.message)))?;
        env.insert(name, value);
    }
    Ok(())
}
