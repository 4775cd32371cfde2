//! What a holder does in a transaction on a connection that is not ours: a fence around the caller's own writes, and the
//! end of the lease together with them.

use leasehold_actors::{domain::CommandId, ports::Authority};
use tokio_postgres::{
    Transaction,
    types::{ToSql, Type},
};

use super::{
    end::COMPLETE,
    sql_file::{Sql, sql},
};

static FENCE: Sql = sql!("fence", [INT8, UUID]);
static AWAIT_LEASE: Sql = sql!("await_lease", [INT8]);

/// Locks the lease until the transaction ends, if it is live.
pub(crate) async fn fence(
    transaction: &Transaction<'_>,
    authority: &Authority,
) -> Result<bool, tokio_postgres::Error> {
    let (job, token) = (authority.job.0, authority.token.expose_to_store());
    match query(transaction, &FENCE, &[&job, &token]).await {
        Ok(_) => Ok(true),
        Err(e) if e.code().is_some_and(|code| code.code() == "LH020") => Ok(false),
        Err(e) => Err(e),
    }
}

/// Ends the lease as COMPLETED, if it is live.
pub(crate) async fn complete(
    transaction: &Transaction<'_>,
    authority: &Authority,
    command: CommandId,
    output: Option<&str>,
) -> Result<bool, tokio_postgres::Error> {
    let (job, owner) = (authority.job.0, &authority.owner);
    // The statement passes over a row that somebody holds: so it is waited for first, with the caller's patience.
    query(transaction, &AWAIT_LEASE, &[&job]).await?;
    let rows = query(
        transaction,
        &COMPLETE,
        &[
            &[job].as_slice(),
            &[authority.token.expose_to_store()].as_slice(),
            &[1_i32].as_slice(),
            &[owner.namespace.as_str()].as_slice(),
            &[owner.worker.as_str()].as_slice(),
            &[owner.process.0].as_slice(),
            &[command.0].as_slice(),
            &[None::<i32>].as_slice(),
            &[output].as_slice(),
        ],
    )
    .await?;
    Ok(!rows.is_empty())
}

async fn query(
    transaction: &Transaction<'_>,
    sql: &Sql,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
    let typed: Vec<(&(dyn ToSql + Sync), Type)> =
        params.iter().copied().zip(sql.types.iter().cloned()).collect();
    transaction.query_typed(sql.text, &typed).await
}
