//! The hot statements by themselves, for the benchmark that compares the store with them.

use leasehold_actors::error::StoreError;
use tokio_postgres::Row;

use super::{
    PgStore, error,
    pool::Lane,
    session::{Param, Session},
    sql_file::Sql,
};
pub(crate) use super::{claim::CLAIM, end::COMPLETE, renew::RENEW};

/// A connection as the calls of a lease use it, with their settings and their prepared statements.
#[derive(Debug)]
pub(crate) struct RawSession(Session);

impl RawSession {
    pub(crate) async fn query(&self, sql: &Sql, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        self.0.query(sql, params).await.map_err(|e| error::store_error("raw", &e))
    }
}

impl PgStore {
    pub(crate) async fn raw_session(&self) -> Result<RawSession, StoreError> {
        self.inner.pools.session(Lane::Leases, "raw").await.map(RawSession)
    }
}
