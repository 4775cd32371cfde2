//! `leasehold submit`.

use super::{CliError, Exit, JobArgs, output, store};
use crate::config::Effective;

/// Submit a job: a container, an HTTP probe, a registered function, a recipe, or a run of a workflow
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold submit --image busybox --memory 64Mi -- echo hi\n\
                        Example: leasehold submit --http https://example.org/healthz --expect-status 200,204\n\
                        Example: leasehold submit --handler send-email --payload '{\"to\": \"me\"}' --idempotency-key mail-7\n\
                        Example: leasehold submit --recipe process.yaml --input url=http://example.org/a --input sizes:='[1, 2]'")]
pub(super) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// One JSON object: the job, and whether it is new
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(serde::Serialize)]
struct Answer<'a, T> {
    #[serde(flatten)]
    job: &'a T,
    created: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let job = args.job.to_job(settings.namespace())?;
    // Said before a connection is made: a mistake needs no database.
    crate::submission::validate(&job).map_err(|e| CliError::usage(e.to_string()))?;
    store::with_store(settings, async |store| {
        let submitted = store.submit(&job).await?;
        if !args.json {
            output::line(&submitted.job.to_string())?;
            if !submitted.created {
                output::note(&format!(
                    "job {} has that idempotency key already; nothing new was submitted",
                    submitted.job
                ));
            }
            return Ok(Exit::Ok);
        }
        match store.show_job(&job.namespace, submitted.job).await? {
            Some(detail) => output::json(&Answer { job: &detail.row, created: submitted.created })?,
            None => output::json(&serde_json::json!({ "id": submitted.job, "created": submitted.created }))?,
        }
        Ok(Exit::Ok)
    })
}
