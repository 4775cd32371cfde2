//! Recipes on workers that differ: each task is compared with what its worker has before it runs, and a job whose next
//! task does not fit is handed on to another worker, which goes on from what is recorded.
//!
//! [`JobRuntime`] is what a recipe runs through; [`ExecutionRuntime`] wraps one and stands before every task;
//! [`RecipeEngine`] runs the recipe of a grant. The same wiring serves every entry point that can run a task:
//!
//! ```
//! # use std::sync::Arc;
//! # use leasehold::recipe::{execution::*, op::Ops, ops::secrets::Secrets};
//! # use leasehold::protocol::domain::execution::Allocation;
//! # fn wire(store: Arc<dyn leasehold::protocol::ports::recipe::RecipeStore>, threads: tokio::runtime::Handle)
//! # -> Result<RecipeEngine, EngineError> {
//! let allocation = Allocation::default();
//! let on_handoff: OnHandoff = Arc::new(|handoff| println!("{} goes on elsewhere", handoff.job));
//! let runtime = ExecutionRuntime::new(
//!     Arc::new(StoreRuntime::new(store)), allocation.clone(), Arc::clone(&on_handoff),
//! );
//! let options = RecipeWorkerOptions {
//!     stage_execution: Some(runtime.stage()),
//!     wrap_task_worker: Some(runtime.wrap_task_worker()),
//!     allocation,
//!     on_handoff,
//! };
//! RecipeEngine::new(Arc::new(runtime), options, &Ops::new(), Arc::new(Secrets::default()), threads)
//! # }
//! ```

mod engine;
mod facts;
mod give_back;
mod guard;
mod history;
mod reopen;
mod replay;
mod results;
mod runtime;
#[cfg(test)]
mod tests;
mod watch;

pub(super) use self::guard::{Admitted, Declined};
pub(crate) use self::watch::RunWatch;
pub use self::{
    engine::{EngineError, RecipeEngine, RecipeWorkerOptions},
    facts::{facts_of, hint_of},
    guard::{ExecutionHandoff, ExecutionRuntime, GuardedTask, OnHandoff, Stage, WrapTaskWorker},
    history::{BadHistory, History, Past, Verified},
    reopen::{ReopenError, reopen},
    replay::{Contradiction, Replay, ReplayEnd, ReplayedTask, replay},
    runtime::{JobRuntime, Reschedule, StoreRuntime},
    watch::{BeforeRun, LeaseEvent, RunStart, TaskEnd, Waiting},
};
