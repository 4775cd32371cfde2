//! Events as JSON: whole, and without their values.

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{Failure, JobId, JobState},
    ports::recipe::{Event, EventBody, TaskOutcome},
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{super::output, failed};

/// One event as programs read it.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Line<'e> {
    ordinal: i64,
    path: &'e str,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'e RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'e Failure>,
    /// The change of needs that was stored with the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    directive: Option<&'e RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    child: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<JobState>,
    /// Of a reopening: the first and the last of each run of ordinals that count as unfinished from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    unfinished: Option<&'e [(i64, i64)]>,
    at: DateTime<Utc>,
    worker: Option<String>,
    epoch: i64,
}

impl<'e> Line<'e> {
    pub(in crate::cli) fn of(event: &'e Event) -> Self {
        // What the store gives is JSON.
        let raw = |text: &'e str| serde_json::from_str::<&RawValue>(text).ok();
        let mut line = Self {
            ordinal: event.ordinal,
            path: &event.path,
            event: "task",
            op: None,
            attempt: None,
            outcome: None,
            output: None,
            failure: None,
            directive: None,
            deadline: None,
            signal: None,
            child: None,
            state: None,
            unfinished: None,
            at: event.at,
            worker: event.worker.as_ref().map(ToString::to_string),
            epoch: event.epoch.0,
        };
        match &event.body {
            EventBody::Task { op, attempt, outcome, directive, .. } => {
                (line.op, line.attempt) = (Some(op.as_str()), Some(*attempt));
                line.directive = directive.as_deref().and_then(raw);
                match outcome {
                    TaskOutcome::Succeeded { output } => {
                        (line.outcome, line.output) = (Some("succeeded"), raw(output));
                    }
                    TaskOutcome::Failed(failure) => {
                        (line.outcome, line.failure) = (Some("failed"), Some(failure));
                    }
                    TaskOutcome::Canceled => line.outcome = Some("canceled"),
                }
            }
            EventBody::TimerSet { deadline } => (line.event, line.deadline) = ("timer_set", Some(*deadline)),
            EventBody::TimerFired => line.event = "timer_fired",
            EventBody::Signal { name, data, .. } => {
                (line.event, line.signal, line.output) = ("signal", Some(name.as_str()), raw(data));
            }
            EventBody::ChildStarted { job } => (line.event, line.child) = ("child_started", Some(*job)),
            EventBody::ChildEnded { job, state, output, failure } => {
                (line.event, line.child, line.state) = ("child_ended", Some(*job), Some(*state));
                (line.output, line.failure) = (output.as_deref().and_then(raw), failure.as_ref());
            }
            EventBody::Reopened { again } => {
                (line.event, line.unfinished) = ("reopened", Some(again.as_slice()))
            }
        }
        line
    }
}

/// One event as programs read it beside a job: without its values.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Brief<'e> {
    ordinal: i64,
    path: &'e str,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) attempt: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'e Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    child: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<JobState>,
    at: DateTime<Utc>,
    worker: Option<String>,
    epoch: i64,
}

impl<'e> Brief<'e> {
    pub(in crate::cli) fn of(event: &'e Event) -> Self {
        let Line {
            ordinal,
            path,
            event,
            op,
            attempt,
            outcome,
            failure,
            deadline,
            signal,
            child,
            state,
            at,
            worker,
            epoch,
            ..
        } = Line::of(event);
        Self {
            ordinal,
            path,
            event,
            op,
            attempt,
            outcome,
            failure,
            deadline,
            signal,
            child,
            state,
            at,
            worker,
            epoch,
        }
    }

    /// The op of a task; of another event what it was.
    pub(in crate::cli) fn what(&self) -> String {
        match (self.op, self.signal, self.child) {
            (Some(op), ..) => op.to_owned(),
            (_, Some(signal), _) => format!("signal {signal}"),
            (.., Some(child)) => format!("{} {child}", self.event.replace('_', " ")),
            _ => self.event.replace('_', " "),
        }
    }

    /// How it came out, and where it failed, why.
    pub(in crate::cli) fn outcome_words(&self) -> Option<String> {
        let state = self.state.map(|state| state.to_string());
        let outcome = self.outcome.map(str::to_owned).or(state);
        match (outcome, self.failure, self.deadline) {
            (Some(outcome), Some(failure), _) => Some(format!("{outcome}: {}", failed(failure))),
            (Some(outcome), ..) => Some(outcome),
            (None, _, Some(deadline)) => Some(format!("until {}", output::instant(deadline))),
            (None, ..) => None,
        }
    }
}
