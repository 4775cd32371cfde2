//! The runtime nodes of recipes' tasks: taken when a task starts, given back when it is over.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_actors::{
    domain::{ContainerId, Epoch, NodeId, TaskKey, execution::Requirements},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{
        Attach, Placement, RuntimeStanding, TaskContainer, TaskOccurrence, TaskPlace, TaskPlaced,
        TaskUnplaced,
    },
};
use serde::Deserialize;
use tokio_postgres::Row;

use super::{
    attach, error,
    owners::Holder,
    pool::{Lane, Pools},
    protected::{LEASE, Verb},
    renew::micros,
    session::Session,
    sql_file::{Sql, sql},
};

static PLACE_TASK: Sql = sql!(
    "place_task",
    [
        INT8, UUID, TEXT, TEXT, UUID, TEXT, TEXT, INT8, INT8, TEXT, TEXT_ARRAY, TEXT, TEXT, TEXT, INT4,
        TEXT_ARRAY, INT8
    ]
);
static ATTACH_TASK: Sql = sql!("attach_task", [INT8, UUID, TEXT, TEXT, UUID, TEXT, TEXT, TEXT]);
static UNPLACE_TASK: Sql = sql!("unplace_task", [INT8, UUID, TEXT, TEXT, UUID, TEXT]);

/// How often a slot is asked for that somebody else was quicker to take.
pub(super) const TRIES: u32 = 20;
/// The longest wait between two of these.
pub(super) const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// A task that needs a node.
#[derive(Debug)]
pub(super) struct PlaceAsk {
    pub(super) holder: Holder,
    pub(super) place: TaskPlace,
}

/// The answer to one try.
#[derive(Debug)]
pub(super) enum Tried {
    Answered(TaskPlaced),
    /// Somebody else took the slot in this moment.
    Contended,
}

/// Place a task.
pub(super) struct PlaceTask;

#[async_trait]
impl Verb for PlaceTask {
    type Ask = PlaceAsk;
    type Answer = Tried;

    const OPERATION: &'static str = "place_task";
    const LANE: Lane = Lane::General;

    fn holder(ask: &PlaceAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&PlaceAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        let (needs, occurrence) = (&ask.place.needs, &ask.place.occurrence);
        let os = needs.platform.as_ref().map(|platform| platform.os());
        let machines = needs.platform.as_ref().map(|platform| platform.engine_names()).unwrap_or_default();
        let words = format!("task {}{}", ask.place.path, words(&ask.place));
        session
            .query(
                &PLACE_TASK,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &ask.place.task.as_str(),
                    &ask.place.path,
                    &needs.cpu_millis,
                    &needs.memory_bytes,
                    &os,
                    &machines,
                    &words,
                    &occurrence.op,
                    &occurrence.input_hash,
                    &occurrence.attempt,
                    &occurrence.secrets,
                    &occurrence.log_quota_bytes,
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Tried), StoreError> {
        let garbled = |e| error::garbled(Self::OPERATION, e);
        let before: Option<bool> = row.try_get("placed_before").map_err(garbled)?;
        let (now, found): (bool, bool) =
            (row.try_get("placed_now").map_err(garbled)?, row.try_get("found").map_err(garbled)?);
        let answer = if before == Some(false) {
            TaskPlaced::Leftover
        } else if before.is_some() || now {
            let node: String = row.try_get("node_id").map_err(garbled)?;
            TaskPlaced::Placed(Placement {
                node: NodeId::new(node).map_err(|e| error::garbled(Self::OPERATION, e))?,
                incarnation: row.try_get("node_incarnation").map_err(garbled)?,
                endpoint: row.try_get("node_endpoint").map_err(garbled)?,
                engine_id: row.try_get("node_engine_id").map_err(garbled)?,
            })
        } else if found {
            return Ok((0, Tried::Contended));
        } else {
            TaskPlaced::NoNode {
                retry_at: row.try_get("retry_at").map_err(garbled)?,
                retry_in: micros(row.try_get("retry_in_us").map_err(garbled)?),
            }
        };
        Ok((0, Tried::Answered(answer)))
    }

    async fn refused(_: &Pools, _: &PlaceAsk) -> Result<Tried, StoreError> {
        Ok(Tried::Answered(TaskPlaced::NotLive))
    }
}

/// ` needs cpu=2,memory=4Gi`, or nothing.
fn words(place: &TaskPlace) -> String {
    let needs = Requirements {
        cpu_millis: place.needs.cpu_millis,
        memory_bytes: place.needs.memory_bytes,
        platform: place.needs.platform.clone(),
        ..Requirements::default()
    };
    let words = needs.to_string();
    if words.is_empty() { String::new() } else { format!(" (which needs {words})") }
}

/// Everybody else was quicker, again and again.
pub(super) fn contended() -> StoreError {
    StoreError {
        operation: PlaceTask::OPERATION,
        kind: StoreErrorKind::RowLocked,
        applied: Applied::No,
        message: "other tasks and jobs took every slot that was asked for".to_owned(),
    }
}

/// A task's container to record.
#[derive(Debug)]
pub(super) struct AttachTaskAsk {
    pub(super) holder: Holder,
    pub(super) task: TaskKey,
    pub(super) node: NodeId,
    pub(super) container: ContainerId,
}

/// Attach a task's container.
pub(super) struct AttachTask;

#[async_trait]
impl Verb for AttachTask {
    type Ask = AttachTaskAsk;
    type Answer = Attach;

    const OPERATION: &'static str = "attach_task";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &AttachTaskAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&AttachTaskAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        session
            .query(
                &ATTACH_TASK,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &ask.task.as_str(),
                    &ask.node.as_str(),
                    &ask.container.as_str(),
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Attach), StoreError> {
        attach::read_attach(Self::OPERATION, row)
    }

    async fn refused(_: &Pools, _: &AttachTaskAsk) -> Result<Attach, StoreError> {
        Ok(Attach::NotLive)
    }
}

/// A task that is over.
#[derive(Debug)]
pub(super) struct UnplaceAsk {
    pub(super) holder: Holder,
    pub(super) task: TaskKey,
}

/// Give a task's node back.
pub(super) struct UnplaceTask;

#[async_trait]
impl Verb for UnplaceTask {
    type Ask = UnplaceAsk;
    type Answer = TaskUnplaced;

    const OPERATION: &'static str = "unplace_task";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &UnplaceAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&UnplaceAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        session
            .query(
                &UNPLACE_TASK,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &ask.task.as_str(),
                ],
            )
            .await
    }

    fn read(_: &Row) -> Result<(i64, TaskUnplaced), StoreError> {
        Ok((0, TaskUnplaced::Done))
    }

    async fn refused(_: &Pools, _: &UnplaceAsk) -> Result<TaskUnplaced, StoreError> {
        Ok(TaskUnplaced::NotLive)
    }
}

/// A task as `recover.sql` tells of it.
#[derive(Deserialize)]
struct Told {
    task: TaskKey,
    path: String,
    epoch: i64,
    node: NodeId,
    incarnation: i64,
    endpoint: String,
    engine: String,
    container: Option<ContainerId>,
    op: Option<String>,
    input_hash: Option<String>,
    attempt: Option<i32>,
    secrets: Option<Vec<String>>,
    log_quota: Option<i64>,
    lost: bool,
}

impl Told {
    fn occurrence(&self) -> Option<TaskOccurrence> {
        Some(TaskOccurrence {
            op: self.op.clone()?,
            input_hash: self.input_hash.clone()?,
            attempt: self.attempt?,
            secrets: self.secrets.clone()?,
            log_quota_bytes: self.log_quota,
        })
    }
}

/// The tasks of a takeover: JSON, or nothing.
pub(super) fn read_tasks(json: Option<&str>) -> Result<Vec<TaskContainer>, serde_json::Error> {
    let told: Vec<Told> = json.map(serde_json::from_str).transpose()?.unwrap_or_default();
    let tasks = told.into_iter().map(|told| TaskContainer {
        occurrence: told.occurrence(),
        task: told.task,
        path: told.path,
        epoch: Epoch(told.epoch),
        placement: Placement {
            node: told.node,
            incarnation: told.incarnation,
            endpoint: told.endpoint,
            engine_id: told.engine,
        },
        container: told.container,
        runtime: if told.lost { RuntimeStanding::Unavailable } else { RuntimeStanding::Available },
    });
    Ok(tasks.collect())
}
