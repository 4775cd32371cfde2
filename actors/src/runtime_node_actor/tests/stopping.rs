//! Stops of every kind, in every phase.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::bed::{Bed, ENGINE, IMAGE, LEASE, NAME, assert_failed, completed, eventually};
use crate::{
    domain::{FailureKind, OnOrphan},
    error::EngineErrorKind,
    fence::Kill,
    ports::LogStream,
    runtime_node_actor::{guard::KillSwitch, plan},
    testing::{Call, Fate, OnStop, Operation, Script, ScriptedEngine, Trouble},
    work::{StopReason, WorkOutcome},
};

const GRACE: Duration = Duration::from_secs(13);

const REASONS: [StopReason; 4] =
    [StopReason::Canceled, StopReason::TimedOut, StopReason::Draining, StopReason::LeaseLost];

fn engine(script: Script) -> ScriptedEngine {
    ScriptedEngine::new(ENGINE).image(IMAGE, script)
}

fn stubborn() -> ScriptedEngine {
    engine(Script::hangs())
}

fn obedient() -> ScriptedEngine {
    let on_stop = OnStop::Ends { after: Duration::from_secs(1), code: 0, says: Some("bye") };
    engine(Script::hangs().on_stop(on_stop))
}

async fn running(engine: ScriptedEngine) -> (Bed, tokio::task::JoinHandle<WorkOutcome>) {
    let bed = Bed::new(engine).await;
    let run = bed.start();
    eventually("it runs", || bed.engine.is_running()).await;
    (bed, run)
}

/// CL-15: a cancel that comes while the container is being prepared, at each step of the way.
#[tokio::test(start_paused = true)]
async fn a_stop_in_any_phase_starts_nothing_afterwards() {
    let slow = Trouble::Slow(Duration::from_secs(5));
    for reason in REASONS {
        for call in [Call::Info, Call::EnsureImage, Call::Create, Call::Start] {
            let bed = Bed::new(obedient().trouble(call, slow)).await;
            let run = bed.start();
            eventually("the step has begun", || bed.engine.count(call) == 1).await;
            bed.stop(reason, GRACE);
            let before = Instant::now();
            let what = format!("{reason:?} during {call:?}");
            assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped, "{what}");
            assert!(before.elapsed() < GRACE, "{what}: {:?}", before.elapsed());
            assert!(!bed.engine.is_running(), "{what}");
            assert!(bed.engine.containers().is_empty(), "{what}: {:?}", bed.engine.containers());
            assert!(bed.is_over(), "{what}");
            if call != Call::Start {
                assert_eq!(bed.engine.count(Call::Start), 0, "{what}");
            }
        }
    }
}

/// CL-15: the same while the store is slow to attach.
#[tokio::test(start_paused = true)]
async fn a_stop_during_the_attach_starts_nothing() {
    for reason in REASONS {
        let bed = Bed::new(obedient()).await;
        bed.flaky.script(Operation::Attach, [Fate::Late(Duration::from_secs(3))]);
        let run = bed.start();
        eventually("it attaches", || bed.flaky.calls(Operation::Attach) == 1).await;
        bed.stop(reason, GRACE);
        assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped, "{reason:?}");
        assert_eq!(bed.engine.count(Call::Start), 0, "{reason:?}");
        assert!(bed.engine.containers().is_empty(), "{reason:?}");
    }
}

/// A long pull does not hold a cancel up.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_pull_at_once() {
    let bed = Bed::new(obedient().trouble(Call::EnsureImage, Trouble::Silent)).await;
    let run = bed.start();
    eventually("it pulls", || bed.engine.count(Call::EnsureImage) == 1).await;
    bed.stop(StopReason::Canceled, GRACE);
    let before = Instant::now();
    assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped);
    assert!(before.elapsed() < Duration::from_secs(1));
}

/// DK-11: asked after it was marked, and what it says at the end is kept.
#[tokio::test(start_paused = true)]
async fn a_container_that_obeys_ends_in_peace() {
    for reason in [StopReason::Canceled, StopReason::TimedOut, StopReason::Draining] {
        let (bed, run) = running(obedient()).await;
        bed.stop(reason, GRACE);
        assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped, "{reason:?}");
        let calls = bed.engine.calls();
        let mark = calls.iter().position(|call| call == &format!("mark {NAME}")).expect("it is marked");
        let stop = calls.iter().position(|call| call.starts_with("stop")).expect("it is asked");
        assert!(mark < stop, "{calls:?}");
        assert_eq!(bed.engine.count(Call::Kill), 0, "{reason:?}");
        assert_eq!(bed.text(LogStream::Stdout), "bye", "{reason:?}");
        assert!(bed.engine.containers().is_empty());
        assert!(bed.is_over());
    }
}

/// DK-11: one that does not listen is killed after its grace.
#[tokio::test(start_paused = true)]
async fn a_container_that_does_not_listen_is_killed_after_its_grace() {
    let (bed, run) = running(stubborn()).await;
    let before = Instant::now();
    bed.stop(StopReason::Canceled, GRACE);
    assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped);
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(9) && took <= GRACE, "{took:?}");
    assert!(bed.engine.containers().is_empty());
}

/// The definition's own grace is kept to, and so is a shorter one that a drain imposes.
#[tokio::test(start_paused = true)]
async fn the_shorter_grace_counts() {
    for (own_ms, imposed, longest) in [(2_000, GRACE, 3), (60_000, Duration::from_secs(4), 4)] {
        let bed = Bed::with(stubborn(), |spec| spec.stop_grace_ms = Some(own_ms)).await;
        let run = bed.start();
        eventually("it runs", || bed.engine.is_running()).await;
        let before = Instant::now();
        bed.stop(StopReason::Draining, imposed);
        assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped);
        assert!(before.elapsed() <= Duration::from_secs(longest), "{own_ms}: {:?}", before.elapsed());
    }
}

/// L5: a lost lease ends the work before the local deadline.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_kills_before_the_deadline() {
    let (bed, run) = running(stubborn()).await;
    sleep(Duration::from_secs(7)).await;
    bed.stop_renewing();
    let deadline = bed.watch.entry().deadline().instant();
    // As the fence does it: an eighth of the lease before the deadline.
    tokio::time::sleep_until(deadline - LEASE / 8).await;
    bed.lose_the_lease();
    assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped);
    assert!(Instant::now() <= deadline, "{:?} too late", Instant::now() - deadline);
    assert!(!bed.engine.is_running());
    assert!(bed.engine.containers().is_empty());
}

/// Under a lost lease nothing is written any more.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_writes_nothing_more() {
    let (bed, run) = running(obedient()).await;
    bed.lose_the_lease();
    let appends = bed.flaky.calls(Operation::AppendLogs);
    run.await.expect("no panic");
    assert_eq!(bed.flaky.calls(Operation::AppendLogs), appends);
    assert_eq!(bed.text(LogStream::Stdout), "");
}

/// A 404 at the mark may speak of what the container lacks: an engine that restored it without its network sandbox
/// renames it no more, and it runs on.
#[tokio::test(start_paused = true)]
async fn a_container_whose_mark_is_answered_with_not_found_is_killed_all_the_same() {
    for reason in REASONS {
        let (bed, run) = running(obedient()).await;
        let words = "sandbox 2b302ab1 not found";
        bed.engine.make_trouble(Call::Mark, Trouble::Fails(EngineErrorKind::NoSuchContainer, words));
        bed.stop(reason, GRACE);
        assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped, "{reason:?}");
        assert_eq!((bed.engine.count(Call::Stop), bed.engine.count(Call::Kill)), (0, 1), "{reason:?}");
        assert!(bed.engine.containers().is_empty(), "{reason:?}");
    }
}

/// Nor is it believed of a kill, or of the wait.
#[tokio::test(start_paused = true)]
async fn a_not_found_is_believed_only_where_a_look_finds_nothing() {
    let bogus = Trouble::Fails(EngineErrorKind::NoSuchContainer, "sandbox 2b302ab1 not found");
    let (bed, run) = running(stubborn().trouble(Call::Wait, bogus)).await;
    sleep(Duration::from_secs(5)).await;
    assert!(!run.is_finished(), "it runs");
    bed.engine.make_trouble(Call::Mark, bogus);
    bed.engine.make_trouble(Call::Kill, bogus);
    bed.stop(StopReason::Canceled, GRACE);
    assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped);
    assert_eq!(bed.engine.count(Call::Kill), 2);
    assert!(bed.engine.containers().is_empty());
    // One that is gone is.
    let (bed, run) = running(stubborn()).await;
    bed.engine.remove_all();
    assert_failed(&run.await.expect("no panic"), FailureKind::System, "container_gone");
}

/// Somebody may have adopted it: he is to see that it was stopped.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_leaves_a_stopped_container_to_its_adopter() {
    for reason in REASONS {
        let bed = Bed::with(obedient(), |spec| spec.on_orphan = OnOrphan::Adopt).await;
        let run = bed.start();
        eventually("it runs", || bed.engine.is_running()).await;
        bed.stop(reason, GRACE);
        assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped, "{reason:?}");
        assert!(!bed.engine.is_running(), "{reason:?}");
        let left = if reason == StopReason::LeaseLost { vec![format!("{NAME}.stopped")] } else { vec![] };
        assert_eq!(bed.engine.containers(), left, "{reason:?}");
    }
}

/// A mark that is not confirmed: killed, since an exit after a plain stop would pass for the program's own.
#[tokio::test(start_paused = true)]
async fn an_unmarked_container_is_killed_and_not_asked() {
    for trouble in [Trouble::RequestLost, Trouble::Silent, Trouble::Fails(EngineErrorKind::Engine, "no")] {
        let (bed, run) = running(obedient()).await;
        bed.engine.make_trouble(Call::Mark, trouble);
        bed.stop(StopReason::Canceled, GRACE);
        assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped, "{trouble:?}");
        assert_eq!(bed.engine.count(Call::Stop), 0, "{trouble:?}");
        assert_eq!(bed.engine.count(Call::Kill), 1, "{trouble:?}");
        assert!(bed.engine.containers().is_empty(), "{trouble:?}");
    }
}

/// Lost answers on the way of a stop.
#[tokio::test(start_paused = true)]
async fn a_stop_survives_lost_answers() {
    for call in [Call::Stop, Call::Kill, Call::Inspect, Call::Remove] {
        for trouble in [Trouble::AnswerLost, Trouble::RequestLost, Trouble::Slow(Duration::from_secs(1))] {
            let (bed, run) = running(stubborn()).await;
            bed.engine.make_trouble(call, trouble);
            if call == Call::Kill {
                bed.engine.make_trouble(Call::Mark, Trouble::RequestLost);
            }
            let before = Instant::now();
            bed.stop(StopReason::Canceled, GRACE);
            let what = format!("{call:?} {trouble:?}");
            assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped, "{what}");
            assert!(before.elapsed() <= GRACE + Duration::from_secs(1), "{what}: {:?}", before.elapsed());
            eventually("it is removed", || bed.engine.containers().is_empty()).await;
            assert!(bed.is_over(), "{what}");
        }
    }
}

/// SH-03: an exit that comes before anything was asked of it is the program's own, and is reported.
#[tokio::test(start_paused = true)]
async fn an_exit_before_the_stop_is_reported_as_it_was() {
    // The wait is mute, so the stop comes before the exit is seen.
    let mute =
        |code| engine(Script::exits_after(Duration::from_secs(1), code)).trouble(Call::Wait, Trouble::Silent);
    for reason in [StopReason::Draining, StopReason::Canceled] {
        for code in [0, 1] {
            let (bed, run) = running(mute(code)).await;
            eventually("it has ended", || !bed.engine.is_running()).await;
            bed.stop(reason, GRACE);
            let outcome = run.await.expect("no panic");
            if code == 0 {
                assert_eq!(outcome, completed());
            } else {
                assert_failed(&outcome, FailureKind::User, "1");
            }
            assert_eq!(bed.engine.count(Call::Stop), 0);
            assert!(bed.engine.containers().is_empty());
        }
    }
}

/// What had ended by itself under a lost lease is the only record of its work: recovery looks at it.
#[tokio::test(start_paused = true)]
async fn an_own_exit_under_a_lost_lease_is_left_for_recovery() {
    let engine = engine(Script::exits_after(Duration::from_secs(1), 0)).trouble(Call::Wait, Trouble::Silent);
    let (bed, run) = running(engine).await;
    eventually("it has ended", || !bed.engine.is_running()).await;
    bed.lose_the_lease();
    assert_eq!(run.await.expect("no panic"), completed());
    assert_eq!(bed.engine.containers().len(), 1);
    assert_eq!(bed.engine.count(Call::Remove), 0);
    assert!(bed.is_over(), "it does not run, so the fence has nothing to do");
}

/// DK-13: a paused container can be stopped, and the log says what was seen.
#[tokio::test(start_paused = true)]
async fn a_paused_container_is_stopped_and_that_is_said() {
    let (bed, run) = running(engine(Script::hangs().paused())).await;
    bed.stop(StopReason::Canceled, GRACE);
    assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped);
    assert!(bed.text(LogStream::System).contains("paused"));
    assert!(bed.engine.containers().is_empty());
}

/// An engine that is away during the stop: the run ends in time, and the fence keeps what may still run.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_stopped_stays_with_the_fence() {
    let (bed, run) = running(stubborn()).await;
    bed.engine.go_down();
    let before = Instant::now();
    bed.stop(StopReason::Canceled, GRACE);
    assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped);
    assert!(before.elapsed() <= GRACE + Duration::from_secs(2), "{:?}", before.elapsed());
    assert!(!bed.is_over(), "the container may still run, so the permit must not become free");
    bed.engine.come_back();
    eventually("it is removed", || bed.engine.containers().is_empty()).await;
}

/// An engine that comes back in time is stopped as if nothing had been.
#[tokio::test(start_paused = true)]
async fn a_stop_goes_on_when_the_engine_comes_back() {
    let (bed, run) = running(stubborn()).await;
    bed.engine.go_down();
    bed.stop(StopReason::Canceled, GRACE);
    sleep(Duration::from_secs(5)).await;
    bed.engine.come_back();
    assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped);
    assert!(bed.is_over());
    eventually("it is removed", || bed.engine.containers().is_empty()).await;
}

/// The switch that the fence holds: what it must do depends on how far the container has come.
#[tokio::test(start_paused = true)]
async fn the_kill_switch_does_what_the_stage_needs() {
    let bed = Bed::new(stubborn()).await;
    let node = bed.node();
    let plan = plan::plan(node.settings.fleet, &node.placement.node, &bed.grant).expect("a container");
    let switch = KillSwitch::new(&node, &plan);
    bed.engine.go_down();
    assert_eq!(switch.kill().await, Ok(()), "nothing can run before a start was asked for");
    bed.engine.come_back();

    let id = node.engine.create(&plan).await.expect("created");
    switch.starting(&id);
    assert_eq!(switch.kill().await, Ok(()));
    assert!(bed.engine.containers().is_empty(), "removed, so that a late start finds nothing");

    let id = node.engine.create(&plan).await.expect("created");
    node.engine.start(&id).await.expect("started");
    switch.started(&id);
    bed.engine.go_down();
    assert!(switch.kill().await.is_err(), "nobody can tell whether it runs");
    bed.engine.come_back();
    assert_eq!(switch.kill().await, Ok(()));
    assert!(!bed.engine.is_running());
    let marked = vec![format!("{}.stopped", plan.name)];
    assert_eq!(bed.engine.containers(), marked, "its exit can still be looked at, and is not its own");
    assert_eq!(switch.kill().await, Ok(()), "a repeat is right");
}

#[tokio::test(start_paused = true)]
async fn the_kill_switch_touches_no_other_engine() {
    let bed = Bed::new(ScriptedEngine::new("SOMEBODY-ELSE").image(IMAGE, Script::hangs())).await;
    let node = bed.node();
    let plan = plan::plan(node.settings.fleet, &node.placement.node, &bed.grant).expect("a container");
    let switch = KillSwitch::new(&node, &plan);
    let id = node.engine.create(&plan).await.expect("created");
    node.engine.start(&id).await.expect("started");
    switch.started(&id);
    assert!(switch.kill().await.is_err());
    assert!(bed.engine.is_running());
}
