use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::*;
use crate::{
    clock::Anchor,
    fence::{Terms, Watch},
    fixtures::{LEASE, claim, grant, planned_panic},
};

fn active(permits: &Permits, job: i64) -> ActivePermit {
    let mut reservation = permits.reserve(1, claim).expect("a permit is free");
    let Handover::Active(permit) = reservation.grant(&grant(job, 1)) else { panic!("not handed over") };
    reservation.settle();
    permit
}

fn watch(job: i64) -> Watch {
    Watch::unfenced(Terms {
        job: JobId(job),
        epoch: Epoch(1),
        deadline: Anchor::now().after(LEASE),
        lease: LEASE,
        stop_grace: LEASE / 8,
    })
}

/// L8
#[test]
fn a_panic_moves_permits_to_the_awaiting_states_and_never_to_free() {
    let permits = Permits::new(5);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _active = active(&permits, 1);
        let _reserved = permits.reserve(3, claim).expect("four are free");
        panic!("an actor dies");
    }));
    assert!(unwound.is_err());
    let counts = permits.counts();
    assert_eq!(
        (counts.awaiting_replay, counts.awaiting_reconciliation, counts.free),
        (3, 1, 1),
        "only the permit that was never taken is free"
    );
    let again = permits.take_replay().expect("the claim is to be asked again");
    assert!(again.ask().repeat && again.is_replay(), "under its command id, as a repeat");
}

#[test]
fn a_replay_that_names_a_grant_in_hand_does_not_run_it_twice() {
    let permits = Permits::new(2);
    let first = grant(7, 1);
    let mut reservation = permits.reserve(2, claim).expect("two are free");
    let Handover::Active(_running) = reservation.grant(&first) else { panic!("not handed over") };
    drop(reservation);

    let mut replay = permits.take_replay().expect("to be asked again");
    assert!(matches!(replay.grant(&first), Handover::InHand));
    assert!(matches!(replay.grant(&grant(7, 2)), Handover::Refused), "another grant of a job in hand");
    assert!(matches!(replay.grant(&grant(8, 1)), Handover::Active(_)), "the lost one is handed over");
    assert!(permits.suppresses(JobId(7)));
    replay.settle();
}

/// Two pools, one worker: L5.
#[test]
fn a_job_whose_work_goes_on_under_one_pool_is_not_handed_over_by_the_other() {
    let claimed = Permits::new(2);
    let recovering: Permits<OpenClaim> = Permits::beside(1, &claimed);
    let mut taken = recovering.reserve(1, claim).expect("one is free");
    let Handover::Active(permit) = taken.grant(&grant(1, 1)) else { panic!("not handed over") };
    let hands_over = || {
        let mut reservation = claimed.reserve(1, claim).expect("two are free");
        let handover = reservation.grant(&grant(1, 2));
        reservation.settle();
        match handover {
            Handover::Active(permit) => {
                permit.free();
                true
            }
            Handover::InHand | Handover::Refused => false,
        }
    };
    assert!(hands_over(), "no work was started");
    let watch = watch(1);
    permit.works(Arc::clone(watch.entry()));
    let work = watch.entry().hold();
    assert!(!hands_over(), "it goes on");
    drop(work);
    assert!(hands_over(), "it is over, and only its report is awaited");
}

/// A recovery that has turned into a run is no recovery any more.
#[test]
fn a_permit_moves_to_the_other_pool_only_if_one_is_free_there() {
    let claimed = Permits::new(1);
    let recovering: Permits<OpenClaim> = Permits::beside(1, &claimed);
    let mut taken = recovering.reserve(1, claim).expect("one is free");
    let Handover::Active(mut permit) = taken.grant(&grant(1, 1)) else { panic!("not handed over") };
    taken.settle();
    let watch = watch(1);
    permit.works(Arc::clone(watch.entry()));
    let work = watch.entry().hold();

    let other = active(&claimed, 2);
    assert!(!permit.move_to(&claimed), "it is full");
    assert_eq!((recovering.counts().active, claimed.counts().active), (1, 1));
    other.free();
    assert!(permit.move_to(&claimed));
    assert_eq!((recovering.counts().free, claimed.counts().active), (1, 1));

    permit.free();
    assert_eq!(claimed.free(), 0, "its work goes on");
    drop(work);
    claimed.take_unreconciled().expect("to be found out").free();
    assert_eq!((recovering.free(), claimed.free()), (1, 1));
}

#[test]
fn a_permit_is_not_freed_while_its_workload_goes_on() {
    let permits = Permits::new(1);
    let (permit, watch) = (active(&permits, 1), watch(1));
    permit.works(Arc::clone(watch.entry()));
    let work = watch.entry().hold();

    permit.free();
    assert_eq!(permits.free(), 0, "the store's word alone does not suffice");
    let unreconciled = permits.take_unreconciled().expect("it awaits reconciliation");
    unreconciled.free();
    assert_eq!(permits.free(), 0);

    drop(work);
    permits.take_unreconciled().expect("still to be found out").free();
    assert_eq!(permits.free(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_outlives_its_kill_counts_as_stuck_until_it_ends() {
    let permits = Permits::new(1);
    let (permit, watch) = (active(&permits, 1), watch(1));
    permit.works(Arc::clone(watch.entry()));
    let work = watch.entry().hold();
    watch.kill();
    assert_eq!(permits.counts().active, 1, "it is given a moment");
    tokio::time::advance(crate::fence::STUCK_AFTER).await;
    assert_eq!(permits.counts().stuck, 1);
    drop(permit);
    assert_eq!(permits.counts().stuck, 1, "also after its actor died");
    drop(work);
    assert_eq!((permits.counts().stuck, permits.counts().awaiting_reconciliation), (0, 1));
}

#[tokio::test]
async fn quiet_comes_with_the_last_permit() {
    let permits = Permits::new(2);
    permits.quiet().await;
    let permit = active(&permits, 1);
    let mut waiting = std::pin::pin!(permits.quiet());
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx))).await;
    assert!(first.is_pending());
    permit.free();
    waiting.await;
}

/// What one step of the property test does; indices are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    Reserve(u32),
    Settle(usize),
    DropReservation(usize),
    Grant(usize),
    TakeReplay,
    FreeActive(usize),
    DropActive(usize),
    PanicWithActive(usize),
    StartWork(usize),
    EndWork(usize),
    TakeUnreconciled,
    FreeUnreconciled(usize),
    DropUnreconciled(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..6u32).prop_map(Step::Reserve),
        any::<usize>().prop_map(Step::Settle),
        any::<usize>().prop_map(Step::DropReservation),
        any::<usize>().prop_map(Step::Grant),
        any::<usize>().prop_map(Step::Grant),
        Just(Step::TakeReplay),
        any::<usize>().prop_map(Step::FreeActive),
        any::<usize>().prop_map(Step::DropActive),
        any::<usize>().prop_map(Step::PanicWithActive),
        any::<usize>().prop_map(Step::StartWork),
        any::<usize>().prop_map(Step::EndWork),
        Just(Step::TakeUnreconciled),
        any::<usize>().prop_map(Step::FreeUnreconciled),
        any::<usize>().prop_map(Step::DropUnreconciled),
    ]
}

fn take<T>(from: &mut Vec<T>, index: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(index % from.len()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// L8: whatever happens in whatever order, the six states add up to the capacity, and only the two
    /// explicit words of the store ("answered", "over") make a permit free.
    #[test]
    fn permits_are_conserved(capacity in 1..12u32, steps in prop::collection::vec(step(), 1..120)) {
        let permits = Permits::new(capacity);
        let (mut reservations, mut actives, mut unreconciled) = (Vec::new(), Vec::new(), Vec::new());
        let mut works = Vec::new();
        let mut next_job = 0;
        for step in steps {
            let before = permits.counts();
            let mut may_free = false;
            match step.clone() {
                Step::Reserve(n) => reservations.extend(permits.reserve(n, claim)),
                Step::TakeReplay => reservations.extend(permits.take_replay()),
                Step::Settle(i) => {
                    may_free = true;
                    if let Some(r) = take(&mut reservations, i) { r.settle(); }
                }
                Step::DropReservation(i) => drop(take(&mut reservations, i)),
                Step::Grant(i) => {
                    let len = reservations.len();
                    if len > 0 {
                        next_job += 1;
                        if let Handover::Active(permit) = reservations[i % len].grant(&grant(next_job, 1)) {
                            actives.push(permit);
                        }
                    }
                }
                Step::FreeActive(i) => {
                    may_free = true;
                    if let Some(p) = take(&mut actives, i) { p.free(); }
                }
                Step::DropActive(i) => drop(take(&mut actives, i)),
                Step::PanicWithActive(i) => {
                    let permit = take(&mut actives, i);
                    let _ = catch_unwind(AssertUnwindSafe(move || {
                        let _permit = permit;
                        planned_panic("the actor dies")
                    }));
                }
                Step::StartWork(i) => {
                    if !actives.is_empty() {
                        let permit: &ActivePermit = &actives[i % actives.len()];
                        let job = permit.grant().authority.job;
                        let watch = watch(job.0);
                        permit.works(Arc::clone(watch.entry()));
                        works.push((job, watch.entry().hold(), watch));
                    }
                }
                Step::EndWork(i) => drop(take(&mut works, i)),
                Step::TakeUnreconciled => unreconciled.extend(permits.take_unreconciled()),
                Step::FreeUnreconciled(i) => {
                    may_free = true;
                    if let Some(u) = take(&mut unreconciled, i) { u.free(); }
                }
                Step::DropUnreconciled(i) => drop(take(&mut unreconciled, i)),
            }
            let after = permits.counts();
            prop_assert_eq!(after.total(), capacity, "{:?}: {:?}", step, after);
            prop_assert!(may_free || after.free <= before.free, "{:?} freed a permit", step);
            let reserved: u32 = reservations.iter().filter(|r| !r.is_replay()).map(Reservation::count).sum();
            prop_assert_eq!(after.reserved, reserved);
            for (job, _, _) in &works {
                prop_assert!(
                    permits.suppresses(*job) || actives.iter().all(|p| p.grant().authority.job != *job),
                    "{:?} goes on without a permit", job
                );
            }
        }
        // Everything dropped: nothing is free that was not free before, and all of it can still be settled.
        works.clear();
        drop((reservations, actives, unreconciled));
        while let Some(replay) = permits.take_replay() { replay.settle(); }
        while let Some(left) = permits.take_unreconciled() { left.free(); }
        prop_assert_eq!(permits.free(), capacity);
    }
}
