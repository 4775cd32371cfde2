//! The flags of `submit` and `run`, and the job that they describe. Only what flags can get wrong is checked
//! here; the rules of a job are checked by [`crate::submission`], for every way of submitting alike.

mod container;
mod heartbeat;
#[cfg(test)]
mod tests;

use std::{io::Read as _, path::PathBuf, time::Duration};

use chrono::{DateTime, Utc};
use clap::Args;
use leasehold_actors::domain::{JobDefinition, Namespace, NewJob, RetryPolicy};

use self::{container::ContainerArgs, heartbeat::HeartbeatArgs};
use super::{error::CliError, recipe_args::RecipeArgs};

/// What to run, and how.
#[derive(Debug, Clone, Default, Args)]
pub struct JobArgs {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    heartbeat: HeartbeatArgs,
    #[command(flatten)]
    recipe: RecipeArgs,
    #[command(flatten)]
    job: CommonArgs,
    /// The container's command and its arguments
    #[arg(last = true, value_name = "CMD", conflicts_with_all = NOT_IMAGE)]
    command: Vec<String>,
}

#[derive(Debug, Clone, Default, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// CONTAINER: the image to run
    #[arg(long, value_name = "IMAGE", help_heading = "What to run")]
    image: Option<String>,
    /// HEARTBEAT: the address to probe
    #[arg(long, value_name = "URL", help_heading = "What to run")]
    http: Option<String>,
    /// HANDLER: the name that a worker registered a function under
    #[arg(long, value_name = "NAME", help_heading = "What to run")]
    handler: Option<String>,
    /// RECIPE: the file of a recipe, pinned with everything that it includes
    #[arg(long, value_name = "FILE", help_heading = "What to run")]
    recipe: Option<PathBuf>,
    /// A run of a workflow, by its definition
    #[arg(long, value_name = "NAME", help_heading = "What to run")]
    workflow: Option<String>,
}

// `requires` would not do: clap forgives a missing argument that conflicts with a given one.
const NOT_IMAGE: [&str; 4] = ["http", "handler", "workflow", "recipe"];

const JOB: &str = "Job";

#[derive(Debug, Clone, Default, Args)]
struct CommonArgs {
    /// The longest that one attempt may run; with --http, the probe [probe default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, help_heading = JOB)]
    timeout: Option<Duration>,
    /// The handler's argument or the run's data: JSON, @FILE, or @- for standard input
    #[arg(long, value_name = "JSON", help_heading = JOB)]
    payload: Option<String>,
    /// A repeat of the same request with this key returns the first job
    #[arg(long, value_name = "KEY", help_heading = JOB)]
    idempotency_key: Option<String>,
    /// Higher runs first, -100 to 100 [default: 0, or the workflow's]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = JOB)]
    priority: Option<i16>,
    /// Not before this instant, such as 2027-01-31T06:00:00Z
    #[arg(long, value_name = "INSTANT", value_parser = instant, help_heading = JOB)]
    run_at: Option<DateTime<Utc>>,
    /// USER failures that end the job [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = JOB)]
    retry_user: Option<i32>,
    /// SYSTEM failures that end the job [default: the worker's]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = JOB)]
    retry_system: Option<i32>,
    /// TIMEOUT failures that end the job [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = JOB)]
    retry_timeout: Option<i32>,
    /// First back-off; doubles with every failure, with jitter [default: the worker's]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, help_heading = JOB)]
    retry_backoff: Option<Duration>,
    /// Longest back-off [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, help_heading = JOB)]
    retry_backoff_cap: Option<Duration>,
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let value = humantime::parse_duration(text).map_err(|e| format!("{e}; write it like 30s or 250ms"))?;
    if value.is_zero() || value.subsec_nanos() % 1_000_000 != 0 {
        return Err("must be a whole, positive number of milliseconds; write it like 30s or 250ms".to_owned());
    }
    Ok(value)
}

fn instant(text: &str) -> Result<DateTime<Utc>, String> {
    DateTime::parse_from_rfc3339(text)
        .map(|at| at.with_timezone(&Utc))
        .map_err(|e| format!("{e}; write it with a zone, like 2027-01-31T06:00:00Z"))
}

/// Milliseconds as a job stores them.
fn millis(flag: &str, value: Duration) -> Result<i64, CliError> {
    i64::try_from(value.as_millis())
        .map_err(|_| CliError::usage(format!("--{flag} is too long; use at most a few years")))
}

impl JobArgs {
    /// The job, in a namespace.
    ///
    /// # Errors
    /// [`CliError`] names the flag that cannot be used.
    pub fn to_job(&self, namespace: Namespace) -> Result<NewJob, CliError> {
        let what = &self.what;
        let mut job = match (&what.image, &what.http, &what.handler, &what.recipe, &what.workflow) {
            (Some(image), ..) => {
                NewJob::ad_hoc(JobDefinition::Container(self.container.spec(image, &self.command)?))
            }
            (_, Some(url), ..) => {
                NewJob::ad_hoc(JobDefinition::Heartbeat(self.heartbeat.spec(url, self.job.timeout)?))
            }
            (_, _, Some(name), ..) => NewJob::ad_hoc(JobDefinition::Handler { name: name.clone() }),
            (_, _, _, Some(file), _) => NewJob::ad_hoc(JobDefinition::Recipe(self.recipe.spec(file)?)),
            (.., Some(workflow)) => NewJob::of_workflow(workflow.clone()),
            _ => {
                return Err(CliError::usage(
                    "say what to run: --image, --http, --handler, --recipe or --workflow",
                ));
            }
        };
        job.namespace = namespace;
        if let Some(text) = &self.job.payload {
            job.payload = json_argument("--payload", text)?;
        }
        if self.what.http.is_none() {
            job.timeout_ms = self.job.timeout.map(|t| millis("timeout", t)).transpose()?;
        }
        job.idempotency_key.clone_from(&self.job.idempotency_key);
        if let Some(priority) = self.job.priority {
            job.priority = priority;
        }
        job.run_at = self.job.run_at;
        job.retry = RetryPolicy {
            max_user: self.job.retry_user,
            max_system: self.job.retry_system,
            max_timeout: self.job.retry_timeout,
            backoff_ms: self.job.retry_backoff.map(|t| millis("retry-backoff", t)).transpose()?,
            backoff_cap_ms: self.job.retry_backoff_cap.map(|t| millis("retry-backoff-cap", t)).transpose()?,
        };
        job.trace_parent = std::env::var("TRACEPARENT").ok().filter(|text| is_trace_parent(text));
        Ok(job)
    }

    /// Whether the job is a recipe.
    #[must_use]
    pub fn is_recipe(&self) -> bool {
        self.what.recipe.is_some()
    }

    /// How long a cancel leaves the program before it is killed.
    #[must_use]
    pub fn stop_grace(&self) -> Option<Duration> {
        self.container.stop_grace
    }
}

/// JSON text of a flag or argument, kept byte for byte; `@FILE` and `@-` read it.
pub(super) fn json_argument(flag: &str, text: &str) -> Result<String, CliError> {
    let (text, from) = match text.strip_prefix('@') {
        None => (text.to_owned(), flag.to_owned()),
        Some("-") => {
            let mut read = String::new();
            std::io::stdin()
                .read_to_string(&mut read)
                .map_err(|e| CliError::usage(format!("{flag} @-: {e}; give UTF-8 JSON")))?;
            (read, format!("{flag} @-"))
        }
        Some(path) => {
            let read = std::fs::read_to_string(path).map_err(|e| {
                let told = format!("{flag} @{path}: {e}; name a readable UTF-8 file");
                CliError::unreadable(told, &e)
            })?;
            (read, format!("{flag} @{path}"))
        }
    };
    serde_json::from_str::<&serde_json::value::RawValue>(&text).map_err(|e| {
        CliError::usage(format!("{from} is no JSON: {e}; quote it, like '{{\"to\": \"me\"}}'"))
    })?;
    Ok(text)
}

/// W3C trace context, version 00. Another program's mistake in our environment must not stop a submit.
fn is_trace_parent(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [2, 32, 16, 2]
        && text.bytes().all(|b| b == b'-' || b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
