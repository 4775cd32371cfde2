//! `leasehold doctor`.

use std::time::Duration;

use tokio::runtime::Handle;

use super::{
    CliError, Exit,
    job_args::duration,
    output::{self, Listing},
    store,
};
use crate::{
    config::{DatabaseSettings, Effective},
    postgres::{
        audit::{self, AuditError, AuditSettings, Sort},
        doctor::{self, CheckStatus},
    },
};

/// Check database, schema, replication, clocks, nodes and stuck work; say what to do
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 1 when a check fails or the audit finds something, 6 when the database cannot be reached.\n\n\
                  Examples: leasehold doctor; leasehold doctor --audit --patience 5m"
)]
pub(super) struct Args {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Look through all jobs of all namespaces for broken invariants and stuck jobs: one line each, with its remedy.
    /// Changes nothing; a standby will do
    #[arg(long)]
    audit: bool,
    /// What is late by less than this is not stuck
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration, requires = "audit")]
    patience: Duration,
    /// The most findings that each check of the audit lists
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), requires = "audit")]
    lines: u32,
    /// The longest that each check of the audit may take; one that takes longer is a finding too
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration, requires = "audit")]
    check_timeout: Duration,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let database = settings.database_for_command("leasehold doctor")?;
    if args.audit {
        return look_through(args, &database);
    }
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

fn look_through(args: &Args, database: &DatabaseSettings) -> Result<Exit, CliError> {
    let how = AuditSettings { patience: args.patience, lines: args.lines, check_timeout: args.check_timeout };
    let audit = store::runtime()?.block_on(async {
        let client = audit::open(database).await?;
        audit::run_with(&client, &how).await
    })?;
    let mut table = Listing::new(&["check", "status", "namespace", "job", "found", "what to do"]);
    for finding in &audit.findings {
        if args.json {
            output::json(finding)?;
            continue;
        }
        let status = match finding.sort {
            Sort::Violation => format!("violation {}", finding.invariant),
            Sort::Stuck => "stuck".to_owned(),
            Sort::Unfinished => "unfinished".to_owned(),
        };
        table.row(vec![
            finding.check.to_owned(),
            status,
            output::or_dash(finding.namespace.as_deref()),
            output::or_dash(finding.job),
            finding.detail.clone(),
            finding.remedy.clone(),
        ]);
    }
    if !args.json && !audit.findings.is_empty() {
        table.print()?;
    }
    output::note(&format!(
        "{} checks over {} jobs as of {}{}: {} findings",
        audit.checks,
        audit.jobs,
        output::instant(audit.as_of),
        if audit.standby { ", at a standby" } else { "" },
        audit.findings.len()
    ));
    Ok(if audit.findings.is_empty() { Exit::Ok } else { Exit::Failed })
}

impl From<AuditError> for CliError {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Connect(e) => e.into(),
            AuditError::Store(_) => Self::new(Exit::Unreachable, error.to_string()),
        }
    }
}
