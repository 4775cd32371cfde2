//! Recover: expired leases change hands in bounded batches; and a takeover whose cleanup must wait is put off.
//!
//! As a claim, a batch inserts its command id plainly: one that has run before fails as a whole, and what it took over,
//! as far as that is still live, is the answer to its repeat.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold_actors::{
    domain::{CommandId, ContainerId, Epoch},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{Claimant, Postponed, RecoverAnswer, RuntimeStanding, Takeover},
};
use sha2::{Digest, Sha256};
use tokio_postgres::Row;

use super::{
    end::millis,
    error, grant,
    lookout::{Lookout, Lookouts},
    owners::Holder,
    pool::{Lane, Pools},
    protected::{LEASE, Verb},
    renew::micros,
    session::Session,
    sql_file::{Sql, sql},
    tasks::read_tasks,
};

pub(crate) static RECOVER: Sql =
    sql!("recover", [TEXT, TEXT, UUID, INT4, INT8_ARRAY, INT8, UUID_ARRAY, UUID, TEXT, BOOL, INT8_ARRAY]);
static RECALL_RECOVERY: Sql = sql!("recall_recovery", [UUID, TEXT, TEXT, UUID]);
static POSTPONE_RECOVERY: Sql = sql!("postpone_recovery", [INT8, UUID, TEXT, TEXT, UUID, INT8]);

const OPERATION: &str = "recover";

/// How many rows are offered to a statement for each that it may take: some may be held by somebody.
const OFFERED: usize = 4;
/// The most that one statement takes.
const MOST: usize = 500;

/// One batch.
#[derive(Debug)]
pub(super) struct RecoverAsk {
    pub(super) owner: Arc<Claimant>,
    pub(super) command: CommandId,
    pub(super) repeat: bool,
    pub(super) lease_ms: i32,
    pub(super) limit: usize,
    pub(super) running_here: Vec<i64>,
}

impl RecoverAsk {
    /// Over what was asked for. Which jobs run here by now is no part of that.
    fn hash(&self) -> String {
        let mut hash = Sha256::new();
        let mut put = |bytes: &[u8]| {
            hash.update(bytes.len().to_le_bytes());
            hash.update(bytes);
        };
        put(OPERATION.as_bytes());
        put(self.owner.namespace.as_str().as_bytes());
        put(self.owner.worker.as_str().as_bytes());
        put(self.owner.process.0.as_bytes());
        put(&self.lease_ms.to_le_bytes());
        put(&self.limit.to_le_bytes());
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// One pass: looks for expired leases where it is not known of any, and takes over the first of them.
pub(super) async fn recover(
    pools: &Pools,
    lookouts: &Lookouts,
    ask: &RecoverAsk,
) -> Result<RecoverAnswer, StoreError> {
    let namespace = &ask.owner.namespace;
    if ask.repeat
        && let Some(recorded) = recall(pools, ask).await?
    {
        return beside_a_look(pools, ask, recorded).await;
    }
    let mut lookout = match lookouts.left(namespace) {
        Some(lookout) => lookout,
        None => Lookout::take(pools, namespace, &ask.running_here).await?,
    };
    let most = ask.limit.min(MOST);
    let lease = Duration::from_millis(u64::try_from(ask.lease_ms).unwrap_or(0));
    let mut takeovers = Vec::new();
    // A repeat that finds nothing is recorded too: should the first one still be on its way, it takes nothing.
    while takeovers.is_empty() && most > 0 && (!lookout.is_used_up() || ask.repeat) {
        let offered = lookout.next_candidates(most.saturating_mul(OFFERED));
        let last = offered.len() == lookout.candidates_left();
        match take_over(pools, ask, &offered, most, ask.repeat && last).await {
            Ok(taken) => takeovers = taken,
            Err(e) if e.kind == StoreErrorKind::CommandConflict => {
                // It stood in the way a moment ago; where it is gone, whoever recorded it was undone.
                let recorded =
                    recall(pools, ask).await?.ok_or(StoreError { kind: StoreErrorKind::RowLocked, ..e })?;
                return beside_a_look(pools, ask, recorded).await;
            }
            Err(e) => return Err(e),
        }
        let taken: Vec<i64> = takeovers.iter().map(|t| t.grant.authority.job.0).collect();
        lookout.asked(&offered, &taken, taken.len() < most, lease);
        if last {
            break;
        }
    }
    if lookout.is_unsure() {
        // What was taken over is committed: that this look failed must not hide it.
        if let Ok(glance) = Lookout::glance(pools, namespace).await {
            lookout = glance;
        }
    }
    // What took nothing did not get as far as the record of its command.
    if takeovers.is_empty()
        && !ask.repeat
        && let Some(recorded) = recall(pools, ask).await?
    {
        return beside_a_look(pools, ask, recorded).await;
    }
    let answer = RecoverAnswer {
        takeovers,
        next_expiry: lookout.next_expiry(),
        backlog: lookout.backlog(),
        oldest: lookout.oldest(),
    };
    lookouts.keep(namespace, lookout);
    Ok(answer)
}

/// The recorded takeovers of a repeat, and how things stand now.
async fn beside_a_look(
    pools: &Pools,
    ask: &RecoverAsk,
    takeovers: Vec<Takeover>,
) -> Result<RecoverAnswer, StoreError> {
    let lookout = Lookout::glance(pools, &ask.owner.namespace).await;
    // What was taken over is committed: that the look failed must not hide it.
    let lookout = lookout.map_err(|e| StoreError { applied: Applied::Maybe, ..e })?;
    Ok(RecoverAnswer {
        takeovers,
        next_expiry: lookout.next_expiry(),
        backlog: lookout.backlog(),
        oldest: lookout.oldest(),
    })
}

async fn take_over(
    pools: &Pools,
    ask: &RecoverAsk,
    offered: &[i64],
    most: usize,
    always: bool,
) -> Result<Vec<Takeover>, StoreError> {
    let owner = &ask.owner;
    let tokens = grant::tokens(most.min(offered.len()));
    let (hash, most) = (ask.hash(), i64::try_from(most).unwrap_or(i64::MAX));
    let session = pools.session(Lane::Leases, OPERATION).await?;
    let mut ran_before = false;
    let answer = pools
        .finish(OPERATION, session, async |session| {
            let answer = session
                .query(
                    &RECOVER,
                    &[
                        &owner.namespace.as_str(),
                        &owner.worker.as_str(),
                        &owner.process.0,
                        &ask.lease_ms,
                        &offered,
                        &most,
                        &tokens,
                        &ask.command.0,
                        &hash,
                        &always,
                        &ask.running_here,
                    ],
                )
                .await;
            ran_before = answer.as_ref().is_err_and(|e| error::violates(e, "commands_pkey"));
            answer
        })
        .await;
    let rows = match answer {
        Err(e) if ran_before => return Err(StoreError { kind: StoreErrorKind::CommandConflict, ..e }),
        answer => answer?,
    };
    rows.iter().map(|row| read(row, 0, owner).map_err(|e| error::garbled(OPERATION, e))).collect()
}

/// The recorded takeovers of a batch that has run before; none if it has not. Another request under its command id is
/// a conflict.
async fn recall(pools: &Pools, ask: &RecoverAsk) -> Result<Option<Vec<Takeover>>, StoreError> {
    let garbled = |e| error::garbled(OPERATION, e);
    let owner = &ask.owner;
    let rows = pools
        .call(
            Lane::Leases,
            OPERATION,
            &RECALL_RECOVERY,
            &[&ask.command.0, &owner.namespace.as_str(), &owner.worker.as_str(), &owner.process.0],
        )
        .await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let same = first.try_get::<_, &str>(0).map_err(garbled)? == OPERATION
        && first.try_get::<_, &str>(1).map_err(garbled)? == ask.hash()
        && first.try_get::<_, bool>(2).map_err(garbled)?;
    if !same {
        return Err(grant::command_conflict(OPERATION));
    }
    let mut live = Vec::new();
    for row in &rows {
        if row.try_get::<_, Option<i64>>(3).map_err(garbled)?.is_some() {
            live.push(read(row, 3, owner).map_err(|e| error::garbled(OPERATION, e))?);
        }
    }
    Ok(Some(live))
}

/// Reads a takeover: the columns of a grant from `at` on, then those of the takeover by name.
fn read(
    row: &Row,
    at: usize,
    owner: &Arc<Claimant>,
) -> Result<Takeover, Box<dyn std::error::Error + Send + Sync>> {
    let container: Option<&str> = row.try_get("container_id")?;
    let pending: Option<i64> = row.try_get("cleanup_pending_us")?;
    let timeout_left: Option<i64> = row.try_get("timeout_left_us")?;
    Ok(Takeover {
        grant: grant::read(row, at, owner, row.try_get("lease_ms")?)?,
        container: container.map(ContainerId::new).transpose()?,
        runtime: match row.try_get("runtime_lost")? {
            true => RuntimeStanding::Unavailable,
            false => RuntimeStanding::Available,
        },
        tasks: read_tasks(row.try_get("tasks")?)?,
        claim_epoch: Epoch(row.try_get("claim_epoch")?),
        started: row.try_get("claim_renewed")?,
        cancel_requested: row.try_get("cancel_requested")?,
        cleanup_pending_for: pending.map(micros),
        timeout_left: timeout_left.map(micros),
    })
}

/// A takeover whose cleanup must wait.
#[derive(Debug)]
pub(super) struct PostponeAsk {
    pub(super) holder: Holder,
    pub(super) delay: Duration,
}

/// Put recovery off.
pub(super) struct PostponeRecovery;

#[async_trait]
impl Verb for PostponeRecovery {
    type Ask = PostponeAsk;
    type Answer = Postponed;

    const OPERATION: &'static str = "postpone_recovery";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &PostponeAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&PostponeAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        session
            .query(
                &POSTPONE_RECOVERY,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &millis(ask.delay),
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Postponed), StoreError> {
        Ok((row.try_get(0).map_err(|e| error::garbled(Self::OPERATION, e))?, Postponed::Done))
    }

    async fn refused(_: &Pools, _: &PostponeAsk) -> Result<Postponed, StoreError> {
        Ok(Postponed::NotLive)
    }
}
