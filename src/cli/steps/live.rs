//! What a job records, told while it comes.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::Namespace,
    error::StoreError,
    ports::recipe::{Event, RecipeStore},
};

use super::{super::output, elapsed, words};
use crate::postgres::read::{HANDOFF, JobDetail, LeaseRow};

/// A handoff in words: what was needed, what was there. None for a lease that ended in another way.
pub(in crate::cli) fn handoff(lease: &LeaseRow) -> Option<String> {
    let told = lease.failure.as_ref().filter(|told| told.code.as_deref() == Some(HANDOFF))?;
    Some(format!("handoff: {}", told.message.as_deref().unwrap_or_default()))
}

/// Tells of a job's events as they come, and of its handoffs, each where it happened.
#[derive(Debug, Default)]
pub(in crate::cli) struct Steps {
    after: i64,
    headed: BTreeSet<String>,
    /// Leases up to this one have been looked at.
    told: i64,
}

impl Steps {
    /// Tells what came since the last time. True when there was anything.
    pub(in crate::cli) async fn tell(
        &mut self,
        store: &impl RecipeStore,
        namespace: &Namespace,
        job: &JobDetail,
    ) -> Result<bool, StoreError> {
        let mut any = false;
        loop {
            let page = store.events(namespace, job.row.id, self.after).await?;
            let ended = job.row.state.is_terminal();
            let (lines, all) = self.next(&page, &job.leases, job.row.submitted_at, ended);
            any |= !lines.is_empty();
            lines.iter().for_each(|line| output::note(line));
            if page.is_empty() || !all {
                return Ok(any);
            }
        }
    }

    /// The lines for a page of events, and for the handoffs before them; without any events, for all handoffs that are
    /// left. False when there are events of a lease that the job was read too early to show: they are for the next look.
    pub(super) fn next(
        &mut self,
        page: &[Event],
        leases: &[LeaseRow],
        submitted_at: DateTime<Utc>,
        ended: bool,
    ) -> (Vec<String>, bool) {
        let known = leases.last().map_or(0, |lease| lease.epoch.0);
        let mut lines = Vec::new();
        for event in page {
            if event.epoch.0 > known && !ended {
                return (lines, false);
            }
            self.handoffs(leases, event.epoch.0, &mut lines);
            lines.extend(self.lines(event, submitted_at));
            self.after = event.ordinal;
        }
        if page.is_empty() {
            self.handoffs(leases, i64::MAX, &mut lines);
        }
        (lines, true)
    }

    /// The handoffs by which leases before this epoch have ended.
    fn handoffs(&mut self, leases: &[LeaseRow], before: i64, lines: &mut Vec<String>) {
        for lease in leases.iter().filter(|lease| lease.ended_at.is_some() && lease.epoch.0 < before) {
            if lease.epoch.0 > self.told {
                lines.extend(handoff(lease));
                self.told = lease.epoch.0;
            }
        }
    }

    /// The steps around an event that no line has named yet, and the event.
    pub(super) fn lines(&mut self, event: &Event, submitted_at: DateTime<Utc>) -> Vec<String> {
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
}
