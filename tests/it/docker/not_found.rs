//! An engine answers 404 not only for a container that is gone: also for what one that runs lacks. A daemon with
//! `live-restore` that could not restore a container's network sandbox renames it no more ("sandbox … not found"), and
//! stops, kills and removes it as ever.

use std::time::Duration;

use bollard::query_parameters::RenameContainerOptionsBuilder;
use futures_util::StreamExt as _;
use leasehold::{
    node_agent::orphans::pass,
    protocol::{
        domain::{JobDefinition, JobState, Namespace},
        error::EngineErrorKind,
        ports::{ContainerEngine as _, ContainerState},
    },
};

use super::{
    jobs::{Fleet, script},
    yard::{Yard, by},
};
use crate::support::{
    engine::{PrivateEngine, on_engine},
    engine_proxy::{Action, EngineProxy},
    services,
};

const RUN: &str = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done";

/// Answers all calls about containers that a condition holds for with 404 and these words.
async fn lacking(endpoint: &str, words: &str, call: fn(&str) -> bool) -> EngineProxy {
    let body = format!(r#"{{"message":"{words}"}}"#);
    EngineProxy::start(endpoint, move |request| {
        if call(request) { Action::Answer(404, body.clone()) } else { Action::Forward }
    })
    .await
}

fn changes_or_streams(request: &str) -> bool {
    let streams = request.contains("/wait") || request.contains("/logs");
    request.contains("/containers/") && (streams || !request.starts_with("GET "))
}

#[tokio::test]
async fn no_call_takes_a_404_for_the_end_of_a_container_that_is_there() {
    on_engine(1, async |engine| {
        for words in ["sandbox 2b302ab1 not found", "No such container: another"] {
            let proxy = lacking(&engine.endpoint, words, changes_or_streams).await;
            let client = by(&proxy.endpoint);
            let plan = engine.script(RUN);
            let id = engine.started(&plan).await;
            let errors = [
                client.mark_stopped(&id, &plan.name).await.expect_err("not marked"),
                client.kill(&id).await.expect_err("not killed"),
                client.stop(&id, Duration::from_secs(1)).await.expect_err("not stopped"),
                client.remove(&id).await.expect_err("not removed"),
                client.logs(&id).next().await.expect("not over").expect_err("no output"),
            ];
            for error in errors {
                assert_eq!(error.kind, EngineErrorKind::Engine, "{error}");
                assert!(error.message.contains(words), "{error}");
            }
            // A wait looks, or says that the engine refuses; it never says that there is nothing to wait for.
            let waited = tokio::time::timeout(Duration::from_millis(500), client.wait(&id)).await;
            if let Ok(answer) = waited {
                assert_eq!(answer.expect_err("it runs").kind, EngineErrorKind::Engine);
            }
            assert_eq!(engine.status(&id).await.state, ContainerState::Running { paused: false });

            engine.engine.remove(&id).await.unwrap();
            let gone = [
                client.mark_stopped(&id, &plan.name).await.expect_err("it is gone"),
                client.wait(&id).await.expect_err("it is gone"),
            ];
            for error in gone {
                assert_eq!(error.kind, EngineErrorKind::NoSuchContainer, "{error}");
            }
            client.kill(&id).await.unwrap();
            client.remove(&id).await.unwrap();
        }
    })
    .await;
}

/// A real daemon, and the sandbox that it does not restore.
#[tokio::test]
async fn a_container_that_was_restored_without_its_sandbox_is_stopped_when_its_job_is_cancelled() {
    let mut engine = PrivateEngine::start(&["--live-restore"]).await;
    let fleet = Fleet::on(&engine.endpoint()).await;
    let mut job = script(RUN);
    let Some(JobDefinition::Container(spec)) = &mut job.definition else { unreachable!("it is a container") };
    // The daemon's default one: without a network there is no sandbox to lose.
    spec.network = None;
    let job = fleet.submit(job).await;
    fleet.speaks(job).await;
    engine.stop();
    engine.boot().await;
    fleet.store.request_cancel(&Namespace::default(), job, Duration::from_secs(10)).await.unwrap();
    assert_eq!(fleet.ends(job).await.row.state, JobState::Canceled);
    // Nothing is left of it, neither running nor ended.
    fleet.finish(&engine.endpoint()).await;
}

/// That daemons do so is why all of this is here; if a newer one renames again, this says so.
#[tokio::test]
async fn a_mark_after_a_live_restore_is_made_or_refused_and_never_says_that_the_container_is_gone() {
    let mut private = PrivateEngine::start(&["--live-restore"]).await;
    let engine = private.connect().await;
    let mut plan = engine.script(RUN);
    plan.spec.network = None;
    let id = engine.started(&plan).await;
    private.stop();
    private.boot().await;
    let stranger = RenameContainerOptionsBuilder::new().name("renamed-by-a-stranger").build();
    let answer = engine.stranger.rename_container(id.as_str(), stranger).await;
    println!("a rename after a live restore: {answer:?}");
    match engine.engine.mark_stopped(&id, &plan.name).await {
        Ok(()) => assert!(engine.status(&id).await.name.ends_with(".stopped")),
        Err(error) => assert_eq!(error.kind, EngineErrorKind::Engine, "{error}"),
    }
    assert_eq!(engine.status(&id).await.state, ContainerState::Running { paused: false });
    engine.engine.kill(&id).await.unwrap();
    engine.engine.remove(&id).await.unwrap();
    engine.expect_nothing_left().await;
}

/// The reaper's mark is refused in the same words.
#[tokio::test]
async fn an_orphan_that_cannot_be_marked_is_removed_all_the_same() {
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    let domain = yard.register().await;
    let grant = &yard.claim(1, RUN, Duration::from_secs(600)).await[0];
    let id = yard.attached(grant).await;
    yard.complete(grant).await;
    let words = "sandbox 2b302ab1 not found";
    let proxy = lacking(&yard.engine.endpoint, words, |request| request.contains("/rename?")).await;
    let done = pass(&by(&proxy.endpoint), &yard.store, &domain).await.unwrap();
    assert_eq!((done.listed, done.reaped.len(), done.left), (1, 1, 0), "{done:?}");
    assert!(yard.engine.engine.inspect(&id).await.unwrap().is_none());
    yard.clear().await;
}
