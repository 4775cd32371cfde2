//! A store between the actors and the real one, with a defect on purpose.

use std::time::Duration;

use async_trait::async_trait;
use leasehold::{
    protocol::{
        error::StoreError,
        ports::{Authority, LeaseStore, RecoverAnswer, RecoverRequest, Renewal},
    },
    worker::WorkerBuilder,
};

use super::around_store::{Around, around};

/// Switches on what `CHAOS_DEFECT` names, if it is one of a worker.
pub(super) fn as_told(worker: WorkerBuilder) -> WorkerBuilder {
    match std::env::var("CHAOS_DEFECT").as_deref() {
        Ok("renewals-believed") => worker.intercept_store(|store| around(store, Defective::RenewalsBelieved)),
        Ok("early-recovery") => worker.intercept_store(|store| around(store, Defective::EarlyRecovery)),
        _ => worker,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Defective {
    /// Takes every renewal for granted.
    RenewalsBelieved,
    /// Takes over a lease of somebody else that has not expired.
    EarlyRecovery,
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
impl Around for Defective {
    async fn renew(&self, store: &dyn LeaseStore, authority: &Authority) -> Result<Renewal, StoreError> {
        let believed = Renewal::Held { remaining: Duration::from_secs(5), cancel_requested: false };
        if *self == Self::EarlyRecovery {
            return store.renew(authority).await;
        }
        // Sooner than the actor that asks gives up.
        match tokio::time::timeout(Duration::from_millis(300), store.renew(authority)).await {
            Ok(Ok(held @ Renewal::Held { .. })) => Ok(held),
            _ => Ok(believed),
        }
    }

    async fn recover(
        &self,
        store: &dyn LeaseStore,
        request: &RecoverRequest,
    ) -> Result<RecoverAnswer, StoreError> {
        if *self == Self::EarlyRecovery {
            // A server that is away for a moment: the next pass will do.
            let _ = expire_one(request).await;
        }
        store.recover(request).await
    }
}
