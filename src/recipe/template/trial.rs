//! Templates tried out against given values, outside any recipe: for authors, and for the corpus of cases that every
//! version must evaluate alike.

use std::{collections::BTreeMap, sync::Arc};

use leasehold_actors::ports::recipe::JsonText;

use super::{Names, Reference, Scope, Template, TemplateError};
use crate::recipe::{
    compiled::NodeNumber,
    exact::{Json, NotJson, raw_member},
};

/// Values by the names that templates read them under:
/// `{"inputs": {…}, "vars": {…}, "sequence": {"probe": {"outputs": …}}, "error": {…}, "job": {"id": "7"}}`.
#[derive(Debug, Clone)]
pub struct Trial {
    values: BTreeMap<Reference, JsonText>,
    /// `sequence`, `parallel` or `states`, and the id, by number.
    nodes: Vec<(&'static str, String)>,
}

/// A template that was tried and has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrialError {
    /// It cannot be compiled.
    #[error("{0}")]
    Invalid(String),
    /// It cannot be evaluated.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

impl TrialError {
    /// A word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid_template",
            Self::Template(error) => error.code(),
        }
    }
}

impl Trial {
    /// Reads the values; each stays the text that it is.
    ///
    /// # Errors
    /// [`NotJson`] when the text is not one JSON object, or has a name that no template can read.
    pub fn new(text: &str) -> Result<Self, NotJson> {
        let refuse = |reason: String| NotJson { at: 0, reason };
        let Json::Object(members) = Json::parse(text)? else {
            return Err(refuse("must be an object".to_owned()));
        };
        let mut trial = Self { values: BTreeMap::new(), nodes: Vec::new() };
        let below = |words: &[&str]| -> Option<JsonText> {
            words.iter().try_fold(text, |text, word| raw_member(text, word)).map(Arc::from)
        };
        for (name, value) in &members {
            let single = match name.as_str() {
                "inputs" => Some((Reference::Inputs, below(&["inputs"]))),
                "vars" => Some((Reference::Vars, below(&["vars"]))),
                "error" => Some((Reference::Error, below(&["error"]))),
                "signal" => Some((Reference::Signal, below(&["signal"]))),
                "transition" => Some((Reference::TransitionPayload, below(&["transition", "payload"]))),
                _ => None,
            };
            if let Some((reference, found)) = single {
                trial.values.extend(found.map(|text| (reference, text)));
                continue;
            }
            let Some(kind) = ["sequence", "parallel", "states"].into_iter().find(|kind| kind == name) else {
                if name != "job" {
                    return Err(refuse(format!("no template can read `{name}`")));
                }
                trial.values.extend(below(&["job", "id"]).map(|text| (Reference::JobId, text)));
                let submitted = below(&["job", "submitted_at"]);
                trial.values.extend(submitted.map(|text| (Reference::JobSubmittedAt, text)));
                continue;
            };
            let Json::Object(nodes) = value else {
                return Err(refuse(format!("`{kind}` must be an object of nodes")));
            };
            for id in nodes.keys() {
                let number = NodeNumber(trial.nodes.len());
                trial.nodes.push((kind, id.clone()));
                let outputs = below(&[kind, id, "outputs"]);
                trial.values.extend(outputs.map(|text| (Reference::Outputs(number), text)));
            }
        }
        Ok(trial)
    }

    /// The value of a text with templates, as JSON text.
    ///
    /// # Errors
    /// [`TrialError`].
    pub fn evaluate(&self, text: &str) -> Result<JsonText, TrialError> {
        Ok(Template::compile(text, self).map_err(TrialError::Invalid)?.render(self)?)
    }
}

impl Scope for Trial {
    fn read(&self, reference: Reference) -> Option<JsonText> {
        self.values.get(&reference).cloned()
    }
}

impl Names for Trial {
    fn resolve(&self, chain: &[&str]) -> Result<(Reference, usize), String> {
        match chain {
            ["inputs", ..] => Ok((Reference::Inputs, 1)),
            ["vars", ..] => Ok((Reference::Vars, 1)),
            ["error", ..] => Ok((Reference::Error, 1)),
            ["signal", ..] => Ok((Reference::Signal, 1)),
            ["transition", "payload", ..] => Ok((Reference::TransitionPayload, 2)),
            ["job", "id", ..] => Ok((Reference::JobId, 2)),
            ["job", "submitted_at", ..] => Ok((Reference::JobSubmittedAt, 2)),
            [kind @ ("sequence" | "parallel" | "states"), id, "outputs", ..] => self
                .nodes
                .iter()
                .position(|(known, name)| known == kind && name == id)
                .map(|at| (Reference::Outputs(NodeNumber(at)), 3))
                .ok_or_else(|| format!("there is no `{kind}.{id}` among the values")),
            [name, ..] => Err(format!("unknown name `{name}`")),
            [] => Err("there is no name".to_owned()),
        }
    }
}
