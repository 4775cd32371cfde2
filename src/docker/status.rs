//! Looking at containers: where they stand, how they ended, which there are.

use std::{collections::HashMap, time::Duration};

use bollard::{
    errors::Error,
    models::{ContainerInspectResponse, ContainerState as DockerState, ContainerStateStatusEnum},
    query_parameters::{EventsOptionsBuilder, ListContainersOptionsBuilder, WaitContainerOptionsBuilder},
};
use chrono::{DateTime, Datelike as _, Utc};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use leasehold_actors::{
    domain::ContainerId,
    error::{Applied, EngineError, EngineErrorKind},
    ports::{ContainerState, ContainerStatus},
};
use tokio::time::{Instant, sleep, timeout};

use super::{DockerEngine, error};

/// SIGKILL, as an exit code.
const KILLED: i32 = 137;
/// How long the engine's notice of an out-of-memory kill may lag behind the exit.
const OOM_NOTICE: Duration = Duration::from_millis(300);
/// How long the engine's notice of an exit may lag behind it.
const END_NOTICE: Duration = Duration::from_secs(5);
/// How many events an engine keeps, about: the older ones it forgets.
const EVENTS_KEPT: usize = 240;
/// Silence after which it has told all that it keeps.
const EVENTS_PAUSE: Duration = Duration::from_millis(300);
/// How long a container may be on its way out before that state is taken for its last.
const REMOVAL: Duration = Duration::from_secs(5);

impl DockerEngine {
    /// What an engine says of a container, by id or name.
    pub(super) async fn look_at(&self, id: &str) -> Result<Option<ContainerStatus>, EngineError> {
        self.inspect_raw(id).await?.map(status_of).transpose()
    }

    pub(super) async fn inspect_raw(
        &self,
        id: &str,
    ) -> Result<Option<ContainerInspectResponse>, EngineError> {
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
        let mut running = false;
        let status = self.until_over_from(id, &mut running).await?;
        let mut status = self.with_memory_evidence(status).await?;
        // Unless it ended before our eyes: did the engine see it?
        if !running && matches!(status.state, ContainerState::Exited { .. }) {
            status.witnessed = self.saw_end(&status).await?;
        }
        Ok(status)
    }

    pub(super) async fn until_over(&self, id: &ContainerId) -> Result<ContainerStatus, EngineError> {
        self.until_over_from(id, &mut false).await
    }

    /// `running` tells whether it was seen to run first.
    async fn until_over_from(
        &self,
        id: &ContainerId,
        running: &mut bool,
    ) -> Result<ContainerStatus, EngineError> {
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
            *running = true;
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
                Ok(Some(Err(refused))) => {
                    let error = error::classify(OPERATION, refused);
                    if error.kind != EngineErrorKind::NoSuchContainer {
                        return Err(error);
                    }
                    // That is for the next look to say.
                    waiting = None;
                    answered = true;
                }
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

    /// Whether the engine, in its present life, saw the end of this container: it keeps its latest events in memory,
    /// and loses them when it is restarted. One that ended while its engine went down, was down or came up again has
    /// an exit code as good as any, and no event.
    async fn saw_end(&self, status: &ContainerStatus) -> Result<bool, EngineError> {
        let (Some(started), Some(finished)) = (status.started_at, status.finished_at) else {
            return Ok(true);
        };
        let filters = HashMap::from([
            ("type", vec!["container"]),
            ("event", vec!["die"]),
            ("container", vec![status.id.as_str()]),
        ]);
        let options = EventsOptionsBuilder::new()
            .since(&seconds(started))
            .until(&seconds(finished + END_NOTICE))
            .filters(&filters)
            .build();
        let died = self
            .ask("events", END_NOTICE * 2, |client| async move {
                client.events(Some(options)).next().await.transpose()
            })
            .await?;
        if died.is_some() {
            return Ok(true);
        }
        let kept = self.kept_events().await?;
        Ok(may_have_forgotten(&kept, finished.timestamp()))
    }

    /// When the events that the engine still has happened, the oldest first.
    async fn kept_events(&self) -> Result<Vec<i64>, EngineError> {
        let client = self.agreed_client("events").await?;
        // From the first second on; the stream goes on with what happens, so silence is its end.
        let mut events = client.events(Some(EventsOptionsBuilder::new().since("1").build()));
        let mut kept = Vec::new();
        while kept.len() < EVENTS_KEPT {
            match timeout(EVENTS_PAUSE, events.next()).await {
                Ok(Some(Ok(event))) => kept.push(event.time.unwrap_or_default()),
                Ok(Some(Err(error))) => return Err(error::classify("events", error)),
                Ok(None) | Err(_) => break,
            }
        }
        Ok(kept)
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

pub(super) fn no_such_container(operation: &'static str, id: &ContainerId) -> EngineError {
    error::engine_error(
        operation,
        EngineErrorKind::NoSuchContainer,
        Applied::No,
        format!("no such container: {id}"),
    )
}

pub(super) fn container_id(operation: &'static str, id: String) -> Result<ContainerId, EngineError> {
    ContainerId::new(id).map_err(|e| {
        error::engine_error(operation, EngineErrorKind::Engine, Applied::Maybe, format!("the engine's {e}"))
    })
}

pub(super) fn status_of(found: ContainerInspectResponse) -> Result<ContainerStatus, EngineError> {
    let state = found.state.unwrap_or_default();
    Ok(ContainerStatus {
        id: container_id("inspect", found.id.unwrap_or_default())?,
        name: found.name.unwrap_or_default().trim_start_matches('/').to_owned(),
        started_at: instant(state.started_at.as_deref()),
        finished_at: instant(state.finished_at.as_deref()),
        witnessed: true,
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

/// Whether an engine that keeps these events may have had one of that second, and dropped it since for newer ones.
fn may_have_forgotten(kept: &[i64], second: i64) -> bool {
    kept.len() >= EVENTS_KEPT && kept.first().is_none_or(|oldest| *oldest > second)
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
    fn an_event_is_missing_for_good_only_if_the_engine_would_still_have_it() {
        let many: Vec<i64> = (1000..1256).collect();
        assert!(may_have_forgotten(&many, 999), "it keeps no more than that");
        assert!(!may_have_forgotten(&many, 1000), "it has others of that time");
        assert!(!may_have_forgotten(&many[..20], 999), "it has room, so it has not lived then");
        assert!(!may_have_forgotten(&[], 999));
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
