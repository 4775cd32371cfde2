//! What templates read at one place of a walk, and what the scopes around it say of needs.

use std::{collections::BTreeMap, sync::Arc};

use chrono::{DateTime, SecondsFormat, Utc};
use leasehold_actors::{
    domain::{
        JobId,
        execution::{Field, Requirements, overlay},
    },
    ports::recipe::JsonText,
};

use super::failure::Fault;
use crate::recipe::{
    compiled::{Body, Needs, Node, NodeNumber, Recipe},
    exact::Json,
    inputs,
    template::{Reference, Scope, Template},
};

/// What templates read. Cheap to copy: a copy shares what it does not change.
#[derive(Debug, Clone)]
pub(super) struct Env {
    job: JobId,
    submitted_at: DateTime<Utc>,
    inputs: JsonText,
    vars: JsonText,
    outputs: Arc<BTreeMap<NodeNumber, JsonText>>,
    error: Option<JsonText>,
    /// With the ordinal of its record.
    signal: Option<(i64, JsonText)>,
    payload: Option<JsonText>,
}

impl Env {
    /// At the beginning of a job.
    pub(super) fn of_job(job: JobId, submitted_at: DateTime<Utc>, recipe: &Recipe, inputs: JsonText) -> Self {
        Self {
            job,
            submitted_at,
            inputs,
            vars: object(&recipe.vars),
            outputs: Arc::default(),
            error: None,
            signal: None,
            payload: None,
        }
    }

    /// At the beginning of an included recipe: it reads nothing of what is around it.
    pub(super) fn of_included(&self, recipe: &Recipe, inputs: JsonText) -> Self {
        Self::of_job(self.job, self.submitted_at, recipe, inputs)
    }

    /// After a node has its output.
    pub(super) fn put(&mut self, node: NodeNumber, output: JsonText) {
        Arc::make_mut(&mut self.outputs).insert(node, output);
    }

    /// After all branches of a `parallel` have theirs. Of the signals that they took, the one taken last counts.
    pub(super) fn join(&mut self, branch: &Self) {
        let taken = |env: &Self| env.signal.as_ref().map(|(ordinal, _)| *ordinal);
        if taken(branch) > taken(self) {
            self.signal.clone_from(&branch.signal);
        }
        let outputs = Arc::make_mut(&mut self.outputs);
        for (node, output) in branch.outputs.iter() {
            outputs.insert(*node, Arc::clone(output));
        }
    }

    /// Inside `catch`.
    pub(super) fn with_error(mut self, error: JsonText) -> Self {
        self.error = Some(error);
        self
    }

    /// What `error` was outside.
    pub(super) fn error_of(&mut self, outside: &Self) {
        self.error.clone_from(&outside.error);
    }

    /// After a signal was taken.
    pub(super) fn set_signal(&mut self, ordinal: i64, data: JsonText) {
        self.signal = Some((ordinal, data));
    }

    /// At the beginning of a state's visit.
    pub(super) fn set_payload(&mut self, payload: Option<JsonText>) {
        self.payload = payload;
    }

    /// What `transition.payload` was outside.
    pub(super) fn payload(&self) -> Option<JsonText> {
        self.payload.clone()
    }
}

impl Scope for Env {
    fn read(&self, reference: Reference) -> Option<JsonText> {
        match reference {
            Reference::Inputs => Some(Arc::clone(&self.inputs)),
            Reference::Vars => Some(Arc::clone(&self.vars)),
            Reference::Outputs(node) => self.outputs.get(&node).cloned(),
            Reference::Error => self.error.clone(),
            Reference::Signal => self.signal.as_ref().map(|(_, data)| Arc::clone(data)),
            Reference::TransitionPayload => Some(self.payload.clone().unwrap_or_else(null)),
            Reference::JobId => Some(self.job.to_string().into()),
            Reference::JobSubmittedAt => {
                Some(format!("\"{}\"", self.submitted_at.to_rfc3339_opts(SecondsFormat::Micros, true)).into())
            }
        }
    }
}

/// `null`
pub(super) fn null() -> JsonText {
    Arc::from("null")
}

/// An object of raw values, in the order in which they are given.
pub(super) fn object<'a, K: AsRef<str> + 'a>(
    members: impl IntoIterator<Item = (K, &'a JsonText)>,
) -> JsonText {
    let mut text = String::from("{");
    for (n, (key, value)) in members.into_iter().enumerate() {
        if n > 0 {
            text.push(',');
        }
        text.push_str(&Json::String(key.as_ref().to_owned()).to_string());
        text.push(':');
        text.push_str(value);
    }
    text.push('}');
    text.into()
}

/// The inputs of a recipe: what was given, checked against what it declares, with its defaults.
pub(super) fn bind_inputs(recipe: &Recipe, given: &str) -> Result<JsonText, Fault> {
    inputs::bind(&recipe.inputs, given)
        .map_err(|error| Fault::user("bad_inputs", format!("recipe {}: {error}", recipe.id)))
}

/// What the scopes around a place say of needs, the innermost first. Evaluated only for a task that is about to run.
#[derive(Debug, Clone, Default)]
pub(super) struct Scopes<'a>(Option<Arc<OneScope<'a>>>);

#[derive(Debug)]
struct OneScope<'a> {
    needs: &'a Needs,
    env: Env,
    around: Scopes<'a>,
}

impl<'a> Scopes<'a> {
    /// Inside another scope.
    pub(super) fn inside(&self, needs: &'a Needs, env: &Env) -> Self {
        if fields(needs).iter().all(|(_, template)| template.is_none()) {
            return self.clone();
        }
        Self(Some(Arc::new(OneScope { needs, env: env.clone(), around: self.clone() })))
    }

    /// What they come to: outermost to innermost, the nearest value wins.
    pub(super) fn requirements(&self) -> Result<Requirements, Fault> {
        let Some(scope) = &self.0 else { return Ok(Requirements::default()) };
        let mut own = Requirements::default();
        for (field, template) in fields(scope.needs) {
            let Some(template) = template else { continue };
            let text = template.text(&scope.env).map_err(|error| Fault::of_template(&error))?;
            own.set(field, &text)
                .map_err(|error| Fault::user("bad_needs", format!("execution needs: {error}")))?;
        }
        Ok(overlay(&scope.around.requirements()?, &own))
    }
}

fn fields(needs: &Needs) -> [(Field, &Option<Template>); 5] {
    [
        (Field::Cpu, &needs.cpu),
        (Field::Memory, &needs.memory),
        (Field::EphemeralStorage, &needs.ephemeral_storage),
        (Field::Platform, &needs.platform),
        (Field::Image, &needs.image),
    ]
}

impl Recipe {
    /// Whether it says anything of needs anywhere.
    #[must_use]
    pub fn declares_needs(&self) -> bool {
        says(&self.execution) || node_has_needs(&self.root)
    }
}

fn node_has_needs(node: &Node) -> bool {
    says(&node.needs)
        || node.catch.as_deref().is_some_and(node_has_needs)
        || match &node.body {
            Body::Op { .. } => false,
            Body::Sequence(nodes) | Body::Parallel(nodes) => nodes.iter().any(node_has_needs),
            Body::States(machine) => machine.states.iter().any(|state| node_has_needs(&state.node)),
            Body::Include { recipe, .. } => recipe.declares_needs(),
        }
}

fn says(needs: &Needs) -> bool {
    fields(needs).iter().any(|(_, template)| template.is_some())
}
