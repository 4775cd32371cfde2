//! Reopen: a FAILED or CANCELED recipe becomes a new attempt, and its log says what counts as unfinished.

use super::world::{Place, Ready, Waiting, World};
use crate::{
    domain::{Epoch, JobId, JobState, Namespace},
    ports::recipe::{Event, EventBody, MAX_LOG_BYTES, MAX_LOG_EVENTS, ReopenAnswer, Reopening},
    testing::harness::WorkflowState,
};

impl World {
    pub(super) fn reopen(&mut self, namespace: &Namespace, id: JobId, asked: &Reopening) -> ReopenAnswer {
        let (Some(row), Some(recipe)) = (self.rows.get(&id), self.recipes.get(&id)) else {
            return ReopenAnswer::NotFound;
        };
        if row.namespace != *namespace {
            return ReopenAnswer::NotFound;
        }
        let flow = self.workflow_of(row).map(|workflow| (workflow.state, workflow.generation));
        if flow.is_some_and(|(state, _)| state == WorkflowState::Terminated) {
            return ReopenAnswer::WorkflowTerminated;
        }
        let state = row.state();
        if !matches!(state, JobState::Failed | JobState::Canceled) {
            return ReopenAnswer::NotRetryable { state };
        }
        let events = recipe.events.len() as i64 + recipe.pretended.0;
        if events != asked.events {
            return ReopenAnswer::LogChanged;
        }
        let mut again = asked.again.clone();
        again.extend(self.lost_children(&recipe.events).map(|ordinal| (ordinal, ordinal)));
        again.sort_unstable();
        again.dedup();
        let body = EventBody::Reopened { again };
        let size = i64::try_from(asked.path.len() + body.bytes()).unwrap_or(i64::MAX);
        if events >= MAX_LOG_EVENTS || recipe.bytes + recipe.pretended.1 + size > MAX_LOG_BYTES {
            return ReopenAnswer::Full;
        }
        let now = self.now();
        let (Some(row), Some(recipe)) = (self.rows.get_mut(&id), self.recipes.get_mut(&id)) else {
            return ReopenAnswer::NotFound;
        };
        recipe.events.push(Event {
            ordinal: recipe.events.len() as i64 + 1,
            path: asked.path.clone(),
            body,
            at: now,
            worker: None,
            epoch: Epoch(row.epoch),
        });
        recipe.bytes += size;
        recipe.refusals = 0;
        recipe.hint_epoch = None;
        row.failures = [0; 3];
        row.losses = 0;
        row.route.task = String::new();
        if let Some((_, generation)) = flow {
            row.generation = generation;
        }
        row.place = if flow.is_some_and(|(state, _)| state == WorkflowState::Paused) {
            Place::Waiting(Waiting {
                due_at: None,
                held_due_at: Some(now),
                blocked_by: None,
                keep_attempt: false,
            })
        } else {
            row.dispatch_attempt += 1;
            Place::Ready(Ready { due_at: now, keep_attempt: false })
        };
        ReopenAnswer::Reopened { state: row.state() }
    }

    /// Children whose end is not recorded, and who will not come to a good one any more: by the ordinal of their start.
    fn lost_children(&self, events: &[Event]) -> impl Iterator<Item = i64> {
        let seen = |child: JobId| {
            events.iter().any(|e| matches!(e.body, EventBody::ChildEnded { job, .. } if job == child))
        };
        let lost = |child: JobId| match self.rows.get(&child).map(|row| (row.state(), row.lease())) {
            Some((_, Some(lease))) => lease.cancel_requested,
            Some((state, None)) => state.is_terminal() && state != JobState::Completed,
            None => true,
        };
        let ordinals: Vec<i64> = events
            .iter()
            .filter_map(|event| match event.body {
                EventBody::ChildStarted { job } if !seen(job) && lost(job) => Some(event.ordinal),
                _ => None,
            })
            .collect();
        ordinals.into_iter()
    }
}
