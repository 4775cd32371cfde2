use std::sync::mpsc;

use super::*;
use crate::fixtures::{eventually, paused, planned_panic};

struct Fragile {
    generation: u32,
}

impl Actor for Fragile {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "()")]
struct Panic;

impl Handler<Panic> for Fragile {
    type Result = ();

    fn handle(&mut self, _: Panic, _: &mut Context<Self>) {
        planned_panic("in a handler");
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Tell(mpsc::Sender<u32>);

impl Handler<Tell> for Fragile {
    type Result = ();

    fn handle(&mut self, message: Tell, _: &mut Context<Self>) {
        message.0.send(self.generation).expect("the test listens");
    }
}

fn slot(fatal: impl FnOnce(&'static str) + 'static) -> Slot<Fragile> {
    let mut generation = 0;
    let make = move || {
        generation += 1;
        Fragile { generation }
    };
    Slot::guard("fragile", make, fatal)
}

async fn generation_of(slot: &Slot<Fragile>) -> u32 {
    let (tell, told) = mpsc::channel();
    slot.hint(Tell(tell));
    tokio::time::sleep(Duration::from_millis(1)).await;
    told.try_recv().expect("it lives")
}

const SOON: Duration = Duration::from_secs(10);

/// SH-14
#[test]
fn an_actor_that_panics_is_replaced_by_a_new_value() {
    paused(async {
        let slot = slot(|_| panic!("one death is not fatal"));
        assert_eq!((slot.state(), generation_of(&slot).await), (SlotState::Alive, 1));
        slot.hint(Panic);
        eventually(SOON, "it is dead", || slot.state() == SlotState::Rebuilding).await;
        slot.hint(Panic); // lost: nobody is there
        eventually(SOON, "it lives again", || slot.state() == SlotState::Alive).await;
        assert_eq!((slot.deaths(), generation_of(&slot).await), (1, 2));
    });
}

/// SH-12, SH-14: not in a tight loop, and not for ever.
#[test]
fn an_actor_that_keeps_dying_is_given_up_after_growing_waits() {
    paused(async {
        let (tell, told) = mpsc::channel();
        let slot = slot(move |name| tell.send(name).expect("the test listens"));
        let began = Instant::now();
        while slot.state() != SlotState::GivenUp {
            slot.hint(Panic);
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(told.try_recv(), Ok("fragile"));
        assert_eq!(slot.deaths(), MOST_DEATHS);
        assert!(began.elapsed() > Duration::from_millis(1000), "{:?}", began.elapsed());
    });
}

#[test]
fn deaths_far_apart_are_never_fatal() {
    paused(async {
        let slot = slot(|_| panic!("not fatal"));
        for _ in 0..2 * MOST_DEATHS {
            tokio::time::sleep(LONG_ENOUGH).await;
            slot.hint(Panic);
            eventually(SOON, "it is dead", || slot.state() == SlotState::Rebuilding).await;
            eventually(SOON, "it lives again", || slot.state() == SlotState::Alive).await;
        }
    });
}

#[test]
fn a_factory_that_panics_counts_as_a_death() {
    paused(async {
        let (tell, told) = mpsc::channel();
        let mut first = true;
        let make = move || {
            if !std::mem::take(&mut first) {
                planned_panic("in the factory");
            }
            Fragile { generation: 1 }
        };
        let slot = Slot::guard("fragile", make, move |name| tell.send(name).expect("the test listens"));
        slot.hint(Panic);
        eventually(Duration::from_secs(60), "given up", || slot.state() == SlotState::GivenUp).await;
        assert_eq!(told.try_recv(), Ok("fragile"));
    });
}

#[test]
fn a_closed_slot_stays_closed() {
    paused(async {
        let slot = slot(|_| panic!("asked to stop"));
        slot.close();
        tokio::time::sleep(SOON).await;
        assert_eq!((slot.state(), slot.deaths()), (SlotState::Stopped, 0));
    });
}
