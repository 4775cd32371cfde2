//! `leasehold job results`.

use leasehold_actors::{domain::JobId, ports::recipe::RecipeStore as _};

use super::super::{CliError, Exit, output, steps, store};
use crate::config::Effective;

/// Show what a recipe has recorded: each step, where it ran, and what came of it
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold job results 42\n\
                        Example: leasehold job results 42 --json | jq 'select(.outcome == \"failed\")'")]
pub(super) struct Args {
    /// The job's id
    #[arg(value_name = "ID", value_parser = super::parse_id)]
    id: JobId,
    /// One JSON object a line: each event in the order in which it was recorded
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let (id, namespace) = (args.id, settings.namespace());
    store::with_store(settings, async |store| {
        let Some(job) = store.recipe_job(&namespace, id).await? else {
            return Err(super::no_recipe(&store, &namespace, id).await);
        };
        let events = steps::all(&store, &namespace, id).await?;
        if args.json {
            for event in &events {
                output::json(&steps::Line::of(event))?;
            }
            return Ok(Exit::Ok);
        }
        output::line(&format!("job {id} {}, {} recorded", job.state, events.len()))?;
        steps::table(&events, job.submitted_at)?;
        Ok(Exit::Ok)
    })
}
