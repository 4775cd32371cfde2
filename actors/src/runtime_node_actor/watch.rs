//! Watching a started container to its end. A wait that breaks off tells nothing: the engine is asked again.

use tokio::time::{Instant, sleep};

use super::{
    exit::Exit,
    run::{End, FIRST_WAIT, LAST_WAIT, Run, is_passing},
};
use crate::{
    domain::ContainerId,
    error::{Applied, EngineError, EngineErrorKind},
    ports::{ContainerState, ContainerStatus},
};

/// How often a health check that brought no clear answer is repeated before it counts as an outage.
const HEALTH_TRIES: u32 = 3;

/// What a wait, or the look beside it, brought.
enum Seen {
    /// The wait's own answer, which tells all there is to know.
    Waited(ContainerStatus),
    Looked(ContainerStatus),
    Gone,
}

impl Run {
    /// Resolves when the container has ended by itself, is gone, or its engine is lost.
    pub(super) async fn until_ended(&self, id: &ContainerId) -> End {
        let mut outage = false;
        let mut down_since: Option<Instant> = None;
        let mut pause = FIRST_WAIT;
        loop {
            let seen = match down_since {
                None => self.wait_or_look(id).await,
                // After trouble, look first: a wait on an ended container and one on a lost engine look alike.
                Some(_) => self.look(id).await.map(|status| status.map_or(Seen::Gone, Seen::Looked)),
            };
            match seen {
                Ok(Seen::Gone) => return End::Gone,
                Ok(Seen::Waited(status)) if is_over(&status) => {
                    outage |= !self.engine_is_well().await;
                    return End::Exit(Exit { status, outage });
                }
                Ok(Seen::Looked(status)) if is_over(&status) => {
                    outage |= !self.engine_is_well().await;
                    let mut exit = self.examined(id, status).await;
                    exit.outage |= outage;
                    return End::Exit(exit);
                }
                // It runs, so whatever the engine went through it is not how it ended. On with the wait, though
                // not in a tight loop.
                Ok(Seen::Waited(_) | Seen::Looked(_)) => {
                    outage = false;
                    down_since = None;
                    sleep(pause).await;
                    pause = (pause * 2).min(LAST_WAIT);
                    continue;
                }
                Err(error) => {
                    let looking = down_since.is_some();
                    let since = *down_since.get_or_insert_with(Instant::now);
                    // The wait's own connection may have broken without the engine being any the worse; when
                    // the look that follows fails too, it is an outage.
                    outage |= looking && is_passing(&error);
                    if since.elapsed() >= self.limits().patience {
                        return End::EngineLost(format!(
                            "the engine did not answer for {:?}: {error}",
                            since.elapsed()
                        ));
                    }
                    if looking {
                        sleep(pause).await;
                        pause = (pause * 2).min(LAST_WAIT);
                    } else {
                        tracing::warn!(container = %self.plan.name, %error, "the wait broke, looking");
                        pause = FIRST_WAIT;
                    }
                }
            }
        }
    }

    /// Waits for the end; beside it, looks now and then, since a stream from a stopped daemon just hangs.
    async fn wait_or_look(&self, id: &ContainerId) -> Result<Seen, EngineError> {
        let looks = async {
            let mut ended_before = false;
            loop {
                sleep(self.limits().look_every).await;
                match self.look(id).await? {
                    None => return Ok(Seen::Gone),
                    Some(status) if is_over(&status) => {
                        // The wait had a whole interval to say so itself.
                        if ended_before {
                            return Ok(Seen::Looked(status));
                        }
                        ended_before = true;
                    }
                    Some(_) => ended_before = false,
                }
            }
        };
        tokio::select! {
            biased;
            ended = self.engine().wait(id) => ended.map(Seen::Waited),
            seen = looks => seen,
        }
    }

    /// An end that was only looked at, with what a wait tells of it besides: whether memory was short, and whether
    /// the engine saw it.
    pub(super) async fn examined(&self, id: &ContainerId, status: ContainerStatus) -> Exit {
        for _ in 0..HEALTH_TRIES {
            match self.call("wait", self.limits().look_every, self.engine().wait(id)).await {
                Ok(status) if is_over(&status) => return Exit { status, outage: false },
                // Removed meanwhile; what was seen of it stands.
                Err(error) if error.kind == EngineErrorKind::NoSuchContainer => {
                    return Exit { status, outage: false };
                }
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(container = %self.plan.name, %error, "how did it end?");
                    sleep(FIRST_WAIT).await;
                }
            }
        }
        Exit { status, outage: true }
    }

    /// Whether the engine answers right after an exit. One that is being shut down ends its containers first,
    /// and takes no new connection from then on; and another engine may have come in its place.
    async fn engine_is_well(&self) -> bool {
        for _ in 0..HEALTH_TRIES {
            match self.call("info", self.limits().look_every, self.engine().info()).await {
                Ok(info) => return info.engine_id == self.node.placement.engine_id,
                Err(error) if error.kind == EngineErrorKind::Unreachable && error.applied == Applied::No => {
                    tracing::warn!(container = %self.plan.name, %error, "the engine went down with the container");
                    return false;
                }
                Err(error) => {
                    tracing::debug!(%error, "is the engine well?");
                    sleep(FIRST_WAIT).await;
                }
            }
        }
        false
    }
}

pub(super) fn is_over(status: &ContainerStatus) -> bool {
    !matches!(status.state, ContainerState::Running { .. })
}
