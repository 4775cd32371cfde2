//! What a workload sees of its lease: identity, time left, why it is being stopped, and the few protected
//! calls it may make. The token stays inside; every call looks at the local deadline first.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

pub use crate::domain::lease::StopReason;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Anchor, Deadline},
    domain::{CommandId, ContainerId, Failure, NodeId, TaskKey},
    error::StoreError,
    fence::{ContainerGuard, Entry, Hold, Kill, Watch},
    ports::{
        Attach, Authority, End, Grant, LeaseStore, LogAppend, LogBatch, Renewal, StoredLogs, TaskPlace,
        TaskPlaced, TaskUnplaced,
    },
};

/// What became of a workload.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkOutcome {
    /// It succeeded.
    Completed {
        /// Exit code, where there was one.
        exit_code: Option<i32>,
        /// Result as raw JSON text.
        output: Option<String>,
    },
    /// It failed.
    Failed(Failure),
    /// It failed, whatever the job's retry policy says: its own policies have decided.
    FailedForGood(Failure),
    /// It has ended the lease itself, so that the job goes on later or elsewhere, under the command that it pledged
    /// ([`LeaseContext::pledge`]): the same end is told again, to be sure.
    GoesOn {
        /// What the store was told.
        end: Box<End>,
    },
    /// It gave up without an end that anybody could report: the lease is not renewed any more, and recovery takes the
    /// job over when it has run out.
    Abandoned,
    /// It was stopped, as [`LeaseContext::stopped`] asked.
    Stopped,
}

/// A workload's handle on its lease. Cheap to clone.
#[derive(Clone)]
pub struct LeaseContext {
    grant: Arc<Grant>,
    store: Arc<dyn LeaseStore>,
    entry: Arc<Entry>,
    /// What this handle is for can be stopped alone.
    part: Option<PartStop>,
}

/// Stops one part of a workload and no other. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct PartStop {
    token: CancellationToken,
    until: Arc<Mutex<Option<(StopReason, Deadline)>>>,
}

impl PartStop {
    /// Asks the part to stop within `budget`; the first request stands.
    pub fn stop(&self, reason: StopReason, budget: Duration) {
        let until = (reason, Anchor::now().after(budget));
        self.until.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(until);
        self.token.cancel();
    }

    fn asked(&self) -> Option<(StopReason, Deadline)> {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn stopped(&self) -> StopReason {
        self.token.cancelled().await;
        self.asked().expect("the reason is set before the token is cancelled").0
    }
}

impl std::fmt::Debug for LeaseContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseContext")
            .field("job", &self.grant.authority.job)
            .field("epoch", &self.grant.authority.epoch)
            .finish_non_exhaustive()
    }
}

/// A protected call that a workload may not make, or that brought no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeaseCallError {
    /// The local deadline has passed, or the workload was told to stop for a lost lease.
    #[error("the lease is lost; stop the work and report nothing")]
    Lost,
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl LeaseContext {
    /// Ties a workload to a grant and to its entry at the fence ([`Watch::entry`]).
    #[must_use]
    pub fn new(grant: Arc<Grant>, store: Arc<dyn LeaseStore>, watch: &Watch) -> Self {
        Self { grant, store, entry: Arc::clone(watch.entry()), part: None }
    }

    /// The same lease, for a part of the workload that can also be stopped alone: [`LeaseContext::stopped`],
    /// [`LeaseContext::stop_reason`] and [`LeaseContext::stop_budget`] then speak of whichever stop comes first.
    #[must_use]
    pub fn for_part(&self, part: PartStop) -> Self {
        Self { part: Some(part), ..self.clone() }
    }

    /// The grant itself.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The proof of ownership, for adapters that make protected calls of their own.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.grant.authority
    }

    /// Time until the workload must be dead, unless a renewal moves that on; zero once that has passed or
    /// the lease is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.entry.stop_reason() == Some(StopReason::LeaseLost) {
            return Duration::ZERO;
        }
        self.entry.deadline().remaining()
    }

    /// Time until a workload that was told to stop is ended by force: what a graceful stop may take.
    #[must_use]
    pub fn stop_budget(&self) -> Duration {
        let whole = self.entry.killed_when().remaining();
        match self.part.as_ref().and_then(PartStop::asked) {
            Some((_, until)) => until.remaining().min(whole),
            None => whole,
        }
    }

    /// Why the workload must stop, if it must.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        let part = || self.part.as_ref().and_then(PartStop::asked).map(|(reason, _)| reason);
        self.entry.stop_reason().or_else(part)
    }

    /// Resolves when the workload must stop, with the reason. A dead owner counts as a lost lease.
    pub async fn stopped(&self) -> StopReason {
        let Some(part) = &self.part else { return self.entry.stopped().await };
        tokio::select! {
            biased;
            reason = self.entry.stopped() => reason,
            reason = part.stopped() => reason,
        }
    }

    /// Keeps the workload counted as going on until the guard is dropped. Whatever executes a part of it on
    /// another task or thread takes one along; the job is reported, and its permit freed, only after that.
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.entry.hold()
    }

    /// Names a task, on whatever runtime, that runs the workload or a part of it, so that the fence can end it
    /// also when the thread that waits for it is blocked. Such a task takes a [`LeaseContext::hold`] along.
    pub fn runs_as(&self, task: AbortHandle) {
        self.entry.runs_as(task);
    }

    /// Hands over what kills the job's container, *before* the container is created, and how long the
    /// container may take to stop. See [`crate::fence`].
    #[must_use]
    pub fn guard_container(&self, kill: Arc<dyn Kill>, stop_grace: Duration) -> ContainerGuard {
        self.entry.guard_container(kill, stop_grace)
    }

    /// Says that the workload has ended its lease itself, as COMPLETED and under this command, in a transaction of its
    /// own. Whether that was committed is found out when the workload has returned: whatever it returned, the job
    /// is COMPLETED if it was, and otherwise it is not.
    pub fn pledge(&self, command: CommandId) {
        self.entry.pledge(command);
    }

    /// The command of such an end. Another try, after a rollback, is made under the same.
    #[must_use]
    pub fn pledged(&self) -> Option<CommandId> {
        self.entry.pledged()
    }

    fn check(&self) -> Result<(), LeaseCallError> {
        if self.remaining().is_zero() { Err(LeaseCallError::Lost) } else { Ok(()) }
    }

    /// Records the job's container.
    ///
    /// # Errors
    /// [`LeaseCallError::Lost`] past the local deadline; [`LeaseCallError::Store`] without an answer.
    pub async fn attach(&self, node: &NodeId, container: &ContainerId) -> Result<Attach, LeaseCallError> {
        self.check()?;
        Ok(self.store.attach(&self.grant.authority, node, container).await?)
    }

    /// Asks for a runtime node for a task of the recipe.
    ///
    /// # Errors
    /// As [`LeaseContext::attach`].
    pub async fn place_task(&self, place: &TaskPlace) -> Result<TaskPlaced, LeaseCallError> {
        self.check()?;
        Ok(self.store.place_task(&self.grant.authority, place).await?)
    }

    /// Records the container of a task.
    ///
    /// # Errors
    /// As [`LeaseContext::attach`].
    pub async fn attach_task(
        &self,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, LeaseCallError> {
        self.check()?;
        Ok(self.store.attach_task(&self.grant.authority, task, node, container).await?)
    }

    /// Gives a task's runtime node back.
    ///
    /// # Errors
    /// As [`LeaseContext::attach`].
    pub async fn unplace_task(&self, task: &TaskKey) -> Result<TaskUnplaced, LeaseCallError> {
        self.check()?;
        Ok(self.store.unplace_task(&self.grant.authority, task).await?)
    }

    /// Stores output.
    ///
    /// # Errors
    /// As [`LeaseContext::attach`].
    pub async fn append_logs(&self, batches: &[LogBatch]) -> Result<LogAppend, LeaseCallError> {
        self.check()?;
        Ok(self.store.append_logs(&self.grant.authority, batches).await?)
    }

    /// Asks how much output of the job's latest claim, or of one of its tasks, is stored.
    ///
    /// # Errors
    /// As [`LeaseContext::attach`].
    pub async fn log_offsets(&self, task: Option<&TaskKey>) -> Result<StoredLogs, LeaseCallError> {
        self.check()?;
        Ok(self.store.log_offsets(&self.grant.authority, task).await?)
    }

    /// Replaces the job's progress note.
    ///
    /// # Errors
    /// As [`LeaseContext::attach`].
    pub async fn report_progress(&self, progress: &str) -> Result<Renewal, LeaseCallError> {
        self.check()?;
        Ok(self.store.report_progress(&self.grant.authority, progress).await?)
    }
}
