//! SIGKILL before and after everything that a worker does for a recipe, at every task of it. In `make test` each kind of
//! point at several places; the whole cross by `make proof-recipes`.

use std::{collections::BTreeMap, time::Instant};

use leasehold_actors::testing::crash_points::Side;

use super::{
    lanes::play_all,
    recipe_cells::{Bed, Cell, Expected, HANDOFFS, TASKS},
};
use crate::{scenarios::worker_process::example, support::size::rounds};

/// What each task leads over.
const OF_A_TASK: &[(&str, Side)] = &[
    ("recipe.stage", Side::Before),
    ("recipe.stage", Side::After),
    ("recipe.effect", Side::Before),
    ("recipe.effect", Side::After),
    ("recipe.record.task", Side::Before),
    ("recipe.record.task", Side::After),
    ("recipe.recorded", Side::After),
];

/// The tasks of the short form: in the loop and in `parallel` at every point, in the retried sequence around its effect.
const SOME: &[&str] = &["loop/poll#2", "both/left/a"];
const AROUND_ITS_EFFECT: &str = "again!2/b";

/// Where an effect is made and not recorded.
const BETWEEN: [(&str, Side); 2] = [("recipe.effect", Side::After), ("recipe.record.task", Side::Before)];

/// What else it leads over: timers, signals, the child, and waits.
const BESIDE: &[(&str, &str)] = &[
    ("recipe.record.timer_set", "again!1/@backoff"),
    ("recipe.record.timer_fired", "again!1/@backoff"),
    ("recipe.record.timer_set", "again!2/b/@timeout"),
    ("recipe.record.timer_fired", "nap"),
    ("recipe.record.signal", "early"),
    ("recipe.record.signal", "later"),
    ("recipe.record.child_started", "child"),
    ("recipe.record.child_ended", "child"),
    ("recipe.reschedule", "signal:later"),
    ("recipe.reschedule", "time"),
    ("recipe.recorded", "early"),
    ("recipe.recorded", "nap"),
];

fn cells() -> Vec<Cell> {
    let all = rounds(0, 1) == 1;
    let mut cells = Vec::new();
    for (path, platform) in TASKS {
        let everywhere = all || SOME.contains(path);
        let points = OF_A_TASK
            .iter()
            .filter(|point| everywhere || (*path == AROUND_ITS_EFFECT && BETWEEN.contains(point)));
        cells.extend(points.map(|(call, side)| Cell { platform, call, side: *side, place: Some(path) }));
    }
    let both = |platform: &'static str, call: &'static str, place: Option<&'static str>| {
        Side::ALL.map(|side| Cell { platform, call, side, place })
    };
    for (n, (path, platform, goes)) in HANDOFFS.iter().enumerate() {
        // The first one of each direction: a place names both.
        if n < 2 {
            cells.extend(both(platform, "recipe.reschedule", Some(goes)));
            // The LeaseActor confirms it under the same command.
            cells.extend(both(platform, "store.end.reschedule", None));
            // The task that is staged and does not fit.
            cells.extend(both(platform, "recipe.stage", Some(path)));
        }
        if all || n < 2 {
            cells.extend(both(platform, "recipe.callback", Some(path)));
        }
    }
    for (call, place) in BESIDE {
        let some = both("amd64", call, Some(place)).into_iter();
        cells.extend(some.filter(|cell| cell.call != "recipe.recorded" || cell.side == Side::After));
    }
    cells
}

/// E1, E2, E6
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_at_any_point_of_a_recipe_repeats_no_recorded_success() {
    example("crash-worker");
    let bed = Bed::create().await;
    let expected: Expected = bed.undisturbed(0).await.unwrap();
    let only = std::env::var("CRASH_ONLY").unwrap_or_default();
    let begun = Instant::now();
    let cells = cells().into_iter().filter(|cell| cell.to_string().contains(&only));
    let results = play_all(cells, async |cell, lane| {
        let played = Box::pin(cell.play(&bed, lane, &expected)).await?;
        println!("{cell}: {} effects twice", played.twice);
        Ok(played)
    })
    .await;
    let mut kinds = BTreeMap::<String, (usize, usize)>::new();
    for (cell, played) in &results.played {
        let (count, twice) = kinds.entry(format!("{}.{}", cell.call, cell.side)).or_default();
        (*count, *twice) = (*count + 1, *twice + played.twice);
    }
    for (kind, (count, twice)) in &kinds {
        println!("{kind:<36} {count:>3} kills, {twice:>2} effects made twice");
    }
    let again = results.played.iter().filter(|(_, played)| played.tries > 1).count();
    println!("{} cells in {:.0?}, {again} of them played again", results.played.len(), begun.elapsed());
    results.assert_right();
}
