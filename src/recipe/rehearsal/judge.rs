//! What came of a test, against what it expects; and what a crash changed, which must be nothing.

use std::{collections::BTreeMap, time::Duration};

use leasehold_actors::{
    domain::{Failure, JobState},
    ports::recipe::{Event, EventBody, TaskOutcome},
};

use super::{
    file::{Expect, Test},
    play::Played,
    span,
};
use crate::recipe::{
    Mistake, Place,
    canonical::{canonical, canonical_value},
    exact::Json,
};

/// Everything that is not as the test says.
pub(super) fn judge(file: &str, test: &Test, played: &Played) -> Vec<Mistake> {
    let mut found = Judge { file, problems: played.problems.clone() };
    // What follows from a fixture that is missing is nothing to report.
    if found.problems.is_empty() {
        found.end(&test.expect, played);
        found.way(&test.expect, played);
        found.problems.extend(played.unused.iter().cloned());
    }
    found.problems.sort();
    found.problems.dedup();
    found.problems
}

struct Judge<'a> {
    file: &'a str,
    problems: Vec<Mistake>,
}

impl Judge<'_> {
    fn tell(&mut self, place: Place, message: String) {
        self.problems.push(Mistake { file: self.file.to_owned(), place, message });
    }

    fn end(&mut self, expect: &Expect, played: &Played) {
        let (place, state) = expect.state;
        if state != played.state {
            let word = |state: Option<JobState>| state.map_or("WAITING", JobState::as_str);
            let why = match (&played.failure, played.state) {
                (Some(failure), _) => format!(": {}", said(failure)),
                (None, None) => format!(": {}", played.waits),
                (None, Some(_)) => String::new(),
            };
            self.tell(place, format!("state: expected {}, found {}{why}", word(state), word(played.state)));
        }
        if let Some((place, output)) = &expect.output {
            let wanted = canonical_value(output);
            let found = played.output.as_deref().map(plain);
            if found.as_ref() != Some(&wanted) {
                let found = found.unwrap_or_else(|| "none".to_owned());
                self.tell(*place, format!("output: expected {wanted}, found {found}"));
            }
        }
        if let Some(expected) = &expect.failure {
            let found = played.failure.as_ref();
            let fits = found.is_some_and(|failure| {
                expected.kind.is_none_or(|kind| kind == failure.kind)
                    && expected.code.as_ref().is_none_or(|code| *code == failure.code)
                    && expected.message.as_ref().is_none_or(|part| failure.message.contains(part))
            });
            if !fits {
                let mut wanted: Vec<String> = Vec::new();
                wanted.extend(expected.kind.map(|kind| kind.to_string()));
                wanted.extend(expected.code.clone());
                wanted.extend(expected.message.as_ref().map(|part| format!("{part:?}")));
                let found = found.map_or_else(|| "none".to_owned(), said);
                self.tell(expected.place, format!("failure: expected {}, found {found}", wanted.join(" ")));
            }
        }
        if let Some((place, payload)) = &expect.payload {
            let wanted = canonical_value(payload);
            let found = match Json::parse(&played.payload) {
                Ok(Json::Object(mut members)) => {
                    members.remove("execution");
                    canonical_value(&Json::Object(members))
                }
                _ => plain(&played.payload),
            };
            if found != wanted {
                self.tell(*place, format!("payload: expected {wanted}, found {found}"));
            }
        }
    }

    fn way(&mut self, expect: &Expect, played: &Played) {
        if let Some((place, tasks)) = &expect.tasks {
            let found: Vec<(&str, String)> = tasks_of(&played.events)
                .map(|event| {
                    let worker = event.worker.as_ref().map_or_else(String::new, |w| format!(" on {w}"));
                    (event.path.as_str(), format!("{}{worker}", event.path))
                })
                .collect();
            let fits = |wanted: &str, (path, on): &(&str, String)| wanted == *path || wanted == on;
            let wrong = tasks
                .iter()
                .enumerate()
                .find(|(n, (_, wanted))| found.get(*n).is_none_or(|found| !fits(wanted, found)));
            if let Some((n, (place, wanted))) = wrong {
                let found = found.get(n).map_or("no more tasks", |(_, on)| on);
                self.tell(*place, format!("task {}: expected {wanted}, found {found}", n + 1));
            } else if let Some((_, more)) = found.get(tasks.len()) {
                self.tell(*place, format!("task {}: expected no more tasks, found {more}", tasks.len() + 1));
            }
        }
        if let Some((place, handoffs)) = &expect.handoffs {
            for (n, wanted) in handoffs.iter().enumerate() {
                let found = played.handoffs.get(n);
                let fits = found.is_some_and(|found| {
                    found.path == wanted.path
                        && wanted.from.as_ref().is_none_or(|from| *from == found.from)
                        && wanted.needs.as_ref().is_none_or(|needs| *needs == found.needs)
                });
                if !fits {
                    let found = found.map_or_else(
                        || "no more handoffs".to_owned(),
                        |found| format!("{} from {}, needs {}", found.path, found.from, found.needs),
                    );
                    let from = wanted.from.as_ref().map_or_else(String::new, |from| format!(" from {from}"));
                    let needs = wanted.needs.as_ref().map_or_else(String::new, |n| format!(", needs {n}"));
                    let message =
                        format!("handoff {}: expected {}{from}{needs}, found {found}", n + 1, wanted.path);
                    self.tell(wanted.place, message);
                    break;
                }
            }
            if let Some(more) = played.handoffs.get(handoffs.len()) {
                let message = format!("expected no more handoffs, found {} from {}", more.path, more.from);
                self.tell(*place, message);
            }
        }
        if let Some((place, took)) = expect.took
            && played.took.abs_diff(took) >= Duration::from_secs(1)
        {
            self.tell(place, format!("took: expected {}, found {}", span(took), span(played.took)));
        }
    }
}

pub(super) fn tasks_of(events: &[Event]) -> impl Iterator<Item = &Event> {
    events.iter().filter(|event| matches!(event.body, EventBody::Task { .. }))
}

fn said(failure: &Failure) -> String {
    format!("{} {}: {}", failure.kind, failure.code, failure.message)
}

/// Numbers by value, keys in order.
fn plain(json: &str) -> String {
    canonical(json).unwrap_or_else(|_| json.to_owned())
}

/// The first thing in which a run with crashes differs from one without: the end, and every recorded effect. Times
/// differ, and what was cancelled for a failed sibling may have been told so earlier or later.
pub(super) fn difference(without: &Played, with: &Played) -> Option<String> {
    if let Some(problem) = with.problems.iter().find(|problem| !without.problems.contains(problem)) {
        return Some(problem.message.clone());
    }
    let (records, found) = (records(&without.events), records(&with.events));
    for event in without.events.iter().chain(&with.events) {
        let Some((key, _)) = record(event) else { continue };
        let word = |said: Option<&String>| said.cloned().unwrap_or_else(|| "nothing".to_owned());
        let (one, other) = (records.get(&key), found.get(&key));
        if one != other {
            return Some(format!(
                "at {}: recorded was {} without a crash, and {} with it",
                event.path,
                word(one),
                word(other)
            ));
        }
    }
    let end = |played: &Played| {
        let state = played.state.map_or("WAITING", JobState::as_str);
        let failure =
            played.failure.as_ref().map_or_else(String::new, |failure| format!(" ({})", said(failure)));
        let output =
            played.output.as_deref().map_or_else(String::new, |output| format!(", output {}", plain(output)));
        format!("{state}{failure}{output}")
    };
    let (one, other) = (end(without), end(with));
    (one != other).then(|| format!("the job ended as {one} without a crash, and as {other} with it"))
}

type RecordKey<'e> = (&'e str, &'static str);

fn records(events: &[Event]) -> BTreeMap<RecordKey<'_>, String> {
    events.iter().filter_map(record).collect()
}

fn record(event: &Event) -> Option<(RecordKey<'_>, String)> {
    let (sort, says) = match &event.body {
        EventBody::Task { outcome: TaskOutcome::Canceled, .. } => return None,
        EventBody::Task { op, input_hash, attempt, outcome, directive } => {
            let outcome = match outcome {
                TaskOutcome::Succeeded { output } => plain(output),
                TaskOutcome::Failed(failure) => said(failure),
                TaskOutcome::Canceled => String::new(),
            };
            let asks = directive.as_deref().map_or_else(String::new, |asks| format!(", asks for {asks}"));
            let input = input_hash.get(..8).unwrap_or_default();
            ("task", format!("{outcome} of op {op} (attempt {attempt}, input {input}){asks}"))
        }
        EventBody::TimerSet { .. } => ("timer_set", "a timer".to_owned()),
        EventBody::TimerFired => ("timer_fired", "a timer's end".to_owned()),
        EventBody::Signal { name, data, .. } => ("signal", format!("signal {name}: {}", plain(data))),
        EventBody::ChildStarted { .. } => ("child_started", "a child".to_owned()),
        EventBody::ChildEnded { state, output, .. } => {
            let output = output.as_deref().map_or_else(String::new, |output| format!(": {}", plain(output)));
            ("child_ended", format!("a child's end as {state}{output}"))
        }
        EventBody::Reopened { .. } => return None,
    };
    Some(((event.path.as_str(), sort), says))
}

/// What an event is called in a report.
pub(super) fn named(event: &Event) -> String {
    let sort = record(event).map_or("canceled", |((_, sort), _)| sort);
    format!("event {} ({sort} at {})", event.ordinal, event.path)
}
