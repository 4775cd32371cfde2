//! L5 and L10: what the workloads wrote, against what the database believed.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    super::history::{Accepted, Change, History, Kind, Micros, Run, Writer},
    Finding,
};

/// L5: work of one job never runs under two grants at once. Its named exceptions are counted: a handler that was
/// frozen, and a container on a node that was out of reach.
pub fn never_twice_at_once(history: &History) -> Finding {
    let mut finding = Finding::of("L5", "work of a job never runs under two grants at once");
    let (mut pairs, mut frozen, mut late_ticks, mut cut_off) = (0, 0, 0, 0);
    let nodes = nodes(history);
    for runs in by_job(history).values() {
        for (n, old) in runs.iter().enumerate() {
            for new in runs[n + 1..].iter().filter(|new| new.epoch != old.epoch) {
                pairs += 1;
                let Some(until) = overlap(history, old, new) else { continue };
                if excused(history, old, new.started, until) {
                    frozen += 1;
                    late_ticks += old.ticks.iter().filter(|tick| **tick > new.started).count();
                } else if nodes.get(&(old.job, old.epoch)).is_some_and(|node| {
                    old.writer == Writer::Container && out_of_reach(history, node, new.started, until)
                }) {
                    cut_off += 1;
                } else {
                    finding.violated(format!(
                        "job {}: work of epoch {} ran on for {} ms beside that of epoch {} ({:?})",
                        old.job,
                        old.epoch,
                        (until - new.started) / 1000,
                        new.epoch,
                        old.writer
                    ));
                }
            }
        }
    }
    finding.looked_at("runs", history.runs.len());
    finding.looked_at("ticks", history.runs.iter().map(|run| run.ticks.len()).sum());
    finding.looked_at("pairs of epochs", pairs);
    finding.excuse("handlers frozen past their lease, beside a newer epoch", frozen);
    finding.excuse("their ticks after the newer epoch's start, which an epoch check refuses", late_ticks);
    finding.excuse("containers on a node out of reach, beside a newer epoch", cut_off);
    finding
}

/// Until when the older run went on beside the newer one, if it did.
fn overlap(history: &History, old: &Run, new: &Run) -> Option<Micros> {
    // Its own words tell to the microsecond; the closing of its connection is noticed a little late.
    let word = old.last_word();
    let closed = old.closed.map_or(Micros::MAX, |closed| closed - history.limits.notice);
    let until = word.max(closed);
    (until > new.started && new.last_word().max(new.closed.unwrap_or(Micros::MAX)) > old.started)
        .then_some(until)
}

/// The overlap began while the old run's process was stopped, and ended soon after it was woken.
fn excused(history: &History, old: &Run, began: Micros, until: Micros) -> bool {
    let Writer::Handler { pid } = old.writer else { return false };
    history.freezes.iter().any(|freeze| {
        freeze.pid == pid
            && freeze.from <= began
            && began <= freeze.to
            && until <= freeze.to + history.limits.waking
    })
}

/// The node of each claim.
fn nodes(history: &History) -> HashMap<(i64, i64), &str> {
    let placed = history
        .leases
        .iter()
        .filter_map(|event| Some(((event.job, event.claim_epoch), event.node.as_deref()?)));
    placed.collect()
}

/// The overlap began while nobody could act on the node, and ended soon after somebody could.
fn out_of_reach(history: &History, node: &str, began: Micros, until: Micros) -> bool {
    history.outages.iter().any(|outage| {
        outage.node == node
            && outage.from <= began
            && began <= outage.to
            && until <= outage.to + history.limits.leftover
    })
}

/// L10: a lost request or response, at any operation, neither duplicates nor loses work.
pub fn nothing_doubled_or_lost(history: &History) -> Finding {
    let mut finding = Finding::of("L10", "a lost request or response neither duplicates nor loses work");
    let runs = by_job(history);
    // Duplicated: one grant is worked on once.
    for runs in runs.values() {
        for pair in runs.windows(2) {
            if pair[0].epoch == pair[1].epoch {
                finding.violated(format!("job {}: epoch {} was started twice", pair[0].job, pair[0].epoch));
            }
        }
    }
    finding.looked_at("runs", history.runs.len());

    // Out of nothing: work runs only under what was granted, and not before.
    let mut granted: HashMap<(i64, i64), Micros> = HashMap::new();
    let mut claims: HashMap<i64, HashSet<i64>> = HashMap::new();
    let mut claim_of: HashMap<(i64, i64), i64> = HashMap::new();
    for event in &history.leases {
        let Some(after) = &event.after else { continue };
        claim_of.insert((event.job, after.epoch), event.claim_epoch);
        if matches!(event.change(), Change::Granted | Change::TakenOver) {
            granted.entry((event.job, after.epoch)).or_insert(event.at);
        }
        if event.change() == Change::Granted {
            claims.entry(event.job).or_default().insert(after.epoch);
        }
    }
    for run in &history.runs {
        match granted.get(&(run.job, run.epoch)) {
            Some(at) if run.started + history.limits.statement >= *at => {}
            _ => finding.violated(format!(
                "job {}: work under epoch {}, which nobody was granted",
                run.job, run.epoch
            )),
        }
    }
    finding.looked_at("grants", granted.len());

    let scripts: HashMap<i64, &Accepted> = history.accepted.iter().map(|job| (job.job, job)).collect();
    let mut completions = 0;
    let mut completed: HashMap<i64, u32> = HashMap::new();
    for past in history.past.iter().filter(|past| past.how == "completed") {
        completions += 1;
        *completed.entry(past.job).or_default() += 1;
        if scripts.get(&past.job).is_some_and(|script| script.kind == Kind::Heartbeat) {
            continue;
        }
        // Lost: what counts as done was done, by the work of that very claim.
        let claim = claim_of.get(&(past.job, past.epoch)).copied().unwrap_or(past.epoch);
        let done = runs.get(&past.job).is_some_and(|runs| {
            runs.iter().any(|run| (run.epoch == past.epoch || run.epoch == claim) && run.ended.is_some())
        });
        if !done {
            finding.violated(format!(
                "job {}: completed under epoch {}, whose work never wrote its end",
                past.job, past.epoch
            ));
        }
    }
    for (job, times) in completed.iter().filter(|(_, times)| **times > 1) {
        finding.violated(format!("job {job} was completed {times} times"));
    }
    finding.looked_at("completions", completions);
    counters(history, &claims, &mut finding);
    finding
}

/// Nothing is counted twice, or not at all: attempts and failures follow from the books.
fn counters(history: &History, claims: &HashMap<i64, HashSet<i64>>, finding: &mut Finding) {
    let mut failures: HashMap<i64, [i32; 3]> = HashMap::new();
    let mut attempts: HashMap<i64, i32> = HashMap::new();
    for past in &history.past {
        let last = attempts.entry(past.job).or_default();
        *last = (*last).max(past.attempt);
        let of_kind = match past.kind.as_deref() {
            Some("USER") => 0,
            Some("SYSTEM") => 1,
            Some("TIMEOUT") => 2,
            _ => continue,
        };
        if matches!(past.how.as_str(), "failed" | "retrying" | "canceled") {
            failures.entry(past.job).or_default()[of_kind] += 1;
        }
    }
    for end in &history.ends {
        let counted = failures.get(&end.job).copied().unwrap_or_default();
        // A loss that a restart of the database excuses stands in the books and is not counted.
        let fits =
            end.failures[0] == counted[0] && end.failures[1] <= counted[1] && end.failures[2] == counted[2];
        if !fits {
            finding.violated(format!(
                "job {}: counted {:?} failures (USER, SYSTEM, TIMEOUT), the books have {counted:?}",
                end.job, end.failures
            ));
        }
        let known = claims.get(&end.job).map_or(0, HashSet::len);
        if usize::try_from(end.attempt).map_or(true, |attempt| attempt > known) {
            finding.violated(format!("job {}: attempt {} after {known} claims", end.job, end.attempt));
        }
    }
    finding.looked_at("counters", history.ends.len());
}

/// The runs of each job by epoch, then by their start.
fn by_job(history: &History) -> BTreeMap<i64, Vec<&Run>> {
    let mut jobs: BTreeMap<i64, Vec<&Run>> = BTreeMap::new();
    for run in &history.runs {
        jobs.entry(run.job).or_default().push(run);
    }
    for runs in jobs.values_mut() {
        runs.sort_by_key(|run| (run.epoch, run.started));
    }
    jobs
}
