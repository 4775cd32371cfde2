//! From the plan to the start: what goes wrong, and what it leads to.

use std::time::Duration;

use super::bed::{Bed, ENGINE, IMAGE, NAME, assert_failed, completed};
use crate::{
    domain::{ContainerId, FailureKind},
    error::EngineErrorKind,
    ports::{Attach, LeaseStore},
    testing::{Call, Fate, Operation, Script, ScriptedEngine, Trouble},
    work::WorkOutcome,
};

fn engine() -> ScriptedEngine {
    ScriptedEngine::new(ENGINE).image(IMAGE, Script::exits_after(Duration::from_secs(1), 0))
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_through_its_steps_in_order() {
    let bed = Bed::new(engine()).await;
    assert_eq!(bed.run().await, completed());
    let order: Vec<String> =
        bed.engine.calls().iter().map(|call| call.split(' ').next().unwrap_or_default().to_owned()).collect();
    let first: Vec<&str> = order.iter().map(String::as_str).take(4).collect();
    assert_eq!(first, ["info", "ensure_image", "create", "start"]);
    assert_eq!(order.last().map(String::as_str), Some("remove"));
    assert!(bed.engine.containers().is_empty());
    let plan = &bed.engine.plans()[0];
    assert_eq!(plan.name, NAME);
    assert!(plan.env.contains(&("LEASEHOLD_FENCING_EPOCH".to_owned(), "1".to_owned())));
    let view = bed.store.view(&bed.grant.authority.owner.namespace, bed.job()).expect("the job exists");
    assert_eq!(view.container.map(|id| id.to_string()), Some("c1".to_owned()), "attached before its start");
    assert!(bed.is_over());
}

/// Every call, with its request lost, its answer lost, or late: one container, started once, the right end.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_at_any_step_leads_to_the_right_end() {
    let calls =
        [Call::Info, Call::EnsureImage, Call::Create, Call::Start, Call::Logs, Call::Wait, Call::Remove];
    let troubles = [Trouble::AnswerLost, Trouble::RequestLost, Trouble::Slow(Duration::from_secs(20))];
    for call in calls {
        for trouble in troubles {
            for times in 1..=2 {
                let engine = (0..times).fold(engine(), |engine, _| engine.trouble(call, trouble));
                let bed = Bed::new(engine).await;
                let what = format!("{call:?} {trouble:?} {times}");
                assert_eq!(bed.run().await, completed(), "{what}");
                assert_eq!(bed.engine.plans().len(), 1, "{what}: one container");
                assert!(bed.engine.containers().is_empty(), "{what}: {:?}", bed.engine.containers());
                assert!(bed.is_over(), "{what}");
            }
        }
    }
}

/// A call that is never answered is given up in time and made again.
#[tokio::test(start_paused = true)]
async fn a_silent_engine_is_asked_again() {
    for call in [Call::Info, Call::Create, Call::Start, Call::Wait, Call::Remove] {
        let mut bed = Bed::new(engine().trouble(call, Trouble::Silent)).await;
        bed.limits.call = Duration::from_secs(10);
        assert_eq!(bed.run().await, completed(), "{call:?}");
        assert!(bed.engine.containers().is_empty(), "{call:?}");
    }
}

/// RC-03: the engine starts it and yet answers with an error.
#[tokio::test(start_paused = true)]
async fn a_start_that_fails_and_runs_is_a_start() {
    for kind in [EngineErrorKind::Engine, EngineErrorKind::BadRequest, EngineErrorKind::Unreachable] {
        let bed =
            Bed::new(engine().trouble(Call::Start, Trouble::DoneButFails(kind, "internal error"))).await;
        assert_eq!(bed.run().await, completed(), "{kind:?}");
        assert_eq!(bed.engine.count(Call::Start), 1, "{kind:?}: never started twice");
        assert!(bed.engine.containers().is_empty());
    }
}

/// RC-03: the same for one that has ended before anybody could look.
#[tokio::test(start_paused = true)]
async fn a_short_run_behind_a_lost_start_is_not_run_again() {
    let engine = ScriptedEngine::new(ENGINE).image(IMAGE, Script::exits(7));
    let bed = Bed::new(engine.trouble(Call::Start, Trouble::AnswerLost)).await;
    assert_failed(&bed.run().await, FailureKind::User, "7");
    assert_eq!(bed.engine.plans().len(), 1);
}

/// DK-07: a command that cannot be started is the job's own fault, and its container is removed.
#[tokio::test(start_paused = true)]
async fn a_command_that_cannot_be_run_fails_with_its_code() {
    for (code, text) in [(127, "127"), (126, "126")] {
        let bed = Bed::new(engine().trouble(Call::Start, Trouble::CannotRun(code, "exec failed"))).await;
        let outcome = bed.run().await;
        assert_failed(&outcome, FailureKind::User, text);
        let WorkOutcome::Failed(failure) = outcome else { panic!("it failed") };
        assert_eq!(failure.exit_code, Some(code));
        assert!(failure.message.contains("exec failed"), "{}", failure.message);
        assert!(bed.engine.containers().is_empty());
        assert!(bed.is_over());
    }
}

/// DK-05: a foreign container of our name is not touched, and the job is not to blame.
#[tokio::test(start_paused = true)]
async fn a_foreign_container_of_our_name_is_left_alone() {
    let bed = Bed::new(engine()).await;
    bed.engine.place_foreign(NAME);
    assert_failed(&bed.run().await, FailureKind::System, "name_conflict");
    assert_eq!(bed.engine.containers(), [NAME]);
    assert_eq!(bed.engine.count(Call::Remove), 0);
    assert!(bed.is_over());
}

/// DK-27: permanent and passing trouble with an image are told apart, and nothing is created.
#[tokio::test(start_paused = true)]
async fn trouble_with_the_image_says_whose_fault_it_is() {
    for (kind, expected, code) in [
        (EngineErrorKind::NoSuchImage, FailureKind::User, "image_not_found"),
        (EngineErrorKind::PullFailed, FailureKind::System, "pull_failed"),
        (EngineErrorKind::Engine, FailureKind::System, "engine_error"),
    ] {
        let bed =
            Bed::new(engine().trouble(Call::EnsureImage, Trouble::Fails(kind, "registry says no"))).await;
        let outcome = bed.run().await;
        assert_failed(&outcome, expected, code);
        let WorkOutcome::Failed(failure) = outcome else { panic!("it failed") };
        assert!(failure.message.contains("registry says no"), "{}", failure.message);
        assert!(bed.engine.plans().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_create_says_whose_fault_it_is() {
    for (kind, expected, code) in [
        (EngineErrorKind::NoSuchImage, FailureKind::User, "image_not_found"),
        (EngineErrorKind::BadRequest, FailureKind::User, "bad_request"),
        (EngineErrorKind::Engine, FailureKind::System, "engine_error"),
    ] {
        let bed = Bed::new(engine().trouble(Call::Create, Trouble::Fails(kind, "no"))).await;
        assert_failed(&bed.run().await, expected, code);
        assert!(bed.is_over());
    }
}

/// L7: another engine under the recorded endpoint is not touched.
#[tokio::test(start_paused = true)]
async fn another_engine_under_the_endpoint_is_not_touched() {
    let bed = Bed::new(ScriptedEngine::new("SOMEBODY-ELSE")).await;
    assert_failed(&bed.run().await, FailureKind::System, "engine_changed");
    assert_eq!(bed.engine.calls(), ["info"]);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_stays_away_is_given_up() {
    let bed = Bed::new(engine()).await;
    bed.engine.go_down();
    assert_failed(&bed.run().await, FailureKind::System, "engine_unreachable");
    assert!(bed.is_over());
}

/// An engine that is away for a moment costs no attempt.
#[tokio::test(start_paused = true)]
async fn an_engine_that_comes_back_is_used() {
    let bed = Bed::new(engine()).await;
    bed.engine.go_down();
    let run = bed.start();
    tokio::time::sleep(Duration::from_secs(20)).await;
    bed.engine.come_back();
    assert_eq!(run.await.expect("no panic"), completed());
}

/// RC-13: an attach that comes too late is refused, and the container never starts.
#[tokio::test(start_paused = true)]
async fn without_the_attach_nothing_starts() {
    let bed = Bed::new(engine().trouble(Call::Create, Trouble::Slow(Duration::from_secs(2)))).await;
    bed.stop_renewing();
    bed.store.expire_lease(bed.job());
    assert_eq!(bed.run().await, WorkOutcome::Stopped);
    assert_eq!(bed.engine.count(Call::Start), 0);
    assert_eq!(bed.engine.plans().len(), 1, "it was created before");
    assert!(bed.engine.containers().is_empty(), "and removed by its own worker");
    assert!(bed.is_over());
}

/// The attach is answered late, or not at all: asked again, attached once.
#[tokio::test(start_paused = true)]
async fn a_lost_attach_is_asked_again() {
    for fate in [Fate::AnswerLost, Fate::RequestLost, Fate::Refused, Fate::Silent] {
        let bed = Bed::new(engine()).await;
        bed.flaky.script(Operation::Attach, [fate]);
        assert_eq!(bed.run().await, completed(), "{fate:?}");
        assert_eq!(bed.flaky.calls(Operation::Attach), 2, "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflicting_container_is_never_started() {
    let bed = Bed::new(engine()).await;
    let other = ContainerId::new("other").expect("a plain name");
    let node = bed.placement().node;
    let attached = bed.store.attach(&bed.grant.authority, &node, &other).await;
    assert_eq!(attached.expect("the memory store answers"), Attach::Attached);
    assert_failed(&bed.run().await, FailureKind::System, "container_conflict");
    assert_eq!(bed.engine.count(Call::Start), 0);
    assert!(bed.engine.containers().is_empty());
}

/// The store does not answer any attach: nothing starts, and the container does not outlive the lease.
#[tokio::test(start_paused = true)]
async fn a_store_that_stays_away_starts_nothing() {
    let bed = Bed::new(engine()).await;
    bed.flaky.script(Operation::Attach, std::iter::repeat_n(Fate::RequestLost, 1000));
    let run = bed.start();
    tokio::time::sleep(Duration::from_secs(10)).await;
    bed.lose_the_lease();
    assert_eq!(run.await.expect("no panic"), WorkOutcome::Stopped);
    assert_eq!(bed.engine.count(Call::Start), 0);
    assert!(bed.engine.containers().is_empty());
}

/// Nothing is done under a lease that is over already.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_touches_no_engine() {
    let bed = Bed::new(engine()).await;
    bed.lose_the_lease();
    assert_eq!(bed.run().await, WorkOutcome::Stopped);
    assert!(bed.engine.calls().is_empty(), "{:?}", bed.engine.calls());
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_definition_is_the_job_s_fault() {
    let mut bed = Bed::new(engine()).await;
    let mut grant = (*bed.grant).clone();
    grant.definition = r#"{"imagine":"busybox"}"#.into();
    bed.lease = crate::work::LeaseContext::new(grant.into(), bed.store.port(), &bed.watch);
    assert_failed(&bed.run().await, FailureKind::User, "bad_definition");
    assert!(bed.engine.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_grant_of_another_node_is_refused() {
    let mut bed = Bed::new(engine()).await;
    let mut grant = (*bed.grant).clone();
    if let Some(placement) = &mut grant.placement {
        placement.incarnation += 1;
    }
    bed.lease = crate::work::LeaseContext::new(grant.into(), bed.store.port(), &bed.watch);
    assert_failed(&bed.run().await, FailureKind::System, "wrong_runtime_node");
    assert!(bed.engine.calls().is_empty());
}
