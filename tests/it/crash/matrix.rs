//! The points that jobs lead over, compared with the list; and every point with every deed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use leasehold_actors::testing::crash_points::{CALLS, Deed, Side};

use super::{
    bed::Bed,
    cells::Cell,
    lanes::{LANES, play_all},
    process::{Resident, Victim},
    shapes::{Push, Shape, cancel_when_begun},
};
use crate::{
    scenarios::worker_process::example,
    support::eventually::{eventually, pass},
};

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

const SOON: Duration = Duration::from_secs(60);

/// A job of a shape, from beginning to end: the points that it led over.
async fn walk(bed: &Bed, lane: usize, shape: Shape) -> Result<BTreeSet<String>, String> {
    let namespace = Bed::namespace(lane);
    let job = shape.submit(bed, &namespace).await;
    if let Some(fault) = shape.lost_by() {
        Victim::start(&bed.place(lane, "first"), &[fault]).dies().await?;
    }
    let mut worker = Resident::start(&bed.place(lane, "recorder"), shape.prelude()).await?;
    match shape.push() {
        Push::Nothing => {}
        Push::Cancel => cancel_when_begun(bed, &namespace, job, shape).await,
        Push::Drain => {
            let began = async || (bed.runs(job) > 0).then_some(());
            eventually(SOON, "the work begins", began).await;
            worker.tell_to_drain();
        }
    }
    // What its way has points for, it has come by when these are reached.
    let wanted: Vec<String> = WAYS
        .iter()
        .filter(|(_, way)| *way == shape)
        .flat_map(|(call, _)| Side::ALL.map(|side| format!("{call}.{side}")))
        .collect();
    let begun = Instant::now();
    let reached = loop {
        let reached = worker.points.reached();
        if wanted.iter().all(|point| reached.contains_key(point)) {
            break reached;
        }
        if begun.elapsed() > SOON {
            return Err(format!("it must lead over {wanted:?} and came by {reached:?}"));
        }
        pass(Duration::from_millis(20)).await;
    };
    worker.end().await?;
    Ok(reached.into_keys().collect())
}

/// A point that has no name, or that no job leads over, fails.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_lead_over_every_named_point_and_over_no_other() {
    example("crash-worker");
    let bed = Bed::create(Shape::ALL.len(), 1).await;
    let bed = &bed;
    let ways = Shape::ALL.into_iter().enumerate().map(|(lane, shape)| async move {
        let reached = walk(bed, lane, shape).await;
        reached.unwrap_or_else(|what| panic!("{shape:?}: {what}"))
    });
    let reached: BTreeSet<String> = join_all(ways).await.into_iter().flatten().collect();
    let named: BTreeSet<String> = CALLS
        .iter()
        .filter(|call| !NOT_A_WORKERS.contains(call))
        .flat_map(|call| Side::ALL.map(|side| format!("{call}.{side}")))
        .collect();
    assert_eq!(reached, named, "points without a name, or names that nothing leads over");
    let with_a_way: BTreeSet<&str> = WAYS.iter().map(|(call, _)| *call).collect();
    assert_eq!(with_a_way.len() + NOT_A_WORKERS.len(), CALLS.len(), "calls that the matrix leaves out");
}

/// Plays one deed at every point, and prints what became of it.
async fn play(deeds: &[(Side, Deed)], engine: u8) {
    example("crash-worker");
    let bed = Bed::create(LANES, engine).await;
    let only = std::env::var("CRASH_ONLY").unwrap_or_default();
    let cells = deeds
        .iter()
        .flat_map(|&(side, deed)| WAYS.iter().map(move |&(call, shape)| Cell { shape, call, side, deed }))
        .filter(|cell| cell.to_string().contains(&only));
    let begun = Instant::now();
    let results = play_all(cells, async |cell, lane| {
        let played = cell.play(&bed, lane).await?;
        println!("{cell}: {} after {} runs, attempt {}", played.state, played.runs, played.attempt);
        Ok(played)
    })
    .await;
    let mut ends = BTreeMap::<String, usize>::new();
    for (_, played) in &results.played {
        *ends.entry(format!("{} after {} runs", played.state, played.runs)).or_default() += 1;
    }
    println!("{} cells in {:.0?}: {ends:?}", results.played.len(), begun.elapsed());
    results.assert_right();
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
