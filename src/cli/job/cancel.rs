//! `leasehold job cancel`.

use std::time::Duration;

use leasehold_actors::domain::{JobId, JobState};

use super::super::{CliError, Exit, follow::not_found, output, store};
use crate::{config::Effective, postgres::cancel::CancelAnswer};

/// For jobs whose definition names none.
pub(in crate::cli) const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// Cancel a job: at once when it has not started, otherwise its holder stops it
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold job cancel 42 --wait")]
pub(super) struct Args {
    /// The job's id
    #[arg(value_name = "ID", value_parser = super::parse_id)]
    id: JobId,
    /// Wait until it has ended
    #[arg(long)]
    wait: bool,
    /// One JSON object that says what was done
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let namespace = settings.namespace();
    let id = args.id;
    store::with_store(settings, async |store| {
        let answer = store.request_cancel(&namespace, id, DEFAULT_GRACE).await?;
        if answer == CancelAnswer::NotFound {
            return Err(not_found(id));
        }
        if args.json {
            output::json(&answer)?;
        }
        let say = |text: String| if args.json { Ok(()) } else { output::line(&text) };
        match answer {
            CancelAnswer::NotFound => return Err(not_found(id)),
            CancelAnswer::Canceled => say(format!("job {id} is CANCELED"))?,
            CancelAnswer::AlreadyEnded { state: JobState::Canceled } => {
                say(format!("job {id} was CANCELED already"))?
            }
            CancelAnswer::AlreadyEnded { state } => {
                return Err(CliError::new(
                    Exit::Refused,
                    format!(
                        "job {id} has ended already: {state}; nothing was changed, see `leasehold job show {id}`"
                    ),
                ));
            }
            CancelAnswer::Requested { deadline, .. } => {
                say(format!(
                    "job {id} was asked to stop; its holder cannot keep it beyond {}",
                    output::instant(deadline)
                ))?;
            }
        }
        if !args.wait {
            return Ok(Exit::Ok);
        }
        loop {
            let job = store.show_job(&namespace, id).await?.ok_or_else(|| not_found(id))?;
            if job.row.state.is_terminal() {
                say(format!("job {id} is {}", job.row.state))?;
                return Ok(Exit::Ok);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
}
