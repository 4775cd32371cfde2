//! On the machine's own clock: the fence has no other. Waits are for facts; times are only bounded from
//! below, or generously from above.

use std::sync::mpsc;

use super::*;
use crate::{clock::Anchor, work::StopReason};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn terms(deadline_in: Duration, lease: Duration, stop_grace: Duration) -> Terms {
    Terms { job: JobId(1), epoch: Epoch(1), deadline: Anchor::now().after(deadline_in), lease, stop_grace }
}

fn fence() -> Fence {
    Fence::start(Box::new(|_, _| {})).expect("a thread")
}

/// Tells a channel of every call, and answers as laid down; then `Ok`.
struct Killer {
    told: mpsc::Sender<()>,
    failures: Mutex<u32>,
}

impl Killer {
    fn new(failures: u32) -> (Arc<Self>, mpsc::Receiver<()>) {
        let (told, calls) = mpsc::channel();
        (Arc::new(Self { told, failures: Mutex::new(failures) }), calls)
    }
}

impl Kill for Killer {
    fn kill(&self) -> BoxFuture<'static, Result<(), String>> {
        // A test that has ended does not listen any more.
        let _ = self.told.send(());
        let mut failures = lock(&self.failures);
        let failed = *failures > 0;
        *failures = failures.saturating_sub(1);
        Box::pin(async move { if failed { Err("the engine is away".to_owned()) } else { Ok(()) } })
    }
}

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn work_is_asked_to_stop_before_its_deadline_and_cancelled_at_it() {
    let fence = fence();
    let watch = fence.tie(terms(ms(1500), ms(8000), ms(10_000)));
    let (entry, hold) = (Arc::clone(watch.entry()), watch.entry().hold());
    let began = std::time::Instant::now();
    let task = tokio::spawn(async move {
        let _hold = hold;
        std::future::pending::<()>().await;
    });
    watch.entry().runs_as(task.abort_handle());
    assert_eq!(entry.stopped().await, StopReason::LeaseLost);
    assert!(began.elapsed() >= ms(500), "an eighth of the lease before the deadline, not earlier");
    assert!(!entry.deadline().has_passed(), "it still has that eighth");
    assert!(task.await.is_err_and(|error| error.is_cancelled()));
    assert!(began.elapsed() >= ms(1490), "{:?}", began.elapsed());
    assert_eq!(fence.kills(), 1);
    entry.over().await;
    assert_eq!(fence.watched(), 0);
}

#[tokio::test]
async fn a_renewal_moves_the_deadline_on_and_a_lost_lease_is_never_revived() {
    let fence = fence();
    let watch = fence.tie(terms(ms(300), ms(400), ms(50)));
    let hold = watch.entry().hold();
    for _ in 0..4 {
        tokio::time::sleep(ms(150)).await;
        watch.renewed(Anchor::now().after(ms(300)));
    }
    assert_eq!(watch.entry().stop_reason(), None, "twice its first deadline has passed, and it goes on");
    watch.entry().stopped().await;
    let lost = watch.entry().deadline();
    watch.renewed(Anchor::now().after(LONG));
    assert_eq!(watch.entry().deadline(), lost);
    drop(hold);
}

/// "Also when every async thread is blocked": the only thread of this test's runtime stands still from before
/// the deadline until the container was killed.
#[tokio::test]
async fn the_fence_kills_a_container_while_every_async_thread_is_blocked() {
    let fence = fence();
    let watch = fence.tie(terms(ms(200), ms(400), ms(50)));
    let (killer, calls) = Killer::new(0);
    let guard = watch.entry().guard_container(killer, ms(50));
    calls.recv_timeout(LONG).expect("the fence's own thread kills it");
    watch.entry().over().await;
    guard.gone();
}

/// L7: a container whose actor died is killed at once, and again until that is confirmed.
#[tokio::test]
async fn a_container_without_an_actor_is_killed_until_that_is_confirmed() {
    let fence = fence();
    let watch = fence.tie(terms(LONG, LONG, ms(50)));
    let (killer, calls) = Killer::new(2);
    drop(watch.entry().guard_container(killer, ms(50)));
    assert!(!watch.entry().is_over());
    watch.entry().over().await;
    assert_eq!(calls.try_iter().count(), 3, "two failed, one confirmed, none after that");
    assert_eq!(fence.watched(), 0);
}

#[tokio::test]
async fn a_requested_stop_has_a_kill_time_of_its_own() {
    let fence = fence();
    let watch = fence.tie(terms(LONG, LONG, LONG));
    let hold = watch.entry().hold();
    let task = tokio::spawn(async move {
        let _hold = hold;
        std::future::pending::<()>().await;
    });
    watch.entry().runs_as(task.abort_handle());
    watch.stop(StopReason::Canceled, Some(ms(100)));
    watch.stop(StopReason::Draining, None);
    assert_eq!(watch.entry().stop_reason(), Some(StopReason::Canceled), "the first reason stands");
    assert!(task.await.is_err_and(|error| error.is_cancelled()));
    watch.stop(StopReason::LeaseLost, None);
    assert_eq!(watch.entry().stop_reason(), Some(StopReason::LeaseLost), "except that lost is lost");
}

#[tokio::test]
async fn the_death_of_the_owner_is_a_lost_lease() {
    let fence = fence();
    let watch = fence.tie(terms(LONG, LONG, LONG));
    let (entry, _hold) = (Arc::clone(watch.entry()), watch.entry().hold());
    drop(watch);
    assert_eq!(entry.stopped().await, StopReason::LeaseLost);
}

#[tokio::test]
async fn work_that_does_not_end_is_told_of_once_and_counts_as_stuck() {
    let (told, stuck) = mpsc::channel();
    let fence = Fence::start(Box::new(move |job, _| {
        let _ = told.send(job);
    }))
    .expect("a thread");
    let watch = fence.tie(terms(ms(50), ms(100), ms(10)));
    let hold = watch.entry().hold();
    let job = tokio::task::spawn_blocking(move || (stuck.recv_timeout(LONG), stuck)).await.expect("waits");
    assert_eq!(job.0, Ok(JobId(1)));
    assert!(watch.entry().is_stuck());
    drop(hold);
    assert!(!watch.entry().is_stuck(), "it has ended after all");
    assert!(job.1.try_recv().is_err(), "told once");
}

/// A process that was frozen past its deadline wakes up: its work was frozen too, and is given the second that it would
/// have had. After that it is as stuck as any other.
#[tokio::test]
async fn work_that_was_frozen_with_its_process_is_given_time_to_end_before_it_counts_as_stuck() {
    let s = Duration::from_secs;
    let watch = Watch::unfenced(terms(Duration::ZERO, ms(100), ms(10)));
    let _hold = watch.entry().hold();
    let due = watch.entry().deadline().boot();
    let woken = due.after(s(600));
    let (todo, next) = watch.entry().on_time(woken, due);
    assert!(todo.by_force && !todo.stuck, "ended by force at once, but not called stuck");
    assert!(!watch.entry().is_stuck());
    let next = next.expect("it goes on");
    assert!(next >= woken.after(STUCK_AFTER));
    // Frozen once more, in that second.
    let again = next.after(s(60));
    let (todo, next) = watch.entry().on_time(again, next);
    assert!(!todo.stuck);
    let next = next.expect("it goes on");
    assert!(watch.entry().on_time(next, next).0.stuck, "it had its time");
    assert!(!watch.entry().on_time(next.after(s(1)), next.after(s(1))).0.stuck, "told once");

    let watch = Watch::unfenced(terms(Duration::ZERO, ms(100), ms(10)));
    let _hold = watch.entry().hold();
    let due = watch.entry().deadline().boot();
    let (todo, next) = watch.entry().on_time(due, due);
    assert!(todo.by_force && !todo.stuck);
    let next = next.expect("it goes on");
    assert!(watch.entry().on_time(next, next).0.stuck, "nothing stood still: one second is all");
}

#[tokio::test]
async fn what_has_ended_is_not_watched_and_a_kill_of_it_does_nothing() {
    let fence = fence();
    let watches: Vec<Watch> = (0..1000).map(|_| fence.tie(terms(LONG, LONG, LONG))).collect();
    let holds: Vec<Hold> = watches.iter().map(|watch| watch.entry().hold()).collect();
    assert_eq!(fence.watched(), 1000);
    drop(holds);
    assert_eq!(fence.watched(), 0);
    watches[0].kill();
    drop(watches);
    assert_eq!(fence.kills(), 0);
}

#[tokio::test]
async fn a_kill_wins_over_a_task_that_is_named_too_late() {
    let watch = Watch::unfenced(terms(LONG, LONG, LONG));
    let _hold = watch.entry().hold();
    watch.kill();
    let task = tokio::spawn(std::future::pending::<()>());
    watch.entry().runs_as(task.abort_handle());
    assert!(task.await.is_err_and(|error| error.is_cancelled()));
}
