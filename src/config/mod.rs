//! Every setting, its default and its limits; read once, validated once.
//!
//! Precedence: flag > environment > file > default. Durations are written `30s`, `250ms`. [`table`] is the one
//! list; [`Effective`] holds what is in force; the structs here are what the parts of the program are given.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_actors::domain::{Namespace, WorkerId, execution::Allocation};

mod database_url;
mod rules;
mod sources;
pub mod table;
#[cfg(test)]
mod tests;
mod value;

pub use database_url::masked as masked_database_url;
pub use sources::{Effective, EffectiveRow, FILE_VARIABLE, Origin, Sources};

use table::{Key, Setting};

/// A setting that cannot be used: one line that names it, its value, what is allowed, and the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {message}")]
pub struct ConfigError {
    /// The setting, file key or variable at fault.
    pub setting: String,
    /// What is wrong and what to do; never a secret.
    pub message: String,
}

impl ConfigError {
    fn new(row: &Setting, text: Option<&str>, origin: &Origin, reason: impl AsRef<str>) -> Self {
        let shown = match (text, row.kind) {
            (Some(_), table::Kind::DatabaseUrl) | (None, _) => "the value".to_owned(),
            (Some(text), _) => {
                let cut: String = text.chars().take(60).collect();
                format!("{cut:?}{}", if cut.len() < text.len() { "…" } else { "" })
            }
        };
        let from = match origin {
            Origin::Flag => format!("flag --{}", row.flag),
            Origin::File(path) => format!("file {}", sources::show_path(path)),
            other => other.to_string(),
        };
        let message = format!("{shown} ({from}) {}; allowed: {}", reason.as_ref(), row.allowed());
        Self { setting: row.name.to_owned(), message }
    }

    fn of_file(by: &str, path: &Path, reason: impl AsRef<str>) -> Self {
        Self { setting: by.to_owned(), message: format!("{} {}", sources::show_path(path), reason.as_ref()) }
    }

    /// A syntax error, with its line; the text of the file is not repeated, since it may hold a password.
    fn of_toml(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let line =
            error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let reason = error.message().lines().next().unwrap_or("is no TOML").to_owned();
        Self {
            setting: format!("{}:{line}", sources::show_path(path)),
            message: format!("{reason}; write KEY = \"VALUE\", one a line"),
        }
    }

    fn unknown_key(path: &Path, key: &str) -> Self {
        let hint = sources::nearest_key(key)
            .map_or_else(|| "see `leasehold config`".to_owned(), |near| format!("did you mean `{near}`?"));
        Self {
            setting: format!("{}", key.escape_debug()),
            message: format!("unknown key in {}; {hint}", sources::show_path(path)),
        }
    }

    fn relation(setting: &str, message: String) -> Self {
        Self { setting: setting.to_owned(), message }
    }

    /// A setting that must be given for this command.
    fn missing(key: Key, message: &str) -> Self {
        Self { setting: table::setting(key).name.to_owned(), message: message.to_owned() }
    }
}

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
    /// `EXECUTION_WORKER_RECOVERY_INTERVAL`: the longest wait between two looks for expired leases.
    pub recovery_interval: Duration,
    /// `EXECUTION_WORKER_RECOVERY_BATCH_SIZE`: most expired leases that one statement takes over.
    pub recovery_batch: u32,
    /// `EXECUTION_WORKER_RECOVERY_PERMITS`: jobs recovered at once, on top of the concurrency; default an eighth of it.
    pub recovery_permits: u32,
    /// `EXECUTION_WORKER_LOSS_LIMIT`: lost leases in a row that end a job.
    pub loss_limit: i32,
    /// `RECOVERY_GIVE_UP`: how long a cleanup is tried before its engine counts as unavailable.
    pub recovery_give_up: Duration,
    /// `EXECUTION_WORKER_ON_STUCK`: `true` ends the process when a workload cannot be ended.
    pub exit_on_stuck: bool,
    /// `HEARTBEAT_ALLOW`: networks and hosts that HEARTBEAT probes may reach although they are special.
    pub heartbeat_allow: Vec<String>,
    /// `HEARTBEAT_CA_FILE`: authorities that HEARTBEAT probes trust beside the operating system's.
    pub heartbeat_ca_file: Option<PathBuf>,
    /// `EXECUTION_WORKER_ALLOW_COMMANDS`: recipes may start programs in the worker's own environment.
    pub allow_commands: bool,
    /// `EXECUTION_WORKER_SECRETS`: `NAME=FILE`, or `NAME` of a variable. Read when the worker is built.
    pub secrets: Vec<String>,
    /// `RUNTIME_TLS_CA`, `RUNTIME_TLS_CERT`, `RUNTIME_TLS_KEY`: how to speak to engines over TLS.
    pub runtime_tls: Option<TlsFiles>,
    /// `EXECUTION_ALLOCATION_…`: what this worker's own environment has; what is not set is unknown.
    pub allocation: Allocation,
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
    /// `RUNTIME_ORPHAN_INTERVAL`: how often containers that no claim stands behind are looked for.
    pub orphan_interval: Duration,
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

impl Effective {
    /// How to reach the database.
    ///
    /// # Errors
    /// [`ConfigError`] when no database is named.
    pub fn database(&self, application: &str) -> Result<DatabaseSettings, ConfigError> {
        let url = self.text(Key::DatabaseUrl).ok_or_else(|| {
            ConfigError::missing(
                Key::DatabaseUrl,
                "is not set, and no `leasehold dev` runs in .leasehold/dev; set it, pass --database-url, or start \
                 `leasehold dev`",
            )
        })?;
        Ok(DatabaseSettings {
            url: url.to_owned(),
            pooler: match self.text(Key::DatabasePooler) {
                Some("none") => Pooler::None,
                Some("transaction") => Pooler::Transaction,
                _ => Pooler::Auto,
            },
            pool_size: self.count(Key::DatabasePoolSize).map_or(8, |n| n as usize),
            ca_file: self.path(Key::DatabaseCaFile),
            store_timeout: self.duration(Key::StoreTimeout).unwrap_or(Duration::from_secs(3)),
            application_name: application.to_owned(),
        })
    }

    /// The same for a command that a person waits for: it owes no lease, so that it may be patient.
    ///
    /// # Errors
    /// As [`Effective::database`].
    pub fn database_for_command(&self, application: &str) -> Result<DatabaseSettings, ConfigError> {
        let mut settings = self.database(application)?;
        if !self.is_given(Key::StoreTimeout) {
            settings.store_timeout = Duration::from_secs(10);
        }
        settings.pool_size = settings.pool_size.min(2);
        Ok(settings)
    }

    /// The tenant.
    ///
    /// # Panics
    /// Never: the value was checked when it was read.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        let name = self.text(Key::Namespace).expect("the namespace has a default");
        Namespace::new(name).expect("names are checked by the same rule when they are read")
    }

    /// What a worker does; the start-up rule is part of it.
    ///
    /// # Errors
    /// [`ConfigError`] when the settings do not go together.
    ///
    /// # Panics
    /// Never: every setting asked for here has a default.
    pub fn worker(&self) -> Result<WorkerSettings, ConfigError> {
        let duration = |key| self.duration(key).expect("every duration of a worker has a default");
        let count = |key| self.count(key).expect("every count of a worker has a default");
        let settings = WorkerSettings {
            namespace: self.namespace(),
            worker_id: WorkerId::new(self.text(Key::WorkerId).expect("the worker's name has a default"))
                .expect("names are checked by the same rule when they are read"),
            concurrency: count(Key::Concurrency),
            lease: duration(Key::LeaseDuration),
            renew_interval: duration(Key::RenewInterval),
            safety_margin: duration(Key::SafetyMargin),
            store_timeout: duration(Key::StoreTimeout),
            poll_interval: duration(Key::PollInterval),
            claim_batch: count(Key::ClaimBatch),
            shutdown_grace: duration(Key::ShutdownGrace),
            system_retry_limit: i32::try_from(count(Key::SystemRetryLimit)).unwrap_or(i32::MAX),
            system_retry_backoff: duration(Key::SystemRetryBackoff),
            recovery_interval: duration(Key::RecoveryInterval),
            recovery_batch: count(Key::RecoveryBatchSize),
            recovery_permits: count(Key::RecoveryPermits),
            loss_limit: i32::try_from(count(Key::LossLimit)).unwrap_or(i32::MAX),
            recovery_give_up: duration(Key::RecoveryGiveUp),
            exit_on_stuck: self.text(Key::OnStuck) == Some("exit"),
            heartbeat_allow: self.list(Key::HeartbeatAllow),
            heartbeat_ca_file: self.path(Key::HeartbeatCaFile),
            allow_commands: self.text(Key::AllowCommands) == Some("true"),
            secrets: self.list(Key::Secrets),
            runtime_tls: self.tls()?,
            allocation: self.allocation(),
        };
        settings.check()?;
        if let Err(e) = crate::workload::egress::EgressPolicy::new(&settings.heartbeat_allow) {
            let message = format!(
                "{:?} is no address, network or host; write 10.0.0.0/8, db.internal or 10.1.2.3:8080",
                e.rule
            );
            return Err(ConfigError::relation("HEARTBEAT_ALLOW", message));
        }
        Ok(settings)
    }

    /// What this process's own environment has, normalised; never guessed from the host.
    ///
    /// # Panics
    /// Never: every value was checked when it was read.
    #[must_use]
    pub fn allocation(&self) -> Allocation {
        let mut allocation = Allocation::default();
        for row in table::TABLE {
            if let (table::Kind::Fact(fact), Some(text)) = (row.kind, self.text(row.key)) {
                allocation.set(fact, text).expect("facts are checked by the same rule when they are read");
            }
        }
        allocation
    }

    /// What the agent of a runtime node does.
    ///
    /// # Errors
    /// [`ConfigError`] when the settings do not go together.
    ///
    /// # Panics
    /// Never: every setting asked for here has a default.
    pub fn node(&self) -> Result<NodeSettings, ConfigError> {
        let duration = |key| self.duration(key).expect("every duration of a node has a default");
        let settings = NodeSettings {
            namespace: self.namespace(),
            node_id: self.text(Key::NodeId).expect("the node's name has a default").to_owned(),
            endpoint: self.text(Key::DockerEndpoint).expect("the endpoint has a default").to_owned(),
            max_concurrency: self.count(Key::MaxConcurrency).expect("the slots have a default"),
            tls: self.tls()?,
            heartbeat_interval: duration(Key::NodeHeartbeatInterval),
            heartbeat_ttl: duration(Key::NodeHeartbeatTtl),
            lost_after: duration(Key::NodeLostAfter),
            orphan_interval: duration(Key::OrphanInterval),
            drain_grace: duration(Key::ShutdownGrace),
        };
        settings.check()?;
        Ok(settings)
    }

    /// All three TLS files, or none.
    fn tls(&self) -> Result<Option<TlsFiles>, ConfigError> {
        match (self.path(Key::TlsCa), self.path(Key::TlsCert), self.path(Key::TlsKey)) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => Ok(Some(TlsFiles { ca, cert, key })),
            (ca, cert, _) => {
                let missing = match (ca, cert) {
                    (None, _) => Key::TlsCa,
                    (_, None) => Key::TlsCert,
                    _ => Key::TlsKey,
                };
                Err(ConfigError::missing(
                    missing,
                    "is not set; an engine over TLS needs RUNTIME_TLS_CA, RUNTIME_TLS_CERT and RUNTIME_TLS_KEY together",
                ))
            }
        }
    }
}
