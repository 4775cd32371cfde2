//! Takes over expired leases: reserves recovery permits first, then asks for at most as many, the oldest first,
//! and starts a LeaseActor for each takeover.
//!
//! It takes no message. A pass is made
//!
//! - at its start,
//! - soon, while a pass brought as much as it asked for: after [`pause_after`] it,
//! - when a recovery permit becomes free while expired leases are waiting,
//! - 100 ms after the earliest expiry that is ahead, and after `EXECUTION_WORKER_RECOVERY_INTERVAL` at the latest.
//!
//! Its permits are a pool of their own, on top of those for claims, so that a worker full of long jobs still
//! recovers; otherwise they are the same, and so is what happens to an answer that is lost: its permits *await
//! replay*, and the same batch is asked again under its command id until it is answered. The actor holds no state
//! that matters: killed at any point, its successor finds the batches to be asked again among the permits.
//!
//! A process never takes over a job that it still has in hand, in either pool: its workload may be running here.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix::{Actor, ActorFutureExt, AsyncContext, Context, SpawnHandle, WrapFuture};
use tokio::time::Instant;

use crate::{
    clock::Anchor,
    domain::{CommandId, JobId},
    error::{Applied, StoreError, StoreErrorKind},
    jitter,
    lease_actor::LeaseActor,
    leases::LeaseEnv,
    permits::{Ask, Handover, Hands, Permits, Reservation},
    ports::{Claimant, RecoverAnswer, RecoverRequest, Takeover},
    settings::RecoverySettings,
};

/// How long after an expiry the next pass is made: later than the expiry by the database's clock, also when the
/// answer that told of it was slow.
const AFTER_EXPIRY: Duration = Duration::from_millis(100);

/// How soon leases are looked at again that have expired and could not be taken over now: somebody held the row,
/// or the node has not been silent for long enough.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The longest time between two passes that bring as much as they ask for.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How long to wait after a pass that brought as much as it asked for and took so long: a fleet that recovers
/// thousands of leases at once goes on claiming beside it, so recovery keeps the database busy for a part of the
/// time only.
#[must_use]
pub fn pause_after(pass: Duration) -> Duration {
    (pass * 4).min(LONGEST_PAUSE)
}

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(2);

/// How long a job is put off that may not be recovered here.
const SUPPRESSED_DELAY: Duration = Duration::from_secs(1);

impl Ask for RecoverRequest {
    fn command(&self) -> CommandId {
        self.command
    }

    fn repeats(&mut self) {
        self.repeat = true;
    }
}

/// What the last pass found, and why none is made, if so. Known also while the actor is dead.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveryView {
    /// Expired leases that the last pass left behind.
    pub backlog: u64,
    /// How long ago the oldest of those had expired when the pass was made.
    pub oldest: Option<Duration>,
    /// The store does not answer, or refuses; its last words.
    pub trouble: Option<String>,
}

/// Where the RecoveryActor says what it found.
#[derive(Debug, Default)]
pub struct RecoveryStatus {
    view: Mutex<RecoveryView>,
}

impl RecoveryStatus {
    /// What it says.
    #[must_use]
    pub fn view(&self) -> RecoveryView {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut RecoveryView)) {
        change(&mut self.view.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// What a RecoveryActor is made of; kept by its factory.
#[derive(Debug, Clone)]
pub struct RecoveryParts {
    /// What LeaseActors share, the store among it.
    pub env: Arc<LeaseEnv>,
    /// The recovery permits.
    pub permits: Permits<RecoverRequest>,
    /// The permits of what was claimed: what they have in hand is not taken over here.
    pub claimed: Hands,
    /// Who takes over.
    pub owner: Claimant,
    /// How much, and how often.
    pub settings: RecoverySettings,
    /// Where it says what it found.
    pub status: Arc<RecoveryStatus>,
    /// Whether a drain has begun; survives the actor.
    pub draining: Arc<AtomicBool>,
}

/// The recoverer of one worker.
#[derive(Debug)]
pub struct RecoveryActor {
    parts: RecoveryParts,
    in_flight: bool,
    replaying: bool,
    /// There were more than the permits allowed.
    waiting_for_permits: bool,
    failures: u32,
    retry_at: Option<Instant>,
    next: Option<SpawnHandle>,
}

impl RecoveryActor {
    /// A recoverer that has asked nothing yet.
    #[must_use]
    pub fn new(parts: RecoveryParts) -> Self {
        Self {
            parts,
            in_flight: false,
            replaying: false,
            waiting_for_permits: false,
            failures: 0,
            retry_at: None,
            next: None,
        }
    }

    fn draining(&self) -> bool {
        self.parts.draining.load(Ordering::Acquire)
    }

    /// What this process has in hand, in either pool, ended by force without effect or not.
    fn running_here(&self) -> Arc<[JobId]> {
        let held = self.parts.claimed.held().into_iter().chain(self.parts.permits.held());
        held.map(|(job, _)| job).collect()
    }

    fn make_request(&self, limit: u32) -> RecoverRequest {
        RecoverRequest {
            owner: self.parts.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            limit,
            lease: self.parts.env.timings.lease,
            running_here: self.running_here(),
        }
    }

    /// Makes a pass, if a permit is free and none is on its way.
    fn pass(&mut self, ctx: &mut Context<Self>) {
        let waits = self.retry_at.is_some_and(|at| at > Instant::now());
        if self.draining() || self.in_flight || waits {
            return;
        }
        let batch = self.parts.settings.batch.max(1);
        match self.parts.permits.reserve(batch, |limit| self.make_request(limit)) {
            Some(reservation) => self.send(reservation, ctx),
            None => self.waiting_for_permits = true,
        }
    }

    fn send(&mut self, reservation: Reservation<RecoverRequest>, ctx: &mut Context<Self>) {
        if reservation.is_replay() {
            self.replaying = true;
        } else {
            self.in_flight = true;
        }
        let (env, timeout) = (Arc::clone(&self.parts.env), self.parts.env.timings.store_timeout);
        let (asked, begun) = (Anchor::now(), Instant::now());
        let call = async move {
            let answer = tokio::time::timeout(timeout, env.store.recover(reservation.ask())).await;
            (reservation, answer.unwrap_or_else(|_| Err(no_answer(timeout))))
        };
        ctx.spawn(call.into_actor(self).map(move |(reservation, answer), act, ctx| {
            if reservation.is_replay() {
                act.replaying = false;
            } else {
                act.in_flight = false;
            }
            match answer {
                Ok(answer) => act.taken_over(reservation, asked, begun.elapsed(), answer, ctx),
                Err(error) => act.failed(reservation, &error, ctx),
            }
            act.replay(ctx);
        }));
    }

    fn taken_over(
        &mut self,
        mut reservation: Reservation<RecoverRequest>,
        asked: Anchor,
        took: Duration,
        answer: RecoverAnswer,
        ctx: &mut Context<Self>,
    ) {
        let env = &self.parts.env;
        let count = u32::try_from(answer.takeovers.len()).unwrap_or(u32::MAX);
        env.tally.leases_recovered.add(u64::from(count));
        let (draining, replay) = (self.draining(), reservation.is_replay());
        let full = !replay && count >= reservation.ask().limit;
        for takeover in answer.takeovers {
            let grant = Arc::new(takeover.grant.clone());
            match reservation.grant(&grant) {
                Handover::Active(permit) => {
                    tracing::info!(job = %grant.authority.job, epoch = %grant.authority.epoch,
                        claim_epoch = %takeover.claim_epoch, "took an expired lease over");
                    let (takeover, runs) = (Arc::new(takeover), &self.parts.claimed);
                    LeaseActor::start_recovery(env, permit, asked, takeover, runs, draining);
                }
                Handover::InHand => {}
                Handover::Refused => put_off(env, takeover),
            }
        }
        reservation.settle();
        self.failures = 0;
        self.retry_at = None;
        self.parts.status.change(|view| {
            view.trouble = None;
            // A repeat reads what was recorded and looks at nothing else.
            if !replay {
                (view.backlog, view.oldest) = (answer.backlog, answer.oldest);
            }
        });
        self.waiting_for_permits = false;
        let soon = full.then(|| pause_after(took));
        let ahead = answer.next_expiry.map(|ahead| ahead + AFTER_EXPIRY);
        let behind = (answer.backlog > 0 || replay).then(|| jitter::about(LOOK_AGAIN));
        self.arm(soon.into_iter().chain(ahead).chain(behind).min(), ctx);
    }

    fn failed(
        &mut self,
        reservation: Reservation<RecoverRequest>,
        error: &StoreError,
        ctx: &mut Context<Self>,
    ) {
        self.failures += 1;
        self.parts.env.tally.recoveries_unanswered.one();
        self.parts.status.change(|view| view.trouble = Some(error.to_string()));
        if error.applied == Applied::No && !reservation.is_replay() {
            reservation.settle();
        } else {
            // That a repeat surely failed says nothing of the first try.
            drop(reservation);
        }
        let wait = jitter::backoff(FIRST_RETRY, LONGEST_RETRY, self.failures);
        tracing::warn!(%error, retry_in = ?wait, "recovery without an answer");
        self.retry_at = Some(Instant::now() + wait);
        self.arm(Some(wait), ctx);
    }

    /// Asks the oldest batch again whose answer was lost; one at a time.
    fn replay(&mut self, ctx: &mut Context<Self>) {
        if self.replaying || self.retry_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        if let Some(reservation) = self.parts.permits.take_replay() {
            self.send(reservation, ctx);
        }
    }

    /// Sets the next pass, at the latest after the interval.
    fn arm(&mut self, wait: Option<Duration>, ctx: &mut Context<Self>) {
        // At most the interval itself: it is the longest wait.
        let longest = jitter::about(self.parts.settings.interval.mul_f64(0.8));
        let wait = wait.map_or(longest, |wait| wait.min(longest));
        let next = ctx.run_later(wait, |act, ctx| {
            act.next = None;
            act.retry_at = None;
            act.replay(ctx);
            act.pass(ctx);
            if act.next.is_none() {
                act.arm(None, ctx);
            }
        });
        if let Some(old) = self.next.replace(next) {
            ctx.cancel_future(old);
        }
    }

    fn watch_permits(&mut self, ctx: &mut Context<Self>) {
        let permits = self.parts.permits.hands();
        ctx.spawn(async move { permits.freed().await }.into_actor(self).map(|(), act, ctx| {
            if act.waiting_for_permits {
                act.pass(ctx);
            }
            act.watch_permits(ctx);
        }));
    }

    fn watch_replays(&mut self, ctx: &mut Context<Self>) {
        let permits = self.parts.permits.hands();
        ctx.spawn(async move { permits.awaits_replay().await }.into_actor(self).map(|(), act, ctx| {
            act.replay(ctx);
            act.watch_replays(ctx);
        }));
    }
}

fn no_answer(after: Duration) -> StoreError {
    StoreError {
        operation: "recover",
        kind: StoreErrorKind::Timeout,
        applied: Applied::Maybe,
        message: format!("no answer within {after:?}"),
    }
}

/// Gives a lease up again whose job may not be recovered here. Once, and without a permit: if it is lost, the
/// lease expires.
fn put_off(env: &Arc<LeaseEnv>, takeover: Takeover) {
    let authority = takeover.grant.authority;
    tracing::warn!(job = %authority.job, epoch = %authority.epoch,
        "another grant of this job is still in hand here: its recovery is left to a later pass");
    let env = Arc::clone(env);
    actix_rt::spawn(async move {
        match env.store.postpone_recovery(&authority, SUPPRESSED_DELAY).await {
            Ok(_) => env.tally.recoveries_postponed.one(),
            Err(error) => tracing::warn!(job = %authority.job, %error, "not given up; it will expire"),
        }
    });
}

impl Actor for RecoveryActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.watch_permits(ctx);
        self.watch_replays(ctx);
        self.arm(None, ctx);
        self.replay(ctx);
        self.pass(ctx);
    }
}

#[cfg(test)]
mod tests;
