//! Starts the workload of a lease, and notices its end.

use std::sync::Arc;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use tokio::{task::JoinError, time::Instant};
use tracing::Instrument;

use super::LeaseActor;
use crate::{
    domain::{
        Failure, FailureKind, JobKind,
        lease::{Event, Phase, StopReason, WorkEnd},
    },
    fence::Terms,
    leases::LeaseEnv,
    ports::Grant,
    runtime_node_actor::RunContainer,
    work::{LeaseContext, WorkOutcome},
};

impl LeaseActor {
    pub(super) fn start_work(&mut self, ctx: &mut Context<Self>) {
        self.env.tally.work_started.one();
        let watch = self.env.fence.tie(Terms {
            job: self.job(),
            epoch: self.epoch(),
            deadline: self.deadline,
            lease: self.grant.lease,
            stop_grace: self.env.timings.stop_grace,
        });
        if let Some(permit) = &self.permit {
            permit.works(Arc::clone(watch.entry()));
        }
        let lease = LeaseContext::new(Arc::clone(&self.grant), Arc::clone(&self.env.store), &watch);
        let hold = watch.entry().hold();
        let span = tracing::info_span!("job", job = %self.job(), epoch = %self.epoch(),
            attempt = self.grant.attempt, worker = %self.grant.authority.owner.worker);
        // A task of its own: it can be ended from the fence's thread, and its panic stays its own.
        let task = if let Some(recovery) = self.recovery_work(ctx, lease.clone()) {
            let work = async move {
                let _hold = hold;
                recovery.await
            };
            let task = actix_rt::spawn(work.instrument(span));
            let abort = task.abort_handle();
            ctx.spawn(task.into_actor(self).map(|ended, act, ctx| {
                act.recovered(ended.map_err(|error| act.say_panic(error)).ok());
                act.wait_until_over(ctx);
            }));
            abort
        } else {
            let (env, grant) = (Arc::clone(&self.env), Arc::clone(&self.grant));
            let work = async move {
                let _hold = hold;
                match grant.kind {
                    JobKind::Container => run_container(&env, &grant, lease).await,
                    JobKind::Handler | JobKind::Heartbeat | JobKind::Recipe => {
                        env.runner.run(grant, lease).await
                    }
                }
            };
            let limit = match &self.supplied {
                Some(supplied) => supplied.timeout_left,
                None => self.grant.timeout,
            };
            self.times_out = limit.map(|limit| Instant::now() + limit);
            let task = actix_rt::spawn(work.instrument(span));
            let abort = task.abort_handle();
            ctx.spawn(task.into_actor(self).map(|ended, act, ctx| {
                act.outcome = Some(match ended.map_err(|error| act.say_panic(error)) {
                    Ok(outcome) => outcome,
                    Err(Some(panic)) => {
                        WorkOutcome::Failed(Failure::new(FailureKind::System, "panic", panic))
                    }
                    Err(None) => WorkOutcome::Stopped,
                });
                act.wait_until_over(ctx);
            }));
            abort
        };
        watch.entry().runs_as(task);
        self.watch = Some(watch);
    }

    /// The text of the panic that ended a task; none for one that was ended from outside.
    fn say_panic(&self, error: JoinError) -> Option<String> {
        let panic = panic_text(&*error.try_into_panic().ok()?);
        self.env.tally.work_panicked.one();
        tracing::error!(job = %self.job(), epoch = %self.epoch(), panic, "the work panicked");
        Some(panic)
    }

    /// The task has ended; what it started elsewhere (a handler's own task, a container) may not have.
    fn wait_until_over(&mut self, ctx: &mut Context<Self>) {
        let Some(watch) = &self.watch else { return };
        if watch.entry().is_over() {
            return self.work_ended(ctx);
        }
        let entry = Arc::clone(watch.entry());
        let over = async move { entry.over().await };
        ctx.spawn(over.into_actor(self).map(|(), act, ctx| act.work_ended(ctx)));
    }

    fn work_ended(&mut self, ctx: &mut Context<Self>) {
        let lost = self.outcome == Some(WorkOutcome::Abandoned)
            || self.watch.as_ref().and_then(|w| w.entry().stop_reason()) == Some(StopReason::LeaseLost);
        if lost && self.phase != Phase::Stopping(StopReason::LeaseLost) {
            // The fence was first, or the work left the lease to itself.
            self.step(Event::LeaseRunsOut, ctx);
        }
        let end = match &self.outcome {
            _ if self.has_found() => WorkEnd::ByItself,
            Some(
                WorkOutcome::Completed { .. }
                | WorkOutcome::Failed(_)
                | WorkOutcome::FailedForGood(_)
                | WorkOutcome::GoesOn { .. },
            ) => WorkEnd::ByItself,
            Some(WorkOutcome::Stopped | WorkOutcome::Abandoned) | None => WorkEnd::Stopped,
        };
        self.feed(Event::WorkEnded(end), ctx);
    }
}

async fn run_container(env: &LeaseEnv, grant: &Grant, lease: LeaseContext) -> WorkOutcome {
    let failed =
        |code: &str, text: String| WorkOutcome::Failed(Failure::new(FailureKind::System, code, text));
    let Some(placement) = &grant.placement else {
        return failed("not_placed", "the claim named no runtime node for this container".to_owned());
    };
    let node = match env.nodes.actor_of(placement) {
        Ok(node) => node.run,
        Err(error) => return failed("node_unusable", error.to_string()),
    };
    match node.send(RunContainer { lease }).await {
        Ok(outcome) => outcome,
        // Its panic, or its death. What it may have left running is ended by the fence before this counts
        // as the end of the work.
        Err(error) => failed(
            "node_actor_died",
            format!("the part of this worker that talks to node {} failed: {error}", placement.node),
        ),
    }
}

/// The text of a panic, where it has one.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let fixed = panic.downcast_ref::<&str>().copied();
    match fixed.or_else(|| panic.downcast_ref::<String>().map(String::as_str)) {
        Some(text) => format!("the workload panicked: {text}"),
        None => "the workload panicked with a value that is no text".to_owned(),
    }
}
