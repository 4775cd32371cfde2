//! The store on PostgreSQL: one file a verb, one statement a file under `sql/`.
//!
//! | here | what |
//! |---|---|
//! | [`connect`], `servers`, `tls`, `pool`, `session`, `sql_file`, `error` | how statements reach the server, and what their errors mean |
//! | [`migrate`] | the schema |
//! | [`listen`] | NOTIFY as hints, polling where that does not work |
//! | `lease_store` | the port: `impl LeaseStore for PgStore` |
//! | `batch`, `protected`, `owners` | group commit; what a "no" is worth, and how it is asked again |
//! | `claim`, `grant`, `marks`, `dispatch`, `renew`, `end`, `attach` | the verbs of the lease protocol |
//! | `recipe`, `recipe_record`, [`recipe_needs`], [`execution_view`] | what recipes ask beside their lease: `impl RecipeStore for PgStore`; and what people ask of their needs |
//! | [`schemas`] | JSON Schemas of job types and ops |
//! | `recover`, `lookout` | expired leases: found, taken over, put off |
//! | `row`, `transaction` | columns by name; several statements as one |
//! | `outside` | the same verbs in a transaction of the caller's |
//! | [`submit`], `bulk`, [`read`], [`cancel`], [`retry`], [`workflow`], [`nodes`], [`workers`], [`doctor`], [`audit`] | what people and agents ask, as methods of [`PgStore`] |

mod attach;
pub mod audit;
mod batch;
mod bulk;
pub mod cancel;
mod claim;
pub mod connect;
mod dispatch;
pub mod doctor;
mod end;
mod error;
pub mod execution_view;
mod fleet;
mod grant;
mod lease_store;
pub mod listen;
mod lookout;
mod marks;
pub mod migrate;
pub mod nodes;
pub(crate) mod outside;
mod owners;
mod pool;
mod protected;
pub(crate) mod raw;
pub mod read;
mod read_jobs;
mod recipe;
pub mod recipe_needs;
mod recipe_record;
mod recover;
mod renew;
pub mod retry;
mod row;
pub mod schemas;
mod servers;
mod session;
mod sql_file;
pub mod submit;
mod tasks;
pub(crate) mod tls;
mod transaction;
mod why;
mod why_recipe;
pub mod workers;
pub mod workflow;
mod workflow_change;

use std::{collections::HashMap, sync::Arc};

use leasehold_actors::{
    error::StoreError,
    ports::{Ended, Renewal},
};
use tokio::runtime::Handle;
use tokio_postgres::Row;

use self::{
    batch::Batcher,
    claim::{ClaimAsk, ClaimReply, Desk},
    dispatch::Housekeeping,
    end::{Complete, EndAsk, GiveUp},
    lookout::Lookouts,
    marks::Marks,
    owners::{Holder, Owners},
    pool::{Lane, Pools},
    renew::Renew,
    session::{Param, Session},
    sql_file::Sql,
};
pub use self::{connect::ConnectError, tls::AddressError};
use crate::config::DatabaseSettings;

static ROOM: Sql = sql_file::sql!("room", []);

/// Connections that a store may open, and those that the server allows to all its clients together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// By this store.
    pub wanted: usize,
    /// By the server, to everybody.
    pub allowed: usize,
}

impl Room {
    /// True when this store alone may use more than half of the server's connections.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.wanted * 2 > self.allowed
    }
}

/// The jobs service on one database. A clone is another handle on the same connections.
#[derive(Debug, Clone)]
pub struct PgStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pools: Pools,
    io: Handle,
    owners: Owners,
    desk: Desk,
    claims: Batcher<ClaimAsk, ClaimReply>,
    renewals: Batcher<Holder, Renewal>,
    completions: Batcher<EndAsk, Ended>,
    endings: Batcher<EndAsk, Ended>,
    housekeeping: Housekeeping,
    lookouts: Lookouts,
    declared: execution_view::Declared,
}

impl Inner {
    fn new(pools: Pools, io: Handle) -> Self {
        let desk = Desk { pools: pools.clone(), marks: Arc::new(Marks::default()) };
        let claims = {
            let desk = desk.clone();
            Batcher::new("claim", io.clone(), ClaimAsk::rows, move |batch| {
                let desk = desk.clone();
                Box::pin(async move { claim::together(&desk, batch).await })
            })
        };
        Self {
            claims,
            renewals: protected::batcher::<Renew>(&pools, &io),
            completions: protected::batcher::<Complete>(&pools, &io),
            endings: protected::batcher::<GiveUp>(&pools, &io),
            owners: Owners::default(),
            housekeeping: Housekeeping::default(),
            lookouts: Lookouts::default(),
            declared: execution_view::Declared::default(),
            desk,
            pools,
            io,
        }
    }
}

impl PgStore {
    /// Opens a store whose connections live on the runtime `io`. The schema must be up to date; nothing is
    /// migrated here.
    ///
    /// # Errors
    /// [`ConnectError`], which says what to do.
    pub async fn connect(settings: &DatabaseSettings, io: Handle) -> Result<Self, ConnectError> {
        Self::connect_with(settings, io, HashMap::new()).await
    }

    /// As [`PgStore::connect`], with other texts for some statements (by file name, without its ending).
    /// For tests that must show that they would notice a missing rule.
    ///
    /// # Errors
    /// As [`PgStore::connect`].
    #[doc(hidden)]
    pub async fn connect_with(
        settings: &DatabaseSettings,
        io: Handle,
        replaced: HashMap<&'static str, &'static str>,
    ) -> Result<Self, ConnectError> {
        let pools = connect::open(settings, &io, replaced).await?;
        Ok(Self { inner: Arc::new(Inner::new(pools, io)) })
    }

    /// One statement as one transaction on the general pool, within `EXECUTION_WORKER_STORE_TIMEOUT`.
    pub(crate) async fn call(
        &self,
        operation: &'static str,
        sql: &Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.inner.pools.call(Lane::General, operation, sql, params).await
    }

    /// A connection of the general pool, for transactions of several statements and for COPY.
    pub(crate) async fn session(&self, operation: &'static str) -> Result<Session, StoreError> {
        self.inner.pools.session(Lane::General, operation).await
    }

    /// What a worker does first: opens the connections that keep its leases alive, so that a server that fills up later
    /// does not keep it from renewing, and compares what it may open with what the server allows.
    ///
    /// # Errors
    /// [`StoreError`]; without these connections leases can be lost, but the store works.
    pub async fn make_ready(&self) -> Result<Room, StoreError> {
        self.inner.pools.open_reserved().await?;
        let rows = self.call("start", &ROOM, &[]).await?;
        let most: i32 = row::Columns::only("start", &rows)?.get("most")?;
        // One more listens.
        Ok(Room { wanted: self.connections().1 + 1, allowed: usize::try_from(most).unwrap_or(0) })
    }

    /// How many connections there are at this moment, and how many there may be.
    #[must_use]
    pub fn connections(&self) -> (usize, usize) {
        self.inner.pools.size()
    }

    /// True when statements are sent without being prepared, because a transaction pooler stands between.
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        self.inner.pools.dialect().is_pooled()
    }
}
