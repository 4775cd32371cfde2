//! `leasehold job logs`.

use leasehold_actors::domain::JobId;

use super::super::{
    CliError, Exit,
    follow::{Follower, Sink, not_found},
    output, store,
};
use crate::{config::Effective, postgres::read::LogStreamName};

/// Print a job's output: standard output and standard error on our own streams
#[derive(Debug, clap::Args)]
#[command(after_help = "On a terminal, control sequences are shown and not sent, unless --raw is given.\n\n\
                        Example: leasehold job logs --follow 42\n\
                        Example: leasehold job logs 42 --stream stderr > errors.txt")]
pub(super) struct Args {
    /// The job's id
    #[arg(value_name = "ID", value_parser = super::parse_id)]
    id: JobId,
    /// Go on until the job has ended
    #[arg(long, short = 'f')]
    follow: bool,
    /// Only one stream; `system` is what Leasehold itself remarked
    #[arg(long, value_name = "STREAM")]
    stream: Option<StreamArg>,
    /// Send bytes to the terminal as they are
    #[arg(long)]
    raw: bool,
    /// One JSON object for each stored piece
    #[arg(long, conflicts_with_all = ["follow", "raw", "stream"])]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum StreamArg {
    Stdout,
    Stderr,
    System,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let namespace = settings.namespace();
    let only = args.stream.map(|stream| match stream {
        StreamArg::Stdout => LogStreamName::Stdout,
        StreamArg::Stderr => LogStreamName::Stderr,
        StreamArg::System => LogStreamName::System,
    });
    store::with_store(settings, async |store| {
        store.show_job(&namespace, args.id).await?.ok_or_else(|| not_found(args.id))?;
        if args.json {
            let mut after = 0;
            loop {
                let rows = store.read_logs(&namespace, args.id, after, 500).await?;
                let Some(last) = rows.last() else { return Ok(Exit::Ok) };
                after = last.seq;
                for row in &rows {
                    output::json(row)?;
                }
            }
        }
        let sink = Sink::new(args.raw, only);
        let mut follower =
            Follower { store: &store, namespace: &namespace, job: args.id, sink, after: 0, steps: None };
        if args.follow {
            follower.until_end(|_, _| {}).await?;
        } else {
            follower.drain().await?;
            follower.sink.finish()?;
        }
        Ok(Exit::Ok)
    })
}
