//! RECIPE: the recipe of a job, walked on threads apart from those that renew leases.

use std::sync::Arc;

use leasehold_actors::{
    domain::{Failure, FailureKind},
    ports::Grant,
    work::{LeaseContext, WorkOutcome},
};
use tokio::runtime::Handle;
use tracing::Instrument as _;

use super::{handler::panic_text, task::AbortOnDrop};
use crate::recipe::execution::{RecipeEngine, RunWatch};

/// Runs the recipe of a grant. Returns only when its walk, and every op of it, is really gone.
pub(crate) async fn run(
    engine: &Arc<RecipeEngine>,
    grant: Arc<Grant>,
    lease: LeaseContext,
    threads: &Handle,
    watch: Arc<RunWatch>,
) -> WorkOutcome {
    let (engine, hold, for_walk) = (Arc::clone(engine), lease.hold(), lease.clone());
    let work = async move {
        let _hold = hold;
        engine.run_watched(&grant, &for_walk, &watch).await
    };
    let task = threads.spawn(work.in_current_span());
    lease.runs_as(task.abort_handle());
    let mut task = AbortOnDrop(task);
    match (&mut task.0).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => WorkOutcome::Failed(Failure::new(
                FailureKind::System,
                "panic",
                panic_text(panic.as_ref()).replace("the handler panicked", "the recipe's session panicked"),
            )),
            Err(_aborted) if lease.stop_reason().is_some() => WorkOutcome::Stopped,
            Err(_aborted) => WorkOutcome::Failed(Failure::new(
                FailureKind::System,
                "aborted",
                "the runtime that runs recipes was shut down before the recipe came to an end",
            )),
        },
    }
}
