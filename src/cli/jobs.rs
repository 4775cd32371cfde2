//! `leasehold jobs`.

use leasehold_actors::{
    domain::{JobKind, JobState, execution::Allocation},
    error::StoreErrorKind,
};

use super::{
    CliError, Exit,
    output::{self, Listing, instant, or_dash},
    store,
};
use crate::{
    config::Effective,
    postgres::{
        execution_view::{AdmissionRefused, Fits},
        read::{JobFilter, JobRow},
    },
};

/// List jobs, newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold jobs --state FAILED,CANCELED --workflow nightly\n\
                        Example: leasehold jobs --all --json | jq -r 'select(.attempt > 1) | .id'\n\
                        Example: leasehold jobs --compatible-with cpu=2,memory=4Gi --include-unresolved")]
pub(super) struct Args {
    /// Only these states; may be repeated
    #[arg(long, short = 's', value_name = "STATE", value_delimiter = ',')]
    state: Vec<JobState>,
    /// Only this kind
    #[arg(long, short = 'k', value_name = "KIND")]
    kind: Option<JobKind>,
    /// Only runs of this workflow; `adhoc` for runs without one
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// Rows a page
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Go on after a page, with the mark that it ended with
    #[arg(long, value_name = "MARK")]
    after: Option<String>,
    /// Every page
    #[arg(long, conflicts_with = "after")]
    all: bool,
    /// Oldest first
    #[arg(long)]
    oldest_first: bool,
    /// Only recipes that wait, and whose next task a worker with this could run: `cpu=2,memory=4Gi`; facts are cpu, memory,
    /// ephemeral-storage, platform, image, image-digest and image-id
    #[arg(long, value_name = "FACTS", value_parser = Allocation::parse_facts)]
    compatible_with: Option<Allocation>,
    /// Also those whose needs are worked out only when they run
    #[arg(long, requires = "compatible_with")]
    include_unresolved: bool,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

impl Args {
    /// What `--compatible-with` asks for, unless it contradicts the other filters.
    fn fits(&self) -> Result<Option<Fits>, CliError> {
        let Some(allocation) = self.compatible_with.clone() else { return Ok(None) };
        if self.kind.is_some_and(|kind| kind != JobKind::Recipe) {
            return Err(CliError::usage("--compatible-with lists recipes only: leave --kind out"));
        }
        if self.state.iter().any(|state| !matches!(state, JobState::Pending | JobState::Queued)) {
            return Err(CliError::usage(
                "--compatible-with lists jobs that wait: of the states, it takes PENDING and QUEUED",
            ));
        }
        Ok(Some(Fits { allocation, include_unresolved: self.include_unresolved }))
    }
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let mut filter = JobFilter {
        namespace: settings.namespace(),
        states: args.state.clone(),
        kind: args.kind,
        workflow: args.workflow.clone(),
        limit: if args.all { 1000 } else { args.limit },
        after: args.after.clone(),
        oldest_first: args.oldest_first,
        fits: args.fits()?,
    };
    store::with_store(settings, async |store| {
        loop {
            let page = store.list_jobs(&filter).await.map_err(|error| match error.kind {
                StoreErrorKind::Refused if args.after.is_some() => {
                    CliError::usage(format!("--after: {}", error.message))
                }
                _ => error.into(),
            })?;
            if args.json {
                for job in &page.items {
                    output::json(job)?;
                }
            } else {
                print(&page.items)?;
            }
            match page.next {
                Some(next) if args.all => filter.after = Some(next),
                Some(next) => {
                    output::note(&format!("there are more: --after {next}"));
                    return Ok(Exit::Ok);
                }
                None => return Ok(Exit::Ok),
            }
        }
    })
}

/// A table of jobs; with what they need, where there are recipes among them.
pub(super) fn print(jobs: &[JobRow]) -> Result<(), CliError> {
    let mut titles =
        vec!["id", "state", "kind", "workflow", "attempt", "exit", "node", "worker", "submitted", "failure"];
    let with_needs = jobs.iter().any(|job| job.execution.is_some());
    if with_needs {
        titles.insert(8, "needs");
    }
    let mut table = Listing::new(&titles);
    for job in jobs {
        let mut cells = vec![
            job.id.to_string(),
            job.state.to_string(),
            job.kind.to_string(),
            if job.route.is_empty() {
                job.workflow.clone()
            } else {
                format!("{} ({})", job.workflow, job.route)
            },
            job.attempt.to_string(),
            or_dash(job.exit_code),
            or_dash(job.node.as_ref()),
            or_dash(job.worker.as_ref()),
            instant(job.submitted_at),
            // A refusal is no crash, and of a job that waits it is what matters.
            or_dash(match &job.admission_refused {
                Some(refused) if !job.state.is_terminal() => Some(refused_words(refused)),
                _ => job.failure.as_ref().map(super::job::failure_words),
            }),
        ];
        if with_needs {
            cells.insert(8, or_dash(job.execution.as_ref()));
        }
        table.row(cells);
    }
    table.print()
}

/// `admission refused 2 times: …`
pub(super) fn refused_words(refused: &AdmissionRefused) -> String {
    let times = if refused.in_a_row == 1 { "once".to_owned() } else { format!("{} times", refused.in_a_row) };
    format!("admission refused {times}: {}", refused.reason)
}

/// RUNNING jobs with the leases that hold them.
pub(super) fn print_leases(jobs: &[JobRow]) -> Result<(), CliError> {
    let mut table = Listing::new(&["id", "kind", "workflow", "attempt", "worker", "node", "lease expires"]);
    for job in jobs {
        table.row(vec![
            job.id.to_string(),
            job.kind.to_string(),
            job.workflow.clone(),
            job.attempt.to_string(),
            or_dash(job.worker.as_ref()),
            or_dash(job.node.as_ref()),
            or_dash(job.lease_expires_at.map(instant)),
        ]);
    }
    table.print()
}
