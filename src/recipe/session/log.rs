//! The log of a job, folded: what stands at which path, what was asked of later tasks, and what a walk has not come by.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold_actors::{
    domain::execution::{Requirements, overlay},
    ports::recipe::{Event, EventBody, TaskOutcome},
};

use super::order;
use crate::recipe::compiled::Recipe;

/// What stands at one path. An event of each sort at most: that is how they are named.
#[derive(Debug, Clone, Default)]
pub(super) struct At {
    pub(super) task: Option<Arc<Event>>,
    pub(super) timer_set: Option<Arc<Event>>,
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
            EventBody::Reopened => return,
        };
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
}

/// A directive in the log that this program cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadDirective {
    pub(super) path: String,
    pub(super) ordinal: i64,
}

impl Log {
    /// Folds the events of a job, oldest first. What was reopened counts as if it had never been recorded.
    pub(super) fn fold(events: Vec<Event>, recipe: &Recipe) -> Result<Self, BadDirective> {
        let mut standing: Vec<Arc<Event>> = Vec::with_capacity(events.len());
        for event in events {
            if event.body == EventBody::Reopened {
                reopen(&mut standing, &event.path, recipe);
            } else {
                standing.push(Arc::new(event));
            }
        }
        let mut log = Self::default();
        for event in standing {
            log.unvisited.insert(event.path.clone());
            log.put(event)?;
        }
        Ok(log)
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

/// Takes out what a reopening makes unfinished: the path and everything behind it in the order of the document, or,
/// where it names none, the failure that ended the job and what was cancelled for it.
fn reopen(standing: &mut Vec<Arc<Event>>, path: &str, recipe: &Recipe) {
    if !path.is_empty() {
        let from = order::place(recipe, path);
        standing.retain(|event| order::place(recipe, &event.path) < from);
        return;
    }
    let failed = |event: &Event| {
        matches!(event.body, EventBody::Task { outcome: TaskOutcome::Failed(_), .. })
            || (event.body == EventBody::TimerFired && event.path.ends_with("/@timeout"))
            || matches!(event.body, EventBody::ChildEnded { failure: Some(_), .. })
    };
    let Some(last) = standing.iter().filter(|event| failed(event)).map(|event| event.ordinal).max() else {
        return;
    };
    standing.retain(|event| {
        let canceled = matches!(event.body, EventBody::Task { outcome: TaskOutcome::Canceled, .. });
        event.ordinal != last && !(canceled && event.ordinal > last)
    });
    // A timeout that is to be waited for again gets a timer of its own.
    let fired: BTreeSet<String> = standing
        .iter()
        .filter(|event| event.body == EventBody::TimerFired)
        .map(|event| event.path.clone())
        .collect();
    standing.retain(|event| {
        !matches!(event.body, EventBody::TimerSet { .. })
            || !event.path.ends_with("/@timeout")
            || event.ordinal > last
            || fired.contains(&event.path)
    });
}
