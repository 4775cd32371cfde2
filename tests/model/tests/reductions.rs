//! The scopes with two jobs leave out steps: a snapshot, a lock and a clock may be one step, an answer arrives
//! or is lost at once, and cancellation is requested when it counts. That is sound only if it hides nothing:
//! whatever the many small steps lead to, the few big ones must lead to as well.
#![allow(missing_docs, unreachable_pub, reason = "a test binary has no readers but its authors")]

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
};

use leasehold_model::{
    action::Action,
    explore::give_way,
    names::Worker,
    protocol::Protocol,
    scope::{self, Scope},
    state::{Call, PERMITS, Permit, Phase, Stage, State},
};

/// Every small step. (A workload that refuses to die would make it three times as much.)
const SMALL: Scope = Scope { blocks: false, ..scope::ONE_JOB };

/// The steps of `two-jobs`.
const BIG: Scope = Scope { jobs: 1, blocks: false, ..scope::TWO_JOBS };

fn print(s: &State) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(s)
}

/// Calls `each` with every state that can be reached, or the first `enough`.
fn walk(protocol: &Protocol, enough: usize, mut each: impl FnMut(&State)) -> usize {
    let first = State::first(&protocol.scope);
    let mut seen = HashSet::from([print(&first)]);
    let mut queue = VecDeque::from([first]);
    let mut actions = Vec::new();
    while let Some(s) = queue.pop_front() {
        each(&s);
        protocol.actions(&s, &mut actions);
        for action in actions.drain(..) {
            let next = protocol.step(&s, action);
            if seen.len() < enough && seen.insert(print(&next)) {
                queue.push_back(next);
            }
        }
    }
    seen.len()
}

/// The same instant as the big steps know it: answers on their way have arrived, statements that have not
/// written have not begun, and a cancellation that has had no effect is still to be requested.
fn settled(protocol: &Protocol, s: &State) -> State {
    let mut s = *s;
    for worker in Worker::ALL {
        for n in 0..PERMITS {
            if let Some(Call { stage: Stage::Replied(_), .. }) = s.permit(worker, n).call {
                s = protocol.step(&s, Action::Deliver(worker, n));
            }
        }
    }
    let reads = |stage| matches!(stage, Stage::Snapped(_) | Stage::Holding(_));
    for permit in s.permits.iter_mut().flatten() {
        match permit.call {
            // A first copy is sent when the database looks at it.
            Some(Call { stage, .. }) if reads(stage) && is_first(permit) => *permit = Permit::FREE,
            Some(call) if reads(call.stage) => {
                permit.call = Some(Call { stage: Stage::Sent, age: 0, ..call });
            }
            // A request that waited before it was looked at may as well have been sent later.
            Some(call @ Call { stage: Stage::Written(view), .. }) => {
                let age = call.age.min(protocol.scope.lease - view.left);
                permit.call = Some(Call { age, ..call });
            }
            _ => {}
        }
    }
    for call in s.late.iter_mut().flatten().filter(|call| reads(call.stage)) {
        call.stage = Stage::Sent;
    }
    protocol.tidy(&mut s);
    without_requests(&s)
}

/// A late claim or recovery for which there is nothing to have just now may as well be sent when there is.
fn unsent(protocol: &Protocol, s: &State) -> State {
    let mut s = *s;
    for n in 0..s.late.len() {
        if let Some(call @ Call { stage: Stage::Sent, .. }) = s.late[n]
            && call.request.command() > 0
            && protocol.look(&s, call).is_ok_and(|view| view.jobs.is_empty())
        {
            s.late[n] = None;
        }
    }
    protocol.tidy(&mut s);
    s
}

fn is_first(permit: &Permit) -> bool {
    matches!(permit.phase, Phase::Asking { repeat: false, .. })
}

fn without_requests(s: &State) -> State {
    let mut s = *s;
    for row in &mut s.jobs {
        row.cancel = false;
    }
    s
}

/// Every state that small steps lead to must be one that big steps lead to. Returns how many were compared.
fn compare(small: Scope, big: Scope, enough: usize) -> usize {
    give_way();
    let [small, big] = [small, big].map(|scope| Protocol { scope, mutant: None });
    let mut known = HashSet::new();
    walk(&big, usize::MAX, |s| {
        known.insert(print(&without_requests(s)));
    });
    walk(&small, enough, |s| {
        let same = settled(&small, s);
        assert!(
            known.contains(&print(&same)) || known.contains(&print(&unsent(&small, &same))),
            "big steps do not lead here:\n{:#?}\nwhich is\n{:#?}",
            leasehold_model::trace::world(s, None),
            leasehold_model::trace::world(&same, None)
        );
    })
}

#[test]
fn big_steps_lead_wherever_small_ones_do() {
    let compared = compare(SMALL, BIG, usize::MAX);
    println!("{compared} states compared");
    assert!(compared > 500_000, "only {compared} states");
}

#[test]
#[should_panic(expected = "big steps do not lead here")]
fn a_step_that_is_missing_is_noticed() {
    compare(SMALL, Scope { late: 0, ..BIG }, 200_000);
}
