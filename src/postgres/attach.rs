//! What a holder records of a running job: its container, its output, its progress. And what it asks when it has
//! lost track: what became of the grant?

use async_trait::async_trait;
use leasehold_actors::{
    domain::{ContainerId, NodeId, TaskKey},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{Attach, LogAppend, LogBatch, LogOffsets, LogStream, Reconciliation, Renewal, StoredLogs},
};
use serde::de::IgnoredAny;
use tokio_postgres::Row;

use super::{
    error,
    owners::Holder,
    pool::{Lane, Pools},
    protected::{LEASE, Verb, alone},
    renew::micros,
    session::Session,
    sql_file::{Sql, sql},
};

static ATTACH: Sql = sql!("attach", [INT8, UUID, TEXT, TEXT, UUID, TEXT, TEXT]);
static APPEND_LOGS: Sql =
    sql!("append_logs", [INT8, UUID, TEXT, TEXT, UUID, INT2_ARRAY, INT8_ARRAY, BYTEA_ARRAY, TEXT_ARRAY]);
static LOG_OFFSETS: Sql = sql!("log_offsets", [INT8, UUID, TEXT, TEXT, UUID, TEXT]);
static REPORT_PROGRESS: Sql = sql!("report_progress", [INT8, UUID, TEXT, TEXT, UUID, INT8, TEXT]);
static RECONCILE: Sql = sql!("reconcile", [INT8, UUID, TEXT, TEXT, UUID]);

/// The most bytes of a progress note.
const PROGRESS_LIMIT: usize = 4096;

/// A container to record.
#[derive(Debug)]
pub(super) struct AttachAsk {
    pub(super) holder: Holder,
    pub(super) node: NodeId,
    pub(super) container: ContainerId,
}

/// Attach a container.
pub(super) struct AttachContainer;

#[async_trait]
impl Verb for AttachContainer {
    type Ask = AttachAsk;
    type Answer = Attach;

    const OPERATION: &'static str = "attach";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &AttachAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&AttachAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        session
            .query(
                &ATTACH,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &ask.node.as_str(),
                    &ask.container.as_str(),
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Attach), StoreError> {
        read_attach(Self::OPERATION, row)
    }

    async fn refused(_: &Pools, _: &AttachAsk) -> Result<Attach, StoreError> {
        Ok(Attach::NotLive)
    }
}

/// The answer to an attach: whether the node is the right one, and which other container is attached.
pub(super) fn read_attach(operation: &'static str, row: &Row) -> Result<(i64, Attach), StoreError> {
    let garbled = |e| error::garbled(operation, e);
    let right_node: bool = row.try_get(0).map_err(garbled)?;
    let conflict: Option<String> = row.try_get(1).map_err(garbled)?;
    let answer = match conflict {
        _ if !right_node => Attach::WrongRuntimeNode,
        None => Attach::Attached,
        Some(attached) => Attach::ContainerConflict {
            attached: ContainerId::new(attached).map_err(|e| error::garbled(operation, e))?,
        },
    };
    Ok((0, answer))
}

/// Output to store.
#[derive(Debug)]
pub(super) struct LogAsk {
    pub(super) holder: Holder,
    pub(super) batches: Vec<LogBatch>,
}

/// Append output.
pub(super) struct AppendLogs;

fn stream_number(stream: LogStream) -> i16 {
    match stream {
        LogStream::Stdout => 1,
        LogStream::Stderr => 2,
        LogStream::System => 3,
    }
}

#[async_trait]
impl Verb for AppendLogs {
    type Ask = LogAsk;
    type Answer = LogAppend;

    const OPERATION: &'static str = "append_logs";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &LogAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&LogAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        let streams: Vec<i16> = ask.batches.iter().map(|b| stream_number(b.stream)).collect();
        let offsets: Vec<i64> =
            ask.batches.iter().map(|b| i64::try_from(b.first_byte).unwrap_or(i64::MAX)).collect();
        let data: Vec<&[u8]> = ask.batches.iter().map(|b| &*b.data).collect();
        let tasks: Vec<&str> =
            ask.batches.iter().map(|b| b.task.as_ref().map_or("", TaskKey::as_str)).collect();
        session
            .query(
                &APPEND_LOGS,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &streams,
                    &offsets,
                    &data,
                    &tasks,
                ],
            )
            .await
    }

    fn read(_: &Row) -> Result<(i64, LogAppend), StoreError> {
        Ok((0, LogAppend::Stored))
    }

    async fn refused(_: &Pools, _: &LogAsk) -> Result<LogAppend, StoreError> {
        Ok(LogAppend::NotLive)
    }
}

/// Of what: the job itself, or one of its tasks.
#[derive(Debug)]
pub(super) struct OffsetsAsk {
    pub(super) holder: Holder,
    pub(super) task: Option<TaskKey>,
}

/// Ask how much output is stored.
pub(super) struct ReadLogOffsets;

#[async_trait]
impl Verb for ReadLogOffsets {
    type Ask = OffsetsAsk;
    type Answer = StoredLogs;

    const OPERATION: &'static str = "log_offsets";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &OffsetsAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&OffsetsAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        let task = ask.task.as_ref().map_or("", TaskKey::as_str);
        session
            .query(
                &LOG_OFFSETS,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &task,
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, StoredLogs), StoreError> {
        let garbled = |e| error::garbled(Self::OPERATION, e);
        let end = |column: &str| -> Result<u64, StoreError> {
            let end: i64 = row.try_get(column).map_err(garbled)?;
            Ok(end.unsigned_abs())
        };
        let offsets = LogOffsets { stdout: end("stdout")?, stderr: end("stderr")?, system: end("system")? };
        Ok((0, StoredLogs::Offsets(offsets)))
    }

    async fn refused(_: &Pools, _: &OffsetsAsk) -> Result<StoredLogs, StoreError> {
        Ok(StoredLogs::NotLive)
    }
}

/// A progress note to store.
#[derive(Debug)]
pub(super) struct ProgressAsk {
    pub(super) holder: Holder,
    pub(super) note: String,
}

/// Report progress.
pub(super) struct ReportProgress;

impl ReportProgress {
    /// Refuses a note that is too long, or no JSON.
    pub(super) fn check(note: &str) -> Result<(), StoreError> {
        let reason = if note.len() > PROGRESS_LIMIT {
            format!("the note is {} bytes long; at most {PROGRESS_LIMIT} are kept", note.len())
        } else if serde_json::from_str::<IgnoredAny>(note).is_err() || note.contains('\0') {
            "the note is not JSON".to_owned()
        } else {
            return Ok(());
        };
        Err(StoreError {
            operation: Self::OPERATION,
            kind: StoreErrorKind::Refused,
            applied: Applied::No,
            message: reason,
        })
    }
}

#[async_trait]
impl Verb for ReportProgress {
    type Ask = ProgressAsk;
    type Answer = Renewal;

    const OPERATION: &'static str = "report_progress";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &ProgressAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&ProgressAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        session
            .query(
                &REPORT_PROGRESS,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &h.epoch,
                    &ask.note,
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Renewal), StoreError> {
        let garbled = |e| error::garbled(Self::OPERATION, e);
        let remaining: i64 = row.try_get(0).map_err(garbled)?;
        let cancel_requested = row.try_get(1).map_err(garbled)?;
        Ok((0, Renewal::Held { remaining: micros(remaining), cancel_requested }))
    }

    async fn refused(_: &Pools, _: &ProgressAsk) -> Result<Renewal, StoreError> {
        Ok(Renewal::NotLive)
    }
}

/// Ask what became of a grant. Changes nothing, and only the primary may say.
pub(super) struct Reconcile;

#[async_trait]
impl Verb for Reconcile {
    type Ask = Holder;
    type Answer = Reconciliation;

    const OPERATION: &'static str = "reconcile";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &Holder) -> &Holder {
        ask
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&Holder]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [h] = asks else { return Ok(Vec::new()) };
        let owner = &h.owner;
        session
            .query(
                &RECONCILE,
                &[&h.job, &h.token, &owner.namespace.as_str(), &owner.worker.as_str(), &owner.process.0],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Reconciliation), StoreError> {
        let garbled = |e| error::garbled(Self::OPERATION, e);
        if row.try_get(0).map_err(garbled)? {
            return Err(StoreError {
                operation: Self::OPERATION,
                kind: StoreErrorKind::ReadOnly,
                applied: Applied::No,
                message: "a standby answered; only the primary knows".to_owned(),
            });
        }
        let remaining: i64 = row.try_get(2).map_err(garbled)?;
        let answer = match row.try_get(1).map_err(garbled)? {
            false => Reconciliation::Changed,
            true if remaining > 0 => Reconciliation::Live { remaining: micros(remaining) },
            true => Reconciliation::Expired,
        };
        Ok((0, answer))
    }

    async fn refused(_: &Pools, _: &Holder) -> Result<Reconciliation, StoreError> {
        Err(error::garbled(Self::OPERATION, "no row"))
    }
}

/// What became of a grant. "Expired" is not believed at once: an extension may have been committed after the
/// statement's snapshot, or be about to be. Its row is waited for, and then it is asked again.
pub(super) async fn reconcile(pools: &Pools, h: &Holder) -> Result<Reconciliation, StoreError> {
    let session = pools.session(Reconcile::LANE, Reconcile::OPERATION).await?;
    let look = async |session: &Session| Reconcile::put(session, &[h]).await;
    let rows = pools.finish(Reconcile::OPERATION, session, look).await?;
    let row = rows.first().ok_or_else(|| error::garbled(Reconcile::OPERATION, "no row"))?;
    match Reconcile::read(row)? {
        (_, Reconciliation::Expired) => alone::<Reconcile>(pools, h).await,
        (_, answer) => Ok(answer),
    }
}
