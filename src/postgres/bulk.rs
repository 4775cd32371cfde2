//! Submission of many jobs at once: everything is checked first, ids are reserved, and the rows go in by COPY,
//! all in one transaction.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    pin::pin,
};

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use futures_util::SinkExt as _;
use leasehold_actors::domain::{InvalidDefinition, JobId, NewJob, RetryPolicy};
use tokio_postgres::Row;

use super::{
    PgStore,
    session::Session,
    sql_file::{Sql, sql},
    submit::{Asked, SubmitError},
    transaction::{Stop, transaction},
};
use crate::submission;

const WORKFLOWS: Sql = sql!("bulk_workflows", [TEXT_ARRAY, TEXT_ARRAY]);
const RESERVE: Sql = sql!("bulk_reserve", [INT8]);
const TAKE_KEYS: Sql = sql!(
    "bulk_take_keys",
    [
        INT8_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        INT4_ARRAY,
        TIMESTAMPTZ_ARRAY,
        INT8_ARRAY,
        INT4_ARRAY,
        INT4_ARRAY,
        INT4_ARRAY,
        INT8_ARRAY,
        INT8_ARRAY
    ]
);
const READ_KEYS: Sql =
    Sql { name: "bulk_read_keys", text: include_str!("sql/bulk_read_keys.sql"), types: TAKE_KEYS.types };
pub(super) const NOTIFY: Sql = sql!("notify", [TEXT]);

const COPY_JOBS: &str = "copy leasehold.jobs (job_id, namespace, workflow, generation, kind, route, definition, payload, \
     priority, timeout_ms, max_user, max_system, max_timeout, backoff_ms, backoff_cap_ms, trace_parent) from stdin";
const COPY_READY: &str = "copy leasehold.ready (job_id, namespace, due_at, kind, route, workflow, overlap_limit, rank, \
     generation, dispatch_attempt) from stdin";
const COPY_WAITING: &str = "copy leasehold.waiting (job_id, namespace, due_at, held_due_at, kind, route, workflow, \
     overlap_limit, rank, generation) from stdin";

/// A bulk may take this many times as long as a single call.
const PATIENCE: u32 = 20;
/// Bytes handed to the connection at once.
const CHUNK: usize = 64 * 1024;

impl PgStore {
    /// Submits many jobs: all of them, or none. The ids come in the order of the requests; a request whose
    /// idempotency key stands for an earlier job brings that job's id.
    ///
    /// # Errors
    /// [`SubmitError`]; a broken rule names its request: `jobs[3].payload`.
    pub async fn submit_bulk(&self, jobs: Vec<NewJob>) -> Result<Vec<JobId>, SubmitError> {
        for (n, job) in jobs.iter().enumerate() {
            submission::validate(job).map_err(|broken| {
                InvalidDefinition::new(format!("jobs[{n}].{}", broken.field), broken.reason)
            })?;
        }
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        for (n, job) in jobs.iter().enumerate() {
            Box::pin(self.check_inputs(job)).await.map_err(|error| match error {
                SubmitError::Invalid(broken) => {
                    InvalidDefinition::new(format!("jobs[{n}].{}", broken.field), broken.reason).into()
                }
                error => error,
            })?;
        }
        transaction!(self, "submit_bulk", PATIENCE, session => insert(session, &jobs))
    }
}

async fn insert(session: &Session, jobs: &[NewJob]) -> Result<Vec<JobId>, Stop<SubmitError>> {
    let asked: Vec<Asked<'_>> = jobs.iter().map(Asked::of).collect();
    let (mut ids, clock) = reserve(session, jobs.len()).await?;
    let reserved = ids.clone();
    take_keys(session, jobs, &asked, &mut ids).await?;
    // Not before the keys: whoever waits at a key must not hold up changes of workflows.
    let flows = workflows(session, &asked).await?;

    let (mut rows, mut ready, mut waiting) = (Copy::default(), Copy::default(), Copy::default());
    for (n, (job, asked)) in jobs.iter().zip(&asked).enumerate() {
        if ids[n] == reserved[n] {
            let flow = match asked.workflow {
                Some(name) => {
                    flows.get(&(asked.namespace, name)).expect("every workflow asked for was found")
                }
                None => &Flow::ad_hoc(job, asked),
            };
            rows.job(ids[n], job, asked, flow);
            let due = job.run_at.map_or(clock, |at| at.max(clock));
            if flow.paused || due > clock {
                waiting.waiting(ids[n], asked, flow, due);
            } else {
                ready.ready(ids[n], asked, flow, due);
            }
        }
    }
    send(session, COPY_JOBS, &rows).await?;
    if !ready.text.is_empty() {
        send(session, COPY_READY, &ready).await?;
        session.query(&NOTIFY, &[&"leasehold_ready"]).await?;
    }
    if !waiting.text.is_empty() {
        send(session, COPY_WAITING, &waiting).await?;
        session.query(&NOTIFY, &[&"leasehold_waiting"]).await?;
    }
    Ok(ids.into_iter().map(JobId).collect())
}

async fn reserve(session: &Session, count: usize) -> Result<(Vec<i64>, DateTime<Utc>), Stop<SubmitError>> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let rows = session.query(&RESERVE, &[&count]).await?;
    let ids = rows.iter().map(|row| row.try_get("job_id")).collect::<Result<Vec<i64>, _>>()?;
    let clock = rows.first().map(|row| row.try_get("clock")).transpose()?.unwrap_or_default();
    Ok((ids, clock))
}

/// Takes the idempotency keys; where one stands for an earlier job already, that job's id replaces the
/// reserved one.
async fn take_keys(
    session: &Session,
    jobs: &[NewJob],
    asked: &[Asked<'_>],
    ids: &mut [i64],
) -> Result<(), Stop<SubmitError>> {
    let keyed: Vec<usize> = (0..asked.len()).filter(|n| asked[*n].key.is_some()).collect();
    if keyed.is_empty() {
        return Ok(());
    }
    macro_rules! column {
        ($n:ident => $value:expr) => {
            keyed.iter().map(|&$n| $value).collect::<Vec<_>>()
        };
    }
    let retry = |n: usize| -> &RetryPolicy { &jobs[n].retry };
    let (reserved, namespace, key) =
        (column!(n => ids[n]), column!(n => asked[n].namespace), column!(n => asked[n].key));
    let (kind, definition, payload) = (
        column!(n => asked[n].kind),
        column!(n => asked[n].definition.as_deref()),
        column!(n => asked[n].payload),
    );
    let (workflow, priority, run_at, timeout_ms) = (
        column!(n => asked[n].workflow),
        column!(n => asked[n].priority),
        column!(n => asked[n].run_at),
        column!(n => asked[n].timeout_ms),
    );
    let (user, system, timeout) = (
        column!(n => retry(n).max_user),
        column!(n => retry(n).max_system),
        column!(n => retry(n).max_timeout),
    );
    let (backoff, cap) = (column!(n => retry(n).backoff_ms), column!(n => retry(n).backoff_cap_ms));
    let params: [super::session::Param<'_>; 15] = [
        &reserved,
        &namespace,
        &key,
        &kind,
        &definition,
        &payload,
        &workflow,
        &priority,
        &run_at,
        &timeout_ms,
        &user,
        &system,
        &timeout,
        &backoff,
        &cap,
    ];
    session.query(&TAKE_KEYS, &params).await?;
    // In a younger snapshot: a key that another submitter had taken is seen now, whoever waited for whom.
    let standing = session.query(&READ_KEYS, &params).await?;
    let mut by_reserved: HashMap<i64, (i64, bool)> = HashMap::with_capacity(standing.len());
    for row in &standing {
        by_reserved.insert(row.try_get("reserved")?, (row.try_get("job_id")?, row.try_get("same")?));
    }
    for n in keyed {
        match by_reserved.get(&ids[n]) {
            Some((job, true)) => ids[n] = *job,
            Some((job, false)) => {
                return Err(Stop::Refused(SubmitError::IdempotencyConflict { job: JobId(*job) }));
            }
            // Deleted by retention between the two statements: the reserved id stands.
            None => {}
        }
    }
    Ok(())
}

/// What a run takes from its workflow.
struct Flow {
    name: String,
    generation: i64,
    paused: bool,
    kind: String,
    route: String,
    definition: String,
    payload: String,
    priority: i16,
    overlap_limit: Option<i32>,
    timeout_ms: Option<i64>,
    retry: RetryPolicy,
}

impl Flow {
    fn ad_hoc(job: &NewJob, asked: &Asked<'_>) -> Self {
        Self {
            name: submission::AD_HOC.to_owned(),
            generation: 1,
            paused: false,
            kind: asked.kind.unwrap_or_default().to_owned(),
            route: job.definition.as_ref().map(|d| d.route().name).unwrap_or_default(),
            definition: asked.definition.clone().unwrap_or_default(),
            payload: "null".to_owned(),
            priority: 0,
            overlap_limit: None,
            timeout_ms: None,
            retry: RetryPolicy::default(),
        }
    }

    fn of_row(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            name: row.try_get("name")?,
            generation: row.try_get("generation")?,
            paused: row.try_get::<_, &str>("state")? == "PAUSED",
            kind: row.try_get("kind")?,
            route: row.try_get("route")?,
            definition: row.try_get("definition")?,
            payload: row.try_get("payload")?,
            priority: row.try_get("priority")?,
            overlap_limit: row.try_get("overlap_limit")?,
            timeout_ms: row.try_get("timeout_ms")?,
            retry: RetryPolicy {
                max_user: row.try_get("max_user")?,
                max_system: row.try_get("max_system")?,
                max_timeout: row.try_get("max_timeout")?,
                backoff_ms: row.try_get("backoff_ms")?,
                backoff_cap_ms: row.try_get("backoff_cap_ms")?,
            },
        })
    }
}

type Flows<'a> = BTreeMap<(&'a str, &'a str), Flow>;

/// The workflows of a bulk, locked in order; each must exist and take runs.
async fn workflows<'a>(session: &Session, asked: &[Asked<'a>]) -> Result<Flows<'a>, Stop<SubmitError>> {
    let mut names: Vec<(&str, &str)> =
        asked.iter().filter_map(|a| a.workflow.map(|name| (a.namespace, name))).collect();
    names.sort_unstable();
    names.dedup();
    let mut flows = Flows::new();
    if names.is_empty() {
        return Ok(flows);
    }
    let (namespaces, workflows): (Vec<&str>, Vec<&str>) = names.iter().copied().unzip();
    for row in session.query(&WORKFLOWS, &[&namespaces, &workflows]).await? {
        let found: (&str, &str) = (row.try_get("namespace")?, row.try_get("name")?);
        let Some(key) = names.iter().find(|name| **name == found) else { continue };
        if row.try_get::<_, &str>("state")? == "TERMINATED" {
            return Err(Stop::Refused(SubmitError::WorkflowTerminated { name: found.1.to_owned() }));
        }
        flows.insert(*key, Flow::of_row(&row)?);
    }
    match names.iter().find(|name| !flows.contains_key(*name)) {
        Some((_, name)) => Err(Stop::Refused(SubmitError::WorkflowNotFound { name: (*name).to_owned() })),
        None => Ok(flows),
    }
}

/// Rows in COPY's text format.
#[derive(Default)]
struct Copy {
    text: String,
}

impl Copy {
    fn job(&mut self, id: i64, job: &NewJob, asked: &Asked<'_>, flow: &Flow) {
        let retry = &job.retry;
        self.number(id);
        self.field(asked.namespace);
        self.field(&flow.name);
        self.number(flow.generation);
        self.field(&flow.kind);
        self.field(&flow.route);
        self.field(&flow.definition);
        self.field(asked.payload.unwrap_or(&flow.payload));
        self.number(priority(asked, flow));
        self.optional(asked.timeout_ms.or(flow.timeout_ms));
        self.optional(retry.max_user.or(flow.retry.max_user));
        self.optional(retry.max_system.or(flow.retry.max_system));
        self.optional(retry.max_timeout.or(flow.retry.max_timeout));
        self.optional(retry.backoff_ms.or(flow.retry.backoff_ms));
        self.optional(retry.backoff_cap_ms.or(flow.retry.backoff_cap_ms));
        self.optional(job.trace_parent.as_deref());
        self.end();
    }

    fn ready(&mut self, id: i64, asked: &Asked<'_>, flow: &Flow, due: DateTime<Utc>) {
        self.number(id);
        self.field(asked.namespace);
        self.time(due);
        self.route(asked, flow);
        // Queued at once: the first dispatch.
        self.number(1);
        self.end();
    }

    fn waiting(&mut self, id: i64, asked: &Asked<'_>, flow: &Flow, due: DateTime<Utc>) {
        self.number(id);
        self.field(asked.namespace);
        if flow.paused {
            self.field("infinity");
            self.time(due);
        } else {
            self.time(due);
            self.optional(None::<i64>);
        }
        self.route(asked, flow);
        self.end();
    }

    fn route(&mut self, asked: &Asked<'_>, flow: &Flow) {
        self.field(&flow.kind);
        self.field(&flow.route);
        self.field(&flow.name);
        self.optional(flow.overlap_limit);
        self.number(-priority(asked, flow));
        self.number(flow.generation);
    }

    fn separate(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\t');
        }
    }

    fn number(&mut self, value: impl Into<i64>) {
        self.separate();
        let _ = write!(self.text, "{}", value.into());
    }

    fn time(&mut self, at: DateTime<Utc>) {
        self.separate();
        self.text.push_str(&at.to_rfc3339_opts(SecondsFormat::Micros, true));
    }

    fn optional(&mut self, value: Option<impl ToString>) {
        match value {
            Some(value) => self.field(&value.to_string()),
            None => {
                self.separate();
                self.text.push_str("\\N");
            }
        }
    }

    fn field(&mut self, value: &str) {
        self.separate();
        for c in value.chars() {
            match c {
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                c => self.text.push(c),
            }
        }
    }

    fn end(&mut self) {
        self.text.push('\n');
    }
}

fn priority(asked: &Asked<'_>, flow: &Flow) -> i32 {
    asked.priority.unwrap_or_else(|| i32::from(flow.priority))
}

async fn send(session: &Session, statement: &str, rows: &Copy) -> Result<(), tokio_postgres::Error> {
    session
        .run(async |client| {
            let mut sink = pin!(client.copy_in::<_, Bytes>(statement).await?);
            for chunk in rows.text.as_bytes().chunks(CHUNK) {
                sink.send(Bytes::copy_from_slice(chunk)).await?;
            }
            sink.finish().await.map(|_| ())
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_text_keeps_every_character() {
        let mut rows = Copy::default();
        rows.number(7);
        rows.field("a\tb\\c\r\n\\N é");
        rows.field("");
        rows.optional(None::<i64>);
        rows.end();
        assert_eq!(rows.text, "7\ta\\tb\\\\c\\r\\n\\\\N é\t\t\\N\n");
    }
}
