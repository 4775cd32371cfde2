//! Calls that need a live lease: asked together first, and alone where that brought no "yes".
//!
//! A gathered statement skips rows that somebody holds, and its snapshot may be older than a change it ran into:
//! its "no" means nothing. So whoever got no "yes" is asked again alone, in a transaction that first waits for the
//! row (not for long) and then puts the same statement to a snapshot younger than its lock. Only that "no" counts.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use leasehold_actors::error::{Applied, StoreError, StoreErrorKind};
use tokio::runtime::Handle;
use tokio_postgres::Row;

use super::{
    batch::{Batcher, Pending},
    error,
    owners::Holder,
    pool::{Lane, Pools},
    session::Session,
    sql_file::{Sql, sql},
};

static LOCK_LEASE: Sql = sql!("lock_lease", [INT8, TEXT]);
static LOCK_LEASE_TO_END: Sql = sql!("lock_lease_to_end", [INT8, TEXT]);
static LOCK_RECIPE: Sql = sql!("lock_recipe", [INT8, TEXT]);
static LOCK_CHILDREN: Sql = sql!("lock_children", [INT8, TEXT]);
static LOCK_WORKFLOW: Sql = sql!("lock_workflow", [INT8, TEXT]);

/// What a call waits for that leaves the lease in place.
pub(super) static LEASE: &[&Sql] = &[&LOCK_LEASE];
/// What a call waits for that ends the lease for good.
pub(super) static LEASE_TO_END: &[&Sql] = &[&LOCK_LEASE_TO_END];
/// The same, and whoever may bring what a recipe is about to wait for.
pub(super) static WORKFLOW_LEASE_AND_RECIPE: &[&Sql] =
    &[&LOCK_WORKFLOW, &LOCK_LEASE_TO_END, &LOCK_RECIPE, &LOCK_CHILDREN];
/// What a call waits for that ends the lease, and may let the job wait again: that depends on its workflow.
pub(super) static WORKFLOW_AND_LEASE: &[&Sql] = &[&LOCK_WORKFLOW, &LOCK_LEASE_TO_END];

/// One kind of call under a lease.
#[async_trait]
pub(super) trait Verb: Send + Sync + 'static {
    type Ask: Send + Sync + 'static;
    type Answer: Send + 'static;

    const OPERATION: &'static str;
    const LANE: Lane;

    fn holder(ask: &Self::Ask) -> &Holder;

    /// What to wait for, in order, before it is asked alone.
    fn locks() -> &'static [&'static Sql];

    /// Puts the statement for these calls, in ascending order of their jobs, none twice.
    async fn put(session: &Session, asks: &[&Self::Ask]) -> Result<Vec<Row>, tokio_postgres::Error>;

    /// Reads one row: which job it is about, and its answer.
    fn read(row: &Row) -> Result<(i64, Self::Answer), StoreError>;

    /// The lease is not live, and that is certain: the answer to that.
    async fn refused(pools: &Pools, ask: &Self::Ask) -> Result<Self::Answer, StoreError>;
}

/// The gatherer of one kind of call.
pub(super) fn batcher<V: Verb>(pools: &Pools, io: &Handle) -> Batcher<V::Ask, V::Answer> {
    let (pools, handle) = (pools.clone(), io.clone());
    Batcher::new(
        V::OPERATION,
        io.clone(),
        |_| 1,
        move |batch| {
            let (pools, io) = (pools.clone(), handle.clone());
            Box::pin(async move {
                let mut batch = batch;
                while !batch.is_empty() {
                    // Two calls about one job do not go into one statement: its rows do not say whose call they answer.
                    let (now, later) = one_each::<V>(batch);
                    together::<V>(&pools, &io, now).await;
                    batch = later;
                }
            })
        },
    )
}

type Call<V> = Pending<<V as Verb>::Ask, <V as Verb>::Answer>;

fn one_each<V: Verb>(mut batch: Vec<Call<V>>) -> (Vec<Call<V>>, Vec<Call<V>>) {
    batch.sort_by_key(|call| V::holder(&call.ask).job);
    let mut last = None;
    let mut later = Vec::new();
    let mut now = Vec::with_capacity(batch.len());
    for call in batch {
        let job = V::holder(&call.ask).job;
        if last == Some(job) {
            later.push(call);
        } else {
            last = Some(job);
            now.push(call);
        }
    }
    (now, later)
}

/// One statement for all; whoever got no "yes" is asked alone, without keeping the next batch waiting.
async fn together<V: Verb>(pools: &Pools, io: &Handle, batch: Vec<Call<V>>) {
    let answers = match gathered::<V>(pools, &batch).await {
        Ok(answers) => answers,
        Err(e) if is_somebodys_fault(&e) => HashMap::new(),
        Err(e) => {
            for call in batch {
                call.answer(Err(e.clone()));
            }
            return;
        }
    };
    let mut answers = answers;
    for call in batch {
        match answers.remove(&V::holder(&call.ask).job) {
            Some(answer) => call.answer(Ok(answer)),
            None => {
                let pools = pools.clone();
                io.spawn(async move {
                    if !call.is_abandoned() {
                        let answer = alone::<V>(&pools, &call.ask).await;
                        call.answer(answer);
                    }
                });
            }
        }
    }
}

/// It surely did nothing, and one call in it may be to blame: the others must not suffer for that.
fn is_somebodys_fault(e: &StoreError) -> bool {
    e.applied == Applied::No
        && matches!(e.kind, StoreErrorKind::Refused | StoreErrorKind::RowLocked | StoreErrorKind::Timeout)
}

async fn gathered<V: Verb>(pools: &Pools, batch: &[Call<V>]) -> Result<HashMap<i64, V::Answer>, StoreError> {
    let asks: Vec<&V::Ask> = batch.iter().map(|call| &call.ask).collect();
    let session = pools.session(V::LANE, V::OPERATION).await?;
    let rows = pools.finish(V::OPERATION, session, async |session| V::put(session, &asks).await).await?;
    rows.iter().map(V::read).collect()
}

/// Asks about one lease, from a snapshot that is younger than the lock on its row.
pub(super) async fn alone<V: Verb>(pools: &Pools, ask: &V::Ask) -> Result<V::Answer, StoreError> {
    let job = V::holder(ask).job;
    let was_pooled = pools.dialect().is_pooled();
    let mut rows =
        under_lock(pools, V::OPERATION, V::locks(), job, async |session| V::put(session, &[ask]).await).await;
    if rows.is_err() && pools.dialect().is_pooled() != was_pooled {
        // A pooler was found out in the middle of the transaction; now that it is known, this works.
        rows =
            under_lock(pools, V::OPERATION, V::locks(), job, async |session| V::put(session, &[ask]).await)
                .await;
    }
    let rows = rows?;
    match rows.first() {
        Some(row) => V::read(row).map(|(_, answer)| answer),
        None => V::refused(pools, ask).await,
    }
}

/// A transaction that waits for rows first and then does its work. Until its commit is sent nothing of it can
/// have happened, whatever went wrong.
async fn under_lock(
    pools: &Pools,
    operation: &'static str,
    locks: &[&Sql],
    job: i64,
    work: impl AsyncFnOnce(&Session) -> Result<Vec<Row>, tokio_postgres::Error>,
) -> Result<Vec<Row>, StoreError> {
    let session = pools.session(Lane::Alone, operation).await?;
    // Leaves the caller room for one more try within the same time.
    let wait = format!("{}ms", longest_wait(pools.timeout).as_millis());
    let before_commit = async {
        session.begin().await?;
        for lock in locks {
            session.query(lock, &[&job, &wait]).await?;
        }
        work(&session).await
    };
    let rows = match tokio::time::timeout(pools.timeout, before_commit).await {
        Ok(Ok(rows)) => rows,
        Ok(Err(e)) => {
            if error::spoils_connection(&e)
                || tokio::time::timeout(pools.timeout, session.rollback()).await.is_err()
            {
                session.discard();
            }
            return Err(StoreError { applied: Applied::No, ..error::store_error(operation, &e) });
        }
        Err(_) => {
            session.discard();
            return Err(StoreError { applied: Applied::No, ..error::timed_out(operation, pools.timeout) });
        }
    };
    pools.finish(operation, session, async |session| session.commit().await).await?;
    Ok(rows)
}

/// How long a call may wait for a row that somebody holds.
fn longest_wait(timeout: Duration) -> Duration {
    timeout * 2 / 5
}

/// A call that is never gathered: asked at once, and again under the lock where that brought no "yes".
pub(super) async fn single<V: Verb>(pools: &Pools, ask: &V::Ask) -> Result<V::Answer, StoreError> {
    let session = pools.session(V::LANE, V::OPERATION).await?;
    let rows = pools.finish(V::OPERATION, session, async |session| V::put(session, &[ask]).await).await;
    match rows {
        Ok(rows) => match rows.first() {
            Some(row) => V::read(row).map(|(_, answer)| answer),
            None => alone::<V>(pools, ask).await,
        },
        Err(e) => Err(e),
    }
}

/// Runs a call on the store's own runtime: a caller that gives up does not cut it off half-way.
pub(super) async fn on<T: Send + 'static>(
    io: &Handle,
    operation: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    let running = io.spawn(call);
    match tokio::time::timeout(limit, running).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(StoreError {
            operation,
            kind: StoreErrorKind::Unreachable,
            applied: Applied::Maybe,
            message: "the store was shut down before it answered".to_owned(),
        }),
        Err(_) => Err(error::timed_out(operation, limit)),
    }
}

/// What most verbs share: the arrays of a statement for one kind of call.
pub(super) fn holders<'a, V: Verb>(asks: &[&'a V::Ask]) -> super::owners::Holders<'a> {
    asks.iter().map(|ask| V::holder(ask)).collect()
}
