//! All events of a job as a tree.

use chrono::{DateTime, Utc};
use leasehold_actors::ports::recipe::{Event, EventBody};

use super::{
    super::{CliError, output},
    elapsed, result,
};

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
pub(in crate::cli) fn table(events: &[Event], submitted_at: DateTime<Utc>) -> Result<(), CliError> {
    let mut table = output::Listing::new(&["step", "worker", "time", "result"]);
    for row in tree(events, submitted_at) {
        table.row(row.to_vec());
    }
    if events.is_empty() { Ok(()) } else { table.print() }
}
