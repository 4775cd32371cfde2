//! End a lease: complete, fail, lost, cancel, release, reschedule. Each in one statement, and each repeat answered from
//! the lease's own row of history.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{
        FailureKind, JobState, RetryPolicy,
        execution::{Allocation, payload},
    },
    error::StoreError,
    ports::{
        End, Ended, PayloadUpdate,
        recipe::{Hint, Publication, Wake},
    },
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    error,
    execution_view::requirements,
    owners::Holder,
    pool::{Lane, Pools},
    protected::{LEASE_TO_END, Verb, WORKFLOW_AND_LEASE, WORKFLOW_LEASE_AND_RECIPE, holders},
    session::Session,
    sql_file::{Sql, sql},
};

pub(crate) static COMPLETE: Sql = sql!(
    "complete",
    [
        INT8_ARRAY, UUID_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, UUID_ARRAY, UUID_ARRAY, INT4_ARRAY,
        TEXT_ARRAY
    ]
);
static GIVE_UP: Sql = sql!(
    "give_up",
    [
        INT8_ARRAY, UUID_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, UUID_ARRAY, UUID_ARRAY, TEXT_ARRAY,
        TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT4_ARRAY, INT4_ARRAY, INT4_ARRAY, INT4_ARRAY, INT8_ARRAY,
        INT8_ARRAY, INT8_ARRAY, INT4_ARRAY
    ]
);
static RESCHEDULE: Sql = sql!(
    "reschedule",
    [
        INT8,
        UUID,
        TEXT,
        TEXT,
        UUID,
        UUID,
        INT8,
        TEXT,
        TEXT,
        TEXT,
        INT8,
        BOOL,
        TIMESTAMPTZ,
        TEXT_ARRAY,
        INT8_ARRAY,
        BOOL,
        BOOL,
        TEXT,
        INT8,
        INT8,
        INT8,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        INT4,
        TEXT
    ]
);
/// So many handoffs in a row with nothing recorded between fail the job.
const HANDOFF_LIMIT: i32 = 10;
static RECALL_END: Sql = sql!("recall_end", [INT8, INT8, UUID, TEXT, TEXT, UUID]);

/// A request to end a lease. Its `Debug` shows no token.
#[derive(Debug)]
pub(super) struct EndAsk {
    pub(super) holder: Holder,
    pub(super) command: Uuid,
    pub(super) end: End,
}

/// End as COMPLETED: what almost every lease does.
pub(super) struct Complete;

#[async_trait]
impl Verb for Complete {
    type Ask = EndAsk;
    type Answer = Ended;

    const OPERATION: &'static str = "complete";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &EndAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE_TO_END
    }

    async fn put(session: &Session, asks: &[&EndAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let h = holders::<Self>(asks);
        let commands: Vec<Uuid> = asks.iter().map(|ask| ask.command).collect();
        let (mut codes, mut outputs) = (Vec::with_capacity(asks.len()), Vec::with_capacity(asks.len()));
        for ask in asks {
            let (code, output) = match &ask.end {
                End::Complete { exit_code, output } => (*exit_code, output.as_deref()),
                _ => (None, None),
            };
            codes.push(code);
            outputs.push(output);
        }
        session
            .query(
                &COMPLETE,
                &[
                    &h.jobs,
                    &h.tokens,
                    &h.owners,
                    &h.namespaces,
                    &h.workers,
                    &h.processes,
                    &commands,
                    &codes,
                    &outputs,
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Ended), StoreError> {
        let job = row.try_get(0).map_err(|e| error::garbled(Self::OPERATION, e))?;
        Ok((job, Ended::Terminal(JobState::Completed)))
    }

    async fn refused(pools: &Pools, ask: &EndAsk) -> Result<Ended, StoreError> {
        recall(pools, Self::OPERATION, ask).await
    }
}

/// Fail, lost, cancel or release.
pub(super) struct GiveUp;

/// The columns of `give_up.sql` that differ between them, one entry a call.
#[derive(Default)]
struct GiveUpColumns<'a> {
    acts: Vec<&'static str>,
    kinds: Vec<Option<&'static str>>,
    codes: Vec<Option<&'a str>>,
    messages: Vec<Option<&'a str>>,
    exit_codes: Vec<Option<i32>>,
    max_user: Vec<Option<i32>>,
    max_system: Vec<Option<i32>>,
    max_timeout: Vec<Option<i32>>,
    backoffs: Vec<Option<i64>>,
    caps: Vec<Option<i64>>,
    delays: Vec<i64>,
    loss_limits: Vec<Option<i32>>,
}

impl<'a> GiveUpColumns<'a> {
    fn push(&mut self, end: &'a End) {
        let mut defaults = RetryPolicy::default();
        let (mut act, mut kind, mut code, mut message, mut exit_code, mut delay) =
            ("cancel", None, None, None, None, 0);
        let mut loss_limit = None;
        match end {
            End::Fail { failure, defaults: given } => {
                act = "fail";
                kind = Some(failure.kind.as_str());
                code = Some(failure.code.as_str());
                message = Some(failure.message.as_str());
                exit_code = failure.exit_code;
                defaults = *given;
            }
            End::FailForGood { failure } => {
                act = "fail_for_good";
                kind = Some(failure.kind.as_str());
                code = Some(failure.code.as_str());
                message = Some(failure.message.as_str());
                exit_code = failure.exit_code;
            }
            End::Lost { defaults: given, loss_limit: most, message: found } => {
                act = "lost";
                kind = Some(FailureKind::System.as_str());
                code = Some("lease_lost");
                message = Some(found.as_str());
                defaults = *given;
                loss_limit = Some(*most);
            }
            End::Release { delay: given, reason } => {
                act = "release";
                code = Some(*reason);
                delay = millis(*given);
            }
            End::Cancel | End::Complete { .. } | End::Reschedule { .. } => {}
        }
        self.acts.push(act);
        self.kinds.push(kind);
        self.codes.push(code);
        self.messages.push(message);
        self.exit_codes.push(exit_code);
        self.max_user.push(defaults.max_user);
        self.max_system.push(defaults.max_system);
        self.max_timeout.push(defaults.max_timeout);
        self.backoffs.push(defaults.backoff_ms);
        self.caps.push(defaults.backoff_cap_ms);
        self.delays.push(delay);
        self.loss_limits.push(loss_limit);
    }
}

#[async_trait]
impl Verb for GiveUp {
    type Ask = EndAsk;
    type Answer = Ended;

    const OPERATION: &'static str = "end";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &EndAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        WORKFLOW_AND_LEASE
    }

    async fn put(session: &Session, asks: &[&EndAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let h = holders::<Self>(asks);
        let commands: Vec<Uuid> = asks.iter().map(|ask| ask.command).collect();
        let mut c = GiveUpColumns::default();
        for ask in asks {
            c.push(&ask.end);
        }
        session
            .query(
                &GIVE_UP,
                &[
                    &h.jobs,
                    &h.tokens,
                    &h.owners,
                    &h.namespaces,
                    &h.workers,
                    &h.processes,
                    &commands,
                    &c.acts,
                    &c.kinds,
                    &c.codes,
                    &c.messages,
                    &c.exit_codes,
                    &c.max_user,
                    &c.max_system,
                    &c.max_timeout,
                    &c.backoffs,
                    &c.caps,
                    &c.delays,
                    &c.loss_limits,
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Ended), StoreError> {
        let garbled = |e| error::garbled(Self::OPERATION, e);
        let job = row.try_get(0).map_err(garbled)?;
        Ok((
            job,
            outcome(Self::OPERATION, row.try_get(1).map_err(garbled)?, row.try_get(2).map_err(garbled)?)?,
        ))
    }

    async fn refused(pools: &Pools, ask: &EndAsk) -> Result<Ended, StoreError> {
        recall(pools, Self::OPERATION, ask).await
    }
}

/// Reschedule: rare, so never gathered.
pub(super) struct Reschedule;

#[async_trait]
impl Verb for Reschedule {
    type Ask = EndAsk;
    type Answer = Ended;

    const OPERATION: &'static str = "reschedule";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &EndAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        WORKFLOW_LEASE_AND_RECIPE
    }

    async fn put(session: &Session, asks: &[&EndAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let End::Reschedule { route, delay, payload, wake, publish } = &ask.end else {
            return Ok(Vec::new());
        };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        let times = wake.iter().filter_map(|wake| match wake {
            Wake::At(at) => Some(*at),
            Wake::Signal(_) | Wake::Child(_) => None,
        });
        let signals: Vec<&str> = wake
            .iter()
            .filter_map(|wake| match wake {
                Wake::Signal(name) => Some(name.as_str()),
                Wake::At(_) | Wake::Child(_) => None,
            })
            .collect();
        let mut children: Vec<i64> = wake
            .iter()
            .filter_map(|wake| match wake {
                Wake::Child(job) => Some(job.0),
                Wake::At(_) | Wake::Signal(_) => None,
            })
            .collect();
        children.sort_unstable();
        children.dedup();
        let nothing = Hint::default();
        let hint = publish.as_ref().map_or(&nothing, |publish| &publish.hint);
        let platform = hint.platform.as_ref();
        let handoff = publish.as_ref().is_some_and(|publish| publish.handoff);
        session
            .query(
                &RESCHEDULE,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &ask.command,
                    &millis(*delay),
                    &route.as_ref().map(|r| r.name.as_str()),
                    &route.as_ref().map(|r| r.task.as_str()),
                    &payload.as_ref().map(|p| p.value.as_str()),
                    &payload.as_ref().map(|p| p.expected_revision),
                    &!wake.is_empty(),
                    &times.min(),
                    &signals,
                    &children,
                    &publish.is_some(),
                    &handoff,
                    &publish.as_ref().and_then(|publish| publish.declined_by.as_deref()),
                    &hint.cpu_millis,
                    &hint.memory_bytes,
                    &hint.ephemeral_storage_bytes,
                    &platform.map(|(os, ..)| os.as_str()),
                    &platform.map(|(_, architecture, _)| architecture.as_str()),
                    &platform.and_then(|(.., variant)| variant.as_deref()),
                    &hint.image_reference,
                    &hint.image_digest,
                    &HANDOFF_LIMIT,
                    &publish.as_ref().filter(|_| handoff).map(|publish| told(publish, payload.as_ref())),
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Ended), StoreError> {
        let garbled = |e| error::garbled(Self::OPERATION, e);
        let how: Option<&str> = row.try_get(0).map_err(garbled)?;
        let due_at = row.try_get(1).map_err(garbled)?;
        let revision = row.try_get(2).map_err(garbled)?;
        let ended = match how {
            Some(how) => outcome(Self::OPERATION, how, due_at)?,
            None => Ended::PayloadConflict { current_revision: revision },
        };
        Ok((0, ended))
    }

    async fn refused(pools: &Pools, ask: &EndAsk) -> Result<Ended, StoreError> {
        recall(pools, Self::OPERATION, ask).await
    }
}

/// What a handoff is for, as its lease's history says it.
fn told(publish: &Publication, payload: Option<&PayloadUpdate>) -> String {
    // The payload also has the name of an image that is known by its digest.
    let published = payload.and_then(|payload| payload::read(&payload.value).ok().flatten());
    let needs = published.map_or_else(|| requirements(&publish.hint), |published| published.requirements);
    let there = match publish.declined_by.as_deref().map(serde_json::from_str::<Allocation>) {
        Some(Ok(there)) if !there.is_empty() => there.to_string(),
        _ => "nothing that is known".to_owned(),
    };
    format!("the next task needs {needs}; the worker has {there}")
}

/// The lease is not live: the command that ended it is told how, nobody else.
pub(super) async fn recall(
    pools: &Pools,
    operation: &'static str,
    ask: &EndAsk,
) -> Result<Ended, StoreError> {
    let (h, owner) = (&ask.holder, &ask.holder.owner);
    let rows = pools
        .call(
            Lane::Leases,
            operation,
            &RECALL_END,
            &[
                &h.job,
                &h.epoch,
                &ask.command,
                &owner.namespace.as_str(),
                &owner.worker.as_str(),
                &owner.process.0,
            ],
        )
        .await?;
    let garbled = |e| error::garbled(operation, e);
    match rows.first() {
        None => Ok(Ended::NotLive),
        Some(row) => outcome(operation, row.try_get(0).map_err(garbled)?, row.try_get(1).map_err(garbled)?),
    }
}

/// How a lease ended, in the database's word.
fn outcome(operation: &'static str, how: &str, due_at: Option<DateTime<Utc>>) -> Result<Ended, StoreError> {
    Ok(match (how, due_at) {
        ("completed", _) => Ended::Terminal(JobState::Completed),
        ("failed", _) => Ended::Terminal(JobState::Failed),
        ("canceled", _) => Ended::Terminal(JobState::Canceled),
        ("released", _) => Ended::Released,
        ("rescheduled", _) => Ended::Rescheduled,
        ("retrying", Some(at)) => Ended::Retrying { at },
        _ => return Err(error::garbled(operation, format!("a lease that ended as {how:?}"))),
    })
}

/// Milliseconds for the database; what no calendar holds becomes a century.
pub(super) fn millis(span: std::time::Duration) -> i64 {
    const CENTURY: i64 = 100 * 365 * 24 * 3600 * 1000;
    i64::try_from(span.as_millis()).unwrap_or(CENTURY).min(CENTURY)
}
