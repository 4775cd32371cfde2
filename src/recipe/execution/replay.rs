//! Read-only replay: what a recipe would do with what is recorded, without a lease. It never executes, compares,
//! publishes, waits or renews.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{Failure, JobId, Namespace, execution::Requirements},
    ports::recipe::{Event, JsonText, RecipeJob},
};

use super::engine::definition;
use crate::recipe::{
    compiled::Recipe,
    session::{Job, Session, SessionEnd},
};

/// A recorded task that a replay came by.
#[derive(Debug, Clone)]
pub struct ReplayedTask {
    /// Its record.
    pub event: Arc<Event>,
    /// What it would need now; none where that cannot be told.
    pub needs: Option<Requirements>,
}

/// Where a replay ended.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplayEnd {
    /// The recipe came to its end, with this output.
    Completed(JsonText),
    /// It failed; or its log contradicts it (`not_deterministic`).
    Failed(Failure),
    /// `replay_cache_miss`: the first thing that is not recorded, in the order of the document.
    CacheMiss {
        /// Its path.
        path: String,
    },
}

/// What a replay came by, and where it ended.
#[derive(Debug, Clone)]
pub struct Replay {
    /// In the order of their records.
    pub tasks: Vec<ReplayedTask>,
    /// The end.
    pub end: ReplayEnd,
    /// `not_deterministic`: the first record that the recipe does not make.
    pub contradiction: Option<Contradiction>,
}

/// A record, and what a recipe does in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contradiction {
    /// The occurrence.
    pub path: String,
    /// The record.
    pub ordinal: i64,
    /// What is recorded.
    pub expected: String,
    /// What the recipe does.
    pub found: String,
}

/// Walks the recipe of a job over its events, oldest first. Works on running and on ended jobs.
///
/// # Errors
/// [`Failure`] when the job's definition cannot be read.
pub async fn replay(
    namespace: &Namespace,
    job: JobId,
    about: &RecipeJob,
    events: Vec<Event>,
) -> Result<Replay, Failure> {
    let (spec, recipe, overrides) = definition(&about.definition, |_| None)?;
    let inputs = spec.inputs.get().into();
    Ok(walk(namespace, job, about.submitted_at, recipe, inputs, overrides, events).await)
}

/// Walks a recipe over events.
pub(super) async fn walk(
    namespace: &Namespace,
    job: JobId,
    submitted_at: DateTime<Utc>,
    recipe: Arc<Recipe>,
    inputs: JsonText,
    overrides: Requirements,
    events: Vec<Event>,
) -> Replay {
    let walk = Job { namespace: namespace.clone(), job, submitted_at, recipe, inputs, overrides };
    let session = match Session::new(walk, events, None) {
        Ok(session) => session,
        Err(failure) => {
            let contradiction = Contradiction {
                path: String::new(),
                ordinal: 0,
                expected: "a log that this binary can read".to_owned(),
                found: failure.message.clone(),
            };
            let end = ReplayEnd::Failed(failure);
            return Replay { tasks: Vec::new(), end, contradiction: Some(contradiction) };
        }
    };
    let end = match session.run().await {
        SessionEnd::Completed(output) => ReplayEnd::Completed(output),
        SessionEnd::Failed(failure) | SessionEnd::Machine(failure) => ReplayEnd::Failed(failure),
        SessionEnd::CacheMiss { path } => ReplayEnd::CacheMiss { path },
        other => unreachable!("a walk without hands does not come to {other:?}"),
    };
    let mut tasks = session.walked_over();
    tasks.sort_by_key(|task| task.event.ordinal);
    Replay { tasks, end, contradiction: session.contradicted() }
}
