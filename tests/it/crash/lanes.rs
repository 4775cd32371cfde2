//! Many cells, a few at a time: each in a lane, which is a namespace that it has to itself. A cell that fails is
//! named, however it fails.

use std::{any::Any, fmt::Display, panic::AssertUnwindSafe, sync::Mutex};

use futures_util::{FutureExt as _, future::join_all};

/// How many cells are played at a time.
pub const LANES: usize = 8;

/// What became of all cells.
pub struct Results<C, T> {
    pub played: Vec<(C, T)>,
    /// One line a cell: which, and what was wrong.
    pub wrong: Vec<String>,
    /// How many were not begun.
    pub left: usize,
}

impl<C, T> Results<C, T> {
    /// Panics, naming them, if there are cells that failed.
    pub fn assert_right(&self) {
        let Self { played, wrong, left } = self;
        let count = played.len() + wrong.len() + left;
        let told = wrong.join("\n");
        assert!(wrong.is_empty(), "{} of {count} cells failed, {left} were not played:\n{told}", wrong.len());
    }
}

/// Plays every cell. A lane in which one failed is left alone, since what is left of that cell's work would be the
/// next one's trouble; the others go on.
pub async fn play_all<C: Display, T>(
    cells: impl IntoIterator<Item = C>,
    play: impl AsyncFn(&C, usize) -> Result<T, String>,
) -> Results<C, T> {
    let queue = Mutex::new(cells.into_iter().collect::<Vec<_>>().into_iter());
    let (played, wrong) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    join_all((0..LANES).map(|lane| {
        let (queue, played, wrong, play) = (&queue, &played, &wrong, &play);
        async move {
            while let Some(cell) = { queue.lock().unwrap().next() } {
                let end = AssertUnwindSafe(play(&cell, lane)).catch_unwind().await;
                match end.unwrap_or_else(|panic| Err(format!("panicked: {}", message(&*panic)))) {
                    Ok(end) => played.lock().unwrap().push((cell, end)),
                    Err(what) => {
                        wrong.lock().unwrap().push(format!("{cell}, lane {lane}: {what}"));
                        break;
                    }
                }
            }
        }
    }))
    .await;
    let left = queue.into_inner().unwrap().len();
    Results { played: played.into_inner().unwrap(), wrong: wrong.into_inner().unwrap(), left }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
