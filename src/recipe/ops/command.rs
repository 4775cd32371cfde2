//! The op `command`: a program in the worker's own environment.

use std::{
    collections::BTreeMap, io, os::unix::process::ExitStatusExt as _, path::Path, sync::Arc, time::Duration,
};

use async_trait::async_trait;
use leasehold_actors::{
    domain::{ContainerSpec, FailureKind},
    ports::recipe::JsonText,
};
use serde::Deserialize;

use super::{
    OUTPUT_LIMIT, bounded, decode, duration,
    printed::Destination,
    process::{self, End, Exited},
    secrets::Secrets,
};
use crate::{
    config::table::TABLE,
    recipe::op::{Op, Task, TaskError},
    submission,
};

/// Starts programs.
#[derive(Debug)]
pub(super) struct CommandOp {
    pub(super) secrets: Arc<Secrets>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    argv: Vec<String>,
    #[serde(default, deserialize_with = "super::or_default")]
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    timeout: Option<String>,
    log_quota_bytes: Option<i64>,
}

#[async_trait]
impl Op for CommandOp {
    async fn run(&self, task: Task) -> Result<JsonText, TaskError> {
        let input: Input = decode(&task, &self.secrets)?;
        let limit = input.timeout.as_deref().map(duration).transpose()?;
        let command = self.command(&task, &input)?;
        let printed = self.printed(&task, &input)?;
        match process::run(command, limit, OUTPUT_LIMIT, &task.context, printed).await {
            End::Exited(exited) => self.conclude(&input, exited),
            End::NotStarted(error) => Err(not_started(&input, &error)),
            End::TimedOut => {
                let limit = humantime::format_duration(limit.unwrap_or(Duration::ZERO));
                Err(TaskError::timeout(format!("{} did not end within {limit}", input.argv[0])))
            }
            End::Stopped(why) => Err(TaskError::system("stopped", format!("the program was ended: {why:?}"))),
        }
        .map_err(|error| super::masked(error, &self.secrets))
    }
}

impl CommandOp {
    fn command(&self, task: &Task, input: &Input) -> Result<std::process::Command, TaskError> {
        let bad = |what: &str| Err(TaskError::user("bad_input", format!("command: {what}")));
        let Some((program, arguments)) = input.argv.split_first().filter(|(program, _)| !program.is_empty())
        else {
            return bad("argv must name a program: [program, argument, …]");
        };
        if input.argv.iter().chain(input.env.values()).any(|text| text.contains('\0')) {
            return bad("argv and env must not hold NUL");
        }
        if input.env.keys().any(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return bad("env has a name that is empty, or holds = or NUL");
        }
        let mut command = std::process::Command::new(program);
        command.args(arguments);
        // Settings, the password of the database among them, are the worker's own.
        let settings = TABLE.iter().map(|row| row.name);
        for name in settings.chain(self.secrets.variables().iter().map(String::as_str)) {
            command.env_remove(name);
        }
        command.envs(&input.env);
        command.env("LEASEHOLD_TASK_KEY", &task.idempotency_key);
        command.env("LEASEHOLD_FENCING_EPOCH", task.epoch.to_string());
        command.env("LEASEHOLD_JOB_ID", task.job.to_string());
        if let Some(folder) = &input.workdir {
            if !Path::new(folder).is_dir() {
                return Err(TaskError::user("bad_workdir", "command: workdir is no folder of this worker"));
            }
            command.current_dir(folder);
        }
        Ok(command)
    }

    /// Where what it prints is stored; nowhere without a lease.
    fn printed(&self, task: &Task, input: &Input) -> Result<Option<Destination>, TaskError> {
        let quota = input.log_quota_bytes.unwrap_or(ContainerSpec::DEFAULT_LOG_QUOTA_BYTES);
        submission::container::log_quota(Some(quota))
            .map_err(|error| TaskError::user("bad_input", format!("command: {error}")))?;
        Ok(task.context.lease().map(|lease| Destination {
            lease: lease.clone(),
            task: super::task_key(&task.path),
            quota: u64::try_from(quota).unwrap_or(0),
            redact: self.secrets.redact(),
        }))
    }

    fn conclude(&self, input: &Input, exited: Exited) -> Result<JsonText, TaskError> {
        let program = &input.argv[0];
        if exited.status.success() {
            let length = exited.last_line.length;
            if length > OUTPUT_LIMIT {
                return Err(super::too_large(length));
            }
            let line = std::str::from_utf8(&exited.last_line.text).map(str::trim).unwrap_or_default();
            let is_json = serde_json::from_str::<&serde_json::value::RawValue>(line).is_ok();
            return bounded(if is_json { line } else { "null" }, &self.secrets);
        }
        let said = super::last_words(&self.secrets, &exited.errors, &exited.last_line.text);
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        match (exited.status.code(), exited.status.signal()) {
            (Some(code), _) => {
                let mut error =
                    TaskError::user(code.to_string(), format!("{program} exited with code {code}{said}"));
                error.exit_code = Some(code);
                Err(error)
            }
            // Nobody of us did it; whoever did (a person, the kernel short of memory) is part of the surroundings.
            (None, Some(9)) => Err(TaskError::system(
                "killed",
                format!("{program} was killed (SIGKILL) by somebody else{said}"),
            )),
            (None, signal) => {
                let code = 128 + signal.unwrap_or_default();
                let mut error = TaskError::user(
                    code.to_string(),
                    format!("{program} was ended by signal {}{said}", code - 128),
                );
                error.exit_code = Some(code);
                Err(error)
            }
        }
    }
}

fn not_started(input: &Input, error: &io::Error) -> TaskError {
    let program = &input.argv[0];
    let user = |code: i32, what: &str| {
        let mut error = TaskError::user(code.to_string(), format!("{program} cannot be started: {what}"));
        error.exit_code = Some(code);
        error
    };
    match error.kind() {
        io::ErrorKind::NotFound => user(127, "there is no such program on this worker"),
        io::ErrorKind::PermissionDenied => user(126, "it may not be executed"),
        io::ErrorKind::ArgumentListTooLong => user(126, "its arguments and variables are too long"),
        io::ErrorKind::InvalidInput => user(126, "its name or arguments cannot be used"),
        _ => TaskError {
            kind: FailureKind::System,
            code: "not_started".to_owned(),
            message: format!("{program} cannot be started: {error}"),
            exit_code: None,
        },
    }
}
