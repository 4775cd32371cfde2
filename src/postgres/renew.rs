//! Renew: many leases in one statement, on connections of their own.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_actors::{error::StoreError, ports::Renewal};
use tokio_postgres::Row;

use super::{
    error,
    owners::Holder,
    pool::{Lane, Pools},
    protected::{LEASE, Verb, holders},
    session::Session,
    sql_file::{Sql, sql},
};

pub(crate) static RENEW: Sql =
    sql!("renew", [INT8_ARRAY, UUID_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, UUID_ARRAY]);

/// The renewal of one lease.
pub(super) struct Renew;

#[async_trait]
impl Verb for Renew {
    type Ask = Holder;
    type Answer = Renewal;

    const OPERATION: &'static str = "renew";
    const LANE: Lane = Lane::Renewals;

    fn holder(ask: &Holder) -> &Holder {
        ask
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&Holder]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let h = holders::<Self>(asks);
        session.query(&RENEW, &[&h.jobs, &h.tokens, &h.owners, &h.namespaces, &h.workers, &h.processes]).await
    }

    fn read(row: &Row) -> Result<(i64, Renewal), StoreError> {
        let garbled = |e| error::garbled(Self::OPERATION, e);
        let job = row.try_get(0).map_err(garbled)?;
        let remaining: i64 = row.try_get(1).map_err(garbled)?;
        let cancel_requested = row.try_get(2).map_err(garbled)?;
        Ok((job, Renewal::Held { remaining: micros(remaining), cancel_requested }))
    }

    async fn refused(_: &Pools, _: &Holder) -> Result<Renewal, StoreError> {
        Ok(Renewal::NotLive)
    }
}

/// A span that the database computed; what has passed already is no time at all.
pub(super) fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}
