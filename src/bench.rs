//! `leasehold bench`: measures the lease cycle against any database, beside the same statements driven raw.
//!
//! What is measured, in interleaved rounds of one run, so that a machine whose speed drifts drifts for all:
//!
//! | | what |
//! |---|---|
//! | drain | N no-op HANDLER jobs, submitted in bulk, through the real [`Worker`](crate::Worker): claim, immediate renewal, handler, fenced end with its history row; the time ends when every job stands in `ended` |
//! | raw | the same statements for the same N jobs, in batches of 500 on 2 connections, and nothing else |
//! | pick-up | call of submit → handler entered, one job at a time, idle worker |
//! | bare | call of submit → NOTIFY → answer of the claim statement, on plain connections |
//!
//! [`recovery`] measures recovery instead, and [`replay`] the replay of recipes.
//!
//! Every run works in a namespace of its own, `bench-…`, and removes it when it ends, also after Ctrl-C.
//! Nothing is analyzed, vacuumed or tuned in between. The write-ahead log is the whole server's: on a server
//! with other work the bytes per job are too high.

mod drain;
mod fixture;
mod latency;

mod raw;
pub mod recovery;
pub mod replay;
mod report;
mod server;
mod stats;

use std::future::Future;

use leasehold_actors::{
    domain::{InvalidDefinition, Namespace},
    error::StoreError,
};

pub use self::{
    report::{BenchReport, LatencyReport, RawReport, SettingReport},
    stats::Percentiles,
};
use crate::{
    config::DatabaseSettings,
    postgres::{ConnectError, submit::SubmitError},
    worker::{BuildError, RunError},
};

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchOptions {
    /// Jobs in each drain
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub jobs: u32,
    /// Interleaved rounds; the medians of their ratios count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Jobs for the pick-up latency
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub latency_jobs: u32,
    /// Worker concurrencies to drain with, few handlers at a time
    #[arg(long, value_delimiter = ',', default_value = "1,4,16")]
    pub single: Vec<u32>,
    /// Worker concurrencies to drain with, whole batches at a time
    #[arg(long, value_delimiter = ',', default_value = "500,1000,2000")]
    pub batched: Vec<u32>,
    /// The most jobs of a drain with concurrency below 100, which would take very long with all
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub single_jobs: u32,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The worker cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The worker ended by itself.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The database cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A submit was refused.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A definition was refused.
    #[error(transparent)]
    Invalid(#[from] InvalidDefinition),
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A statement of the benchmark itself failed.
    #[error("a statement of the benchmark failed: {0}")]
    Sql(String),
    /// What was measured is not what was to be measured.
    #[error("the figures would be worth nothing: {0}")]
    Invalidated(String),
    /// Somebody pressed Ctrl-C.
    #[error("interrupted; the benchmark's jobs were removed")]
    Interrupted,
}

impl From<tokio_postgres::Error> for BenchError {
    fn from(error: tokio_postgres::Error) -> Self {
        // The driver's own words are "db error"; the server's are the source.
        let source = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        Self::Sql(format!("{error}{}", source.unwrap_or_default()))
    }
}

/// Measures, telling `progress` what is under way. When `stop` resolves first, everything is removed and the
/// answer is [`BenchError::Interrupted`].
///
/// # Errors
/// [`BenchError`] when there are no figures, or none that are worth anything.
pub async fn run(
    database: &DatabaseSettings,
    options: &BenchOptions,
    progress: &(dyn Fn(&str) + Send + Sync),
    stop: impl Future<Output = ()> + Send,
) -> Result<BenchReport, BenchError> {
    let bench = fixture::Bench::start(database, progress).await?;
    let measured = tokio::select! {
        measured = measure(&bench, options) => measured,
        () = stop => Err(BenchError::Interrupted),
    };
    progress("removing the benchmark's jobs");
    let removed = bench.clean_up().await;
    let report = measured?;
    removed?;
    Ok(report)
}

async fn measure(bench: &fixture::Bench<'_>, options: &BenchOptions) -> Result<BenchReport, BenchError> {
    let mut report = report::Gathering::new(bench.server.version().await?, options);
    let settings = drain::Setting::of(options);
    // Connections, caches and the operating system are warm for whoever comes first, too.
    bench.say("warming up");
    raw::drain(bench, options.jobs.min(2_000)).await?;
    for round in 1..=options.rounds {
        bench.say(&format!("round {round} of {}: raw statements", options.rounds));
        report.raw(raw::drain(bench, options.jobs).await?);
        for setting in &settings {
            bench.say(&format!("round {round} of {}: {}", options.rounds, setting.name));
            report.drained(setting, drain::run(bench, setting).await?);
        }
        bench.say(&format!("round {round} of {}: pick-up", options.rounds));
        let share = options.latency_jobs.div_ceil(options.rounds);
        report.bare(latency::bare(bench, share).await?);
        report.pick_up(Box::pin(latency::pick_up(bench, share)).await?);
    }
    report.finish()
}

/// A namespace that nobody else uses.
fn fresh_namespace() -> Namespace {
    let name = format!("bench-{:08x}", rand::random::<u32>());
    Namespace::new(name).expect("letters, digits and a dash make a name")
}
