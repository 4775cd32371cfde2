//! Holds one lease that somebody else acquired: the LeaseActor, the fence and the permit of a worker, without anything
//! that acquires.
//!
//! ```text
//!   grant ─▶ one permit ─▶ LeaseActor: immediate renewal ─▶ work ─▶ report ─▶ Over
//!                              │ tells what becomes of it as LeaseNotices
//! ```

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;

pub use crate::lease_actor::{LeaseNotice, LeaseOver, OnNotice};
use crate::{
    clock::Anchor,
    domain::{CommandId, JobId, RetryPolicy},
    fence::{Fence, OnStuck},
    lease_actor::{LeaseActor, StopWork},
    leases::{Alive, LeaseEnv, Tally},
    nodes::{Nodes, StartNode},
    permits::{Ask, Handover, Hands, Permits},
    ports::{Grant, LeaseStore, WorkRunner},
    settings::{LeaseTimings, RecoverySettings},
};

/// What a supplied lease is held with.
pub struct SuppliedParts {
    /// The jobs service. Nothing is acquired from it.
    pub store: Arc<dyn LeaseStore>,
    /// Runs the job.
    pub runner: Arc<dyn WorkRunner>,
    /// Starts the actor of a runtime node.
    pub start_node: StartNode,
    /// Told first of each notice, at once.
    pub on_notice: OnNotice,
    /// Told, on the fence's thread, when the work cannot be ended.
    pub on_stuck: OnStuck,
    /// How fast; see [`LeaseTimings::fitted`].
    pub timings: LeaseTimings,
    /// What a failure is worth where the job's policy is silent.
    pub retry_defaults: RetryPolicy,
}

impl std::fmt::Debug for SuppliedParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SuppliedParts").field("timings", &self.timings).finish_non_exhaustive()
    }
}

/// A lease that was presented rather than claimed: there is nothing to ask again for it.
struct Presented(CommandId);

impl Ask for Presented {
    fn command(&self) -> CommandId {
        self.0
    }

    fn repeats(&mut self) {}
}

/// A supplied lease that is held.
#[derive(Debug)]
pub struct SuppliedLease {
    env: Arc<LeaseEnv>,
    job: JobId,
    hands: Hands,
    notices: mpsc::UnboundedReceiver<LeaseNotice>,
}

impl SuppliedLease {
    /// Holds the lease of a grant, on this thread's arbiter. Nothing starts before its immediate renewal is confirmed.
    ///
    /// # Errors
    /// When the operating system gives no thread for the fence.
    pub fn hold(parts: SuppliedParts, grant: Grant, timeout_left: Option<Duration>) -> std::io::Result<Self> {
        let env = Arc::new(LeaseEnv {
            store: parts.store,
            runner: parts.runner,
            nodes: Nodes::new(parts.start_node),
            results: None,
            fence: Fence::start(parts.on_stuck)?,
            timings: parts.timings,
            retry_defaults: parts.retry_defaults,
            // Nothing is taken over here.
            recovery: RecoverySettings {
                permits: 0,
                batch: 0,
                interval: Duration::MAX,
                give_up: Duration::MAX,
                loss_limit: i32::MAX,
            },
            alive: Alive::default(),
            tally: Tally::default(),
        });
        let (job, asked) = (grant.authority.job, Anchor::now());
        let permits = Permits::new(1);
        let (tell, notices) = mpsc::unbounded_channel();
        let reservation = permits.reserve(1, |_| Presented(CommandId::generate()));
        if let Some(mut reservation) = reservation {
            if let Handover::Active(permit) = reservation.grant(&Arc::new(grant)) {
                let first = parts.on_notice;
                let told = Box::new(move |notice: LeaseNotice| {
                    first(notice.clone());
                    // Whoever does not listen any more has what it wanted to know.
                    let _ = tell.send(notice);
                });
                LeaseActor::start_supplied(&env, permit, asked, timeout_left, told);
            }
            reservation.settle();
        }
        Ok(Self { env, job, hands: permits.hands(), notices })
    }

    /// What happens to it next; none when it is over. If its actor died, none comes without [`LeaseNotice::Over`], and
    /// not before its work has ended.
    pub async fn next(&mut self) -> Option<LeaseNotice> {
        let notice = self.notices.recv().await;
        if notice.is_none()
            && let Some(unreconciled) = self.hands.take_unreconciled()
            && let Some(work) = unreconciled.work()
        {
            work.over().await;
        }
        notice
    }

    /// Stops the work, within `kill_in`, and gives the job back.
    pub fn stop(&self, kill_in: Duration) {
        if let Some(lease) = self.env.alive.of(self.job) {
            #[expect(clippy::disallowed_methods, reason = "a full mailbox must not lose the order to stop")]
            lease.do_send(StopWork { kill_in });
        }
    }
}
