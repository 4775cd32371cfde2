//! The statements behind [`super::read`]: pages by key, a job in one snapshot, output after a given batch.

use leasehold_actors::{
    domain::{Epoch, JobId, JobKind, JobState, Namespace},
    error::{Applied, StoreError, StoreErrorKind},
};
use tokio_postgres::Row;

use super::{
    PgStore, error,
    execution_view::Fits,
    read::{FailureCounts, FailureRow, JobDetail, JobFilter, JobRow, LogRow, LogStreamName, Page},
    row::Columns,
    session::Param,
    sql_file::{Sql, sql},
};

const LIST_NEWEST: Sql = sql!("list_jobs_newest", [TEXT, TEXT_ARRAY, INT8, TEXT, TEXT, INT8]);
const LIST_OLDEST: Sql = sql!("list_jobs_oldest", [TEXT, TEXT_ARRAY, INT8, TEXT, TEXT, INT8]);
const SHOW: Sql = sql!("show_job", [TEXT, INT8]);
const LOGS: Sql = sql!("read_logs", [TEXT, INT8, INT8, INT8]);

impl PgStore {
    /// One page of jobs. A job that exists throughout appears on exactly one page, whatever is submitted or
    /// ends meanwhile.
    ///
    /// # Errors
    /// [`StoreError`]; kind `Refused` when the cursor is none, or when nothing is said that needs could be compared with.
    pub async fn list_jobs(&self, filter: &JobFilter) -> Result<Page<JobRow>, StoreError> {
        match &filter.fits {
            Some(fits) => self.list_fitting(filter, fits).await,
            None => self.page_of_jobs(filter).await,
        }
    }

    /// Goes on from page to page until one is filled with jobs that fit, and one more is known, or there are no more: so
    /// that a cursor is handed out exactly where another page has something.
    async fn list_fitting(&self, filter: &JobFilter, fits: &Fits) -> Result<Page<JobRow>, StoreError> {
        if !fits.allocation.is_comparable() {
            return Err(refused(
                "needs can only be compared with cpu, memory, ephemeral-storage, platform, image or image-digest",
            ));
        }
        let waiting = [JobState::Pending, JobState::Queued];
        let states: Vec<JobState> =
            waiting.into_iter().filter(|s| filter.states.is_empty() || filter.states.contains(s)).collect();
        if states.is_empty() || filter.kind.is_some_and(|kind| kind != JobKind::Recipe) {
            return Ok(Page { items: Vec::new(), next: None });
        }
        let limit = filter.limit.clamp(1, 1000);
        let mut look = JobFilter {
            states,
            kind: Some(JobKind::Recipe),
            limit: limit.saturating_add(1).clamp(100, 1000),
            fits: None,
            ..filter.clone()
        };
        let mut found = Vec::new();
        loop {
            let page = self.page_of_jobs(&look).await?;
            let fitting =
                page.items.into_iter().filter(|row| row.execution.as_ref().is_some_and(|v| fits.takes(v)));
            found.extend(fitting);
            match page.next {
                Some(next) if found.len() <= limit as usize => look.after = Some(next),
                _ => return Ok(Page::cut(found, i64::from(limit), |row| row.id.to_string())),
            }
        }
    }

    async fn page_of_jobs(&self, filter: &JobFilter) -> Result<Page<JobRow>, StoreError> {
        let limit = i64::from(filter.limit.clamp(1, 1000));
        let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        let (sql, from) = if filter.oldest_first { (&LIST_OLDEST, 0) } else { (&LIST_NEWEST, i64::MAX) };
        let after = match &filter.after {
            None => from,
            Some(cursor) => cursor.parse::<i64>().map_err(|_| bad_cursor())?,
        };
        let params: [Param<'_>; 6] = [
            &filter.namespace.as_str(),
            &states,
            &after,
            &filter.kind.map(|kind| kind.as_str()),
            &filter.workflow,
            &(limit + 1),
        ];
        let rows = self.call("list_jobs", sql, &params).await?;
        let items = rows.iter().map(job_row).collect::<Result<Vec<_>, _>>()?;
        let mut page = Page::cut(items, limit, |row: &JobRow| row.id.to_string());
        self.add_execution(&filter.namespace, &mut page.items).await?;
        Ok(page)
    }

    /// One job with its whole story.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn show_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<JobDetail>, StoreError> {
        let rows = self.call("show_job", &SHOW, &[&namespace.as_str(), &job.0]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        if Columns::new("show_job", row).get::<Option<&str>>("state")?.is_none() {
            return Err(error::missing_row("show_job", job));
        }
        let mut detail = job_detail(row)?;
        self.add_execution(namespace, std::slice::from_mut(&mut detail.row)).await?;
        Ok(Some(detail))
    }

    /// A job's output after the batch `after_seq` (0 for all): at most `limit` batches (1 to 10,000), and
    /// not much more than 4 MiB. An empty answer means that there is nothing newer yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn read_logs(
        &self,
        namespace: &Namespace,
        job: JobId,
        after_seq: i64,
        limit: u32,
    ) -> Result<Vec<LogRow>, StoreError> {
        let limit = i64::from(limit.clamp(1, 10_000));
        let params: [Param<'_>; 4] = [&namespace.as_str(), &job.0, &after_seq, &limit];
        let rows = self.call("read_logs", &LOGS, &params).await?;
        rows.iter().map(log_row).collect()
    }
}

fn bad_cursor() -> StoreError {
    refused("that is no cursor; pass `next` of the page before, as it came")
}

fn refused(message: &str) -> StoreError {
    StoreError {
        operation: "list_jobs",
        kind: StoreErrorKind::Refused,
        applied: Applied::No,
        message: message.to_owned(),
    }
}

fn job_row(row: &Row) -> Result<JobRow, StoreError> {
    let columns = Columns::new("list_jobs", row);
    let failure = FailureRow {
        kind: columns.parse_opt("failure_kind")?,
        code: columns.get("failure_code")?,
        message: columns.get("failure_message")?,
    };
    let failed = failure.kind.is_some() || failure.code.is_some();
    Ok(JobRow {
        id: JobId(columns.get("job_id")?),
        namespace: columns.parse("namespace")?,
        state: columns.parse("state")?,
        kind: columns.parse("kind")?,
        workflow: columns.get("workflow")?,
        route: columns.get("route")?,
        priority: columns.get("priority")?,
        generation: columns.get("generation")?,
        dispatch_attempt: columns.get("dispatch_attempt")?,
        attempt: columns.get("attempt")?,
        epoch: Epoch(columns.get("epoch")?),
        exit_code: columns.get("exit_code")?,
        failure: failed.then_some(failure),
        node: columns.get("node_id")?,
        container: columns.get("container_id")?,
        worker: columns.get("worker_id")?,
        submitted_at: columns.get("submitted_at")?,
        due_at: columns.instant("due_at")?,
        blocked_by: columns.get::<Option<i64>>("blocked_by")?.map(JobId),
        started_at: columns.instant("granted_at")?,
        lease_expires_at: columns.instant("lease_expires_at")?,
        cancel_requested_at: columns.instant("cancel_requested_at")?,
        ended_at: columns.instant("ended_at")?,
        execution: None,
        admission_refused: None,
    })
}

fn job_detail(row: &Row) -> Result<JobDetail, StoreError> {
    let columns = Columns::new("show_job", row);
    Ok(JobDetail {
        row: job_row(row)?,
        definition: columns.raw("definition")?,
        payload: columns.raw("payload")?,
        payload_revision: columns.get("payload_revision")?,
        output: columns.raw_opt("output")?,
        progress: columns.raw_opt("progress")?,
        timeout_ms: columns.get("timeout_ms")?,
        failures: FailureCounts {
            user: columns.get("failures_user")?,
            system: columns.get("failures_system")?,
            timeout: columns.get("failures_timeout")?,
        },
        losses: columns.get("losses")?,
        trace_parent: columns.get("trace_parent")?,
        leases: columns.json("leases")?,
        reopened: columns.json("reopened")?,
        log_bytes: columns.get("log_bytes")?,
    })
}

fn log_row(row: &Row) -> Result<LogRow, StoreError> {
    let columns = Columns::new("read_logs", row);
    Ok(LogRow {
        seq: columns.get("seq")?,
        epoch: Epoch(columns.get("epoch")?),
        stream: match columns.get::<i16>("stream")? {
            1 => LogStreamName::Stdout,
            2 => LogStreamName::Stderr,
            3 => LogStreamName::System,
            other => return Err(error::garbled("read_logs", format!("stream {other}"))),
        },
        first_byte: columns.get("first_byte")?,
        logged_at: columns.get("logged_at")?,
        data: columns.get("data")?,
    })
}
