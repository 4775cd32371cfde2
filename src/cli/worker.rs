//! `leasehold worker`: the fleet process, and `worker list`.

use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use tokio::sync::watch;

use super::{
    CliError, Exit,
    output::{self, Listing, instant},
    store,
};
use crate::{
    config::Effective,
    recipe::op::Ops,
    telemetry,
    worker::{BuildError, RunError, StopSignals, Worker},
};

/// Claim and run jobs until SIGTERM: containers, heartbeats and recipes; or list worker processes
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "SIGTERM drains: running work may end within the shutdown grace. A second one stops it at once.\n\n\
                  Example: leasehold worker --concurrency 32 --lease-duration 1m --renew-interval 15s\n\
                  Example: leasehold worker list"
)]
pub(super) struct Args {
    /// Show the settings in force (secrets masked) and stop
    #[arg(long)]
    print_config: bool,
    /// Run no CONTAINER jobs, and no containers for tasks of recipes
    #[arg(long)]
    no_containers: bool,
    /// Make no HEARTBEAT probes
    #[arg(long)]
    no_heartbeats: bool,
    /// Run no RECIPE jobs
    #[arg(long)]
    no_recipes: bool,
    /// When a job was handed on because this worker lacks what a task of it needs: go on with other jobs, or claim no
    /// more, drain, and end with the handoff as the last line
    #[arg(long, value_enum, default_value_t)]
    on_handoff: AfterHandoff,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What becomes of a worker after a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum AfterHandoff {
    /// It goes on with other jobs
    #[default]
    Continue,
    /// It drains and ends
    Stop,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List worker processes
    #[command(after_help = "Example: leasehold worker list --json")]
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    match &args.command {
        Some(Command::List { json }) => list(*json, settings),
        None if args.print_config => super::config::print(false, settings),
        None => serve(args, settings),
    }
}

fn serve(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let worker_settings = settings.worker()?;
    let database = settings.database("leasehold worker")?;
    telemetry::init("info")?;
    for warning in worker_settings.warnings() {
        tracing::warn!("{warning}");
    }
    tracing::info!(
        lost_renewals_survived = worker_settings.lost_renewals_survived(),
        settings = ?settings,
        "starting a worker"
    );
    store::runtime()?.block_on(async {
        let signals = listen()?;
        let (tell, handed_on) = watch::channel(None);
        let mut builder = Worker::builder()
            .database_settings(database)
            .settings(worker_settings)
            .containers(!args.no_containers)
            .heartbeats(!args.no_heartbeats);
        if !args.no_recipes {
            builder = builder.recipes(Ops::new());
        }
        if args.on_handoff == AfterHandoff::Stop {
            builder = builder.on_handoff(move |handoff| {
                tell.send_if_modified(|first| {
                    let is_first = first.is_none();
                    first.get_or_insert_with(|| Arc::new(handoff.clone()));
                    is_first
                });
            });
        }
        let worker = builder.build().await?;
        let mut told = handed_on.clone();
        let handed_on_once = async move {
            // Without a sender nobody tells of handoffs.
            let nobody_tells = told.wait_for(Option::is_some).await.is_err();
            if nobody_tells {
                std::future::pending::<()>().await;
            }
        };
        let drain = async {
            tokio::select! {
                () = signals.first() => {}
                () = handed_on_once => {}
            }
        };
        let exit = worker.run_until_or_now(drain, signals.second()).await?;
        if let Some(handoff) = handed_on.borrow().as_deref() {
            output::json(handoff)?;
        }
        Ok(match exit.code() {
            0 => Exit::Ok,
            _ => Exit::Failed,
        })
    })
}

pub(super) fn listen() -> Result<StopSignals, CliError> {
    StopSignals::listen().map_err(|e| CliError::new(Exit::Failed, format!("cannot listen for signals: {e}")))
}

impl From<BuildError> for CliError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Config(e) => e.into(),
            BuildError::Connect(e) => e.into(),
            BuildError::Store(e) => e.into(),
            BuildError::Heartbeat(_)
            | BuildError::Secret(_)
            | BuildError::Schema { .. }
            | BuildError::NothingToServe => Self::new(Exit::Usage, error.to_string()),
            BuildError::Threads(_) => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> Self {
        Self::new(Exit::Failed, error.to_string())
    }
}

impl From<telemetry::TelemetryError> for CliError {
    fn from(error: telemetry::TelemetryError) -> Self {
        Self::new(Exit::Usage, error.to_string())
    }
}

fn list(json: bool, settings: &Effective) -> Result<Exit, CliError> {
    store::with_store(settings, async |store| {
        let workers = store.worker_list(&settings.namespace()).await?;
        let mut table = Listing::new(&["worker", "process", "host", "alive", "leases", "started", "seen"]);
        for worker in workers {
            if json {
                output::json(&worker)?;
                continue;
            }
            table.row(vec![
                worker.id.to_string(),
                worker.process.clone(),
                worker.host.clone(),
                if worker.alive { "yes" } else { "no" }.to_owned(),
                format!("{}/{}", worker.leases, worker.concurrency),
                instant(worker.started_at),
                instant(worker.seen_at),
            ]);
        }
        if !json {
            table.print()?;
        }
        Ok(Exit::Ok)
    })
}
