//! A lease that was taken over: its work is the recovery of the job.
//!
//! | the job | what is done |
//! |---|---|
//! | its claim was never renewed | nothing was started: given back, and no counter rises |
//! | has no container | a loss is reported at once: there is nothing to clean up |
//! | a RECIPE with containers of tasks | each is cleaned up on its own node, and its result recorded if it has one; then as one that has none |
//! | may have a container | the immediate renewal, then the actor of its stored node: [`RecoverContainer`] |
//!
//! Until its container is followed on (adopted), a recovery is not stopped by a cancel: cleaning up is what a
//! cancel asks for, and the store turns whatever is reported of such a job into CANCELED. A recovery that a drain
//! interrupts gives the *lease* up, never the job: what it owns may still be running.

use std::{sync::Arc, time::Duration};

use actix::{Actor, ActorFutureExt, AsyncContext, Context, WrapFuture};
use futures_util::future::join_all;
use tokio::{sync::oneshot, time::Instant};

use super::{LeaseActor, reporting::Told};
use crate::{
    clock::Anchor,
    domain::lease::Phase,
    jitter,
    leases::LeaseEnv,
    permits::{ActivePermit, Hands},
    ports::{End, Placement, RuntimeStanding, Takeover, TaskContainer},
    runtime_node_actor::{Adoption, Afterwards, RecoverContainer, Recovered, TaskRecovery},
    work::{LeaseContext, WorkOutcome},
};

/// The shortest and the longest time for which a recovery is put off.
const PUT_OFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));

/// Why a job was lost of which nobody knows more.
const LET_EXPIRE: &str = "the worker that ran it let its lease expire";

/// What makes a lease one that was taken over.
#[derive(Debug)]
pub(super) struct Recovery {
    takeover: Arc<Takeover>,
    /// The permits of what runs: an adopted container takes one of those.
    runs: Hands,
    /// The container is followed on: from now on this is a run like any other.
    adopted: bool,
    found: Option<Recovered>,
    /// What is done once the report is confirmed.
    afterwards: Option<Afterwards>,
}

impl LeaseActor {
    /// Starts the actor of a takeover. `asked` was taken before the recovery was sent. With `give_back` (a drain
    /// has begun) nothing is touched, and what cannot be ended that way is left to others.
    pub fn start_recovery(
        env: &Arc<LeaseEnv>,
        permit: ActivePermit,
        asked: Anchor,
        takeover: Arc<Takeover>,
        runs: &Hands,
        give_back: bool,
    ) {
        let mut actor = Self::holding(env, permit, asked);
        actor.give_back = give_back || !owns_a_container(&takeover);
        let runs = runs.clone();
        actor.recovery = Some(Recovery { takeover, runs, adopted: false, found: None, afterwards: None });
        let (job, epoch) = (actor.job(), actor.epoch());
        env.alive.enter(job, epoch, actor.start());
    }

    /// Whether a requested cancel stops the work. (Cleaning up goes on.)
    pub(super) fn heeds_cancel(&self) -> bool {
        self.recovery.as_ref().is_none_or(|recovery| recovery.adopted)
    }

    /// The recovery as a task's work; none for a lease that was claimed.
    pub(super) fn recovery_work(
        &self,
        ctx: &mut Context<Self>,
        lease: LeaseContext,
    ) -> Option<impl Future<Output = Recovered> + use<>> {
        let recovery = self.recovery.as_ref()?;
        let (adopts, adopted) = oneshot::channel();
        ctx.spawn(adopted.into_actor(self).map(|adopted, act, ctx| {
            if let Ok(adoption) = adopted {
                act.adopt(adoption, ctx);
            }
        }));
        let last_time = self.is_put_off_no_more(&recovery.takeover);
        let (env, takeover) = (Arc::clone(&self.env), Arc::clone(&recovery.takeover));
        Some(async move { recover(&env, takeover, last_time, lease, adopts).await })
    }

    /// A container can be followed on: from then on it takes a permit of the runs, since those of recovery serve
    /// recovery only.
    fn adopt(&mut self, adoption: Adoption, ctx: &mut Context<Self>) {
        let Some(recovery) = &mut self.recovery else { return };
        let moved = self.permit.as_mut().is_some_and(|permit| permit.move_to(&recovery.runs));
        let has_room = moved && self.phase == Phase::Running;
        recovery.adopted = has_room;
        if adoption.has_room.send(has_room).is_err() || !has_room {
            return;
        }
        let timeout = adoption.timeout;
        self.env.tally.containers_adopted.one();
        self.times_out = timeout.map(|left| Instant::now() + left);
        // A cancel that was not heeded until now is heeded at the next renewal: now.
        if !self.renewals.pending {
            self.renew(ctx);
        }
        self.arm(ctx);
    }

    /// Takes what a recovery found. True when it is to be reported as it stands.
    pub(super) fn recovered(&mut self, found: Option<Recovered>) {
        let Some(recovery) = &mut self.recovery else { return };
        match found {
            // A run like any other, to its end.
            Some(Recovered::Run(outcome)) => self.outcome = Some(outcome),
            Some(Recovered::Stopped) | None => self.outcome = Some(WorkOutcome::Stopped),
            found => recovery.found = found,
        }
    }

    /// Whether a recovery has found something that is to be reported.
    pub(super) fn has_found(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.found.is_some())
    }

    /// What is reported of a recovery that came to its end by itself.
    pub(super) fn told_of_recovery(&mut self) -> Option<Told> {
        let recovery = self.recovery.as_mut()?;
        let (told, afterwards) = match recovery.found.take()? {
            Recovered::Ended { outcome, afterwards } => (Told::End(self.end_of(outcome)), Some(afterwards)),
            Recovered::Lost { message, afterwards } => (Told::End(self.lost(message)), afterwards),
            Recovered::CleanedUp => (Told::End(self.lost(LET_EXPIRE.to_owned())), None),
            Recovered::NotStarted => (Told::End(given_back("not_started")), None),
            Recovered::NotNow { reason } => (self.put_off(&reason), None),
            Recovered::NoRoom => (Told::Postpone(jitter::about(PUT_OFF.0)), None),
            Recovered::NotHere { reason } => (self.leave_to_others(&reason), None),
            Recovered::Run(_) | Recovered::Stopped => return None,
        };
        if let Some(recovery) = &mut self.recovery {
            recovery.afterwards = afterwards;
        }
        Some(told)
    }

    /// What is reported of a takeover of which nothing was touched, or whose cleaning up did not come to its end.
    pub(super) fn told_of_the_rest(&mut self) -> Option<Told> {
        let recovery = self.recovery.as_ref()?;
        if recovery.adopted {
            return None;
        }
        let takeover = &recovery.takeover;
        if !takeover.started && takeover.tasks.is_empty() {
            return Some(Told::End(given_back("never_started")));
        }
        if owns_a_container(takeover) {
            // Somebody else can do it at once.
            return Some(if self.give_back || self.kill_in.is_some() {
                Told::Postpone(Duration::ZERO)
            } else {
                self.put_off("the cleaning up was broken off")
            });
        }
        Some(Told::End(self.lost(LET_EXPIRE.to_owned())))
    }

    /// The report is confirmed: what waited for that is done now.
    pub(super) fn after_the_report(&mut self) {
        if let Some(afterwards) = self.recovery.as_mut().and_then(|recovery| recovery.afterwards.take()) {
            afterwards.go();
        }
    }

    fn lost(&self, message: String) -> End {
        End::Lost { defaults: self.env.retry_defaults, loss_limit: self.env.recovery.loss_limit, message }
    }

    /// Not now: for longer, the longer it goes on like that; or, at last, as one that cannot be cleaned up.
    fn put_off(&self, reason: &str) -> Told {
        let Some(recovery) = &self.recovery else { return Told::Postpone(PUT_OFF.0) };
        if self.is_put_off_no_more(&recovery.takeover) {
            return Told::End(self.lost(format!("its container could not be cleaned up: {reason}")));
        }
        let pending = recovery.takeover.cleanup_pending_for.unwrap_or_default();
        let delay = jitter::about(pending.clamp(PUT_OFF.0, PUT_OFF.1)).clamp(PUT_OFF.0, PUT_OFF.1);
        tracing::warn!(job = %self.job(), epoch = %self.epoch(), reason, again_in = ?delay,
            "cleanup pending: the recovery is put off");
        Told::Postpone(delay)
    }

    /// Another worker may be able to: not for longer, the longer it goes on, since whose turn it is then is by chance.
    fn leave_to_others(&self, reason: &str) -> Told {
        let delay = jitter::about(PUT_OFF.0);
        tracing::warn!(job = %self.job(), epoch = %self.epoch(), reason, again_in = ?delay,
            "the recovery is left to a worker that can do it");
        Told::Postpone(delay)
    }

    /// Its runtime counts as unavailable, as the store says or because its cleanup has been pending for too long.
    fn is_put_off_no_more(&self, takeover: &Takeover) -> bool {
        takeover.runtime == RuntimeStanding::Unavailable
            || takeover.cleanup_pending_for.is_some_and(|pending| pending >= self.env.recovery.give_up)
    }
}

/// Whether something of it may exist on an engine.
fn owns_a_container(takeover: &Takeover) -> bool {
    takeover.started && takeover.grant.placement.is_some() || !takeover.tasks.is_empty()
}

fn given_back(reason: &'static str) -> End {
    End::Release { delay: Duration::ZERO, reason }
}

async fn recover(
    env: &LeaseEnv,
    takeover: Arc<Takeover>,
    last_time: bool,
    lease: LeaseContext,
    adopts: oneshot::Sender<Adoption>,
) -> Recovered {
    if !takeover.tasks.is_empty() {
        return recover_tasks(env, &takeover, last_time, &lease).await;
    }
    let Some(placement) = takeover.grant.placement.clone() else {
        return Recovered::NotNow { reason: "it was placed on no node".to_owned() };
    };
    let message = RecoverContainer { lease, takeover, task: None, last_time, adopts };
    ask_node(env, &placement, message).await
}

/// Cleans up after every task that had a node. Only when nothing is left of any does the recipe go on.
async fn recover_tasks(
    env: &LeaseEnv,
    takeover: &Arc<Takeover>,
    last_time: bool,
    lease: &LeaseContext,
) -> Recovered {
    let each = takeover.tasks.iter().map(|task: &TaskContainer| {
        let message = RecoverContainer {
            lease: lease.clone(),
            takeover: Arc::clone(takeover),
            task: Some(TaskRecovery { container: task.clone(), results: env.results.clone() }),
            last_time,
            // The container of a task is never followed on.
            adopts: oneshot::channel().0,
        };
        ask_node(env, &task.placement, message)
    });
    let mut found = join_all(each).await;
    match found.iter().position(|found| !matches!(found, Recovered::CleanedUp)) {
        Some(at) => found.swap_remove(at),
        None => Recovered::CleanedUp,
    }
}

async fn ask_node(env: &LeaseEnv, placement: &Placement, message: RecoverContainer) -> Recovered {
    let node = match env.nodes.actor_of(placement) {
        Ok(node) => node,
        Err(error) => return Recovered::NotNow { reason: error.to_string() },
    };
    let name = placement.node.clone();
    match node.recover.send(message).await {
        Ok(recovered) => recovered,
        Err(error) => Recovered::NotNow {
            reason: format!("the part of this worker that talks to node {name} failed: {error}"),
        },
    }
}
