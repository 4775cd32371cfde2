//! Claims work: reserves permits first, then asks for at most as many jobs, and starts a LeaseActor for each
//! grant.
//!
//! | message | from | meaning |
//! |---|---|---|
//! | [`Wake`] | NOTIFY, a reconnect, the DispatchActor | something may have become QUEUED; a hint |
//! | [`StopClaiming`] | supervision | claim nothing more; release at once what a late answer grants |
//!
//! It asks when a hint comes, when the poll interval (jittered) is over, when a permit becomes free while more
//! work was waiting, and at once again when an answer was full. Two claims may be on the way at a time: while
//! one is answered the next is asked.
//!
//! An answer that is lost leaves its permits *awaiting replay*: the same claim is asked again, with backoff,
//! until it is answered. A claim surely not taken gives its permits back. The actor holds no state that
//! matters: killed at any point, its successor finds the claims to be asked again among the permits.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, SpawnHandle, WrapFuture};
use tokio::time::Instant;

use crate::{
    clock::Anchor,
    domain::CommandId,
    error::{Applied, StoreError, StoreErrorKind},
    jitter,
    lease_actor::LeaseActor,
    leases::LeaseEnv,
    permits::{Handover, Permits, Reservation},
    ports::{ClaimAnswer, End, Grant, OpenClaim},
    settings::ClaimSettings,
};

/// Claims on the way at once.
const CLAIMS_AT_ONCE: u32 = 2;

/// The fewest jobs that are asked for, permits permitting. Grows while answers are full, so that an idle
/// worker does not take all of its permits for each look.
const SMALLEST_ASK: u32 = 16;

/// How long a permit that became free waits for others while answers are full: a claim of many jobs costs
/// hardly more than a claim of one. An idle worker never waits.
const GATHER: Duration = Duration::from_millis(2);

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// How long a job is put off that this worker may not run now.
const SUPPRESSED_DELAY: Duration = Duration::from_secs(5);

/// Something may have become QUEUED. May be lost or repeated without harm.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Wake;

/// Claim nothing more. What answers still grant is given back at once.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct StopClaiming;

/// Why this worker claims nothing at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotClaiming {
    /// Every permit is taken; the counts say by what.
    NoFreePermit,
    /// The store does not answer, or refuses; its last words.
    Store(String),
    /// It drains.
    Draining,
}

impl std::fmt::Display for NotClaiming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoFreePermit => f.write_str("no free permit"),
            Self::Store(words) => write!(f, "the database does not answer claims: {words}"),
            Self::Draining => f.write_str("draining"),
        }
    }
}

/// What the ClaimActor lets others know, also while it is dead. `None` means that it claims.
#[derive(Debug, Default)]
pub struct ClaimStatus {
    reason: Mutex<Option<NotClaiming>>,
}

impl ClaimStatus {
    /// Why nothing is claimed at the moment, if so.
    #[must_use]
    pub fn reason(&self) -> Option<NotClaiming> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, reason: Option<NotClaiming>) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// What a ClaimActor is made of; kept by its factory.
#[derive(Debug, Clone)]
pub struct ClaimParts {
    /// What LeaseActors share, the store among it.
    pub env: Arc<LeaseEnv>,
    /// The permits.
    pub permits: Permits,
    /// What to claim.
    pub settings: Arc<ClaimSettings>,
    /// Where it says why it claims nothing.
    pub status: Arc<ClaimStatus>,
    /// Whether a drain has begun; survives the actor.
    pub draining: Arc<std::sync::atomic::AtomicBool>,
}

/// The claimer of one worker.
#[derive(Debug)]
pub struct ClaimActor {
    parts: ClaimParts,
    in_flight: u32,
    replaying: bool,
    /// There may be work that no claim on the way will see.
    wanted: bool,
    /// The last answer was full.
    more: bool,
    ask: u32,
    failures: u32,
    retry_at: Option<Instant>,
    gathering: Option<SpawnHandle>,
    poll: Option<SpawnHandle>,
}

impl ClaimActor {
    /// A claimer that has asked nothing yet.
    #[must_use]
    pub fn new(parts: ClaimParts) -> Self {
        Self {
            parts,
            in_flight: 0,
            replaying: false,
            wanted: true,
            more: false,
            ask: SMALLEST_ASK,
            failures: 0,
            retry_at: None,
            gathering: None,
            poll: None,
        }
    }

    fn draining(&self) -> bool {
        self.parts.draining.load(std::sync::atomic::Ordering::Acquire)
    }

    fn make_claim(&self, limit: u32) -> OpenClaim {
        let settings = &self.parts.settings;
        OpenClaim {
            owner: settings.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            routes: Arc::clone(&settings.routes),
            limit,
            lease: self.parts.env.timings.lease,
            facts: settings.facts.clone(),
        }
    }

    /// Claims if there is reason to, a permit free, and room on the way.
    fn claim(&mut self, ctx: &mut Context<Self>) {
        if self.draining() {
            return self.parts.status.set(Some(NotClaiming::Draining));
        }
        let waits = self.retry_at.is_some_and(|at| at > Instant::now());
        while self.wanted && !waits && self.in_flight < CLAIMS_AT_ONCE {
            let ask = self.ask.min(self.parts.settings.batch).max(1);
            let Some(reservation) = self.parts.permits.reserve(ask, |limit| self.make_claim(limit)) else {
                return self.parts.status.set(Some(NotClaiming::NoFreePermit));
            };
            if self.failures == 0 {
                self.parts.status.set(None);
            }
            // What comes after this claim was sent needs a claim of its own. While answers are full there
            // is always more.
            self.wanted = self.more;
            self.send(reservation, ctx);
        }
    }

    fn send(&mut self, reservation: Reservation, ctx: &mut Context<Self>) {
        if reservation.is_replay() {
            self.replaying = true;
        } else {
            self.in_flight += 1;
        }
        let (env, timeout) = (Arc::clone(&self.parts.env), self.parts.env.timings.store_timeout);
        let asked = Anchor::now();
        let call = async move {
            let answer = tokio::time::timeout(timeout, env.store.claim(reservation.ask())).await;
            (reservation, answer.unwrap_or_else(|_| Err(no_answer(timeout))))
        };
        ctx.spawn(call.into_actor(self).map(move |(reservation, answer), act, ctx| {
            if reservation.is_replay() {
                act.replaying = false;
            } else {
                act.in_flight -= 1;
            }
            match answer {
                Ok(answer) => act.granted(reservation, asked, answer),
                Err(error) => act.failed(reservation, &error, ctx),
            }
            act.replay(ctx);
            act.claim(ctx);
        }));
    }

    fn granted(&mut self, mut reservation: Reservation, asked: Anchor, answer: ClaimAnswer) {
        let env = &self.parts.env;
        env.tally.claims_answered.one();
        let count = u32::try_from(answer.grants.len()).unwrap_or(u32::MAX);
        env.tally.jobs_granted.add(u64::from(count));
        let draining = self.draining();
        let full = count >= reservation.ask().limit && !reservation.is_replay();
        for grant in answer.grants {
            let grant = Arc::new(grant);
            match reservation.grant(&grant) {
                Handover::Active(permit) => LeaseActor::start_for(env, permit, asked, draining),
                Handover::InHand => {}
                Handover::Refused => give_back(env, grant),
            }
        }
        if !reservation.is_replay() {
            self.more = full;
            self.wanted |= full;
            self.ask = if full { self.ask.saturating_mul(4) } else { (count * 2).max(SMALLEST_ASK) }
                .min(self.parts.settings.batch);
        }
        reservation.settle();
        self.failures = 0;
        self.retry_at = None;
        if !draining {
            self.parts.status.set(None);
        }
    }

    fn failed(&mut self, reservation: Reservation, error: &StoreError, ctx: &mut Context<Self>) {
        let tally = &self.parts.env.tally;
        self.failures += 1;
        self.wanted = true;
        if !self.draining() {
            self.parts.status.set(Some(NotClaiming::Store(error.to_string())));
        }
        if error.applied == Applied::No && !reservation.is_replay() {
            tally.claims_failed.one();
            reservation.settle();
        } else {
            // That a repeat surely failed says nothing of the first try.
            tally.claims_unknown.one();
            drop(reservation);
        }
        let wait = jitter::backoff(FIRST_RETRY, LONGEST_RETRY, self.failures);
        tracing::warn!(%error, retry_in = ?wait, "claim without an answer");
        self.retry_at = Some(Instant::now() + wait);
        ctx.run_later(wait, |act, ctx| {
            act.replay(ctx);
            act.claim(ctx);
        });
    }

    /// Asks the oldest claim again whose answer was lost; one at a time.
    fn replay(&mut self, ctx: &mut Context<Self>) {
        if self.replaying || self.retry_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        if let Some(reservation) = self.parts.permits.take_replay() {
            self.send(reservation, ctx);
        }
    }

    /// A permit has become free. While answers are full, a few milliseconds bring its neighbours too.
    fn permit_freed(&mut self, ctx: &mut Context<Self>) {
        if !self.wanted || self.gathering.is_some() {
            return;
        }
        let worthwhile = self.ask.min(self.parts.permits.capacity()) / 2;
        if self.more && self.parts.permits.free() < worthwhile {
            self.gathering = Some(ctx.run_later(GATHER, |act, ctx| {
                act.gathering = None;
                act.claim(ctx);
            }));
        } else {
            self.claim(ctx);
        }
    }

    fn watch_permits(&mut self, ctx: &mut Context<Self>) {
        let permits = self.parts.permits.clone();
        ctx.spawn(async move { permits.freed().await }.into_actor(self).map(|(), act, ctx| {
            act.permit_freed(ctx);
            act.watch_permits(ctx);
        }));
    }

    fn watch_replays(&mut self, ctx: &mut Context<Self>) {
        let permits = self.parts.permits.clone();
        ctx.spawn(async move { permits.awaits_replay().await }.into_actor(self).map(|(), act, ctx| {
            act.replay(ctx);
            act.watch_replays(ctx);
        }));
    }

    fn arm_poll(&mut self, ctx: &mut Context<Self>) {
        let wait = jitter::about(self.parts.settings.poll_interval);
        self.poll = Some(ctx.run_later(wait, |act, ctx| {
            act.wanted = true;
            act.replay(ctx);
            act.claim(ctx);
            act.arm_poll(ctx);
        }));
    }
}

fn no_answer(after: Duration) -> StoreError {
    StoreError {
        operation: "claim",
        kind: StoreErrorKind::Timeout,
        applied: Applied::Maybe,
        message: format!("no answer within {after:?}"),
    }
}

/// Gives a grant back that may not be run here. Once, and without a permit: if it is lost, the lease expires.
fn give_back(env: &Arc<LeaseEnv>, grant: Arc<Grant>) {
    tracing::warn!(job = %grant.authority.job, epoch = %grant.authority.epoch,
        "another grant of this job is still in hand here: given back");
    let env = Arc::clone(env);
    actix_rt::spawn(async move {
        let end = End::Release { delay: SUPPRESSED_DELAY, reason: "suppressed" };
        match env.store.end(&grant.authority, CommandId::generate(), &end).await {
            Ok(_) => env.tally.jobs_released.one(),
            Err(error) => {
                tracing::warn!(job = %grant.authority.job, %error, "not given back; it will expire")
            }
        }
    });
}

impl Actor for ClaimActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.watch_permits(ctx);
        self.watch_replays(ctx);
        self.arm_poll(ctx);
        self.replay(ctx);
        self.claim(ctx);
    }
}

impl Handler<Wake> for ClaimActor {
    type Result = ();

    fn handle(&mut self, _: Wake, ctx: &mut Context<Self>) {
        // While it unwinds from a panic, actix still hands an actor what is in its mailbox.
        if std::thread::panicking() {
            return;
        }
        self.wanted = true;
        self.claim(ctx);
    }
}

impl Handler<StopClaiming> for ClaimActor {
    type Result = ();

    fn handle(&mut self, _: StopClaiming, ctx: &mut Context<Self>) {
        if std::thread::panicking() {
            return;
        }
        self.parts.draining.store(true, std::sync::atomic::Ordering::Release);
        self.parts.status.set(Some(NotClaiming::Draining));
        // The poll goes on: it repeats what awaits its replay.
        self.replay(ctx);
    }
}

#[cfg(test)]
mod tests;
