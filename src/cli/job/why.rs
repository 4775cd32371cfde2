//! `leasehold job why`.

use leasehold_actors::domain::JobId;

use super::super::{CliError, Exit, follow::not_found, output, store, text};
use crate::config::Effective;

/// Say in one sentence why a job is not running
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold job why 42")]
pub(super) struct Args {
    /// The job's id
    #[arg(value_name = "ID", value_parser = super::parse_id)]
    id: JobId,
    /// One JSON object with the sentence
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    store::with_store(settings, async |store| {
        let why = store.why(&settings.namespace(), args.id).await?.ok_or_else(|| not_found(args.id))?;
        if args.json {
            output::json(&serde_json::json!({ "job": args.id, "why": why }))?;
        } else {
            output::line(&text::one_line(&why))?;
        }
        Ok(Exit::Ok)
    })
}
