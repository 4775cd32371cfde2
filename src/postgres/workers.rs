//! The list of worker processes, for people only: no decision depends on it.

use chrono::{DateTime, Utc};
use leasehold_actors::{domain::WorkerId, ports::Claimant};
use serde::Serialize;
use serde_json::value::RawValue;

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
