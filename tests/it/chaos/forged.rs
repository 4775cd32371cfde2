//! The checker's own test: a sound history passes, and each of these forgeries is rejected under the invariant
//! that it breaks, and (but where one thing breaks two) under no other.

use super::{
    checker::{Finding, check},
    history::{Accepted, Change, EndOp, Freeze, History, Kind, Outage, Outcome, SECOND, Writer},
    sound::{BOX, CANCELED, event, holder, run, sound},
};

fn broken(findings: &[Finding]) -> Vec<&'static str> {
    findings
        .iter()
        .filter(|finding| !finding.violations.is_empty())
        .map(|finding| finding.invariant)
        .collect()
}

/// Forges the sound history and expects exactly these invariants to be reported.
fn rejects(expected: &[&str], forgery: impl FnOnce(&mut History)) {
    let mut history = sound();
    forgery(&mut history);
    let findings = check(&history);
    assert_eq!(broken(&findings), expected, "{findings:#?}");
}

#[test]
fn a_sound_history_passes_and_was_looked_at() {
    let findings = check(&sound());
    assert_eq!(broken(&findings), [""; 0], "{findings:#?}");
    assert_eq!(findings.len(), 10);
    for finding in findings {
        assert!(finding.looked_at.iter().any(|(_, count)| *count > 0), "{finding:?}");
    }
}

#[test]
fn a_takeover_before_the_expiry_is_rejected() {
    rejects(&["L1"], |history| history.leases[2].at = 7 * SECOND - 1);
}

#[test]
fn a_grant_beside_a_grant_is_rejected() {
    rejects(&["L1"], |history| {
        let beside = event(3 * SECOND, CANCELED, None, Some(holder(CANCELED, 2, "a", 8 * SECOND)), 2);
        history.leases.insert(12, beside);
    });
}

#[test]
fn one_token_for_two_jobs_is_rejected() {
    rejects(&["L1"], |history| {
        for event in &mut history.leases[7..10] {
            for holder in [&mut event.before, &mut event.after].into_iter().flatten() {
                holder.token = "token-3-1".to_owned();
            }
        }
    });
}

#[test]
fn a_lease_cut_short_under_its_holder_is_rejected() {
    rejects(&["L1"], |history| {
        let after = history.leases[1].after.as_mut().unwrap();
        after.expires = 4 * SECOND;
        history.leases[2].before.as_mut().unwrap().expires = 4 * SECOND;
    });
}

#[test]
fn an_end_after_the_expiry_is_rejected() {
    rejects(&["L2"], |history| {
        history.leases[9].at = 8 * SECOND;
    });
}

#[test]
fn a_renewal_by_a_worker_that_does_not_hold_the_lease_is_rejected() {
    let renewal = sound().leases.iter().position(|event| event.change() == Change::Renewed).unwrap();
    rejects(&["L2"], |history| history.leases[renewal].member = Some("stranger".to_owned()));
    // By its holder's own session it is what it should be.
    let mut history = sound();
    let holder = history.leases[renewal].before.as_ref().unwrap().owner.clone();
    history.leases[renewal].member = holder.split('/').next().map(str::to_owned);
    assert_eq!(broken(&check(&history)), [""; 0]);
}

#[test]
fn an_end_in_the_name_of_somebody_else_is_rejected() {
    rejects(&["L2"], |history| history.past[2].owner = "a".to_owned());
}

#[test]
fn a_revived_lease_is_rejected() {
    rejects(&["L2", "L3"], |history| {
        let event = &mut history.leases[5];
        event.at = 16 * SECOND;
        event.after.as_mut().unwrap().expires = 21 * SECOND;
        history.leases[6].before.as_mut().unwrap().expires = 21 * SECOND;
        history.leases[6].at = 17 * SECOND;
    });
}

#[test]
fn a_takeover_that_keeps_the_epoch_is_rejected() {
    rejects(&["L4"], |history| {
        for event in &mut history.leases[2..4] {
            for holder in [&mut event.before, &mut event.after].into_iter().flatten() {
                holder.epoch = 1;
            }
        }
        history.past[1].epoch = 1;
        history.past.remove(0);
    });
}

#[test]
fn an_epoch_that_stands_in_the_books_twice_is_rejected() {
    rejects(&["L4", "L10"], |history| {
        let again = history.past[2].clone();
        history.past.push(again);
    });
}

#[test]
fn work_that_goes_on_beside_a_newer_epoch_is_rejected() {
    rejects(&["L5"], |history| {
        history.runs[0].ticks.push(11 * SECOND + 1);
        history.runs[0].closed = Some(12 * SECOND);
    });
}

#[test]
fn silent_work_that_is_still_there_beside_a_newer_epoch_is_rejected() {
    rejects(&["L5"], |history| history.runs[0].closed = None);
}

#[test]
fn a_frozen_handler_is_excused_and_counted_and_a_container_never_is() {
    let mut history = sound();
    history.runs[0].ticks.push(11 * SECOND + 1);
    history.runs[0].closed = Some(12 * SECOND);
    history.freezes.push(Freeze { pid: 10, from: 4 * SECOND, to: 11 * SECOND + 1 });
    let findings = check(&history);
    assert_eq!(broken(&findings), [""; 0], "{findings:#?}");
    let counts: Vec<usize> = findings[4].exceptions.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [1, 1, 0]);

    history.runs[0].writer = Writer::Container;
    assert_eq!(broken(&check(&history)), ["L5"]);
}

#[test]
fn a_container_out_of_reach_is_excused_and_counted_until_its_node_is_back() {
    let twice = |history: &mut History| {
        let (mut past, mut grant, mut over) =
            (history.past[3].clone(), history.leases[7].clone(), history.leases[9].clone());
        past.epoch = 2;
        (past.granted, past.ended) = (6 * SECOND, 9 * SECOND);
        history.past[3].how = "retrying".to_owned();
        history.past[3].kind = Some("SYSTEM".to_owned());
        grant.at = 6 * SECOND;
        grant.claim_epoch = 2;
        grant.after = Some(holder(BOX, 2, "b", 11 * SECOND));
        over.at = 9 * SECOND;
        over.claim_epoch = 2;
        over.before = grant.after.clone();
        history.past.push(past);
        history.leases.extend([grant, over]);
        history.ends[1].epoch = 2;
        history.ends[1].attempt = 2;
        history.ends[1].failures = [1, 1, 0];
        history.runs[2].closed = Some(9 * SECOND);
        history.runs.push(run(BOX, 2, Writer::Container, &[7 * SECOND, 8 * SECOND], true, 8 * SECOND));
    };
    rejects(&["L5"], twice);
    let mut history = sound();
    twice(&mut history);
    let node = "n1".to_owned();
    history.outages.push(Outage { node, from: 4 * SECOND, to: 8 * SECOND });
    let findings = check(&history);
    assert_eq!(broken(&findings), [""; 0], "{findings:#?}");
    assert_eq!(findings[4].exceptions[2].1, 1);
}

#[test]
fn a_handler_that_goes_on_long_after_it_was_woken_is_rejected() {
    rejects(&["L5"], |history| {
        history.runs[0].ticks.push(15 * SECOND);
        history.runs[0].closed = Some(15 * SECOND);
        history.runs[1].closed = Some(16 * SECOND);
        history.freezes.push(Freeze { pid: 10, from: 4 * SECOND, to: 11 * SECOND + 1 });
    });
}

#[test]
fn a_lost_job_is_rejected() {
    rejects(&["L6"], |history| {
        history.accepted.push(Accepted { job: 9, kind: Kind::Handler, outcome: Outcome::Completed });
    });
}

#[test]
fn a_job_that_is_stuck_is_rejected() {
    rejects(&["L6"], |history| {
        history.standing[0].1 = "leases".to_owned();
        history.ends.remove(0);
    });
}

#[test]
fn a_job_that_ended_twice_is_rejected() {
    rejects(&["L6"], |history| {
        let mut again = history.ends[1].clone();
        again.op = EndOp::Changed;
        history.ends.push(again);
    });
}

#[test]
fn another_end_than_the_scripted_one_is_rejected() {
    rejects(&["L6"], |history| history.ends[1].code = Some("137".to_owned()));
    rejects(&["L6"], |history| history.ends[2].state = "COMPLETED".to_owned());
    rejects(&["L6"], |history| {
        history.ends[0].state = "FAILED".to_owned();
        history.ends[0].code = Some("crash_loop".to_owned());
    });
}

#[test]
fn a_container_that_stays_is_rejected() {
    rejects(&["L7"], |history| history.left.push("c1".to_owned()));
    rejects(&["L7"], |history| history.containers[0].last_seen = 60 * SECOND);
}

#[test]
fn a_container_may_stay_while_its_node_is_out_of_reach() {
    let mut history = sound();
    history.containers[0].last_seen = 60 * SECOND;
    let node = "n1".to_owned();
    history.outages.push(Outage { node, from: 4 * SECOND, to: 50 * SECOND });
    assert_eq!(broken(&check(&history)), [""; 0]);
}

#[test]
fn a_container_on_another_engine_is_rejected() {
    rejects(&["L7"], |history| history.touched.push(("n2".to_owned(), "c1".to_owned())));
    rejects(&["L7"], |history| history.containers[0].node = "n2".to_owned());
}

#[test]
fn a_permit_that_is_gone_or_never_comes_back_is_rejected() {
    rejects(&["L8"], |history| history.permits[0].states[5] = 7);
    rejects(&["L8"], |history| history.permits[0].states = [0, 1, 0, 0, 0, 7]);
    rejects(&["L8"], |history| history.permits[0].last = false);
}

#[test]
fn a_slot_without_its_job_or_a_job_without_its_slot_is_rejected() {
    rejects(&["L9"], |history| history.slots[0].running.clear());
    rejects(&["L9"], |history| history.slots[0].slots.clear());
}

#[test]
fn work_that_was_started_twice_under_one_grant_is_rejected() {
    rejects(&["L10"], |history| {
        let again = history.runs[1].clone();
        history.runs.push(again);
    });
}

#[test]
fn a_completion_without_its_work_is_rejected() {
    rejects(&["L10"], |history| history.runs[1].ended = None);
}

#[test]
fn work_that_nobody_was_granted_is_rejected() {
    rejects(&["L10"], |history| history.runs[3].epoch = 4);
}

#[test]
fn a_failure_that_counts_twice_is_rejected() {
    rejects(&["L10"], |history| history.ends[1].failures[0] = 2);
    rejects(&["L10"], |history| history.ends[0].attempt = 3);
}
