//! Makes due PENDING jobs QUEUED, in bounded batches. Any number of processes may do it at once.
//!
//! | message | from | meaning |
//! |---|---|---|
//! | [`LookAgain`] | NOTIFY, a reconnect | something may be due sooner than expected; a hint |
//!
//! It looks when the store said the next job would be due, when a hint comes, and at the latest when the poll
//! interval (jittered) is over; and at once again while batches come back full.

use std::{sync::Arc, time::Duration};

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, SpawnHandle, WrapFuture};

use crate::{
    domain::Namespace,
    error::{Applied, StoreError, StoreErrorKind},
    jitter,
    leases::LeaseEnv,
    ports::Dispatched,
    settings::DispatchSettings,
};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// Something may be due sooner than expected. May be lost or repeated without harm.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct LookAgain;

/// Called after jobs became QUEUED, so that a claimer in this process need not wait for the notification.
pub type OnQueued = Arc<dyn Fn() + Send + Sync>;

/// What a DispatchActor is made of; kept by its factory.
#[derive(Clone)]
pub struct DispatchParts {
    /// The store, and where to count.
    pub env: Arc<LeaseEnv>,
    /// Whose jobs.
    pub namespace: Namespace,
    /// How many at a time, how often.
    pub settings: DispatchSettings,
    /// Who is told.
    pub on_queued: OnQueued,
}

impl std::fmt::Debug for DispatchParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DispatchParts").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The dispatcher of one process.
#[derive(Debug)]
pub struct DispatchActor {
    parts: DispatchParts,
    looking: bool,
    /// A hint came while a look was on the way, which may have missed what the hint was about.
    again: bool,
    failures: u32,
    next: Option<SpawnHandle>,
}

impl DispatchActor {
    /// A dispatcher that has not looked yet.
    #[must_use]
    pub fn new(parts: DispatchParts) -> Self {
        Self { parts, looking: false, again: false, failures: 0, next: None }
    }

    fn look(&mut self, ctx: &mut Context<Self>) {
        if self.looking {
            self.again = true;
            return;
        }
        self.looking = true;
        self.again = false;
        let parts = self.parts.clone();
        let call = async move {
            let timeout = parts.env.timings.store_timeout;
            let look = parts.env.store.dispatch(&parts.namespace, parts.settings.batch);
            tokio::time::timeout(timeout, look).await.unwrap_or_else(|_| Err(no_answer(timeout)))
        };
        ctx.spawn(call.into_actor(self).map(|answer, act, ctx| {
            act.looking = false;
            act.looked(answer, ctx);
        }));
    }

    fn looked(&mut self, answer: Result<Dispatched, StoreError>, ctx: &mut Context<Self>) {
        let wait = match answer {
            Ok(Dispatched { moved, next_due }) => {
                self.failures = 0;
                if moved > 0 {
                    self.parts.env.tally.jobs_dispatched.add(u64::from(moved));
                    (self.parts.on_queued)();
                }
                if moved >= self.parts.settings.batch || self.again {
                    Duration::ZERO
                } else {
                    let poll = jitter::about(self.parts.settings.poll_interval);
                    next_due.map_or(poll, |due| due.min(poll))
                }
            }
            Err(error) => {
                self.failures += 1;
                let wait = jitter::backoff(FIRST_RETRY, LONGEST_RETRY, self.failures);
                tracing::warn!(%error, retry_in = ?wait, "dispatch without an answer");
                wait
            }
        };
        if wait.is_zero() {
            self.look(ctx);
        } else {
            self.look_in(wait, ctx);
        }
    }

    fn look_in(&mut self, wait: Duration, ctx: &mut Context<Self>) {
        if let Some(earlier) = self.next.take() {
            ctx.cancel_future(earlier);
        }
        self.next = Some(ctx.run_later(wait, |act, ctx| {
            act.next = None;
            act.look(ctx);
        }));
    }
}

fn no_answer(after: Duration) -> StoreError {
    StoreError {
        operation: "dispatch",
        kind: StoreErrorKind::Timeout,
        applied: Applied::Maybe,
        message: format!("no answer within {after:?}"),
    }
}

impl Actor for DispatchActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.look(ctx);
    }
}

impl Handler<LookAgain> for DispatchActor {
    type Result = ();

    fn handle(&mut self, _: LookAgain, ctx: &mut Context<Self>) {
        // While it unwinds from a panic, actix still hands an actor what is in its mailbox. And after
        // failures the backoff stands: a hint does not make the store better.
        if !std::thread::panicking() && self.failures == 0 {
            self.look(ctx);
        }
    }
}
