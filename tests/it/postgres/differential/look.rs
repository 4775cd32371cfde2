//! What the two stores must have in common: everything but tokens, ids and instants.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use leasehold::protocol::{
    domain::{JobId, JobState},
    ports::{
        Attach, ClaimRejection, Ended, Grant, ListedAnswer, LogAppend, Reconciliation, RecoverAnswer,
        Renewal, Takeover,
    },
};
use leasehold_actors::testing::{HistoryView, JobView};

/// A store's job ids, as numbers in the order of submission.
#[derive(Debug, Default, Clone)]
pub struct Names(HashMap<JobId, usize>);

impl Names {
    pub fn add(&mut self, job: JobId) {
        let number = self.0.len();
        self.0.insert(job, number);
    }

    pub fn of(&self, job: JobId) -> String {
        self.0.get(&job).map_or_else(|| "?".to_owned(), |number| format!("#{number}"))
    }
}

/// One job's row.
pub fn job(view: &JobView, names: &Names, now: DateTime<Utc>) -> String {
    let due = match (view.state, view.due_at) {
        (JobState::Pending, None) => "held",
        // When a blocked job looks again is each store's own affair, within its five seconds.
        (JobState::Pending, Some(_)) if view.blocked_by.is_some() => "blocked",
        (JobState::Pending, Some(at)) if at <= now => "due",
        (JobState::Pending, Some(_)) => "later",
        _ => "-",
    };
    format!(
        "{} gen {} dispatch {} attempt {} epoch {} failures {:?} losses {} {due} blocked {} renewals {} cancel {} {} run {} \
         node {} container {:?} route {:?} revision {} exit {:?} code {:?} output {:?}",
        view.state,
        view.generation,
        view.dispatch_attempt,
        view.attempt,
        view.epoch,
        view.failures,
        view.losses,
        view.blocked_by.map_or_else(|| "-".to_owned(), |job| names.of(job)),
        view.renewals,
        view.cancel_requested,
        view.cancel_deadline.is_some(),
        view.run_deadline.is_some(),
        view.node.is_some(),
        view.container,
        view.route,
        view.payload_revision,
        view.exit_code,
        view.failure_code,
        view.output,
    )
}

pub fn past(lease: &HistoryView) -> String {
    format!(
        "{} {} {} attempt {} renewals {} command {:?} node {} container {:?} {:?}",
        lease.epoch,
        lease.how,
        lease.worker,
        lease.attempt,
        lease.renewals,
        lease.command,
        lease.node.is_some(),
        lease.container,
        lease.failure,
    )
}

pub fn grant(grant: &Grant, names: &Names) -> String {
    format!(
        "{} epoch {} attempt {} dispatch {} gen {} {:?} {} {} {:?} placed {} timeout {:?} {:?}",
        names.of(grant.authority.job),
        grant.authority.epoch,
        grant.attempt,
        grant.dispatch_attempt,
        grant.generation,
        grant.route,
        grant.workflow,
        grant.payload,
        grant.lease,
        grant.placement.is_some(),
        grant.timeout,
        grant.retry,
    )
}

/// In no particular order.
pub fn grants(all: &[Grant], names: &Names) -> Vec<String> {
    let mut told: Vec<String> = all.iter().map(|g| grant(g, names)).collect();
    told.sort_unstable();
    told
}

/// What was taken over, in no particular order, and what is told beside it.
pub fn recovered(answer: &RecoverAnswer, names: &Names) -> Vec<String> {
    let takeover = |t: &Takeover| {
        format!(
            "{} container {:?} {:?} claim {} started {} cancel {} pending {} timeout {}",
            grant(&t.grant, names),
            t.container,
            t.runtime,
            t.claim_epoch,
            t.started,
            t.cancel_requested,
            t.cleanup_pending_for.is_some(),
            t.timeout_left.is_some(),
        )
    };
    let mut told: Vec<String> = answer.takeovers.iter().map(takeover).collect();
    told.sort_unstable();
    let (oldest, next) = (answer.oldest.is_some(), answer.next_expiry.is_some());
    told.push(format!("{} left, oldest {oldest}, next {next}", answer.backlog));
    told
}

pub fn listed(answer: &ListedAnswer, names: &Names) -> String {
    match answer {
        ListedAnswer::Granted(granted) => grant(granted, names),
        ListedAnswer::Rejected(job, ClaimRejection::BlockedBy { job: blocker }) => {
            format!("{} blocked by {}", names.of(*job), names.of(*blocker))
        }
        ListedAnswer::Rejected(job, rejection) => format!("{} {rejection}", names.of(*job)),
    }
}

pub fn renewal(answer: Renewal) -> String {
    match answer {
        Renewal::Held { remaining, cancel_requested } => {
            format!("held {} cancel {cancel_requested}", !remaining.is_zero())
        }
        Renewal::NotLive => "not live".to_owned(),
    }
}

pub fn attach(answer: &Attach) -> String {
    format!("{answer:?}")
}

pub fn append(answer: LogAppend) -> String {
    format!("{answer:?}")
}

pub fn ended(answer: &Ended) -> String {
    match answer {
        Ended::Retrying { .. } => "retrying".to_owned(),
        other => format!("{other:?}"),
    }
}

pub fn reconciled(answer: Reconciliation) -> &'static str {
    match answer {
        Reconciliation::Live { .. } => "live",
        Reconciliation::Expired => "expired",
        Reconciliation::Changed => "changed",
    }
}
