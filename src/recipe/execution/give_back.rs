//! Gives a job back to go on later or elsewhere, with its needs published, and knows whether that was acknowledged.

use std::time::Duration;

use leasehold_actors::{
    domain::{
        CommandId,
        execution::{Allocation, PublishedExecution, Requirements, SpliceError, payload},
    },
    error::StoreError,
    ports::{
        End, Ended, PayloadUpdate,
        recipe::{Hint, Publication, RecipeJob},
    },
    work::{LeaseContext, StopReason},
};

use super::{
    facts::hint_of,
    runtime::{JobRuntime, Reschedule},
};

/// So many conflicts of the payload's revision count as a refusal.
const CONFLICTS: u32 = 5;
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// The hint of what needs nothing.
const NOTHING: Hint = Hint {
    cpu_millis: None,
    memory_bytes: None,
    ephemeral_storage_bytes: None,
    platform: None,
    image_reference: None,
    image_digest: None,
};

/// What became of it.
#[derive(Debug)]
pub(super) enum GivenBack {
    /// The jobs service has spoken.
    Acknowledged {
        answer: Ended,
        /// What it was told: the same at every repeat.
        end: Box<End>,
        /// Whether the client payload was changed.
        published: bool,
    },
    /// It surely did not take it, or nobody knows: nothing more is done under this lease.
    Unacknowledged(String),
}

/// What is to be published.
pub(super) struct Needs<'a> {
    pub(super) requirements: &'a Requirements,
    /// The allocation that declined them: a handoff.
    pub(super) declined_by: Option<&'a Allocation>,
}

/// Reschedules under one command, again and again until there is an answer or the lease runs out. A client that
/// changes its payload meanwhile loses nothing: what it wrote is read again and published into anew.
pub(super) async fn give_back(
    runtime: &dyn JobRuntime,
    lease: &LeaseContext,
    next: Reschedule,
    needs: Option<Needs<'_>>,
) -> GivenBack {
    let command = CommandId::generate();
    let mut conflicts = 0;
    loop {
        let job = match read(runtime, lease).await {
            Ok(job) => job,
            Err(reason) => return GivenBack::Unacknowledged(reason),
        };
        let next = match publication(&job, needs.as_ref()) {
            Ok((payload, publish)) => Reschedule { payload, publish, ..next.clone() },
            Err(reason) => return GivenBack::Unacknowledged(reason),
        };
        // From here on the lease may be ended by us, and whoever renews it must know.
        lease.pledge(command);
        match repeat(lease, || runtime.reschedule(lease, command, &next)).await {
            Ok(Ended::PayloadConflict { current_revision }) => {
                conflicts += 1;
                if conflicts >= CONFLICTS {
                    return GivenBack::Unacknowledged(format!(
                        "the client payload was changed {conflicts} times meanwhile; it is at revision {current_revision}"
                    ));
                }
                tokio::time::sleep(jitter(conflicts)).await;
            }
            Ok(answer) => {
                let published = next.payload.is_some();
                return GivenBack::Acknowledged { answer, end: Box::new(next.to_end()), published };
            }
            Err(reason) => return GivenBack::Unacknowledged(reason),
        }
    }
}

/// Reads the job, as often as it takes.
pub(super) async fn read(runtime: &dyn JobRuntime, lease: &LeaseContext) -> Result<RecipeJob, String> {
    let authority = lease.authority();
    repeat(lease, || runtime.read_job(&authority.owner.namespace, authority.job))
        .await?
        .ok_or_else(|| "there is no such job any more".to_owned())
}

/// Asks until there is an answer, a refusal, or no time left.
pub(super) async fn repeat<T, F>(lease: &LeaseContext, ask: impl Fn() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut wait = FIRST_RETRY;
    loop {
        if lease.remaining().is_zero() || lease.stop_reason() == Some(StopReason::LeaseLost) {
            return Err("no answer before the lease ran out".to_owned());
        }
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.is_retryable() => {
                tracing::warn!(job = %lease.authority().job, %error, "no answer, asking again");
                tokio::time::sleep(wait.min(lease.remaining())).await;
                wait = (wait * 2).min(LAST_RETRY);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// How the payload and the hint are to be changed.
fn publication(
    job: &RecipeJob,
    needs: Option<&Needs<'_>>,
) -> Result<(Option<PayloadUpdate>, Option<Publication>), String> {
    let Some(Needs { requirements, declined_by }) = needs else { return Ok((None, None)) };
    let hint = hint_of(requirements);
    let saved = job.published.as_ref();
    let same_hint = saved.unwrap_or(&NOTHING) == &hint;
    if declined_by.is_none() && same_hint {
        return Ok((None, None));
    }
    let present = payload::read(&job.payload).map_err(|error| error.to_string())?;
    let update = if present.is_some_and(|present| present.requirements == **requirements) {
        None
    } else {
        let execution =
            PublishedExecution { requirements: (*requirements).clone(), allocation: declined_by.cloned() };
        match payload::splice(&job.payload, &execution) {
            Ok(value) => Some(PayloadUpdate { value, expected_revision: job.payload_revision }),
            // There is no room in the client's payload: the hint alone says it.
            Err(SpliceError::TooLarge { .. }) => None,
            Err(error) => return Err(error.to_string()),
        }
    };
    let declined_by = declined_by
        .map(|allocation| serde_json::to_string(allocation).expect("texts always serialize").into());
    let handoff = declined_by.is_some();
    Ok((update, Some(Publication { hint, handoff, declined_by })))
}

fn jitter(conflicts: u32) -> Duration {
    let most = 50_u64 << conflicts.min(5);
    Duration::from_millis(rand::random_range(most / 2..=most))
}
