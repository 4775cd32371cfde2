//! The log of a recipe: one event recorded under a live lease, a child submitted with it, and pages of it read.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{Epoch, Failure, FailureKind, JobId, JobState, NewJob, WorkerId},
    error::{Applied, StoreError, StoreErrorKind},
    ports::recipe::{
        Event, EventBody, JsonText, MAX_CHILD_DEPTH, MAX_LOG_BYTES, MAX_LOG_EVENTS, NewEvent, Recorded,
        TaskOutcome,
    },
};
use sha2::{Digest, Sha256};
use tokio_postgres::Row;

use super::{
    error,
    owners::Holder,
    pool::{Lane, Pools},
    protected::{self, LEASE, Verb},
    row::Columns,
    session::{Param, Session},
    sql_file::{Sql, sql},
    submit::Asked,
};

pub(super) static RECORD: Sql = sql!(
    "record",
    [
        INT8, UUID, TEXT, TEXT, UUID, TEXT, BYTEA, TEXT, TEXT, TEXT, INT4, TEXT, TEXT, TEXT, TEXT, TEXT,
        TEXT, INT4, INT8, TEXT, INT4, INT8, INT8
    ]
);
static START_CHILD: Sql = sql!(
    "start_child",
    [
        INT8,
        UUID,
        TEXT,
        TEXT,
        UUID,
        TEXT,
        BYTEA,
        BOOL,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        INT4,
        TIMESTAMPTZ,
        TEXT,
        INT8,
        TEXT,
        TEXT,
        INT4,
        INT8,
        INT8,
        INT8,
    ]
);

/// An event to record.
#[derive(Debug)]
pub(super) struct RecordAsk {
    pub(super) holder: Holder,
    pub(super) path: String,
    pub(super) event: NewEvent,
}

impl RecordAsk {
    fn hash(&self) -> Vec<u8> {
        Sha256::digest(self.path.as_bytes()).to_vec()
    }

    fn bytes(&self) -> i32 {
        i32::try_from(self.path.len() + self.event.known_bytes()).unwrap_or(i32::MAX)
    }
}

/// Records the event. What was in the way of a first try (a repeat of this call still on its way, a row that somebody
/// holds) is out of it for a second one, which begins with the lease's row locked.
pub(super) async fn record(pools: &Pools, ask: &RecordAsk) -> Result<Recorded, StoreError> {
    let answer = match protected::single::<Record>(pools, ask).await {
        Err(e)
            if e.applied == Applied::No
                && matches!(e.kind, StoreErrorKind::Refused | StoreErrorKind::RowLocked) =>
        {
            protected::alone::<Record>(pools, ask).await
        }
        answer => answer,
    }?;
    Ok(match answer {
        Answer::Standing(event) if event.body.says(&ask.event) => Recorded::Recorded(event),
        Answer::Standing(event) => Recorded::Conflict(event),
        Answer::Other(recorded) => recorded,
    })
}

/// What the statement says.
pub(super) enum Answer {
    /// An event of this name stands already.
    Standing(Box<Event>),
    Other(Recorded),
}

/// Record an event.
pub(super) struct Record;

#[async_trait]
impl Verb for Record {
    type Ask = RecordAsk;
    type Answer = Answer;

    const OPERATION: &'static str = "record";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &RecordAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&RecordAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        match &ask.event {
            NewEvent::StartChild { job, cancel_with_parent } => {
                put_child(session, ask, job, *cancel_with_parent).await
            }
            _ => put_event(session, ask).await,
        }
    }

    fn read(row: &Row) -> Result<(i64, Answer), StoreError> {
        let columns = Columns::new(Self::OPERATION, row);
        let answer = match columns.get::<&str>("verdict")? {
            "standing" => Answer::Standing(Box::new(event(columns)?)),
            "recorded" => Answer::Other(Recorded::Recorded(Box::new(event(columns)?))),
            "not_yet" => Answer::Other(Recorded::NotYet),
            "events" => Answer::Other(Recorded::Full { what: "events", limit: MAX_LOG_EVENTS }),
            "bytes" => Answer::Other(Recorded::Full { what: "bytes", limit: MAX_LOG_BYTES }),
            "not_begun" => Answer::Other(Recorded::Refused {
                code: "not_begun",
                message: "no timer was set, or no child started, at this path".to_owned(),
            }),
            _ => Answer::Other(Recorded::Refused {
                code: refusal(columns.get("refused")?)?,
                message: columns.get::<Option<String>>("reason")?.unwrap_or_default(),
            }),
        };
        Ok((0, answer))
    }

    async fn refused(_: &Pools, _: &RecordAsk) -> Result<Answer, StoreError> {
        Ok(Answer::Other(Recorded::NotLive))
    }
}

fn refusal(code: Option<&str>) -> Result<&'static str, StoreError> {
    [
        "would_deadlock",
        "too_deep",
        "invalid",
        "idempotency_conflict",
        "workflow_not_found",
        "workflow_terminated",
    ]
    .into_iter()
    .find(|known| Some(*known) == code)
    .ok_or_else(|| error::garbled("record", format!("a child that was refused as {code:?}")))
}

/// The columns of a task; null for every other sort.
#[derive(Default)]
struct Task<'a> {
    op: Option<&'a str>,
    input_hash: Option<&'a str>,
    attempt: Option<i32>,
    outcome: Option<&'static str>,
    output: Option<&'a str>,
    directive: Option<&'a str>,
    failure: Option<&'a Failure>,
}

impl<'a> Task<'a> {
    fn of(event: &'a NewEvent) -> Self {
        let NewEvent::Task { op, input_hash, attempt, outcome, directive } = event else {
            return Self::default();
        };
        let (word, output, failure) = match outcome {
            TaskOutcome::Succeeded { output } => ("succeeded", Some(&**output), None),
            TaskOutcome::Failed(failure) => ("failed", None, Some(failure)),
            TaskOutcome::Canceled => ("canceled", None, None),
        };
        Self {
            op: Some(op),
            input_hash: Some(input_hash),
            attempt: Some(*attempt),
            outcome: Some(word),
            output,
            directive: directive.as_deref(),
            failure,
        }
    }
}

async fn put_event(session: &Session, ask: &RecordAsk) -> Result<Vec<Row>, tokio_postgres::Error> {
    let (h, owner) = (&ask.holder, &ask.holder.owner);
    let task = Task::of(&ask.event);
    let after: Option<i64> = match &ask.event {
        NewEvent::TimerSet { after } => Some(super::end::millis(*after).saturating_mul(1000)),
        _ => None,
    };
    let name = match &ask.event {
        NewEvent::TakeSignal { name } => Some(name.as_str()),
        _ => None,
    };
    session
        .query(
            &RECORD,
            &[
                &h.job,
                &h.token,
                &owner.namespace.as_str(),
                &owner.worker.as_str(),
                &owner.process.0,
                &ask.path,
                &ask.hash(),
                &ask.event.sort(),
                &task.op,
                &task.input_hash,
                &task.attempt,
                &task.outcome,
                &task.output,
                &task.directive,
                &task.failure.map(|f| f.kind.as_str()),
                &task.failure.map(|f| f.code.as_str()),
                &task.failure.map(|f| f.message.as_str()),
                &task.failure.and_then(|f| f.exit_code),
                &after,
                &name,
                &ask.bytes(),
                &MAX_LOG_EVENTS,
                &MAX_LOG_BYTES,
            ],
        )
        .await
}

async fn put_child(
    session: &Session,
    ask: &RecordAsk,
    child: &NewJob,
    cancel_with_parent: bool,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let (h, owner) = (&ask.holder, &ask.holder.owner);
    let asked = Asked::of(child);
    let (hash, bytes) = (ask.hash(), ask.bytes());
    let [kind, definition, payload, _, workflow, priority, run_at, key, timeout, retry, trace] =
        asked.params();
    let namespace = owner.namespace.as_str();
    let worker = owner.worker.as_str();
    let params: [Param<'_>; 22] = [
        &h.job,
        &h.token,
        &namespace,
        &worker,
        &owner.process.0,
        &ask.path,
        &hash,
        &cancel_with_parent,
        kind,
        definition,
        payload,
        workflow,
        priority,
        run_at,
        key,
        timeout,
        retry,
        trace,
        &bytes,
        &MAX_LOG_EVENTS,
        &MAX_LOG_BYTES,
        &MAX_CHILD_DEPTH,
    ];
    session.query(&START_CHILD, &params).await
}

/// Reads an event from the columns that `record.sql`, `start_child.sql` and `recipe_events.sql` have in common.
pub(super) fn event(columns: Columns<'_>) -> Result<Event, StoreError> {
    let json = |column: &str| -> Result<Option<JsonText>, StoreError> {
        Ok(columns.get::<Option<&str>>(column)?.map(JsonText::from))
    };
    let text = |column: &str| -> Result<String, StoreError> {
        Ok(columns.get::<Option<String>>(column)?.unwrap_or_default())
    };
    let number = |column: &str| -> Result<i64, StoreError> {
        Ok(columns.get::<Option<i64>>(column)?.unwrap_or_default())
    };
    let failure = |kind: Option<FailureKind>| -> Result<Option<Failure>, StoreError> {
        let Some(kind) = kind else { return Ok(None) };
        let mut failure = Failure::new(kind, text("failure_code")?, text("failure_message")?);
        failure.exit_code = columns.get("exit_code")?;
        Ok(Some(failure))
    };
    let missing = |what: &str| error::garbled("record", format!("an event without its {what}"));
    let body = match columns.get::<&str>("sort")? {
        "task" => EventBody::Task {
            op: text("op")?,
            input_hash: text("input_hash")?,
            attempt: columns.get::<Option<i32>>("attempt")?.unwrap_or_default(),
            outcome: match columns.get::<Option<&str>>("outcome")? {
                Some("succeeded") => {
                    TaskOutcome::Succeeded { output: json("value")?.ok_or_else(|| missing("result"))? }
                }
                Some("failed") => TaskOutcome::Failed(
                    failure(columns.parse_opt("failure_kind")?)?.ok_or_else(|| missing("failure"))?,
                ),
                _ => TaskOutcome::Canceled,
            },
            directive: json("directive")?,
        },
        "timer_set" => EventBody::TimerSet {
            deadline: columns.get::<Option<DateTime<Utc>>>("deadline")?.ok_or_else(|| missing("deadline"))?,
        },
        "timer_fired" => EventBody::TimerFired,
        "signal" => EventBody::Signal {
            name: text("name")?,
            id: number("signal_id")?,
            data: json("value")?.ok_or_else(|| missing("data"))?,
        },
        "child_started" => EventBody::ChildStarted { job: JobId(number("child_id")?) },
        "child_ended" => EventBody::ChildEnded {
            job: JobId(number("child_id")?),
            state: columns.parse_opt::<JobState>("outcome")?.ok_or_else(|| missing("state"))?,
            output: json("value")?,
            failure: failure(columns.parse_opt("failure_kind")?)?,
        },
        "reopened" => {
            let ranges = json("value")?.ok_or_else(|| missing("list of what counts as unfinished"))?;
            EventBody::Reopened {
                again: serde_json::from_str(&ranges).map_err(|e| error::garbled("record", e.to_string()))?,
            }
        }
        other => return Err(error::garbled("record", format!("an event of sort {other:?}"))),
    };
    let worker = match columns.get::<Option<&str>>("worker_id")? {
        Some(name) => Some(WorkerId::new(name).map_err(|e| error::garbled("record", e))?),
        None => None,
    };
    Ok(Event {
        ordinal: columns.get("ordinal")?,
        path: columns.get("path")?,
        body,
        at: columns.get("recorded_at")?,
        worker,
        epoch: Epoch(columns.get("epoch")?),
    })
}
