//! A container's way from its plan to its removal. Every step may be repeated: what was asked for and is
//! already so counts as done, and an answer that was lost is replaced by looking.

use std::time::Duration;

use bollard::query_parameters::{
    CreateContainerOptionsBuilder, KillContainerOptionsBuilder, RemoveContainerOptionsBuilder,
    RenameContainerOptionsBuilder,
};
use leasehold_actors::{
    domain::ContainerId,
    error::{Applied, EngineError, EngineErrorKind},
    ports::{ContainerPlan, ContainerState, ContainerStatus},
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    DockerEngine, error, spec,
    status::{container_id, no_such_container, status_of},
};

/// How long a lost answer to a start is looked into before it is left open.
const START_DOUBT: Duration = Duration::from_secs(2);

impl DockerEngine {
    /// Creates the container, or finds our own of that name.
    pub(super) async fn create_or_find(&self, plan: &ContainerPlan) -> Result<ContainerId, EngineError> {
        let error = match self.create_new(plan).await {
            Ok(id) => return Ok(id),
            Err(error) => error,
        };
        // The name is taken, or the answer was lost: who stands there?
        if error.kind != EngineErrorKind::Conflict && error.applied == Applied::No {
            return Err(error);
        }
        match self.look_at(&plan.name).await {
            Ok(Some(found)) if carries(&found, &plan.labels) => Ok(found.id),
            Ok(Some(foreign)) => Err(error::engine_error(
                "create",
                EngineErrorKind::Conflict,
                Applied::No,
                format!(
                    "the name {} belongs to container {}, which is not Leasehold's; rename or remove that one",
                    plan.name, foreign.id
                ),
            )),
            // It went away between the two calls.
            Ok(None) if error.kind == EngineErrorKind::Conflict => self.create_new(plan).await,
            Ok(None) | Err(_) => Err(error),
        }
    }

    async fn create_new(&self, plan: &ContainerPlan) -> Result<ContainerId, EngineError> {
        let options = CreateContainerOptionsBuilder::new().name(&plan.name).build();
        let body = spec::create_body(plan);
        let created = self
            .ask("create", self.limits().act, |client| async move {
                client.create_container(Some(options), body).await
            })
            .await
            .map_err(error::classify_create)?;
        container_id("create", created.id)
    }

    /// Starts a created container, exactly once: one that has run is never started again, since that would
    /// run the job a second time.
    pub(super) async fn start_once(&self, id: &ContainerId) -> Result<(), EngineError> {
        match self.look_at(id.as_str()).await? {
            None => return Err(no_such_container("start", id)),
            Some(status) if has_started(&status) => return Ok(()),
            Some(_) => {}
        }
        self.listen_before_start(id).await;
        let name = id.as_str();
        let answer = self
            .ask("start", self.limits().act, |client| async move { client.start_container(name, None).await })
            .await;
        let Err(error) = answer else { return Ok(()) };
        let result = self.resolve_start(id, error).await;
        if result.is_err() {
            self.shared.live.forget(id);
        }
        result
    }

    /// A refusal is believed only when the container did not run: an engine may start it and answer 500.
    async fn resolve_start(&self, id: &ContainerId, error: EngineError) -> Result<(), EngineError> {
        let doubt = Instant::now() + START_DOUBT;
        loop {
            let code = match self.inspect_raw(id.as_str()).await {
                Ok(Some(found)) => {
                    let state = found.state.clone().unwrap_or_default();
                    let status = status_of(found)?;
                    if has_started(&status) {
                        return Ok(());
                    }
                    state.exit_code
                }
                Ok(None) => return Err(no_such_container("start", id)),
                Err(_) => return Err(error),
            };
            let answered = !matches!(error.kind, EngineErrorKind::Unreachable | EngineErrorKind::Timeout);
            if answered {
                return Err(error::classify_failed_start(error, code));
            }
            // The request may still be on its way.
            if Instant::now() >= doubt {
                return Err(error);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Renames to `NAME.stopped`; where that is so already, it is done.
    pub(super) async fn rename_to_stopped(&self, id: &ContainerId, name: &str) -> Result<(), EngineError> {
        let marked = format!("{name}.stopped");
        let options = RenameContainerOptionsBuilder::new().name(&marked).build();
        let answer = self
            .ask("mark", self.limits().act, |client| async move {
                client.rename_container(id.as_str(), options).await
            })
            .await;
        let Err(error) = answer else { return Ok(()) };
        match self.look_at(id.as_str()).await {
            Ok(Some(status)) if status.name == marked => Ok(()),
            seen => Err(as_seen(error, &seen)),
        }
    }

    /// Sends the image's own stop signal and kills after the grace. Docker's stop call knows whole seconds
    /// only, and would hold the connection for all of them.
    pub(super) async fn ask_then_kill(&self, id: &ContainerId, grace: Duration) -> Result<(), EngineError> {
        const OPERATION: &str = "stop";
        let deadline = Instant::now() + grace;
        let Some(found) = self.inspect_raw(id.as_str()).await? else { return Ok(()) };
        let signal = found.config.as_ref().and_then(|c| c.stop_signal.clone()).filter(|s| !s.is_empty());
        if !matches!(status_of(found)?.state, ContainerState::Running { .. }) {
            return Ok(());
        }
        if !grace.is_zero() {
            self.signal(OPERATION, id, signal.as_deref().unwrap_or("SIGTERM")).await?;
            let rest = deadline.saturating_duration_since(Instant::now());
            match timeout(rest, self.until_over(id)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) if error.kind == EngineErrorKind::NoSuchContainer => return Ok(()),
                // Whatever the wait's trouble is, the program had its chance.
                Ok(Err(_)) | Err(_) => {}
            }
        }
        self.kill_now(id).await
    }

    /// Kills, and returns once it is dead.
    pub(super) async fn kill_now(&self, id: &ContainerId) -> Result<(), EngineError> {
        const OPERATION: &str = "kill";
        self.signal(OPERATION, id, "SIGKILL").await?;
        let limit = self.limits().act;
        match timeout(limit, self.until_over(id)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.kind == EngineErrorKind::NoSuchContainer => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(error::timed_out(OPERATION, limit)),
        }
    }

    /// Not running, and not there, count as signalled.
    async fn signal(
        &self,
        operation: &'static str,
        id: &ContainerId,
        signal: &str,
    ) -> Result<(), EngineError> {
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        let answer = self
            .ask(operation, self.limits().act, |client| async move {
                client.kill_container(id.as_str(), Some(options)).await
            })
            .await;
        let Err(error) = answer else { return Ok(()) };
        if !answered(&error) {
            return Err(error);
        }
        let seen = self.look_at(id.as_str()).await;
        match &seen {
            Ok(Some(ContainerStatus { state: ContainerState::Running { .. }, .. })) | Err(_) => {
                Err(as_seen(error, &seen))
            }
            Ok(_) => Ok(()),
        }
    }

    /// Gone, and on its way out, count as removed.
    pub(super) async fn remove_by_force(&self, id: &ContainerId) -> Result<(), EngineError> {
        self.shared.live.forget(id);
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let answer = self
            .ask("remove", self.limits().act, |client| async move {
                client.remove_container(id.as_str(), Some(options)).await
            })
            .await;
        let Err(error) = answer else { return Ok(()) };
        if error.kind == EngineErrorKind::Conflict && error.message.contains("already in progress") {
            return Ok(());
        }
        if !answered(&error) {
            return Err(error);
        }
        match self.look_at(id.as_str()).await {
            Ok(None) => Ok(()),
            seen => Err(as_seen(error, &seen)),
        }
    }
}

/// The engine refused; it is not that nobody knows.
fn answered(error: &EngineError) -> bool {
    !matches!(error.kind, EngineErrorKind::Unreachable | EngineErrorKind::Timeout)
}

/// An error beside what an inspection says: only that is believed on whether there is such a container.
pub(super) fn as_seen(
    mut error: EngineError,
    seen: &Result<Option<ContainerStatus>, EngineError>,
) -> EngineError {
    match seen {
        Ok(None) => error.kind = EngineErrorKind::NoSuchContainer,
        Ok(Some(_)) if error.kind == EngineErrorKind::NoSuchContainer => error.kind = EngineErrorKind::Engine,
        Ok(Some(_)) => {}
        Err(unknown) if answered(&error) => {
            let message = format!("{}; is it there? {}", error.message, unknown.message);
            error = EngineError { kind: unknown.kind, message, ..error };
        }
        Err(_) => {}
    }
    error
}

fn carries(status: &ContainerStatus, labels: &[(String, String)]) -> bool {
    labels.iter().all(|label| status.labels.contains(label))
}

/// Running, or over: anything but "created". (A failed start leaves it "created".)
fn has_started(status: &ContainerStatus) -> bool {
    matches!(status.state, ContainerState::Running { .. } | ContainerState::Exited { .. })
}
