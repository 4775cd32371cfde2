//! `leasehold worker`: the fleet process, and `worker list`.

use clap::Subcommand;

use super::{
    CliError, Exit,
    output::{self, Listing, instant},
    store,
};
use crate::{
    config::Effective,
    telemetry,
    worker::{BuildError, RunError, StopSignals, Worker},
};

/// Claim and run jobs until SIGTERM: containers and heartbeats; or list worker processes
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
    /// Run no CONTAINER jobs
    #[arg(long)]
    no_containers: bool,
    /// Make no HEARTBEAT probes
    #[arg(long, conflicts_with = "no_containers")]
    no_heartbeats: bool,
    #[command(subcommand)]
    command: Option<Command>,
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
        let worker = Worker::builder()
            .database_settings(database)
            .settings(worker_settings)
            .containers(!args.no_containers)
            .heartbeats(!args.no_heartbeats)
            .build()
            .await?;
        let exit = worker.run_until_or_now(signals.first(), signals.second()).await?;
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
            BuildError::Heartbeat(_) | BuildError::NothingToServe => {
                Self::new(Exit::Usage, error.to_string())
            }
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
