//! A handler's own transactions in the database of its jobs: effects there happen under its lease only, and, with
//! [`LeaseHandle::complete_in`], exactly once.

use leasehold_actors::domain::CommandId;
use serde::Serialize;
use tokio_postgres::Transaction;

use super::{LeaseHandle, to_output};
use crate::postgres::outside;

/// Why a transaction must not go on under the lease.
#[derive(Debug, thiserror::Error)]
pub enum InTransactionError {
    /// The lease is not live any more.
    #[error("the lease is lost; stop the work, and let the transaction be rolled back")]
    Lost,
    /// The result cannot be kept.
    #[error("{0}")]
    BadOutput(String),
    /// The database refused a statement, or did not answer.
    #[error(transparent)]
    Database(#[from] tokio_postgres::Error),
}

impl LeaseHandle {
    /// Makes sure, until the transaction ends, that the lease is this handler's: nobody can take the job over, and
    /// nobody can end it, before the transaction is committed or rolled back. Renewals go on meanwhile. What the
    /// transaction writes is thus written by the holder of a live lease, or not at all.
    ///
    /// Call it first, and keep the transaction short: a lease that runs out meanwhile is taken over only after it.
    /// The transaction must be READ COMMITTED. Its role needs `usage` on the schema and `execute` on
    /// `leasehold.fence(bigint, uuid)`, and no right to any table of ours.
    ///
    /// # Errors
    /// [`InTransactionError::Lost`] when the lease is not live; the transaction can then only be rolled back.
    pub async fn fence_in(&self, transaction: &Transaction<'_>) -> Result<(), InTransactionError> {
        if self.remaining().is_zero() {
            return Err(InTransactionError::Lost);
        }
        match outside::fence(transaction, self.context.authority()).await? {
            true => Ok(()),
            false => Err(InTransactionError::Lost),
        }
    }

    /// Ends the job as COMPLETED, with this result, in the handler's own transaction: the job is COMPLETED exactly if
    /// that is committed, together with whatever else it writes.
    ///
    /// Commit next, and return; the value that the handler returns is not looked at. After a rollback the lease is
    /// still held: call it again in another transaction, or return an error. If the answer to the commit is lost,
    /// return the error: whether the job was completed is found out. A handler that returns `Ok` although nothing was
    /// committed fails as `SYSTEM`, code `not_committed`.
    ///
    /// Until the transaction ends, calls under this lease ([`LeaseHandle::progress`]) wait for it, and so do renewals.
    /// It must be READ COMMITTED, and its role needs the rights that a worker has.
    ///
    /// # Errors
    /// [`InTransactionError::Lost`] when the lease is not live: nothing was changed.
    pub async fn complete_in<R: Serialize + Sync>(
        &self,
        transaction: &Transaction<'_>,
        result: &R,
    ) -> Result<(), InTransactionError> {
        if self.remaining().is_zero() {
            return Err(InTransactionError::Lost);
        }
        let output = to_output(result).map_err(|e| InTransactionError::BadOutput(e.to_string()))?;
        let command = self.context.pledged().unwrap_or_else(CommandId::generate);
        match outside::complete(transaction, self.context.authority(), command, output.as_deref()).await? {
            true => {
                self.context.pledge(command);
                Ok(())
            }
            false => Err(InTransactionError::Lost),
        }
    }
}
