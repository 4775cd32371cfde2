//! `leasehold bench`: figures of a run that is too small to mean anything, and nothing left behind.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{database::TestDatabase, eventually::eventually};

fn bench(database: &TestDatabase, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.arg("bench").args(args).env("DATABASE_URL", database.url());
    command
}

/// Rows in every table that a job may leave something in.
async fn rows(database: &TestDatabase) -> i64 {
    let client = database.client().await;
    let tables = client
        .query(
            "select relname::text from pg_class where relnamespace = 'leasehold'::regnamespace and relkind = 'r'
             and relname not in ('fleet', 'refinery_schema_history')",
            &[],
        )
        .await
        .unwrap();
    assert!(tables.len() > 10, "the tables were not found");
    let mut sum = 0;
    for table in tables {
        let name: String = table.get(0);
        let count: i64 =
            client.query_one(&format!("select count(*) from leasehold.{name}"), &[]).await.unwrap().get(0);
        sum += count;
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_benchmark_gives_all_its_figures_and_leaves_nothing() {
    let database = TestDatabase::create().await;
    let before = rows(&database).await;
    let args = "--jobs 600 --rounds 1 --latency-jobs 5 --single 2 --single-jobs 50 --batched 200 --json";
    let said = bench(&database, &args.split(' ').collect::<Vec<_>>()).output().unwrap();
    let log = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{log}");
    let figures: Value = serde_json::from_slice(&said.stdout).unwrap();
    for pointer in [
        "/raw/jobs_per_s",
        "/raw/wal_bytes_per_job",
        "/settings/0/jobs_per_s",
        "/settings/1/ratio_to_raw",
        "/settings/1/lease_p99_ms",
        "/settings/1/hot_ratio",
        "/best_ratio_to_raw",
        "/pick_up/worker/p50_ms",
        "/pick_up/bare/p99_ms",
        "/pick_up/p50_ratio",
    ] {
        let value = figures.pointer(pointer).and_then(Value::as_f64);
        assert!(value.is_some_and(|value| value > 0.0), "{pointer}: {figures}");
    }
    assert_eq!(figures["settings"][1]["name"], "batched 200");
    assert_eq!(rows(&database).await, before, "the benchmark left rows behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_benchmark_removes_its_jobs() {
    let database = TestDatabase::create().await;
    let before = rows(&database).await;
    let child = bench(&database, &["--jobs", "100000", "--rounds", "50"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually(Duration::from_secs(30), "the benchmark has submitted jobs", async || {
        (rows(&database).await > before + 1000).then_some(())
    })
    .await;
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let said = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{log}");
    assert!(log.contains("error: interrupted"), "{log}");
    // A worker that was in the middle of its drain gives up its leases beside the clean-up; both end.
    eventually(Duration::from_secs(30), "every row of the benchmark is gone", async || {
        (rows(&database).await == before).then_some(())
    })
    .await;
}
