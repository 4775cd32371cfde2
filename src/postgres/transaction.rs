//! Several statements as one transaction on a connection of the general pool.

use leasehold_actors::error::{Applied, StoreError};
use tokio::time::timeout;

use super::{PgStore, error, session::Session};

/// Why a transaction's work ended early; whichever it is, nothing was written.
pub(crate) enum Stop<E> {
    /// A statement failed.
    Database(tokio_postgres::Error),
    /// The work itself says no.
    Refused(E),
}

impl<E> From<tokio_postgres::Error> for Stop<E> {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

/// How often a transaction is begun when others are in its way.
const TRIES: usize = 4;

impl PgStore {
    /// Does `work` and commits it, within `patience` times the store's timeout. The work is done again from
    /// the start when the server chose it to break a deadlock, or turned out to stand behind a pooler: both
    /// leave nothing behind.
    pub(crate) async fn transaction<T, E: From<StoreError>>(
        &self,
        operation: &'static str,
        patience: u32,
        work: impl AsyncFn(&Session) -> Result<T, Stop<E>>,
    ) -> Result<T, E> {
        let limit = self.inner.pools.timeout.saturating_mul(patience);
        let mut tries_left = TRIES;
        loop {
            tries_left -= 1;
            let session = self.session(operation).await?;
            let attempt = async {
                session.begin().await?;
                work(&session).await
            };
            match timeout(limit, attempt).await {
                Ok(Ok(done)) => {
                    // From here on, no answer means that it may have happened.
                    return match timeout(limit, session.commit()).await {
                        Ok(Ok(())) => Ok(done),
                        Ok(Err(e)) => Err(error::store_error(operation, &e).into()),
                        Err(_) => Err(error::timed_out(operation, limit).into()),
                    };
                }
                Ok(Err(Stop::Refused(no))) => {
                    // A rollback that fails leaves a connection that is closed when it is dropped.
                    let _ = timeout(limit, session.rollback()).await;
                    return Err(no);
                }
                Ok(Err(Stop::Database(e))) => {
                    let again = error::is_lost_statement(&e) || is_conflict(&e);
                    session.discard();
                    if !(again && tries_left > 0) {
                        let mut refused = error::store_error(operation, &e);
                        refused.applied = Applied::No;
                        return Err(refused.into());
                    }
                }
                Err(_) => {
                    session.discard();
                    let mut late = error::timed_out(operation, limit);
                    late.applied = Applied::No;
                    return Err(late.into());
                }
            }
        }
    }
}

fn is_conflict(error: &tokio_postgres::Error) -> bool {
    use tokio_postgres::error::SqlState;
    matches!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE))
}
