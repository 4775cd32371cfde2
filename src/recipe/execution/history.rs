//! Histories outside the database: what a job was and what it recorded, as one JSON document, and the question whether
//! a recipe would still do what is recorded. JSON in it is the text that was recorded, byte for byte.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{Epoch, Failure, JobDefinition, JobId, JobKind, JobState, Namespace, RawJson, WorkerId},
    ports::recipe::{Event, EventBody, JsonText, TaskOutcome},
};
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    engine::definition,
    replay::{Contradiction, Replay, ReplayEnd, walk},
};
use crate::recipe::{canonical::canonical, compiled::Recipe};

/// The version of the document.
const VERSION: u32 = 1;

/// A job's history.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    version: u32,
    namespace: Namespace,
    job: JobId,
    /// As the database calls it.
    state: String,
    submitted_at: DateTime<Utc>,
    /// The pinned recipe, its inputs and the overrides of its needs.
    definition: RawJson,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    output: Option<RawJson>,
    /// The code of its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    events: Vec<Line>,
}

/// An output that is there, `null` included: the absence of the key alone says that there is none.
fn present<'de, D: Deserializer<'de>>(input: D) -> Result<Option<RawJson>, D::Error> {
    RawJson::deserialize(input).map(Some)
}

/// A job whose history is taken.
#[derive(Debug, Clone)]
pub struct Past<'a> {
    /// The tenant.
    pub namespace: &'a Namespace,
    /// The job.
    pub job: JobId,
    /// Where it stands.
    pub state: JobState,
    /// When it was submitted.
    pub submitted_at: DateTime<Utc>,
    /// `jobs.definition`, raw.
    pub definition: &'a str,
    /// Its result, raw.
    pub output: Option<&'a str>,
    /// The code of its failure.
    pub failure: Option<&'a str>,
}

/// A document that is no history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadHistory(String);

/// What verifying says of a history.
#[derive(Debug, Clone, PartialEq)]
pub enum Verified {
    /// Everything that is recorded is what the recipe does.
    Consistent,
    /// It is not.
    NotDeterministic(Contradiction),
    /// It is a job of another recipe.
    OtherRecipe {
        /// The id of that recipe.
        recipe: String,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    ordinal: i64,
    path: String,
    at: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<WorkerId>,
    epoch: Epoch,
    says: Says,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Says {
    Task {
        op: String,
        input_hash: String,
        attempt: i32,
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
        output: Option<RawJson>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        directive: Option<RawJson>,
    },
    TimerSet {
        deadline: DateTime<Utc>,
    },
    TimerFired {},
    Signal {
        name: String,
        id: i64,
        data: RawJson,
    },
    ChildStarted {
        job: JobId,
    },
    ChildEnded {
        job: JobId,
        state: String,
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
        output: Option<RawJson>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
    Reopened {
        again: Vec<(i64, i64)>,
    },
}

impl History {
    /// Takes the history of a job.
    ///
    /// # Errors
    /// [`BadHistory`] when a value is no JSON, which no store gives.
    pub fn of(past: &Past<'_>, events: &[Event]) -> Result<Self, BadHistory> {
        Ok(Self {
            version: VERSION,
            namespace: past.namespace.clone(),
            job: past.job,
            state: past.state.to_string(),
            submitted_at: past.submitted_at,
            definition: raw(past.definition)?,
            output: past.output.map(raw).transpose()?,
            failure: past.failure.map(str::to_owned),
            events: events.iter().map(line).collect::<Result<_, _>>()?,
        })
    }

    /// The document: one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and JSON have a JSON form")
    }

    /// Reads a document back.
    ///
    /// # Errors
    /// [`BadHistory`] with the place where it is not what [`History::to_json`] writes.
    pub fn parse(text: &str) -> Result<Self, BadHistory> {
        let history: Self = serde_json::from_str(text).map_err(|error| BadHistory(error.to_string()))?;
        if history.version != VERSION {
            let version = history.version;
            return Err(BadHistory(format!("it has version {version}; this binary reads {VERSION}")));
        }
        Ok(history)
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.job
    }

    /// Walks a recipe over what is recorded, or the job's own pinned recipe where none is given. Nothing runs.
    ///
    /// # Errors
    /// [`BadHistory`] when the job's definition, or an event, cannot be read.
    pub async fn verify(&self, recipe: Option<&Arc<Recipe>>) -> Result<Verified, BadHistory> {
        let spec = match JobDefinition::from_json(JobKind::Recipe, self.definition.get()) {
            Ok(JobDefinition::Recipe(spec)) => spec,
            Ok(_) => return Err(BadHistory("the job is no recipe".to_owned())),
            Err(error) => return Err(BadHistory(error.to_string())),
        };
        if recipe.is_some_and(|recipe| recipe.id != spec.recipe) {
            return Ok(Verified::OtherRecipe { recipe: spec.recipe });
        }
        // Read with the pinned recipe only where that is what is asked about: a recipe of an older language is verified
        // against a newer one as well.
        let (recipe, overrides) = match recipe {
            Some(recipe) => {
                let overrides = serde_json::from_str(spec.require.get())
                    .map_err(|error| BadHistory(format!("require: {error}")))?;
                (Arc::clone(recipe), overrides)
            }
            None => {
                let (_, recipe, overrides) = definition(self.definition.get(), |_| None)
                    .map_err(|failure| BadHistory(failure.message))?;
                (recipe, overrides)
            }
        };
        let events = self.events.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
        let inputs: JsonText = spec.inputs.get().into();
        let replayed =
            walk(&self.namespace, self.job, self.submitted_at, recipe, inputs, overrides, events).await;
        Ok(match replayed.contradiction.clone().or_else(|| self.other_end(&replayed, count)) {
            Some(contradiction) => Verified::NotDeterministic(contradiction),
            None => Verified::Consistent,
        })
    }

    /// Where an ended job would not end as it did.
    fn other_end(&self, replayed: &Replay, events: i64) -> Option<Contradiction> {
        let differs = |path: &str, found: String| {
            let why = self.failure.as_ref().map_or_else(String::new, |code| format!(" with {code}"));
            Some(Contradiction {
                path: path.to_owned(),
                ordinal: events + 1,
                expected: format!("the end of the job as {}{why}", self.state),
                found,
            })
        };
        match (self.state.as_str(), &replayed.end) {
            ("COMPLETED", ReplayEnd::CacheMiss { path }) => {
                differs(path, "a step that is not recorded".to_owned())
            }
            ("COMPLETED", ReplayEnd::Failed(failure)) => {
                differs(".", format!("{} {}: {}", failure.kind, failure.code, failure.message))
            }
            ("COMPLETED", ReplayEnd::Completed(output)) => {
                let recorded = self.output.as_ref().map_or("null", RawJson::get);
                let same = canonical(recorded).ok() == canonical(output).ok();
                if same { None } else { differs(".", "another output".to_owned()) }
            }
            ("FAILED", ReplayEnd::Completed(_)) => differs(".", "the end as COMPLETED".to_owned()),
            ("FAILED", ReplayEnd::Failed(failure)) if self.failure.as_ref() != Some(&failure.code) => {
                differs(".", format!("{} {}: {}", failure.kind, failure.code, failure.message))
            }
            // What goes on, what was cancelled, and what failed beside its recipe, stops anywhere.
            _ => None,
        }
    }
}

fn raw(text: &str) -> Result<RawJson, BadHistory> {
    RawJson::new(text).map_err(|error| BadHistory(error.to_string()))
}

fn line(event: &Event) -> Result<Line, BadHistory> {
    let json = |text: &JsonText| raw(text);
    let says = match &event.body {
        EventBody::Task { op, input_hash, attempt, outcome, directive } => {
            let (output, failure) = match outcome {
                TaskOutcome::Succeeded { output } => (Some(json(output)?), None),
                TaskOutcome::Failed(failure) => (None, Some(failure.clone())),
                TaskOutcome::Canceled => (None, None),
            };
            let (op, input_hash) = (op.clone(), input_hash.clone());
            let directive = directive.as_ref().map(json).transpose()?;
            Says::Task { op, input_hash, attempt: *attempt, output, failure, directive }
        }
        EventBody::TimerSet { deadline } => Says::TimerSet { deadline: *deadline },
        EventBody::TimerFired => Says::TimerFired {},
        EventBody::Signal { name, id, data } => {
            Says::Signal { name: name.clone(), id: *id, data: json(data)? }
        }
        EventBody::ChildStarted { job } => Says::ChildStarted { job: *job },
        EventBody::ChildEnded { job, state, output, failure } => Says::ChildEnded {
            job: *job,
            state: state.to_string(),
            output: output.as_ref().map(json).transpose()?,
            failure: failure.clone(),
        },
        EventBody::Reopened { again } => Says::Reopened { again: again.clone() },
    };
    let (path, worker) = (event.path.clone(), event.worker.clone());
    Ok(Line { ordinal: event.ordinal, path, at: event.at, worker, epoch: event.epoch, says })
}

fn event(line: &Line) -> Result<Event, BadHistory> {
    let text = |json: &RawJson| JsonText::from(json.get());
    let body = match &line.says {
        Says::Task { op, input_hash, attempt, output, failure, directive } => EventBody::Task {
            op: op.clone(),
            input_hash: input_hash.clone(),
            attempt: *attempt,
            outcome: match (output, failure) {
                (Some(output), None) => TaskOutcome::Succeeded { output: text(output) },
                (None, Some(failure)) => TaskOutcome::Failed(failure.clone()),
                (None, None) => TaskOutcome::Canceled,
                (Some(_), Some(_)) => {
                    return Err(BadHistory(format!("event {} has an output and a failure", line.ordinal)));
                }
            },
            directive: directive.as_ref().map(text),
        },
        Says::TimerSet { deadline } => EventBody::TimerSet { deadline: *deadline },
        Says::TimerFired {} => EventBody::TimerFired,
        Says::Signal { name, id, data } => {
            EventBody::Signal { name: name.clone(), id: *id, data: text(data) }
        }
        Says::ChildStarted { job } => EventBody::ChildStarted { job: *job },
        Says::ChildEnded { job, state, output, failure } => EventBody::ChildEnded {
            job: *job,
            state: state.parse().map_err(BadHistory)?,
            output: output.as_ref().map(text),
            failure: failure.clone(),
        },
        Says::Reopened { again } => EventBody::Reopened { again: again.clone() },
    };
    let (path, worker) = (line.path.clone(), line.worker.clone());
    Ok(Event { ordinal: line.ordinal, path, body, at: line.at, worker, epoch: line.epoch })
}
