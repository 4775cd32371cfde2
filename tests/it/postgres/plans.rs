//! How the hot statements find their rows: by key or by an index in the right order, with many rows, whatever the
//! statistics say; never by reading a table from end to end. And every renewal is HOT.

use std::time::Duration;

use leasehold::{
    postgres::PgStore,
    protocol::ports::{LeaseStore, Renewal},
};
use serde_json::Value;
use tokio_postgres::Client;

use crate::support::{
    database::TestDatabase,
    eventually::eventually,
    jobs::{claim_many, claimant, queue_many},
};

/// The hot statements, each with the literals to plan it with.
const STATEMENTS: [(&str, &str, &str); 30] = [
    (
        "claim",
        include_str!("../../../src/postgres/sql/claim.sql"),
        "'default', array[gen_random_uuid()], '{w}', array[gen_random_uuid()], '{30000}', '{h}', '{claim}', '{f}',
         '{HANDLER,CONTAINER}', '{work,\"\"}', '{\"\",\"\"}', '{-100,-100}', '{-infinity,-infinity}', '{0,0}',
         array[gen_random_uuid()], '{1}', '{5}', '{1}', '{1}', array[gen_random_uuid()], '{1}', true,
         1, 1, 1, 1, 1000, 1000, 1000, 'linux', 'amd64', null, null, null",
    ),
    (
        "recall_claim",
        include_str!("../../../src/postgres/sql/recall_claim.sql"),
        "gen_random_uuid(), 'default', 'w', gen_random_uuid()",
    ),
    ("claim_reasons", include_str!("../../../src/postgres/sql/claim_reasons.sql"), "'default', '{1,2,3}'"),
    (
        "renew",
        include_str!("../../../src/postgres/sql/renew.sql"),
        "'{1,2,3}', array[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], '{1,1,1}', '{default}', '{w}',
         array[gen_random_uuid()]",
    ),
    (
        "complete",
        include_str!("../../../src/postgres/sql/complete.sql"),
        "'{1,2,3}', array[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], '{1,1,1}', '{default}', '{w}',
         array[gen_random_uuid()], array[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], '{0,0,0}',
         '{null,null,null}'",
    ),
    (
        "give_up",
        include_str!("../../../src/postgres/sql/give_up.sql"),
        "'{1}', array[gen_random_uuid()], '{1}', '{default}', '{w}', array[gen_random_uuid()],
         array[gen_random_uuid()], '{fail}', '{SYSTEM}', '{x}', '{y}', '{null}', '{null}', '{null}', '{null}',
         '{null}', '{null}', '{0}', '{null}'",
    ),
    (
        "reschedule",
        include_str!("../../../src/postgres/sql/reschedule.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), gen_random_uuid(), 0, null, null, '1', 1, true, null, '{s}', '{1}', true,
         true, null, null, null, null, null, null, null, null, null, 10, 'words'",
    ),
    (
        "recall_end",
        include_str!("../../../src/postgres/sql/recall_end.sql"),
        "1, 1, gen_random_uuid(), 'default', 'w', gen_random_uuid()",
    ),
    (
        "attach",
        include_str!("../../../src/postgres/sql/attach.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 'n1', 'c1'",
    ),
    (
        "append_logs",
        include_str!("../../../src/postgres/sql/append_logs.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), '{1}', '{0}', array['x'::bytea], '{k}'",
    ),
    (
        "log_offsets",
        include_str!("../../../src/postgres/sql/log_offsets.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 'k'",
    ),
    (
        "place_task",
        include_str!("../../../src/postgres/sql/place_task.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 'k', 'path', 1000, 1000, 'linux', '{amd64}', 'words',
         'op', 'h', 1, '{}', 1000",
    ),
    (
        "attach_task",
        include_str!("../../../src/postgres/sql/attach_task.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 'k', 'n1', 'c1'",
    ),
    (
        "unplace_task",
        include_str!("../../../src/postgres/sql/unplace_task.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 'k'",
    ),
    (
        "report_progress",
        include_str!("../../../src/postgres/sql/report_progress.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 1, '1'",
    ),
    (
        "reconcile",
        include_str!("../../../src/postgres/sql/reconcile.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid()",
    ),
    (
        "recover",
        include_str!("../../../src/postgres/sql/recover.sql"),
        "'default', 'w', gen_random_uuid(), 30000, '{1,2,3,4}', 2, array[gen_random_uuid(), gen_random_uuid()],
         gen_random_uuid(), 'h', false, '{5}'",
    ),
    (
        "recall_recovery",
        include_str!("../../../src/postgres/sql/recall_recovery.sql"),
        "gen_random_uuid(), 'default', 'w', gen_random_uuid()",
    ),
    (
        "postpone_recovery",
        include_str!("../../../src/postgres/sql/postpone_recovery.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 5000",
    ),
    (
        "record",
        include_str!("../../../src/postgres/sql/record.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 'a', '\\x00', 'child_ended', 'op', 'h', 1, null, null,
         null, null, null, null, null, null, 's', 1, 50000, 100000",
    ),
    (
        "start_child",
        include_str!("../../../src/postgres/sql/start_child.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 'a', '\\x00', true, 'HANDLER', '{\"handler\":\"work\"}',
         null, null, null, null, null, null, null, null, 1, 50000, 100000, 16",
    ),
    (
        "recipe_events",
        include_str!("../../../src/postgres/sql/recipe_events.sql"),
        "'default', 1, 0, 500, 1000000",
    ),
    (
        "recipe_events_at",
        include_str!("../../../src/postgres/sql/recipe_events_at.sql"),
        "'default', 1, 'a/b'",
    ),
    (
        "read_lease",
        include_str!("../../../src/postgres/sql/read_lease.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 1",
    ),
    ("recipe_job", include_str!("../../../src/postgres/sql/recipe_job.sql"), "'default', 1"),
    (
        "refuse",
        include_str!("../../../src/postgres/sql/refuse.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), 'why'",
    ),
    (
        "redeem",
        include_str!("../../../src/postgres/sql/redeem.sql"),
        "1, gen_random_uuid(), 'default', 'w', gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'h'",
    ),
    ("set_payload", include_str!("../../../src/postgres/sql/set_payload.sql"), "'default', 1, '{}', 1"),
    ("dispatch", include_str!("../../../src/postgres/sql/dispatch.sql"), "'default', 100"),
    ("prune_commands", include_str!("../../../src/postgres/sql/prune_commands.sql"), "100"),
];

/// What a direct connection of the store sets for these statements.
const SESSION: &str = "set plan_cache_mode = force_generic_plan; set enable_seqscan = off;
                       set enable_mergejoin = off; set jit = off";

/// Tables that grow. The others (fleet, workflows, nodes) hold a handful of rows.
const GROWING: [&str; 14] = [
    "jobs",
    "waiting",
    "ready",
    "leases",
    "ended",
    "lease_history",
    "commands",
    "job_logs",
    "job_progress",
    "idempotency_keys",
    "recipes",
    "recipe_events",
    "signals",
    "recipe_children",
];

/// Fills every growing table.
const FILL: &str = "
    insert into leasehold.jobs (namespace, workflow, generation, kind, route, definition, payload, priority)
        select 'default', 'adhoc', 1, 'HANDLER', 'work', '{\"handler\":\"work\"}', 'null', 0
        from generate_series(1, 60000);
    insert into leasehold.ready (job_id, namespace, due_at, kind, route, workflow, rank, generation, dispatch_attempt)
        select job_id, 'default', clock_timestamp(), 'HANDLER', 'work', 'adhoc', 0, 1, 1
        from leasehold.jobs where job_id <= 20000;
    insert into leasehold.waiting (job_id, namespace, due_at, kind, route, workflow, rank, generation)
        select job_id, 'default', clock_timestamp() + interval '1 hour', 'HANDLER', 'work', 'adhoc', 0, 1
        from leasehold.jobs where job_id between 20001 and 30000;
    insert into leasehold.leases (job_id, lease_expires_at, epoch, claim_epoch, granted_at, token, process_id, lease_ms,
            namespace, worker_id, kind, route, workflow, rank, generation, dispatch_attempt, attempt, failures_user,
            failures_system, failures_timeout, losses)
        select job_id, clock_timestamp() + interval '1 hour', 1, 1, clock_timestamp(), gen_random_uuid(),
               gen_random_uuid(), 30000, 'default', 'w', 'HANDLER', 'work', 'adhoc', 0, 1, 1, 1, 0, 0, 0, 0
        from leasehold.jobs where job_id between 30001 and 40000;
    insert into leasehold.ended (job_id, namespace, state, workflow, kind, route, rank, generation, dispatch_attempt,
            attempt, epoch, failures_user, failures_system, failures_timeout, losses)
        select job_id, 'default', 'COMPLETED', 'adhoc', 'HANDLER', 'work', 0, 1, 1, 1, 1, 0, 0, 0, 0
        from leasehold.jobs where job_id > 40000;
    insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at,
            renewals)
        select job_id, 1, 'default', 'completed', 'w', gen_random_uuid(), 1, clock_timestamp(), 1
        from leasehold.jobs where job_id > 40000;
    insert into leasehold.commands (command_id, namespace, operation, request_hash, jobs, epochs)
        select gen_random_uuid(), 'default', 'claim', '', '{}', '{}' from generate_series(1, 20000);
    insert into leasehold.job_logs (job_id, epoch, stream, first_byte, namespace, data)
        select job_id, 1, 1, 0, 'default', '' from leasehold.jobs where job_id > 40000;
    insert into leasehold.job_progress (job_id, namespace, epoch, progress)
        select job_id, 'default', 1, '1' from leasehold.jobs where job_id > 40000;
    insert into leasehold.recipes (job_id, namespace, language)
        select job_id, 'default', 1 from leasehold.jobs where job_id > 40000;
    insert into leasehold.recipe_events (job_id, ordinal, namespace, path, path_hash, sort, era, epoch, bytes)
        select job_id, 1, 'default', 'a', sha256('a'), 'timer_fired', 0, 1, 1 from leasehold.jobs where job_id > 40000;
    insert into leasehold.signals (job_id, namespace, name, data)
        select job_id, 'default', 's', '1' from leasehold.jobs where job_id > 40000;
    insert into leasehold.recipe_children (job_id, namespace, parent_id, path, cancel_with_parent)
        select job_id, 'default', job_id - 10000, 'a', true from leasehold.jobs where job_id > 50000";

/// Every scan of a whole table in a plan.
fn whole_table_scans(plan: &Value, found: &mut Vec<String>) {
    match plan {
        Value::Object(node) => {
            let text = |key| node.get(key).and_then(Value::as_str).unwrap_or_default();
            let table = text("Relation Name");
            let whole = match text("Node Type") {
                "Seq Scan" => true,
                // An index read from end to end is no better.
                "Index Scan" | "Index Only Scan" => {
                    !node.contains_key("Index Cond") && text("Index Name") != "fleet_pkey"
                }
                "Bitmap Index Scan" => !node.contains_key("Index Cond"),
                _ => false,
            };
            if whole && (GROWING.contains(&table) || table.is_empty()) {
                found.push(format!("{} on {table} {}", text("Node Type"), text("Index Name")));
            }
            node.values().for_each(|value| whole_table_scans(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| whole_table_scans(value, found)),
        _ => {}
    }
}

async fn plan(client: &Client, statement: &str, literals: &str) -> Value {
    let name = "looked_at";
    client.batch_execute(&format!("prepare {name} as {statement}")).await.unwrap();
    let explain = format!("explain (format json) execute {name} ({literals})");
    let plan = client.simple_query(&explain).await.unwrap();
    client.batch_execute(&format!("deallocate {name}")).await.unwrap();
    let text: String = plan
        .iter()
        .filter_map(|m| match m {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    serde_json::from_str(&text).unwrap()
}

async fn scans(client: &Client, statement: &str, literals: &str) -> Vec<String> {
    let mut found = Vec::new();
    whole_table_scans(&plan(client, statement, literals).await, &mut found);
    found
}

async fn assert_by_key(client: &Client, when: &str) {
    for (name, statement, literals) in STATEMENTS {
        let found = scans(client, statement, literals).await;
        assert!(found.is_empty(), "{name}, {when}: {found:?}");
    }
}

/// No session but the test's own looks at these tables.
async fn without_autovacuum(client: &Client) {
    for table in GROWING {
        let off = format!("alter table leasehold.{table} set (autovacuum_enabled = off)");
        client.batch_execute(&off).await.unwrap();
    }
}

/// Planned on empty tables, planned after they grew without anybody having looked (statistics of nothing), and
/// planned with true statistics; in a direct session, and as a transaction pooler's server session does it.
#[tokio::test(flavor = "multi_thread")]
async fn hot_statements_never_read_a_growing_table_from_end_to_end() {
    let database = TestDatabase::create().await;
    let (direct, pooled) = (database.client().await, database.client().await);
    direct.batch_execute(SESSION).await.unwrap();
    without_autovacuum(&pooled).await;
    assert_by_key(&direct, "empty, direct").await;
    pooled.batch_execute("analyze").await.unwrap();
    pooled.batch_execute(FILL).await.unwrap();
    assert_by_key(&direct, "grown, statistics of nothing, direct").await;
    assert_by_key(&pooled, "grown, statistics of nothing, pooled").await;
    pooled.batch_execute("analyze").await.unwrap();
    assert_by_key(&direct, "true statistics, direct").await;
    assert_by_key(&pooled, "true statistics, pooled").await;
    // What is left of a great flood: the statistics of many rows, and few of them.
    pooled
        .batch_execute("delete from leasehold.ready where job_id > 50; delete from leasehold.leases where job_id > 30050")
        .await
        .unwrap();
    assert_by_key(&direct, "statistics of a flood, direct").await;
    assert_by_key(&pooled, "statistics of a flood, pooled").await;
}

/// The counter-check: a statement that does read a whole table is found out.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_of_a_whole_table_would_be_noticed() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    client.batch_execute(FILL).await.unwrap();
    let found = scans(&client, "select 1 from leasehold.leases where worker_id = $1::text", "'w'").await;
    assert_eq!(found.len(), 1, "{found:?}");
    client.batch_execute("set enable_seqscan = off").await.unwrap();
    let found =
        scans(&client, "select count(job_id) from leasehold.leases where $1::text = 'w'", "'w'").await;
    assert_eq!(found.len(), 1, "{found:?}");
}

/// Every node of a plan of this type, with what it works on.
fn nodes_of(plan: &Value, wanted: &str, found: &mut Vec<String>) {
    match plan {
        Value::Object(node) => {
            let text = |key| node.get(key).and_then(Value::as_str).unwrap_or_default();
            if text("Node Type") == wanted {
                found.push(format!("{} {}", text("Relation Name"), text("Filter")));
            }
            node.values().for_each(|value| nodes_of(value, wanted, found));
        }
        Value::Array(values) => values.iter().for_each(|value| nodes_of(value, wanted, found)),
        _ => {}
    }
}

/// Recovery's look reads `leases` from end to end, on purpose: no index covers what a renewal changes. So a row must cost
/// next to nothing: it is compared with a value that was computed once, and joined to nothing, before it is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_for_expired_leases_costs_one_comparison_a_row() {
    let outlook = include_str!("../../../src/postgres/sql/recovery_outlook.sql");
    let candidates = include_str!("../../../src/postgres/sql/recovery_candidates.sql");
    let database = TestDatabase::create().await;
    let client = database.client().await;
    client.batch_execute("set jit = off").await.unwrap();
    client.batch_execute(FILL).await.unwrap();
    client.batch_execute("analyze").await.unwrap();
    for (statement, literals) in [(outlook, "'default'"), (candidates, "'default', '{}', 100")] {
        let plan = plan(&client, statement, literals).await;
        let mut scans = Vec::new();
        nodes_of(&plan, "Seq Scan", &mut scans);
        let of_leases: Vec<&String> =
            scans.iter().filter(|scan| scan.contains("lease_expires_at <=")).collect();
        let [scan] = of_leases[..] else { panic!("one scan of the leases: {scans:?}") };
        assert!(scan.contains("lease_expires_at <= $"), "{scan}");
        let mut loops = Vec::new();
        nodes_of(&plan, "Nested Loop", &mut loops);
        assert!(loops.is_empty(), "{plan:#}");
    }
}

async fn updates(client: &Client) -> (i64, i64) {
    client.batch_execute("select pg_stat_force_next_flush(); select pg_stat_clear_snapshot()").await.unwrap();
    let row = client
        .query_one(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables
             where schemaname = 'leasehold' and relname = 'leases'",
            &[],
        )
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

async fn renew_all(store: &PgStore, grants: &[leasehold::protocol::ports::Grant]) {
    let renewals = grants.iter().map(|grant| store.renew(&grant.authority));
    for renewal in futures_util::future::join_all(renewals).await {
        assert!(matches!(renewal.unwrap(), Renewal::Held { .. }));
    }
}

/// No index covers anything that a renewal changes, and every page has room for the next version. (Another session
/// with an old snapshot, such as autovacuum's, can keep that room occupied: a round that met one is not counted.)
#[tokio::test(flavor = "multi_thread")]
async fn every_renewal_is_hot() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    without_autovacuum(&client).await;
    let owner = claimant("w1");
    queue_many(&client, 500).await;
    let grants = claim_many(&store, &owner, 500).await;
    let mut rounds = Vec::new();
    for round in 1..=5 {
        let before = updates(&client).await;
        for _ in 0..6 {
            renew_all(&store, &grants).await;
        }
        let after = eventually(Duration::from_secs(30), "the statistics arrive", async || {
            let now = updates(&client).await;
            (now.0 >= round * 3000).then_some(now)
        })
        .await;
        if after.0 - before.0 == after.1 - before.1 {
            return;
        }
        rounds.push((after.0 - before.0, after.1 - before.1));
    }
    panic!("renewals, and how many of them were HOT: {rounds:?}");
}
