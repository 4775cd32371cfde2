//! How containers end, and what is said of it.

use futures_util::{StreamExt as _, stream};
use leasehold::protocol::{
    domain::ContainerSpec,
    error::EngineErrorKind,
    ports::{ContainerEngine as _, ContainerState},
};

use crate::support::engine::{PrivateEngine, Ran, TestEngine, on_engine};

/// How many containers run at once: more than cores, so that the machine is loaded.
const AT_ONCE: usize = 8;

#[tokio::test]
async fn a_container_runs_to_its_end_and_both_streams_are_kept_apart() {
    on_engine(1, async |engine| {
        let ran = engine.run(&engine.script("echo out; echo err >&2; exit 3")).await;
        assert_eq!(ran.code(), 3);
        assert_eq!(ran.stdout, b"out\n");
        assert_eq!(ran.stderr, b"err\n");
        // Not their order: the engine notes a start after it has begun, and this program ends at once.
        assert!(ran.status.started_at.is_some() && ran.status.finished_at.is_some());
    })
    .await;
}

/// DK-01 (100 runs, eight at a time; 300 would take this machine a minute)
#[tokio::test]
async fn a_program_that_ends_at_once_is_never_missed_or_taken_for_a_success() {
    on_engine(1, async |engine| {
        let codes: Vec<i32> = stream::iter(0..100)
            .map(|_| async { engine.run(&engine.script("exit 7")).await.code() })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        assert!(codes.len() == 100 && codes.iter().all(|code| *code == 7), "{codes:?}");
    })
    .await;
}

/// DK-01
#[tokio::test]
async fn a_wait_on_a_container_that_never_ran_gives_no_exit_code() {
    on_engine(1, async |engine| {
        let id = engine.engine.create(&engine.script("exit 7")).await.unwrap();
        assert_eq!(engine.engine.wait(&id).await.unwrap().state, ContainerState::Created);
        engine.engine.remove(&id).await.unwrap();
        assert_eq!(engine.engine.wait(&id).await.unwrap_err().kind, EngineErrorKind::NoSuchContainer);
    })
    .await;
}

/// DK-03
#[tokio::test]
async fn an_exit_code_is_that_of_the_only_run() {
    on_engine(1, async |engine| {
        let id = engine.started(&engine.script("echo started; exit 3")).await;
        let status = engine.engine.wait(&id).await.unwrap();
        assert!(matches!(status.state, ContainerState::Exited { code: 3, .. }), "{status:?}");
        // Starting what has run would be a second execution: it is answered, and nothing happens.
        engine.engine.start(&id).await.unwrap();
        let raw = engine.stranger.inspect_container(id.as_str(), None).await.unwrap();
        assert_eq!(raw.restart_count, Some(0));
        assert_eq!(engine.status(&id).await.started_at, status.started_at);
        assert_eq!(engine.output(&id).await.0, b"started\n");
        engine.engine.remove(&id).await.unwrap();
    })
    .await;
}

/// DK-07
#[tokio::test]
async fn a_command_that_cannot_be_started_is_the_jobs_own_fault_and_says_why() {
    on_engine(1, async |engine| {
        let command = |words: &[&str]| words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>();
        let shell =
            || ContainerSpec { command: command(&["sh", "-c", "exit 0"]), ..ContainerSpec::default() };
        for (what, spec, code, words) in [
            (
                "missing",
                ContainerSpec { command: command(&["nope"]), ..ContainerSpec::default() },
                127,
                "nope",
            ),
            (
                "not executable",
                ContainerSpec { command: command(&["/etc/passwd"]), ..ContainerSpec::default() },
                126,
                "permission denied",
            ),
            ("bad user", ContainerSpec { user: Some("stranger".to_owned()), ..shell() }, 126, "stranger"),
            (
                "bad group",
                ContainerSpec { user: Some("root:strangers".to_owned()), ..shell() },
                126,
                "strangers",
            ),
        ] {
            let id = engine.engine.create(&engine.plan_of(spec)).await.expect(what);
            let error = engine.engine.start(&id).await.expect_err(what);
            assert_eq!(error.kind, EngineErrorKind::BadRequest, "{what}: {error}");
            assert_eq!(error.exit_code, Some(code), "{what}: {error}");
            assert!(error.message.contains(words), "{what}: {error}");
            assert!(!error.message.contains('\n'), "{what}: {error}");
            engine.engine.remove(&id).await.unwrap();
        }
    })
    .await;
}

/// DK-07, DK-33: these come to light only when the kernel is asked, after the engine has counted the start as
/// done. The code is the runtime's, and its words are in the output.
#[tokio::test]
async fn a_program_that_the_kernel_refuses_fails_promptly_with_the_runtimes_words() {
    on_engine(1, async |engine| {
        // The first bytes of a program for another machine.
        let mut foreign = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xb7\0".to_vec();
        foreign.resize(4096, 0);
        let image = "leasehold-test/foreign:1";
        engine.engine.import_image(image, tar_of("foreign", &foreign).into(), &[]).await.unwrap();
        let foreign = ContainerSpec {
            image: image.to_owned(),
            command: vec!["/foreign".to_owned()],
            ..ContainerSpec::default()
        };
        let mut oversized = engine.script("exit 0");
        oversized.spec.env.insert("BIG".to_owned(), "x".repeat(140 * 1024));
        for (plan, words) in
            [(engine.plan_of(foreign), "exec format error"), (oversized, "argument list too long")]
        {
            let ran = engine.run(&plan).await;
            assert_ne!(ran.code(), 0, "{ran:?}");
            assert!(String::from_utf8_lossy(&ran.stderr).contains(words), "{ran:?}");
        }
    })
    .await;
}

/// An archive of one executable file, made by the machine's own tar.
fn tar_of(name: &str, data: &[u8]) -> Vec<u8> {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = std::env::temp_dir().join(format!("leasehold-tar-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(name);
    std::fs::write(&file, data).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let made = std::process::Command::new("tar").arg("-C").arg(&folder).args(["-c", name]).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(made.status.success());
    made.stdout
}

/// DK-07
#[tokio::test]
async fn options_that_the_engine_refuses_are_told_at_creation() {
    on_engine(1, async |engine| {
        for (spec, kind) in [
            (
                ContainerSpec { memory_bytes: Some(1024), ..ContainerSpec::default() },
                EngineErrorKind::BadRequest,
            ),
            (
                ContainerSpec { workdir: Some("relative".to_owned()), ..ContainerSpec::default() },
                EngineErrorKind::BadRequest,
            ),
            (
                ContainerSpec { workdir: Some("/bin/busybox".to_owned()), ..ContainerSpec::default() },
                EngineErrorKind::BadRequest,
            ),
            (
                ContainerSpec { image: "leasehold-test/none:9".to_owned(), ..ContainerSpec::default() },
                EngineErrorKind::NoSuchImage,
            ),
        ] {
            let error = engine.engine.create(&engine.plan_of(spec)).await.expect_err("refused");
            assert_eq!(error.kind, kind, "{error}");
            assert!(!error.is_retryable());
        }
    })
    .await;
}

fn within_64_mib(engine: &TestEngine, script: &str) -> leasehold::protocol::ports::ContainerPlan {
    let mut plan = engine.script(script);
    plan.spec.memory_bytes = Some(64 << 20);
    plan
}

/// DK-09
#[tokio::test]
async fn out_of_memory_is_claimed_only_with_evidence_and_the_exit_code_stays_the_programs() {
    // `tail` of a file without line ends keeps all that it has read.
    on_engine(1, async |engine| {
        let (main, child_then_0, child_then_1, child_early, plain_kill) = tokio::join!(
            async { engine.run(&within_64_mib(engine, "exec tail /dev/zero")).await },
            async { engine.run(&within_64_mib(engine, "tail /dev/zero; exit 0")).await },
            async { engine.run(&within_64_mib(engine, "tail /dev/zero; exit 1")).await },
            async { engine.run(&within_64_mib(engine, "tail /dev/zero; sleep 2; exit 0")).await },
            async { engine.run(&engine.script("kill -9 1; exec sh -c 'exit 137'")).await },
        );
        assert_eq!((main.code(), main.oom_killed()), (137, true));
        assert_eq!((child_then_0.code(), child_then_0.oom_killed()), (0, true));
        assert_eq!((child_then_1.code(), child_then_1.oom_killed()), (1, true));
        assert_eq!((child_early.code(), child_early.oom_killed()), (0, true));
        assert_eq!((plain_kill.code(), plain_kill.oom_killed()), (137, false));
    })
    .await;
}

/// DK-35: the engine's default driver does not matter.
#[tokio::test]
async fn the_last_line_is_there_although_the_engines_default_keeps_no_output() {
    let private = PrivateEngine::start(&["--log-driver", "none"]).await;
    let engine = private.connect().await;
    let ran = engine.run(&engine.script("echo noise; echo result=42")).await;
    assert_eq!(ran.code(), 0);
    assert_eq!(ran.stdout, b"noise\nresult=42\n");
    // Also when it is asked for long after the end.
    let id = engine.started(&engine.script("echo result=43")).await;
    engine.engine.wait(&id).await.unwrap();
    let later = private.connect().await;
    assert_eq!(later.output(&id).await.0, b"result=43\n");
    engine.engine.remove(&id).await.unwrap();
}

/// DK-37 (the small codes, those round the signals' and the last ones, and every sixteenth between; each in one
/// of the three forms. All 256 would take two cores a minute.)
#[tokio::test]
async fn exit_codes_are_reported_as_they_are_in_every_form_of_a_command() {
    const ENTRYPOINT: &str = "leasehold-test/entrypoint:1";
    on_engine(2, async |engine| {
        engine
            .engine
            .make_tiny_image(ENTRYPOINT, &["ENTRYPOINT [\"sh\", \"-c\"]", "CMD [\"exit 99\"]"])
            .await
            .unwrap();
        let run = async |code: i32| {
            let exit = format!("exit {code}");
            let plan = match code % 3 {
                0 => engine.script(&exit),
                1 => engine.plan_of(ContainerSpec {
                    image: ENTRYPOINT.to_owned(),
                    command: vec![exit],
                    ..ContainerSpec::default()
                }),
                _ => engine.plan_of(ContainerSpec {
                    entrypoint: Some(vec!["sh".to_owned(), "-c".to_owned(), exit]),
                    ..ContainerSpec::default()
                }),
            };
            (code, engine.run(&plan).await.code())
        };
        let sample: Vec<i32> =
            (0..=255).filter(|code| matches!(code, 0..16 | 122..=160 | 248..) || code % 16 == 0).collect();
        let reported: Vec<(i32, i32)> =
            stream::iter(sample.clone()).map(run).buffer_unordered(AT_ONCE).collect().await;
        assert_eq!(reported.len(), sample.len());
        let wrong: Vec<_> = reported.into_iter().filter(|(asked, told)| asked != told).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        // The image's own command.
        let own = engine.plan_of(ContainerSpec { image: ENTRYPOINT.to_owned(), ..ContainerSpec::default() });
        assert_eq!(engine.run(&own).await.code(), 99);
    })
    .await;
}

/// DK-37
#[tokio::test]
async fn a_child_that_dies_by_a_signal_shows_in_its_parents_code() {
    on_engine(2, async |engine| {
        let runs: Vec<(i32, Ran)> = stream::iter([1, 2, 9, 11, 13, 15])
            .map(async |signal| {
                (signal, engine.run(&engine.script(&format!("sh -c 'kill -{signal} $$'; exit $?"))).await)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (signal, ran) in runs {
            assert_eq!(ran.code(), 128 + signal);
            assert!(!ran.oom_killed());
        }
    })
    .await;
}
