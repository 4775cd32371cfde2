//! `leasehold job show`.

use leasehold_actors::domain::JobId;

use super::super::{
    CliError, Exit,
    follow::not_found,
    output::{self, Listing, instant, or_dash},
    store,
};
use crate::{
    config::Effective,
    postgres::read::{FailureRow, JobDetail},
};

/// Show a job with its whole lease history
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold job show 42\nExample: leasehold job show 42 --json | jq .leases")]
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
        let job = store.show_job(&settings.namespace(), args.id).await?.ok_or_else(|| not_found(args.id))?;
        if args.json {
            output::json(&job)?
        } else {
            print(&job)?
        }
        Ok(Exit::Ok)
    })
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
    fact("handler", Some(row.route.clone()));
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
    fact("definition", Some(job.definition.get().to_owned()));
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
