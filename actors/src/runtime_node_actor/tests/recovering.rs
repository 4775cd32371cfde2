//! Every row of the recovery's table, and what goes wrong on the way.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::bed::{Bed, ENGINE, IMAGE, LEASE, NAME, assert_failed, completed, eventually, keep};
use crate::{
    clock::Anchor,
    domain::{CommandId, ContainerSpec, FailureKind, OnOrphan, ProcessId, WorkerId},
    error::EngineErrorKind,
    fence::{Terms, Watch},
    ports::{Claimant, ContainerState, LeaseStore, LogStream, RecoverRequest, RuntimeStanding, Takeover},
    runtime_node_actor::{Adoption, RecoverContainer, Recovered, recover},
    testing::{Call, Fate, FlakyStore, OnStop, Operation, Script, ScriptedEngine, StoreHarness, Trouble},
    work::{LeaseContext, StopReason, WorkOutcome},
};

const SECOND: Duration = Duration::from_secs(1);

fn engine(script: Script) -> ScriptedEngine {
    ScriptedEngine::new(ENGINE).image(IMAGE, script)
}

fn obedient() -> Script {
    Script::hangs().on_stop(OnStop::Ends { after: SECOND, code: 0, says: Some("bye\n") })
}

/// A job whose worker died when something was so of its container.
async fn lost_when(bed: &Bed, what: &str, so: impl FnMut() -> bool) {
    let run = bed.start();
    eventually(what, so).await;
    run.abort();
    assert!(run.await.is_err(), "the worker is dead");
    bed.stop_renewing();
}

async fn lost_while_running(engine: ScriptedEngine) -> Bed {
    let bed = Bed::new(engine).await;
    let runs = bed.engine.clone();
    lost_when(&bed, "it runs", || runs.is_running()).await;
    bed
}

async fn adoptable(engine: ScriptedEngine) -> Bed {
    let bed = Bed::with(engine, |spec| spec.on_orphan = OnOrphan::Adopt).await;
    let runs = bed.engine.clone();
    lost_when(&bed, "it runs", || runs.is_running()).await;
    bed
}

/// A takeover of the bed's job, and the lease of whoever took it over.
pub(super) struct Taken {
    pub(super) takeover: Arc<Takeover>,
    watch: Arc<Watch>,
    flaky: FlakyStore,
    pub(super) lease: LeaseContext,
}

impl Taken {
    pub(super) async fn of(bed: &Bed) -> Self {
        Self::with(bed, |_| {}).await
    }

    async fn with(bed: &Bed, change: impl FnOnce(&mut Takeover)) -> Self {
        bed.store.expire(bed.job()).await;
        let asked = Anchor::now();
        let request = RecoverRequest {
            owner: Claimant {
                namespace: bed.grant.authority.owner.namespace.clone(),
                worker: WorkerId::new("w-2").expect("a plain name"),
                process: ProcessId::generate(),
            },
            command: CommandId::generate(),
            repeat: false,
            limit: 1,
            lease: LEASE,
            running_here: Arc::default(),
        };
        let mut takeover =
            bed.store.recover(&request).await.expect("the memory store answers").takeovers.remove(0);
        change(&mut takeover);
        let grant = Arc::new(takeover.grant.clone());
        let watch = Arc::new(Watch::unfenced(Terms {
            job: grant.authority.job,
            epoch: grant.authority.epoch,
            deadline: asked.after(LEASE - Duration::from_secs(3)),
            lease: LEASE,
            stop_grace: Duration::from_secs(5),
        }));
        let flaky = FlakyStore::scripted(bed.store.port());
        let lease = LeaseContext::new(Arc::clone(&grant), Arc::new(flaky.clone()), &watch);
        drop(keep(&bed.store, &grant, &watch, &Arc::default()));
        Self { takeover: Arc::new(takeover), watch, flaky, lease }
    }

    async fn unavailable(bed: &Bed) -> Self {
        Self::with(bed, |takeover| takeover.runtime = RuntimeStanding::Unavailable).await
    }

    fn start(&self, bed: &Bed, last_time: bool) -> (JoinHandle<Recovered>, oneshot::Receiver<Adoption>) {
        let (adopts, adopted) = oneshot::channel();
        let (lease, takeover) = (self.lease.clone(), Arc::clone(&self.takeover));
        let message = RecoverContainer { lease, takeover, task: None, last_time, adopts };
        (tokio::spawn(recover::recover(bed.node(), message)), adopted)
    }

    async fn recovered(&self, bed: &Bed) -> Recovered {
        let (work, _adopted) = self.start(bed, false);
        work.await.expect("it does not panic")
    }
}

/// Lets the container be followed on; answers how much longer it may run.
async fn granted(adopted: oneshot::Receiver<Adoption>) -> Option<Duration> {
    let Adoption { timeout, has_room } = adopted.await.expect("it asks");
    has_room.send(true).expect("it waits for the answer");
    timeout
}

async fn recovered(bed: &Bed) -> Recovered {
    Taken::of(bed).await.recovered(bed).await
}

fn assert_lost(recovered: &Recovered, words: &str) {
    let Recovered::Lost { message, .. } = recovered else { panic!("{recovered:?} is no loss") };
    assert!(message.contains(words), "{message}");
}

fn assert_put_off(recovered: &Recovered, words: &str) {
    let Recovered::NotNow { reason } = recovered else { panic!("{recovered:?} is not put off") };
    assert!(reason.contains(words), "{reason}");
}

/// What is done to a container, and not only asked of it.
fn touched(engine: &ScriptedEngine) -> usize {
    [Call::Mark, Call::Stop, Call::Kill, Call::Remove, Call::Create, Call::Start]
        .into_iter()
        .map(|call| engine.count(call))
        .sum()
}

// ---------------------------------------------------------------------------------------------------
// The rows
// ---------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_container_that_is_gone_is_a_loss() {
    let bed = lost_while_running(engine(Script::hangs())).await;
    bed.engine.remove_all();
    assert_lost(&recovered(&bed).await, "gone");
}

/// Nothing has run, so nothing is counted.
#[tokio::test(start_paused = true)]
async fn a_container_that_was_never_started_is_removed_and_its_job_given_back() {
    let bed = Bed::new(engine(Script::hangs()).trouble(Call::Start, Trouble::Silent)).await;
    let calls = bed.engine.clone();
    lost_when(&bed, "the start is on its way", || calls.count(Call::Start) == 1).await;
    assert!(matches!(recovered(&bed).await, Recovered::NotStarted));
    assert!(bed.engine.containers().is_empty());
}

/// RC-13: killed between create and attach. It is found by its labels, on the stored node only.
#[tokio::test(start_paused = true)]
async fn what_was_not_attached_is_found_by_its_labels_and_nothing_else_is() {
    let bed = Bed::new(engine(Script::hangs())).await;
    let foreign = "somebody-elses";
    bed.engine.place_foreign(foreign);
    bed.flaky.script(Operation::Attach, [Fate::Refused; 50]);
    let calls = bed.flaky.clone();
    lost_when(&bed, "it is being attached", || calls.calls(Operation::Attach) >= 1).await;
    assert_eq!(bed.engine.containers().len(), 2);
    let taken = Taken::of(&bed).await;
    assert_eq!(taken.takeover.container, None);
    assert_lost(&taken.recovered(&bed).await, "no container yet");
    assert_eq!(bed.engine.containers(), [foreign]);
}

#[tokio::test(start_paused = true)]
async fn with_no_container_at_all_it_is_a_loss() {
    let bed = Bed::new(engine(Script::hangs()).trouble(Call::Create, Trouble::Silent)).await;
    let calls = bed.engine.clone();
    lost_when(&bed, "the create is on its way", || calls.count(Call::Create) == 1).await;
    bed.engine.remove_all();
    assert_lost(&recovered(&bed).await, "no container yet");
}

/// Marked before it is asked to stop; its last words are stored, behind what was stored before and
/// with no byte missing or twice; then it is removed.
#[tokio::test(start_paused = true)]
async fn a_running_container_is_marked_stopped_and_removed_and_its_output_is_whole() {
    let script = obedient()
        .prints(SECOND, LogStream::Stdout, "one\n")
        .prints(SECOND, LogStream::Stderr, "err\n")
        .prints(SECOND, LogStream::Stdout, "two\n")
        .prints(10 * SECOND, LogStream::Stdout, "after the death\n");
    for paused in [false, true] {
        let script = if paused { script.clone().paused() } else { script.clone() };
        let bed = Bed::new(engine(script)).await;
        let seen = bed.store.clone();
        let job = bed.job();
        lost_when(&bed, "two pieces are stored", || seen.stored_logs(job).len() >= 2).await;
        sleep(20 * SECOND).await;
        assert_lost(&recovered(&bed).await, "let its lease expire");
        let calls = bed.engine.calls();
        let at = |name: &str| calls.iter().position(|call| call.starts_with(name));
        assert!(at("mark") < at("stop") && at("stop") < at("remove"), "{calls:?}");
        assert!(at("mark").is_some() && bed.engine.count(Call::Kill) == 0, "{calls:?}");
        assert!(bed.engine.containers().is_empty());
        assert_eq!(bed.text(LogStream::Stdout), "one\ntwo\nafter the death\nbye\n");
        assert_eq!(bed.text(LogStream::Stderr), "err\n");
        let claim = bed.grant.authority.epoch;
        assert!(
            bed.store.stored_logs(job).iter().all(|log| log.epoch == claim),
            "output belongs to the claim"
        );
    }
}

/// RC-11
#[tokio::test(start_paused = true)]
async fn a_container_that_does_not_obey_is_killed_after_its_grace() {
    let bed = lost_while_running(engine(Script::hangs())).await;
    let taken = Taken::of(&bed).await;
    let before = Instant::now();
    assert_lost(&taken.recovered(&bed).await, "let its lease expire");
    let grace = Duration::from_millis(ContainerSpec::DEFAULT_STOP_GRACE_MS.unsigned_abs());
    assert!(before.elapsed() >= grace && before.elapsed() < grace + 2 * SECOND, "{:?}", before.elapsed());
    assert!(bed.engine.containers().is_empty());
}

/// A stop without the mark would be taken for the program's own end.
#[tokio::test(start_paused = true)]
async fn a_container_that_cannot_be_marked_is_killed() {
    // What a container lacks is "not found" too.
    let lacks = Trouble::Fails(EngineErrorKind::NoSuchContainer, "sandbox 2b302ab1 not found");
    for trouble in [Trouble::Fails(EngineErrorKind::Engine, "no"), lacks, Trouble::Silent] {
        let bed = lost_while_running(engine(obedient()).trouble(Call::Mark, trouble)).await;
        assert_lost(&recovered(&bed).await, "let its lease expire");
        assert_eq!((bed.engine.count(Call::Stop), bed.engine.count(Call::Kill)), (0, 1), "{trouble:?}");
        assert!(bed.engine.containers().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_ends_in_the_moment_of_the_mark_is_taken_for_what_it_is() {
    let script = Script::exits_after(30 * SECOND, 0);
    let slow = Trouble::Slow(1500 * Duration::from_millis(1));
    let bed = lost_while_running(engine(script).trouble(Call::Mark, slow)).await;
    let began = Instant::now();
    eventually("it is about to end", || began.elapsed() >= 28 * SECOND + Duration::from_millis(900)).await;
    let found = recovered(&bed).await;
    let Recovered::Ended { outcome, .. } = found else { panic!("{found:?}") };
    assert_eq!(outcome, completed());
}

/// An outcome that is known is not thrown away, and the container, its only record, stays until it is
/// reported.
#[tokio::test(start_paused = true)]
async fn an_exit_of_its_own_is_reported_and_only_then_is_the_container_removed() {
    for code in [0, 3] {
        let bed = lost_while_running(engine(Script::hangs().prints(SECOND, LogStream::Stdout, "out"))).await;
        sleep(3 * SECOND).await;
        bed.engine.end_all(code);
        let Recovered::Ended { outcome, afterwards } = recovered(&bed).await else {
            panic!("no end of its own")
        };
        match code {
            0 => assert_eq!(outcome, completed()),
            _ => assert_failed(&outcome, FailureKind::User, "3"),
        }
        assert_eq!(bed.text(LogStream::Stdout), "out");
        sleep(10 * SECOND).await;
        assert_eq!(bed.engine.containers(), [NAME], "nothing is reported yet");
        afterwards.go();
        eventually("it is removed", || bed.engine.containers().is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_not_reported_leaves_the_container_to_the_next_recovery() {
    let bed = lost_while_running(engine(Script::hangs())).await;
    bed.engine.end_all(0);
    for _ in 0..2 {
        let found = recovered(&bed).await;
        assert!(matches!(found, Recovered::Ended { .. }), "{found:?}");
        drop(found);
        sleep(10 * SECOND).await;
    }
    assert_eq!(bed.engine.containers(), [NAME]);
}

/// DK-09: whose exit it is decides the same table as in any run.
#[tokio::test(start_paused = true)]
async fn an_exit_that_is_not_its_own_is_a_loss() {
    // Killed by somebody.
    let bed = lost_while_running(engine(Script::hangs())).await;
    bed.engine.kill_all();
    assert_lost(&recovered(&bed).await, "SIGKILL");
    // Stopped by one of us who did not come to tell.
    let bed = lost_while_running(engine(obedient())).await;
    let id = bed.store.view(&bed.grant.authority.owner.namespace, bed.job()).and_then(|view| view.container);
    let node = bed.node();
    node.engine.mark_stopped(&id.expect("attached"), NAME).await.expect("the engine answers");
    bed.engine.end_all(0);
    let found = recovered(&bed).await;
    assert_lost(&found, "stopped the container from elsewhere");
    let Recovered::Lost { afterwards: Some(afterwards), .. } = found else { panic!("to be removed") };
    afterwards.go();
    eventually("it is removed", || bed.engine.containers().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_lack_of_memory_is_the_job_s_own_fault() {
    let bed = lost_while_running(engine(Script::runs_out_of_memory(137))).await;
    eventually("it ends", || !bed.engine.is_running()).await;
    let found = recovered(&bed).await;
    let Recovered::Ended { outcome, .. } = found else { panic!("{found:?}") };
    assert_failed(&outcome, FailureKind::User, "oom");
}

#[tokio::test(start_paused = true)]
async fn a_dead_container_is_removed_by_force() {
    let bed = lost_while_running(engine(Script::hangs())).await;
    bed.engine.set_all(&ContainerState::Dead);
    assert_lost(&recovered(&bed).await, "dead");
    assert!(bed.engine.containers().is_empty());
}

// ---------------------------------------------------------------------------------------------------
// Engines in trouble
// ---------------------------------------------------------------------------------------------------

/// An engine that refuses, at whatever call: the recovery is put off, and the next one finds its way.
#[tokio::test(start_paused = true)]
async fn an_engine_in_trouble_puts_the_recovery_off_and_the_next_one_succeeds() {
    let refuses = Trouble::Fails(EngineErrorKind::Engine, "the storage driver says no");
    for call in [Call::Info, Call::Inspect, Call::Remove] {
        for trouble in [refuses, Trouble::Silent] {
            let bed = lost_while_running(engine(obedient())).await;
            bed.engine.make_trouble(call, trouble);
            let taken = Taken::of(&bed).await;
            let work = timeout(60 * SECOND, taken.recovered(&bed));
            let found = work.await.expect("a silent engine is not waited for");
            assert!(matches!(found, Recovered::NotNow { .. }), "{call:?} {trouble:?}: {found:?}");
            if call != Call::Remove {
                assert_eq!(bed.engine.count(Call::Mark), 0, "{call:?}: nothing is touched");
            }
            assert_lost(
                &recovered(&bed).await,
                if call == Call::Remove { "stopped" } else { "its lease expire" },
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_away_puts_the_recovery_off() {
    let bed = lost_while_running(engine(obedient())).await;
    bed.engine.go_down();
    assert_put_off(&recovered(&bed).await, "refused");
    bed.engine.come_back();
    assert_lost(&recovered(&bed).await, "let its lease expire");
}

/// Requests and answers that get lost at any call lead to the same end.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_at_any_call_leads_to_the_same_end() {
    for call in [Call::Info, Call::Inspect, Call::Mark, Call::Stop, Call::Wait, Call::Logs, Call::Remove] {
        for trouble in [Trouble::AnswerLost, Trouble::RequestLost] {
            let what = format!("{trouble:?} at {call:?}");
            let script = obedient().prints(SECOND, LogStream::Stdout, "out\n");
            let bed = lost_while_running(engine(script)).await;
            sleep(3 * SECOND).await;
            bed.engine.make_trouble(call, trouble);
            let found = recovered(&bed).await;
            assert!(matches!(found, Recovered::Lost { .. }), "{what}: {found:?}");
            assert!(bed.engine.containers().is_empty(), "{what}");
            // Where the stop itself got lost, it is killed and has no last words.
            assert!(bed.text(LogStream::Stdout).starts_with("out\n"), "{what}");
        }
    }
}

/// L7: nothing is touched on another engine under the same endpoint, not even in the last attempt.
#[tokio::test(start_paused = true)]
async fn another_engine_under_the_endpoint_is_left_alone() {
    let bed = lost_while_running(engine(obedient())).await;
    let before = touched(&bed.engine);
    bed.engine.become_another("ANOTHER");
    assert_put_off(&recovered(&bed).await, "ANOTHER");
    assert_lost(&Taken::unavailable(&bed).await.recovered(&bed).await, "ANOTHER");
    assert_eq!(touched(&bed.engine), before);
    assert!(bed.engine.is_running());
}

#[tokio::test(start_paused = true)]
async fn on_an_unavailable_runtime_one_attempt_is_made_and_the_job_is_not_held_up() {
    // It answers after all.
    let bed = lost_while_running(engine(Script::hangs())).await;
    assert_lost(&Taken::unavailable(&bed).await.recovered(&bed).await, "is removed");
    assert!(bed.engine.containers().is_empty());
    // It does not.
    for silent in [false, true] {
        let bed = lost_while_running(engine(Script::hangs())).await;
        if silent {
            (0..50).for_each(|_| bed.engine.make_trouble(Call::Info, Trouble::Silent));
        } else {
            bed.engine.go_down();
        }
        let taken = Taken::unavailable(&bed).await;
        let before = Instant::now();
        assert_lost(&taken.recovered(&bed).await, "is unavailable");
        assert!(before.elapsed() <= 11 * SECOND, "{:?}", before.elapsed());
    }
}

/// What has been put off for too long is still cleaned up if the engine lets us, and given up if not.
#[tokio::test(start_paused = true)]
async fn the_last_time_is_tried_by_the_table_first_and_put_off_no_more() {
    let bed = lost_while_running(engine(obedient())).await;
    let (work, _adopted) = Taken::of(&bed).await.start(&bed, true);
    assert_lost(&work.await.expect("it does not panic"), "let its lease expire");
    let refuses = Trouble::Fails(EngineErrorKind::Engine, "the storage driver says no");
    let bed = lost_while_running(engine(Script::hangs()).trouble(Call::Remove, refuses)).await;
    bed.engine.make_trouble(Call::Inspect, refuses);
    let (work, _adopted) = Taken::of(&bed).await.start(&bed, true);
    assert_lost(&work.await.expect("it does not panic"), "the storage driver says no");
    assert!(!bed.engine.is_running(), "it was killed all the same");
}

// ---------------------------------------------------------------------------------------------------
// The lease
// ---------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_recovery_that_loses_its_own_lease_touches_nothing_more() {
    for call in [Call::Info, Call::Inspect, Call::Mark, Call::Stop, Call::Logs, Call::Remove] {
        let bed = lost_while_running(engine(obedient())).await;
        let before = bed.engine.count(call);
        bed.engine.make_trouble(call, Trouble::Slow(5 * SECOND));
        let taken = Taken::of(&bed).await;
        let (work, _) = taken.start(&bed, false);
        eventually("the call is on its way", || bed.engine.count(call) > before).await;
        taken.watch.stop(StopReason::LeaseLost, None);
        let calls = touched(&bed.engine);
        let found = work.await.expect("it does not panic");
        assert!(matches!(found, Recovered::Stopped), "{call:?}: {found:?}");
        sleep(20 * SECOND).await;
        assert_eq!(touched(&bed.engine), calls, "{call:?}");
        // Whoever takes the job over next comes to an end.
        let found = recovered(&bed).await;
        assert!(matches!(found, Recovered::Lost { .. }), "{call:?}: {found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_stored_is_asked_until_it_is_answered() {
    for fates in [vec![Fate::AnswerLost; 3], vec![Fate::Silent], vec![Fate::Refused; 5]] {
        let script = obedient().prints(SECOND, LogStream::Stdout, "out\n");
        let bed = lost_while_running(engine(script)).await;
        sleep(3 * SECOND).await;
        let taken = Taken::of(&bed).await;
        taken.flaky.script(Operation::LogOffsets, fates.clone());
        assert_lost(&taken.recovered(&bed).await, "let its lease expire");
        assert_eq!(bed.text(LogStream::Stdout), "out\nbye\n", "{fates:?}");
    }
}

// ---------------------------------------------------------------------------------------------------
// Adoption
// ---------------------------------------------------------------------------------------------------

/// The run goes on: one container, one claim, output without a gap, and its own exit decides.
#[tokio::test(start_paused = true)]
async fn an_adopted_container_runs_on_to_its_own_end() {
    for code in [0, 3] {
        let script = (0..60).fold(Script::exits_after(SECOND, code), |script, n| {
            script.prints(SECOND, LogStream::Stdout, format!("{n}\n"))
        });
        let bed = Bed::with(engine(script), |spec| spec.on_orphan = OnOrphan::Adopt).await;
        let (seen, job) = (bed.store.clone(), bed.job());
        lost_when(&bed, "some is stored", || seen.stored_logs(job).len() >= 5).await;
        sleep(10 * SECOND).await;
        let taken = Taken::of(&bed).await;
        let (work, adopted) = taken.start(&bed, false);
        assert_eq!(granted(adopted).await, None);
        let found = work.await.expect("it does not panic");
        let Recovered::Run(outcome) = found else { panic!("{found:?}") };
        match code {
            0 => assert_eq!(outcome, completed()),
            _ => assert_failed(&outcome, FailureKind::User, "3"),
        }
        let all: String = (0..60).map(|n| format!("{n}\n")).collect();
        assert_eq!(bed.text(LogStream::Stdout), all);
        assert_eq!((bed.engine.plans().len(), bed.engine.count(Call::Mark)), (1, 0));
        assert!(bed.engine.containers().is_empty());
        assert!(taken.watch.entry().is_over());
    }
}

/// A stop of any kind works as in any run.
#[tokio::test(start_paused = true)]
async fn an_adopted_container_can_be_stopped() {
    for reason in [StopReason::Canceled, StopReason::TimedOut, StopReason::Draining, StopReason::LeaseLost] {
        let bed = adoptable(engine(obedient())).await;
        let taken = Taken::of(&bed).await;
        let (work, adopted) = taken.start(&bed, false);
        granted(adopted).await;
        sleep(5 * SECOND).await;
        taken.watch.stop(reason, Some(13 * SECOND));
        let found = work.await.expect("it does not panic");
        assert!(matches!(found, Recovered::Run(WorkOutcome::Stopped)), "{reason:?}: {found:?}");
        assert!(!bed.engine.is_running());
        assert_eq!(bed.engine.count(Call::Mark), 1);
    }
}

/// An adopter that dies too is replaced by the next one; nothing is lost or doubled.
#[tokio::test(start_paused = true)]
async fn an_adoption_can_be_adopted() {
    let script = (0..90)
        .fold(Script::exits(0), |script, n| script.prints(SECOND, LogStream::Stdout, format!("{n}\n")));
    let bed = adoptable(engine(script)).await;
    for _ in 0..3 {
        let taken = Taken::of(&bed).await;
        let (work, adopted) = taken.start(&bed, false);
        granted(adopted).await;
        sleep(20 * SECOND).await;
        work.abort();
    }
    let taken = Taken::of(&bed).await;
    let (work, adopted) = taken.start(&bed, false);
    granted(adopted).await;
    let found = work.await.expect("it does not panic");
    assert!(matches!(found, Recovered::Run(WorkOutcome::Completed { .. })), "{found:?}");
    let all: String = (0..90).map(|n| format!("{n}\n")).collect();
    assert_eq!(bed.text(LogStream::Stdout), all);
    assert_eq!(bed.engine.plans().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_well_or_not_wanted_any_more_is_not_adopted() {
    type Change = fn(&mut Takeover);
    let nothing: Change = |_| {};
    let changes: [(Change, bool); 4] = [
        (|takeover| takeover.cancel_requested = true, false),
        (|takeover| takeover.timeout_left = Some(Duration::ZERO), false),
        (nothing, true),
        (|takeover| takeover.timeout_left = Some(Duration::ZERO), true),
    ];
    for (change, paused) in changes {
        let script = if paused { obedient().paused() } else { obedient() };
        let bed = adoptable(engine(script)).await;
        let taken = Taken::with(&bed, change).await;
        assert_lost(&taken.recovered(&bed).await, "let its lease expire");
        assert!(bed.engine.containers().is_empty());
    }
}

/// It runs on, unwatched, until somebody has room for it; its end is noticed all the same.
#[tokio::test(start_paused = true)]
async fn without_room_for_a_run_an_adoptable_container_is_left_alone() {
    let bed = adoptable(engine(obedient())).await;
    let before = touched(&bed.engine);
    let taken = Taken::of(&bed).await;
    let (work, adopted) = taken.start(&bed, true);
    adopted.await.expect("it asks").has_room.send(false).expect("it waits for the answer");
    assert!(matches!(work.await.expect("it does not panic"), Recovered::NoRoom));
    assert!(bed.engine.is_running() && taken.watch.entry().stop_reason().is_none());
    assert_eq!(touched(&bed.engine), before);
    bed.engine.end_all(0);
    let found = recovered(&bed).await;
    assert!(matches!(found, Recovered::Ended { .. }), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn an_adopted_run_keeps_the_rest_of_its_timeout() {
    let bed = adoptable(engine(obedient())).await;
    let left = Some(7 * SECOND);
    let taken = Taken::with(&bed, |takeover| takeover.timeout_left = left).await;
    let (work, adopted) = taken.start(&bed, false);
    assert_eq!(granted(adopted).await, left);
    work.abort();
}
