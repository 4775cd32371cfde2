//! `leasehold lease acquire`: claims one recipe job and exports its lease, for a supervisor that runs it elsewhere.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Subcommand;
use leasehold_actors::{
    domain::{
        CommandId, Epoch, JobId, JobKind, JobState, Namespace, ProcessId, RecipeSpec, Route,
        execution::{Allocation, compare, payload},
    },
    error::{Applied, StoreError},
    ports::{
        ClaimRejection, Claimant, DispatchedJob, End, Grant, LeaseStore as _, ListedAnswer, ListedClaim,
        OpenClaim,
        recipe::{Facts, RecipeStore as _},
    },
};

use serde::Serialize;

use super::{CliError, Exit, output, store};
use crate::{
    config::{Effective, WorkerSettings},
    postgres::PgStore,
    recipe::{ops, supplied::Capability},
};

/// The tasks of an open claim that names no route: the beginning of a job, and the ops that every worker can have.
const BUILT_IN: [&str; 4] = ["", ops::COMMAND, ops::HTTP, "container"];

/// Most jobs that one look makes QUEUED before the claim, and how often it looks.
const DISPATCH_BATCH: u32 = 500;
const DISPATCHES: u32 = 20;

/// Between two tries of a claim whose answer was lost.
const RETRY: Duration = Duration::from_millis(250);

/// Acquire leases for other processes
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold lease acquire --lease-file job.lease")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Acquire(Acquire),
}

/// Claim one recipe job and export its lease to a new file that only its owner can read
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The job is then run by `leasehold run-with-lease`, which must begin before the lease runs out \
                  (--lease-duration); otherwise recovery gives the job back.\n\n\
                  Exit codes: 0 acquired (a JSON line says which job), 2 usage, or the file exists or cannot be written, \
                  4 nothing to acquire, 6 unreachable or answer unknown.\n\n\
                  Example: leasehold lease acquire --compatible-with cpu=2,memory=4Gi --lease-file job.lease\n\
                  Example: leasehold lease acquire --job 42 --lease-file job.lease"
)]
struct Acquire {
    /// Where to write the capability: a file that does not exist yet
    #[arg(long, value_name = "PATH")]
    lease_file: PathBuf,
    /// Exactly this job, if it is queued
    #[arg(long, value_name = "ID", value_parser = super::job::parse_id, conflicts_with = "route")]
    job: Option<JobId>,
    /// The next job of this type, or of this type and next task: TYPE or TYPE/OP; may be repeated. Without it: `recipe`, at
    /// its beginning or at a built-in op
    #[arg(long, value_name = "ROUTE", value_parser = parse_route)]
    route: Vec<Route>,
    /// Only a job whose published needs an environment with these facts satisfies: cpu=2,memory=4Gi,… Without it and
    /// without --job, a job that was handed on for what its worker lacked is left alone
    #[arg(long, value_name = "FACTS", value_parser = Allocation::parse_facts)]
    compatible_with: Option<Allocation>,
}

fn parse_route(text: &str) -> Result<Route, String> {
    let (job_type, task) = text.split_once('/').unwrap_or((text, ""));
    let bad = |part: &str| part.len() > 200 || part.chars().any(char::is_control);
    if job_type.is_empty() || bad(job_type) || bad(task) || (text.contains('/') && task.is_empty()) {
        return Err("a route is TYPE or TYPE/OP, such as recipe or recipe/command".to_owned());
    }
    Ok(Route::recipe(job_type, task))
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    match &args.command {
        Command::Acquire(args) => acquire(args, settings),
    }
}

fn acquire(args: &Acquire, settings: &Effective) -> Result<Exit, CliError> {
    // `run-with-lease` reads `-` from a pipe; the other way there is none, since standard output has the line for programs.
    if args.lease_file.as_os_str() == "-" {
        return Err(CliError::usage(
            "--lease-file: `-` is no file; name a new one, which only its owner can read",
        ));
    }
    // Before anything is claimed for it.
    if args.lease_file.symlink_metadata().is_ok() {
        return Err(CliError::usage(format!(
            "--lease-file: {} exists already; name a new file",
            args.lease_file.display()
        )));
    }
    let worker = settings.worker()?;
    store::with_store(settings, async |store| {
        let owner = Claimant {
            namespace: settings.namespace(),
            worker: worker.worker_id.clone(),
            process: ProcessId::generate(),
        };
        // Without a worker nobody else makes due jobs ready.
        for _ in 0..DISPATCHES {
            if store.dispatch(&owner.namespace, DISPATCH_BATCH).await?.moved < DISPATCH_BATCH {
                break;
            }
        }
        let granted = match args.job {
            Some(job) => claim_this(&store, &owner, &worker, job, args).await?,
            None => claim_next(&store, &owner, &worker, args).await?,
        };
        let grant =
            granted.map_err(|why| CliError::new(Exit::NotFound, format!("nothing to acquire: {why}")))?;
        let capability = Capability::from(grant.authority.clone());
        if let Err(error) = capability.write_file(&args.lease_file) {
            give_back(&store, &grant).await;
            return Err(CliError::usage(error.to_string()));
        }
        output::json(&Line {
            job: grant.authority.job,
            namespace: &owner.namespace,
            epoch: grant.authority.epoch,
            route: serde_json::json!({ "job_type": grant.route.name, "task": grant.route.task }),
            lease_file: args.lease_file.display().to_string(),
            lease_ms: u64::try_from(grant.lease.as_millis()).unwrap_or(u64::MAX),
        })?;
        Ok(Exit::Ok)
    })
}

/// What standard output says: everything but what proves the lease.
#[derive(Debug, Serialize)]
struct Line<'a> {
    job: JobId,
    namespace: &'a Namespace,
    epoch: Epoch,
    route: serde_json::Value,
    lease_file: String,
    lease_ms: u64,
}

async fn claim_next(
    store: &PgStore,
    owner: &Claimant,
    worker: &WorkerSettings,
    args: &Acquire,
) -> Result<Result<Grant, String>, CliError> {
    let routes: Arc<[Route]> = if args.route.is_empty() {
        BUILT_IN.map(|task| Route::recipe(RecipeSpec::DEFAULT_JOB_TYPE, task)).into()
    } else {
        args.route.clone().into()
    };
    let mut claim = OpenClaim {
        owner: owner.clone(),
        command: CommandId::generate(),
        repeat: false,
        routes,
        limit: 1,
        lease: worker.lease,
        facts: args.compatible_with.as_ref().map(|allocation| Arc::new(Facts::from(allocation))),
    };
    let answer = until_answered(worker.lease, async |repeat| {
        claim.repeat = repeat;
        store.claim(&claim).await
    })
    .await?;
    Ok(answer.grants.into_iter().next().ok_or_else(|| {
        let facts = if args.compatible_with.is_some() {
            ""
        } else {
            " (one that waits for an environment is taken only with --compatible-with or --job)"
        };
        format!("no queued recipe job of these routes fits{facts}; see `leasehold jobs --kind RECIPE`")
    }))
}

async fn claim_this(
    store: &PgStore,
    owner: &Claimant,
    worker: &WorkerSettings,
    job: JobId,
    args: &Acquire,
) -> Result<Result<Grant, String>, CliError> {
    let Some(detail) = store.show_job(&owner.namespace, job).await? else {
        return Ok(Err(no_job(&owner.namespace, job)));
    };
    let row = &detail.row;
    if row.kind != JobKind::Recipe {
        return Err(CliError::new(
            Exit::Refused,
            format!(
                "wrong_kind: job {job} is a {}, and only RECIPE jobs are run with a supplied lease",
                row.kind
            ),
        ));
    }
    if row.state != JobState::Queued {
        return Ok(Err(rejected(job, &ClaimRejection::NotQueued { status: row.state })));
    }
    if let Some(allocation) = &args.compatible_with
        && let Some(why) = declined(store, &owner.namespace, job, allocation).await?
    {
        return Ok(Err(why));
    }
    let dispatched =
        DispatchedJob { job, generation: row.generation, dispatch_attempt: row.dispatch_attempt };
    let mut claim = ListedClaim {
        owner: owner.clone(),
        command: CommandId::generate(),
        repeat: false,
        jobs: vec![dispatched],
        lease: worker.lease,
    };
    let answers = until_answered(worker.lease, async |repeat| {
        claim.repeat = repeat;
        store.claim_listed(&claim).await
    })
    .await?;
    Ok(match answers.into_iter().next() {
        Some(ListedAnswer::Granted(grant)) => Ok(*grant),
        Some(ListedAnswer::Rejected(job, why)) => Err(rejected(job, &why)),
        None => Err(no_job(&owner.namespace, job)),
    })
}

/// Somebody was faster, or the job has changed since it was looked at.
fn rejected(job: JobId, why: &ClaimRejection) -> String {
    let why = match why {
        ClaimRejection::NotQueued { status } | ClaimRejection::AlreadyEnded { state: status } => {
            output::state_words(*status).to_owned()
        }
        other => format!("cannot be claimed now: {other}"),
    };
    format!("job {job} {why}; see `leasehold job why {job}`")
}

fn no_job(namespace: &Namespace, job: JobId) -> String {
    format!("there is no job {job} in namespace {namespace}; see `leasehold jobs`")
}

/// What of the published needs these facts do not satisfy.
async fn declined(
    store: &PgStore,
    namespace: &Namespace,
    job: JobId,
    allocation: &Allocation,
) -> Result<Option<String>, CliError> {
    let Some(recipe) = store.recipe_job(namespace, job).await? else {
        return Ok(Some(no_job(namespace, job)));
    };
    let published = match payload::read(&recipe.payload) {
        Ok(Some(published)) => published,
        Ok(None) => return Ok(None),
        Err(error) => return Ok(Some(format!("job {job}: {error}"))),
    };
    let mismatches = compare(&published.requirements, allocation);
    Ok((!mismatches.is_empty()).then(|| {
        let fields: Vec<_> = mismatches.iter().map(|m| format!("{} {}", m.field, m.required)).collect();
        format!("job {job} needs {}", fields.join(", "))
    }))
}

/// The repeat of a claim is that claim: asked again under its command for as long as what it granted can live.
async fn until_answered<T>(
    lease: Duration,
    mut ask: impl AsyncFnMut(bool) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let deadline = tokio::time::Instant::now() + lease;
    let mut repeat = false;
    loop {
        match ask(repeat).await {
            Err(error) if error.is_retryable() && tokio::time::Instant::now() < deadline => {
                repeat |= error.applied == Applied::Maybe;
                tokio::time::sleep(RETRY).await;
            }
            answer => return answer,
        }
    }
}

/// Nobody can run what cannot be handed over.
async fn give_back(store: &PgStore, grant: &Grant) {
    let end = End::Release { delay: Duration::ZERO, reason: "not_exported" };
    if let Err(error) = store.end(&grant.authority, CommandId::generate(), &end).await {
        output::note(&format!("job {} was not given back ({error}); its lease expires", grant.authority.job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_a_type_and_perhaps_a_task() {
        assert_eq!(parse_route("recipe"), Ok(Route::recipe("recipe", "")));
        assert_eq!(parse_route("Etl/resize"), Ok(Route::recipe("Etl", "resize")));
        assert_eq!(parse_route("a/b/c"), Ok(Route::recipe("a", "b/c")), "a task's name may be anything");
        for bad in ["", "/", "/x", "recipe/", "a\nb"] {
            assert!(parse_route(bad).is_err(), "{bad:?}");
        }
    }
}
