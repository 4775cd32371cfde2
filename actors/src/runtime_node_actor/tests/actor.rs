//! The actor itself: runs are tasks of their own, and one that panics harms only its job.

use std::{sync::Arc, time::Duration};

use actix::{Actor, System};

use super::bed::{Bed, ENGINE, IMAGE, assert_failed, completed};
use crate::{
    domain::FailureKind,
    nodes::Nodes,
    runtime_node_actor::{RunContainer, RuntimeNodeActor, starter},
    testing::{Call, Script, ScriptedEngine, Trouble},
};

/// An actix system on paused time.
fn paused<F: Future>(test: F) -> F::Output {
    let system = System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O")
    });
    system.block_on(test)
}

fn open(bed: &Bed) -> RuntimeNodeActor {
    RuntimeNodeActor::open(&bed.placement(), Arc::new(bed.engine.clone()), bed.settings())
        .expect("a scripted engine can always be reached")
}

#[test]
fn a_run_is_answered_with_its_outcome() {
    paused(async {
        let engine = ScriptedEngine::new(ENGINE).image(IMAGE, Script::exits_after(Duration::from_mins(5), 3));
        let bed = Bed::new(engine).await;
        let nodes = Nodes::new(starter(Arc::new(bed.engine.clone()), bed.settings()));
        let actor = nodes.actor_of(&bed.placement()).expect("the node's actor starts").run;
        let outcome = actor.send(RunContainer { lease: bed.lease.clone() }).await.expect("it answers");
        assert_failed(&outcome, FailureKind::User, "3");
        assert!(bed.is_over(), "nothing is held any more");
    });
}

/// SH-12: a panic inside one run is that job's SYSTEM failure; the actor lives, and so do the others.
#[test]
fn a_panic_harms_only_its_own_job() {
    paused(async {
        let engine = ScriptedEngine::new(ENGINE).image(IMAGE, Script::exits_after(Duration::from_secs(9), 0));
        let (first, second) = (Bed::new(engine.clone()).await, Bed::new(engine.clone()).await);
        let actor = open(&first).start();
        let healthy = actor.send(RunContainer { lease: first.lease.clone() });
        let healthy = actix_rt::spawn(healthy);
        tokio::time::sleep(Duration::from_secs(1)).await;
        engine.make_trouble(Call::Info, Trouble::Panics);
        let broken = actor.send(RunContainer { lease: second.lease.clone() }).await.expect("it answers");
        assert_failed(&broken, FailureKind::System, "panic");
        assert!(second.is_over(), "its hold is gone, and it had no container");
        assert_eq!(healthy.await.expect("the task ends").expect("it answers"), completed());
        assert!(actor.connected());
    });
}

/// A run whose asker is gone is told by the fence that its lease is lost; it must not end silently before.
#[test]
fn a_run_outlives_its_asker_only_until_its_lease_is_lost() {
    paused(async {
        let engine = ScriptedEngine::new(ENGINE).image(IMAGE, Script::hangs());
        let bed = Bed::new(engine).await;
        let actor = open(&bed).start();
        let asked = actix_rt::spawn(actor.send(RunContainer { lease: bed.lease.clone() }));
        tokio::time::sleep(Duration::from_secs(1)).await;
        asked.abort();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(bed.engine.is_running(), "the asker does not end the work, the lease does");
        bed.lose_the_lease();
        super::bed::eventually("it is stopped", || !bed.engine.is_running()).await;
        super::bed::eventually("the run has ended", || bed.is_over()).await;
    });
}
