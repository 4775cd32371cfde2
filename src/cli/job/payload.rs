//! `leasehold job payload`.

use clap::Subcommand;
use leasehold_actors::{
    domain::{JobId, execution::payload},
    ports::{
        PayloadUpdate,
        recipe::{PayloadSet, RecipeStore as _},
    },
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::super::{CliError, Exit, follow::not_found, output, store, text};
use crate::config::Effective;

/// Read or replace the data that a client keeps with its job
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold job payload get 42")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the payload as it is, and its revision
    #[command(after_help = "Example: leasehold job payload get 42 --json | jq .revision")]
    Get {
        /// The job's id
        #[arg(value_name = "ID", value_parser = super::parse_id)]
        id: JobId,
        /// One JSON object with payload and revision
        #[arg(long)]
        json: bool,
    },
    /// Replace the payload of a job that has not ended
    #[command(after_help = "Example: leasehold job payload set 42 '{\"owner\": \"me\"}' --expect 3")]
    Set {
        /// The job's id
        #[arg(value_name = "ID", value_parser = super::parse_id)]
        id: JobId,
        /// The new payload: JSON, @FILE, or @- for standard input
        #[arg(value_name = "JSON")]
        value: String,
        /// Only if the payload still has this revision; without it, the one that it has when this command looks
        #[arg(long, value_name = "REV")]
        expect: Option<i64>,
        /// One JSON object with the new revision
        #[arg(long)]
        json: bool,
    },
}

#[derive(Serialize)]
struct Shown<'a> {
    job: JobId,
    revision: i64,
    payload: &'a RawValue,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    match &args.command {
        Command::Get { id, json } => get(*id, *json, settings),
        Command::Set { id, value, expect, json } => set(*id, value, *expect, *json, settings),
    }
}

fn get(id: JobId, json: bool, settings: &Effective) -> Result<Exit, CliError> {
    store::with_store(settings, async |store| {
        let job = store.show_job(&settings.namespace(), id).await?.ok_or_else(|| not_found(id))?;
        if json {
            output::json(&Shown { job: id, revision: job.payload_revision, payload: &job.payload })?;
        } else {
            output::line(&text::json(job.payload.get().to_owned()))?;
            output::note(&format!("revision {}", job.payload_revision));
        }
        Ok(Exit::Ok)
    })
}

fn set(
    id: JobId,
    value: &str,
    expect: Option<i64>,
    json: bool,
    settings: &Effective,
) -> Result<Exit, CliError> {
    let value = super::super::job_args::json_argument("the payload", value)?;
    payload::check(&value).map_err(|broken| CliError::usage(broken.to_string()))?;
    let namespace = settings.namespace();
    store::with_store(settings, async |store| {
        let expected_revision = match expect {
            Some(revision) => revision,
            None => store.show_job(&namespace, id).await?.ok_or_else(|| not_found(id))?.payload_revision,
        };
        let update = PayloadUpdate { value: value.clone(), expected_revision };
        match store.set_payload(&namespace, id, &update).await? {
            PayloadSet::Set { revision } => {
                if json {
                    output::json(&serde_json::json!({ "job": id, "revision": revision }))?;
                } else {
                    output::line(&format!("job {id} has payload revision {revision}"))?;
                }
                Ok(Exit::Ok)
            }
            PayloadSet::Conflict { current_revision } => Err(CliError::new(
                Exit::Refused,
                format!(
                    "payload_conflict: job {id} has revision {current_revision}, not {expected_revision}; read it again: \
                     leasehold job payload get {id}"
                ),
            )),
            PayloadSet::JobEnded { state } => {
                Err(CliError::new(Exit::Refused, format!("job_ended: job {id} has ended already: {state}")))
            }
            PayloadSet::NotFound => Err(not_found(id)),
        }
    })
}
