//! Brings the schema up to date. Any number of processes may start at once: one migrates, the others wait.
//!
//! The lock is a transaction's advisory lock on a connection of its own, so that it also holds, and ends,
//! through a transaction pooler. The migrating connection waits only briefly for any table lock and then
//! starts over, because everybody else would queue up behind it; workers keep their leases meanwhile.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;

use super::{
    connect::{ConnectError, connect_plain},
    error,
};
use crate::config::DatabaseSettings;

mod embedded {
    #![allow(missing_docs, clippy::unwrap_used, reason = "written by a macro")]
    refinery::embed_migrations!("migrations");
}

/// refinery's own table, inside our schema.
const HISTORY: &str = "leasehold.schema_history";
/// "lease" on a telephone keypad, twice: nobody else's advisory lock.
const LOCK: i64 = 5_327_353_273;
/// The longest that [`run`] waits for other migrators, and for sessions that hold a table.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The longest that one attempt may hold everybody up behind its own lock request.
const TABLE_LOCK_WAIT: Duration = Duration::from_secs(2);

/// How the database's schema relates to this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaStatus {
    /// They fit.
    Current {
        /// The version.
        version: i32,
    },
    /// There is no schema yet.
    Missing,
    /// `leasehold migrate` has something to do.
    Behind {
        /// The database's version.
        version: i32,
        /// The program's version.
        latest: i32,
    },
    /// The database belongs to a newer program.
    Newer {
        /// The database's version.
        version: i32,
        /// The program's version.
        latest: i32,
    },
}

/// What `run` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationReport {
    /// The migrations that were applied now, in order: `V1__jobs_and_leases`.
    pub applied: Vec<String>,
    /// The version that the schema has now.
    pub version: i32,
}

/// Why the schema could not be brought up to date.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MigrateError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The database belongs to a newer program; nothing was changed.
    #[error(
        "the database's schema is version {version}, newer than this program's {latest}; use a newer leasehold"
    )]
    Newer {
        /// The database's version.
        version: i32,
        /// The program's version.
        latest: i32,
    },
    /// Somebody held a lock for too long; nothing was left half-done.
    #[error("gave up after {waited:?} waiting for {blocker}; end that session or try again")]
    Blocked {
        /// How long.
        waited: Duration,
        /// Who: process id, program and what it does.
        blocker: String,
    },
    /// A migration failed; it was rolled back.
    #[error("the schema could not be migrated: {0}")]
    Failed(String),
}

/// Applies what is missing. Waits for whoever is in the way for [`PATIENCE`] at most.
///
/// # Errors
/// [`MigrateError`]; what was not reported as applied has left no trace.
pub async fn run(settings: &DatabaseSettings) -> Result<MigrationReport, MigrateError> {
    run_within(settings, PATIENCE).await
}

/// As [`run`], with a patience of one's own.
///
/// # Errors
/// As [`run`].
pub async fn run_within(
    settings: &DatabaseSettings,
    patience: Duration,
) -> Result<MigrationReport, MigrateError> {
    let started = Instant::now();
    let keeper = connect_plain(settings).await?;
    keeper.batch_execute("begin").await.map_err(|e| failed(&e))?;
    take_lock(&keeper, patience).await?;

    let mut migrator = connect_plain(settings).await?;
    let report = loop {
        let mut blocker = Blocker::default();
        match attempt(&mut migrator, &keeper, &mut blocker).await {
            Ok(report) => break report,
            Err(Stopped::Refused(e)) => return Err(e),
            Err(Stopped::Blocked) if started.elapsed() < patience => {}
            Err(Stopped::Blocked) => {
                return Err(MigrateError::Blocked { waited: started.elapsed(), blocker: blocker.describe() });
            }
        }
    };
    keeper.batch_execute("commit").await.map_err(|e| failed(&e))?;
    let applied = report.applied_migrations();
    Ok(MigrationReport { applied: applied.iter().map(ToString::to_string).collect(), version: latest() })
}

/// Looks, and changes nothing.
///
/// # Errors
/// [`MigrateError::Connect`] without a connection.
pub async fn check(settings: &DatabaseSettings) -> Result<SchemaStatus, MigrateError> {
    status_of(&connect_plain(settings).await?).await
}

/// The version that this program needs.
#[must_use]
pub fn latest() -> i32 {
    embedded::migrations::runner().get_migrations().iter().map(|m| m.version()).max().unwrap_or(0)
}

pub(super) async fn status_of(client: &tokio_postgres::Client) -> Result<SchemaStatus, MigrateError> {
    look(client).await.map_err(|e| failed(&e))
}

async fn look(client: &tokio_postgres::Client) -> Result<SchemaStatus, tokio_postgres::Error> {
    let latest = latest();
    let table = scalar(client, "select to_regclass('leasehold.schema_history')::text").await?;
    let version = match table {
        None => None,
        Some(_) => scalar(client, "select max(version)::text from leasehold.schema_history").await?,
    };
    // refinery's column is an integer.
    let Some(version) = version.and_then(|version| version.parse::<i32>().ok()) else {
        return Ok(SchemaStatus::Missing);
    };
    Ok(match version.cmp(&latest) {
        std::cmp::Ordering::Equal => SchemaStatus::Current { version },
        std::cmp::Ordering::Less => SchemaStatus::Behind { version, latest },
        std::cmp::Ordering::Greater => SchemaStatus::Newer { version, latest },
    })
}

/// One value by the simple protocol, which every pooler passes on.
async fn scalar(
    client: &tokio_postgres::Client,
    query: &str,
) -> Result<Option<String>, tokio_postgres::Error> {
    let messages = client.simple_query(query).await?;
    Ok(messages.iter().find_map(|m| match m {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

async fn take_lock(keeper: &tokio_postgres::Client, patience: Duration) -> Result<(), MigrateError> {
    let wait = patience.as_millis();
    let lock = format!("set local lock_timeout = {wait}; select pg_advisory_xact_lock({LOCK})");
    match keeper.batch_execute(&lock).await {
        Ok(()) => Ok(()),
        Err(e) if e.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            // That failed the keeper's transaction; ask in a new one.
            keeper.batch_execute("rollback").await.map_err(|e| failed(&e))?;
            let holder = format!(
                "select format('session %s (%s, %s), which migrates since %s', a.pid, a.application_name, a.usename, a.xact_start) \
                 from pg_locks l join pg_stat_activity a using (pid) \
                 where l.locktype = 'advisory' and l.granted \
                   and ((l.classid::bigint << 32) | l.objid::bigint) = {LOCK} limit 1"
            );
            let holder = scalar(keeper, &holder).await.map_err(|e| failed(&e))?;
            Err(MigrateError::Blocked {
                waited: patience,
                blocker: holder.unwrap_or_else(|| "another migration".to_owned()),
            })
        }
        Err(e) => Err(failed(&e)),
    }
}

/// Why a try ended.
enum Stopped {
    /// Somebody held a table for too long; another try may be luckier.
    Blocked,
    Refused(MigrateError),
}

impl From<tokio_postgres::Error> for Stopped {
    fn from(e: tokio_postgres::Error) -> Self {
        if is_lock_timeout(&e) { Self::Blocked } else { Self::Refused(failed(&e)) }
    }
}

impl From<refinery::Error> for Stopped {
    fn from(e: refinery::Error) -> Self {
        match database_error(&e) {
            Some(db) if is_lock_timeout(db) => Self::Blocked,
            Some(db) if error::is_read_only(db) => Self::Refused(ConnectError::Standby.into()),
            _ => Self::Refused(MigrateError::Failed(explain(&e))),
        }
    }
}

/// One try, watched from the keeper's connection: whoever blocks it is gone from the books once it failed.
async fn attempt(
    migrator: &mut tokio_postgres::Client,
    keeper: &tokio_postgres::Client,
    blocker: &mut Blocker,
) -> Result<refinery::Report, Stopped> {
    // "if not exists" would ask for the right to create schemas even where there is nothing to create.
    let setup = format!(
        "set lock_timeout = {}; set client_min_messages = warning; \
         do $$ begin if to_regnamespace('leasehold') is null then create schema leasehold; end if; end $$",
        TABLE_LOCK_WAIT.as_millis()
    );
    let pid = scalar(migrator, "select pg_backend_pid()::text").await?.unwrap_or_default();
    let work = async {
        migrator.batch_execute(&setup).await?;
        if let SchemaStatus::Newer { version, latest } = look(migrator).await? {
            return Err(Stopped::Refused(MigrateError::Newer { version, latest }));
        }
        let mut runner = embedded::migrations::runner().set_abort_missing(true).set_abort_divergent(true);
        runner.set_migration_table_name(HISTORY);
        Ok(runner.run_async(migrator).await?)
    };
    let watch = async {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            blocker.look(keeper, &pid).await;
        }
    };
    tokio::select! {
        done = work => done,
        never = watch => never,
    }
}

/// Who was last seen in the way.
#[derive(Debug, Default)]
struct Blocker(Option<String>);

impl Blocker {
    async fn look(&mut self, keeper: &tokio_postgres::Client, pid: &str) {
        let who = format!(
            "select pg_stat_clear_snapshot(); \
             select format('session %s (%s, %s), %s since %s', pid, application_name, usename, state, \
                           coalesce(xact_start, state_change)) \
             from pg_stat_activity where pid = any(pg_blocking_pids({pid})) order by xact_start limit 1"
        );
        let Ok(messages) = keeper.simple_query(&who).await else { return };
        let row = messages.iter().filter_map(|m| match m {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        if let Some(found) = row.filter(|text| text.starts_with("session ")).last() {
            self.0 = Some(found.to_owned());
        }
    }

    fn describe(self) -> String {
        self.0.unwrap_or_else(|| "a lock on one of its tables".to_owned())
    }
}

fn is_lock_timeout(e: &tokio_postgres::Error) -> bool {
    e.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

fn database_error(e: &refinery::Error) -> Option<&tokio_postgres::Error> {
    match e.kind() {
        refinery::error::Kind::Connection(_, source) => source.downcast_ref(),
        _ => None,
    }
}

fn explain(e: &refinery::Error) -> String {
    match (e.kind(), database_error(e)) {
        (refinery::error::Kind::Connection(what, _), Some(db)) => {
            format!("{what}: {}", error::describe(db))
        }
        _ => e.to_string(),
    }
}

fn failed(e: &tokio_postgres::Error) -> MigrateError {
    if error::is_read_only(e) {
        return ConnectError::Standby.into();
    }
    MigrateError::Failed(error::describe(e))
}
