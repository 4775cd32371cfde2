//! What a job records, told while it comes.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{JobId, Namespace, execution::payload},
    error::StoreError,
    ports::recipe::{Event, RecipeStore},
};

use super::{super::output, elapsed, words};

/// The last handoff, as it is published: what was needed, what was there.
pub(in crate::cli) fn handoff(client_payload: &str) -> Option<String> {
    let published = payload::read(client_payload).ok().flatten()?;
    let there = published.allocation.as_ref()?;
    let there = if there.is_empty() { "nothing that is known".to_owned() } else { there.to_string() };
    Some(format!("handoff: the next task needs {}; the worker has {there}", published.requirements))
}

/// Tells of a job's events as they come, and of its handoffs.
#[derive(Debug, Default)]
pub(in crate::cli) struct Steps {
    after: i64,
    headed: BTreeSet<String>,
    handoff: Option<String>,
}

impl Steps {
    /// Tells what came since the last time. True when there was anything.
    pub(in crate::cli) async fn tell(
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

    /// A handoff that has not been told.
    pub(super) fn handoff(&mut self, client_payload: &str) -> Option<String> {
        let line = handoff(client_payload)?;
        if self.handoff.as_ref() == Some(&line) {
            return None;
        }
        self.handoff = Some(line.clone());
        Some(line)
    }
}
