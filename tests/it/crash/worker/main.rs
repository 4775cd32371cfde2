//! A victim in a process of its own; see `tests/it/crash/`.

#[path = "../victim.rs"]
#[expect(unreachable_pub, reason = "the tests share it")]
mod victim;

use std::{error::Error, process::ExitCode};

use leasehold::worker::StopSignals;
use leasehold_actors::testing::crash_points::{CrashPoints, Fault};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    leasehold::telemetry::init("warn")?;
    let signals = StopSignals::listen()?;
    let place = victim::Place {
        url: std::env::var("CRASH_DATABASE")?,
        namespace: std::env::var("CRASH_NAMESPACE")?,
        name: std::env::var("CRASH_NAME")?,
        ledger: std::env::var("CRASH_LEDGER")?.into(),
    };
    let faults = std::env::var("CRASH_FAULTS")?;
    let faults: Vec<Fault> = faults.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let worker = victim::start(&place, &CrashPoints::with(faults)).await?;
    let exit = worker.run_until_or_now(signals.first(), signals.second()).await?;
    Ok(ExitCode::from(exit.code()))
}
