//! The log of a job, folded: what stands at which path, what was asked of later tasks, and what a walk has not come by.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold_actors::{
    domain::execution::{Requirements, overlay},
    ports::recipe::{Event, EventBody, TaskOutcome},
};

/// What stands at one path. An event of each sort at most: that is how they are named.
#[derive(Debug, Clone, Default)]
pub(super) struct At {
    pub(super) task: Option<Arc<Event>>,
    /// The newest: a timeout that goes on after a reopening is set anew.
    pub(super) timer_set: Option<Arc<Event>>,
    /// The ordinal of the oldest.
    pub(super) timer_first_set: Option<i64>,
    pub(super) timer_fired: Option<Arc<Event>>,
    pub(super) signal: Option<Arc<Event>>,
    pub(super) child_started: Option<Arc<Event>>,
    pub(super) child_ended: Option<Arc<Event>>,
}

impl At {
    fn put(&mut self, event: Arc<Event>) {
        let place = match &event.body {
            EventBody::Task { .. } => &mut self.task,
            EventBody::TimerSet { .. } => &mut self.timer_set,
            EventBody::TimerFired => &mut self.timer_fired,
            EventBody::Signal { .. } => &mut self.signal,
            EventBody::ChildStarted { .. } => &mut self.child_started,
            EventBody::ChildEnded { .. } => &mut self.child_ended,
            EventBody::Reopened { .. } => return,
        };
        if matches!(event.body, EventBody::TimerSet { .. }) {
            self.timer_first_set.get_or_insert(event.ordinal);
        }
        *place = Some(event);
    }

    /// What stands here that an occurrence of another sort has recorded.
    pub(super) fn other_than(&self, own: fn(&EventBody) -> bool) -> Option<Arc<Event>> {
        self.all().find(|event| !own(&event.body)).cloned()
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Event>> {
        let places = [
            &self.task,
            &self.timer_set,
            &self.timer_fired,
            &self.signal,
            &self.child_started,
            &self.child_ended,
        ];
        places.into_iter().flatten()
    }
}

/// The log as a walk reads it.
#[derive(Debug, Default)]
pub(super) struct Log {
    paths: BTreeMap<String, At>,
    /// Changes of needs that tasks asked for, by ordinal.
    directives: BTreeMap<i64, Requirements>,
    unvisited: BTreeSet<String>,
    /// The ordinal of the last reopening; 0 without one.
    reopened: i64,
    /// How many ended occurrences of each path were reopened.
    rounds: BTreeMap<String, u32>,
}

/// A directive in the log that this program cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadDirective {
    pub(super) path: String,
    pub(super) ordinal: i64,
}

impl Log {
    /// Folds the events of a job, oldest first. What was reopened counts as if it had never been recorded.
    pub(super) fn fold(events: Vec<Event>) -> Result<Self, BadDirective> {
        let reopened = events.iter().rev().find(|event| matches!(event.body, EventBody::Reopened { .. }));
        let mut log = Self { reopened: reopened.map_or(0, |event| event.ordinal), ..Self::default() };
        let rounds = &mut log.rounds;
        let events = standing(events, |gone| {
            // What was stopped half-way has not ended: it is the same occurrence that is taken up again.
            let ended = match &gone.body {
                EventBody::Task { outcome, .. } => *outcome != TaskOutcome::Canceled,
                body => matches!(body, EventBody::ChildStarted { .. }),
            };
            if ended {
                *rounds.entry(gone.path.clone()).or_default() += 1;
            }
        });
        for event in events {
            log.unvisited.insert(event.path.clone());
            log.put(event)?;
        }
        Ok(log)
    }

    /// The ordinal of the last reopening; 0 without one.
    pub(super) fn reopened(&self) -> i64 {
        self.reopened
    }

    /// How many ended occurrences of a path were reopened.
    pub(super) fn round(&self, path: &str) -> u32 {
        self.rounds.get(path).copied().unwrap_or_default()
    }

    /// Takes in what was just recorded. True when it changes what later tasks need.
    pub(super) fn put(&mut self, event: Arc<Event>) -> Result<bool, BadDirective> {
        let mut directed = false;
        if let EventBody::Task {
            directive: Some(directive), outcome: TaskOutcome::Succeeded { .. }, ..
        } = &event.body
        {
            let patch: Requirements = serde_json::from_str(directive)
                .map_err(|_| BadDirective { path: event.path.clone(), ordinal: event.ordinal })?;
            directed = self.directives.insert(event.ordinal, patch).is_none();
        }
        self.paths.entry(event.path.clone()).or_default().put(event);
        Ok(directed)
    }

    /// What stands at a path; the walk has come by it.
    pub(super) fn visit(&mut self, path: &str) -> At {
        self.unvisited.remove(path);
        self.paths.get(path).cloned().unwrap_or_default()
    }

    /// The oldest event at a path that no walk has come by.
    pub(super) fn unvisited(&self) -> Option<Arc<Event>> {
        let events = self.unvisited.iter().filter_map(|path| self.paths.get(path)).flat_map(At::all);
        events.min_by_key(|event| event.ordinal).cloned()
    }

    /// All changes of needs so far, one over the other in the order in which they were recorded.
    pub(super) fn directed(&self) -> Requirements {
        self.directives.values().fold(Requirements::default(), |all, patch| overlay(&all, patch))
    }
}

/// The events that stand: all but the reopenings, and what they name. `gone` hears of that.
pub(super) fn standing(events: Vec<Event>, mut gone: impl FnMut(&Event)) -> Vec<Arc<Event>> {
    let mut standing: Vec<Arc<Event>> = Vec::with_capacity(events.len());
    for event in events {
        let EventBody::Reopened { again } = &event.body else {
            standing.push(Arc::new(event));
            continue;
        };
        let again = disjoint(again);
        standing.retain(|event| {
            let before = again.partition_point(|(first, _)| *first <= event.ordinal);
            let stands = before == 0 || again[before - 1].1 < event.ordinal;
            if !stands {
                gone(event);
            }
            stands
        });
    }
    standing
}

/// Runs of ordinals in their order, without overlaps.
fn disjoint(ranges: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut disjoint: Vec<(i64, i64)> = Vec::with_capacity(sorted.len());
    for (first, last) in sorted {
        match disjoint.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => disjoint.push((first, last)),
        }
    }
    disjoint
}

/// Ordinals as runs.
pub(super) fn runs(ordinals: &BTreeSet<i64>) -> Vec<(i64, i64)> {
    disjoint(&ordinals.iter().map(|ordinal| (*ordinal, *ordinal)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_are_kept_as_runs_that_do_not_overlap() {
        assert_eq!(runs(&BTreeSet::from([3, 1, 2, 7, 9, 8])), [(1, 3), (7, 9)]);
        assert_eq!(disjoint(&[(5, 5), (3, 9), (12, 13), (10, 10)]), [(3, 10), (12, 13)]);
        assert!(runs(&BTreeSet::new()).is_empty());
    }
}
