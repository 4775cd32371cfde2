//! `leasehold job retry`.

use leasehold_actors::{
    domain::{JobId, JobState},
    ports::recipe::{RecipeStore as _, ReopenAnswer},
};
use serde_json::json;

use super::super::{CliError, Exit, follow::not_found, output, store};
use crate::{
    config::Effective,
    postgres::{PgStore, retry::RetryAnswer},
    recipe::execution::{ReopenError, reopen},
};

/// Reopen a FAILED or CANCELED job as a new attempt; its history stays
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What a recipe has recorded is not deleted and does not run again, except the step whose failure \
                        ended it, or with --from that path and everything after it.\n\n\
                        Example: leasehold job retry 42\n\
                        Example: leasehold job retry 42 --from work/fetch"
)]
pub(super) struct Args {
    /// The job's id
    #[arg(value_name = "ID", value_parser = super::parse_id)]
    id: JobId,
    /// Of a recipe: this path, as `leasehold job results` shows it, and everything after it counts as unfinished
    #[arg(long, value_name = "PATH")]
    from: Option<String>,
    /// One JSON object that says what was done
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let id = args.id;
    store::with_store(settings, async |store| {
        let namespace = settings.namespace();
        let refused = |why: String| Err(CliError::new(Exit::Refused, why));
        let state = if store.recipe_job(&namespace, id).await?.is_some() {
            recipe(&store, args, settings).await?
        } else if args.from.is_some() {
            return Err(super::no_recipe(&store, &namespace, id).await);
        } else {
            match store.retry_job(&namespace, id).await? {
                RetryAnswer::NotFound | RetryAnswer::Recipe => return Err(not_found(id)),
                RetryAnswer::NotRetryable { state } => return refused(not_retryable(id, state)),
                RetryAnswer::WorkflowTerminated => return refused(terminated(id)),
                RetryAnswer::Reopened { state } => state,
            }
        };
        if args.json {
            output::json(&json!({ "result": "reopened", "state": state }))?;
        } else {
            output::line(&format!("job {id} is {state} again"))?;
        }
        Ok(Exit::Ok)
    })
}

async fn recipe(store: &PgStore, args: &Args, settings: &Effective) -> Result<JobState, CliError> {
    let id = args.id;
    let refused = |why: String| Err(CliError::new(Exit::Refused, why));
    match reopen(store, &settings.namespace(), id, args.from.as_deref()).await {
        Ok(ReopenAnswer::Reopened { state }) => Ok(state),
        Ok(ReopenAnswer::NotRetryable { state }) => refused(not_retryable(id, state)),
        Ok(ReopenAnswer::WorkflowTerminated) => refused(terminated(id)),
        Ok(ReopenAnswer::Full) => {
            refused(format!("job {id}: its log is full, so that it cannot go on; submit a new job instead"))
        }
        Ok(ReopenAnswer::NotFound | ReopenAnswer::LogChanged) => Err(not_found(id)),
        Err(ReopenError::Store(error)) => Err(error.into()),
        Err(error @ ReopenError::UnknownPath { .. }) => {
            Err(CliError::new(Exit::NotFound, format!("job {id}: {error}")))
        }
        Err(error) => refused(format!("job {id}: {error}")),
    }
}

fn not_retryable(id: JobId, state: JobState) -> String {
    format!("job {id} is {state}; only FAILED and CANCELED jobs can be reopened: submit a new one instead")
}

fn terminated(id: JobId) -> String {
    format!("job {id}: its workflow was terminated; submit a new job instead")
}
