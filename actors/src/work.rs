//! What a workload sees of its lease: identity, time left, why it is being stopped, and the few protected
//! calls it may make. The token stays inside; every call looks at the local deadline first.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use crate::{
    domain::{ContainerId, Failure, NodeId},
    error::StoreError,
    ports::{Attach, Authority, Grant, LeaseStore, LogAppend, LogBatch, Renewal},
};

/// Why a workload must stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody asked for the job to be cancelled.
    Canceled,
    /// It ran longer than it may.
    TimedOut,
    /// The lease is lost, or could not be renewed in time: nothing may be reported any more.
    LeaseLost,
    /// The worker shuts down; the job is given back.
    Draining,
}

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
    /// It was stopped, as [`LeaseContext::stopped`] asked.
    Stopped,
}

/// The shared, changing part of a lease: written by the LeaseActor, read by the workload and the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseView {
    /// When the workload must be dead, by this process's monotonic clock.
    pub deadline: Instant,
    /// Set once, when the workload must stop.
    pub stop: Option<StopReason>,
}

/// A workload's handle on its lease. Cheap to clone.
#[derive(Clone)]
pub struct LeaseContext {
    grant: Arc<Grant>,
    store: Arc<dyn LeaseStore>,
    view: watch::Receiver<LeaseView>,
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
    /// Ties a workload to a grant. `view` is what the lease's owner publishes.
    #[must_use]
    pub fn new(grant: Arc<Grant>, store: Arc<dyn LeaseStore>, view: watch::Receiver<LeaseView>) -> Self {
        Self { grant, store, view }
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

    /// Time until the workload must be dead; zero once that has passed or the lease is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let view = *self.view.borrow();
        if view.stop == Some(StopReason::LeaseLost) {
            return Duration::ZERO;
        }
        view.deadline.saturating_duration_since(Instant::now())
    }

    /// Why the workload must stop, if it must.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.view.borrow().stop
    }

    /// Resolves when the workload must stop, with the reason. A dead owner counts as a lost lease.
    pub async fn stopped(&self) -> StopReason {
        let mut view = self.view.clone();
        match view.wait_for(|v| v.stop.is_some()).await {
            Ok(v) => v.stop.unwrap_or(StopReason::LeaseLost),
            Err(_) => StopReason::LeaseLost,
        }
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

    /// Stores output.
    ///
    /// # Errors
    /// As [`LeaseContext::attach`].
    pub async fn append_logs(&self, batches: &[LogBatch]) -> Result<LogAppend, LeaseCallError> {
        self.check()?;
        Ok(self.store.append_logs(&self.grant.authority, batches).await?)
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
