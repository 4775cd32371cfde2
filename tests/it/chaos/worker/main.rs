//! A worker of a chaos run: the real library with one handler that follows a script and writes what it does to
//! the ledger (`tests/it/chaos/ledger.rs`). With `CHAOS_DEFECT` it has a defect on purpose, which the checker
//! must find.

#[path = "../../support/around_store.rs"]
#[expect(unreachable_pub, reason = "the tests share it")]
mod around_store;
mod defective;

use std::{error::Error, net::SocketAddr, process::ExitCode, time::Duration};

use leasehold::{
    Worker,
    worker::StopSignals,
    workload::handler::{HandlerError, Job, LeaseHandle},
};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

/// What a handler shall do.
#[derive(Debug, Deserialize)]
struct Script {
    ms: u64,
    /// The code to fail with in the end.
    fails: Option<String>,
}

const TICK: Duration = Duration::from_millis(200);

/// Seconds since the machine started, as `/proc/uptime` has them: the same clock in every process, whatever
/// the wall clock shows.
fn uptime() -> String {
    let time = clock_gettime(ClockId::Boottime);
    format!("{}.{:06}", time.tv_sec, time.tv_nsec / 1000)
}

async fn script(ledger: SocketAddr, job: Job<Script>, lease: LeaseHandle) -> Result<(), HandlerError> {
    // One connection for one execution: dropped with this future, it tells when the work was really over.
    let mut ledger = TcpStream::connect(ledger).await?;
    ledger.set_nodelay(true)?;
    let pid = std::process::id();
    let start = format!("start handler {pid} {} {} {}\n", lease.job(), lease.epoch(), uptime());
    ledger.write_all(start.as_bytes()).await?;
    let mut left = Duration::from_millis(job.payload.ms);
    while !left.is_zero() {
        let step = left.min(TICK);
        tokio::select! {
            () = tokio::time::sleep(step) => left -= step,
            _ = lease.cancelled() => return Err(HandlerError::stopped()),
        }
        ledger.write_all(format!("tick {}\n", uptime()).as_bytes()).await?;
    }
    ledger.write_all(format!("end {}\n", uptime()).as_bytes()).await?;
    match job.payload.fails {
        Some(code) => Err(HandlerError::user(code, "as its script says")),
        None => Ok(()),
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    leasehold::telemetry::init("info")?;
    let signals = StopSignals::listen()?;
    let ledger: SocketAddr = std::env::var("CHAOS_LEDGER")?.parse()?;
    let worker = Worker::builder().handler("script", move |job, lease| script(ledger, job, lease));
    let worker = match defective::as_told(worker).build().await {
        Ok(worker) => worker,
        Err(error) => {
            eprintln!("{error}");
            // As `leasehold worker` does when the database is out of reach.
            return Ok(ExitCode::from(6));
        }
    };
    let exit = worker.run_until_or_now(signals.first(), signals.second()).await?;
    Ok(ExitCode::from(exit.code()))
}
