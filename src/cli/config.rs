//! `leasehold config`: the settings in force.

use super::{CliError, Exit, output};
use crate::config::Effective;

/// Show every setting as it is in force, and where it came from (secrets are masked)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: EXECUTION_WORKER_LEASE_DURATION=1m leasehold config --renew-interval 15s")]
pub(super) struct Args {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    print(args.json, settings)
}

/// The table (or its rows as JSON), then whether the values go together.
pub(super) fn print(json: bool, settings: &Effective) -> Result<Exit, CliError> {
    let mut listing = output::Listing::new(&["setting", "value", "from", "flag"]);
    for row in settings.rows() {
        if json {
            output::json(&row)?;
        } else {
            listing.row(vec![row.name.to_owned(), output::or_dash(row.value), row.from, row.flag]);
        }
    }
    if !json {
        listing.print()?;
    }
    // Values that cannot work together are shown above, and refused here.
    let worker = settings.worker()?;
    let node = settings.node()?;
    output::note(&format!(
        "these settings survive {} lost renewals in a row",
        worker.lost_renewals_survived()
    ));
    for warning in worker.warnings().into_iter().chain(node.warnings()) {
        output::note(&format!("warning: {warning}"));
    }
    Ok(Exit::Ok)
}
