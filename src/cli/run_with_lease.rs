//! `leasehold run-with-lease`: runs one job whose lease somebody else acquired, and nothing more.

use std::{path::PathBuf, sync::Arc, time::Duration};

use leasehold_actors::domain::JobId;
use serde::Serialize;
use serde_json::{Value, json};

use super::{CliError, Exit, output, store, worker};
use crate::{
    config::Effective,
    recipe::{
        op::Ops,
        supplied::{
            Capability, Given, LeaseEvent, Listener, RunEnd, RunRequest, RunStop, Supplied,
            capability::CapabilityError,
        },
    },
    telemetry,
    worker::Worker,
};

/// Run one recipe job under a lease that was acquired elsewhere, until it ends, waits or goes on elsewhere
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Standard output has one JSON line that says how it ended. SIGTERM drains: running work may end within the \
                  shutdown grace, then the job is given back. A second one stops it at once.\n\n\
                  Exit codes: 0 completed, rescheduled, handed off or given back; 1 the recipe failed; 2 usage, or the \
                  capability cannot be read; 3 lease refused, expired or lost; 5 capability of another job or namespace; \
                  6 unreachable or answer unknown.\n\n\
                  Example: leasehold run-with-lease --job 42 --lease-file job.lease --allow-commands --allocation-cpu 2\n\
                  Example: supervisor | leasehold run-with-lease --job 42 --lease-file -"
)]
pub(super) struct Args {
    /// The job that the lease must be of
    #[arg(long, value_name = "ID", value_parser = super::job::parse_id)]
    job: JobId,
    /// The capability: a regular file of ours with mode 0600 or 0400, or `-` for a pipe on standard input
    #[arg(long, value_name = "PATH")]
    lease_file: PathBuf,
    /// Stop the work after this time and give the job back
    #[arg(long, value_name = "TIME", value_parser = super::job_args::duration, allow_hyphen_values = true)]
    deadline: Option<Duration>,
    /// Without the op `container`
    #[arg(long)]
    no_containers: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let worker_settings = settings.worker()?;
    let database = settings.database("leasehold run-with-lease")?;
    let capability = if args.lease_file.as_os_str() == "-" {
        Capability::read_stdin()?
    } else {
        Capability::read_file(&args.lease_file)?
    };
    let lease = Supplied::from(capability);
    // With whatever the worker's wiring serves.
    let mut request = RunRequest::new(settings.namespace(), args.job, []);
    request.deadline = args.deadline;
    if let Err(why) = request.check(&lease) {
        return finish(args.job, &RunEnd::Refused(why));
    }
    telemetry::init("info")?;
    store::runtime()?.block_on(async {
        let signals = worker::listen()?;
        let worker = Worker::builder()
            .database_settings(database)
            .settings(worker_settings)
            .containers(!args.no_containers)
            .recipes(Ops::new())
            .build()
            .await?;
        let stop = RunStop::default();
        let (drain, now) = (stop.clone(), stop.clone());
        let (first, second) = (signals.first(), signals.second());
        tokio::spawn(async move {
            first.await;
            drain.drain();
        });
        tokio::spawn(async move {
            second.await;
            now.now();
        });
        let listener: Listener = Arc::new(log);
        let end = worker.run_with_lease(lease, request, listener, stop).await;
        finish(args.job, &end)
    })
}

/// What happens, for the log.
fn log(event: &LeaseEvent) {
    match event {
        LeaseEvent::Renewed { remaining } => tracing::debug!(?remaining, "renewed"),
        LeaseEvent::TaskStarted { path, op, attempt } => tracing::info!(path, op, attempt, "task started"),
        LeaseEvent::TaskFinished { path, op, attempt, end } => {
            tracing::info!(path, op, attempt, ?end, "task finished");
        }
        LeaseEvent::Waiting(waiting) => tracing::info!(?waiting, "the job waits"),
        LeaseEvent::Handoff(handoff) => tracing::info!(path = handoff.path, "handed off"),
        LeaseEvent::OtherRoute { path, route } => {
            tracing::info!(path, job_type = route.name, task = route.task, "goes on elsewhere");
        }
        LeaseEvent::Lost => tracing::error!("the lease is lost"),
    }
}

/// The one line of output, and the exit code.
fn finish(job: JobId, end: &RunEnd) -> Result<Exit, CliError> {
    output::json(&describe(job, end))?;
    let exit = match end.exit_code() {
        0 => return Ok(Exit::Ok),
        3 => Exit::Lease,
        5 => Exit::Refused,
        6 => Exit::Unreachable,
        _ => Exit::Failed,
    };
    Err(CliError::new(exit, words(job, end)))
}

/// What standard output says.
#[derive(Debug, Serialize)]
struct Line {
    outcome: &'static str,
    job: JobId,
    #[serde(flatten)]
    more: Value,
}

fn describe(job: JobId, end: &RunEnd) -> Line {
    let more = match end {
        RunEnd::Completed { .. } | RunEnd::Canceled => json!({}),
        RunEnd::Waiting(waiting) => json!({ "waiting": waiting }),
        RunEnd::OtherRoute { route } => json!({ "route": { "job_type": route.name, "task": route.task } }),
        RunEnd::EnvironmentRequired(handoff) => json!({ "handoff": handoff }),
        RunEnd::Failed(failure) => json!({ "failure": failure }),
        RunEnd::Retrying { failure, at } => json!({ "failure": failure, "at": at }),
        RunEnd::Released(why) => match why {
            Given::Stopped => json!({ "why": "stopped" }),
            Given::Deadline => json!({ "why": "deadline" }),
            Given::BeforeRun(reason) => json!({ "why": "before_run", "reason": reason }),
        },
        RunEnd::Refused(why) => json!({ "reason": why.to_string() }),
        RunEnd::Lost(why) => json!({ "reason": why.to_string() }),
        RunEnd::Unknown(unanswered) => json!({
            "reason": unanswered.to_string(),
            "operation": unanswered.operation,
            "phase": unanswered.phase.to_string(),
            "category": unanswered.category,
            "destination": unanswered.destination,
        }),
        RunEnd::Broken { reason } => json!({ "reason": reason }),
    };
    Line { outcome: end.word(), job, more }
}

fn words(job: JobId, end: &RunEnd) -> String {
    match end {
        RunEnd::Failed(failure) => {
            format!("job {job} failed: {} {}: {}", failure.kind, failure.code, failure.message)
        }
        RunEnd::Retrying { at, .. } => {
            format!("this attempt of job {job} failed; it is tried again from {at}")
        }
        RunEnd::Canceled => format!("job {job} was canceled"),
        RunEnd::Refused(why) => why.to_string(),
        RunEnd::Lost(why) => why.to_string(),
        RunEnd::Unknown(unanswered) => {
            format!("{unanswered}; nothing is known to be reported: see `leasehold job show {job}`")
        }
        RunEnd::Broken { reason } => reason.clone(),
        RunEnd::Completed { .. }
        | RunEnd::Waiting(_)
        | RunEnd::OtherRoute { .. }
        | RunEnd::EnvironmentRequired(_)
        | RunEnd::Released(_) => String::new(),
    }
}

impl From<CapabilityError> for CliError {
    fn from(error: CapabilityError) -> Self {
        Self::usage(format!("--lease-file: {error}"))
    }
}
