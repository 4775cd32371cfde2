//! `leasehold job signal`.

use leasehold_actors::{
    domain::{InvalidDefinition, JobId},
    ports::recipe::{
        MAX_PENDING_SIGNAL_BYTES, MAX_PENDING_SIGNALS, NewSignal, RecipeStore as _, SignalAnswer,
    },
};

use super::super::{CliError, Exit, output, store};
use crate::{config::Effective, submission};

/// Send a signal to a recipe: stored until a `wait_for_signal` takes it, also before anybody waits
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: leasehold job signal 42 approved --data '{\"by\": \"me\"}' --key approval-1"
)]
pub(super) struct Args {
    /// The job's id
    #[arg(value_name = "ID", value_parser = super::parse_id)]
    id: JobId,
    /// The signal's name, as the recipe waits for it
    name: String,
    /// What comes with it: JSON, @FILE, or @- for standard input
    #[arg(long, value_name = "JSON", default_value = "null")]
    data: String,
    /// A repeat of the same signal with this key is the same signal
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// One JSON object that says what was done
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let (id, name) = (args.id, &args.name);
    let data = super::super::job_args::json_argument("--data", &args.data)?;
    let usage = |broken: InvalidDefinition| CliError::usage(broken.to_string());
    submission::text_name("a signal's name", name).map_err(usage)?;
    args.key
        .as_deref()
        .map_or(Ok(()), submission::idempotency_key)
        .map_err(|broken| CliError::usage(format!("--key {}", broken.reason)))?;
    submission::json::check("--data", &data).map_err(usage)?;
    let signal = NewSignal { name: name.clone(), data, key: args.key.clone() };
    store::with_store(settings, async |store| {
        let refused = |why: String| Err(CliError::new(Exit::Refused, why));
        match store.send_signal(&settings.namespace(), id, &signal).await? {
            SignalAnswer::NotFound => Err(super::no_recipe(&store, &settings.namespace(), id).await),
            SignalAnswer::KeyConflict => refused(format!(
                "job {id} has another signal with that key; use another key, or the same name and data"
            )),
            SignalAnswer::TooMany => refused(format!(
                "too_many_signals: job {id} has {MAX_PENDING_SIGNALS} signals, or {MAX_PENDING_SIGNAL_BYTES} bytes of them, \
                 that nobody has taken; see `leasehold job why {id}` for what it waits for"
            )),
            SignalAnswer::JobEnded { state } => refused(format!(
                "job_ended: job {id} has ended already: {state}; see `leasehold job results {id}`"
            )),
            SignalAnswer::Stored { id: signal, created } => {
                if args.json {
                    output::json(&serde_json::json!({ "job": id, "signal": signal, "created": created }))?;
                } else if created {
                    output::line(&format!("job {id} was sent {name}"))?;
                } else {
                    output::line(&format!("job {id} was sent {name} before, under that key"))?;
                }
                Ok(Exit::Ok)
            }
        }
    })
}
