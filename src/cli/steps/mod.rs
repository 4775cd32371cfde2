//! The recorded events of a recipe, for people: as a tree when all are known, and line by line while they come; and as
//! JSON, for programs.

mod json;
mod live;
#[cfg(test)]
mod tests;
mod tree;

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{Failure, JobId, JobState, Namespace},
    error::StoreError,
    ports::recipe::{Event, EventBody, RecipeStore, TaskOutcome},
};

use super::output;

pub(super) use json::{Brief, Line};
pub(super) use live::{Steps, handoff};
pub(super) use tree::table;

/// The most characters of an output or message in a line.
const SHOWN: usize = 60;

/// All events of a job.
pub(super) async fn all(
    store: &impl RecipeStore,
    namespace: &Namespace,
    job: JobId,
) -> Result<Vec<Event>, StoreError> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let page = store.events(namespace, job, events.last().map_or(0, |last| last.ordinal)).await?;
        if page.is_empty() {
            return Ok(events);
        }
        events.extend(page);
    }
}

/// A mark and the words for what an event says.
fn words(event: &Event) -> (char, String) {
    match &event.body {
        EventBody::Task { op, outcome, directive, .. } => {
            let asks =
                directive.as_deref().map_or_else(String::new, |patch| format!(", asks for {}", cut(patch)));
            match outcome {
                TaskOutcome::Succeeded { output } if &**output == "null" => ('✓', format!("{op}{asks}")),
                TaskOutcome::Succeeded { output } => ('✓', format!("{op}: {}{asks}", cut(output))),
                TaskOutcome::Failed(failure) => ('✗', format!("{op}: {}", failed(failure))),
                TaskOutcome::Canceled => ('-', format!("{op}: canceled")),
            }
        }
        EventBody::TimerSet { deadline } => ('…', format!("timer until {}", output::instant(*deadline))),
        EventBody::TimerFired => ('✓', "timer fired".to_owned()),
        EventBody::Signal { name, data, .. } => ('✓', format!("signal {name}: {}", cut(data))),
        EventBody::ChildStarted { job } => ('…', format!("job {job} started")),
        EventBody::ChildEnded { job, state: JobState::Completed, .. } => {
            ('✓', format!("job {job} COMPLETED"))
        }
        EventBody::ChildEnded { job, state, failure, .. } => {
            let why = failure.as_ref().map_or_else(String::new, |failure| format!(": {}", failed(failure)));
            ('✗', format!("job {job} {state}{why}"))
        }
        EventBody::Reopened { again } => {
            let records: i64 = again.iter().map(|(first, last)| last - first + 1).sum();
            let what = if records == 1 { "record counts" } else { "records count" };
            ('↻', format!("reopened: {records} {what} as unfinished"))
        }
    }
}

/// What came of a step, in a few words.
pub(super) fn result(event: &Event) -> String {
    let (mark, what) = words(event);
    format!("{mark} {what}")
}

fn failed(failure: &Failure) -> String {
    cut(&format!("{} {}: {}", failure.kind, failure.code, failure.message))
}

fn cut(text: &str) -> String {
    let text = super::one_line(text);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

fn elapsed(since: DateTime<Utc>, at: DateTime<Utc>) -> String {
    let passed = (at - since).to_std().unwrap_or(Duration::ZERO);
    format!("+{:.1}s", passed.as_secs_f64())
}
