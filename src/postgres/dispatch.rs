//! Dispatch: due PENDING jobs become QUEUED. And, now and then, the housekeeping that somebody must do.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use leasehold_actors::{domain::Namespace, error::StoreError, ports::Dispatched};

use super::{
    error,
    pool::{Lane, Pools},
    renew::micros,
    sql_file::{Sql, sql},
};

static DISPATCH: Sql = sql!("dispatch", [TEXT, INT8]);
static PRUNE_COMMANDS: Sql = sql!("prune_commands", [INT8]);

/// Time between two looks for claims that nobody will repeat any more.
const PRUNE_EVERY: Duration = Duration::from_mins(1);
/// The most of them forgotten in one statement.
const PRUNE_AT_ONCE: i64 = 10_000;

/// When this process last pruned.
#[derive(Debug)]
pub(super) struct Housekeeping(Mutex<Instant>);

impl Default for Housekeeping {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl Housekeeping {
    fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let due = last.elapsed() > PRUNE_EVERY;
        if due {
            *last = Instant::now();
        }
        due
    }
}

/// Moves at most `limit` due jobs.
pub(super) async fn dispatch(
    pools: Pools,
    namespace: Namespace,
    limit: u32,
) -> Result<Dispatched, StoreError> {
    const OPERATION: &str = "dispatch";
    let rows =
        pools.call(Lane::Leases, OPERATION, &DISPATCH, &[&namespace.as_str(), &i64::from(limit)]).await?;
    let row = rows.first().ok_or_else(|| error::garbled(OPERATION, "no row"))?;
    let garbled = |e| error::garbled(OPERATION, e);
    let moved: i64 = row.try_get(0).map_err(garbled)?;
    let next_due: Option<i64> = row.try_get(1).map_err(garbled)?;
    Ok(Dispatched { moved: u32::try_from(moved).unwrap_or(u32::MAX), next_due: next_due.map(micros) })
}

/// Forgets old claims, if that is due here. Whoever dispatches does it; any number of processes may.
pub(super) async fn keep_house(pools: Pools, due: &Housekeeping) {
    if due.is_due()
        && let Err(e) = pools.call(Lane::General, "prune_commands", &PRUNE_COMMANDS, &[&PRUNE_AT_ONCE]).await
    {
        tracing::warn!(error = %e, "old claims could not be forgotten; the next round tries again");
    }
}
