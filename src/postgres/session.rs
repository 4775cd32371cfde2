//! One connection in use: sends statements the way this deployment allows, and is never given back to its
//! pool in a state that the next borrower would have to suffer for.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use deadpool_postgres::Object;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use super::{error, sql_file::Sql};

/// A parameter, as the driver wants it.
pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

/// How statements are sent, shared by all connections of a store.
#[derive(Debug, Default)]
pub(crate) struct Dialect {
    /// A transaction pooler stands between: no prepared statements, no session state.
    pooled: AtomicBool,
    /// The operator said that none does; it is not found out against his word.
    fixed: bool,
    /// Other texts for statements by name: how the tests prove that they would notice a missing rule.
    replaced: HashMap<&'static str, &'static str>,
}

impl Dialect {
    pub(crate) fn new(pooled: bool, fixed: bool, replaced: HashMap<&'static str, &'static str>) -> Self {
        Self { pooled: AtomicBool::new(pooled), fixed, replaced }
    }

    /// True when statements are sent unprepared, in one round trip.
    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Relaxed)
    }

    /// For good: a pooler does not go away while its clients stay connected.
    pub(crate) fn found_pooler(&self) {
        if !self.pooled.swap(true, Ordering::Relaxed) {
            tracing::info!("a transaction pooler stands before the database; prepared statements are off");
        }
    }

    fn text(&self, sql: &Sql) -> &'static str {
        self.replaced.get(sql.name).copied().unwrap_or(sql.text)
    }
}

/// A connection borrowed from a pool. Dropped while a statement is on its way or a transaction is open (its
/// caller gave up), it is closed instead of going back: nobody else reads that answer, or waits behind it.
pub(crate) struct Session {
    object: Option<Object>,
    /// Not a drop guard: it must stay set when the future that set it is dropped half-way.
    busy: AtomicBool,
    in_transaction: AtomicBool,
    dialect: Arc<Dialect>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("busy", &self.busy).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(object: Object, dialect: Arc<Dialect>) -> Self {
        Self {
            object: Some(object),
            busy: AtomicBool::new(false),
            in_transaction: AtomicBool::new(false),
            dialect,
        }
    }

    /// Sends a statement: as a transaction of its own, or in the one that [`Session::begin`] opened. Outside
    /// a transaction it is repeated once, unprepared, when the server turns out not to know our prepared
    /// statements (which surely changed nothing).
    pub(crate) async fn query(
        &self,
        sql: &Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let text = self.dialect.text(sql);
        self.run(async |client| {
            if !self.dialect.is_pooled() {
                match prepared(client, text, sql, params).await {
                    Err(e) if error::is_lost_statement(&e) && !self.dialect.fixed => {
                        self.dialect.found_pooler();
                        if self.in_transaction.load(Ordering::Relaxed) {
                            return Err(e);
                        }
                    }
                    answer => return answer,
                }
            }
            let typed: Vec<(Param<'_>, Type)> =
                params.iter().copied().zip(sql.types.iter().cloned()).collect();
            client.query_typed(text, &typed).await
        })
        .await
    }

    /// Waits, after an error, until the server has undone the statement. It tells the error first: until then the rows
    /// are still held, and whoever looks from another connection skips them.
    pub(crate) async fn settle(&self) -> Result<(), tokio_postgres::Error> {
        self.run(async |client| client.batch_execute("").await).await
    }

    /// Opens a transaction. Without a [`Session::commit`] the connection is closed when the session is
    /// dropped, which makes the server roll back.
    pub(crate) async fn begin(&self) -> Result<(), tokio_postgres::Error> {
        self.in_transaction.store(true, Ordering::Relaxed);
        self.run(async |client| client.batch_execute("begin isolation level read committed").await).await
    }

    /// Commits what [`Session::begin`] opened. An error here, unlike one before, may mean that it happened.
    pub(crate) async fn commit(&self) -> Result<(), tokio_postgres::Error> {
        self.run(async |client| client.batch_execute("commit").await).await?;
        self.in_transaction.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Undoes what [`Session::begin`] opened, and keeps the connection.
    pub(crate) async fn rollback(&self) -> Result<(), tokio_postgres::Error> {
        self.run(async |client| client.batch_execute("rollback").await).await?;
        self.in_transaction.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Runs whatever has no statement file, such as COPY, on the driver's client.
    pub(crate) async fn run<T>(
        &self,
        work: impl AsyncFnOnce(&deadpool_postgres::ClientWrapper) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, tokio_postgres::Error> {
        let object = self.object.as_ref().expect("the connection is there until the session is dropped");
        self.busy.store(true, Ordering::Relaxed);
        let answer = work(object).await;
        self.busy.store(false, Ordering::Relaxed);
        answer
    }

    /// Closes the connection instead of giving it back.
    pub(crate) fn discard(mut self) {
        self.close();
    }

    fn close(&mut self) {
        if let Some(object) = self.object.take() {
            drop(Object::take(object));
        }
    }
}

async fn prepared(
    client: &deadpool_postgres::ClientWrapper,
    text: &str,
    sql: &Sql,
    params: &[Param<'_>],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let statement = client.prepare_typed_cached(text, sql.types).await?;
    client.query(&statement, params).await
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.busy.load(Ordering::Relaxed) || self.in_transaction.load(Ordering::Relaxed) {
            self.close();
        }
    }
}
