//! `leasehold job …`: one job.

pub(super) mod cancel;
mod logs;
mod payload;
mod replay;
mod results;
mod retry;
pub(super) mod show;
mod signal;
mod why;

use clap::Subcommand;
use leasehold_actors::domain::{JobId, Namespace};

pub(super) use self::show::failure_words;
use super::{CliError, Exit};
use crate::{config::Effective, postgres::PgStore};

/// Inspect a job, read its output, act on it
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold job show 42")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(show::Args),
    Logs(logs::Args),
    Cancel(cancel::Args),
    Retry(retry::Args),
    Why(why::Args),
    Results(results::Args),
    Signal(signal::Args),
    Payload(payload::Args),
    Replay(replay::Args),
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    match &args.command {
        Command::Show(args) => show::run(args, settings),
        Command::Logs(args) => logs::run(args, settings),
        Command::Cancel(args) => cancel::run(args, settings),
        Command::Retry(args) => retry::run(args, settings),
        Command::Why(args) => why::run(args, settings),
        Command::Results(args) => results::run(args, settings),
        Command::Signal(args) => signal::run(args, settings),
        Command::Payload(args) => payload::run(args, settings),
        Command::Replay(args) => replay::run(args, settings),
    }
}

/// A job's number as people type it.
pub(super) fn parse_id(text: &str) -> Result<JobId, String> {
    match text.parse::<i64>() {
        Ok(id) if id > 0 && text.bytes().all(|b| b.is_ascii_digit()) => Ok(JobId(id)),
        _ => Err("a job's id is a positive whole number, as `leasehold jobs` shows it".to_owned()),
    }
}

/// There is no such job, or it is of another kind.
pub(super) async fn no_recipe(store: &PgStore, namespace: &Namespace, job: JobId) -> CliError {
    let what = match store.show_job(namespace, job).await {
        Ok(Some(other)) => format!("job {job} is a {} and no RECIPE", other.row.kind),
        _ => format!("there is no recipe job {job} in this namespace"),
    };
    CliError::new(Exit::NotFound, format!("{what}; see `leasehold jobs --kind RECIPE`"))
}
