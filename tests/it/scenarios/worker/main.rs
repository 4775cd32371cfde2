//! The worker processes of the scenarios: the real library, with handlers that leave traces in a table outside
//! of schema `leasehold`.
//!
//! Settings come from the environment, as for `leasehold worker`. It prints `ready` once its actors run, and at its end
//! one JSON object with its permits. Handlers, each with `{"ms": …}` as its payload:
//!
//! | name | does |
//! |---|---|
//! | `trace` | writes a row, sleeps for so long, writes another |
//! | `obedient` | the same, but ends at once when it is told to stop |
//! | `blocking` | as `trace`, but blocks its thread meanwhile |
//! | `panicking` | writes a row and panics |
//! | `ticking` | knows nothing of leases: blocks its thread, and writes a tick to `SCENARIO_LEDGER` every 100 ms |
//!
//! With `SCENARIO_CONTAINERS=1` it serves containers too.

use std::{error::Error, io::Write as _, process::ExitCode, sync::Arc, time::Duration};

use leasehold::{
    Worker,
    worker::StopSignals,
    workload::handler::{HandlerError, Job, LeaseHandle},
};
use serde::Deserialize;
use tokio_postgres::{Client, NoTls};

#[derive(Debug, Deserialize)]
struct Work {
    ms: u64,
}

/// Where handlers leave their traces: `traces (job, attempt, epoch, pid, what, at)`, without any key.
#[derive(Clone)]
struct Traces(Arc<Client>);

impl Traces {
    async fn leave(&self, what: &str, lease: &LeaseHandle) -> Result<(), HandlerError> {
        let pid = i64::from(std::process::id());
        self.0
            .execute(
                "insert into traces (job, attempt, epoch, pid, what) values ($1, $2, $3, $4, $5)",
                &[&lease.job().0, &lease.attempt(), &lease.epoch().0, &pid, &what],
            )
            .await?;
        Ok(())
    }
}

async fn trace(traces: Traces, job: Job<Work>, lease: LeaseHandle) -> Result<(), HandlerError> {
    traces.leave("begin", &lease).await?;
    tokio::time::sleep(Duration::from_millis(job.payload.ms)).await;
    traces.leave("end", &lease).await
}

async fn obedient(traces: Traces, job: Job<Work>, lease: LeaseHandle) -> Result<(), HandlerError> {
    traces.leave("begin", &lease).await?;
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(job.payload.ms)) => traces.leave("end", &lease).await,
        reason = lease.cancelled() => {
            traces.leave(&format!("stopped: {reason:?}"), &lease).await?;
            Err(HandlerError::stopped())
        }
    }
}

async fn blocking(traces: Traces, job: Job<Work>, lease: LeaseHandle) -> Result<(), HandlerError> {
    traces.leave("begin", &lease).await?;
    std::thread::sleep(Duration::from_millis(job.payload.ms));
    traces.leave("end", &lease).await
}

async fn panicking(traces: Traces, job: Job<Work>, lease: LeaseHandle) -> Result<(), HandlerError> {
    traces.leave("begin", &lease).await?;
    panic!("this handler always panics, after {} ms of nothing", job.payload.ms)
}

async fn ticking(job: Job<Work>, lease: LeaseHandle) -> Result<(), HandlerError> {
    let mut ledger = std::net::TcpStream::connect(std::env::var("SCENARIO_LEDGER")?)?;
    for _ in 0..job.payload.ms / 100 {
        let uptime = std::fs::read_to_string("/proc/uptime")?;
        let at = uptime.split_whitespace().next().unwrap_or_default();
        ledger.write_all(format!("{} {} {at}\n", lease.job(), lease.epoch()).as_bytes())?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    leasehold::telemetry::init("info")?;
    let signals = StopSignals::listen()?;
    let (client, connection) = tokio_postgres::connect(&std::env::var("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    let traces = Traces(Arc::new(client));
    let with = |traces: &Traces| traces.clone();
    let (a, b, c, d) = (with(&traces), with(&traces), with(&traces), with(&traces));
    let worker = Worker::builder()
        .handler("trace", move |job, lease| trace(a.clone(), job, lease))
        .handler("obedient", move |job, lease| obedient(b.clone(), job, lease))
        .handler("blocking", move |job, lease| blocking(c.clone(), job, lease))
        .handler("panicking", move |job, lease| panicking(d.clone(), job, lease))
        .handler("ticking", ticking)
        .containers(std::env::var("SCENARIO_CONTAINERS").is_ok_and(|value| value == "1"))
        .build()
        .await?;
    let health = worker.health();
    let run = worker.run_until_or_now(signals.first(), signals.second());
    let say_ready = async {
        while health.actors().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        println!("ready");
        std::future::pending::<()>().await;
    };
    let exit = tokio::select! {
        exit = run => exit?,
        () = say_ready => unreachable!("it waits for ever"),
    };
    let permits = health.actors().map(|actors| actors.permits).unwrap_or_default();
    println!(
        "{}",
        serde_json::json!({ "free": permits.free, "capacity": permits.total(), "exit": format!("{exit:?}") })
    );
    Ok(ExitCode::from(exit.code()))
}
