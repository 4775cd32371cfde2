//! Submit: accepts a job, at once QUEUED when it is due.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::{
    recipe::{self, Recipe},
    world::{AD_HOC, Overlap, Place, Ready, Row, Submission, Waiting, World, millis},
};
use crate::{
    domain::{InvalidDefinition, JobDefinition, JobId, JobKind, NewJob, RetryPolicy, Route},
    testing::harness::WorkflowState,
};

/// An accepted job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// Its id.
    pub job: JobId,
    /// False when the idempotency key had brought it already.
    pub created: bool,
}

/// Why a job was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitRejection {
    /// The request itself is wrong.
    #[error(transparent)]
    Invalid(#[from] InvalidDefinition),
    /// There is no workflow of that name.
    #[error("workflow {0} does not exist; apply it first")]
    UnknownWorkflow(String),
    /// The workflow takes no more runs.
    #[error("workflow_terminated")]
    WorkflowTerminated,
    /// The idempotency key was used for another request.
    #[error("idempotency_conflict{{job: {0}}}")]
    IdempotencyConflict(JobId),
}

impl World {
    pub(super) fn submit(&mut self, job: &NewJob) -> Result<Submitted, SubmitRejection> {
        let key = job.idempotency_key.clone().map(|key| (job.namespace.clone(), key));
        let request = format!("{job:?}");
        if let Some((recorded, first)) = key.as_ref().and_then(|key| self.keys.get(key)) {
            return if *recorded == request {
                Ok(Submitted { job: *first, created: false })
            } else {
                Err(SubmitRejection::IdempotencyConflict(*first))
            };
        }
        let now = self.now();
        if let Some(JobDefinition::Recipe(_)) = &job.definition
            && !recipe::may_be_a_client_payload(&job.payload)
        {
            return Err(
                InvalidDefinition::new("payload", "of a recipe must be a JSON object, or null").into()
            );
        }
        let due_at = job.run_at.map_or(now, |at| at.max(now));
        let (submission, mut row, paused) = match &job.workflow {
            Some(name) => self.run_of(job, name)?,
            None => {
                let (submission, row) = ad_hoc(job, now)?;
                (submission, row, false)
            }
        };
        row.place = if paused {
            Place::Waiting(Waiting {
                due_at: None,
                held_due_at: Some(due_at),
                blocked_by: None,
                keep_attempt: false,
            })
        } else if due_at <= now {
            row.dispatch_attempt = 1;
            Place::Ready(Ready { due_at, keep_attempt: false })
        } else {
            Place::Waiting(Waiting {
                due_at: Some(due_at),
                held_due_at: None,
                blocked_by: None,
                keep_attempt: false,
            })
        };
        self.last_job += 1;
        let id = JobId(self.last_job);
        if submission.kind == JobKind::Recipe {
            let of_type = (row.namespace.clone(), row.route.name.clone());
            let schemas = self.schema_routes.get(&of_type).cloned().unwrap_or_default();
            self.recipes.insert(id, Recipe::of(&submission.definition, schemas));
        }
        self.jobs.insert(id, submission);
        self.rows.insert(id, row);
        if let Some(key) = key {
            self.keys.insert(key, (request, id));
        }
        Ok(Submitted { job: id, created: true })
    }

    fn run_of(&self, job: &NewJob, name: &str) -> Result<(Submission, Row, bool), SubmitRejection> {
        let workflow = self
            .workflows
            .get(&(job.namespace.clone(), name.to_owned()))
            .ok_or_else(|| SubmitRejection::UnknownWorkflow(name.to_owned()))?;
        if workflow.state == WorkflowState::Terminated {
            return Err(SubmitRejection::WorkflowTerminated);
        }
        let submission = Submission {
            definition: workflow.definition.clone(),
            payload: Arc::from(job.payload.as_str()),
            payload_revision: 1,
            timeout: millis(job.timeout_ms).or(workflow.timeout),
            retry: over(job.retry, workflow.retry),
            trace_parent: job.trace_parent.clone(),
            kind: workflow.route.kind,
            submitted_at: self.now(),
        };
        let row = fresh_row(job, name, workflow.route.clone(), workflow.overlap, workflow.generation);
        Ok((submission, row, workflow.state == WorkflowState::Paused))
    }
}

fn ad_hoc(job: &NewJob, now: DateTime<Utc>) -> Result<(Submission, Row), SubmitRejection> {
    let definition = job.definition.as_ref().ok_or_else(|| {
        InvalidDefinition::new("definition", "is missing: say what to run, or name a workflow")
    })?;
    let submission = Submission {
        definition: Arc::from(definition.to_json()),
        payload: Arc::from(job.payload.as_str()),
        payload_revision: 1,
        timeout: millis(job.timeout_ms),
        retry: job.retry,
        trace_parent: job.trace_parent.clone(),
        kind: definition.kind(),
        submitted_at: now,
    };
    Ok((submission, fresh_row(job, AD_HOC, definition.route(), Overlap::default(), 1)))
}

fn fresh_row(job: &NewJob, workflow: &str, route: Route, overlap: Overlap, generation: i64) -> Row {
    Row {
        namespace: job.namespace.clone(),
        workflow: workflow.to_owned(),
        route,
        overlap,
        rank: -job.priority,
        generation,
        dispatch_attempt: 0,
        attempt: 0,
        epoch: 0,
        failures: [0; 3],
        losses: 0,
        place: Place::Waiting(Waiting {
            due_at: None,
            held_due_at: None,
            blocked_by: None,
            keep_attempt: false,
        }),
    }
}

/// A policy whose gaps are filled from another one.
pub(super) fn over(policy: RetryPolicy, base: RetryPolicy) -> RetryPolicy {
    RetryPolicy {
        max_user: policy.max_user.or(base.max_user),
        max_system: policy.max_system.or(base.max_system),
        max_timeout: policy.max_timeout.or(base.max_timeout),
        backoff_ms: policy.backoff_ms.or(base.backoff_ms),
        backoff_cap_ms: policy.backoff_cap_ms.or(base.backoff_cap_ms),
    }
}
