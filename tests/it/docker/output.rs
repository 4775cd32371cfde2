//! What a program wrote is what is kept, byte for byte.

use leasehold::{docker::DockerEngine, protocol::ports::ContainerEngine as _};
use tokio::time::{Duration, timeout};

use crate::support::engine::{PrivateEngine, TestEngine, on_engine};

/// Runs a script and reads its output twice: live, and from the engine's record as another worker would.
async fn both_ways(engine: &TestEngine, script: &str) -> ((Vec<u8>, Vec<u8>), (Vec<u8>, Vec<u8>)) {
    let id = engine.started(&engine.script(script)).await;
    let live = engine.output(&id).await;
    engine.engine.wait(&id).await.unwrap();
    let recorded = TestEngine::at(&engine.endpoint).await.output(&id).await;
    engine.engine.remove(&id).await.unwrap();
    (live, recorded)
}

/// DK-15
#[tokio::test]
async fn a_last_line_without_a_newline_is_kept_as_it_is() {
    on_engine(1, async |engine| {
        for (script, expected) in [
            ("printf 'hello\\nworld'", &b"hello\nworld"[..]),
            ("sleep 2; printf 'hello\\nworld'", b"hello\nworld"),
            ("printf x", b"x"),
            ("printf 'x\\n'", b"x\n"),
            (":", b""),
        ] {
            let (live, recorded) = both_ways(engine, script).await;
            assert_eq!(live.0, expected, "{script}");
            assert_eq!(recorded.0, expected, "{script}");
        }
    })
    .await;
}

/// DK-17
#[tokio::test]
async fn lines_of_any_length_come_whole_and_nothing_is_added() {
    on_engine(1, async |engine| {
        for length in [16_383, 16_384, 16_385, 100_000, 5_000_000] {
            let script = format!("head -c {length} /dev/zero | tr '\\0' a; echo; echo after; echo err >&2");
            let expected = [&vec![b'a'; length][..], b"\nafter\n"].concat();
            for (stdout, stderr) in <[_; 2]>::from(both_ways(engine, &script).await) {
                assert!(stdout == expected, "{length}: got {} bytes", stdout.len());
                assert_eq!(stderr, b"err\n");
            }
        }
    })
    .await;
}

/// DK-21
#[tokio::test]
async fn bytes_that_are_no_text_stay_what_they_are() {
    on_engine(1, async |engine| {
        let split = "head -c 16383 /dev/zero | tr '\\0' a; printf '\\342\\202\\254\\n'";
        let long = |tail: &str| [&vec![b'a'; 16_383][..], tail.as_bytes()].concat();
        for (script, expected, replaced) in [
            (split, long("€\n"), long("\u{fffd}\u{fffd}\u{fffd}\n")),
            ("printf '\\377\\376\\200\\n'", b"\xff\xfe\x80\n".to_vec(), "\u{fffd}\u{fffd}\u{fffd}\n".into()),
            ("printf '\\000\\n'", b"\0\n".to_vec(), b"\0\n".to_vec()),
            ("printf 'caf\\351\\r\\n'", b"caf\xe9\r\n".to_vec(), "caf\u{fffd}\r\n".into()),
        ] {
            let (live, recorded) = both_ways(engine, script).await;
            assert!(live.0 == expected, "{script}: {:?}", tail(&live.0));
            // Another worker's view, out of Docker's record.
            assert!(recorded.0 == replaced, "{script}: {:?}", tail(&recorded.0));
        }
    })
    .await;
}

fn tail(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(20)..]).into_owned()
}

/// DK-23
#[tokio::test]
async fn output_that_looks_like_a_frame_is_not_taken_for_one() {
    on_engine(1, async |engine| {
        let script = "printf '\\001\\000\\000\\000\\000\\000\\000\\005text\\n'; printf '\\003\\000\\n' >&2";
        for (stdout, stderr) in <[_; 2]>::from(both_ways(engine, script).await) {
            assert_eq!(stdout, b"\x01\0\0\0\0\0\0\x05text\n");
            assert_eq!(stderr, b"\x03\0\n");
        }
    })
    .await;
}

/// DK-23
#[tokio::test]
async fn ten_thousand_turns_between_the_streams_keep_each_stream_whole_and_in_order() {
    on_engine(1, async |engine| {
        let script = "i=0; while [ $i -lt 10000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done";
        let lines = |letter: char| (0..10_000).map(|i| format!("{letter}{i}\n")).collect::<String>();
        for (stdout, stderr) in <[_; 2]>::from(both_ways(engine, script).await) {
            assert!(stdout == lines('o').as_bytes());
            assert!(stderr == lines('e').as_bytes());
        }
    })
    .await;
}

/// DK-33
#[tokio::test]
async fn environment_values_arrive_byte_for_byte() {
    on_engine(1, async |engine| {
        let hundred_k = "x".repeat(100_000);
        let values = [
            ("NEWLINE", "a\nb"),
            ("CRLF", "a\r\nb\t"),
            ("EQUALS", "=a=b="),
            ("QUOTES", "\"'`"),
            ("DOLLAR", "$HOME ${HOME} $(id)"),
            ("BACKSLASH", "\\n"),
            ("BLANKS", "  a  "),
            ("EMPTY", ""),
            ("EMOJI", "🦀"),
            ("LONG", hundred_k.as_str()),
        ];
        let mut plan = engine.plan(&["env", "-0"]);
        plan.spec.env = values.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let ran = engine.run(&plan).await;
        let printed: Vec<&[u8]> = ran.stdout.split(|byte| *byte == 0).collect();
        for (name, value) in values {
            let expected = format!("{name}={value}");
            assert!(
                printed.contains(&expected.as_bytes()),
                "{name} is not among {} variables",
                printed.len()
            );
        }
        assert!(printed.contains(&&b"LEASEHOLD_FENCING_EPOCH=1"[..]));
    })
    .await;
}

#[tokio::test]
async fn output_is_shown_while_the_program_still_runs() {
    use futures_util::StreamExt as _;
    on_engine(1, async |engine| {
        let id = engine.started(&engine.script("echo first; sleep 60")).await;
        let mut live = engine.engine.logs(&id);
        let first = timeout(Duration::from_secs(5), live.next()).await.expect("at once").unwrap().unwrap();
        assert_eq!(&first.data[..], b"first\n");
        // A second reader gets it from the first byte too.
        let other = DockerEngine::connect(&engine.endpoint, None).unwrap();
        let mut record = other.logs(&id);
        let again = timeout(Duration::from_secs(5), record.next()).await.expect("at once").unwrap().unwrap();
        assert_eq!(again, first);
        engine.engine.kill(&id).await.unwrap();
        assert!(timeout(Duration::from_secs(5), live.next()).await.expect("it ends").is_none());
        assert!(timeout(Duration::from_secs(5), record.next()).await.expect("it ends").is_none());
        engine.engine.remove(&id).await.unwrap();
    })
    .await;
}

/// A worker that does not read (it may be frozen) holds the program back instead of filling memory; a worker
/// that lets go of the stream sets it free.
#[tokio::test]
async fn a_reader_that_lets_go_does_not_stop_the_program() {
    on_engine(1, async |engine| {
        let id = engine.started(&engine.script("head -c 20000000 /dev/zero; exit 4")).await;
        drop(engine.engine.logs(&id));
        let status =
            timeout(Duration::from_secs(20), engine.engine.wait(&id)).await.expect("it ends").unwrap();
        assert!(format!("{:?}", status.state).contains("code: 4"), "{status:?}");
        engine.engine.remove(&id).await.unwrap();
    })
    .await;
}

/// DK-19: a progress bar that only ever returns the carriage.
#[tokio::test]
async fn output_without_a_newline_is_shown_at_once() {
    use futures_util::StreamExt as _;
    on_engine(1, async |engine| {
        let id = engine.started(&engine.script("printf '10%%\\r'; printf '20%%\\r'; sleep 60")).await;
        let mut live = engine.engine.logs(&id);
        let mut seen = Vec::new();
        while seen.len() < 8 {
            let chunk = timeout(Duration::from_secs(5), live.next()).await.expect("at once");
            seen.extend_from_slice(&chunk.unwrap().unwrap().data);
        }
        assert_eq!(seen, b"10%\r20%\r");
        engine.engine.kill(&id).await.unwrap();
        engine.engine.remove(&id).await.unwrap();
    })
    .await;
}

/// DK-25: an engine that keeps 10 KB of output by default, and a program whose record is rotated twice.
#[tokio::test]
async fn an_engine_that_rotates_its_record_costs_no_output() {
    let private = PrivateEngine::start(&["--log-opt", "max-size=10k", "--log-opt", "max-file=2"]).await;
    let engine = private.connect().await;
    let mut plan = engine
        .script("i=0; while [ $i -lt 250 ]; do head -c 99999 /dev/zero | tr '\\0' a; echo; i=$((i+1)); done");
    // The record's files are as large as this, and never smaller than 10 MiB.
    plan.spec.log_quota_bytes = Some(1 << 20);
    let id = engine.started(&plan).await;
    let live = engine.output(&id).await.0;
    engine.engine.wait(&id).await.unwrap();
    let recorded = private.connect().await.output(&id).await.0;
    engine.engine.remove(&id).await.unwrap();
    let line = [&vec![b'a'; 99_999][..], b"\n"].concat();
    for (what, output) in [("live", live), ("recorded", recorded)] {
        assert_eq!(output.len(), 25_000_000, "{what}");
        assert!(output.chunks(line.len()).all(|chunk| chunk == line), "{what}: a gap or a double");
    }
}
