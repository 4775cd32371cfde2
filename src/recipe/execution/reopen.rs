//! Reopens a recipe that failed or was cancelled: what counts as unfinished is found out here, and written down by the
//! store together with the new attempt.

use leasehold_actors::{
    domain::{Failure, JobId, JobState, Namespace},
    error::StoreError,
    ports::recipe::{Event, RecipeStore, ReopenAnswer},
};

use super::engine::definition;
use crate::recipe::session::{Job, Refused, plan};

/// Between our look at the log and our word somebody else may have reopened the job, and it may have ended again.
const TRIES: usize = 5;

/// Why a job was not reopened; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReopenError {
    /// The store has no answer, or refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its definition cannot be read.
    #[error("its definition cannot be read: {}", .0.message)]
    Definition(Failure),
    /// Nothing in its log, and no node of its recipe, has this path.
    #[error("nothing is recorded at {path:?}{}; `leasehold job results` shows the paths", nearest(.near))]
    UnknownPath {
        /// The path.
        path: String,
        /// The nearest that there are.
        near: Vec<String>,
    },
    /// The recipe has such a node, and nothing is recorded of it.
    #[error("nothing is recorded of {path:?} yet, so that it is unfinished anyway; leave --from out")]
    Unrecorded {
        /// The path.
        path: String,
    },
    /// A failure before the path would go on standing, and fail the job again at once.
    #[error(
        "the failure at {at:?} ({} {}) comes before {path:?} and would fail the job again at once; reopen from there, or leave \
         --from out",
        failure.kind, failure.code
    )]
    Stands {
        /// The path that was asked for.
        path: String,
        /// Where the failure stands.
        at: String,
        /// It.
        failure: Failure,
    },
    /// What is recorded leads to this failure without running anything.
    #[error(
        "it would fail again without running anything ({}: {}), since that follows from what is recorded; name with --from where \
         to begin again",
        .0.code, .0.message
    )]
    Inevitable(Failure),
    /// Others reopened it again and again.
    #[error("somebody else reopened it at the same time; look at it, and try again if it ended")]
    Busy,
}

fn nearest(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; the nearest: {}", near.join(", ")) }
}

/// Reopens a FAILED or CANCELED recipe as a new attempt: the failure that ended it, with all attempts of the failed
/// task, or a path and everything after it in the order of the document, counts as unfinished. Nothing that is
/// recorded is deleted, and no other recorded success runs again.
///
/// # Errors
/// [`ReopenError`]; nothing was changed then.
pub async fn reopen(
    store: &dyn RecipeStore,
    namespace: &Namespace,
    job: JobId,
    from: Option<&str>,
) -> Result<ReopenAnswer, ReopenError> {
    for _ in 0..TRIES {
        let Some(about) = store.recipe_job(namespace, job).await? else { return Ok(ReopenAnswer::NotFound) };
        if !matches!(about.state, JobState::Failed | JobState::Canceled) {
            return Ok(ReopenAnswer::NotRetryable { state: about.state });
        }
        let mut events: Vec<Event> = Vec::new();
        loop {
            let page = store.events(namespace, job, events.last().map_or(0, |last| last.ordinal)).await?;
            if page.is_empty() {
                break;
            }
            events.extend(page);
        }
        let (spec, recipe, overrides) =
            definition(&about.definition, |_| None).map_err(ReopenError::Definition)?;
        let walk = Job {
            namespace: namespace.clone(),
            job,
            submitted_at: about.submitted_at,
            recipe,
            inputs: spec.inputs.get().into(),
            overrides,
        };
        let path = || from.unwrap_or_default().to_owned();
        let plan = plan(walk, events, from).await.map_err(|refused| match refused {
            Refused::Unknown { near } => ReopenError::UnknownPath { path: path(), near },
            Refused::Unrecorded => ReopenError::Unrecorded { path: path() },
            Refused::Stands { path: at, failure } => ReopenError::Stands { path: path(), at, failure },
            Refused::Inevitable(failure) => ReopenError::Inevitable(failure),
        })?;
        match store.reopen(namespace, job, &plan).await? {
            ReopenAnswer::LogChanged => {}
            answer => return Ok(answer),
        }
    }
    Err(ReopenError::Busy)
}
