//! End: complete, fail, cancel, release, reschedule. Each ends the lease, frees the gates and leaves one row of
//! history, which also answers the repeat of the same command.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::recipe::superseded;
use super::{
    refused,
    submit::over,
    world::{Lease, PastLease, Place, Row, Terminal, Waiting, World, delta},
};
use crate::{
    domain::{CommandId, Epoch, Failure, FailureKind, JobKind, JobState, RetryPolicy, Route},
    error::StoreError,
    ports::{Authority, End, Ended, PayloadUpdate},
    testing::harness::HistoryView,
};

/// What an end does to a job, once decided.
struct Step {
    answer: Ended,
    how: &'static str,
    place: Place,
    failure: Option<Failure>,
    due_at: Option<DateTime<Utc>>,
}

impl World {
    pub(super) fn end(
        &mut self,
        authority: &Authority,
        command: CommandId,
        end: &End,
    ) -> Result<Ended, StoreError> {
        // A parameter of type json is read before anything else, also for a lease that is not live.
        if let End::Complete { output: Some(output), .. } = end
            && serde_json::from_str::<serde::de::IgnoredAny>(output).is_err()
        {
            return Err(refused("complete", "the output is not JSON"));
        }
        let Some(lease) = self.live(authority).cloned() else {
            return Ok(self.recorded_end(authority, command));
        };
        let row = self.rows.get(&authority.job).cloned().expect("a live lease is the row of its job");
        let superseded = superseded(self, &row);
        let step = match end {
            End::Complete { exit_code, output } => completed(*exit_code, output.clone()),
            End::Fail { failure, defaults } => {
                self.failed(authority, &row, &lease, failure, *defaults, superseded)
            }
            End::Lost { defaults, loss_limit, message } => {
                self.lost(authority, &row, &lease, *defaults, (*loss_limit, message), superseded)
            }
            End::FailForGood { failure } => self.failed_for_good(authority, failure),
            End::Cancel => canceled(None),
            End::Release { .. } | End::Reschedule { .. } if lease.cancel_requested => canceled(None),
            End::Release { .. } | End::Reschedule { .. } if superseded => {
                canceled(Some(superseded_failure()))
            }
            End::Release { delay, reason } => self.released(*delay, reason),
            End::Reschedule { route, delay, payload, wake, publish } => {
                if let Some(failure) = self.handoff_loop(authority.job, publish.as_ref()) {
                    self.failed_for_good(authority, &failure)
                } else {
                    if let Some(conflict) = self.update_payload(authority, payload.as_ref())? {
                        return Ok(conflict);
                    }
                    self.publish(authority, &lease, wake, publish.as_ref());
                    let due_at = self.due_at(authority.job, *delay, wake);
                    self.rescheduled(authority, route.as_ref(), due_at)
                }
            }
        };
        // Losses in a row: a lease that ended by its holder's word ends the row, if work was begun under it.
        if !matches!(end, End::Lost { .. })
            && !matches!(step.place, Place::Ended(_))
            && (lease.claim_renewed || matches!(end, End::Reschedule { .. } | End::Fail { .. }))
            && let Some(row) = self.rows.get_mut(&authority.job)
        {
            row.losses = 0;
        }
        Ok(self.finish(authority, command, &lease, step))
    }

    /// Moves the row, writes the history, frees the gates.
    fn finish(&mut self, authority: &Authority, command: CommandId, lease: &Lease, step: Step) -> Ended {
        let row = self.rows.get_mut(&authority.job).expect("a live lease is the row of its job");
        let view = HistoryView {
            epoch: Epoch(row.epoch),
            how: step.how.to_owned(),
            worker: lease.owner.worker.clone(),
            process: lease.owner.process,
            attempt: row.attempt,
            renewals: lease.renewals,
            command: Some(command),
            node: lease.placement.as_ref().map(|placement| placement.node.clone()),
            container: lease.container.clone(),
            failure: step.failure,
        };
        row.place = step.place;
        let past = PastLease { namespace: row.namespace.clone(), view, due_at: step.due_at };
        self.history.insert((authority.job, authority.epoch), past);
        self.free_slots(authority.job);
        self.after_end(authority.job);
        step.answer
    }

    /// The lease is not live: only the command that ended it is told how.
    fn recorded_end(&self, authority: &Authority, command: CommandId) -> Ended {
        let Some(past) = self.history.get(&(authority.job, authority.epoch)) else { return Ended::NotLive };
        let theirs = past.namespace == authority.owner.namespace
            && past.view.worker == authority.owner.worker
            && past.view.process == authority.owner.process
            && past.view.command == Some(command);
        if !theirs {
            return Ended::NotLive;
        }
        match past.view.how.as_str() {
            "completed" => Ended::Terminal(JobState::Completed),
            "failed" => Ended::Terminal(JobState::Failed),
            "canceled" => Ended::Terminal(JobState::Canceled),
            "retrying" => past.due_at.map_or(Ended::NotLive, |at| Ended::Retrying { at }),
            "released" => Ended::Released,
            "rescheduled" => Ended::Rescheduled,
            _ => Ended::NotLive,
        }
    }

    /// Counts the failure and decides whether a try is left.
    fn failed(
        &mut self,
        authority: &Authority,
        row: &Row,
        lease: &Lease,
        failure: &Failure,
        defaults: RetryPolicy,
        superseded: bool,
    ) -> Step {
        let own = self.jobs.get(&authority.job).map(|job| job.retry).unwrap_or_default();
        let policy = over(own, defaults);
        let (index, limit) = match failure.kind {
            FailureKind::User => (0, policy.max_user.unwrap_or(1)),
            FailureKind::System => (1, policy.max_system.unwrap_or(3)),
            FailureKind::Timeout => (2, policy.max_timeout.unwrap_or(1)),
        };
        let mut failures = row.failures;
        failures[index] += 1;
        let now = self.now();
        if let Some(row) = self.rows.get_mut(&authority.job) {
            row.failures = failures;
        }
        if failures[index] >= limit {
            return Step {
                answer: Ended::Terminal(JobState::Failed),
                how: "failed",
                place: terminal(JobState::Failed, failure.exit_code, Some(failure.clone()), None),
                failure: Some(failure.clone()),
                due_at: None,
            };
        }
        if lease.cancel_requested {
            return canceled(Some(failure.clone()));
        }
        if superseded {
            return canceled(Some(superseded_failure()));
        }
        let at = now + delta(backoff(policy, failures[index]));
        Step {
            answer: Ended::Retrying { at },
            how: "retrying",
            place: waiting(at, false),
            failure: Some(failure.clone()),
            due_at: Some(at),
        }
    }

    /// Counts the failure; no try is left, whatever the policy says.
    fn failed_for_good(&mut self, authority: &Authority, failure: &Failure) -> Step {
        let index = match failure.kind {
            FailureKind::User => 0,
            FailureKind::System => 1,
            FailureKind::Timeout => 2,
        };
        if let Some(row) = self.rows.get_mut(&authority.job) {
            row.failures[index] += 1;
        }
        Step {
            answer: Ended::Terminal(JobState::Failed),
            how: "failed",
            place: terminal(JobState::Failed, failure.exit_code, Some(failure.clone()), None),
            failure: Some(failure.clone()),
            due_at: None,
        }
    }

    /// Counts the loss, unless the database itself was away, and decides whether a try is left.
    fn lost(
        &mut self,
        authority: &Authority,
        row: &Row,
        lease: &Lease,
        defaults: RetryPolicy,
        (loss_limit, message): (i32, &str),
        superseded: bool,
    ) -> Step {
        let failure = Failure::new(FailureKind::System, "lease_lost", message);
        let crash_loop = Failure::new(FailureKind::System, "crash_loop", message);
        let own = self.jobs.get(&authority.job).map(|job| job.retry).unwrap_or_default();
        let policy = over(own, defaults);
        // A recipe that has recorded something since its claim does not kill its workers, and one whose payload was
        // refused has a count of its own for that.
        let recipe = self.recipes.get(&authority.job);
        let is_recipe = recipe.is_some();
        let got_on = recipe
            .and_then(|recipe| recipe.events.last())
            .is_some_and(|event| event.epoch.0 >= lease.claim_epoch);
        let was_refused =
            recipe.and_then(|recipe| recipe.refused_epoch).is_some_and(|epoch| epoch >= lease.claim_epoch);
        let excused = lease.excused || got_on || was_refused;
        let counts = i32::from(!excused);
        let before = if got_on { (0, 0) } else { (row.failures[1], row.losses) };
        let (failures, losses) = (before.0 + counts, before.1 + counts);
        if let Some(row) = self.rows.get_mut(&authority.job) {
            row.failures[1] = failures;
            row.losses = losses;
        }
        let ended = |failure: Failure| Step {
            answer: Ended::Terminal(JobState::Failed),
            how: "failed",
            place: terminal(JobState::Failed, None, Some(failure.clone()), None),
            failure: Some(failure),
            due_at: None,
        };
        if !excused && losses >= loss_limit {
            return ended(crash_loop);
        }
        if !excused && failures >= policy.max_system.unwrap_or(3) {
            return ended(failure);
        }
        if lease.cancel_requested {
            return canceled(Some(failure));
        }
        if superseded {
            return canceled(Some(superseded_failure()));
        }
        // The job is not to blame for a restart: it need not wait for it either. A recipe goes on at once: nothing that
        // it has done is done again.
        let wait = if excused || is_recipe { Duration::ZERO } else { backoff(policy, failures) };
        let at = self.now() + delta(wait);
        Step {
            answer: Ended::Retrying { at },
            how: "retrying",
            place: waiting(at, false),
            failure: Some(failure),
            due_at: Some(at),
        }
    }

    fn released(&self, delay: Duration, reason: &str) -> Step {
        let at = self.now() + delta(delay);
        Step {
            answer: Ended::Released,
            how: "released",
            place: waiting(at, true),
            failure: Some(Failure::new(FailureKind::System, reason, "")),
            due_at: Some(at),
        }
    }

    fn rescheduled(
        &mut self,
        authority: &Authority,
        route: Option<&Route>,
        due_at: Option<DateTime<Utc>>,
    ) -> Step {
        if let (Some(route), Some(row)) = (route, self.rows.get_mut(&authority.job)) {
            row.route = route.clone();
        }
        Step {
            answer: Ended::Rescheduled,
            how: "rescheduled",
            place: Place::Waiting(Waiting {
                due_at,
                held_due_at: None,
                blocked_by: None,
                keep_attempt: true,
            }),
            failure: None,
            due_at,
        }
    }

    /// Replaces the payload, or tells the revision in force.
    fn update_payload(
        &mut self,
        authority: &Authority,
        update: Option<&PayloadUpdate>,
    ) -> Result<Option<Ended>, StoreError> {
        let (Some(update), Some(job)) = (update, self.jobs.get_mut(&authority.job)) else { return Ok(None) };
        if serde_json::from_str::<serde::de::IgnoredAny>(&update.value).is_err() {
            return Err(refused("reschedule", "the payload is not JSON"));
        }
        if job.kind == JobKind::Recipe && !super::recipe::may_be_a_client_payload(&update.value) {
            return Err(refused("reschedule", "the payload of a recipe must be a JSON object, or null"));
        }
        if job.payload_revision != update.expected_revision {
            return Ok(Some(Ended::PayloadConflict { current_revision: job.payload_revision }));
        }
        job.payload = update.value.as_str().into();
        job.payload_revision += 1;
        Ok(None)
    }
}

fn completed(exit_code: Option<i32>, output: Option<String>) -> Step {
    Step {
        answer: Ended::Terminal(JobState::Completed),
        how: "completed",
        place: terminal(JobState::Completed, exit_code, None, output),
        failure: None,
        due_at: None,
    }
}

fn canceled(failure: Option<Failure>) -> Step {
    let exit_code = failure.as_ref().and_then(|f| f.exit_code);
    Step {
        answer: Ended::Terminal(JobState::Canceled),
        how: "canceled",
        place: terminal(JobState::Canceled, exit_code, failure.clone(), None),
        failure,
        due_at: None,
    }
}

/// Why a job of an older generation is not tried again.
pub(super) fn superseded_failure() -> Failure {
    Failure::new(FailureKind::System, "superseded", "its workflow has moved on to another generation")
}

pub(super) fn terminal(
    state: JobState,
    exit_code: Option<i32>,
    failure: Option<Failure>,
    output: Option<String>,
) -> Place {
    Place::Ended(Box::new(Terminal { state, exit_code, failure, output }))
}

fn waiting(due_at: DateTime<Utc>, keep_attempt: bool) -> Place {
    Place::Waiting(Waiting { due_at: Some(due_at), held_due_at: None, blocked_by: None, keep_attempt })
}

/// Exponential with a cap and full jitter: anywhere between nothing and the whole step.
fn backoff(policy: RetryPolicy, failures: i32) -> Duration {
    let base = u64::try_from(policy.backoff_ms.unwrap_or(30_000)).unwrap_or(0);
    let cap = u64::try_from(policy.backoff_cap_ms.unwrap_or(3_600_000)).unwrap_or(0);
    let doublings = u32::try_from(failures - 1).unwrap_or(0).min(40);
    let step = base.saturating_mul(1 << doublings).min(cap);
    Duration::from_millis(rand::random_range(0..=step))
}
