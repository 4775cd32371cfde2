//! `leasehold job retry`.

use leasehold_actors::domain::JobId;

use super::super::{CliError, Exit, follow::not_found, output, store};
use crate::{config::Effective, postgres::retry::RetryAnswer};

/// Reopen a FAILED or CANCELED job as a new attempt; its history stays
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold job retry 42")]
pub(super) struct Args {
    /// The job's id
    #[arg(value_name = "ID", value_parser = super::parse_id)]
    id: JobId,
    /// One JSON object that says what was done
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let id = args.id;
    store::with_store(settings, async |store| {
        let answer = store.retry_job(&settings.namespace(), id).await?;
        let refused = |why: String| Err(CliError::new(Exit::Refused, why));
        match answer {
            RetryAnswer::NotFound => Err(not_found(id)),
            RetryAnswer::NotRetryable { state } => refused(format!(
                "job {id} is {state}; only FAILED and CANCELED jobs can be reopened: submit a new one instead"
            )),
            RetryAnswer::WorkflowTerminated => {
                refused(format!("job {id}: its workflow was terminated; submit a new job instead"))
            }
            RetryAnswer::Reopened { state } => {
                if args.json {
                    output::json(&answer)?;
                } else {
                    output::line(&format!("job {id} is {state} again"))?;
                }
                Ok(Exit::Ok)
            }
        }
    })
}
