//! `leasehold bench`.

use super::{
    CliError, Exit,
    output::{self, note},
    store,
};
use crate::{
    bench::{
        self, BenchError, BenchOptions, BenchReport,
        recovery::{RecoveryOptions, RecoveryReport},
        replay::{ReplayOptions, ReplayReport},
    },
    config::Effective,
    worker::StopSignals,
};

/// Measure the lease cycle on this database, beside the same statements driven raw
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It works in namespaces of its own, bench-…, and removes them, also after Ctrl-C. Each job is claimed, \
                  renewed, run and ended for real.\n\n\
                  Example: leasehold bench --jobs 50000 --rounds 5"
)]
pub(super) struct Args {
    #[command(flatten)]
    options: BenchOptions,
    /// Measure recovery instead: looks at many live leases, and thousands that expire at once while others claim
    #[arg(long)]
    recovery: bool,
    #[command(flatten)]
    recovery_options: RecoveryOptions,
    /// Measure the replay of recipes instead: a worker that knows nothing of a long log walks over it
    #[arg(long, conflicts_with = "recovery")]
    replay: bool,
    #[command(flatten)]
    replay_options: ReplayOptions,
    /// One JSON object with all figures
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let database = settings.database("leasehold bench")?;
    let report = store::runtime()?.block_on(async {
        let signals = StopSignals::listen()?;
        let progress = |step: &str| note(step);
        if args.recovery {
            let (options, rounds) = (&args.recovery_options, args.options.rounds);
            let figures =
                Box::pin(bench::recovery::run(&database, options, rounds, &progress, signals.first()));
            return figures.await.map(|report| Figures::Recovery(Box::new(report))).map_err(CliError::from);
        }
        if args.replay {
            let (options, rounds) = (&args.replay_options, args.options.rounds);
            let figures =
                Box::pin(bench::replay::run(&database, options, rounds, &progress, signals.first()));
            return figures.await.map(|report| Figures::Replay(Box::new(report))).map_err(CliError::from);
        }
        let figures = Box::pin(bench::run(&database, &args.options, &progress, signals.first()));
        figures.await.map(|report| Figures::Cycle(Box::new(report))).map_err(CliError::from)
    })?;
    match report {
        Figures::Cycle(report) if args.json => output::json(&report)?,
        Figures::Cycle(report) => output::line(&report.to_string())?,
        Figures::Recovery(report) if args.json => output::json(&report)?,
        Figures::Recovery(report) => output::line(&report.to_string())?,
        Figures::Replay(report) if args.json => output::json(&report)?,
        Figures::Replay(report) => output::line(&report.to_string())?,
    }
    Ok(Exit::Ok)
}

enum Figures {
    Cycle(Box<BenchReport>),
    Recovery(Box<RecoveryReport>),
    Replay(Box<ReplayReport>),
}

impl From<BenchError> for CliError {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Build(e) => e.into(),
            BenchError::Connect(e) => e.into(),
            BenchError::Submit(e) => e.into(),
            BenchError::Store(e) => e.into(),
            BenchError::Run(_)
            | BenchError::Invalid(_)
            | BenchError::Sql(_)
            | BenchError::Invalidated(_)
            | BenchError::Interrupted => Self::new(Exit::Failed, error.to_string()),
        }
    }
}
