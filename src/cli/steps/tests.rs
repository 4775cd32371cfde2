use std::sync::Arc;

use leasehold_actors::domain::{Epoch, FailureKind, WorkerId};

use super::{tree::tree, *};
use crate::postgres::read::LeaseRow;

fn event(ordinal: i64, path: &str, body: EventBody) -> Event {
    let at = DateTime::from_timestamp(1_000_000_000 + ordinal, 0).unwrap();
    let worker = Some(WorkerId::new("w-1").unwrap());
    Event { ordinal, path: path.to_owned(), body, at, worker, epoch: Epoch(3) }
}

fn task(outcome: TaskOutcome) -> EventBody {
    let directive = None;
    EventBody::Task { op: "command".to_owned(), input_hash: "h".to_owned(), attempt: 1, outcome, directive }
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
    assert!(lines[3].contains(r#""event":"timer_set","deadline":"2001-09-09T01:47:40Z""#), "{}", lines[3]);
}

#[test]
fn live_lines_name_each_step_around_once() {
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
}

/// Leases as `job show` has them: those named in `handed` ended by a handoff, the last one is held.
fn leases(count: i64, handed: &[(i64, &str)]) -> Vec<LeaseRow> {
    let lease = |epoch: i64| {
        let why = handed.iter().find(|(of, _)| *of == epoch).map(|(_, why)| why);
        serde_json::from_value(serde_json::json!({
            "epoch": epoch, "attempt": 1, "worker": "w", "process": "p", "node": null, "container": null,
            "granted_at": "2026-01-01T00:00:00Z", "ended_at": (epoch < count).then_some("2026-01-01T00:00:01Z"),
            "how": "rescheduled", "renewals": 0, "expires_at": null, "exit_code": null, "due_at": null,
            "failure": why.map(|why| serde_json::json!({ "kind": null, "code": "handoff", "message": why })),
        }))
        .unwrap()
    };
    (1..=count).map(lease).collect()
}

#[test]
fn every_handoff_is_told_once_and_where_it_happened() {
    let since = DateTime::from_timestamp(1_000_000_000, 0).unwrap();
    let done = |ordinal, path: &str, epoch| {
        let ok = TaskOutcome::Succeeded { output: Arc::from("null") };
        Event { epoch: Epoch(epoch), ..event(ordinal, path, task(ok)) }
    };
    let log = [done(1, "a", 1), done(2, "b", 4), done(3, "c", 5)];
    let short = |told: (Vec<String>, bool)| {
        let word = |line: &String| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        (told.0.iter().map(word).collect::<Vec<_>>(), told.1)
    };

    // Two between two looks, and one that was no handoff.
    let mut steps = Steps::default();
    let handed = [(1, "one"), (2, "two"), (4, "four")];
    let told = short(steps.next(&log, &leases(5, &handed), since, false));
    let all = ["✓ a", "handoff: one", "handoff: two", "✓ b", "handoff: four", "✓ c"];
    assert_eq!(told, (all.map(str::to_owned).to_vec(), true));
    assert_eq!(short(steps.next(&[], &leases(5, &handed), since, false)), (vec![], true));

    // The job was read before its second lease, and its log after the third had begun.
    let mut steps = Steps::default();
    let told = short(steps.next(&log, &leases(1, &[]), since, false));
    assert_eq!(told, (vec!["✓ a".to_owned()], false), "what came later waits for the next look");
    let told = short(steps.next(&log[1..], &leases(5, &handed), since, true));
    assert_eq!(told, (all[1..].iter().map(|line| (*line).to_owned()).collect(), true));

    // Nothing recorded yet.
    let mut steps = Steps::default();
    assert_eq!(steps.next(&[], &leases(3, &[(2, "two")]), since, false).0, ["handoff: two"]);
}
