//! Stopping: the image's signal, the grace, the kill.

use std::time::{Duration, Instant};

use bollard::{models::ContainerConfig, query_parameters::CommitContainerOptionsBuilder};
use leasehold::protocol::{
    domain::{ContainerId, ContainerSpec},
    ports::{ContainerEngine as _, ContainerState},
};

use crate::support::{
    engine::{TestEngine, on_engine},
    eventually::eventually,
};

async fn started_and_ready(engine: &TestEngine, spec: ContainerSpec) -> ContainerId {
    use futures_util::StreamExt as _;
    let id = engine.started(&engine.plan_of(spec)).await;
    let mut output = engine.engine.logs(&id);
    // The script says so once its traps are set.
    let first = output.next().await.expect("a first line").unwrap();
    assert_eq!(&first.data[..], b"ready\n");
    id
}

fn shell(script: &str) -> ContainerSpec {
    ContainerSpec {
        command: ["sh", "-c", script].iter().map(|&word| word.to_owned()).collect(),
        ..ContainerSpec::default()
    }
}

async fn code_of(engine: &TestEngine, id: &ContainerId) -> i32 {
    match engine.status(id).await.state {
        ContainerState::Exited { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

async fn image_that_stops_by_int(engine: &TestEngine, image: &str) {
    let template = engine.engine.create(&engine.script("exit 0")).await.unwrap();
    let (name, tag) = image.split_once(':').unwrap();
    let options =
        CommitContainerOptionsBuilder::new().container(template.as_str()).repo(name).tag(tag).build();
    let config = ContainerConfig { stop_signal: Some("SIGINT".to_owned()), ..ContainerConfig::default() };
    engine.stranger.commit_container(options, config).await.unwrap();
    engine.engine.remove(&template).await.unwrap();
}

/// DK-11
#[tokio::test]
async fn a_stop_gives_the_grace_honours_the_images_signal_and_kills_in_time() {
    const STOP_BY_INT: &str = "leasehold-test/stop-int:1";
    const GRACE: Duration = Duration::from_secs(2);
    on_engine(1, async |engine| {
        image_that_stops_by_int(engine, STOP_BY_INT).await;
        let traps =
            "trap 'sleep 0.5; exit 5' TERM; trap 'exit 6' INT; echo ready; while :; do sleep 0.1; done";
        for (what, spec, grace, code, at_least) in [
            ("no trap", shell("echo ready; while :; do sleep 0.1; done"), GRACE, 137, GRACE),
            ("a trap", shell(traps), GRACE, 5, Duration::from_millis(400)),
            (
                "another signal",
                ContainerSpec { image: STOP_BY_INT.to_owned(), ..shell(traps) },
                GRACE,
                6,
                Duration::ZERO,
            ),
            (
                "a grace below a second",
                shell("trap 'sleep 9' TERM; echo ready; while :; do sleep 0.1; done"),
                Duration::from_millis(300),
                137,
                Duration::from_millis(300),
            ),
            ("no grace", shell(traps), Duration::ZERO, 137, Duration::ZERO),
        ] {
            let id = started_and_ready(engine, spec).await;
            let asked = Instant::now();
            engine.engine.stop(&id, grace).await.unwrap();
            let took = asked.elapsed();
            assert!(took >= at_least && took < grace + Duration::from_secs(2), "{what}: {took:?}");
            assert_eq!(code_of(engine, &id).await, code, "{what}");
            // Once more: not running counts as stopped.
            engine.engine.stop(&id, grace).await.unwrap();
            engine.engine.kill(&id).await.unwrap();
            engine.engine.remove(&id).await.unwrap();
        }
    })
    .await;
}

/// DK-13
#[tokio::test]
async fn a_paused_container_is_seen_as_paused_and_can_be_stopped_killed_and_removed() {
    on_engine(1, async |engine| {
        let paused = async || {
            let id = started_and_ready(
                engine,
                shell("trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done"),
            )
            .await;
            engine.stranger.pause_container(id.as_str()).await.unwrap();
            assert_eq!(engine.status(&id).await.state, ContainerState::Running { paused: true });
            id
        };
        let stopped = paused().await;
        let asked = Instant::now();
        engine.engine.stop(&stopped, Duration::from_secs(2)).await.unwrap();
        assert!(asked.elapsed() < Duration::from_secs(4));
        assert!(matches!(code_of(engine, &stopped).await, 5 | 137));

        let killed = paused().await;
        engine.engine.kill(&killed).await.unwrap();
        assert_eq!(code_of(engine, &killed).await, 137);

        let removed = paused().await;
        engine.engine.remove(&removed).await.unwrap();
        eventually(Duration::from_secs(60), "the paused container is gone", async || {
            engine.engine.inspect(&removed).await.unwrap().is_none().then_some(())
        })
        .await;
        for id in [stopped, killed] {
            engine.engine.remove(&id).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn limits_hold_inside_the_container() {
    on_engine(1, async |engine| {
        let script = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max /sys/fs/cgroup/cpu.max 2>/dev/null || \
             cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us";
        let mut plan = engine.script(&format!("{script}; id -u; pwd"));
        plan.spec.memory_bytes = Some(64 << 20);
        plan.spec.pids_limit = Some(17);
        plan.spec.cpu_millis = Some(250);
        plan.spec.user = Some("nobody".to_owned());
        plan.spec.workdir = Some("/tmp".to_owned());
        let ran = engine.run(&plan).await;
        let text = String::from_utf8(ran.stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[..3], ["67108864", "17", "25000"]);
        assert_eq!(words[words.len() - 2..], ["65534", "/tmp"]);
    })
    .await;
}
