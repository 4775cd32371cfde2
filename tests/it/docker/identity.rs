//! Names and labels: every step may be repeated, and nothing of a stranger is touched.

use bollard::{models::ContainerCreateBody, query_parameters::CreateContainerOptionsBuilder};
use leasehold::protocol::{
    domain::ContainerId,
    error::EngineErrorKind,
    ports::{ContainerEngine as _, ContainerState},
};

use crate::support::engine::{IMAGE, on_engine};

#[tokio::test]
async fn a_repeated_create_finds_its_own_container() {
    on_engine(1, async |engine| {
        let plan = engine.script("exit 0");
        let first = engine.engine.create(&plan).await.unwrap();
        assert_eq!(engine.engine.create(&plan).await.unwrap(), first);
        engine.engine.start(&first).await.unwrap();
        assert_eq!(engine.engine.create(&plan).await.unwrap(), first);
        assert_eq!(engine.mine().await.len(), 1);
        engine.engine.remove(&first).await.unwrap();
    })
    .await;
}

/// DK-05
#[tokio::test]
async fn a_strangers_container_of_our_name_is_a_conflict_and_stays_untouched() {
    on_engine(1, async |engine| {
        let plan = engine.script("exit 0");
        let options = CreateContainerOptionsBuilder::new().name(&plan.name).build();
        let body = ContainerCreateBody {
            image: Some(IMAGE.to_owned()),
            cmd: Some(vec!["sleep".to_owned(), "60".to_owned()]),
            network_disabled: Some(true),
            ..ContainerCreateBody::default()
        };
        let foreign = engine.stranger.create_container(Some(options), body).await.unwrap().id;
        engine.stranger.start_container(&foreign, None).await.unwrap();

        let error = engine.engine.create(&plan).await.expect_err("the name is taken");
        assert_eq!(error.kind, EngineErrorKind::Conflict);
        assert!(error.is_retryable(), "an infrastructure conflict does not fail the job for good");
        assert!(error.message.contains(&plan.name) && error.message.contains(&foreign), "{error}");
        let untouched = engine.stranger.inspect_container(&foreign, None).await.unwrap();
        assert_eq!(untouched.state.unwrap().running, Some(true));

        let foreign = ContainerId::new(foreign).unwrap();
        engine.engine.remove(&foreign).await.unwrap();
        let own = engine.engine.create(&plan).await.unwrap();
        engine.engine.remove(&own).await.unwrap();
    })
    .await;
}

/// RC-11
#[tokio::test]
async fn what_is_gone_or_going_counts_as_removed() {
    on_engine(1, async |engine| {
        let id = engine.started(&engine.script("trap '' TERM; sleep 60")).await;
        let (a, b, c) =
            tokio::join!(engine.engine.remove(&id), engine.engine.remove(&id), engine.engine.remove(&id));
        a.unwrap();
        b.unwrap();
        c.unwrap();
        engine.engine.remove(&id).await.unwrap();
        engine.engine.stop(&id, std::time::Duration::from_secs(1)).await.unwrap();
        engine.engine.kill(&id).await.unwrap();
        assert_eq!(engine.engine.inspect(&id).await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn a_mark_is_a_rename_that_may_be_repeated() {
    on_engine(1, async |engine| {
        let plan = engine.script("sleep 60");
        let id = engine.started(&plan).await;
        let marked = format!("{}.stopped", plan.name);
        for _ in 0..2 {
            engine.engine.mark_stopped(&id, &plan.name).await.unwrap();
            let status = engine.status(&id).await;
            assert_eq!(status.name, marked);
            assert_eq!(status.state, ContainerState::Running { paused: false });
        }
        engine.engine.remove(&id).await.unwrap();
        let error = engine.engine.mark_stopped(&id, &plan.name).await.expect_err("it is gone");
        assert_eq!(error.kind, EngineErrorKind::NoSuchContainer);
    })
    .await;
}

#[tokio::test]
async fn a_listing_by_labels_shows_state_exit_and_labels_of_exactly_those() {
    on_engine(1, async |engine| {
        let running = engine.started(&engine.script("sleep 60")).await;
        let ended = engine.started(&engine.script("exit 5")).await;
        engine.engine.wait(&ended).await.unwrap();
        let other = crate::support::engine::TestEngine::at(&engine.endpoint).await;
        let foreign = other.started(&other.script("sleep 60")).await;

        let mine = engine.mine().await;
        assert_eq!(mine.len(), 2);
        let of = |id: &ContainerId| mine.iter().find(|status| status.id == *id).expect("it is listed");
        assert_eq!(of(&running).state, ContainerState::Running { paused: false });
        assert!(matches!(of(&ended).state, ContainerState::Exited { code: 5, oom_killed: false, .. }));
        assert!(of(&ended).labels.contains(&("leasehold.job".to_owned(), "7".to_owned())));
        assert!(of(&ended).finished_at.is_some());

        for id in [running, ended, foreign] {
            engine.engine.remove(&id).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn two_engines_at_once_are_told_apart() {
    on_engine(1, async |first| {
        on_engine(2, async |second| {
            let plan = first.script("exit 1");
            let mut twin = second.script("exit 2");
            twin.name.clone_from(&plan.name);
            let (one, two) = tokio::join!(first.run(&plan), second.run(&twin));
            assert_eq!((one.code(), two.code()), (1, 2));
            let (a, b) = (first.engine.info().await.unwrap(), second.engine.info().await.unwrap());
            assert_ne!(a.engine_id, b.engine_id);
            assert_eq!(a.os, "linux");
            assert!(a.cpu_millis >= 1000 && a.memory_bytes > 0, "{a:?}");
        })
        .await;
    })
    .await;
}
