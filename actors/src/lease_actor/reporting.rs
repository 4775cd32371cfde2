//! Tells the store how a lease ended, again and again under one command id until it is confirmed.

use std::{sync::Arc, time::Duration};

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use tokio::time::Instant;

use super::{LeaseActor, calls::Calls};
use crate::{
    domain::{
        CommandId, Failure, FailureKind, JobState,
        lease::{Event, Report},
    },
    error::{Applied, StoreError},
    ports::{End, Ended},
    work::WorkOutcome,
};

/// The report of an end, the same at every repeat.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) command: CommandId,
    pub(super) end: Arc<End>,
    pub(super) calls: Calls,
    pub(super) give_up: Instant,
}

impl LeaseActor {
    pub(super) fn begin_report(&mut self, report: Report, ctx: &mut Context<Self>) {
        let end = self.end_for(report);
        self.report = Some(Pending {
            command: CommandId::generate(),
            end: Arc::new(end),
            calls: Calls::due_now(),
            give_up: Instant::now() + self.grant.lease,
        });
        self.send_report(ctx);
    }

    fn end_for(&mut self, report: Report) -> End {
        let failure = match report {
            Report::Outcome => match self.outcome.take() {
                Some(WorkOutcome::Completed { exit_code, output }) => {
                    return End::Complete { exit_code, output };
                }
                Some(WorkOutcome::Failed(failure)) => failure,
                Some(WorkOutcome::Stopped) | None => stopped_unasked(),
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
        let (command, end) = (pending.command, Arc::clone(&pending.end));
        let (env, grant) = (Arc::clone(&self.env), Arc::clone(&self.grant));
        let call = async move { env.store.end(&grant.authority, command, &end).await };
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
        answer: Result<Ended, StoreError>,
        ctx: &mut Context<Self>,
    ) {
        // An answer to an earlier report that was replaced says nothing about this one.
        let Some(pending) = self.report.as_mut().filter(|pending| pending.command == command) else {
            return;
        };
        match answer {
            Ok(Ended::PayloadConflict { current_revision }) => {
                pending.calls.succeeded(number);
                self.refusal = Some(format!("the payload is at revision {current_revision}"));
                self.feed(Event::ReportRefused, ctx);
            }
            Ok(ended) => {
                pending.calls.succeeded(number);
                let end = Arc::clone(&pending.end);
                self.count(&end, &ended);
                self.feed(Event::ReportAnswered, ctx);
            }
            Err(error) => {
                pending.calls.failed(number, self.env.timings.store_timeout);
                self.env.tally.reports_unknown.one();
                tracing::warn!(job = %self.job(), epoch = %self.epoch(), %error,
                    "the end is not confirmed, asking again");
                if error.applied == Applied::No && !error.is_retryable() {
                    self.refusal = Some(error.message);
                    self.feed(Event::ReportRefused, ctx);
                } else {
                    self.arm(ctx);
                }
            }
        }
    }

    fn count(&self, end: &End, ended: &Ended) {
        let tally = &self.env.tally;
        let counter = match (ended, end) {
            (Ended::NotLive, _) => &tally.reports_not_live,
            (Ended::Terminal(JobState::Completed), _) => &tally.jobs_completed,
            (Ended::Terminal(JobState::Canceled), _) => &tally.jobs_canceled,
            (Ended::Released | Ended::Rescheduled, _) => &tally.jobs_released,
            (Ended::Terminal(_) | Ended::Retrying { .. } | Ended::PayloadConflict { .. }, _) => {
                &tally.jobs_failed
            }
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
