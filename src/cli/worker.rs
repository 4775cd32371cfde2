//! `leasehold worker`: the fleet process, and `worker list`.

use clap::Subcommand;

use super::{
    CliError, Exit,
    output::{self, Listing, instant},
    store,
};
use crate::config::Effective;

/// List worker processes
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold worker list")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
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
    let Command::List { json } = &args.command;
    list(*json, settings)
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
