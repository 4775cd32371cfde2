//! A store between the actors and the real one, with a defect on purpose.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold::{
    protocol::{
        domain::{CommandId, ContainerId, Namespace, NodeId},
        error::StoreError,
        ports::{
            Attach, Authority, ClaimAnswer, Dispatched, End, Ended, LeaseStore, ListedAnswer, ListedClaim,
            LogAppend, LogBatch, OpenClaim, Reconciliation, Renewal,
        },
    },
    worker::WorkerBuilder,
};

/// Switches on what `CHAOS_DEFECT` names, if it is one of a worker.
pub(super) fn as_told(worker: WorkerBuilder) -> WorkerBuilder {
    match std::env::var("CHAOS_DEFECT").as_deref() {
        Ok("renewals-believed") => worker.intercept_store(|inner| Arc::new(Believing { inner })),
        _ => worker,
    }
}

/// Takes every renewal for granted.
struct Believing {
    inner: Arc<dyn LeaseStore>,
}

#[async_trait]
impl LeaseStore for Believing {
    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        let believed = Renewal::Held { remaining: Duration::from_secs(5), cancel_requested: false };
        match self.inner.renew(authority).await {
            Ok(Renewal::NotLive) | Err(_) => Ok(believed),
            held => held,
        }
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

    async fn append_logs(&self, authority: &Authority, batches: &[LogBatch]) -> Result<LogAppend, StoreError> {
        self.inner.append_logs(authority, batches).await
    }

    async fn report_progress(&self, authority: &Authority, progress: &str) -> Result<Renewal, StoreError> {
        self.inner.report_progress(authority, progress).await
    }

    async fn end(&self, authority: &Authority, command: CommandId, end: &End) -> Result<Ended, StoreError> {
        self.inner.end(authority, command, end).await
    }

    async fn reconcile(&self, authority: &Authority) -> Result<Reconciliation, StoreError> {
        self.inner.reconcile(authority).await
    }
}
