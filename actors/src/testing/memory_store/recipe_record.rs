//! Record: one event of a recipe's log, under a live lease.

use std::sync::Arc;

use super::{
    recipe::Child,
    refused,
    submit::SubmitRejection,
    world::{AD_HOC, Place, World, delta},
};
use crate::{
    domain::{Epoch, JobId, JobState, NewJob},
    error::StoreError,
    ports::{
        Authority,
        recipe::{Event, EventBody, MAX_CHILD_DEPTH, MAX_LOG_BYTES, MAX_LOG_EVENTS, NewEvent, Recorded},
    },
};

impl World {
    pub(super) fn record_event(
        &mut self,
        authority: &Authority,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError> {
        event.check(path).map_err(|reason| refused("record", reason))?;
        if self.live(authority).is_none() {
            return Ok(Recorded::NotLive);
        }
        let job = authority.job;
        let Some(recipe) = self.recipes.get(&job) else {
            return Err(refused("record", "the job is no recipe"));
        };
        let era = era(&recipe.events);
        let standing = recipe.events[era..].iter().find(|e| e.path == path && e.body.sort() == event.sort());
        if let Some(standing) = standing {
            let standing = Box::new(standing.clone());
            return Ok(if standing.body.says(event) {
                Recorded::Recorded(standing)
            } else {
                Recorded::Conflict(standing)
            });
        }
        // What was begun before a reopening goes on after it; begun anew, the newest counts.
        let at_path = |wanted: fn(&EventBody) -> bool| {
            recipe.events.iter().rev().find(|e| e.path == path && wanted(&e.body)).map(|e| e.body.clone())
        };
        let (events, bytes) =
            (recipe.events.len() as i64 + recipe.pretended.0, recipe.bytes + recipe.pretended.1);
        let mut taken = None;
        let body = match event {
            NewEvent::Task { op, input_hash, attempt, outcome, directive } => EventBody::Task {
                op: op.clone(),
                input_hash: input_hash.clone(),
                attempt: *attempt,
                outcome: outcome.clone(),
                directive: directive.clone(),
            },
            NewEvent::TimerSet { after } => EventBody::TimerSet { deadline: self.now() + delta(*after) },
            NewEvent::TimerFired => match at_path(|body| matches!(body, EventBody::TimerSet { .. })) {
                Some(EventBody::TimerSet { deadline }) if deadline <= self.now() => EventBody::TimerFired,
                Some(_) => return Ok(Recorded::NotYet),
                None => return Ok(not_begun("no timer was set at this path")),
            },
            NewEvent::TakeSignal { name } => {
                let Some(signal) = recipe.signals.iter().find(|s| !s.taken && s.name == *name) else {
                    return Ok(Recorded::NotYet);
                };
                taken = Some(signal.id);
                EventBody::Signal { name: name.clone(), id: signal.id, data: signal.data.as_str().into() }
            }
            NewEvent::StartChild { job: child, cancel_with_parent } => {
                // Its size is known before it is submitted: nothing must be left behind by a full log.
                if let Some(full) = full(events, bytes, path.len()) {
                    return Ok(full);
                }
                match self.start_child(authority, child, *cancel_with_parent) {
                    Ok(job) => EventBody::ChildStarted { job },
                    Err(refused) => return Ok(refused),
                }
            }
            NewEvent::ChildEnded => match at_path(|body| matches!(body, EventBody::ChildStarted { .. })) {
                Some(EventBody::ChildStarted { job }) => match self.child_end(job) {
                    Some(body) => body,
                    None => return Ok(Recorded::NotYet),
                },
                _ => return Ok(not_begun("no child was started at this path")),
            },
        };
        let size = path.len() + body.bytes();
        if let Some(full) = full(events, bytes, size) {
            return Ok(full);
        }
        let at = self.now();
        let epoch = self.rows.get(&job).map_or(0, |row| row.epoch);
        let recipe = self.recipes.get_mut(&job).expect("it was there a moment ago");
        for signal in recipe.signals.iter_mut().filter(|signal| Some(signal.id) == taken) {
            signal.taken = true;
        }
        recipe.bytes += i64::try_from(size).unwrap_or(i64::MAX);
        recipe.refusals = 0;
        let event = Event {
            ordinal: recipe.events.len() as i64 + 1,
            path: path.to_owned(),
            body,
            at,
            worker: Some(authority.owner.worker.clone()),
            epoch: Epoch(epoch),
        };
        recipe.events.push(event.clone());
        Ok(Recorded::Recorded(Box::new(event)))
    }

    fn start_child(
        &mut self,
        authority: &Authority,
        child: &NewJob,
        cancel_with_parent: bool,
    ) -> Result<JobId, Recorded> {
        let refused = |code, message: String| Recorded::Refused { code, message };
        if child.namespace != authority.owner.namespace {
            return Err(refused("invalid", "namespace: a child belongs to its parent's".to_owned()));
        }
        if let Some(workflow) = child.workflow.as_deref().filter(|name| *name != AD_HOC)
            && self
                .workflows
                .get(&(child.namespace.clone(), workflow.to_owned()))
                .is_some_and(|w| w.overlap.serial)
            && self.is_of_or_below(authority.job, workflow)
        {
            return Err(refused(
                "would_deadlock",
                format!("workflow {workflow} is serial, and a run of it waits for this child"),
            ));
        }
        let above = self.line(authority.job).count();
        if i64::try_from(above).unwrap_or(i64::MAX) > MAX_CHILD_DEPTH {
            return Err(refused(
                "too_deep",
                format!("{MAX_CHILD_DEPTH} jobs stand above this child already, which is the most"),
            ));
        }
        let submitted = self.submit(child).map_err(|rejection| match rejection {
            SubmitRejection::Invalid(invalid) => refused("invalid", invalid.to_string()),
            SubmitRejection::UnknownWorkflow(_) => refused("workflow_not_found", rejection.to_string()),
            SubmitRejection::WorkflowTerminated => refused("workflow_terminated", rejection.to_string()),
            SubmitRejection::IdempotencyConflict(_) => refused("idempotency_conflict", rejection.to_string()),
        })?;
        self.children.entry(submitted.job).or_insert(Child { parent: authority.job, cancel_with_parent });
        Ok(submitted.job)
    }

    /// Whether a job, or one that it is a descendant of, is a run of this workflow.
    fn is_of_or_below(&self, job: JobId, workflow: &str) -> bool {
        self.line(job).any(|job| self.rows.get(&job).is_some_and(|row| row.workflow == workflow))
    }

    /// The job and all that it is a descendant of.
    fn line(&self, job: JobId) -> impl Iterator<Item = JobId> {
        std::iter::successors(Some(job), |job| self.children.get(job).map(|child| child.parent))
    }

    fn child_end(&self, job: JobId) -> Option<EventBody> {
        match &self.rows.get(&job)?.place {
            Place::Ended(ended) => Some(EventBody::ChildEnded {
                job,
                state: ended.state,
                output: ended.output.as_deref().map(Arc::from),
                failure: ended.failure.clone().filter(|_| ended.state != JobState::Completed),
            }),
            _ => None,
        }
    }
}

fn not_begun(message: &str) -> Recorded {
    Recorded::Refused { code: "not_begun", message: message.to_owned() }
}

fn full(events: i64, bytes: i64, size: usize) -> Option<Recorded> {
    if events >= MAX_LOG_EVENTS {
        return Some(Recorded::Full { what: "events", limit: MAX_LOG_EVENTS });
    }
    if bytes + i64::try_from(size).unwrap_or(i64::MAX) > MAX_LOG_BYTES {
        return Some(Recorded::Full { what: "bytes", limit: MAX_LOG_BYTES });
    }
    None
}

/// Where the present era begins: behind the last reopening.
fn era(events: &[Event]) -> usize {
    events.iter().rposition(|e| matches!(e.body, EventBody::Reopened { .. })).map_or(0, |at| at + 1)
}
