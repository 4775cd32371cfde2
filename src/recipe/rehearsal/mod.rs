//! Recipes tried out before they run anywhere: a test file plays jobs of a recipe on the memory store, with the engine
//! that workers have, and with ops that answer what the file says. The time is the test's own: a recipe that sleeps
//! for a week is through in milliseconds.
//!
//! `shapes.rs` says what a test file holds, `file.rs` reads it, `outside.rs` plays everything that is not a worker,
//! `play.rs` the workers, `judge.rs` compares. In the mode `crash` the same test is played once more with a worker that
//! dies behind every event; what is recorded and how the job ends must not differ.

mod file;
mod judge;
mod locate;
mod outside;
mod pattern;
mod play;
mod shapes;
#[cfg(test)]
mod tests;
mod watched;

use std::{sync::Arc, time::Duration};

pub use self::file::Suite;
use self::{
    file::Test,
    judge::{difference, judge, named, tasks_of},
    play::play,
    watched::Crash,
};
use super::{mistake::Mistake, schema};

/// What came of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The test file.
    pub file: String,
    /// The test.
    pub name: String,
    /// Tasks that were recorded.
    pub tasks: usize,
    /// Times that the job was handed on.
    pub handoffs: usize,
    /// The time that passed for the job.
    pub took: Duration,
    /// How often a worker died; none where nobody asked for it.
    pub crashes: Option<u32>,
    /// What is not as the test says, in the order of its places.
    pub problems: Vec<Mistake>,
}

impl Verdict {
    /// Whether everything is as the test says.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Suite {
    /// Runs the tests, one after the other. With `crash`, each of them also in that mode.
    ///
    /// Must not be called inside an async runtime: each test has one of its own, whose clock stands still.
    pub fn run(&self, crash: bool) -> impl Iterator<Item = Verdict> {
        self.tests.iter().map(move |test| self.verdict(test, crash || test.crash))
    }

    fn verdict(&self, test: &Arc<Test>, crash: bool) -> Verdict {
        let played = play(self, test, Crash::Never);
        let mut problems = judge(&self.file, test, &played);
        let mut crashes = None;
        // What is wrong without a crash is told first.
        if crash && played.problems.is_empty() {
            let crashed = play(self, test, Crash::BehindEach);
            crashes = Some(crashed.crashes);
            if let Some(differs) = difference(&played, &crashed) {
                problems.push(self.told(test, &played, &differs));
            }
        }
        Verdict {
            file: self.file.clone(),
            name: test.name.clone(),
            tasks: tasks_of(&played.events).count(),
            handoffs: played.handoffs.len(),
            took: played.took,
            crashes,
            problems,
        }
    }

    /// Finds the one event behind which a crash makes the difference.
    fn told(&self, test: &Arc<Test>, played: &play::Played, differs: &str) -> Mistake {
        let culprit = played.events.iter().find_map(|event| {
            let once = play(self, test, Crash::Behind(event.ordinal));
            difference(played, &once).map(|differs| format!("a crash behind {}: {differs}", named(event)))
        });
        let message = culprit.unwrap_or_else(|| format!("a crash behind every event: {differs}"));
        Mistake { file: self.file.clone(), place: test.place, message }
    }
}

/// A time as a test file writes it: `1h 30s`, `44days`.
#[must_use]
pub fn span(time: Duration) -> String {
    let mut left = time.as_millis();
    let mut words = Vec::new();
    for (unit, millis) in [("days", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
        if left >= millis {
            words.push(format!("{}{unit}", left / millis));
            left %= millis;
        }
    }
    if words.is_empty() { "0s".to_owned() } else { words.join(" ") }
}

/// The grammar of test files for people: the appendix of `docs/recipes.md`.
#[must_use]
pub fn grammar() -> String {
    schema::described(&shapes::all())
}
