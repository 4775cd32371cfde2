//! Read-only replay: what a recipe would do with what is recorded, without a lease. It never executes, compares,
//! publishes, waits or renews.

use std::sync::Arc;

use leasehold_actors::{
    domain::{Failure, JobId, Namespace, execution::Requirements},
    ports::recipe::{Event, JsonText, RecipeJob},
};

use super::engine::definition;
use crate::recipe::session::{Job, Session, SessionEnd};

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
    let walk = Job {
        namespace: namespace.clone(),
        job,
        submitted_at: about.submitted_at,
        recipe,
        inputs: spec.inputs.get().into(),
        overrides,
    };
    let session = match Session::new(walk, events, None) {
        Ok(session) => session,
        Err(failure) => return Ok(Replay { tasks: Vec::new(), end: ReplayEnd::Failed(failure) }),
    };
    let end = match session.run().await {
        SessionEnd::Completed(output) => ReplayEnd::Completed(output),
        SessionEnd::Failed(failure) | SessionEnd::Machine(failure) => ReplayEnd::Failed(failure),
        SessionEnd::CacheMiss { path } => ReplayEnd::CacheMiss { path },
        other => unreachable!("a walk without hands does not come to {other:?}"),
    };
    let mut tasks = session.walked_over();
    tasks.sort_by_key(|task| task.event.ordinal);
    Ok(Replay { tasks, end })
}
