//! A container's way from its plan to its removal. Every step may be repeated: what was asked for and is
//! already so counts as done, and an answer that was lost is replaced by looking.

use std::{collections::HashMap, time::Duration};

use bollard::{
    errors::Error,
    models::{ContainerInspectResponse, ContainerState as DockerState, ContainerStateStatusEnum},
    query_parameters::{
        CreateContainerOptionsBuilder, EventsOptionsBuilder, KillContainerOptionsBuilder,
        ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, RenameContainerOptionsBuilder,
        WaitContainerOptionsBuilder,
    },
};
use chrono::{DateTime, Datelike as _, Utc};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use leasehold_actors::{
    domain::ContainerId,
    error::{Applied, EngineError, EngineErrorKind},
    ports::{ContainerPlan, ContainerState, ContainerStatus},
};
use tokio::time::{Instant, sleep, timeout};

use super::{DockerEngine, error, spec};

/// SIGKILL, as an exit code.
const KILLED: i32 = 137;
/// How long the engine's notice of an out-of-memory kill may lag behind the exit.
const OOM_NOTICE: Duration = Duration::from_millis(300);
/// How long a container may be on its way out before that state is taken for its last.
const REMOVAL: Duration = Duration::from_secs(5);
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

    /// What an engine says of a container, by id or name.
    pub(super) async fn look_at(&self, id: &str) -> Result<Option<ContainerStatus>, EngineError> {
        self.inspect_raw(id).await?.map(status_of).transpose()
    }

    async fn inspect_raw(&self, id: &str) -> Result<Option<ContainerInspectResponse>, EngineError> {
        let answer =
            self.ask("inspect", self.limits().look, |client| async move {
                client.inspect_container(id, None).await
            })
            .await;
        match answer {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind == EngineErrorKind::NoSuchContainer => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for the end. The exit code is read by inspection, on a new connection: an engine that is going
    /// down does not answer it any more, and its containers' exits are not taken for their own.
    pub(super) async fn wait_for_end(&self, id: &ContainerId) -> Result<ContainerStatus, EngineError> {
        let status = self.until_over(id).await?;
        self.with_memory_evidence(status).await
    }

    async fn until_over(&self, id: &ContainerId) -> Result<ContainerStatus, EngineError> {
        const OPERATION: &str = "wait";
        let mut waiting = None;
        let mut answered = false;
        let mut going_since = None;
        loop {
            let status = self.look_at(id.as_str()).await?.ok_or_else(|| no_such_container(OPERATION, id))?;
            // Somebody removes it: soon it is gone, and that is the answer.
            if status.state == ContainerState::Dead
                && going_since.get_or_insert_with(Instant::now).elapsed() < REMOVAL
            {
                sleep(Duration::from_millis(100)).await;
                continue;
            }
            if !matches!(status.state, ContainerState::Running { .. }) {
                return Ok(status);
            }
            if std::mem::take(&mut answered) {
                // Ended, and yet it runs: somebody started it again. Not in a tight loop.
                sleep(Duration::from_millis(100)).await;
            }
            if waiting.is_none() {
                let client = self.agreed_client(OPERATION).await?;
                let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
                waiting = Some(client.wait_container(id.as_str(), Some(options)).boxed());
            }
            let Some(stream) = waiting.as_mut() else { continue };
            match timeout(self.limits().watch, stream.next()).await {
                // Silent: look whether the engine is alive and the container still runs.
                Err(_) => {}
                // bollard takes a non-zero exit code for an error.
                Ok(Some(Ok(_) | Err(Error::DockerContainerWaitError { .. }))) => {
                    waiting = None;
                    answered = true;
                }
                Ok(Some(Err(error))) => return Err(error::classify(OPERATION, error)),
                Ok(None) => {
                    return Err(error::engine_error(
                        OPERATION,
                        EngineErrorKind::Unreachable,
                        Applied::Maybe,
                        "the engine broke the wait off without an answer",
                    ));
                }
            }
        }
    }

    /// The flag for "killed for memory" can come after the exit, and has been lost: the event is asked too.
    async fn with_memory_evidence(
        &self,
        mut status: ContainerStatus,
    ) -> Result<ContainerStatus, EngineError> {
        let ContainerState::Exited { code: KILLED, oom_killed: false, .. } = status.state else {
            return Ok(status);
        };
        let until = status.finished_at.unwrap_or_default() + OOM_NOTICE;
        let id = status.id.clone();
        if let Some(since) = status.started_at
            && self.saw_memory_kill(&id, since, until).await
            && let ContainerState::Exited { oom_killed, .. } = &mut status.state
        {
            *oom_killed = true;
        }
        Ok(status)
    }

    /// Errors count as "no evidence": the exit itself is known.
    async fn saw_memory_kill(&self, id: &ContainerId, since: DateTime<Utc>, until: DateTime<Utc>) -> bool {
        let filters = HashMap::from([
            ("type", vec!["container"]),
            ("event", vec!["oom"]),
            ("container", vec![id.as_str()]),
        ]);
        let options = EventsOptionsBuilder::new()
            .since(&seconds(since))
            .until(&seconds(until))
            .filters(&filters)
            .build();
        let events = self
            .ask("events", OOM_NOTICE * 4, |client| async move {
                client.events(Some(options)).try_collect::<Vec<_>>().await
            })
            .await;
        events.is_ok_and(|events| !events.is_empty())
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
            _ => Err(error),
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
        match error.kind {
            EngineErrorKind::NoSuchContainer => Ok(()),
            EngineErrorKind::Conflict => match self.look_at(id.as_str()).await? {
                Some(ContainerStatus { state: ContainerState::Running { .. }, .. }) => Err(error),
                _ => Ok(()),
            },
            _ => Err(error),
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
        match answer {
            Err(error) if error.kind == EngineErrorKind::NoSuchContainer => Ok(()),
            Err(error)
                if error.kind == EngineErrorKind::Conflict
                    && error.message.contains("already in progress") =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Containers with all these labels. One that goes away meanwhile is left out.
    pub(super) async fn list_labelled(
        &self,
        labels: &[(String, String)],
    ) -> Result<Vec<ContainerStatus>, EngineError> {
        let wanted: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let filters = HashMap::from([("label", wanted)]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let found =
            self.ask("list", self.limits().look, |client| async move {
                client.list_containers(Some(options)).await
            })
            .await?;
        // The summary knows neither exit codes nor times.
        let ids: Vec<String> = found.into_iter().filter_map(|summary| summary.id).collect();
        stream::iter(ids)
            .map(|id| async move { self.look_at(&id).await })
            .buffered(8)
            .try_filter_map(|status| async move { Ok(status) })
            .try_collect()
            .await
    }
}

fn carries(status: &ContainerStatus, labels: &[(String, String)]) -> bool {
    labels.iter().all(|label| status.labels.contains(label))
}

/// Running, or over: anything but "created". (A failed start leaves it "created".)
fn has_started(status: &ContainerStatus) -> bool {
    matches!(status.state, ContainerState::Running { .. } | ContainerState::Exited { .. })
}

fn no_such_container(operation: &'static str, id: &ContainerId) -> EngineError {
    error::engine_error(
        operation,
        EngineErrorKind::NoSuchContainer,
        Applied::No,
        format!("no such container: {id}"),
    )
}

fn container_id(operation: &'static str, id: String) -> Result<ContainerId, EngineError> {
    ContainerId::new(id).map_err(|e| {
        error::engine_error(operation, EngineErrorKind::Engine, Applied::Maybe, format!("the engine's {e}"))
    })
}

fn status_of(found: ContainerInspectResponse) -> Result<ContainerStatus, EngineError> {
    let state = found.state.unwrap_or_default();
    Ok(ContainerStatus {
        id: container_id("inspect", found.id.unwrap_or_default())?,
        name: found.name.unwrap_or_default().trim_start_matches('/').to_owned(),
        started_at: instant(state.started_at.as_deref()),
        finished_at: instant(state.finished_at.as_deref()),
        labels: found.config.and_then(|c| c.labels).unwrap_or_default().into_iter().collect(),
        state: state_of(state)?,
    })
}

fn state_of(state: DockerState) -> Result<ContainerState, EngineError> {
    use ContainerStateStatusEnum as Status;
    Ok(match state.status {
        Some(Status::CREATED) => ContainerState::Created,
        Some(Status::RUNNING | Status::RESTARTING | Status::STOPPING) => {
            ContainerState::Running { paused: false }
        }
        Some(Status::PAUSED) => ContainerState::Running { paused: true },
        Some(Status::EXITED) => ContainerState::Exited {
            code: state.exit_code.and_then(|code| i32::try_from(code).ok()).unwrap_or(KILLED),
            oom_killed: state.oom_killed.unwrap_or(false),
            error: state.error.unwrap_or_default(),
        },
        Some(Status::DEAD | Status::REMOVING) => ContainerState::Dead,
        Some(Status::EMPTY) | None => {
            return Err(error::engine_error(
                "inspect",
                EngineErrorKind::Engine,
                Applied::No,
                "the engine does not tell the container's state",
            ));
        }
    })
}

/// Docker writes "never" as the year 1.
fn instant(text: Option<&str>) -> Option<DateTime<Utc>> {
    let time = DateTime::parse_from_rfc3339(text?).ok()?.to_utc();
    (time.year() > 1).then_some(time)
}

fn seconds(time: DateTime<Utc>) -> String {
    format!("{}.{:09}", time.timestamp(), time.timestamp_subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dockers_year_one_is_never() {
        assert_eq!(instant(Some("0001-01-01T00:00:00Z")), None);
        assert_eq!(instant(None), None);
        let time = instant(Some("2026-11-29T17:52:36.147670544Z")).expect("a time");
        assert_eq!(seconds(time), "1795974756.147670544");
    }

    #[test]
    fn states_are_told_apart() {
        let state = |status, exit_code| {
            state_of(DockerState {
                status: Some(status),
                exit_code: Some(exit_code),
                ..DockerState::default()
            })
            .expect("a state")
        };
        use ContainerStateStatusEnum as Status;
        assert_eq!(state(Status::CREATED, 127), ContainerState::Created);
        assert_eq!(state(Status::PAUSED, 0), ContainerState::Running { paused: true });
        assert_eq!(state(Status::REMOVING, 0), ContainerState::Dead);
        let ContainerState::Exited { code, oom_killed, .. } = state(Status::EXITED, 3) else {
            panic!("exited")
        };
        assert_eq!((code, oom_killed), (3, false));
        assert!(state_of(DockerState::default()).is_err());
    }
}
