//! `leasehold job show`.

use std::collections::BTreeMap;

use leasehold_actors::{
    domain::{JobId, JobKind},
    ports::recipe::Event,
};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::super::{
    CliError, Exit,
    follow::not_found,
    jobs::refused_words,
    output::{self, Listing, instant, or_dash},
    steps, store,
};
use crate::{
    config::Effective,
    postgres::{
        execution_view::ExecutionView,
        read::{FailureRow, JobDetail},
    },
};

/// Show a job with its whole lease history, and what its recipe recorded
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The values that a recipe recorded are shown by `leasehold job results`; the files that it was pinned with are in --json, under \
                        definition.bundle.files.\n\n\
                        Example: leasehold job show 42\nExample: leasehold job show 42 --json | jq .leases"
)]
pub(super) struct Args {
    /// The job's id
    #[arg(value_name = "ID", value_parser = super::parse_id)]
    id: JobId,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    store::with_store(settings, async |store| {
        let namespace = settings.namespace();
        let job = store.show_job(&namespace, args.id).await?.ok_or_else(|| not_found(args.id))?;
        let events = match job.row.kind {
            JobKind::Recipe => Some(steps::all(&store, &namespace, args.id).await?),
            _ => None,
        };
        if args.json {
            let events = events.as_deref().map(|events| events.iter().map(steps::Brief::of).collect());
            output::json(&Shown { job: &job, events })?
        } else {
            print(&job)?;
            if let Some(events) = &events {
                print_events(events)?;
            }
        }
        Ok(Exit::Ok)
    })
}

/// A job as programs read it.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    job: &'a JobDetail,
    /// RECIPE: what was recorded, in order; without the values.
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<Vec<steps::Brief<'a>>>,
}

/// What a recipe recorded, in order.
fn print_events(events: &[Event]) -> Result<(), CliError> {
    if events.is_empty() {
        return output::line("its recipe has recorded nothing yet");
    }
    let mut table =
        Listing::new(&["ordinal", "path", "what", "outcome", "attempt", "worker", "epoch", "recorded"]);
    for event in events {
        let brief = steps::Brief::of(event);
        table.row(vec![
            event.ordinal.to_string(),
            if event.path.is_empty() { "(root)".to_owned() } else { event.path.clone() },
            brief.what(),
            or_dash(brief.outcome_words()),
            or_dash(brief.attempt),
            or_dash(event.worker.as_ref()),
            event.epoch.to_string(),
            instant(event.at),
        ]);
    }
    table.print()
}

/// Everything for a person.
pub(in crate::cli) fn print(job: &JobDetail) -> Result<(), CliError> {
    let row = &job.row;
    let mut facts = Listing::facts();
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            facts.row(vec![name.to_owned(), value]);
        }
    };
    fact("job", Some(row.id.to_string()));
    fact("state", Some(row.state.to_string()));
    fact("kind", Some(row.kind.to_string()));
    fact("workflow", Some(row.workflow.clone()));
    let route = if row.kind == JobKind::Recipe { "job type" } else { "handler" };
    fact(route, Some(row.route.clone()));
    fact("attempt", Some(row.attempt.to_string()));
    fact("exit code", row.exit_code.map(|code| code.to_string()));
    fact("failure", row.failure.as_ref().map(failure_words));
    fact("priority", Some(row.priority.to_string()));
    fact("submitted", Some(instant(row.submitted_at)));
    fact("due", row.due_at.map(instant));
    fact("waits for", row.blocked_by.map(|job| format!("job {job}")));
    fact("lease expires", row.lease_expires_at.map(instant));
    fact("cancel requested", row.cancel_requested_at.map(instant));
    fact("ended", row.ended_at.map(instant));
    fact("needs", row.execution.as_ref().map(needs_words));
    fact("refused", row.admission_refused.as_ref().map(refused_words));
    match Pinned::of(job) {
        // The texts of its files would hide all else; they are in --json.
        Some(pinned) => {
            let files = pinned.bundle.files.keys().cloned().collect::<Vec<_>>().join(", ");
            let digest = pinned.digest.get(..12).unwrap_or(&pinned.digest);
            fact("recipe", Some(format!("{} {digest} ({files})", pinned.recipe)));
            fact("inputs", Some(pinned.inputs.get().to_owned()).filter(|text| text != "{}"));
            fact("overrides", Some(pinned.require.get().to_owned()).filter(|text| text != "{}"));
        }
        None => fact("definition", Some(job.definition.get().to_owned())),
    }
    fact("payload", Some(job.payload.get().to_owned()).filter(|text| text != "null"));
    fact("output", job.output.as_ref().map(|text| text.get().to_owned()));
    fact("progress", job.progress.as_ref().map(|text| text.get().to_owned()));
    fact(
        "output kept",
        (job.log_bytes > 0).then(|| format!("{} bytes; leasehold job logs {}", job.log_bytes, row.id)),
    );
    for reopened in &job.reopened {
        fact(
            "reopened",
            Some(format!("{} (it had ended {})", instant(reopened.reopened_at), reopened.state)),
        );
    }
    facts.print()?;
    leases(job)
}

/// The definition of a RECIPE job, as far as people want to see it.
#[derive(Deserialize)]
struct Pinned<'a> {
    recipe: String,
    digest: String,
    bundle: Files,
    #[serde(borrow)]
    inputs: &'a RawValue,
    #[serde(borrow)]
    require: &'a RawValue,
}

#[derive(Deserialize)]
struct Files {
    files: BTreeMap<String, IgnoredAny>,
}

impl<'a> Pinned<'a> {
    fn of(job: &'a JobDetail) -> Option<Self> {
        (job.row.kind == JobKind::Recipe).then(|| serde_json::from_str(job.definition.get()).ok()).flatten()
    }
}

/// What it needs; where that cannot be read, why not.
fn needs_words(view: &ExecutionView) -> String {
    match view {
        ExecutionView::Malformed { reason } => format!("malformed: {reason}"),
        view => view.to_string(),
    }
}

/// The lease history alone.
pub(in crate::cli) fn leases(job: &JobDetail) -> Result<(), CliError> {
    if job.leases.is_empty() {
        return output::line("no worker has held it yet");
    }
    let mut table = Listing::new(&[
        "epoch", "attempt", "worker", "node", "granted", "ended", "how", "renewals", "failure",
    ]);
    for lease in &job.leases {
        table.row(vec![
            lease.epoch.to_string(),
            lease.attempt.to_string(),
            lease.worker.clone(),
            or_dash(lease.node.as_ref()),
            instant(lease.granted_at),
            or_dash(lease.ended_at.map(instant)),
            lease.how.clone(),
            lease.renewals.to_string(),
            or_dash(lease.failure.as_ref().map(failure_words)),
        ]);
    }
    table.print()
}

/// `USER 3: exited with code 3`
pub(in crate::cli) fn failure_words(failure: &FailureRow) -> String {
    let kind = failure.kind.map(|kind| kind.to_string());
    let head: Vec<&str> = [kind.as_deref(), failure.code.as_deref()].into_iter().flatten().collect();
    match failure.message.as_deref().filter(|message| !message.is_empty()) {
        Some(message) => format!("{}: {message}", head.join(" ")),
        None => head.join(" "),
    }
}
