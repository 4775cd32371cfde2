//! What people and programs read of jobs: rows for listings, a job with its whole story, and its output.
//!
//! The JSON keys of these types are part of the command line's and the API's contract. No token is here. The
//! statements behind them are in `read_jobs`.

use chrono::{DateTime, Utc};
use leasehold_actors::domain::{Epoch, FailureKind, JobId, JobKind, JobState, Namespace};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::execution_view::{AdmissionRefused, ExecutionView, Fits};

/// One page of a listing, and where the next one begins.
#[derive(Debug, Clone, Serialize)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Hand this to the next call; none after the last page.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// A page of `limit` rows out of one row more, where there is one.
    pub(super) fn cut(mut items: Vec<T>, limit: i64, cursor: impl Fn(&T) -> String) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(cursor);
        Self { items, next }
    }
}

/// Which jobs to list. The default is: every job of a namespace, newest first, 50 a page.
#[derive(Debug, Clone)]
pub struct JobFilter {
    /// The tenant.
    pub namespace: Namespace,
    /// Only jobs in one of these states; empty means all.
    pub states: Vec<JobState>,
    /// Only jobs of this kind.
    pub kind: Option<JobKind>,
    /// Only runs of this workflow (`adhoc` for runs without one).
    pub workflow: Option<String>,
    /// Rows a page, 1 to 1000.
    pub limit: u32,
    /// [`Page::next`] of the page before.
    pub after: Option<String>,
    /// Oldest first instead of newest first.
    pub oldest_first: bool,
    /// Only recipe jobs that wait, and whose needs a worker like this satisfies. Jobs of other kinds need nothing of
    /// their worker, and are left out.
    pub fits: Option<Fits>,
}

impl JobFilter {
    /// Everything in a namespace.
    #[must_use]
    pub fn all(namespace: Namespace) -> Self {
        Self {
            namespace,
            states: Vec::new(),
            kind: None,
            workflow: None,
            limit: 50,
            after: None,
            oldest_first: false,
            fits: None,
        }
    }
}

/// The code by which a lease's history tells a handoff; the message says what was needed, and what was there.
pub const HANDOFF: &str = "handoff";

/// Why a job, or one of its leases, failed or was canceled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRow {
    /// Whose fault; none for a cancel.
    pub kind: Option<FailureKind>,
    /// A stable word or an exit code.
    pub code: Option<String>,
    /// For people.
    pub message: Option<String>,
}

/// A job as a listing shows it.
#[derive(Debug, Clone, Serialize)]
pub struct JobRow {
    /// The job.
    pub id: JobId,
    /// The tenant.
    pub namespace: Namespace,
    /// Where it stands.
    pub state: JobState,
    /// What executes it.
    pub kind: JobKind,
    /// The workflow that it is a run of, or `adhoc`.
    pub workflow: String,
    /// HANDLER: the handler's name; RECIPE: the job type; otherwise empty.
    pub route: String,
    /// Higher runs first.
    pub priority: i16,
    /// The generation that it was scheduled under.
    pub generation: i64,
    /// How often it became QUEUED.
    pub dispatch_attempt: i32,
    /// How often it was claimed as a new attempt.
    pub attempt: i32,
    /// The epoch of its latest grant; 0 before the first.
    pub epoch: Epoch,
    /// The program's exit code, once it ended.
    pub exit_code: Option<i32>,
    /// Terminal: why it failed or was canceled. PENDING or QUEUED after a failure: that failure.
    pub failure: Option<FailureRow>,
    /// The runtime node of the latest lease.
    pub node: Option<String>,
    /// The container of the latest lease.
    pub container: Option<String>,
    /// The worker of the latest lease.
    pub worker: Option<String>,
    /// When it was submitted.
    pub submitted_at: DateTime<Utc>,
    /// PENDING or QUEUED: since or until when; none while a paused workflow holds it.
    pub due_at: Option<DateTime<Utc>>,
    /// PENDING: the run of the same workflow that must end first.
    pub blocked_by: Option<JobId>,
    /// When the latest lease was granted.
    pub started_at: Option<DateTime<Utc>>,
    /// RUNNING: when its lease expires unless it is renewed.
    pub lease_expires_at: Option<DateTime<Utc>>,
    /// RUNNING: when somebody asked for its cancel.
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// RECIPE: what its next task needs, while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionView>,
    /// RECIPE: workers did not admit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_refused: Option<AdmissionRefused>,
}

/// One lease of a job: the live one, or one that ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeaseRow {
    /// The fencing epoch.
    pub epoch: Epoch,
    /// The attempt that it served.
    pub attempt: i32,
    /// The worker's name.
    pub worker: String,
    /// The worker's process.
    pub process: String,
    /// Where the job ran.
    pub node: Option<String>,
    /// In which container.
    pub container: Option<String>,
    /// When it began.
    pub granted_at: DateTime<Utc>,
    /// When it ended; none while it is held.
    pub ended_at: Option<DateTime<Utc>>,
    /// `running` while it is held; otherwise `completed`, `failed`, `retrying`, `canceled`, `released`,
    /// `rescheduled` or `expired`.
    pub how: String,
    /// How often it was renewed.
    pub renewals: i32,
    /// While it is held: when it expires.
    pub expires_at: Option<DateTime<Utc>>,
    /// The program's exit code.
    pub exit_code: Option<i32>,
    /// Why the attempt failed, or why the job was given back: [`HANDOFF`] is the code of one that was handed off.
    pub failure: Option<FailureRow>,
    /// `retrying`, `rescheduled`: when the job became due again.
    pub due_at: Option<DateTime<Utc>>,
}

/// A person reopened a job that had ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReopenRow {
    /// When.
    pub reopened_at: DateTime<Utc>,
    /// How it had ended.
    pub state: JobState,
    /// When it had ended.
    pub ended_at: DateTime<Utc>,
    /// Attempts up to then.
    pub attempt: i32,
    /// Exit code, as it stood then.
    pub exit_code: Option<i32>,
    /// Why it had failed or was canceled.
    pub failure: Option<FailureRow>,
}

/// A job with all that is known of it.
#[derive(Debug, Clone, Serialize)]
pub struct JobDetail {
    /// What a listing shows.
    #[serde(flatten)]
    pub row: JobRow,
    /// What submission said, byte for byte.
    pub definition: Box<RawValue>,
    /// The client's data, byte for byte.
    pub payload: Box<RawValue>,
    /// Rises with every change of the payload.
    pub payload_revision: i64,
    /// The result, where the job gave one.
    pub output: Option<Box<RawValue>>,
    /// The latest progress note of the workload.
    pub progress: Option<Box<RawValue>>,
    /// The longest that one attempt may run.
    pub timeout_ms: Option<i64>,
    /// USER, SYSTEM and TIMEOUT failures so far.
    pub failures: FailureCounts,
    /// Claims in a row that ended by expiry.
    pub losses: i32,
    /// The submitter's `traceparent`.
    pub trace_parent: Option<String>,
    /// Every lease, oldest first; the last one may still be held.
    pub leases: Vec<LeaseRow>,
    /// Every time that a person reopened it, oldest first.
    pub reopened: Vec<ReopenRow>,
    /// Bytes of output that are kept.
    pub log_bytes: i64,
}

/// Failures so far, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FailureCounts {
    /// The job's own.
    pub user: i32,
    /// The surroundings'.
    pub system: i32,
    /// Ran too long.
    pub timeout: i32,
}

/// A stored piece of a job's output.
#[derive(Debug, Clone, Serialize)]
pub struct LogRow {
    /// Order of storage; resume a follow after the last one seen.
    pub seq: i64,
    /// The grant that wrote it.
    pub epoch: Epoch,
    /// `stdout`, `stderr` or `system` (Leasehold's own remarks).
    pub stream: LogStreamName,
    /// How many bytes of that stream and epoch came before.
    pub first_byte: i64,
    /// When it was stored.
    pub logged_at: DateTime<Utc>,
    /// The bytes as the program wrote them. In JSON: `data` as text when it is UTF-8, else `data_base64`.
    #[serde(flatten, serialize_with = "serialize_bytes")]
    pub data: Vec<u8>,
}

/// A stream's name in JSON and on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogStreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Leasehold's own remarks.
    System,
}

fn serialize_bytes<S: serde::Serializer>(data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    use base64::Engine as _;
    use serde::ser::SerializeMap as _;
    let mut map = serializer.serialize_map(Some(1))?;
    match std::str::from_utf8(data) {
        Ok(text) => map.serialize_entry("data", text)?,
        Err(_) => {
            map.serialize_entry("data_base64", &base64::engine::general_purpose::STANDARD.encode(data))?
        }
    }
    map.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_bytes_are_text_where_they_can_be() {
        let row = |data: &[u8]| LogRow {
            seq: 1,
            epoch: Epoch(1),
            stream: LogStreamName::Stderr,
            first_byte: 0,
            logged_at: DateTime::UNIX_EPOCH,
            data: data.to_vec(),
        };
        let json = serde_json::to_value(row("é\n".as_bytes())).expect("plain data");
        assert_eq!((json["data"].as_str(), json["stream"].as_str()), (Some("é\n"), Some("stderr")));
        let json = serde_json::to_value(row(&[0xff, 0xfe])).expect("plain data");
        assert_eq!((json["data"].as_str(), json["data_base64"].as_str()), (None, Some("//4=")));
    }
}
