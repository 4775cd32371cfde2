//! The store with points around its calls.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use super::CrashPoints;
use crate::{
    domain::{CommandId, ContainerId, Epoch, JobId, Namespace, NodeId, TaskKey},
    error::StoreError,
    ports::{
        Attach, Authority, ClaimAnswer, Dispatched, End, Ended, LeaseStore, ListedAnswer, ListedClaim,
        LogAppend, LogBatch, OpenClaim, Postponed, Reconciliation, RecoverAnswer, RecoverRequest, Renewal,
        StoredLogs, TaskPlace, TaskPlaced, TaskUnplaced,
    },
};

pub(super) struct Pointed {
    inner: Arc<dyn LeaseStore>,
    points: CrashPoints,
    /// Grants whose first renewal was asked for.
    renewed: Mutex<HashSet<(JobId, Epoch)>>,
}

impl Pointed {
    pub(super) fn new(inner: Arc<dyn LeaseStore>, points: CrashPoints) -> Self {
        Self { inner, points, renewed: Mutex::default() }
    }
}

fn any<T>(_: &T) -> bool {
    true
}

#[async_trait]
impl LeaseStore for Pointed {
    async fn dispatch(&self, namespace: &Namespace, limit: u32) -> Result<Dispatched, StoreError> {
        let made = self.inner.dispatch(namespace, limit);
        self.points.around("store.dispatch", made, |answer| answer.moved > 0).await
    }

    async fn claim(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        let call = if request.repeat { "store.claim.replay" } else { "store.claim" };
        let made = self.inner.claim(request);
        self.points.around(call, made, |answer| !answer.grants.is_empty()).await
    }

    async fn claim_listed(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        let call = if request.repeat { "store.claim_listed.replay" } else { "store.claim_listed" };
        self.points.around(call, self.inner.claim_listed(request), any).await
    }

    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        let first = {
            let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
            renewed.insert((authority.job, authority.epoch))
        };
        let call = if first { "store.renew.first" } else { "store.renew" };
        self.points.renews();
        let answer = self.points.around(call, self.inner.renew(authority), any).await;
        if let Ok(Renewal::Held { cancel_requested: true, .. }) = answer {
            self.points.tells_of_a_cancel();
        }
        answer
    }

    async fn attach(
        &self,
        authority: &Authority,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.points.around("store.attach", self.inner.attach(authority, node, container), any).await
    }

    async fn place_task(&self, authority: &Authority, place: &TaskPlace) -> Result<TaskPlaced, StoreError> {
        self.points.around("store.place_task", self.inner.place_task(authority, place), any).await
    }

    async fn attach_task(
        &self,
        authority: &Authority,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.points
            .around("store.attach_task", self.inner.attach_task(authority, task, node, container), any)
            .await
    }

    async fn unplace_task(&self, authority: &Authority, task: &TaskKey) -> Result<TaskUnplaced, StoreError> {
        self.points.around("store.unplace_task", self.inner.unplace_task(authority, task), any).await
    }

    async fn append_logs(
        &self,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
        self.points.around("store.append_logs", self.inner.append_logs(authority, batches), any).await
    }

    async fn log_offsets(
        &self,
        authority: &Authority,
        task: Option<&TaskKey>,
    ) -> Result<StoredLogs, StoreError> {
        self.points.around("store.log_offsets", self.inner.log_offsets(authority, task), any).await
    }

    async fn report_progress(&self, authority: &Authority, progress: &str) -> Result<Renewal, StoreError> {
        let made = self.inner.report_progress(authority, progress);
        self.points.around("store.report_progress", made, any).await
    }

    async fn end(&self, authority: &Authority, command: CommandId, end: &End) -> Result<Ended, StoreError> {
        let call = match end {
            End::Complete { .. } => "store.end.complete",
            End::Fail { .. } | End::FailForGood { .. } => "store.end.fail",
            End::Cancel => "store.end.cancel",
            End::Release { .. } => "store.end.release",
            End::Lost { .. } => "store.end.lost",
            End::Reschedule { .. } => "store.end.reschedule",
        };
        self.points.around(call, self.inner.end(authority, command, end), any).await
    }

    async fn recover(&self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        let call = if request.repeat { "store.recover.replay" } else { "store.recover" };
        let made = self.inner.recover(request);
        self.points.around(call, made, |answer| !answer.takeovers.is_empty()).await
    }

    async fn postpone_recovery(
        &self,
        authority: &Authority,
        delay: Duration,
    ) -> Result<Postponed, StoreError> {
        let made = self.inner.postpone_recovery(authority, delay);
        self.points.around("store.postpone_recovery", made, any).await
    }

    async fn reconcile(&self, authority: &Authority) -> Result<Reconciliation, StoreError> {
        self.points.around("store.reconcile", self.inner.reconcile(authority), any).await
    }
}
