//! `leasehold doctor --audit`: does a live database keep the invariants, and does anything stand still in it?
//!
//! One question a file (`sql/audit_*.sql`), read-only, each in one short transaction of its own, so that no
//! long snapshot keeps vacuum from its work; a standby will do. Each answers with one row per finding:
//! namespace, job, what is wrong, what to do. The same queries judge the histories of `make chaos`.

use std::{fmt, time::Duration};

use chrono::{DateTime, Utc};
use leasehold_actors::{domain::JobId, error::StoreError};
use serde::Serialize;
use tokio_postgres::{Client, Row, types::Type};

use super::{
    connect::{self, ConnectError},
    error,
    migrate::{self, MigrateError, SchemaStatus},
    row::Columns,
    session::Param,
    sql_file::{Sql, sql},
};
use crate::config::DatabaseSettings;

/// What a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// An invariant does not hold.
    Violation,
    /// Nothing is broken, and nothing will happen by itself.
    Stuck,
    /// The check itself did not come to an end, so it says nothing.
    Unfinished,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check that found it: the statement's file name without `audit_`.
    pub check: &'static str,
    /// What it is.
    pub sort: Sort,
    /// The invariant that it belongs to (`L1` to `L10`, `E1` to `E10`).
    pub invariant: &'static str,
    /// The namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The job; none where it is about more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// What was found.
    pub detail: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sort = match self.sort {
            Sort::Violation => "violation",
            Sort::Stuck => "stuck",
            Sort::Unfinished => "unfinished",
        };
        write!(f, "{sort} {} {}:", self.invariant, self.check)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " {namespace}:")?;
        }
        if let Some(job) = self.job {
            write!(f, " job {job}:")?;
        }
        write!(f, " {}; {}", self.detail, self.remedy)
    }
}

/// How far an audit goes.
#[derive(Debug, Clone)]
pub struct AuditSettings {
    /// What is late by less than this is not stuck.
    pub patience: Duration,
    /// The most findings that each check reports one by one.
    pub lines: u32,
    /// The longest that each check may take.
    pub check_timeout: Duration,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self { patience: Duration::from_secs(60), lines: 1000, check_timeout: Duration::from_secs(60) }
    }
}

/// What an audit found, and what it looked at.
#[derive(Debug, Clone)]
pub struct Audit {
    /// What is wrong, violations first.
    pub findings: Vec<Finding>,
    /// How many checks were made.
    pub checks: usize,
    /// How many jobs there are.
    pub jobs: i64,
    /// The moment that it speaks of, by the database's clock.
    pub as_of: DateTime<Utc>,
    /// It was a standby that was asked.
    pub standby: bool,
}

struct Check {
    sql: Sql,
    sort: Sort,
    invariant: &'static str,
}

/// All checks take the same parameters: the moment, the patience in seconds, and how many rows at most.
macro_rules! check {
    ($name:literal, $sort:ident, $invariant:literal) => {
        Check { sql: sql!($name, [TIMESTAMPTZ, FLOAT8, INT8]), sort: Sort::$sort, invariant: $invariant }
    };
}

static CHECKS: [Check; 25] = [
    check!("audit_tokens", Violation, "L1"),
    check!("audit_deadlines", Violation, "L3"),
    check!("audit_expiry", Violation, "L3"),
    check!("audit_epochs", Violation, "L4"),
    check!("audit_conservation", Violation, "L6"),
    check!("audit_ended_once", Violation, "L6"),
    check!("audit_keys", Violation, "L6"),
    check!("audit_containers", Violation, "L7"),
    check!("audit_node_slots", Violation, "L9"),
    check!("audit_run_slots", Violation, "L9"),
    check!("audit_logs", Violation, "L10"),
    check!("audit_grants", Violation, "L10"),
    check!("audit_events", Violation, "E1"),
    check!("audit_signals", Violation, "E1"),
    check!("audit_generations", Stuck, "L6"),
    check!("audit_held", Stuck, "L6"),
    check!("audit_blocked", Stuck, "L6"),
    check!("audit_overdue", Stuck, "L6"),
    check!("audit_unserved", Stuck, "L6"),
    check!("audit_unplaced", Stuck, "L6"),
    check!("audit_expired", Stuck, "L6"),
    check!("audit_postponed", Stuck, "L6"),
    check!("audit_cancels", Stuck, "L6"),
    check!("audit_commands", Stuck, "L10"),
    check!("audit_asleep", Stuck, "E9"),
];

const CLOCK: Sql = sql!("audit_clock", []);

/// Why there is no audit.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuditError {
    /// There is no database to audit.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The database stopped answering, or answered what this program does not understand.
    #[error("the audit could not be finished: {0}; see the server's log, then audit again")]
    Store(#[from] StoreError),
}

/// A connection that an audit may use: to a primary or to a standby, with the schema of this program.
///
/// # Errors
/// [`ConnectError`], which says what to do.
pub async fn open(settings: &DatabaseSettings) -> Result<Client, ConnectError> {
    let client = connect::connect_plain(settings).await?;
    match migrate::status_of(&client).await {
        Ok(SchemaStatus::Current { .. }) => Ok(client),
        Ok(SchemaStatus::Missing) => Err(ConnectError::NotMigrated { found: "missing".to_owned() }),
        Ok(SchemaStatus::Behind { version, latest }) => {
            Err(ConnectError::NotMigrated { found: format!("at version {version}, and {latest} is needed") })
        }
        Ok(SchemaStatus::Newer { version, latest }) => Err(ConnectError::Newer { version, latest }),
        Err(MigrateError::Connect(e)) => Err(e),
        Err(e) => Err(ConnectError::Unreachable(e.to_string())),
    }
}

/// Makes every check with the default settings. The client must not be in a transaction.
///
/// # Errors
/// [`AuditError`] when the database stops answering.
pub async fn run(client: &Client) -> Result<Vec<Finding>, AuditError> {
    Ok(run_with(client, &AuditSettings::default()).await?.findings)
}

/// Makes every check, over all namespaces. The client must not be in a transaction.
///
/// # Errors
/// [`AuditError`] when the database stops answering.
pub async fn run_with(client: &Client, settings: &AuditSettings) -> Result<Audit, AuditError> {
    let rows = ask(client, &CLOCK, &[], settings).await?.map_err(AuditError::Store)?;
    let facts = Columns::only(CLOCK.name, &rows)?;
    let (as_of, standby, jobs) = (facts.get("as_of")?, facts.get("standby")?, facts.get("jobs")?);
    let mut findings = Vec::new();
    for check in &CHECKS {
        findings.append(&mut check.make(client, as_of, settings).await?);
    }
    findings.sort_by_key(|finding| finding.sort);
    Ok(Audit { findings, checks: CHECKS.len(), jobs, as_of, standby })
}

impl Check {
    fn name(&self) -> &'static str {
        self.sql.name.trim_start_matches("audit_")
    }

    fn finding(&self, sort: Sort, detail: String, remedy: &str) -> Finding {
        Finding {
            check: self.name(),
            sort,
            invariant: self.invariant,
            namespace: None,
            job: None,
            detail,
            remedy: remedy.to_owned(),
        }
    }

    async fn make(
        &self,
        client: &Client,
        as_of: DateTime<Utc>,
        settings: &AuditSettings,
    ) -> Result<Vec<Finding>, AuditError> {
        // One more than is shown tells whether there are more.
        let (patience, rows) = (settings.patience.as_secs_f64(), i64::from(settings.lines) + 1);
        let rows = match ask(client, &self.sql, &[&as_of, &patience, &rows], settings).await? {
            Ok(rows) => rows,
            Err(e) => {
                let remedy = "audit again at a quiet hour, or at a standby";
                return Ok(vec![self.finding(Sort::Unfinished, e.message, remedy)]);
            }
        };
        let shown = usize::try_from(settings.lines).unwrap_or(usize::MAX);
        let mut findings = Vec::with_capacity(rows.len().min(shown));
        for row in rows.iter().take(shown) {
            let columns = Columns::new(self.sql.name, row);
            findings.push(Finding {
                namespace: columns.get("namespace")?,
                job: columns.get::<Option<i64>>("job_id")?.map(JobId),
                ..self.finding(self.sort, columns.get("detail")?, columns.get("remedy")?)
            });
        }
        if rows.len() > shown {
            let detail = format!("there are more than the {shown} shown");
            findings.push(self.finding(self.sort, detail, "see to these, then audit again"));
        }
        Ok(findings)
    }
}

/// One statement in a read-only transaction of its own. The inner error is one that ended the statement and
/// left the connection: it took too long, or its snapshot was taken away from it.
async fn ask(
    client: &Client,
    sql: &Sql,
    params: &[Param<'_>],
    settings: &AuditSettings,
) -> Result<Result<Vec<Row>, StoreError>, StoreError> {
    let lost = |e: &tokio_postgres::Error| error::store_error(sql.name, e);
    let limit = settings.check_timeout.as_millis();
    let begin = format!(
        "begin transaction isolation level repeatable read, read only; \
         set local statement_timeout = {limit}; set local jit = off"
    );
    client.batch_execute(&begin).await.map_err(|e| lost(&e))?;
    let typed: Vec<(Param<'_>, Type)> = params.iter().copied().zip(sql.types.iter().cloned()).collect();
    let answer = client.query_typed(sql.text, &typed).await;
    match &answer {
        Err(e) if error::spoils_connection(e) => return Err(lost(e)),
        Ok(_) | Err(_) => client.batch_execute("rollback").await.map_err(|e| lost(&e))?,
    }
    Ok(answer.map_err(|e| lost(&e)))
}
