//! A short history in which nothing is wrong, for forgeries to begin with.

use super::history::{
    Accepted, EndEvent, EndOp, History, Holder, Kind, LeaseEvent, Micros, Outcome, Past, PermitSample, Run,
    SECOND, Seen, SlotSample, Writer,
};

const LEASE: Micros = 5 * SECOND;
/// Handler's job: lost by worker `a` (epoch 1), taken over by `b` (2), run again by `b` (3) and completed.
pub const LOST: i64 = 1;
/// Container's job: fails with code 7.
pub const BOX: i64 = 2;
/// Handler's job: cancelled while it runs.
pub const CANCELED: i64 = 3;

pub fn holder(job: i64, epoch: i64, owner: &str, expires: Micros) -> Holder {
    Holder { epoch, token: format!("token-{job}-{epoch}"), owner: owner.to_owned(), expires }
}

pub fn event(at: Micros, job: i64, before: Option<Holder>, after: Option<Holder>, claim: i64) -> LeaseEvent {
    LeaseEvent {
        at,
        job,
        before,
        after,
        claim_epoch: claim,
        lease: LEASE,
        cancel: false,
        postponed: false,
        node: (job == BOX).then(|| "n1".to_owned()),
        container: None,
        member: None,
    }
}

fn past(job: i64, epoch: i64, how: &str, owner: &str, span: [Micros; 2], attempt: i32) -> Past {
    Past {
        job,
        epoch,
        how: how.to_owned(),
        owner: owner.to_owned(),
        granted: span[0],
        ended: span[1],
        attempt,
        kind: None,
        code: None,
    }
}

fn end(at: Micros, job: i64, state: &str, epoch: i64, attempt: i32) -> EndEvent {
    let (op, code, failures) = (EndOp::Came, None, [0; 3]);
    EndEvent { at, job, op, state: state.to_owned(), code, epoch, attempt, failures }
}

pub fn run(job: i64, epoch: i64, writer: Writer, ticks: &[Micros], ended: bool, closed: Micros) -> Run {
    let (started, last) = (ticks[0], ticks[ticks.len() - 1]);
    let ended = ended.then_some(last);
    Run { job, epoch, writer, started, ticks: ticks.to_vec(), ended, closed: Some(closed) }
}

/// A short history in which nothing is wrong: a worker is killed, a container fails as it should, a job is
/// cancelled.
pub fn sound() -> History {
    let s = SECOND;
    let (a, b) = (Writer::Handler { pid: 10 }, Writer::Handler { pid: 20 });
    let h = |job, epoch, owner, expires| Some(holder(job, epoch, owner, expires));
    let mut leases = vec![
        event(s, LOST, None, h(LOST, 1, "a", 6 * s), 1),
        event(2 * s, LOST, h(LOST, 1, "a", 6 * s), h(LOST, 1, "a", 7 * s), 1),
        event(8 * s, LOST, h(LOST, 1, "a", 7 * s), h(LOST, 2, "b", 13 * s), 1),
        event(9 * s, LOST, h(LOST, 2, "b", 13 * s), None, 1),
        event(10 * s, LOST, None, h(LOST, 3, "b", 15 * s), 3),
        event(11 * s, LOST, h(LOST, 3, "b", 15 * s), h(LOST, 3, "b", 16 * s), 3),
        event(12 * s, LOST, h(LOST, 3, "b", 16 * s), None, 3),
        event(s, BOX, None, h(BOX, 1, "b", 6 * s), 1),
        event(2 * s, BOX, h(BOX, 1, "b", 6 * s), h(BOX, 1, "b", 7 * s), 1),
        event(5 * s, BOX, h(BOX, 1, "b", 7 * s), None, 1),
        event(s, CANCELED, None, h(CANCELED, 1, "b", 6 * s), 1),
        event(2 * s, CANCELED, h(CANCELED, 1, "b", 6 * s), h(CANCELED, 1, "b", 6 * s), 1),
        event(3 * s, CANCELED, h(CANCELED, 1, "b", 6 * s), None, 1),
    ];
    leases[11].cancel = true;
    leases[8].container = Some("c1".to_owned());
    let mut failed = past(BOX, 1, "failed", "b", [s, 5 * s], 1);
    (failed.kind, failed.code) = (Some("USER".to_owned()), Some("7".to_owned()));
    let mut lost = past(LOST, 2, "retrying", "b", [8 * s, 9 * s], 1);
    (lost.kind, lost.code) = (Some("SYSTEM".to_owned()), Some("lease_lost".to_owned()));
    let job = |job, kind, outcome| Accepted { job, kind, outcome };
    let mut ends = vec![
        end(12 * s, LOST, "COMPLETED", 3, 2),
        end(5 * s, BOX, "FAILED", 1, 1),
        end(3 * s, CANCELED, "CANCELED", 1, 1),
    ];
    ends[0].failures = [0, 1, 0];
    ends[1].failures = [1, 0, 0];
    ends[1].code = Some("7".to_owned());
    History {
        accepted: vec![
            job(LOST, Kind::Handler, Outcome::Completed),
            job(BOX, Kind::Container, Outcome::Failed { code: "7".to_owned() }),
            job(CANCELED, Kind::Handler, Outcome::Canceled),
        ],
        leases,
        ends,
        past: vec![
            past(LOST, 1, "expired", "a", [s, 8 * s], 1),
            lost,
            past(LOST, 3, "completed", "b", [10 * s, 12 * s], 2),
            failed,
            past(CANCELED, 1, "canceled", "b", [s, 3 * s], 1),
        ],
        runs: vec![
            run(LOST, 1, a, &[2 * s, 3 * s, 4 * s], false, 5 * s),
            run(LOST, 3, b.clone(), &[11 * s, 11 * s + 500_000], true, 12 * s),
            run(BOX, 1, Writer::Container, &[2 * s, 3 * s, 4 * s], true, 4 * s + 100),
            run(CANCELED, 1, b, &[2 * s], false, 3 * s),
        ],
        containers: vec![Seen {
            engine: "engine-1".to_owned(),
            id: "c1".to_owned(),
            node: "n1".to_owned(),
            job: BOX,
            epoch: 1,
            last_seen: 6 * s,
        }],
        nodes: vec![("n1".to_owned(), "engine-1".to_owned()), ("n2".to_owned(), "engine-2".to_owned())],
        touched: vec![("n1".to_owned(), "c1".to_owned())],
        slots: vec![SlotSample {
            at: 3 * s,
            slots: vec![("n1".to_owned(), BOX)],
            running: vec![("n1".to_owned(), BOX)],
        }],
        permits: vec![PermitSample {
            at: 13 * s,
            worker: "b".to_owned(),
            capacity: 8,
            states: [0, 0, 0, 0, 0, 8],
            last: true,
        }],
        standing: [LOST, BOX, CANCELED].map(|job| (job, "ended".to_owned())).to_vec(),
        ..History::default()
    }
}
