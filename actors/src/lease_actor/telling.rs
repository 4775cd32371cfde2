//! A lease that somebody else acquired: its holder is told what becomes of it, as it happens.
//!
//! In everything else it is a lease like any other: the same immediate renewal, deadline, fence and report.

use std::{fmt, sync::Arc, time::Duration};

use actix::Actor;

use super::LeaseActor;
use crate::{
    clock::Anchor,
    domain::lease::{Effect, Phase, StopReason},
    error::StoreError,
    leases::LeaseEnv,
    permits::ActivePermit,
    ports::Ended,
};

/// What happens to a supplied lease.
#[derive(Debug, Clone)]
pub enum LeaseNotice {
    /// A renewal was confirmed.
    Renewed {
        /// Time to the expiry, by the database's clock.
        remaining: Duration,
    },
    /// The store said that the lease is not live.
    NotLive,
    /// A renewal or the report of the end brought no answer.
    NoAnswer(StoreError),
    /// The work is told to stop.
    Stopping(StopReason),
    /// Nothing more is done under it, and its work has ended.
    Over(LeaseOver),
}

/// How a supplied lease was over.
#[derive(Debug, Clone)]
pub enum LeaseOver {
    /// Its first renewal was never confirmed: nothing was started.
    NeverHeld,
    /// It was lost while its work ran, or could not be renewed in time.
    Lost,
    /// The store has answered to the report of its end.
    Ended(Ended),
    /// Its end was reported, and no answer came in time.
    Unconfirmed,
    /// It was given away.
    Exported,
}

/// Told what becomes of a lease, as it happens. Called on the arbiter that holds the lease: it must not block.
pub type OnNotice = Box<dyn Fn(LeaseNotice) + Send>;

/// What makes a lease a supplied one.
pub(super) struct Supplied {
    told: OnNotice,
    /// How much of the attempt's timeout is left, when it was handed over.
    pub(super) timeout_left: Option<Duration>,
}

impl fmt::Debug for Supplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supplied").field("timeout_left", &self.timeout_left).finish_non_exhaustive()
    }
}

impl LeaseActor {
    /// Starts the actor of a lease that was acquired elsewhere. What becomes of it is told to `told`, which is dropped
    /// with the actor.
    pub(crate) fn start_supplied(
        env: &Arc<LeaseEnv>,
        permit: ActivePermit,
        asked: Anchor,
        timeout_left: Option<Duration>,
        told: OnNotice,
    ) {
        let mut actor = Self::holding(env, permit, asked);
        actor.supplied = Some(Supplied { told, timeout_left });
        let (job, epoch) = (actor.job(), actor.epoch());
        env.alive.enter(job, epoch, actor.start());
    }

    pub(super) fn tell(&self, notice: LeaseNotice) {
        if let Some(supplied) = &self.supplied {
            (supplied.told)(notice);
        }
    }

    /// The phase has changed, and the effects are done: what is told to stop has been told before anybody hears of it.
    pub(super) fn tell_of_change(&mut self, before: Phase, now: Phase, effect: Effect) {
        if before == Phase::Stopping(StopReason::Exported) {
            // It ended by itself, was cancelled or is lost: nothing is given away.
            self.export = None;
        }
        match now {
            Phase::Stopping(why) => self.tell(LeaseNotice::Stopping(why)),
            Phase::Closed => {
                let ended = self.ended.take();
                self.tell(LeaseNotice::Over(match before {
                    _ if effect == Effect::Export => LeaseOver::Exported,
                    Phase::Reporting(_) => ended.map_or(LeaseOver::Unconfirmed, LeaseOver::Ended),
                    Phase::Confirming => LeaseOver::NeverHeld,
                    Phase::Running | Phase::Stopping(_) | Phase::Closed => LeaseOver::Lost,
                }));
            }
            Phase::Confirming | Phase::Running | Phase::Reporting(_) => {}
        }
    }
}
