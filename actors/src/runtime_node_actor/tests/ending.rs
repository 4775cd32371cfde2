//! How containers end, and what their exits are taken for.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::bed::{Bed, ENGINE, IMAGE, assert_failed, completed, eventually};
use crate::{
    domain::FailureKind,
    ports::LogStream,
    testing::{Call, Script, ScriptedEngine, Trouble},
};

fn engine(script: Script) -> ScriptedEngine {
    ScriptedEngine::new(ENGINE).image(IMAGE, script)
}

fn hanging() -> ScriptedEngine {
    engine(Script::hangs())
}

/// DK-01: one that ends at once is not missed, and its code is its own.
#[tokio::test(start_paused = true)]
async fn a_short_run_has_its_own_code() {
    for code in [1, 3, 7, 42, 255] {
        let bed = Bed::new(engine(Script::exits(code))).await;
        assert_failed(&bed.run().await, FailureKind::User, &code.to_string());
        assert!(bed.engine.containers().is_empty());
    }
    let bed = Bed::new(engine(Script::exits(0))).await;
    assert_eq!(bed.run().await, completed());
}

/// A run longer than many leases is one run.
#[tokio::test(start_paused = true)]
async fn a_long_run_is_waited_for() {
    let bed = Bed::new(engine(Script::exits_after(Duration::from_hours(5), 0))).await;
    assert_eq!(bed.run().await, completed());
    assert_eq!(bed.engine.plans().len(), 1);
}

/// DK-09
#[tokio::test(start_paused = true)]
async fn out_of_memory_is_told_with_evidence_only() {
    let bed = Bed::new(engine(Script::runs_out_of_memory(137))).await;
    assert_failed(&bed.run().await, FailureKind::User, "oom");
    let bed = Bed::new(engine(Script::runs_out_of_memory(1))).await;
    assert_failed(&bed.run().await, FailureKind::User, "1");
    let bed = Bed::new(engine(Script::runs_out_of_memory(0))).await;
    assert_eq!(bed.run().await, completed());
    assert!(bed.text(LogStream::System).contains("memory"), "a success with a warning");
    let bed = Bed::new(engine(Script::exits(137))).await;
    assert_failed(&bed.run().await, FailureKind::System, "killed");
}

#[tokio::test(start_paused = true)]
async fn a_kill_by_somebody_is_not_the_program_s_fault() {
    let bed = Bed::new(hanging()).await;
    let run = bed.start();
    eventually("it runs", || bed.engine.is_running()).await;
    bed.engine.kill_all();
    assert_failed(&run.await.expect("no panic"), FailureKind::System, "killed");
}

/// RC-17: somebody removed it by hand.
#[tokio::test(start_paused = true)]
async fn a_removed_container_is_noticed_at_once() {
    let bed = Bed::new(hanging()).await;
    let run = bed.start();
    eventually("it runs", || bed.engine.is_running()).await;
    let before = Instant::now();
    bed.engine.remove_all();
    assert_failed(&run.await.expect("no panic"), FailureKind::System, "container_gone");
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    assert!(bed.is_over());
}

/// DK-29: the connection breaks, engine and container are well.
#[tokio::test(start_paused = true)]
async fn a_broken_wait_is_no_exit() {
    for code in [0, 3] {
        let bed = Bed::new(engine(Script::exits_after(Duration::from_secs(60), code))).await;
        let run = bed.start();
        for _ in 0..5 {
            sleep(Duration::from_secs(10)).await;
            bed.engine.break_streams();
        }
        let outcome = run.await.expect("no panic");
        if code == 0 {
            assert_eq!(outcome, completed());
        } else {
            assert_failed(&outcome, FailureKind::User, "3");
        }
        assert_eq!(bed.engine.count(Call::Start), 1);
    }
}

/// DK-29: with live-restore the container lives on through the restart, and its exit is its own.
#[tokio::test(start_paused = true)]
async fn a_restart_that_the_container_survives_costs_nothing() {
    let bed = Bed::new(engine(Script::exits_after(Duration::from_mins(2), 5))).await;
    let run = bed.start();
    sleep(Duration::from_secs(30)).await;
    bed.engine.go_down();
    sleep(Duration::from_secs(15)).await;
    bed.engine.come_back();
    assert_failed(&run.await.expect("no panic"), FailureKind::User, "5");
}

/// DK-29: without live-restore it dies with the engine, whatever code that leaves behind.
#[tokio::test(start_paused = true)]
async fn an_exit_inside_an_outage_is_the_engine_s() {
    for code in [137, 143, 0, 1] {
        let bed = Bed::new(hanging()).await;
        let run = bed.start();
        eventually("it runs", || bed.engine.is_running()).await;
        bed.engine.go_down();
        bed.engine.end_all(code);
        sleep(Duration::from_secs(12)).await;
        bed.engine.come_back();
        assert_failed(&run.await.expect("no panic"), FailureKind::System, "engine_lost");
        eventually("it is removed", || bed.engine.containers().is_empty()).await;
    }
}

/// The engine was restarted between two looks, or while this process stood still: nobody has noticed an outage,
/// but the engine has not seen the end that it tells of.
#[tokio::test(start_paused = true)]
async fn an_exit_inside_an_outage_that_nobody_noticed_is_the_engine_s() {
    for code in [0, 3, 143] {
        let bed = Bed::new(hanging()).await;
        let run = bed.start();
        eventually("it runs", || bed.engine.is_running()).await;
        bed.engine.go_down();
        bed.engine.end_all(code);
        bed.engine.come_back();
        assert_failed(&run.await.expect("no panic"), FailureKind::System, "engine_lost");
    }
}

/// An engine that is told to end stops its containers itself, reports that, and is gone.
#[tokio::test(start_paused = true)]
async fn an_engine_that_goes_down_after_the_exit_spoils_it() {
    for code in [143, 0] {
        let bed = Bed::new(hanging()).await;
        let run = bed.start();
        eventually("it runs", || bed.engine.is_running()).await;
        bed.engine.end_all(code);
        bed.engine.go_down();
        tokio::task::yield_now().await;
        sleep(Duration::from_secs(20)).await;
        bed.engine.come_back();
        assert_failed(&run.await.expect("no panic"), FailureKind::System, "engine_lost");
        eventually("it is removed", || bed.engine.containers().is_empty()).await;
    }
}

/// RC-17: the whole engine is gone for good; the job says so, and does not run for ever.
#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_come_back_is_lost() {
    let bed = Bed::new(hanging()).await;
    let run = bed.start();
    eventually("it runs", || bed.engine.is_running()).await;
    let before = Instant::now();
    bed.engine.go_down();
    let outcome = run.await.expect("no panic");
    assert_failed(&outcome, FailureKind::System, "engine_lost");
    let waited = before.elapsed();
    assert!(waited >= Duration::from_secs(55) && waited < Duration::from_secs(100), "{waited:?}");
}

/// A frozen engine accepts the wait and never answers it; the looks beside it tell.
#[tokio::test(start_paused = true)]
async fn a_wait_that_never_answers_is_seen_through() {
    let engine = engine(Script::exits_after(Duration::from_secs(5), 3)).trouble(Call::Wait, Trouble::Silent);
    let bed = Bed::new(engine).await;
    let before = Instant::now();
    assert_failed(&bed.run().await, FailureKind::User, "3");
    assert!(before.elapsed() < Duration::from_secs(40), "{:?}", before.elapsed());
}

/// A removal that fails is tried again, beside the run if need be, and the outcome does not wait for it.
#[tokio::test(start_paused = true)]
async fn a_stubborn_removal_holds_up_nothing() {
    let refuse = |engine: ScriptedEngine| {
        let kind = crate::error::EngineErrorKind::Engine;
        engine.trouble(Call::Remove, Trouble::Fails(kind, "device is busy"))
    };
    let bed = Bed::new((0..20).fold(engine(Script::exits(0)), |engine, _| refuse(engine))).await;
    let before = Instant::now();
    assert_eq!(bed.run().await, completed());
    assert!(before.elapsed() < Duration::from_secs(30), "{:?}", before.elapsed());
    assert!(bed.is_over());
    eventually("it is removed", || bed.engine.containers().is_empty()).await;
}

/// RC-11: somebody else removes it at the same time.
#[tokio::test(start_paused = true)]
async fn a_container_that_is_gone_at_its_removal_counts_as_removed() {
    let kind = crate::error::EngineErrorKind::NoSuchContainer;
    let bed = Bed::new(engine(Script::exits(0)).trouble(Call::Remove, Trouble::Fails(kind, "gone"))).await;
    assert_eq!(bed.run().await, completed());
    assert_eq!(bed.engine.count(Call::Remove), 1);
}
