//! A store around the real one, for tests that hold up, change or spoil some calls: what they do not speak of goes
//! through as it is.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold::protocol::{
    domain::{CommandId, ContainerId, Namespace, NodeId, TaskKey},
    error::StoreError,
    ports::{
        Attach, Authority, ClaimAnswer, Dispatched, End, Ended, LeaseStore, ListedAnswer, ListedClaim,
        LogAppend, LogBatch, OpenClaim, Postponed, Reconciliation, RecoverAnswer, RecoverRequest, Renewal,
        StoredLogs, TaskPlace, TaskPlaced, TaskUnplaced,
    },
};

/// What happens around calls. Each method's default is the call itself.
#[async_trait]
pub trait Around: Send + Sync + 'static {
    async fn renew(&self, store: &dyn LeaseStore, authority: &Authority) -> Result<Renewal, StoreError> {
        store.renew(authority).await
    }

    async fn append_logs(
        &self,
        store: &dyn LeaseStore,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
        store.append_logs(authority, batches).await
    }

    async fn end(
        &self,
        store: &dyn LeaseStore,
        authority: &Authority,
        command: CommandId,
        end: &End,
    ) -> Result<Ended, StoreError> {
        store.end(authority, command, end).await
    }

    async fn recover(
        &self,
        store: &dyn LeaseStore,
        request: &RecoverRequest,
    ) -> Result<RecoverAnswer, StoreError> {
        store.recover(request).await
    }
}

/// For [`leasehold::worker::WorkerBuilder::intercept_store`].
pub fn around(inner: Arc<dyn LeaseStore>, around: impl Around) -> Arc<dyn LeaseStore> {
    Arc::new(Wrapped { inner, around })
}

struct Wrapped<A> {
    inner: Arc<dyn LeaseStore>,
    around: A,
}

#[async_trait]
impl<A: Around> LeaseStore for Wrapped<A> {
    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.around.renew(&*self.inner, authority).await
    }

    async fn append_logs(
        &self,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
        self.around.append_logs(&*self.inner, authority, batches).await
    }

    async fn end(&self, authority: &Authority, command: CommandId, end: &End) -> Result<Ended, StoreError> {
        self.around.end(&*self.inner, authority, command, end).await
    }

    async fn recover(&self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        self.around.recover(&*self.inner, request).await
    }

    async fn dispatch(&self, namespace: &Namespace, limit: u32) -> Result<Dispatched, StoreError> {
        self.inner.dispatch(namespace, limit).await
    }

    async fn claim(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        self.inner.claim(request).await
    }

    async fn claim_listed(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        self.inner.claim_listed(request).await
    }

    async fn attach(
        &self,
        authority: &Authority,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.inner.attach(authority, node, container).await
    }

    async fn place_task(&self, authority: &Authority, place: &TaskPlace) -> Result<TaskPlaced, StoreError> {
        self.inner.place_task(authority, place).await
    }

    async fn attach_task(
        &self,
        authority: &Authority,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.inner.attach_task(authority, task, node, container).await
    }

    async fn unplace_task(&self, authority: &Authority, task: &TaskKey) -> Result<TaskUnplaced, StoreError> {
        self.inner.unplace_task(authority, task).await
    }

    async fn log_offsets(
        &self,
        authority: &Authority,
        task: Option<&TaskKey>,
    ) -> Result<StoredLogs, StoreError> {
        self.inner.log_offsets(authority, task).await
    }

    async fn report_progress(&self, authority: &Authority, progress: &str) -> Result<Renewal, StoreError> {
        self.inner.report_progress(authority, progress).await
    }

    async fn postpone_recovery(
        &self,
        authority: &Authority,
        delay: Duration,
    ) -> Result<Postponed, StoreError> {
        self.inner.postpone_recovery(authority, delay).await
    }

    async fn reconcile(&self, authority: &Authority) -> Result<Reconciliation, StoreError> {
        self.inner.reconcile(authority).await
    }
}
