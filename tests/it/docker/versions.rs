//! API versions, and answers that get lost on the way.

use leasehold::{
    docker::DockerEngine,
    protocol::{
        domain::ContainerId,
        error::{Applied, EngineErrorKind},
        ports::{ContainerEngine as _, ContainerState},
    },
};

use crate::support::{
    engine::on_engine,
    engine_proxy::{Action, EngineProxy},
};

fn refused(words: &str) -> Action {
    Action::Answer(400, format!(r#"{{"message":"{words}"}}"#))
}

fn version(api: &str, minimum: &str) -> Action {
    Action::Answer(200, format!(r#"{{"Version":"x","ApiVersion":"{api}","MinAPIVersion":"{minimum}"}}"#))
}

/// DK-31
#[tokio::test]
async fn an_older_engine_is_spoken_to_in_its_own_version() {
    on_engine(1, async |engine| {
        let proxy = EngineProxy::start(&engine.endpoint, |request| {
            if request == "GET /version" {
                version("1.40", "1.12")
            } else if request.contains(" /v1.40/") {
                Action::Forward
            } else {
                refused("client version 1.53 is too new. Maximum supported API version is 1.40")
            }
        })
        .await;
        let old = DockerEngine::connect(&proxy.endpoint, None).unwrap();
        old.info().await.unwrap();
        let id = old.create(&engine.script("echo hi; exit 6")).await.unwrap();
        old.start(&id).await.unwrap();
        let status = old.wait(&id).await.unwrap();
        assert!(matches!(status.state, ContainerState::Exited { code: 6, .. }), "{status:?}");
        old.remove(&id).await.unwrap();
        let requests = proxy.requests();
        assert!(
            requests.iter().any(|request| request.starts_with("POST /v1.40/containers/create?")),
            "{requests:?}"
        );
    })
    .await;
}

/// DK-31
#[tokio::test]
async fn an_engine_that_shares_no_version_with_us_is_told_in_one_clear_error() {
    on_engine(1, async |engine| {
        for (answer, words) in [
            (version("1.39", "1.12"), "1.39"),
            (version("1.99", "1.90"), "upgrade"),
            (version("none", "none"), "none"),
            (refused("client version 1.41 is too old. Minimum supported API version is 1.44"), "1.44"),
        ] {
            let proxy = EngineProxy::start(&engine.endpoint, move |_| answer.clone()).await;
            let other = DockerEngine::connect(&proxy.endpoint, None).unwrap();
            let plan = engine.script("exit 0");
            for error in [other.info().await.unwrap_err(), other.create(&plan).await.unwrap_err()] {
                assert_eq!((error.kind, error.applied), (EngineErrorKind::Engine, Applied::No), "{error}");
                assert!(error.is_retryable(), "no job is at fault: {error}");
                assert!(error.message.contains(words), "{error}");
            }
        }
    })
    .await;
}

/// DK-31
#[tokio::test]
async fn an_engine_that_was_upgraded_is_agreed_with_anew() {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };
    on_engine(1, async |engine| {
        let upgraded = Arc::new(AtomicBool::new(false));
        let now = Arc::clone(&upgraded);
        // Upgraded, it refuses 1.40 and speaks 1.41.
        let proxy = EngineProxy::start(&engine.endpoint, move |request| match now.load(Ordering::SeqCst) {
            false if request == "GET /version" => version("1.40", "1.12"),
            true if request == "GET /version" => version("1.41", "1.41"),
            true if request.contains(" /v1.40/") => {
                refused("client version 1.40 is too old. Minimum supported API version is 1.41")
            }
            _ => Action::Forward,
        })
        .await;
        let client = DockerEngine::connect(&proxy.endpoint, None).unwrap();
        let nobody = ContainerId::new("nobody").unwrap();
        assert_eq!(client.inspect(&nobody).await.unwrap(), None);
        upgraded.store(true, Ordering::SeqCst);
        let error = client.inspect(&nobody).await.expect_err("the old version is refused");
        assert_eq!(error.kind, EngineErrorKind::Engine);
        assert_eq!(client.inspect(&nobody).await.unwrap(), None);
    })
    .await;
}

/// RC-03
#[tokio::test]
async fn a_start_that_worked_and_was_answered_with_an_error_counts_as_started() {
    on_engine(1, async |engine| {
        for lost in [
            Action::ReplaceAnswer(500, r#"{"message":"context deadline exceeded"}"#.to_owned()),
            Action::SwallowAnswer,
        ] {
            let action = lost.clone();
            let proxy = EngineProxy::start(&engine.endpoint, move |request| {
                if request.contains("/start") { action.clone() } else { Action::Forward }
            })
            .await;
            let client = DockerEngine::connect(&proxy.endpoint, None).unwrap();
            let id = client.create(&engine.script("echo once; exit 8")).await.unwrap();
            client.start(&id).await.unwrap_or_else(|e| panic!("{lost:?}: {e}"));
            let status = client.wait(&id).await.unwrap();
            assert!(matches!(status.state, ContainerState::Exited { code: 8, .. }), "{status:?}");
            assert_eq!(engine.output(&id).await.0, b"once\n");
            client.remove(&id).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_start_that_never_arrived_is_left_open_and_nothing_runs() {
    on_engine(1, async |engine| {
        let proxy = EngineProxy::start(&engine.endpoint, |request| {
            if request.contains("/start") {
                Action::Answer(503, r#"{"message":"try later"}"#.to_owned())
            } else {
                Action::Forward
            }
        })
        .await;
        let client = DockerEngine::connect(&proxy.endpoint, None).unwrap();
        let id = client.create(&engine.script("exit 8")).await.unwrap();
        let error = client.start(&id).await.expect_err("it was refused");
        assert!(error.is_retryable() && error.exit_code.is_none(), "{error:?}");
        assert_eq!(engine.status(&id).await.state, ContainerState::Created);
        client.remove(&id).await.unwrap();
    })
    .await;
}

/// RC-13
#[tokio::test]
async fn a_create_whose_answer_was_lost_finds_what_it_made() {
    on_engine(1, async |engine| {
        for lost in [Action::ReplaceAnswer(500, String::new()), Action::SwallowAnswer] {
            let action = lost.clone();
            let proxy = EngineProxy::start(&engine.endpoint, move |request| {
                if request.contains("/containers/create") { action.clone() } else { Action::Forward }
            })
            .await;
            let client = DockerEngine::connect(&proxy.endpoint, None).unwrap();
            let plan = engine.script("exit 0");
            let id = client.create(&plan).await.unwrap_or_else(|e| panic!("{lost:?}: {e}"));
            let mine = engine.mine().await;
            assert_eq!(mine.len(), 1);
            assert_eq!((&mine[0].id, &mine[0].name), (&id, &plan.name));
            client.remove(&id).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn an_engine_before_which_a_proxy_forbids_attaching_still_gives_its_output() {
    on_engine(1, async |engine| {
        let proxy = EngineProxy::start(&engine.endpoint, |request| {
            if request.contains("/attach") {
                Action::Answer(403, "Forbidden".to_owned())
            } else {
                Action::Forward
            }
        })
        .await;
        let client = crate::support::engine::TestEngine {
            engine: DockerEngine::connect(&proxy.endpoint, None).unwrap(),
            ..crate::support::engine::TestEngine::at(&engine.endpoint).await
        };
        let ran = client.run(&client.script("printf out; printf err >&2; exit 2")).await;
        assert_eq!((ran.code(), &ran.stdout[..], &ran.stderr[..]), (2, &b"out"[..], &b"err"[..]));
    })
    .await;
}
