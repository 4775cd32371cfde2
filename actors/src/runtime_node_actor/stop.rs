//! Stopping: the container is marked first, so that nobody takes the exit that follows for its own; where the
//! mark is not confirmed it is killed, since a SIGKILL is never taken for its own.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{
    run::{End, FIRST_WAIT, Run, is_passing},
    watch::is_over,
};
use crate::{
    domain::ContainerId,
    ports::{ContainerState, ContainerStatus},
    work::StopReason,
};

/// The longest wait for the mark; asking is worth nothing without it, and the grace is running.
const MARK_LIMIT: Duration = Duration::from_secs(2);

impl Run {
    /// Stops the container within the time that the lease leaves.
    pub(super) async fn stop(&self, id: &ContainerId, reason: StopReason) -> End {
        tracing::info!(container = %self.plan.name, ?reason, "stopping the container");
        let work = async {
            match self.ask(id).await {
                Ok(Some(end)) => end,
                Ok(None) | Err(()) => self.kill_until_dead(id).await,
            }
        };
        tokio::select! {
            biased;
            end = work => end,
            () = self.out_of_time() => {
                tracing::error!(container = %self.plan.name, "the container could not be stopped in time");
                End::Unstoppable
            }
        }
    }

    /// Marks and asks. `Err` when it must be killed: the mark failed, or the engine does not answer.
    async fn ask(&self, id: &ContainerId) -> Result<Option<End>, ()> {
        let budget = self.lease.stop_budget();
        let mark = timeout(MARK_LIMIT.min(budget / 4), self.engine().mark_stopped(id, &self.plan.name));
        match mark.await {
            Ok(Ok(())) => {}
            // Whatever the refusal says: the mark is evidence of whose exit it is, and none of there being nothing to stop.
            Ok(Err(error)) => {
                let look = timeout(MARK_LIMIT.min(budget / 4), self.look(id));
                if !is_passing(&error) && matches!(look.await, Ok(Ok(None))) {
                    return Ok(Some(End::Gone));
                }
                tracing::warn!(container = %self.plan.name, %error, "not marked, so it is killed");
                return Err(());
            }
            Err(_) => return Err(()),
        }
        match timeout(MARK_LIMIT.min(budget / 4), self.look(id)).await {
            Ok(Ok(None)) => return Ok(Some(End::Gone)),
            // It was over before anything was asked of it.
            Ok(Ok(Some(status))) if is_over(&status) => return Ok(Some(self.own_exit(id, status).await)),
            Ok(Ok(Some(status))) => {
                if status.state == (ContainerState::Running { paused: true }) {
                    self.journal.remark("the container was paused when it was stopped").await;
                }
            }
            Ok(Err(_)) | Err(_) => return Err(()),
        }
        // Some time is kept for the rest of the output and the removal.
        let budget = self.lease.stop_budget();
        let grace = self.stop_grace().min(budget.saturating_sub(self.limits().tidy.min(budget / 4)));
        match timeout(grace + self.limits().tidy, self.engine().stop(id, grace)).await {
            Ok(Ok(())) => Ok(self.confirmed_dead(id).await),
            Ok(Err(error)) => {
                tracing::warn!(container = %self.plan.name, %error, "not stopped, so it is killed");
                Err(())
            }
            Err(_) => Err(()),
        }
    }

    async fn kill_until_dead(&self, id: &ContainerId) -> End {
        loop {
            match self.call("kill", self.limits().look_every, self.engine().kill(id)).await {
                Ok(()) => {
                    if let Some(end) = self.confirmed_dead(id).await {
                        return end;
                    }
                }
                Err(error) => {
                    if !is_passing(&error) && matches!(self.look(id).await, Ok(None)) {
                        return End::Gone;
                    }
                    tracing::warn!(container = %self.plan.name, %error, "not killed, trying again");
                }
            }
            sleep(FIRST_WAIT).await;
        }
    }

    /// None while it still runs, or nobody can tell.
    async fn confirmed_dead(&self, id: &ContainerId) -> Option<End> {
        match self.look(id).await {
            Ok(None) => Some(End::Stopped),
            Ok(Some(status)) if is_over(&status) => Some(End::Stopped),
            Ok(Some(_)) | Err(_) => None,
        }
    }

    /// The exit came before our mark, so the name that the mark gave it does not count.
    async fn own_exit(&self, id: &ContainerId, status: ContainerStatus) -> End {
        let mut exit = self.examined(id, status).await;
        exit.status.name.clone_from(&self.plan.name);
        End::Exit(exit)
    }
}
