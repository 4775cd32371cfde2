//! The list of worker processes, for people only: no decision depends on it.

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{Namespace, WorkerId},
    error::StoreError,
    ports::Claimant,
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    PgStore,
    row::Columns,
    session::Param,
    sql_file::{Sql, sql},
};

const REGISTER: Sql = sql!("worker_register", [TEXT, TEXT, UUID, TEXT, INT4, TEXT]);
const SEEN: Sql = sql!("worker_seen", [TEXT, TEXT, UUID, TEXT, BOOL]);
const LIST: Sql = sql!("worker_list", [TEXT]);

/// What a worker process says when it starts.
#[derive(Debug, Clone)]
pub struct WorkerRegistration {
    /// Who it is.
    pub claimant: Claimant,
    /// The host that it runs on.
    pub host: String,
    /// Its handoff permits.
    pub concurrency: u32,
    /// Routes, permits by state, health: a JSON object for display.
    pub status: String,
}

/// A worker process as a listing shows it.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerRow {
    /// Its name.
    pub id: WorkerId,
    /// This life of it.
    pub process: String,
    /// The host that it runs on.
    pub host: String,
    /// Seen within the last 30 seconds and not stopped.
    pub alive: bool,
    /// Its handoff permits.
    pub concurrency: i32,
    /// Leases that it holds, counted from their rows.
    pub leases: i64,
    /// When the process started.
    pub started_at: DateTime<Utc>,
    /// When it last reported.
    pub seen_at: DateTime<Utc>,
    /// When it said that it stops.
    pub stopped_at: Option<DateTime<Utc>>,
    /// Its own words: routes, permits, health.
    pub status: Box<RawValue>,
}

impl PgStore {
    /// Puts a worker process on the list.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn worker_register(&self, worker: &WorkerRegistration) -> Result<(), StoreError> {
        let permits = i32::try_from(worker.concurrency).unwrap_or(i32::MAX);
        let params: [Param<'_>; 6] = [
            &worker.claimant.namespace.as_str(),
            &worker.claimant.worker.as_str(),
            &worker.claimant.process.0,
            &worker.host,
            &permits,
            &worker.status,
        ];
        self.call("worker_register", &REGISTER, &params).await.map(|_| ())
    }

    /// Says that a worker process is alive, with its status; `stopped` is its farewell. Worth a call every ten
    /// seconds or so.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn worker_seen(
        &self,
        claimant: &Claimant,
        status: &str,
        stopped: bool,
    ) -> Result<(), StoreError> {
        let params: [Param<'_>; 5] =
            [&claimant.namespace.as_str(), &claimant.worker.as_str(), &claimant.process.0, &status, &stopped];
        self.call("worker_seen", &SEEN, &params).await.map(|_| ())
    }

    /// Every worker process seen within a day, the living first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn worker_list(&self, namespace: &Namespace) -> Result<Vec<WorkerRow>, StoreError> {
        let rows = self.call("worker_list", &LIST, &[&namespace.as_str()]).await?;
        rows.iter()
            .map(|row| {
                let columns = Columns::new("worker_list", row);
                let process: uuid::Uuid = columns.get("process_id")?;
                Ok(WorkerRow {
                    id: columns.parse("worker_id")?,
                    process: process.to_string(),
                    host: columns.get("host")?,
                    alive: columns.get("alive")?,
                    concurrency: columns.get("concurrency")?,
                    leases: columns.get("leases")?,
                    started_at: columns.get("started_at")?,
                    seen_at: columns.get("seen_at")?,
                    stopped_at: columns.get("stopped_at")?,
                    status: columns.raw("status")?,
                })
            })
            .collect()
    }
}
