//! Every setting, its default and its limits; read once, validated once.
//!
//! Precedence: flag > environment > file > default. Durations are written `30s`, `250ms`.

use std::{path::PathBuf, time::Duration};

use leasehold_actors::domain::{Namespace, WorkerId};

/// How to reach the database.
#[derive(Clone)]
pub struct DatabaseSettings {
    /// `DATABASE_URL`: a libpq URL or key/value string. Never shown: it may carry a password.
    pub url: String,
    /// `DATABASE_POOLER`: whether a transaction-pooling pgbouncer stands between; `Auto` finds out.
    pub pooler: Pooler,
    /// `DATABASE_POOL_SIZE`: most connections of the general pool (renewals and LISTEN have their own).
    pub pool_size: usize,
    /// `DATABASE_CA_FILE`: extra trusted certificates for `sslmode=require` and above.
    pub ca_file: Option<PathBuf>,
    /// `EXECUTION_WORKER_STORE_TIMEOUT`: the longest that one call may take.
    pub store_timeout: Duration,
    /// Shown in `pg_stat_activity`.
    pub application_name: String,
}

/// Whether prepared statements and LISTEN can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooler {
    /// Begin with prepared statements; leave them for good once the server says that it knows none.
    #[default]
    Auto,
    /// Connections are direct, or pooled by session.
    None,
    /// A transaction pooler: no prepared statements, no LISTEN.
    Transaction,
}

/// What a worker process does and how fast.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// `LEASEHOLD_NAMESPACE`.
    pub namespace: Namespace,
    /// `EXECUTION_WORKER_ID`; default the host's name.
    pub worker_id: WorkerId,
    /// `EXECUTION_WORKER_CONCURRENCY`: handoff permits, so jobs held at once.
    pub concurrency: u32,
    /// `EXECUTION_WORKER_LEASE_DURATION`, 2 s to 15 min.
    pub lease: Duration,
    /// `EXECUTION_WORKER_LEASE_RENEW_INTERVAL`.
    pub renew_interval: Duration,
    /// `EXECUTION_WORKER_SAFETY_MARGIN`; default a tenth of the lease.
    pub safety_margin: Duration,
    /// `EXECUTION_WORKER_STORE_TIMEOUT`: the longest that one call may take.
    pub store_timeout: Duration,
    /// `EXECUTION_WORKER_POLL_INTERVAL`: the longest wait between claims when no hint comes.
    pub poll_interval: Duration,
    /// `EXECUTION_WORKER_CLAIM_BATCH`: most jobs in one claim.
    pub claim_batch: u32,
    /// `EXECUTION_WORKER_SHUTDOWN_GRACE`.
    pub shutdown_grace: Duration,
    /// `EXECUTION_WORKER_SYSTEM_RETRY_LIMIT`.
    pub system_retry_limit: i32,
    /// `EXECUTION_WORKER_SYSTEM_RETRY_BACKOFF`.
    pub system_retry_backoff: Duration,
    /// `EXECUTION_WORKER_ON_STUCK`: `true` ends the process when a workload cannot be ended.
    pub exit_on_stuck: bool,
    /// `HEARTBEAT_ALLOW`: networks and hosts that HEARTBEAT probes may reach although they are special.
    pub heartbeat_allow: Vec<String>,
    /// `RUNTIME_TLS_CA`, `RUNTIME_TLS_CERT`, `RUNTIME_TLS_KEY`: how to speak to engines over TLS.
    pub runtime_tls: Option<TlsFiles>,
}

/// What the agent of a runtime node does.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// `LEASEHOLD_NAMESPACE`.
    pub namespace: Namespace,
    /// `RUNTIME_NODE_ID`; default the host's name.
    pub node_id: String,
    /// `RUNTIME_DOCKER_ENDPOINT`: `unix:///var/run/docker.sock`, `tcp://host:2376`.
    pub endpoint: String,
    /// `RUNTIME_MAX_CONCURRENCY`: slots.
    pub max_concurrency: u32,
    /// TLS files for a tcp endpoint.
    pub tls: Option<TlsFiles>,
    /// `RUNTIME_HEARTBEAT_INTERVAL`.
    pub heartbeat_interval: Duration,
    /// `RUNTIME_HEARTBEAT_TTL`: how long a heartbeat keeps a node fresh.
    pub heartbeat_ttl: Duration,
    /// `RUNTIME_LOST_AFTER`: how long a silent node is waited for.
    pub lost_after: Duration,
    /// `EXECUTION_WORKER_SHUTDOWN_GRACE`: how long a drain waits for running jobs.
    pub drain_grace: Duration,
}

/// Client certificate, key and authority, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Trusted authority.
    pub ca: PathBuf,
    /// Client certificate.
    pub cert: PathBuf,
    /// Client key.
    pub key: PathBuf,
}

impl std::fmt::Debug for DatabaseSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatabaseSettings")
            .field("pooler", &self.pooler)
            .field("pool_size", &self.pool_size)
            .finish_non_exhaustive()
    }
}
