//! The points that jobs lead over, compared with the list; and every point with every deed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use leasehold_actors::testing::crash_points::{CALLS, Deed, Side};

use super::{
    bed::Bed,
    cells::Cell,
    process::{Resident, Victim},
    shapes::{Push, Shape, cancel_when_begun},
};
use crate::{scenarios::worker_process::example, support::eventually::eventually};

/// Which job leads over a call.
const WAYS: &[(&str, Shape)] = &[
    ("store.dispatch", Shape::Due),
    ("store.claim", Shape::Handler),
    ("store.claim.replay", Shape::Replayed),
    ("store.renew.first", Shape::Handler),
    ("store.renew", Shape::Handler),
    ("store.report_progress", Shape::Handler),
    ("store.end.complete", Shape::Handler),
    ("store.end.fail", Shape::Failing),
    ("store.end.cancel", Shape::CanceledHandler),
    ("store.end.release", Shape::Drained),
    ("store.reconcile", Shape::Unconfirmed),
    ("store.attach", Shape::Container),
    ("store.append_logs", Shape::Container),
    ("engine.info", Shape::Container),
    ("engine.ensure_image", Shape::Container),
    ("engine.create", Shape::Container),
    ("engine.start", Shape::Container),
    ("engine.logs", Shape::Container),
    ("engine.wait", Shape::Container),
    ("engine.remove", Shape::Container),
    ("engine.inspect", Shape::CanceledContainer),
    ("engine.mark_stopped", Shape::CanceledContainer),
    ("engine.stop", Shape::CanceledContainer),
    ("engine.kill", Shape::KilledContainer),
    ("engine.list", Shape::DiscardedContainer),
    // In a recovery.
    ("store.recover", Shape::LostHandler),
    ("store.recover.replay", Shape::LostReplayed),
    ("store.renew.first", Shape::LostRunning),
    ("store.end.lost", Shape::LostHandler),
    ("store.log_offsets", Shape::LostRunning),
    ("store.postpone_recovery", Shape::LostOffline),
    ("engine.inspect", Shape::LostRunning),
    ("engine.mark_stopped", Shape::LostRunning),
    ("engine.stop", Shape::LostRunning),
    ("engine.remove", Shape::LostRunning),
    ("engine.wait", Shape::LostExited),
    ("store.end.complete", Shape::LostExited),
    ("engine.list", Shape::LostUnattached),
];

/// Calls that no worker makes: only embedding programs and tests do.
const NOT_A_WORKERS: &[&str] = &["store.claim_listed", "store.claim_listed.replay", "store.end.reschedule"];

/// A point that has no name, or that no job leads over, fails.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_lead_over_every_named_point_and_over_no_other() {
    example("crash-worker");
    let bed = Bed::create(Shape::ALL.len(), 1).await;
    let bed = &bed;
    let lanes = Shape::ALL.into_iter().enumerate().map(|(lane, shape)| async move {
        let namespace = Bed::namespace(lane);
        let job = shape.submit(bed, &namespace).await;
        if let Some(fault) = shape.lost_by() {
            Victim::start(&bed.place(lane, "first"), &[fault]).dies().await.unwrap();
        }
        let mut worker = Resident::start(&bed.place(lane, "recorder"), shape.prelude()).await;
        match shape.push() {
            Push::Nothing => {}
            Push::Cancel => cancel_when_begun(bed, &namespace, job, shape).await,
            Push::Drain => {
                let began = async || (bed.runs(job) > 0).then_some(());
                eventually(Duration::from_secs(60), "the work begins", began).await;
                worker.tell_to_drain();
            }
        }
        // What its way has points for, it has come by when these are reached.
        let wanted: Vec<String> = WAYS
            .iter()
            .filter(|(_, way)| *way == shape)
            .flat_map(|(call, _)| Side::ALL.map(|side| format!("{call}.{side}")))
            .collect();
        let points = worker.points.clone();
        let reached = eventually(Duration::from_secs(60), "every point of its way", async || {
            let reached = points.reached();
            wanted.iter().all(|point| reached.contains_key(point)).then_some(reached)
        });
        let reached = match tokio::time::timeout(Duration::from_secs(50), reached).await {
            Ok(reached) => reached,
            Err(_) => panic!("{shape:?} must lead over {wanted:?} and came by {:?}", points.reached()),
        };
        drop(worker.end().await);
        reached.into_keys().collect::<BTreeSet<_>>()
    });
    let reached: BTreeSet<String> = join_all(lanes).await.into_iter().flatten().collect();
    let named: BTreeSet<String> = CALLS
        .iter()
        .filter(|call| !NOT_A_WORKERS.contains(call))
        .flat_map(|call| Side::ALL.map(|side| format!("{call}.{side}")))
        .collect();
    assert_eq!(reached, named, "points without a name, or names that nothing leads over");
    let with_a_way: BTreeSet<&str> = WAYS.iter().map(|(call, _)| *call).collect();
    assert_eq!(with_a_way.len() + NOT_A_WORKERS.len(), CALLS.len(), "calls that the matrix leaves out");
}

/// How many cells are played at a time.
const LANES: usize = 8;

/// Plays one deed at every point, and prints what became of it.
async fn play(deeds: &[(Side, Deed)], engine: u8) {
    example("crash-worker");
    let bed = Bed::create(LANES, engine).await;
    let only = std::env::var("CRASH_ONLY").unwrap_or_default();
    let cells: Vec<Cell> = deeds
        .iter()
        .flat_map(|&(side, deed)| WAYS.iter().map(move |&(call, shape)| Cell { shape, call, side, deed }))
        .filter(|cell| cell.to_string().contains(&only))
        .collect();
    let (count, begun) = (cells.len(), Instant::now());
    let queue = Arc::new(Mutex::new(cells.into_iter()));
    let (wrong, ends) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::<String, usize>::new()));
    let (bed_of_all, wrong_of_all, ends_of_all) = (&bed, &wrong, &ends);
    join_all((0..LANES).map(|lane| {
        let queue = Arc::clone(&queue);
        async move {
            while let Some(cell) = { queue.lock().unwrap().next() } {
                match cell.play(bed_of_all, lane).await {
                    Ok(played) => {
                        let end = format!("{} after {} runs", played.state, played.runs);
                        println!("{cell}: {end}, attempt {}", played.attempt);
                        *ends_of_all.lock().unwrap().entry(end).or_default() += 1;
                    }
                    Err(what) => wrong_of_all.lock().unwrap().push(format!("{cell}: {what}")),
                }
            }
        }
    }))
    .await;
    println!("{count} cells in {:.0?}: {:?}", begun.elapsed(), ends.lock().unwrap());
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {count} cells:\n{}", wrong.len(), wrong.join("\n"));
    bed.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_lost_at_any_point_neither_doubles_nor_loses_the_job() {
    play(&[(Side::Before, Deed::RequestLost)], 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_lost_at_any_point_neither_doubles_nor_loses_the_job() {
    play(&[(Side::After, Deed::ReplyLost)], 2).await;
}
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_at_any_point_leaves_nothing_behind() {
    play(&Side::ALL.map(|side| (side, Deed::Panic)), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_at_any_point_leaves_nothing_behind() {
    play(&Side::ALL.map(|side| (side, Deed::Kill)), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_stopped_at_any_point_past_its_lease_does_no_harm_when_it_wakes() {
    play(&Side::ALL.map(|side| (side, Deed::Stop)), 1).await;
}
