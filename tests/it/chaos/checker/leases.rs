//! L1 to L4: what the rows of `leases` went through.

use std::collections::{BTreeMap, HashMap};

use super::{
    super::history::{Change, History, LeaseEvent},
    Finding,
};

/// L1: at any instant at most one token of a job is live.
pub fn one_live_token(history: &History) -> Finding {
    let mut finding = Finding::of("L1", "at most one token of a job is live");
    let (mut grants, mut takeovers) = (0, 0);
    let mut tokens: HashMap<&str, (i64, i64)> = HashMap::new();
    let mut live: HashMap<i64, &LeaseEvent> = HashMap::new();
    for event in &history.leases {
        let job = event.job;
        match event.change() {
            Change::Granted => {
                grants += 1;
                if let Some(other) = live.get(&job).and_then(|last| last.after.as_ref()) {
                    finding.violated(format!("job {job} was granted beside epoch {}", other.epoch));
                }
            }
            Change::TakenOver => {
                takeovers += 1;
                let before = event.before.as_ref().expect("a takeover has a row before");
                if before.expires > event.at {
                    let early = before.expires - event.at;
                    finding.violated(format!(
                        "job {job}: epoch {} was taken over {early} µs before its expiry",
                        before.epoch
                    ));
                }
            }
            // Only its holder gives a lease up; any other way to shorten it makes two holders believe in it.
            Change::Renewed => {
                let (before, after) = (event.before.as_ref(), event.after.as_ref());
                if let (Some(before), Some(after)) = (before, after)
                    && after.expires < before.expires
                {
                    finding.violated(format!(
                        "job {job}: the lease of epoch {} was cut short under its holder",
                        before.epoch
                    ));
                }
            }
            Change::Postponed | Change::CancelRequested | Change::Touched | Change::Gone => {}
        }
        if let Some(after) = &event.after {
            let known = tokens.entry(&after.token).or_insert((job, after.epoch));
            if *known != (job, after.epoch) {
                finding.violated(format!(
                    "job {job} epoch {} has the token of job {} epoch {}",
                    after.epoch, known.0, known.1
                ));
            }
            live.insert(job, event);
        } else {
            live.remove(&job);
        }
    }
    finding.looked_at("grants", grants);
    finding.looked_at("takeovers", takeovers);
    finding.looked_at("tokens", tokens.len());
    finding
}

/// L2: a mutation by a token that is not live changes nothing.
pub fn only_the_live_change(history: &History) -> Finding {
    let mut finding = Finding::of("L2", "a token that is not live changes nothing");
    let mut mutations = 0;
    for event in &history.leases {
        let change = event.change();
        let protected =
            matches!(change, Change::Renewed | Change::Touched | Change::Postponed | Change::Gone);
        let Some(before) = event.before.as_ref().filter(|_| protected) else { continue };
        mutations += 1;
        let worker = before.owner.split('/').next().unwrap_or_default();
        if let Some(member) = event.member.as_deref().filter(|member| *member != worker) {
            finding.violated(format!(
                "job {} epoch {}: {change:?} by {member}, and the lease is {worker}'s",
                event.job, before.epoch
            ));
        }
        let late = event.at - before.expires;
        if late > history.limits.statement {
            finding.violated(format!(
                "job {} epoch {}: {change:?} {late} µs after the expiry",
                event.job, before.epoch
            ));
        }
    }
    finding.looked_at("mutations", mutations);

    // What the books say of a lease's end was written by its owner, under an epoch that was granted.
    let mut owners: HashMap<(i64, i64), &str> = HashMap::new();
    for event in &history.leases {
        if let Some(after) = &event.after {
            owners.insert((event.job, after.epoch), &after.owner);
        }
    }
    for past in &history.past {
        if owners.get(&(past.job, past.epoch)) != Some(&past.owner.as_str()) {
            finding.violated(format!(
                "job {} epoch {}: its end ({}) is in the books of {}, who never held it",
                past.job, past.epoch, past.how, past.owner
            ));
        }
    }
    finding.looked_at("ends of leases", history.past.len());
    // A job that ran ended with one of its leases.
    let books: std::collections::HashSet<_> =
        history.past.iter().map(|past| (past.job, past.epoch)).collect();
    for end in history.ends.iter().filter(|end| end.epoch > 0 && !books.contains(&(end.job, end.epoch))) {
        finding.violated(format!("job {} ended under epoch {}, which is in no book", end.job, end.epoch));
    }
    finding
}

/// L3: a renewal never revives an expired lease.
pub fn nothing_revived(history: &History) -> Finding {
    let mut finding = Finding::of("L3", "a renewal never revives an expired lease");
    let mut renewals = 0;
    for event in history.leases.iter().filter(|event| event.change() == Change::Renewed) {
        let (Some(before), Some(after)) = (&event.before, &event.after) else { continue };
        renewals += 1;
        // The instant that the new expiry was counted from.
        let renewed = after.expires - event.lease;
        if renewed > before.expires + history.limits.statement / 2 {
            finding.violated(format!(
                "job {} epoch {} was renewed {} µs after its expiry",
                event.job,
                before.epoch,
                renewed - before.expires
            ));
        }
    }
    finding.looked_at("renewals", renewals);
    finding
}

/// L4: the epochs of one job strictly rise with every grant.
pub fn epochs_rise(history: &History) -> Finding {
    let mut finding = Finding::of("L4", "the epochs of a job strictly rise with every grant");
    let mut last: HashMap<i64, i64> = HashMap::new();
    let mut grants = 0;
    for event in &history.leases {
        let (Change::Granted | Change::TakenOver, Some(after)) = (event.change(), &event.after) else {
            continue;
        };
        grants += 1;
        if let Some(previous) = last.insert(event.job, after.epoch)
            && previous >= after.epoch
        {
            finding
                .violated(format!("job {}: epoch {} was granted after {previous}", event.job, after.epoch));
        }
    }
    finding.looked_at("grants", grants);

    // The books have each epoch once, and in the order of time.
    let mut books: BTreeMap<(i64, i64), (i64, i64)> = BTreeMap::new();
    for past in &history.past {
        if books.insert((past.job, past.epoch), (past.granted, past.ended)).is_some() {
            finding.violated(format!("job {} has two leases of epoch {}", past.job, past.epoch));
        }
    }
    let rows: Vec<_> = books.iter().collect();
    for pair in rows.windows(2) {
        let [(earlier, (_, ended)), (later, (granted, _))] = pair else { continue };
        if earlier.0 == later.0 && granted < ended {
            finding.violated(format!(
                "job {}: epoch {} was granted before {} had ended",
                later.0, later.1, earlier.1
            ));
        }
    }
    finding.looked_at("leases in the books", books.len());
    finding
}
