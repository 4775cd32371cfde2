//! The checks of `leasehold doctor`: what is wrong, and what to do about it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use leasehold_actors::{domain::Namespace, error::StoreError};
use serde::Serialize;
use tokio::runtime::Handle;

use super::{
    ConnectError, PgStore,
    nodes::{NodeRow, NodeState},
    row::Columns,
    sql_file::{Sql, sql},
};
use crate::config::DatabaseSettings;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// Nothing to do.
    Ok,
    /// Works, but look at it.
    Warn,
    /// Does not work.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// A stable word.
    pub name: &'static str,
    /// How it came out.
    pub status: CheckStatus,
    /// What was found.
    pub detail: String,
    /// What to do; none when nothing is.
    pub remedy: Option<String>,
}

const FACTS: Sql = sql!("doctor", [TEXT]);

/// A snapshot this old keeps vacuum from removing dead rows that claims have to walk over.
const OLD_SNAPSHOT_SECONDS: f64 = 300.0;
/// Clocks that differ by more than this make shown times hard to read.
const SKEW_SECONDS: f64 = 2.0;
/// Dead rows in the hot tables worth a word.
const MANY_DEAD_ROWS: i64 = 200_000;

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Ok, detail: detail.into(), remedy: None }
    }

    fn warn(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Warn, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn fail(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Fail, detail: detail.into(), remedy: Some(remedy.into()) }
    }
}

/// Connects and makes every check; a database that cannot be reached, or whose schema does not fit, is a
/// failed check too.
pub async fn diagnose(settings: &DatabaseSettings, io: Handle, namespace: &Namespace) -> Vec<Check> {
    match PgStore::connect(settings, io).await {
        Ok(store) => store.doctor(namespace).await,
        Err(e) => {
            let remedy = match &e {
                ConnectError::NotMigrated { .. } => "run `leasehold migrate`",
                ConnectError::Newer { .. } => "use a newer leasehold",
                ConnectError::UnsafeDefault { .. } => "set it as the line says, then connect anew",
                ConnectError::Standby => "let DATABASE_URL name the primary",
                ConnectError::Superseded(_) => "let DATABASE_URL name the present primary",
                ConnectError::Full(_) => {
                    "raise max_connections and restart the server, lower DATABASE_POOL_SIZE, or end sessions that nobody \
                     needs (pg_stat_activity)"
                }
                ConnectError::Address(_) | ConnectError::Unreachable(_) => {
                    "start the server, or correct DATABASE_URL"
                }
            };
            let name = match &e {
                ConnectError::NotMigrated { .. } | ConnectError::Newer { .. } => "schema",
                _ => "database",
            };
            vec![Check::fail(name, e.to_string(), remedy)]
        }
    }
}

impl PgStore {
    /// Looks at database, replication, clocks, nodes and stuck work, and says what to do. Changes nothing.
    pub async fn doctor(&self, namespace: &Namespace) -> Vec<Check> {
        let asked = Instant::now();
        let sent = Utc::now();
        let rows = match self.call("doctor", &FACTS, &[&namespace.as_str()]).await {
            Ok(rows) => rows,
            Err(e) => {
                return vec![Check::fail("database", e.to_string(), "start the server, or see its log")];
            }
        };
        let round_trip = asked.elapsed();
        let nodes = self.node_list(namespace).await;
        let checks = Columns::only("doctor", &rows).and_then(|facts| {
            let mut checks = vec![
                self.database(facts, round_trip)?,
                Check::ok("schema", "fits this program"),
                server(facts)?,
                durability(facts)?,
                clock(facts, sent, round_trip)?,
                connections(facts)?,
                snapshots(facts)?,
                dead_rows(facts)?,
                expired(facts)?,
                overdue(facts)?,
                queued(facts)?,
                stale(facts)?,
                waits(facts)?,
            ];
            match &nodes {
                Ok(nodes) => {
                    checks.push(node_check(
                        nodes,
                        facts.get("containers")?,
                        facts.get("containers_seconds")?,
                    ));
                    checks.extend(shared_engines(nodes));
                }
                Err(e) => checks.push(Check::fail("nodes", e.to_string(), "see the server's log")),
            }
            Ok(checks)
        });
        checks.unwrap_or_else(|e| {
            vec![Check::fail("database", e.to_string(), "use the leasehold that fits this database")]
        })
    }

    fn database(&self, facts: Columns<'_>, round_trip: Duration) -> Result<Check, StoreError> {
        let how = if self.is_pooled() {
            "through a transaction pooler (no prepared statements; hints by polling)"
        } else {
            "directly"
        };
        let version: &str = facts.get("version")?;
        Ok(Check::ok("database", format!("PostgreSQL {version}, reached {how} in {round_trip:.1?}")))
    }
}

/// Which server the fleet is on, and what it went through.
fn server(facts: Columns<'_>) -> Result<Check, StoreError> {
    let (system, timeline, generation): (i64, i64, i64) =
        (facts.get("system_id")?, facts.get("timeline")?, facts.get("cluster_generation")?);
    let place = format!("system {system}, timeline {timeline}, cluster generation {generation}");
    let raised: Option<DateTime<Utc>> = facts.get("raised_at")?;
    let because: Option<&str> = facts.get("raised_because")?;
    let Some((at, because)) = raised.zip(because) else { return Ok(Check::ok("server", place)) };
    let what = match because {
        "promotion" => "a standby was promoted",
        _ => "the database came to another server (restored, upgraded or moved)",
    };
    let story = format!("{place}; {what}, first seen {}", at.format("%Y-%m-%d %H:%M:%S UTC"));
    let held: f64 = facts.get("recovery_held_seconds")?;
    Ok(if held > 0.0 {
        Check::warn(
            "server",
            format!("{story}; expired leases are not taken over for {held:.0} s more"),
            "nothing: holders on the earlier server come to their end meanwhile",
        )
    } else {
        Check::ok("server", story)
    })
}

fn durability(facts: Columns<'_>) -> Result<Check, StoreError> {
    let (standbys, synchronous): (i64, i64) = (facts.get("standbys")?, facts.get("synchronous_standbys")?);
    Ok(if !facts.get::<bool>("crash_safe")? {
        Check::fail(
            "durability",
            "fsync or full_page_writes is off: a crash of the server can lose or damage jobs",
            "switch both on in postgresql.conf and restart the server",
        )
    } else if synchronous > 0 {
        let names: &str = facts.get("synchronous_names")?;
        Check::ok(
            "durability",
            format!(
                "replication is synchronous ({names}): every commit is on disk there too before it is answered, so a \
                 failover to it undoes nothing"
            ),
        )
    } else if facts.get("wants_standby")? {
        Check::warn(
            "durability",
            "synchronous_standby_names is set, but no synchronous standby is connected: commits wait for one",
            "bring the standby back, or take it off the list",
        )
    } else if standbys > 0 {
        Check::warn(
            "durability",
            "replication is asynchronous: a failover undoes commits that the standby did not have yet. Epochs still \
             rise, and an earlier one is refused; but jobs submitted last may be gone, and jobs that had started or \
             ended since may run once more",
            "set synchronous_standby_names where that matters",
        )
    } else {
        Check::ok("durability", "every commit is on disk; there is no standby")
    })
}

fn clock(facts: Columns<'_>, sent: DateTime<Utc>, round_trip: Duration) -> Result<Check, StoreError> {
    let theirs: DateTime<Utc> = facts.get("clock")?;
    // Their reading was taken somewhere within the round trip.
    let ahead = (theirs - sent).as_seconds_f64();
    let trip = round_trip.as_secs_f64();
    let skew = if ahead < 0.0 { ahead } else { (ahead - trip).max(0.0) };
    Ok(if skew.abs() > SKEW_SECONDS {
        Check::warn(
            "clock",
            format!(
                "the database's clock differs from this machine's by {skew:+.1} s; no lease depends on that"
            ),
            "run a time service on both machines, so that times in logs can be compared",
        )
    } else {
        Check::ok("clock", "the database's and this machine's agree")
    })
}

fn connections(facts: Columns<'_>) -> Result<Check, StoreError> {
    let (used, most): (i64, i32) = (facts.get("connections")?, facts.get("max_connections")?);
    let detail = format!("{used} of {most} are in use");
    Ok(if used * 10 > i64::from(most) * 8 {
        Check::warn("connections", detail, "raise max_connections, or lower DATABASE_POOL_SIZE")
    } else {
        Check::ok("connections", detail)
    })
}

fn snapshots(facts: Columns<'_>) -> Result<Check, StoreError> {
    let (seconds, prepared): (f64, f64) =
        (facts.get("oldest_snapshot_seconds")?, facts.get("oldest_prepared_seconds")?);
    Ok(if seconds > OLD_SNAPSHOT_SECONDS {
        let pid: Option<i32> = facts.get("oldest_snapshot_pid")?;
        Check::warn(
            "snapshots",
            format!("a session has kept a snapshot for {seconds:.0} s; dead rows pile up meanwhile"),
            format!("end it: select pg_terminate_backend({})", pid.unwrap_or_default()),
        )
    } else if prepared > OLD_SNAPSHOT_SECONDS {
        Check::warn(
            "snapshots",
            format!("a prepared transaction has stood for {prepared:.0} s; dead rows pile up meanwhile"),
            "commit or roll it back; see pg_prepared_xacts",
        )
    } else {
        Check::ok("snapshots", format!("the oldest is {seconds:.0} s old"))
    })
}

fn dead_rows(facts: Columns<'_>) -> Result<Check, StoreError> {
    let (dead, live): (i64, i64) = (facts.get("dead_rows")?, facts.get("live_rows")?);
    let detail = format!("{dead} dead and {live} live rows in the hot tables");
    Ok(if dead > MANY_DEAD_ROWS && dead > live * 4 {
        Check::warn("dead_rows", detail, "see `snapshots`; then: vacuum leasehold.ready, leasehold.leases")
    } else {
        Check::ok("dead_rows", detail)
    })
}

fn expired(facts: Columns<'_>) -> Result<Check, StoreError> {
    let (running, expired): (i64, i64) = (facts.get("running")?, facts.get("expired")?);
    let timeless: i64 = facts.get("timeless")?;
    Ok(if timeless > 0 {
        Check::fail(
            "leases",
            format!(
                "{timeless} of {running} RUNNING jobs have a lease that expires at no time (edited by hand?): recovery \
                 leaves them alone"
            ),
            "`leasehold doctor --audit` names them and says how to correct each",
        )
    } else if expired > 0 {
        let seconds: f64 = facts.get("expired_seconds")?;
        Check::warn(
            "leases",
            format!(
                "{expired} of {running} RUNNING jobs have an expired lease, the oldest for {seconds:.0} s"
            ),
            "keep a `leasehold worker` running: it takes them over",
        )
    } else {
        Check::ok("leases", format!("{running} RUNNING, none expired"))
    })
}

fn overdue(facts: Columns<'_>) -> Result<Check, StoreError> {
    let overdue: i64 = facts.get("overdue")?;
    Ok(if overdue > 0 {
        Check::warn(
            "dispatch",
            format!("{overdue} PENDING jobs are due for more than 10 s"),
            "start `leasehold worker`, `server` or `dev`: each dispatches",
        )
    } else {
        Check::ok("dispatch", "no PENDING job is overdue")
    })
}

fn queued(facts: Columns<'_>) -> Result<Check, StoreError> {
    let (queued, workers): (i64, i64) = (facts.get("queued")?, facts.get("workers")?);
    let seconds: f64 = facts.get("queued_seconds")?;
    let detail =
        format!("{queued} QUEUED, the oldest for {:.0} s; {workers} workers alive", seconds.max(0.0));
    Ok(if queued > 0 && workers == 0 {
        Check::warn("workers", detail, "start `leasehold worker`")
    } else {
        Check::ok("workers", detail)
    })
}

fn stale(facts: Columns<'_>) -> Result<Check, StoreError> {
    let stale: i64 = facts.get("stale")?;
    Ok(if stale > 0 {
        Check::warn(
            "generations",
            format!("{stale} jobs were scheduled under an older generation of their workflow"),
            "nothing at once: they end CANCELED (superseded) when they are dispatched or claimed",
        )
    } else {
        Check::ok("generations", "every job is of its workflow's present generation")
    })
}

fn waits(facts: Columns<'_>) -> Result<Check, StoreError> {
    let (blocked, held): (i64, i64) = (facts.get("blocked")?, facts.get("held")?);
    Ok(Check::ok(
        "waits",
        format!("{blocked} jobs wait for another run of their workflow, {held} for a paused one"),
    ))
}

/// Containers that wait for this long while there is no node to run them wait in vain.
const LONG_QUEUED_SECONDS: f64 = 10.0;

/// `containers` CONTAINER jobs are QUEUED, the oldest for `seconds`.
fn node_check(nodes: &[NodeRow], containers: i64, seconds: f64) -> Check {
    let named = |wanted: &dyn Fn(&NodeRow) -> bool| {
        nodes.iter().filter(|n| wanted(n)).map(|n| n.id.as_str()).collect::<Vec<_>>().join(", ")
    };
    let lost = named(&|n| n.lost && n.slots_used > 0);
    let silent = named(&|n| !n.fresh && n.state != NodeState::Draining);
    let unhealthy = named(&|n| n.state == NodeState::Unhealthy);
    let ready = nodes.iter().filter(|n| n.fresh && n.state == NodeState::Ready).count();
    let count = format!("{ready} of {} are READY and fresh", nodes.len());
    if !lost.is_empty() {
        Check::fail(
            "nodes",
            format!("silent for too long, with jobs on them: {lost}"),
            "start `leasehold node` there again; what ran there is given to others meanwhile",
        )
    } else if ready == 0 && containers > 0 {
        let found = if nodes.is_empty() { "there is no runtime node".to_owned() } else { each(nodes) };
        let detail = format!(
            "no node can run the {containers} QUEUED CONTAINER jobs, the oldest for {:.0} s: {found}",
            seconds.max(0.0)
        );
        let remedy = "start `leasehold node` beside a Docker engine; a node that an operator drained takes jobs again \
                      after `leasehold node undrain`";
        if seconds >= LONG_QUEUED_SECONDS {
            Check::fail("nodes", detail, remedy)
        } else {
            Check::warn("nodes", detail, remedy)
        }
    } else if !unhealthy.is_empty() {
        Check::warn(
            "nodes",
            format!("UNHEALTHY: {unhealthy}"),
            "see `leasehold node list`, then the engine's log",
        )
    } else if !silent.is_empty() {
        Check::warn(
            "nodes",
            format!("silent: {silent}"),
            "start `leasehold node` there again, or `leasehold node forget` it",
        )
    } else if ready == 0 && !nodes.is_empty() {
        Check::warn(
            "nodes",
            format!("no CONTAINER job can be placed: {}", each(nodes)),
            "start `leasehold node` there again, or `leasehold node forget` what is gone for good",
        )
    } else {
        Check::ok("nodes", count)
    }
}

/// Every node with why it takes no job.
fn each(nodes: &[NodeRow]) -> String {
    let words: Vec<String> = nodes
        .iter()
        .map(|n| {
            let silent = if n.fresh { "" } else { ", silent" };
            format!("{} {}{silent}", n.id, n.state.as_str())
        })
        .collect();
    words.join("; ")
}

/// Two nodes that serve one engine promise its capacity twice.
fn shared_engines(nodes: &[NodeRow]) -> Option<Check> {
    let mut by_engine: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in nodes.iter().filter(|n| n.fresh) {
        by_engine.entry(&node.engine_id).or_default().push(node.id.as_str());
    }
    let shared: Vec<String> = by_engine
        .values()
        .filter(|nodes| nodes.len() > 1)
        .map(|nodes| format!("{} serve one engine", nodes.join(" and ")))
        .collect();
    (!shared.is_empty()).then(|| {
        Check::warn(
            "engines",
            format!("{}: its slots are counted once for each", shared.join("; ")),
            "keep one `leasehold node` for each engine (stop the other, then `leasehold node forget` it); two engines with \
             one id were cloned: give each its own (docs/runtime-nodes.md)",
        )
    })
}
