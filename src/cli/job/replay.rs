//! `leasehold job replay`.

use leasehold_actors::{
    domain::JobId,
    ports::recipe::{EventBody, RecipeStore as _},
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::super::{
    CliError, Exit,
    follow::not_found,
    output::{self, Listing},
    steps, store,
};
use crate::{
    config::Effective,
    recipe::execution::{History, Past, ReplayEnd, replay},
};

/// Walk a recipe over what it has recorded, without a lease: nothing runs, waits or changes
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Stops at the first step that is not recorded. Exit 0 when the recipe came to its end, or stopped \
                        there because the job goes on; otherwise 1.\n\n\
                        Example: leasehold job replay 42\n\
                        Example: leasehold job replay 42 --export > histories/42.json"
)]
pub(super) struct Args {
    /// The job's id
    #[arg(value_name = "ID", value_parser = super::parse_id)]
    id: JobId,
    /// One JSON object a line: each recorded task with what it needs, then the end
    #[arg(long)]
    json: bool,
    /// Do not replay: print the job's history as one JSON document, for `leasehold recipe verify`
    #[arg(long, conflicts_with = "json")]
    export: bool,
}

#[derive(Serialize)]
struct Task<'e> {
    #[serde(flatten)]
    event: steps::Line<'e>,
    /// What it would be compared with now; `null` where that cannot be told.
    needs: Option<&'e leasehold_actors::domain::execution::Requirements>,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let (id, namespace) = (args.id, settings.namespace());
    store::with_store(settings, async |store| {
        let Some(job) = store.recipe_job(&namespace, id).await? else {
            return Err(super::no_recipe(&store, &namespace, id).await);
        };
        let events = steps::all(&store, &namespace, id).await?;
        if args.export {
            let shown = store.show_job(&namespace, id).await?.ok_or_else(|| not_found(id))?;
            let past = Past {
                namespace: &namespace,
                job: id,
                state: shown.row.state,
                submitted_at: job.submitted_at,
                definition: &job.definition,
                output: shown.output.as_deref().map(RawValue::get),
                failure: shown.row.failure.as_ref().and_then(|failure| failure.code.as_deref()),
            };
            let history = History::of(&past, &events).map_err(|error| {
                CliError::new(Exit::Failed, format!("job {id} cannot be exported: {error}"))
            })?;
            output::document(&history.to_json())?;
            return Ok(Exit::Ok);
        }
        let reopened: Vec<_> =
            events.iter().filter(|e| matches!(e.body, EventBody::Reopened { .. })).cloned().collect();
        let walked = replay(&namespace, id, &job, events).await.map_err(|failure| {
            CliError::new(Exit::Failed, format!("job {id} cannot be replayed: {}", failure.message))
        })?;
        let mut table = Listing::new(&["path", "needs", "result"]);
        for event in &reopened {
            if args.json {
                output::json(&steps::Line::of(event))?;
                continue;
            }
            let path = if event.path.is_empty() { "(root)".to_owned() } else { event.path.clone() };
            table.row(vec![path, "-".to_owned(), steps::result(event)]);
        }
        for task in &walked.tasks {
            if args.json {
                output::json(&Task { event: steps::Line::of(&task.event), needs: task.needs.as_ref() })?;
                continue;
            }
            let needs = match &task.needs {
                Some(needs) if needs.is_empty() => "nothing".to_owned(),
                Some(needs) => needs.to_string(),
                None => "-".to_owned(),
            };
            table.row(vec![task.event.path.clone(), needs, steps::result(&task.event)]);
        }
        if !(args.json || walked.tasks.is_empty() && reopened.is_empty()) {
            table.print()?;
        }
        let (words, json, exit) = match &walked.end {
            ReplayEnd::Completed(_) => {
                ("completed".to_owned(), serde_json::json!({ "end": "completed" }), Exit::Ok)
            }
            ReplayEnd::Failed(failure) => (
                format!("failed: {} {}: {}", failure.kind, failure.code, failure.message),
                serde_json::json!({ "end": "failed", "failure": failure }),
                // A job that failed as its replay does is as it should be.
                if job.state == leasehold_actors::domain::JobState::Failed { Exit::Ok } else { Exit::Failed },
            ),
            ReplayEnd::CacheMiss { path } => (
                format!("replay_cache_miss: {path} is not recorded"),
                serde_json::json!({ "end": "replay_cache_miss", "path": path }),
                if job.state.is_terminal() { Exit::Failed } else { Exit::Ok },
            ),
        };
        if args.json {
            output::json(&json)?;
        } else {
            output::line(&super::super::one_line(&words))?;
        }
        Ok(exit)
    })
}
