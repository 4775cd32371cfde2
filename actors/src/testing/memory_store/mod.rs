//! The lease rules as an executable specification: every transition as plain code over maps, one verb a file.
//!
//! Where SQL and this store disagree, one of them is wrong; the conformance suite and the differential test
//! say so. A job's one row stands in exactly one place, like its row in the database. The clock is
//! tokio's: it stands still unless a paused runtime moves it, and nothing but this clock decides expiry.

mod attach;
mod cancel;
mod claim;
mod dispatch;
mod end;
mod harness;
mod outside;
mod overlap;
mod recipe;
mod recipe_calls;
mod recipe_record;
mod recover;
mod renew;
mod reopen;
mod submit;
mod tasks;
mod workflow;
mod world;

use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use crate::{
    domain::{CommandId, ContainerId, JobId, Namespace, NewJob, NodeId, TaskKey},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{
        Attach, Authority, ClaimAnswer, Dispatched, End, Ended, LeaseStore, ListedAnswer, ListedClaim,
        LogAppend, LogBatch, OpenClaim, Postponed, Reconciliation, RecoverAnswer, RecoverRequest, Renewal,
        StoredLogs, TaskPlace, TaskPlaced, TaskUnplaced,
    },
};

pub use submit::{SubmitRejection, Submitted};
use world::World;

/// A jobs service in memory. Clones share one world.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    world: Arc<Mutex<World>>,
}

impl MemoryStore {
    /// An empty service.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// This store as the port.
    #[must_use]
    pub fn port(&self) -> Arc<dyn LeaseStore> {
        Arc::new(self.clone())
    }

    /// Accepts a job, or says why not.
    ///
    /// # Errors
    /// [`SubmitRejection`]; nothing is written then.
    pub fn submit_job(&self, job: &NewJob) -> Result<Submitted, SubmitRejection> {
        self.world().submit(job)
    }

    /// Raises the fleet's generation, as the promotion of a standby does: the top part of later epochs.
    pub fn promote(&self) {
        self.world().cluster_generation += 1;
    }

    /// Restarts the service, as far as losses can tell: a lease that was last renewed before this overlapped it.
    pub fn restart(&self) {
        self.world().restarts += 1;
    }

    /// The time by the store's own clock.
    #[must_use]
    pub fn clock(&self) -> chrono::DateTime<chrono::Utc> {
        self.world().now()
    }

    /// The jobs that are RUNNING, expired ones included.
    #[must_use]
    pub fn running(&self) -> Vec<JobId> {
        let mut jobs: Vec<JobId> =
            self.world().rows.iter().filter(|(_, row)| row.lease().is_some()).map(|(id, _)| *id).collect();
        jobs.sort_unstable();
        jobs
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // A panic inside one transition is a bug of the specification; going on would only hide it.
        self.world.lock().expect("no transition panics while it holds the world")
    }
}

pub(super) fn refused(operation: &'static str, message: impl Into<String>) -> StoreError {
    StoreError { operation, kind: StoreErrorKind::Refused, applied: Applied::No, message: message.into() }
}

#[async_trait]
impl LeaseStore for MemoryStore {
    async fn dispatch(&self, namespace: &Namespace, limit: u32) -> Result<Dispatched, StoreError> {
        Ok(self.world().dispatch(namespace, limit))
    }

    async fn claim(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        self.world().claim_open(request)
    }

    async fn claim_listed(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        self.world().claim_listed(request)
    }

    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        Ok(self.world().renew(authority))
    }

    async fn attach(
        &self,
        authority: &Authority,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        Ok(self.world().attach(authority, node, container))
    }

    async fn place_task(&self, authority: &Authority, place: &TaskPlace) -> Result<TaskPlaced, StoreError> {
        Ok(self.world().place_task(authority, place))
    }

    async fn attach_task(
        &self,
        authority: &Authority,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        Ok(self.world().attach_task(authority, task, node, container))
    }

    async fn unplace_task(&self, authority: &Authority, task: &TaskKey) -> Result<TaskUnplaced, StoreError> {
        Ok(self.world().unplace_task(authority, task))
    }

    async fn append_logs(
        &self,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
        Ok(self.world().append_logs(authority, batches))
    }

    async fn log_offsets(
        &self,
        authority: &Authority,
        task: Option<&TaskKey>,
    ) -> Result<StoredLogs, StoreError> {
        Ok(self.world().log_offsets(authority, task))
    }

    async fn report_progress(&self, authority: &Authority, progress: &str) -> Result<Renewal, StoreError> {
        self.world().report_progress(authority, progress)
    }

    async fn end(&self, authority: &Authority, command: CommandId, end: &End) -> Result<Ended, StoreError> {
        self.world().end(authority, command, end)
    }

    async fn recover(&self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        self.world().recover(request)
    }

    async fn postpone_recovery(
        &self,
        authority: &Authority,
        delay: std::time::Duration,
    ) -> Result<Postponed, StoreError> {
        Ok(self.world().postpone_recovery(authority, delay))
    }

    async fn reconcile(&self, authority: &Authority) -> Result<Reconciliation, StoreError> {
        Ok(self.world().reconcile(authority))
    }
}
