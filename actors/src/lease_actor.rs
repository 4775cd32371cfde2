//! One LeaseActor per grant: renews the lease, starts the workload, watches its time, reports its end.
//!
//! The rules are in [`crate::domain::lease`]; this is the shell that turns answers and timers into events and
//! performs the effects. Calls to the store and the workload itself run beside the actor and come back as
//! events, so that its timers are never held up.
//!
//! | message | from | meaning |
//! |---|---|---|
//! | [`StopWork`] | supervision | give the job back: stop the work, at most this long |
//! | [`RenewNow`] | supervision | a cancel may have been requested: ask now instead of at the next renewal |
//! | [`ExportLease`] | supervision | give the lease away: stop the work, renew no more, and say what proves it |
//!
//! It has one timer, set for the earliest thing to do and looked at again when it fires: a job that ends at
//! once never touches it again.

mod calls;
#[cfg(test)]
mod exporting;
mod recovering;
mod reporting;
mod telling;
#[cfg(test)]
mod tests;
mod working;

use std::{sync::Arc, time::Duration};

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, SpawnHandle, WrapFuture,
};
use tokio::{sync::oneshot, time::Instant};

pub use self::telling::{LeaseNotice, LeaseOver, OnNotice};
use self::{
    calls::{Calls, FIRST_RETRY},
    recovering::Recovery,
    reporting::Pending,
    telling::Supplied,
};
use crate::{
    clock::{Anchor, Deadline},
    domain::{
        CommandId, Epoch, JobId, JobKind,
        lease::{Effect, Event, Phase, StopReason},
    },
    error::StoreError,
    fence::Watch,
    leases::LeaseEnv,
    permits::ActivePermit,
    ports::{Authority, Ended, Grant, Renewal},
    work::WorkOutcome,
};

/// Stop the work and give the job back. Sent in a drain.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct StopWork {
    /// How long the work may take to stop before it is ended by force.
    pub kill_in: Duration,
}

/// Ask the store now what it thinks of the lease. A hint, sent when a cancel may have been requested.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct RenewNow;

/// Give the lease to somebody else, who goes on from what is recorded. The work stops (its own end, if it comes to one,
/// is reported and then nothing is given away), renewals stop, nothing more is started, and the permit awaits
/// reconciliation: it is free when the lease has surely ended, or was redeemed. Where nothing is given away, the
/// sender is dropped.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ExportLease {
    /// Whom to tell what proves the lease.
    pub to: oneshot::Sender<Authority>,
    /// How long the work may take to stop before it is ended by force.
    pub kill_in: Duration,
}

/// The holder of one grant.
#[derive(Debug)]
pub struct LeaseActor {
    env: Arc<LeaseEnv>,
    permit: Option<ActivePermit>,
    grant: Arc<Grant>,
    phase: Phase,
    /// The local deadline; the fence has it too once work runs.
    deadline: Deadline,
    watch: Option<Watch>,
    renewals: Calls,
    renewing: bool,
    /// The work was ended by force; that it has ended is an event, not a time.
    forced: bool,
    /// A hint came while a renewal was on its way.
    renew_again: bool,
    times_out: Option<Instant>,
    /// Set by a drain: how long stopping may take.
    kill_in: Option<Duration>,
    outcome: Option<WorkOutcome>,
    report: Option<Pending>,
    refusal: Option<String>,
    alarm: Option<(Instant, SpawnHandle)>,
    /// Nothing is started: the job is given back at once.
    give_back: bool,
    /// The lease was taken over.
    recovery: Option<Recovery>,
    /// The lease was acquired by somebody else.
    supplied: Option<Supplied>,
    /// Who asked for the lease.
    export: Option<oneshot::Sender<Authority>>,
    /// The last answer to the report.
    ended: Option<Ended>,
}

impl LeaseActor {
    /// Starts the actor of a grant. `asked` was taken before the claim was sent. With `give_back` (a drain
    /// has begun) the grant is released without anything being started.
    pub fn start_for(env: &Arc<LeaseEnv>, permit: ActivePermit, asked: Anchor, give_back: bool) {
        let mut actor = Self::holding(env, permit, asked);
        actor.give_back = give_back;
        let (job, epoch) = (actor.job(), actor.epoch());
        env.alive.enter(job, epoch, actor.start());
    }

    fn holding(env: &Arc<LeaseEnv>, permit: ActivePermit, asked: Anchor) -> Self {
        let grant = Arc::clone(permit.grant());
        Self {
            env: Arc::clone(env),
            permit: Some(permit),
            phase: Phase::Confirming,
            deadline: asked.after(grant.lease.saturating_sub(env.timings.safety_margin)),
            watch: None,
            renewals: Calls::due_now(),
            renewing: true,
            forced: false,
            renew_again: false,
            times_out: None,
            kill_in: None,
            outcome: None,
            report: None,
            refusal: None,
            alarm: None,
            give_back: false,
            recovery: None,
            supplied: None,
            export: None,
            ended: None,
            grant,
        }
    }

    fn job(&self) -> JobId {
        self.grant.authority.job
    }

    fn epoch(&self) -> Epoch {
        self.grant.authority.epoch
    }

    /// The command under which the work has ended the lease itself, in a transaction of its own.
    fn pledged(&self) -> Option<CommandId> {
        self.watch.as_ref().and_then(|watch| watch.entry().pledged())
    }

    /// When the work must begin to stop if no renewal is confirmed before.
    fn asked_when(&self) -> Deadline {
        match &self.watch {
            Some(watch) => watch.entry().asked_when(),
            None => self.deadline.earlier(self.grant.lease / 8),
        }
    }

    // -----------------------------------------------------------------------------------------------
    // Events in, effects out
    // -----------------------------------------------------------------------------------------------

    /// Every event comes through here, and with it the look at the deadline: the check stands before each
    /// effect, not only in a timer.
    fn feed(&mut self, event: Event, ctx: &mut Context<Self>) {
        if event != Event::ReportAnswered && event != Event::Deadline && self.deadline.has_passed() {
            self.step(Event::Deadline, ctx);
        }
        self.step(event, ctx);
        self.arm(ctx);
    }

    fn step(&mut self, event: Event, ctx: &mut Context<Self>) {
        if self.phase == Phase::Closed {
            return;
        }
        let before = self.phase;
        match self.phase.on(event) {
            Ok((phase, effect)) => {
                self.phase = phase;
                if phase != before {
                    tracing::debug!(job = %self.job(), epoch = %self.epoch(), ?event, ?phase, "lease");
                }
                self.perform(effect, ctx);
                if phase != before {
                    self.tell_of_change(before, phase, effect);
                }
            }
            Err(illegal) => {
                // A defect of ours. The safe way out is that of a dead actor: the work is told that its
                // lease is lost, and the permit awaits reconciliation.
                tracing::error!(job = %self.job(), epoch = %self.epoch(), %illegal, "lease given up");
                self.close(ctx);
            }
        }
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        match effect {
            Effect::None => {}
            Effect::Start => self.start_work(ctx),
            Effect::Stop(reason) => {
                if reason == StopReason::LeaseLost {
                    self.env.tally.leases_lost.one();
                    tracing::warn!(job = %self.job(), epoch = %self.epoch(),
                        "lease not renewed in time, stopping the work");
                }
                let grace = if reason == StopReason::LeaseLost { None } else { self.kill_in };
                if let Some(watch) = &self.watch {
                    watch.stop(reason, grace);
                    if watch.entry().killed_when().has_passed() {
                        self.kill();
                    }
                }
            }
            Effect::KillLost => {
                if let Some(watch) = &self.watch {
                    if watch.entry().stop_reason() != Some(StopReason::LeaseLost) {
                        self.env.tally.leases_lost.one();
                        tracing::warn!(job = %self.job(), epoch = %self.epoch(), "lease lost, ending the work");
                    }
                    watch.stop(StopReason::LeaseLost, None);
                    self.kill();
                }
            }
            Effect::Kill => {
                tracing::warn!(job = %self.job(), epoch = %self.epoch(),
                    "the work did not stop in its time, ending it");
                self.kill();
            }
            Effect::Report(report) => self.begin_report(report, ctx),
            Effect::StopRenewing => self.renewing = false,
            Effect::Free => {
                if let Some(permit) = self.permit.take() {
                    permit.free();
                }
                self.close(ctx);
            }
            Effect::Reconcile => self.close(ctx),
            Effect::Export => {
                if let Some(to) = self.export.take() {
                    tracing::info!(job = %self.job(), epoch = %self.epoch(), "the lease is given away");
                    // Nobody may be waiting any more: then it expires.
                    let _ = to.send(self.grant.authority.clone());
                }
                self.close(ctx);
            }
        }
    }

    fn kill(&mut self) {
        self.forced = true;
        if let Some(watch) = &self.watch {
            watch.kill();
        }
    }

    /// Ends the actor. A permit that is still here goes to reconciliation by its guard.
    fn close(&mut self, ctx: &mut Context<Self>) {
        self.phase = Phase::Closed;
        self.permit = None;
        ctx.stop();
    }

    // -----------------------------------------------------------------------------------------------
    // Renewals
    // -----------------------------------------------------------------------------------------------

    fn renew(&mut self, ctx: &mut Context<Self>) {
        let number = self.renewals.begin(self.env.timings.store_timeout);
        let anchor = Anchor::now();
        let (env, grant) = (Arc::clone(&self.env), Arc::clone(&self.grant));
        let call = async move { env.store.renew(&grant.authority).await };
        let call = call.into_actor(self);
        let handle = ctx.spawn(call.map(move |answer, act, ctx| act.renewed(number, anchor, answer, ctx)));
        if let Some(given_up) = self.renewals.runs_as(handle) {
            ctx.cancel_future(given_up);
        }
    }

    fn renewed(
        &mut self,
        number: u32,
        asked: Anchor,
        answer: Result<Renewal, StoreError>,
        ctx: &mut Context<Self>,
    ) {
        let timings = self.env.timings;
        match answer {
            // Nothing that is not a time still ahead counts as renewed.
            Ok(Renewal::Held { remaining, cancel_requested }) if !remaining.is_zero() => {
                self.renewals.succeeded(number);
                self.env.tally.renewals_held.one();
                self.tell(LeaseNotice::Renewed { remaining });
                let deadline = asked.after(remaining.saturating_sub(timings.safety_margin));
                // The first renewal replaces what was only guessed from the claim (a replayed grant may be
                // older than its answer); afterwards a late answer to an older call takes nothing back.
                self.deadline = match self.phase {
                    Phase::Confirming => deadline,
                    _ => self.deadline.max(deadline),
                };
                if let Some(watch) = &self.watch {
                    watch.renewed(deadline);
                }
                // A lease that the store extends no further (a cancel or run deadline) is asked for again
                // in time all the same.
                let next = timings.renew_interval.min(remaining.saturating_sub(timings.safety_margin) / 2);
                self.renewals.due = if std::mem::take(&mut self.renew_again) {
                    Instant::now()
                } else {
                    (asked.instant() + next).max(Instant::now() + FIRST_RETRY)
                };
                let late = self.phase == Phase::Confirming && self.asked_when().has_passed();
                self.feed(
                    match (late, cancel_requested && self.heeds_cancel()) {
                        (true, _) => Event::LeaseRunsOut,
                        (false, true) => Event::CancelSeen,
                        (false, false) => Event::Held,
                    },
                    ctx,
                );
            }
            Ok(Renewal::Held { .. }) => {
                self.renewals.failed(number, timings.store_timeout);
                self.env.tally.renewals_unknown.one();
                self.arm(ctx);
            }
            // Ended by the work itself, most likely: it has until the local deadline to say so.
            Ok(Renewal::NotLive) if self.pledged().is_some() => {
                self.renewals.succeeded(number);
                self.renewing = false;
                self.arm(ctx);
            }
            Ok(Renewal::NotLive) => {
                self.renewals.succeeded(number);
                self.env.tally.renewals_not_live.one();
                self.tell(LeaseNotice::NotLive);
                self.feed(Event::NotLive, ctx);
            }
            Err(error) => {
                self.renewals.failed(number, timings.store_timeout);
                self.env.tally.renewals_unknown.one();
                tracing::warn!(job = %self.job(), epoch = %self.epoch(), %error,
                    left = ?self.deadline.remaining(), "not renewed, asking again");
                self.tell(LeaseNotice::NoAnswer(error));
                self.arm(ctx);
            }
        }
    }

    // -----------------------------------------------------------------------------------------------
    // The one timer
    // -----------------------------------------------------------------------------------------------

    /// Sets the timer for the earliest thing to do. One that is set for an earlier time stays: it finds out
    /// when it fires that there is nothing to do yet.
    fn arm(&mut self, ctx: &mut Context<Self>) {
        let Some(next) = self.next_due() else { return };
        match self.alarm {
            Some((at, _)) if at <= next => return,
            Some((_, handle)) => {
                ctx.cancel_future(handle);
            }
            None => {}
        }
        let wait = next.saturating_duration_since(Instant::now());
        let handle = ctx.run_later(wait, |act, ctx| {
            act.alarm = None;
            act.on_alarm(ctx);
        });
        self.alarm = Some((next, handle));
    }

    fn next_due(&self) -> Option<Instant> {
        let lost = self.phase == Phase::Stopping(StopReason::LeaseLost);
        let mut due = [None; 5];
        match self.phase {
            Phase::Closed => return None,
            Phase::Confirming | Phase::Running | Phase::Stopping(_) if !lost => {
                due[0] = Some(self.asked_when().instant());
            }
            Phase::Confirming | Phase::Running | Phase::Stopping(_) => {
                due[0] = (!self.forced).then(|| self.deadline.instant());
            }
            Phase::Reporting(_) => due[0] = Some(self.deadline.instant()),
        }
        if self.phase.renews() && self.renewing {
            due[1] = Some(self.renewals.next());
        }
        if self.phase == Phase::Running {
            due[2] = self.times_out;
        }
        if let (Phase::Stopping(_), false, Some(watch)) = (self.phase, lost, &self.watch) {
            let kill_at = watch.entry().killed_when();
            due[3] = (!self.forced).then(|| kill_at.instant());
        }
        if let (Phase::Reporting(_), Some(pending)) = (self.phase, &self.report) {
            due[4] = Some(pending.calls.next().min(pending.give_up));
        }
        due.into_iter().flatten().min()
    }

    fn on_alarm(&mut self, ctx: &mut Context<Self>) {
        let now = Instant::now();
        if self.deadline.has_passed() {
            self.step(Event::Deadline, ctx);
        } else if (self.phase.has_work() || self.phase == Phase::Confirming)
            && self.phase.renews()
            && self.asked_when().has_passed()
        {
            self.step(Event::LeaseRunsOut, ctx);
        }
        if self.phase == Phase::Running && self.times_out.is_some_and(|at| at <= now) {
            self.step(Event::TimedOut, ctx);
        }
        if let (Phase::Stopping(_), Some(watch)) = (self.phase, &self.watch)
            && !self.forced
            && self.phase.renews()
            && watch.entry().killed_when().has_passed()
        {
            self.step(Event::StopGraceOver, ctx);
        }
        if self.phase.renews() && self.renewing && self.renewals.next() <= now {
            self.renew(ctx);
        }
        if let (Phase::Reporting(_), Some(pending)) = (self.phase, &self.report) {
            if pending.give_up <= now {
                self.step(Event::ReportGivenUp, ctx);
            } else if pending.calls.next() <= now {
                self.send_report(ctx);
            }
        }
        self.arm(ctx);
    }
}

impl Actor for LeaseActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if self.give_back {
            self.feed(Event::Drain, ctx);
        } else {
            self.renew(ctx);
            self.arm(ctx);
        }
    }
}

impl Handler<StopWork> for LeaseActor {
    type Result = ();

    fn handle(&mut self, message: StopWork, ctx: &mut Context<Self>) {
        // While it unwinds from a panic, actix still hands an actor what is in its mailbox.
        if std::thread::panicking() || self.phase == Phase::Closed {
            return;
        }
        self.kill_in = Some(message.kill_in);
        self.feed(Event::Drain, ctx);
    }
}

impl Handler<RenewNow> for LeaseActor {
    type Result = ();

    fn handle(&mut self, _: RenewNow, ctx: &mut Context<Self>) {
        if std::thread::panicking() || !self.phase.renews() || !self.renewing {
            return;
        }
        if self.renewals.pending {
            // Its answer may be older than the hint. And calls that chase each other would never be answered.
            self.renew_again = true;
        } else {
            self.renew(ctx);
            self.arm(ctx);
        }
    }
}

impl Handler<ExportLease> for LeaseActor {
    type Result = ();

    fn handle(&mut self, message: ExportLease, ctx: &mut Context<Self>) {
        let ExportLease { to, kill_in } = message;
        let exportable = self.grant.kind == JobKind::Recipe && self.recovery.is_none() && !self.give_back;
        if std::thread::panicking() || self.phase == Phase::Closed || self.export.is_some() || !exportable {
            return;
        }
        self.export = Some(to);
        self.kill_in = Some(self.kill_in.map_or(kill_in, |sooner| sooner.min(kill_in)));
        self.feed(Event::Export, ctx);
        if self.phase != Phase::Stopping(StopReason::Exported) {
            self.export = None;
        }
    }
}

impl Drop for LeaseActor {
    fn drop(&mut self) {
        self.env.alive.leave(self.job(), self.epoch());
    }
}
