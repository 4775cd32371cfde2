//! Output: whole, in order, once, in time, and never more than fits.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::bed::{Bed, ENGINE, IMAGE, assert_failed, completed, eventually};
use crate::{
    domain::FailureKind,
    ports::LogStream,
    testing::{Call, Fate, Operation, Script, ScriptedEngine, Trouble},
    work::{StopReason, WorkOutcome},
};

const NOW: Duration = Duration::ZERO;

fn engine(script: Script) -> ScriptedEngine {
    ScriptedEngine::new(ENGINE).image(IMAGE, script)
}

/// DK-15: also the last line without a newline, from a container that ends at once and from a slow one.
#[tokio::test(start_paused = true)]
async fn the_last_line_needs_no_newline() {
    for pause in [NOW, Duration::from_secs(3)] {
        for (text, expected) in [("hello\nworld", "hello\nworld"), ("x", "x")] {
            let bed = Bed::new(engine(Script::exits(0).prints(pause, LogStream::Stdout, text))).await;
            assert_eq!(bed.run().await, completed());
            assert_eq!(bed.text(LogStream::Stdout), expected);
        }
    }
}

/// DK-17, DK-21, DK-23: each stream keeps its own bytes, whatever they are.
#[tokio::test(start_paused = true)]
async fn each_stream_keeps_its_bytes() {
    let out: &[u8] = b"a\r\n\xff\xfe\x80\0\x01\0\0\0\0\0\0\x05";
    let long = vec![b'a'; 5_000_000];
    let script = Script::exits(3)
        .prints(NOW, LogStream::Stdout, Bytes::from_static(out))
        .prints(NOW, LogStream::Stderr, "err\n")
        .prints(NOW, LogStream::Stdout, long.clone())
        .prints(NOW, LogStream::Stdout, "after");
    let bed = Bed::new(engine(script)).await;
    assert_failed(&bed.run().await, FailureKind::User, "3");
    assert_eq!(bed.stored(LogStream::Stdout), [out, &long, b"after"].concat());
    assert_eq!(bed.text(LogStream::Stderr), "err\n");
    assert_eq!(bed.text(LogStream::System), "");
}

/// DK-23: ten thousand changes between the streams cost no ten thousand rows.
#[tokio::test(start_paused = true)]
async fn alternating_streams_are_kept_apart_and_together() {
    let script = (0..10_000).fold(Script::exits(0), |script, i| {
        let stream = if i % 2 == 0 { LogStream::Stdout } else { LogStream::Stderr };
        script.prints(NOW, stream, format!("{i}\n"))
    });
    let bed = Bed::new(engine(script)).await;
    assert_eq!(bed.run().await, completed());
    let even: String = (0..10_000).step_by(2).map(|i| format!("{i}\n")).collect();
    let odd: String = (1..10_000).step_by(2).map(|i| format!("{i}\n")).collect();
    assert_eq!(bed.text(LogStream::Stdout), even);
    assert_eq!(bed.text(LogStream::Stderr), odd);
    assert!(bed.store.stored_logs(bed.job()).len() < 500, "{}", bed.store.stored_logs(bed.job()).len());
}

/// A short exchange of both streams is kept in the order in which it was read.
#[tokio::test(start_paused = true)]
async fn the_order_between_the_streams_is_kept() {
    let script = Script::exits(0)
        .prints(NOW, LogStream::Stdout, "question\n")
        .prints(NOW, LogStream::Stderr, "answer\n")
        .prints(NOW, LogStream::Stdout, "thanks\n");
    let bed = Bed::new(engine(script)).await;
    bed.run().await;
    let order: Vec<Bytes> = bed.store.stored_logs(bed.job()).into_iter().map(|log| log.data).collect();
    assert_eq!(order, ["question\n", "answer\n", "thanks\n"]);
}

/// DK-19: what was printed is there soon, though the program goes on.
#[tokio::test(start_paused = true)]
async fn output_is_stored_while_the_program_runs() {
    let script = Script::exits_after(Duration::from_mins(10), 0).prints(NOW, LogStream::Stdout, "50 %\r");
    let bed = Bed::new(engine(script)).await;
    let run = bed.start();
    eventually("it runs", || bed.engine.is_running()).await;
    sleep(Duration::from_millis(250)).await;
    assert_eq!(bed.text(LogStream::Stdout), "50 %\r");
    bed.stop(StopReason::Canceled, Duration::from_secs(13));
    run.await.expect("no panic");
}

/// A stream that breaks is read again from its first byte; nothing is stored twice and nothing is missing.
#[tokio::test(start_paused = true)]
async fn a_broken_stream_goes_on_where_it_was() {
    let script = (0..300).fold(Script::exits(0), |script, i| {
        let stream = if i % 3 == 0 { LogStream::Stderr } else { LogStream::Stdout };
        script.prints(Duration::from_millis(100), stream, format!("line {i}\n"))
    });
    let bed = Bed::new(engine(script)).await;
    let run = bed.start();
    for _ in 0..6 {
        sleep(Duration::from_millis(3_333)).await;
        bed.engine.break_streams();
    }
    assert_eq!(run.await.expect("no panic"), completed());
    let expected = |wanted: bool| -> String {
        (0..300).filter(|i| (i % 3 == 0) == wanted).map(|i| format!("line {i}\n")).collect()
    };
    assert_eq!(bed.text(LogStream::Stdout), expected(false));
    assert_eq!(bed.text(LogStream::Stderr), expected(true));
    assert!(bed.engine.count(Call::Logs) > 3);
}

/// The engine is away for a while: what the container printed meanwhile is fetched afterwards.
#[tokio::test(start_paused = true)]
async fn output_from_an_outage_is_fetched_afterwards() {
    let script = (0..100).fold(Script::exits(0), |script, i| {
        script.prints(Duration::from_secs(1), LogStream::Stdout, format!("{i}\n"))
    });
    let bed = Bed::new(engine(script)).await;
    let run = bed.start();
    sleep(Duration::from_secs(20)).await;
    bed.engine.go_down();
    sleep(Duration::from_secs(20)).await;
    bed.engine.come_back();
    assert_eq!(run.await.expect("no panic"), completed());
    assert_eq!(bed.text(LogStream::Stdout), (0..100).map(|i| format!("{i}\n")).collect::<String>());
}

/// L10: batches whose answers are lost are sent again and stand there once.
#[tokio::test(start_paused = true)]
async fn lost_answers_of_the_store_cost_no_byte() {
    let fates = [Fate::AnswerLost, Fate::RequestLost, Fate::Refused, Fate::Silent];
    let script = (0..50).fold(Script::exits(0), |script, i| {
        script.prints(Duration::from_millis(300), LogStream::Stdout, format!("{i}\n"))
    });
    let bed = Bed::new(engine(script)).await;
    bed.flaky.script(Operation::AppendLogs, fates.into_iter().cycle().take(8));
    assert_eq!(bed.run().await, completed());
    assert_eq!(bed.text(LogStream::Stdout), (0..50).map(|i| format!("{i}\n")).collect::<String>());
}

/// The container has ended, the store takes nothing: its outcome is not held up for ever.
#[tokio::test(start_paused = true)]
async fn a_store_that_takes_no_output_holds_up_no_outcome() {
    let bed = Bed::new(engine(Script::exits(5).prints(NOW, LogStream::Stdout, "lost"))).await;
    bed.flaky.script(Operation::AppendLogs, std::iter::repeat_n(Fate::RequestLost, 100_000));
    let before = Instant::now();
    assert_failed(&bed.run().await, FailureKind::User, "5");
    assert!(before.elapsed() < Duration::from_mins(2), "{:?}", before.elapsed());
}

/// Over the quota output is cut at the byte, and both the cut and its size are said.
#[tokio::test(start_paused = true)]
async fn the_quota_cuts_where_it_says() {
    let script = Script::exits(0)
        .prints(NOW, LogStream::Stdout, "0123456789")
        .prints(NOW, LogStream::Stderr, "abcdef")
        .prints(Duration::from_secs(1), LogStream::Stdout, "more")
        .prints(NOW, LogStream::Stderr, "still more");
    let bed = Bed::with(engine(script), |spec| spec.log_quota_bytes = Some(13)).await;
    assert_eq!(bed.run().await, completed());
    assert_eq!(bed.text(LogStream::Stdout), "0123456789");
    assert_eq!(bed.text(LogStream::Stderr), "abc");
    let remarks = bed.text(LogStream::System);
    assert!(remarks.contains("13 bytes"), "{remarks}");
    assert!(remarks.contains("17 bytes of output were dropped (stdout 4, stderr 13)"), "{remarks}");
    let streams: Vec<LogStream> =
        bed.store.stored_logs(bed.job()).into_iter().map(|log| log.stream).collect();
    let expected = [LogStream::Stdout, LogStream::Stderr, LogStream::System, LogStream::System];
    assert_eq!(streams, expected, "the first remark stands where it was cut");
}

#[tokio::test(start_paused = true)]
async fn output_that_just_fits_is_not_cut() {
    let script = Script::exits(0).prints(NOW, LogStream::Stdout, "0123456789");
    let bed = Bed::with(engine(script), |spec| spec.log_quota_bytes = Some(10)).await;
    assert_eq!(bed.run().await, completed());
    assert_eq!(bed.text(LogStream::Stdout), "0123456789");
    assert_eq!(bed.text(LogStream::System), "");
}

/// SH-10: 200 MB as fast as it can. What is read ahead of the store stays small, and renewals are on time.
#[tokio::test(start_paused = true)]
async fn a_flood_is_held_up_by_the_store() {
    let chunk = Bytes::from(vec![b'x'; 64 * 1024]);
    let script =
        (0..3_200).fold(Script::exits(0), |script, _| script.prints(NOW, LogStream::Stdout, chunk.clone()));
    let bed = Bed::with(engine(script), |spec| spec.log_quota_bytes = Some(8 * 1024 * 1024)).await;
    let slow = std::iter::repeat_n(Fate::Late(Duration::from_millis(500)), 32);
    bed.flaky.script(Operation::AppendLogs, slow);
    let run = bed.start();
    let mut furthest = 0;
    while !run.is_finished() {
        sleep(Duration::from_millis(50)).await;
        let stored: u64 = bed.store.stored_logs(bed.job()).iter().map(|log| log.data.len() as u64).sum();
        if stored < 8 * 1024 * 1024 {
            furthest = furthest.max(bed.engine.bytes_read() - stored);
        }
    }
    assert_eq!(run.await.expect("no panic"), completed());
    assert!(furthest <= 512 * 1024, "{furthest} bytes were read ahead");
    assert_eq!(bed.stored(LogStream::Stdout).len(), 8 * 1024 * 1024);
    assert_eq!(bed.engine.bytes_read(), 3_200 * 64 * 1024, "the rest is read and dropped");
    let gap = *bed.longest_gap.lock().expect("nothing panics with it");
    assert!(gap < Duration::from_secs(10), "{gap:?} without a renewal");
}

/// SH-10: a cancel gets through a flood.
#[tokio::test(start_paused = true)]
async fn a_flood_holds_up_no_cancel() {
    let chunk = Bytes::from(vec![b'x'; 64 * 1024]);
    let script = (0..50_000).fold(Script::exits(0), |script, _| {
        script.prints(Duration::from_millis(1), LogStream::Stdout, chunk.clone())
    });
    let bed = Bed::new(engine(script)).await;
    let run = bed.start();
    sleep(Duration::from_secs(5)).await;
    let before = Instant::now();
    bed.stop(StopReason::Canceled, Duration::from_secs(13));
    assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped);
    assert!(before.elapsed() <= Duration::from_secs(13), "{:?}", before.elapsed());
}

/// DK-25: an engine that cannot give the rest costs the rest, and that is said.
#[tokio::test(start_paused = true)]
async fn output_that_cannot_be_read_is_missed_out_loud() {
    let kind = crate::error::EngineErrorKind::Engine;
    let bad = Trouble::Fails(kind, "the record is damaged");
    let engine = (0..1_000).fold(engine(Script::exits(0)), |engine, _| engine.trouble(Call::Logs, bad));
    let bed = Bed::new(engine).await;
    let before = Instant::now();
    assert_eq!(bed.run().await, completed());
    assert!(before.elapsed() < Duration::from_mins(1), "{:?}", before.elapsed());
    assert!(bed.text(LogStream::System).contains("could not be read"));
}
