//! Engines that restart, die or freeze under running containers.

use std::time::{Duration, Instant};

use bollard::query_parameters::RenameContainerOptionsBuilder;
use futures_util::StreamExt as _;
use leasehold::{
    docker::{DockerEngine, EngineLimits},
    protocol::{
        domain::{ContainerId, FailureKind},
        error::EngineErrorKind,
        ports::{ContainerEngine as _, ContainerState, ContainerStatus},
        runtime_node_actor,
        work::WorkOutcome,
    },
};
use tokio::task::JoinHandle;

use crate::support::{
    engine::{PrivateEngine, TestEngine},
    eventually::{eventually, pass},
};

const SOON: Duration = Duration::from_secs(20);

type Waiting = JoinHandle<Result<ContainerStatus, leasehold::protocol::error::EngineError>>;

/// Starts a container and two watchers of it: one waits, one reads until the stream ends or breaks.
async fn watched(engine: &TestEngine, script: &str) -> (ContainerId, Waiting, JoinHandle<(Vec<u8>, bool)>) {
    let id = engine.started(&engine.script(script)).await;
    let (waiter, reader) = (engine.engine.clone(), engine.engine.clone());
    let (for_waiter, for_reader) = (id.clone(), id.clone());
    let waiting = tokio::spawn(async move { waiter.wait(&for_waiter).await });
    let mut chunks = reader.logs(&for_reader);
    let reading = tokio::spawn(async move {
        let mut read = Vec::new();
        while let Some(chunk) = chunks.next().await {
            match chunk {
                Ok(chunk) => read.extend_from_slice(&chunk.data),
                Err(_) => return (read, true),
            }
        }
        (read, false)
    });
    // It runs, and says so.
    eventually(SOON, "the first output is recorded", async || {
        let other = DockerEngine::connect(&engine.endpoint, None).unwrap();
        other.logs(&id).next().await.and_then(Result::ok)
    })
    .await;
    (id, waiting, reading)
}

/// DK-29
#[tokio::test]
async fn a_container_that_outlives_its_daemons_restart_keeps_its_code_and_its_output() {
    let mut private = PrivateEngine::start(&["--live-restore"]).await;
    let engine = private.connect().await;
    let script = "i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.1; done; exit 4";
    let (id, waiting, reading) = watched(&engine, script).await;

    private.stop();
    let error = waiting.await.unwrap().expect_err("a broken wait is no exit code");
    assert_eq!(error.kind, EngineErrorKind::Unreachable, "{error}");
    let (read, broke) = reading.await.unwrap();
    assert!(broke, "the end of the stream was taken for the end of the output");

    private.boot().await;
    assert_eq!(engine.status(&id).await.state, ContainerState::Running { paused: false });
    let (again, status) = tokio::join!(engine.output(&id), engine.engine.wait(&id));
    assert!(matches!(status.unwrap().state, ContainerState::Exited { code: 4, .. }));
    let expected: String = (0..40).map(|i| format!("{i}\n")).collect();
    assert!(expected.as_bytes().starts_with(&read), "what came before is the beginning of the whole");
    assert_eq!(String::from_utf8_lossy(&again.0), expected);
    engine.engine.remove(&id).await.unwrap();
    engine.expect_nothing_left().await;
}

/// DK-29
#[tokio::test]
async fn a_container_that_its_daemon_takes_along_has_no_exit_of_its_own() {
    let mut private = PrivateEngine::start(&["--shutdown-timeout", "3"]).await;
    let engine = private.connect().await;
    // It ends well when the daemon stops it: a success that nobody may believe.
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let (id, waiting, _reading) = watched(&engine, script).await;
    private.stop();
    let error = waiting.await.unwrap().expect_err("an exit that comes with the daemon's end is no answer");
    assert_eq!(error.kind, EngineErrorKind::Unreachable, "{error}");
    private.boot().await;
    assert!(matches!(engine.status(&id).await.state, ContainerState::Exited { code: 0, .. }));
    engine.engine.remove(&id).await.unwrap();
}

/// DK-29
#[tokio::test]
async fn a_daemon_that_crashes_breaks_the_wait_and_its_containers_are_found_killed() {
    let mut private = PrivateEngine::start(&[]).await;
    let engine = private.connect().await;
    let (id, waiting, reading) = watched(&engine, "echo ready; sleep 60").await;
    private.kill();
    let error = waiting.await.unwrap().expect_err("a broken wait is no exit code");
    assert_eq!(error.kind, EngineErrorKind::Unreachable, "{error}");
    assert!(reading.await.unwrap().1);
    private.boot().await;
    let status = engine.status(&id).await;
    assert!(
        matches!(status.state, ContainerState::Exited { code: 137, oom_killed: false, .. }),
        "{status:?}"
    );
    assert_eq!(engine.output(&id).await.0, b"ready\n");
    engine.engine.remove(&id).await.unwrap();
}

#[tokio::test]
async fn a_frozen_daemon_is_noticed_by_every_call_within_its_limit() {
    let private = PrivateEngine::start(&[]).await;
    let mut engine = private.connect().await;
    let limits = EngineLimits {
        look: Duration::from_millis(500),
        act: Duration::from_millis(800),
        watch: Duration::from_millis(500),
        ..EngineLimits::default()
    };
    engine.engine = DockerEngine::connect_with(&private.endpoint(), None, limits).unwrap();
    let (id, waiting, _reading) = watched(&engine, "echo ready; sleep 60").await;

    private.freeze();
    let frozen = Instant::now();
    let plan = engine.script("exit 0");
    let (info, look, kill, create, wait) = tokio::join!(
        engine.engine.info(),
        engine.engine.inspect(&id),
        engine.engine.kill(&id),
        engine.engine.create(&plan),
        waiting,
    );
    let errors = [info.err(), look.err(), kill.err(), create.err(), wait.unwrap().err()]
        .map(|e| e.expect("no answer"));
    for error in errors {
        assert_eq!(error.kind, EngineErrorKind::Timeout, "{error}");
        assert!(error.is_retryable());
    }
    assert!(frozen.elapsed() < Duration::from_secs(5), "{:?}", frozen.elapsed());

    private.thaw();
    // What was asked of it meanwhile may happen late, and is found by its labels.
    eventually(SOON, "everything is removed", async || {
        for status in engine.mine().await {
            let _ = engine.engine.remove(&status.id).await;
        }
        engine.mine().await.is_empty().then_some(())
    })
    .await;
}

/// Whose exit is it? Nobody watched: a recovery, say, that finds the container of a dead worker. An exit that came
/// with the engine's end has a code as good as any, and is not taken for the program's own.
#[tokio::test]
async fn an_exit_that_the_engine_has_not_seen_in_its_present_life_is_told_from_one_that_it_has() {
    let mut private = PrivateEngine::start(&["--shutdown-timeout", "5"]).await;
    let engine = private.connect().await;
    let obedient = engine.started(&engine.script("trap 'exit 0' TERM; while :; do sleep 0.1; done")).await;
    let own = engine.started(&engine.script("exit 0")).await;
    // It has ended before anybody waits for it.
    let ended = async |id: &ContainerId| {
        eventually(SOON, "it has ended", async || {
            Some(engine.status(id).await)
                .filter(|status| matches!(status.state, ContainerState::Exited { .. }))
        })
        .await
    };
    ended(&own).await;
    let status = engine.engine.wait(&own).await.unwrap();
    assert!(status.witnessed, "{status:?}");

    private.stop();
    private.boot().await;
    let spoilt = engine.engine.wait(&obedient).await.unwrap();
    assert!(matches!(spoilt.state, ContainerState::Exited { code: 0, .. }), "{spoilt:?}");
    assert!(!spoilt.witnessed, "{spoilt:?}");
    let exit = runtime_node_actor::exit::Exit { status: spoilt, outage: false };
    match runtime_node_actor::exit::verdict(&exit).outcome {
        WorkOutcome::Failed(failure) => {
            assert_eq!((failure.kind, failure.code.as_str()), (FailureKind::System, "engine_lost"));
        }
        other => panic!("{other:?}"),
    }
    // In its new life it sees again.
    let next = engine.started(&engine.script("exit 3")).await;
    ended(&next).await;
    assert!(engine.engine.wait(&next).await.unwrap().witnessed);
    for id in [obedient, own, next] {
        engine.engine.remove(&id).await.unwrap();
    }
}

/// So many events that the engine has dropped that of the exit: what it cannot know any more is believed.
#[tokio::test]
async fn an_exit_whose_notice_was_dropped_for_newer_ones_is_still_believed() {
    let private = PrivateEngine::start(&[]).await;
    let engine = private.connect().await;
    let id = engine.started(&engine.script("exit 4")).await;
    eventually(SOON, "it has ended", async || {
        matches!(engine.status(&id).await.state, ContainerState::Exited { .. }).then_some(())
    })
    .await;
    let other = engine.engine.create(&engine.script("exit 0")).await.unwrap();
    // Each is an event, and all of later seconds.
    pass(Duration::from_millis(1100)).await;
    for turn in 0..300 {
        let options = RenameContainerOptionsBuilder::new().name(&format!("renamed-{turn}")).build();
        engine.stranger.rename_container(other.as_str(), options).await.unwrap();
    }
    let status = engine.engine.wait(&id).await.unwrap();
    assert!(matches!(status.state, ContainerState::Exited { code: 4, .. }) && status.witnessed, "{status:?}");
    for id in [id, other] {
        engine.engine.remove(&id).await.unwrap();
    }
}
