//! Starts the actors of a worker in order, keeps them alive, drains them, and says how they are.
//!
//! Start: fence, reconciler, claimer, recoverer, dispatcher. Drain, in the order that lets the least go wrong:
//!
//! ```text
//!  drain(grace) ─▶ dispatch, claim and recover no more ─▶ renew and wait for the work to end ─▶ all free: done
//!       (what a late answer grants is given back)        │ grace over
//!                                                        ▼
//!                 stop the work (at most 4 s), release, reconcile ─▶ done at the latest 8 s after the grace
//! ```
//!
//! A singleton that ends unasked is rebuilt by its [`Slot`]; one that keeps dying is fatal:
//! [`Supervision::fatal`] resolves, and the process ends with an error, because the database and the other
//! workers can go on without it, but not with a worker that only looks alive.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::{oneshot, watch};

use crate::{
    claim_actor::{ClaimActor, ClaimParts, ClaimStatus, NotClaiming, StopClaiming, Wake},
    dispatch_actor::{DispatchActor, DispatchParts, LookAgain},
    domain::JobId,
    fence::{Fence, OnStuck},
    lease_actor::{ExportLease, RenewNow, StopWork},
    leases::{Alive, LeaseEnv, Tally, TallySnapshot},
    nodes::{Nodes, StartNode},
    permits::{Hands, PermitCounts, Permits},
    ports::{Authority, LeaseStore, WorkRunner},
    reconcile_actor::ReconcileActor,
    recovery_actor::{RecoveryActor, RecoveryParts, RecoveryStatus, RecoveryView},
    runtime_node_actor::TaskResults,
    settings::ActorSettings,
    slot::{Slot, SlotState},
};

/// How long work may take to stop once the grace of a drain is over.
const STOP_IN: Duration = Duration::from_secs(4);

/// How long after the grace a drain ends at the latest, whatever is left. (The promise is 10 s.)
const LAST_WORDS: Duration = Duration::from_secs(8);

/// How long [`Supervision::stop_now`] waits for the store to confirm what it can.
const STOP_NOW_LIMIT: Duration = Duration::from_secs(2);

/// What a worker is made of.
pub struct WorkerParts {
    /// The jobs service.
    pub store: Arc<dyn LeaseStore>,
    /// Runs HEARTBEAT and HANDLER jobs.
    pub runner: Arc<dyn WorkRunner>,
    /// Starts the actor of a runtime node.
    pub start_node: StartNode,
    /// Records results of recipes' tasks that are found by a recovery; none in a process that runs no recipes.
    pub results: Option<Arc<dyn TaskResults>>,
    /// Told, on the fence's thread, of every workload that cannot be ended.
    pub on_stuck: OnStuck,
    /// What to do, and how fast.
    pub settings: ActorSettings,
}

impl std::fmt::Debug for WorkerParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerParts").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Why the process must end with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// A singleton keeps dying.
    #[error("the {0} loop keeps dying; see the log for its panics")]
    KeepsDying(&'static str),
}

/// How one of the loops is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopHealth {
    /// Its name.
    pub name: &'static str,
    /// How it is doing.
    pub state: SlotState,
    /// How often it has died.
    pub deaths: u32,
}

/// How a worker is doing, as plain data.
#[derive(Debug, Clone)]
pub struct WorkerHealth {
    /// The loops that must live.
    pub loops: Vec<LoopHealth>,
    /// Permits by state; they add up to the capacity.
    pub permits: PermitCounts,
    /// Recovery permits by state; they add up to a capacity of their own.
    pub recovery_permits: PermitCounts,
    /// What the last look for expired leases found.
    pub recovery: RecoveryView,
    /// Why nothing is claimed at the moment, if so.
    pub not_claiming: Option<NotClaiming>,
    /// LeaseActors alive.
    pub leases: usize,
    /// Workloads that the fence watches.
    pub watched: usize,
    /// Workloads that the fence ended by force since the start.
    pub forced_ends: u64,
    /// A drain has begun.
    pub draining: bool,
    /// Counters since the start.
    pub tally: TallySnapshot,
}

impl WorkerHealth {
    /// Whether everything that should live does, and nothing is stuck.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let alive =
            |l: &LoopHealth| l.state == SlotState::Alive || (self.draining && l.state == SlotState::Stopped);
        self.loops.iter().all(alive) && self.permits.stuck == 0 && self.recovery_permits.stuck == 0
    }
}

/// What a drain left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Permits by state at its end. All free: every job ended or was given back, and the store confirmed it.
    pub permits: PermitCounts,
    /// Recovery permits by state at its end.
    pub recovery_permits: PermitCounts,
}

impl Drained {
    /// Whether nothing is left in hand.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        [self.permits, self.recovery_permits].iter().all(|permits| permits.free == permits.total())
    }
}

/// The running actors of one worker. Cheap to clone; usable from any thread.
#[derive(Debug, Clone)]
pub struct Supervision {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    env: Arc<LeaseEnv>,
    permits: Hands,
    recovery_permits: Hands,
    status: Arc<ClaimStatus>,
    recovery_status: Arc<RecoveryStatus>,
    draining: Arc<AtomicBool>,
    fatal: watch::Receiver<Option<Fatal>>,
    reconcile: Slot<ReconcileActor>,
    claim: Slot<ClaimActor>,
    recovery: Slot<RecoveryActor>,
    dispatch: Option<Slot<DispatchActor>>,
}

impl Supervision {
    /// Starts everything on this thread's arbiter.
    ///
    /// # Errors
    /// When the operating system gives no thread for the fence.
    pub fn start(parts: WorkerParts) -> std::io::Result<Self> {
        let settings = parts.settings;
        let env = Arc::new(LeaseEnv {
            store: parts.store,
            runner: parts.runner,
            nodes: Nodes::new(parts.start_node),
            results: parts.results,
            fence: Fence::start(parts.on_stuck)?,
            timings: settings.timings,
            retry_defaults: settings.retry_defaults,
            recovery: settings.recovery,
            alive: Alive::default(),
            tally: Tally::default(),
        });
        let permits = Permits::new(settings.claim.concurrency);
        let recovery_permits = Permits::beside(settings.recovery.permits, &permits);
        let (dead, fatal) = watch::channel(None);
        let dead = Arc::new(dead);
        let keeps_dying = || {
            let dead = Arc::clone(&dead);
            move |name| {
                dead.send_replace(Some(Fatal::KeepsDying(name)));
            }
        };

        let reconcile = {
            let (env, pools) = (Arc::clone(&env), vec![permits.hands(), recovery_permits.hands()]);
            let make = move || ReconcileActor::new(Arc::clone(&env), pools.clone());
            Slot::guard("reconcile", make, keeps_dying())
        };
        let (status, draining) = (Arc::new(ClaimStatus::default()), Arc::new(AtomicBool::new(false)));
        let owner = settings.claim.owner.clone();
        let claim_parts = ClaimParts {
            env: Arc::clone(&env),
            permits: permits.clone(),
            settings: Arc::new(settings.claim),
            status: Arc::clone(&status),
            draining: Arc::clone(&draining),
        };
        let claim = Slot::guard("claim", move || ClaimActor::new(claim_parts.clone()), keeps_dying());
        let recovery_status = Arc::new(RecoveryStatus::default());
        let recovery_parts = RecoveryParts {
            env: Arc::clone(&env),
            permits: recovery_permits.clone(),
            claimed: permits.hands(),
            owner: owner.clone(),
            settings: settings.recovery,
            status: Arc::clone(&recovery_status),
            draining: Arc::clone(&draining),
        };
        let make = move || RecoveryActor::new(recovery_parts.clone());
        let recovery = Slot::guard("recovery", make, keeps_dying());
        let dispatch = settings.dispatch.map(|dispatch| {
            let claimer = claim.clone();
            let parts = DispatchParts {
                env: Arc::clone(&env),
                namespace: owner.namespace.clone(),
                settings: dispatch,
                on_queued: Arc::new(move || claimer.hint(Wake)),
            };
            Slot::guard("dispatch", move || DispatchActor::new(parts.clone()), keeps_dying())
        });
        let inner = Inner {
            env,
            permits: permits.hands(),
            recovery_permits: recovery_permits.hands(),
            status,
            recovery_status,
            draining,
            fatal,
            reconcile,
            claim,
            recovery,
            dispatch,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    // -----------------------------------------------------------------------------------------------
    // Hints: each may be lost, repeated or late
    // -----------------------------------------------------------------------------------------------

    /// Something may have become QUEUED.
    pub fn work_is_ready(&self) {
        self.inner.claim.hint(Wake);
    }

    /// Something may be due sooner than expected.
    pub fn work_is_waiting(&self) {
        if let Some(dispatch) = &self.inner.dispatch {
            dispatch.hint(LookAgain);
        }
    }

    /// A cancel of this job may have been requested.
    pub fn cancel_is_requested(&self, job: JobId) {
        if let Some(lease) = self.inner.env.alive.of(job) {
            // A full mailbox, or an actor that has just ended: the next renewal tells as well.
            let _ = lease.try_send(RenewNow);
        }
    }

    /// Gives the lease of a RECIPE job in hand to somebody else, with [`crate::supplied`]: its work is stopped, within
    /// `kill_in`, and goes on there from what is recorded. None where the job is not in hand, or ended first; it is never
    /// given away while anything of it may run here.
    pub async fn export(&self, job: JobId, kill_in: Duration) -> Option<Authority> {
        let lease = self.inner.env.alive.of(job)?;
        let (to, given) = oneshot::channel();
        lease.send(ExportLease { to, kill_in }).await.ok()?;
        given.await.ok()
    }

    /// Hints may have been lost: look at everything.
    pub fn resync(&self) {
        self.work_is_ready();
        self.work_is_waiting();
        for lease in self.inner.env.alive.all() {
            let _ = lease.try_send(RenewNow);
        }
    }

    // -----------------------------------------------------------------------------------------------
    // Health
    // -----------------------------------------------------------------------------------------------

    /// How the worker is doing. Walks over the jobs in hand.
    #[must_use]
    pub fn health(&self) -> WorkerHealth {
        let inner = &self.inner;
        let mut loops =
            vec![health_of(&inner.reconcile), health_of(&inner.claim), health_of(&inner.recovery)];
        loops.extend(inner.dispatch.as_ref().map(health_of));
        let permits = inner.permits.counts();
        let no_permit = (permits.free == 0).then_some(NotClaiming::NoFreePermit);
        WorkerHealth {
            loops,
            permits,
            recovery_permits: inner.recovery_permits.counts(),
            recovery: inner.recovery_status.view(),
            not_claiming: inner.status.reason().or(no_permit),
            leases: inner.env.alive.count(),
            watched: inner.env.fence.watched(),
            forced_ends: inner.env.fence.kills(),
            draining: inner.draining.load(Ordering::Acquire),
            tally: inner.env.tally.snapshot(),
        }
    }

    /// Resolves when the process must end with an error.
    pub async fn fatal(&self) -> Fatal {
        let mut fatal = self.inner.fatal.clone();
        if let Ok(found) = fatal.wait_for(Option::is_some).await
            && let Some(fatal) = *found
        {
            return fatal;
        }
        // The senders are gone with the arbiter: nothing can die any more.
        std::future::pending().await
    }

    // -----------------------------------------------------------------------------------------------
    // The end
    // -----------------------------------------------------------------------------------------------

    /// Stops taking work, lets the work in hand end by itself for `grace`, then stops it and gives it back.
    /// Returns at the latest 8 s after the grace, whatever is left.
    pub async fn drain(&self, grace: Duration) -> Drained {
        self.take_no_more();
        tracing::info!(?grace, leases = self.inner.env.alive.count(), "draining");
        if tokio::time::timeout(grace, self.quiet()).await.is_err() {
            tracing::warn!(leases = self.inner.env.alive.count(), "grace is over, stopping the work");
            self.stop_work(STOP_IN);
            let _ = tokio::time::timeout(LAST_WORDS, self.quiet()).await;
        }
        self.close()
    }

    /// Stops all work at once and gives back what the store confirms within 2 s. Also in the middle of a
    /// drain.
    pub async fn stop_now(&self) -> Drained {
        self.take_no_more();
        self.stop_work(Duration::ZERO);
        let _ = tokio::time::timeout(STOP_NOW_LIMIT, self.quiet()).await;
        self.close()
    }

    /// Resolves when nothing is in hand. What was taken over last ends first, and hands nothing to the others.
    async fn quiet(&self) {
        self.inner.recovery_permits.quiet().await;
        self.inner.permits.quiet().await;
    }

    fn take_no_more(&self) {
        // The flag first: it outlives a ClaimActor that dies before it reads the message.
        self.inner.draining.store(true, Ordering::Release);
        self.inner.claim.hint(StopClaiming);
        if let Some(dispatch) = &self.inner.dispatch {
            dispatch.close();
        }
    }

    fn stop_work(&self, kill_in: Duration) {
        for lease in self.inner.env.alive.all() {
            #[expect(clippy::disallowed_methods, reason = "a full mailbox must not lose the order to stop")]
            lease.do_send(StopWork { kill_in });
        }
    }

    fn close(&self) -> Drained {
        let (permits, recovery_permits) = (self.inner.permits.counts(), self.inner.recovery_permits.counts());
        self.inner.claim.close();
        self.inner.recovery.close();
        self.inner.reconcile.close();
        let drained = Drained { permits, recovery_permits };
        if drained.is_clean() {
            tracing::info!("drained");
        } else {
            tracing::warn!(
                ?permits,
                ?recovery_permits,
                "drained with jobs whose end is not confirmed; their leases expire"
            );
        }
        drained
    }
}

fn health_of<A: actix::Actor<Context = actix::Context<A>>>(slot: &Slot<A>) -> LoopHealth {
    LoopHealth { name: slot.name(), state: slot.state(), deaths: slot.deaths() }
}

#[cfg(test)]
mod tests;
