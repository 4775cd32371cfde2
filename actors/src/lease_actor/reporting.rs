//! Tells the store how a lease ended, again and again under one command id until it is confirmed.

use std::{sync::Arc, time::Duration};

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use tokio::time::Instant;

use super::{LeaseActor, LeaseNotice, calls::Calls};
use crate::{
    domain::{
        CommandId, Failure, FailureKind, JobState,
        lease::{Event, Report},
    },
    error::{Applied, StoreError},
    ports::{End, Ended, Postponed},
    work::WorkOutcome,
};

/// The report of an end, the same at every repeat.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) command: CommandId,
    pub(super) told: Arc<Told>,
    pub(super) calls: Calls,
    pub(super) give_up: Instant,
}

/// What the store is told.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it for a lease, behind an Arc")]
pub(super) enum Told {
    /// That the lease is over, and how.
    End(End),
    /// That a lease that was taken over is given up, and the job's recovery put off.
    Postpone(Duration),
}

/// What the store says to that.
#[derive(Debug)]
enum Answer {
    Ended(Ended),
    Postponed(Postponed),
}

impl LeaseActor {
    pub(super) fn begin_report(&mut self, report: Report, ctx: &mut Context<Self>) {
        let told = self.told_for(report);
        // Where the work has ended the lease itself, a report under the same command is told so. Where that was never
        // committed, the lease is live, and the report takes effect.
        let pledged = self.pledged();
        self.report = Some(Pending {
            command: pledged.unwrap_or_else(CommandId::generate),
            told: Arc::new(told),
            calls: Calls::due_now(),
            give_up: Instant::now() + self.grant.lease,
        });
        self.send_report(ctx);
    }

    fn told_for(&mut self, report: Report) -> Told {
        let of_recovery = match report {
            Report::Outcome => self.told_of_recovery(),
            Report::Release | Report::StoppedUnasked => self.told_of_the_rest(),
            Report::Cancel | Report::TimedOut | Report::Refused => None,
        };
        of_recovery.unwrap_or_else(|| Told::End(self.end_for(report)))
    }

    pub(super) fn end_of(&self, outcome: WorkOutcome) -> End {
        let failure = match outcome {
            WorkOutcome::Completed { exit_code, output } => return End::Complete { exit_code, output },
            WorkOutcome::Failed(failure) => failure,
            WorkOutcome::FailedForGood(failure) => return End::FailForGood { failure },
            WorkOutcome::GoesOn { end } => return *end,
            WorkOutcome::Stopped | WorkOutcome::Abandoned => stopped_unasked(),
        };
        End::Fail { failure, defaults: self.env.retry_defaults }
    }

    fn end_for(&mut self, report: Report) -> End {
        let failure = match report {
            Report::Outcome => match self.outcome.take() {
                Some(WorkOutcome::Completed { .. }) if self.pledged().is_some() => Failure::new(
                    FailureKind::System,
                    "not_committed",
                    "the work returned as if it was done, but the transaction that completed the job was not committed",
                ),
                outcome => return self.end_of(outcome.unwrap_or(WorkOutcome::Stopped)),
            },
            Report::Cancel => return End::Cancel,
            Report::Release => return End::Release { delay: Duration::ZERO, reason: "drain" },
            Report::TimedOut => Failure::new(
                FailureKind::Timeout,
                "timeout",
                format!("ran longer than its timeout of {:?}", self.grant.timeout.unwrap_or_default()),
            ),
            Report::StoppedUnasked => stopped_unasked(),
            Report::Refused => Failure::new(
                FailureKind::System,
                "report_refused",
                format!(
                    "the work ended, but the database refused its result: {}",
                    self.refusal.take().unwrap_or_default()
                ),
            ),
        };
        End::Fail { failure, defaults: self.env.retry_defaults }
    }

    pub(super) fn send_report(&mut self, ctx: &mut Context<Self>) {
        let Some(pending) = &mut self.report else { return };
        let number = pending.calls.begin(self.env.timings.store_timeout);
        let (command, told) = (pending.command, Arc::clone(&pending.told));
        let (env, grant) = (Arc::clone(&self.env), Arc::clone(&self.grant));
        let call = async move {
            let authority = &grant.authority;
            match &*told {
                Told::End(end) => env.store.end(authority, command, end).await.map(Answer::Ended),
                Told::Postpone(delay) => {
                    env.store.postpone_recovery(authority, *delay).await.map(Answer::Postponed)
                }
            }
        };
        let call = call.into_actor(self);
        let handle = ctx.spawn(call.map(move |answer, act, ctx| act.reported(command, number, answer, ctx)));
        if let Some(given_up) = self.report.as_mut().and_then(|pending| pending.calls.runs_as(handle)) {
            ctx.cancel_future(given_up);
        }
    }

    fn reported(
        &mut self,
        command: CommandId,
        number: u32,
        answer: Result<Answer, StoreError>,
        ctx: &mut Context<Self>,
    ) {
        // An answer to an earlier report that was replaced says nothing about this one.
        let Some(pending) = self.report.as_mut().filter(|pending| pending.command == command) else {
            return;
        };
        match answer {
            Ok(Answer::Ended(Ended::PayloadConflict { current_revision })) => {
                pending.calls.succeeded(number);
                self.refusal = Some(format!("the payload is at revision {current_revision}"));
                self.feed(Event::ReportRefused, ctx);
            }
            Ok(Answer::Ended(ended)) => {
                pending.calls.succeeded(number);
                self.count(&ended);
                self.ended = Some(ended.clone());
                if ended != Ended::NotLive {
                    self.after_the_report();
                }
                self.feed(Event::ReportAnswered, ctx);
            }
            // Not live: as a rule an answer to an earlier try was lost. Either way the lease is over.
            Ok(Answer::Postponed(Postponed::Done | Postponed::NotLive)) => {
                pending.calls.succeeded(number);
                self.env.tally.recoveries_postponed.one();
                self.feed(Event::ReportAnswered, ctx);
            }
            Err(error) => {
                pending.calls.failed(number, self.env.timings.store_timeout);
                let ends = matches!(*pending.told, Told::End(_));
                self.env.tally.reports_unknown.one();
                tracing::warn!(job = %self.job(), epoch = %self.epoch(), %error,
                    "the end is not confirmed, asking again");
                if ends && error.applied == Applied::No && !error.is_retryable() {
                    self.tell(LeaseNotice::NoAnswer(error.clone()));
                    self.refusal = Some(error.message);
                    self.feed(Event::ReportRefused, ctx);
                } else {
                    self.tell(LeaseNotice::NoAnswer(error));
                    self.arm(ctx);
                }
            }
        }
    }

    fn count(&self, ended: &Ended) {
        let tally = &self.env.tally;
        let counter = match ended {
            Ended::NotLive => &tally.reports_not_live,
            Ended::Terminal(JobState::Completed) => &tally.jobs_completed,
            Ended::Terminal(JobState::Canceled) => &tally.jobs_canceled,
            Ended::Released | Ended::Rescheduled => &tally.jobs_released,
            Ended::Terminal(_) | Ended::Retrying { .. } | Ended::PayloadConflict { .. } => &tally.jobs_failed,
        };
        counter.one();
        match ended {
            Ended::NotLive => tracing::warn!(job = %self.job(), epoch = %self.epoch(),
                "the end came too late: the lease was not live any more"),
            _ => tracing::debug!(job = %self.job(), epoch = %self.epoch(), ?ended, "ended"),
        }
    }
}

fn stopped_unasked() -> Failure {
    Failure::new(FailureKind::System, "stopped", "the work stopped before its end although nobody asked")
}
