//! A store between the actors and the real one, with a defect on purpose.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold::{
    protocol::{
        domain::{CommandId, ContainerId, Namespace, NodeId},
        error::StoreError,
        ports::{
            Attach, Authority, ClaimAnswer, Dispatched, End, Ended, LeaseStore, ListedAnswer, ListedClaim,
            LogAppend, LogBatch, OpenClaim, Postponed, Reconciliation, RecoverAnswer, RecoverRequest,
            Renewal, StoredLogs,
        },
    },
    worker::WorkerBuilder,
};

/// Switches on what `CHAOS_DEFECT` names, if it is one of a worker.
pub(super) fn as_told(worker: WorkerBuilder) -> WorkerBuilder {
    match std::env::var("CHAOS_DEFECT").as_deref() {
        Ok("renewals-believed") => {
            worker.intercept_store(|inner| Arc::new(Defective { inner, believes: true }))
        }
        Ok("early-recovery") => {
            worker.intercept_store(|inner| Arc::new(Defective { inner, believes: false }))
        }
        _ => worker,
    }
}

struct Defective {
    inner: Arc<dyn LeaseStore>,
    /// Takes every renewal for granted; otherwise takes over a lease of somebody else that has not expired.
    believes: bool,
}

/// Recovery without its look at the expiry: the lease is made to look expired just before.
async fn expire_one(request: &RecoverRequest) -> Result<(), Box<dyn std::error::Error>> {
    let (client, connection) =
        tokio_postgres::connect(&std::env::var("DATABASE_URL")?, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let sql = "update leasehold.leases set lease_expires_at = clock_timestamp() - interval '1 second'
               where job_id = (select job_id from leasehold.leases
                               where worker_id <> $1 and lease_expires_at > clock_timestamp() order by job_id limit 1)";
    client.execute(sql, &[&request.owner.worker.as_str()]).await?;
    Ok(())
}

#[async_trait]
impl LeaseStore for Defective {
    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        let believed = Renewal::Held { remaining: Duration::from_secs(5), cancel_requested: false };
        if !self.believes {
            return self.inner.renew(authority).await;
        }
        // Sooner than the actor that asks gives up.
        match tokio::time::timeout(Duration::from_millis(300), self.inner.renew(authority)).await {
            Ok(Ok(held @ Renewal::Held { .. })) => Ok(held),
            _ => Ok(believed),
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

    async fn append_logs(
        &self,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
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

    async fn recover(&self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        if !self.believes {
            // A server that is away for a moment: the next pass will do.
            let _ = expire_one(request).await;
        }
        self.inner.recover(request).await
    }

    async fn postpone_recovery(
        &self,
        authority: &Authority,
        delay: Duration,
    ) -> Result<Postponed, StoreError> {
        self.inner.postpone_recovery(authority, delay).await
    }

    async fn log_offsets(&self, authority: &Authority) -> Result<StoredLogs, StoreError> {
        self.inner.log_offsets(authority).await
    }
}
