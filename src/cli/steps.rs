//! The recorded events of a recipe, for people: as a tree when all are known, and line by line while they come.

use std::{collections::BTreeSet, time::Duration};

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{Failure, JobId, JobState, Namespace, execution::payload},
    error::StoreError,
    ports::recipe::{Event, EventBody, RecipeStore, TaskOutcome},
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::output;

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

/// One event as programs read it.
#[derive(Debug, Serialize)]
pub(super) struct Line<'e> {
    ordinal: i64,
    path: &'e str,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'e RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'e Failure>,
    /// The change of needs that was stored with the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    directive: Option<&'e RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    child: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<JobState>,
    /// Of a reopening: the first and the last of each run of ordinals that count as unfinished from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    unfinished: Option<&'e [(i64, i64)]>,
    at: DateTime<Utc>,
    worker: Option<String>,
    epoch: i64,
}

impl<'e> Line<'e> {
    pub(super) fn of(event: &'e Event) -> Self {
        // What the store gives is JSON.
        let raw = |text: &'e str| serde_json::from_str::<&RawValue>(text).ok();
        let mut line = Self {
            ordinal: event.ordinal,
            path: &event.path,
            event: "task",
            op: None,
            attempt: None,
            outcome: None,
            output: None,
            failure: None,
            directive: None,
            deadline: None,
            signal: None,
            child: None,
            state: None,
            unfinished: None,
            at: event.at,
            worker: event.worker.as_ref().map(ToString::to_string),
            epoch: event.epoch.0,
        };
        match &event.body {
            EventBody::Task { op, attempt, outcome, directive, .. } => {
                (line.op, line.attempt) = (Some(op.as_str()), Some(*attempt));
                line.directive = directive.as_deref().and_then(raw);
                match outcome {
                    TaskOutcome::Succeeded { output } => {
                        (line.outcome, line.output) = (Some("succeeded"), raw(output));
                    }
                    TaskOutcome::Failed(failure) => {
                        (line.outcome, line.failure) = (Some("failed"), Some(failure));
                    }
                    TaskOutcome::Canceled => line.outcome = Some("canceled"),
                }
            }
            EventBody::TimerSet { deadline } => (line.event, line.deadline) = ("timer_set", Some(*deadline)),
            EventBody::TimerFired => line.event = "timer_fired",
            EventBody::Signal { name, data, .. } => {
                (line.event, line.signal, line.output) = ("signal", Some(name.as_str()), raw(data));
            }
            EventBody::ChildStarted { job } => (line.event, line.child) = ("child_started", Some(*job)),
            EventBody::ChildEnded { job, state, output, failure } => {
                (line.event, line.child, line.state) = ("child_ended", Some(*job), Some(*state));
                (line.output, line.failure) = (output.as_deref().and_then(raw), failure.as_ref());
            }
            EventBody::Reopened { again } => {
                (line.event, line.unfinished) = ("reopened", Some(again.as_slice()))
            }
        }
        line
    }
}

/// One event as programs read it beside a job: without its values.
#[derive(Debug, Serialize)]
pub(super) struct Brief<'e> {
    ordinal: i64,
    path: &'e str,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempt: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'e Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    child: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<JobState>,
    at: DateTime<Utc>,
    worker: Option<String>,
    epoch: i64,
}

impl<'e> Brief<'e> {
    pub(super) fn of(event: &'e Event) -> Self {
        let Line {
            ordinal,
            path,
            event,
            op,
            attempt,
            outcome,
            failure,
            deadline,
            signal,
            child,
            state,
            at,
            worker,
            epoch,
            ..
        } = Line::of(event);
        Self {
            ordinal,
            path,
            event,
            op,
            attempt,
            outcome,
            failure,
            deadline,
            signal,
            child,
            state,
            at,
            worker,
            epoch,
        }
    }

    /// The op of a task; of another event what it was.
    pub(super) fn what(&self) -> String {
        match (self.op, self.signal, self.child) {
            (Some(op), ..) => op.to_owned(),
            (_, Some(signal), _) => format!("signal {signal}"),
            (.., Some(child)) => format!("{} {child}", self.event.replace('_', " ")),
            _ => self.event.replace('_', " "),
        }
    }

    /// How it came out, and where it failed, why.
    pub(super) fn outcome_words(&self) -> Option<String> {
        let state = self.state.map(|state| state.to_string());
        let outcome = self.outcome.map(str::to_owned).or(state);
        match (outcome, self.failure, self.deadline) {
            (Some(outcome), Some(failure), _) => Some(format!("{outcome}: {}", failed(failure))),
            (Some(outcome), ..) => Some(outcome),
            (None, _, Some(deadline)) => Some(format!("until {}", output::instant(deadline))),
            (None, ..) => None,
        }
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

/// A node of the tree: a part of a path.
#[derive(Debug, Default)]
struct Node<'e> {
    name: &'e str,
    events: Vec<&'e Event>,
    children: Vec<Node<'e>>,
}

impl<'e> Node<'e> {
    fn put(&mut self, path: &'e str, event: &'e Event) {
        let (first, rest) = path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
        let place = match self.children.iter().position(|child| child.name == first) {
            Some(place) => place,
            None => {
                self.children.push(Self { name: first, ..Self::default() });
                self.children.len() - 1
            }
        };
        match rest {
            Some(rest) => self.children[place].put(rest, event),
            None => self.children[place].events.push(event),
        }
    }

    fn show(&self, before: &str, reopened: &Reopened<'_>, since: DateTime<Utc>, out: &mut Vec<[String; 4]>) {
        for (number, child) in self.children.iter().enumerate() {
            let last = number + 1 == self.children.len();
            let name = format!("{before}{}{}", if last { "└─ " } else { "├─ " }, child.name);
            let mut cells = [name, String::new(), String::new(), String::new()];
            if let Some(event) = child.events.last() {
                cells[1..].clone_from_slice(&match reopened.of(event) {
                    None => {
                        let worker =
                            event.worker.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
                        [worker, elapsed(since, event.at), result(event)]
                    }
                    Some(by) => {
                        ["-".to_owned(), elapsed(since, by.at), "↻ reopened, unfinished again".to_owned()]
                    }
                });
            }
            out.push(cells);
            child.show(&format!("{before}{}", if last { "   " } else { "│  " }), reopened, since, out);
        }
    }
}

/// The reopenings of a job.
struct Reopened<'e>(Vec<(&'e [(i64, i64)], &'e Event)>);

impl<'e> Reopened<'e> {
    fn in_log(events: &'e [Event]) -> Self {
        let reopened = events.iter().filter_map(|event| match &event.body {
            EventBody::Reopened { again } => Some((again.as_slice(), event)),
            _ => None,
        });
        Self(reopened.collect())
    }

    /// The last reopening by which an event counts as unfinished.
    fn of(&self, event: &Event) -> Option<&'e Event> {
        let names =
            |again: &[(i64, i64)]| again.iter().any(|(first, last)| (first..=last).contains(&&event.ordinal));
        self.0.iter().rev().find(|(again, _)| names(again)).map(|(_, by)| *by)
    }
}

/// The tree: step, worker, time since the submission, what came of it. Steps stand in the order in which they were
/// first recorded; a step with several events shows the last, and one that was reopened says so until it is done again.
pub(super) fn tree(events: &[Event], submitted_at: DateTime<Utc>) -> Vec<[String; 4]> {
    let mut root = Node::default();
    for event in events {
        match &event.body {
            EventBody::Reopened { .. } if event.path.is_empty() => root.put("(root)", event),
            EventBody::Reopened { .. } => {}
            _ => root.put(if event.path.is_empty() { "(root)" } else { &event.path }, event),
        }
    }
    let mut rows = Vec::new();
    root.show("", &Reopened::in_log(events), submitted_at, &mut rows);
    rows
}

/// The same as a table on standard output.
pub(super) fn table(events: &[Event], submitted_at: DateTime<Utc>) -> Result<(), super::CliError> {
    let mut table = output::Listing::new(&["step", "worker", "time", "result"]);
    for row in tree(events, submitted_at) {
        table.row(row.to_vec());
    }
    if events.is_empty() { Ok(()) } else { table.print() }
}

/// The last handoff, as it is published: what was needed, what was there.
pub(super) fn handoff(client_payload: &str) -> Option<String> {
    let published = payload::read(client_payload).ok().flatten()?;
    let there = published.allocation.as_ref()?;
    let there = if there.is_empty() { "nothing that is known".to_owned() } else { there.to_string() };
    Some(format!("handoff: the next task needs {}; the worker has {there}", published.requirements))
}

/// Tells of a job's events as they come, and of its handoffs.
#[derive(Debug, Default)]
pub(super) struct Steps {
    after: i64,
    headed: BTreeSet<String>,
    handoff: Option<String>,
}

impl Steps {
    /// Tells what came since the last time. True when there was anything.
    pub(super) async fn tell(
        &mut self,
        store: &impl RecipeStore,
        namespace: &Namespace,
        job: JobId,
        submitted_at: DateTime<Utc>,
        client_payload: &str,
    ) -> Result<bool, StoreError> {
        let mut any = false;
        loop {
            let page = store.events(namespace, job, self.after).await?;
            let Some(last) = page.last() else { break };
            self.after = last.ordinal;
            any = true;
            for event in &page {
                for line in self.lines(event, submitted_at) {
                    output::note(&line);
                }
            }
        }
        if let Some(line) = self.handoff(client_payload) {
            output::note(&line);
            any = true;
        }
        Ok(any)
    }

    /// The steps around an event that no line has named yet, and the event.
    fn lines(&mut self, event: &Event, submitted_at: DateTime<Utc>) -> Vec<String> {
        let mut lines = Vec::new();
        let parts: Vec<&str> = event.path.split('/').collect();
        for depth in 1..parts.len() {
            if self.headed.insert(parts[..depth].join("/")) {
                lines.push(format!("  {}{}", "  ".repeat(depth - 1), parts[depth - 1]));
            }
        }
        let (mark, what) = words(event);
        let place = event.worker.as_ref().map_or_else(String::new, |worker| format!(" on {worker}"));
        lines.push(format!(
            "  {}{mark} {}  {what}{place}, {}",
            "  ".repeat(parts.len() - 1),
            parts.last().copied().unwrap_or_default(),
            elapsed(submitted_at, event.at)
        ));
        lines
    }

    /// A handoff that has not been told.
    fn handoff(&mut self, client_payload: &str) -> Option<String> {
        let line = handoff(client_payload)?;
        if self.handoff.as_ref() == Some(&line) {
            return None;
        }
        self.handoff = Some(line.clone());
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_actors::domain::{Epoch, FailureKind, WorkerId};

    use super::*;

    fn event(ordinal: i64, path: &str, body: EventBody) -> Event {
        let at = DateTime::from_timestamp(1_000_000_000 + ordinal, 0).unwrap();
        let worker = Some(WorkerId::new("w-1").unwrap());
        Event { ordinal, path: path.to_owned(), body, at, worker, epoch: Epoch(3) }
    }

    fn task(outcome: TaskOutcome) -> EventBody {
        let directive = None;
        EventBody::Task {
            op: "command".to_owned(),
            input_hash: "h".to_owned(),
            attempt: 1,
            outcome,
            directive,
        }
    }

    fn events() -> Vec<Event> {
        let ok = |text: &str| task(TaskOutcome::Succeeded { output: Arc::from(text) });
        vec![
            event(1, "probe", ok("{\"memory\": 123456789012345678901234567890}")),
            event(
                2,
                "work/poll#1/fetch!1",
                task(TaskOutcome::Failed(Failure::new(FailureKind::User, "3", "no\u{1b}[2J"))),
            ),
            event(3, "work/poll#1/fetch!2", ok("null")),
            event(
                4,
                "pause",
                EventBody::TimerSet { deadline: DateTime::from_timestamp(1_000_000_060, 0).unwrap() },
            ),
            event(5, "pause", EventBody::TimerFired),
        ]
    }

    #[test]
    fn events_make_a_tree_in_which_each_step_stands_once() {
        let rows = tree(&events(), DateTime::from_timestamp(1_000_000_000, 0).unwrap());
        let shown: Vec<String> = rows.iter().map(|row| row.join("|")).collect();
        assert_eq!(
            shown,
            [
                "├─ probe|w-1|+1.0s|✓ command: {\"memory\": 123456789012345678901234567890}",
                "├─ work|||",
                "│  └─ poll#1|||",
                "│     ├─ fetch!1|w-1|+2.0s|✗ command: USER 3: no\\x1b[2J",
                "│     └─ fetch!2|w-1|+3.0s|✓ command",
                "└─ pause|w-1|+5.0s|✓ timer fired",
            ]
        );
    }

    #[test]
    fn a_reopened_step_says_so_until_it_is_done_again() {
        let mut events = events();
        events.push(event(6, "work/poll#1/fetch!1", EventBody::Reopened { again: vec![(2, 2), (5, 5)] }));
        let since = DateTime::from_timestamp(1_000_000_000, 0).unwrap();
        let shown = |events: &[Event]| -> Vec<String> {
            tree(events, since).iter().map(|row| format!("{}|{}", row[0], row[3])).collect()
        };
        let tree = shown(&events);
        assert_eq!(tree[3], "│     ├─ fetch!1|↻ reopened, unfinished again");
        assert_eq!(tree[5], "└─ pause|↻ reopened, unfinished again");
        assert_eq!(tree[4], "│     └─ fetch!2|✓ command");
        events.push(event(7, "work/poll#1/fetch!1", task(TaskOutcome::Succeeded { output: Arc::from("1") })));
        assert_eq!(shown(&events)[3], "│     ├─ fetch!1|✓ command: 1");
        let lines = Steps::default().lines(&events[5], since);
        assert_eq!(lines[2], "      ↻ fetch!1  reopened: 2 records count as unfinished on w-1, +6.0s");
    }

    #[test]
    fn programs_get_each_event_with_its_values_as_they_were_recorded() {
        let all = events();
        let lines: Vec<String> =
            all.iter().map(|event| serde_json::to_string(&Line::of(event)).unwrap()).collect();
        assert_eq!(
            lines[0],
            r#"{"ordinal":1,"path":"probe","event":"task","op":"command","attempt":1,"outcome":"succeeded","output":{"memory": 123456789012345678901234567890},"at":"2001-09-09T01:46:41Z","worker":"w-1","epoch":3}"#
        );
        assert!(
            lines[3].contains(r#""event":"timer_set","deadline":"2001-09-09T01:47:40Z""#),
            "{}",
            lines[3]
        );
    }

    #[test]
    fn live_lines_name_each_step_around_once_and_a_handoff_once() {
        let mut steps = Steps::default();
        let since = DateTime::from_timestamp(1_000_000_000, 0).unwrap();
        let lines: Vec<String> = events().iter().flat_map(|event| steps.lines(event, since)).collect();
        assert_eq!(
            lines[1..5],
            [
                "  work".to_owned(),
                "    poll#1".to_owned(),
                "      ✗ fetch!1  command: USER 3: no\\x1b[2J on w-1, +2.0s".to_owned(),
                "      ✓ fetch!2  command on w-1, +3.0s".to_owned(),
            ]
        );
        let payload = r#"{"execution": {"version": 1, "requirements": {"resources": {"memory": "16Gi"}}, "allocation": {"resources": {"memory": "2Gi"}}}}"#;
        assert_eq!(
            steps.handoff(payload).unwrap(),
            "handoff: the next task needs memory=16Gi; the worker has memory=2Gi"
        );
        assert_eq!(steps.handoff(payload), None);
        assert_eq!(steps.handoff("null"), None);
    }
}
