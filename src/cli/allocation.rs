//! `leasehold allocation`: what a worker started with these flags and variables says that it has.

use leasehold_actors::domain::execution::Fact;

use super::{CliError, Exit, output};
use crate::config::{
    Effective,
    table::{Kind, TABLE},
};

/// Show the environment that a worker would be given by these flags and variables, normalised
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What is not said is unknown, and satisfies no requirement; nothing is guessed from the host.\n\n\
                  Example: EXECUTION_ALLOCATION_MEMORY=16Gi leasehold allocation --allocation-cpu 4 --json"
)]
pub(super) struct Args {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let allocation = settings.allocation();
    if args.json {
        output::json(&allocation)?;
    } else {
        let mut listing = output::Listing::new(&["fact", "value", "from", "flag"]);
        for row in TABLE {
            let Kind::Fact(fact) = row.kind else { continue };
            listing.row(vec![
                fact.to_string(),
                allocation.get(fact).unwrap_or_else(|| "unknown".to_owned()),
                allocation.get(fact).map_or_else(|| "-".to_owned(), |_| settings.origin(row.key).to_string()),
                format!("--{}", row.flag),
            ]);
        }
        listing.print()?;
    }
    if !allocation.is_comparable() {
        let id = if allocation.get(Fact::ImageId).is_some() { " (the image's id is only shown)" } else { "" };
        output::note(&format!(
            "nothing is known to compare with{id}: only tasks that require nothing run on such a worker"
        ));
    }
    Ok(Exit::Ok)
}
