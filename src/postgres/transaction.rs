//! Several statements as one transaction on a connection of the general pool.

use std::future::Future;

use leasehold_actors::error::{Applied, StoreError};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;

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
pub(crate) const TRIES: usize = 4;

/// `transaction!(store, "operation", patience, session => work(session, …))`: does the work and commits it,
/// within `patience` times the store's timeout. The work is done again from the start when the server chose
/// it to break a deadlock, or turned out to stand behind a pooler: both leave nothing behind.
///
/// A macro, because the work's future borrows the session: a closure that returns such a future could not be
/// used in tasks that move between threads.
macro_rules! transaction {
    ($store:expr, $operation:expr, $patience:expr, $session:ident => $work:expr) => {{
        let mut tries = $crate::postgres::transaction::TRIES;
        loop {
            let session = $store.session($operation).await?;
            let $session = &session;
            let answer = $store.attempt($operation, $patience, &mut tries, $session, $work).await;
            if let Some(answer) = answer {
                break answer;
            }
        }
    }};
}
pub(crate) use transaction;

impl PgStore {
    /// One try; nothing means that another is due. A session that is dropped in its transaction is closed,
    /// which makes the server roll back.
    pub(crate) async fn attempt<T, E: From<StoreError>>(
        &self,
        operation: &'static str,
        patience: u32,
        tries_left: &mut usize,
        session: &Session,
        work: impl Future<Output = Result<T, Stop<E>>> + Send,
    ) -> Option<Result<T, E>> {
        *tries_left -= 1;
        let limit = self.inner.pools.timeout.saturating_mul(patience);
        let begun = async {
            session.begin().await?;
            work.await
        };
        Some(match timeout(limit, begun).await {
            // From here on, no answer means that it may have happened.
            Ok(Ok(done)) => {
                let before = self.inner.pools.unreplicated().count();
                match timeout(limit, session.commit()).await {
                    Ok(Ok(())) if self.inner.pools.unreplicated().count() == before => Ok(done),
                    Ok(Ok(())) => Err(error::unreplicated(operation).into()),
                    Ok(Err(e)) => Err(error::store_error(operation, &e).into()),
                    Err(_) => Err(error::timed_out(operation, limit).into()),
                }
            }
            Ok(Err(Stop::Refused(no))) => {
                // The connection is good; where it is not, it is closed.
                let _ = timeout(limit, session.rollback()).await;
                Err(no)
            }
            Ok(Err(Stop::Database(e))) => {
                if *tries_left > 0 && (error::is_lost_statement(&e) || is_conflict(&e)) {
                    return None;
                }
                let mut refused = error::store_error(operation, &e);
                refused.applied = Applied::No;
                Err(refused.into())
            }
            Err(_) => {
                let mut late = error::timed_out(operation, limit);
                late.applied = Applied::No;
                Err(late.into())
            }
        })
    }
}

fn is_conflict(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE))
}
