//! `leasehold doctor`.

use tokio::runtime::Handle;

use super::{
    CliError, Exit,
    output::{self, Listing},
    store,
};
use crate::{
    config::Effective,
    postgres::doctor::{self, CheckStatus},
};

/// Check database, schema, replication, clocks, nodes and stuck work; say what to do
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 1 when a check fails, 6 when the database cannot be reached.\n\nExample: leasehold doctor"
)]
pub(super) struct Args {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let database = settings.database_for_command("leasehold doctor")?;
    let checks = store::runtime()?
        .block_on(async { doctor::diagnose(&database, Handle::current(), &settings.namespace()).await });
    let mut table = Listing::new(&["check", "status", "found", "what to do"]);
    for check in &checks {
        if args.json {
            output::json(check)?;
            continue;
        }
        let status = match check.status {
            CheckStatus::Ok => "ok",
            CheckStatus::Warn => "warn",
            CheckStatus::Fail => "fail",
        };
        table.row(vec![
            check.name.to_owned(),
            status.to_owned(),
            check.detail.clone(),
            check.remedy.clone().unwrap_or_default(),
        ]);
    }
    if !args.json {
        table.print()?;
    }
    let failed: Vec<&str> =
        checks.iter().filter(|check| check.status == CheckStatus::Fail).map(|check| check.name).collect();
    Ok(match failed.as_slice() {
        [] => Exit::Ok,
        ["database"] if checks.len() == 1 => Exit::Unreachable,
        _ => Exit::Failed,
    })
}
