//! Finds out what became of grants whose end nobody confirmed, or whose actor died.
//!
//! It takes no message: the permits tell it that there is something to find out.
//!
//! Only asks, never extends: while the store says *live* the permit stays held and the job suppressed; on
//! *expired* or *changed* it is freed, as soon as the workload (if it still goes on) has ended. Each grant is
//! followed by a task of its own, so that one that hangs holds up no other; a task that dies gives its grant
//! back to the queue by the guard.

use std::{sync::Arc, time::Duration};

use actix::{Actor, ActorFutureExt, AsyncContext, Context, WrapFuture};

use crate::{
    jitter,
    leases::LeaseEnv,
    permits::{Hands, Unreconciled},
    ports::Reconciliation,
};

/// The longest wait between two questions about one grant.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The first wait after a question without an answer.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// How long after a known expiry to ask again.
const AFTER_EXPIRY: Duration = Duration::from_millis(50);

/// The reconciler of one worker.
#[derive(Debug)]
pub struct ReconcileActor {
    env: Arc<LeaseEnv>,
    pools: Vec<Hands>,
}

impl ReconcileActor {
    /// A reconciler for these pools of permits.
    #[must_use]
    pub fn new(env: Arc<LeaseEnv>, pools: Vec<Hands>) -> Self {
        Self { env, pools }
    }

    fn take_all(&mut self, pool: Hands, ctx: &mut Context<Self>) {
        while let Some(unreconciled) = pool.take_unreconciled() {
            self.env.tally.reconciliations.one();
            actix_rt::spawn(find_out(Arc::clone(&self.env), unreconciled));
        }
        let more = async move {
            pool.awaits_reconciliation().await;
            pool
        };
        ctx.spawn(more.into_actor(self).map(|pool, act, ctx| act.take_all(pool, ctx)));
    }
}

async fn find_out(env: Arc<LeaseEnv>, unreconciled: Unreconciled) {
    let authority = &unreconciled.grant().authority;
    tracing::warn!(job = %authority.job, epoch = %authority.epoch, "end of the lease not confirmed, reconciling");
    let mut failures = 0;
    loop {
        let timeout = env.timings.store_timeout;
        let wait = match tokio::time::timeout(timeout, env.store.reconcile(authority)).await {
            Ok(Ok(Reconciliation::Live { remaining })) => {
                failures = 0;
                (remaining + AFTER_EXPIRY).min(jitter::about(LONGEST_WAIT))
            }
            Ok(Ok(Reconciliation::Expired | Reconciliation::Changed)) => break,
            Ok(Err(error)) => {
                failures += 1;
                tracing::warn!(job = %authority.job, %error, "reconciliation without an answer");
                jitter::backoff(FIRST_RETRY, LONGEST_WAIT, failures)
            }
            Err(_) => {
                failures += 1;
                jitter::backoff(FIRST_RETRY, LONGEST_WAIT, failures)
            }
        };
        tokio::time::sleep(wait).await;
    }
    if let Some(work) = unreconciled.work() {
        // Stuck, if it does not end: then nothing frees the permit.
        work.over().await;
    }
    tracing::info!(job = %authority.job, epoch = %authority.epoch, "reconciled, the permit is free");
    unreconciled.free();
}

impl Actor for ReconcileActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        for pool in self.pools.clone() {
            self.take_all(pool, ctx);
        }
    }
}
