//! The one table of settings: name, flag, default, allowed values, a line of help.
//!
//! Everything else about settings is derived from it: the flags of the commands, the keys of the file (the
//! name in lower case), the checks, `leasehold config`, and the table in `docs/configuration.md`.

use std::time::Duration;

use leasehold_actors::domain::execution::Fact;

/// Names a row of [`TABLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is described by the help line of its row")]
pub enum Key {
    DatabaseUrl,
    DatabasePooler,
    DatabasePoolSize,
    DatabaseCaFile,
    StoreTimeout,
    Namespace,
    WorkerId,
    Concurrency,
    LeaseDuration,
    RenewInterval,
    SafetyMargin,
    PollInterval,
    ClaimBatch,
    ShutdownGrace,
    SystemRetryLimit,
    SystemRetryBackoff,
    RecoveryInterval,
    RecoveryBatchSize,
    RecoveryPermits,
    LossLimit,
    RecoveryGiveUp,
    OnStuck,
    HeartbeatAllow,
    HeartbeatCaFile,
    AllowCommands,
    Secrets,
    NodeId,
    DockerEndpoint,
    MaxConcurrency,
    TlsCa,
    TlsCert,
    TlsKey,
    NodeHeartbeatInterval,
    NodeHeartbeatTtl,
    NodeLostAfter,
    OrphanInterval,
    AllocationCpu,
    AllocationMemory,
    AllocationEphemeralStorage,
    AllocationPlatform,
    AllocationImage,
    AllocationImageDigest,
    AllocationImageId,
}

/// Which commands a setting is a flag of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every command that speaks to the database.
    Everywhere,
    /// `worker` and `dev`.
    Worker,
    /// `node` and `dev`.
    Node,
    /// `worker`, `node` and `dev`.
    Fleet,
    /// Every command that runs tasks, and `allocation`.
    Allocation,
}

/// What a value must look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A time span between two bounds, both allowed.
    Duration(Duration, Duration),
    /// A whole number between two bounds, both allowed.
    Count(u32, u32),
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// A name without control characters, at most 200 bytes.
    Name,
    /// Some text.
    Text,
    /// A list, separated by commas.
    List,
    /// The path of a file that can be read.
    File,
    /// Something that is said of this worker's environment.
    Fact(Fact),
    /// A database address, which may hold a password and is never shown whole.
    DatabaseUrl,
}

/// What holds when nobody said anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// This text.
    Is(&'static str),
    /// The host's name.
    HostName,
    /// Computed from other settings; the words say how.
    Derived(&'static str),
    /// Nothing.
    Unset,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Which one.
    pub key: Key,
    /// The environment variable; the file's key is the same in lower case.
    pub name: &'static str,
    /// The flag, without the dashes.
    pub flag: &'static str,
    /// The commands that have the flag.
    pub scope: Scope,
    /// What is allowed.
    pub kind: Kind,
    /// The default.
    pub fallback: Fallback,
    /// One line for people.
    pub help: &'static str,
}

impl Setting {
    /// The key in the TOML file.
    #[must_use]
    pub fn file_key(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    /// The default as text for people.
    #[must_use]
    pub fn default_text(&self) -> &'static str {
        match self.fallback {
            Fallback::Is(text) | Fallback::Derived(text) => text,
            Fallback::HostName => "the host's name",
            Fallback::Unset => "none",
        }
    }

    /// What is allowed, as text for people.
    #[must_use]
    pub fn allowed(&self) -> String {
        match self.kind {
            Kind::Duration(min, max) => format!(
                "a duration from {} to {}, such as 30s or 250ms",
                humantime::format_duration(min),
                humantime::format_duration(max)
            ),
            Kind::Count(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Name => "a name of at most 200 bytes without control characters".to_owned(),
            Kind::Text => "text without control characters".to_owned(),
            Kind::List => "items separated by commas".to_owned(),
            Kind::File => "the path of a readable file".to_owned(),
            Kind::Fact(fact) => fact.allowed().to_owned(),
            Kind::DatabaseUrl => "postgres://USER@HOST:PORT/DATABASE or host=… user=… dbname=…".to_owned(),
        }
    }
}

/// A [`Kind::Choice`] whose flag needs no value.
pub const SWITCH: Kind = Choice(&["true", "false"]);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
const DAY: u64 = 86_400;

macro_rules! row {
    ($key:ident, $name:literal, $flag:literal, $scope:ident, $kind:expr, $fallback:expr, $help:literal) => {
        Setting {
            key: Key::$key,
            name: $name,
            flag: $flag,
            scope: Scope::$scope,
            kind: $kind,
            fallback: $fallback,
            help: $help,
        }
    };
}

use Fallback::{Derived, HostName, Is, Unset};
use Kind::{Choice, Count, File, List, Name, Text};

/// Every setting, in the order of [`Key`].
pub const TABLE: &[Setting] = &[
    row!(
        DatabaseUrl,
        "DATABASE_URL",
        "database-url",
        Everywhere,
        Kind::DatabaseUrl,
        Unset,
        "The PostgreSQL database; several servers of one cluster separated by commas; without it, a running `leasehold dev` of .leasehold/dev is used"
    ),
    row!(
        DatabasePooler,
        "DATABASE_POOLER",
        "database-pooler",
        Everywhere,
        Choice(&["auto", "none", "transaction"]),
        Is("auto"),
        "Whether a transaction-pooling pgbouncer stands between; auto finds out"
    ),
    row!(
        DatabasePoolSize,
        "DATABASE_POOL_SIZE",
        "database-pool-size",
        Everywhere,
        Count(1, 1000),
        Is("8"),
        "Most connections of the general pool; renewals and LISTEN have their own"
    ),
    row!(
        DatabaseCaFile,
        "DATABASE_CA_FILE",
        "database-ca-file",
        Everywhere,
        File,
        Unset,
        "More trusted certificates (PEM) for sslmode=require and above"
    ),
    row!(
        StoreTimeout,
        "EXECUTION_WORKER_STORE_TIMEOUT",
        "store-timeout",
        Everywhere,
        Kind::Duration(ms(50), secs(300)),
        Derived("a tenth of the lease, at most 5s"),
        "The longest that one call to the database may take"
    ),
    row!(
        Namespace,
        "LEASEHOLD_NAMESPACE",
        "namespace",
        Everywhere,
        Name,
        Is("default"),
        "The tenant whose jobs, workflows and nodes are meant"
    ),
    row!(WorkerId, "EXECUTION_WORKER_ID", "worker-id", Worker, Name, HostName, "The worker's name"),
    row!(
        Concurrency,
        "EXECUTION_WORKER_CONCURRENCY",
        "concurrency",
        Worker,
        Count(1, 10_000),
        Is("16"),
        "Handoff permits: how many jobs this worker holds at once"
    ),
    row!(
        LeaseDuration,
        "EXECUTION_WORKER_LEASE_DURATION",
        "lease-duration",
        Worker,
        Kind::Duration(secs(2), secs(900)),
        Is("30s"),
        "How long a lease lasts without a renewal"
    ),
    row!(
        RenewInterval,
        "EXECUTION_WORKER_LEASE_RENEW_INTERVAL",
        "renew-interval",
        Worker,
        Kind::Duration(ms(100), secs(600)),
        Is("10s"),
        "How often a lease is renewed"
    ),
    row!(
        SafetyMargin,
        "EXECUTION_WORKER_SAFETY_MARGIN",
        "safety-margin",
        Worker,
        Kind::Duration(ms(50), secs(300)),
        Derived("a tenth of the lease"),
        "How long before the expiry a workload must be dead"
    ),
    row!(
        PollInterval,
        "EXECUTION_WORKER_POLL_INTERVAL",
        "poll-interval",
        Worker,
        Kind::Duration(ms(10), secs(300)),
        Is("1s"),
        "The longest wait between two claims when no notification comes"
    ),
    row!(
        ClaimBatch,
        "EXECUTION_WORKER_CLAIM_BATCH",
        "claim-batch",
        Worker,
        Count(1, 500),
        Is("64"),
        "Most jobs in one claim"
    ),
    row!(
        ShutdownGrace,
        "EXECUTION_WORKER_SHUTDOWN_GRACE",
        "shutdown-grace",
        Fleet,
        Kind::Duration(ms(1), secs(DAY)),
        Is("30s"),
        "How long running work may go on after SIGTERM"
    ),
    row!(
        SystemRetryLimit,
        "EXECUTION_WORKER_SYSTEM_RETRY_LIMIT",
        "system-retry-limit",
        Worker,
        Count(1, 1000),
        Is("3"),
        "SYSTEM failures that end a job whose own policy names no number"
    ),
    row!(
        SystemRetryBackoff,
        "EXECUTION_WORKER_SYSTEM_RETRY_BACKOFF",
        "system-retry-backoff",
        Worker,
        Kind::Duration(ms(1), secs(DAY)),
        Is("30s"),
        "First back-off of a job whose own policy names none; doubles, with jitter"
    ),
    row!(
        RecoveryInterval,
        "EXECUTION_WORKER_RECOVERY_INTERVAL",
        "recovery-interval",
        Worker,
        Kind::Duration(ms(100), secs(900)),
        Is("15s"),
        "The longest wait between two looks for expired leases; the next known expiry makes it shorter"
    ),
    row!(
        RecoveryBatchSize,
        "EXECUTION_WORKER_RECOVERY_BATCH_SIZE",
        "recovery-batch-size",
        Worker,
        Count(1, 500),
        Is("100"),
        "Most expired leases that one statement takes over"
    ),
    row!(
        RecoveryPermits,
        "EXECUTION_WORKER_RECOVERY_PERMITS",
        "recovery-permits",
        Worker,
        Count(1, 10_000),
        Derived("an eighth of the concurrency, at least 1"),
        "How many jobs are recovered at once, on top of the concurrency"
    ),
    row!(
        LossLimit,
        "EXECUTION_WORKER_LOSS_LIMIT",
        "loss-limit",
        Worker,
        Count(1, 1000),
        Is("3"),
        "Lost leases in a row that end a job as FAILED, code crash_loop"
    ),
    row!(
        RecoveryGiveUp,
        "RECOVERY_GIVE_UP",
        "recovery-give-up",
        Worker,
        Kind::Duration(secs(1), secs(7 * DAY)),
        Is("10m"),
        "How long the cleanup of a container is tried before its engine counts as unavailable"
    ),
    row!(
        OnStuck,
        "EXECUTION_WORKER_ON_STUCK",
        "on-stuck",
        Worker,
        Choice(&["report", "exit"]),
        Is("report"),
        "What to do when a workload cannot be ended"
    ),
    row!(
        HeartbeatAllow,
        "HEARTBEAT_ALLOW",
        "heartbeat-allow",
        Worker,
        List,
        Unset,
        "Networks (10.0.0.0/8), addresses and hosts that HEARTBEAT probes may reach although they are special"
    ),
    row!(
        HeartbeatCaFile,
        "HEARTBEAT_CA_FILE",
        "heartbeat-ca-file",
        Worker,
        File,
        Unset,
        "Certificate authorities that HEARTBEAT probes trust beside the operating system's (PEM)"
    ),
    row!(
        AllowCommands,
        "EXECUTION_WORKER_ALLOW_COMMANDS",
        "allow-commands",
        Worker,
        SWITCH,
        Is("false"),
        "Whether recipes may start programs in this worker's own environment (op `command`)"
    ),
    row!(
        Secrets,
        "EXECUTION_WORKER_SECRETS",
        "secret",
        Worker,
        List,
        Unset,
        "Secrets for the ops of recipes: NAME=FILE, or NAME for the variable of that name"
    ),
    row!(NodeId, "RUNTIME_NODE_ID", "node-id", Node, Name, HostName, "The runtime node's name"),
    row!(
        DockerEndpoint,
        "RUNTIME_DOCKER_ENDPOINT",
        "docker-endpoint",
        Node,
        Text,
        Is("unix:///var/run/docker.sock"),
        "The Docker engine: unix:///PATH or tcp://HOST:PORT"
    ),
    row!(
        MaxConcurrency,
        "RUNTIME_MAX_CONCURRENCY",
        "max-concurrency",
        Node,
        Count(1, 10_000),
        Is("4"),
        "Slots: how many containers run on the node at once"
    ),
    row!(
        TlsCa,
        "RUNTIME_TLS_CA",
        "tls-ca",
        Fleet,
        File,
        Unset,
        "Trusted authority (PEM) of engines on tcp://"
    ),
    row!(
        TlsCert,
        "RUNTIME_TLS_CERT",
        "tls-cert",
        Fleet,
        File,
        Unset,
        "Client certificate (PEM) for engines on tcp://"
    ),
    row!(TlsKey, "RUNTIME_TLS_KEY", "tls-key", Fleet, File, Unset, "Client key (PEM) for engines on tcp://"),
    row!(
        NodeHeartbeatInterval,
        "RUNTIME_HEARTBEAT_INTERVAL",
        "heartbeat-interval",
        Node,
        Kind::Duration(ms(100), secs(3600)),
        Is("5s"),
        "How often the node says that it is there"
    ),
    row!(
        NodeHeartbeatTtl,
        "RUNTIME_HEARTBEAT_TTL",
        "heartbeat-ttl",
        Node,
        Kind::Duration(ms(200), secs(2 * 3600)),
        Is("15s"),
        "How long a heartbeat keeps the node fresh, so that jobs are placed on it"
    ),
    row!(
        NodeLostAfter,
        "RUNTIME_LOST_AFTER",
        "lost-after",
        Node,
        Kind::Duration(secs(1), secs(DAY)),
        Is("60s"),
        "How long a silent or UNHEALTHY node is waited for before its jobs count as lost"
    ),
    row!(
        OrphanInterval,
        "RUNTIME_ORPHAN_INTERVAL",
        "orphan-interval",
        Node,
        Kind::Duration(ms(100), secs(3600)),
        Is("30s"),
        "How often the node looks for containers that no claim stands behind"
    ),
    row!(
        AllocationCpu,
        "EXECUTION_ALLOCATION_CPU",
        "allocation-cpu",
        Allocation,
        Kind::Fact(Fact::Cpu),
        Unset,
        "The cpu that this worker's own environment has; tasks of recipes that need it run nowhere where it is unknown"
    ),
    row!(
        AllocationMemory,
        "EXECUTION_ALLOCATION_MEMORY",
        "allocation-memory",
        Allocation,
        Kind::Fact(Fact::Memory),
        Unset,
        "The memory that this worker's own environment has"
    ),
    row!(
        AllocationEphemeralStorage,
        "EXECUTION_ALLOCATION_EPHEMERAL_STORAGE",
        "allocation-ephemeral-storage",
        Allocation,
        Kind::Fact(Fact::EphemeralStorage),
        Unset,
        "The scratch space that this worker's own environment has"
    ),
    row!(
        AllocationPlatform,
        "EXECUTION_ALLOCATION_PLATFORM",
        "allocation-platform",
        Allocation,
        Kind::Fact(Fact::Platform),
        Unset,
        "The platform that this worker runs on"
    ),
    row!(
        AllocationImage,
        "EXECUTION_ALLOCATION_IMAGE",
        "allocation-image",
        Allocation,
        Kind::Fact(Fact::Image),
        Unset,
        "The reference that this worker's own image was launched by; a digest in it proves nothing"
    ),
    row!(
        AllocationImageDigest,
        "EXECUTION_ALLOCATION_IMAGE_DIGEST",
        "allocation-image-digest",
        Allocation,
        Kind::Fact(Fact::ImageDigest),
        Unset,
        "The digest of the manifest that this worker's own image really has"
    ),
    row!(
        AllocationImageId,
        "EXECUTION_ALLOCATION_IMAGE_ID",
        "allocation-image-id",
        Allocation,
        Kind::Fact(Fact::ImageId),
        Unset,
        "The engine's id of this worker's own image; shown, and compared with nothing"
    ),
];

/// The row of a key.
#[must_use]
pub fn setting(key: Key) -> &'static Setting {
    // The tests hold that the table stands in the order of the keys.
    &TABLE[key as usize]
}
