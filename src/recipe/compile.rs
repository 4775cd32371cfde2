//! From a bundle to a compiled recipe: every file is read and checked against the grammar first, then nodes are
//! numbered, references resolved and templates parsed. As many mistakes as can be told apart are reported at once.

mod survey;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use leasehold_actors::domain::execution::{Field, Requirements};

use self::survey::{Files, children, included, survey};
use super::{
    bundle::Bundle,
    compiled::{
        Body, Input, InputType, Needs, Node, NodeNumber, Recipe, Retry, State, StateMachine, Transition,
    },
    exact::Json,
    grammar,
    limits::LANGUAGE_VERSION,
    mistake::{Mistakes, Place},
    names::{Around, Here, Known},
    op::SESSION_OPS,
    template::{Template, ValueTemplate},
    yaml::{Value, Yaml},
};

const DEFAULT_BACKOFF: Duration = Duration::from_secs(1);
const DEFAULT_BACKOFF_CAP: Duration = Duration::from_secs(60);
const DEFAULT_JOB_TYPE: &str = "recipe";
const DEFAULT_CATCH_ID: &str = "catch";

/// Compiles a bundle.
///
/// # Errors
/// [`Mistakes`], in the order of files, lines and columns.
pub fn compile(bundle: &Bundle) -> Result<Recipe, Mistakes> {
    let files = survey(bundle)?;
    let mut compiler = Compiler { files: &files, mistakes: Mistakes::default(), next: 0 };
    let recipe = compiler.recipe(&bundle.root, true);
    compiler.mistakes.none_or()?;
    Ok(recipe)
}

/// The second walk.
struct Compiler<'a> {
    files: &'a Files,
    mistakes: Mistakes,
    /// The number of the next node.
    next: usize,
}

/// Where a node stands: it decides which keys mean what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Root,
    Catch,
    Inner,
}

impl Compiler<'_> {
    fn recipe(&mut self, file: &str, outermost: bool) -> Recipe {
        let files = self.files;
        let yaml = &files[file];
        if let (false, Some(value)) = (outermost, yaml.get("job_type")) {
            self.mistakes.add(
                file,
                value.place,
                "`job_type` belongs to the root recipe: this one is included",
            );
        }
        let inputs = self.declared(yaml.get("inputs"), file);
        let vars: BTreeMap<String, _> = yaml
            .get("vars")
            .map_or(&[][..], Yaml::members)
            .iter()
            .map(|(key, value)| (key.name.clone(), value.to_json().to_string().into()))
            .collect();
        let mut here = Here {
            inputs: inputs.keys().cloned().collect(),
            vars: vars.keys().cloned().collect(),
            around: Vec::new(),
        };
        let first = self.next;
        let execution = self.needs(yaml.get("execution"), file, &here);
        let root = self.node(yaml, file, &mut here, Role::Root);
        Recipe {
            id: text(yaml, "id").unwrap_or_default(),
            language: LANGUAGE_VERSION,
            job_type: text(yaml, "job_type").unwrap_or_else(|| DEFAULT_JOB_TYPE.to_owned()),
            inputs,
            vars,
            execution,
            root,
            nodes: self.next - first,
        }
    }

    fn declared(&mut self, yaml: Option<&Yaml>, file: &str) -> BTreeMap<String, Input> {
        let mut inputs = BTreeMap::new();
        for (key, value) in yaml.map_or(&[][..], Yaml::members) {
            let kind = value.get("type").and_then(Yaml::text).and_then(InputType::from_word);
            let kind = kind.unwrap_or(InputType::Any);
            let default = value.get("default").map(|default| {
                let json = default.to_json();
                if !kind.admits(&json) {
                    let reason = format!("`default` must be {}, not {}", kind.described(), json.kind());
                    self.mistakes.add(file, default.place, reason);
                }
                json.to_string().into()
            });
            inputs.insert(key.name.clone(), Input { kind, default });
        }
        inputs
    }

    fn node(&mut self, yaml: &Yaml, file: &str, here: &mut Here, role: Role) -> Node {
        let number = NodeNumber(self.next);
        self.next += 1;
        let id = match role {
            Role::Root => String::new(),
            Role::Catch => text(yaml, "id").unwrap_or_else(|| DEFAULT_CATCH_ID.to_owned()),
            Role::Inner => text(yaml, "id").unwrap_or_default(),
        };
        let when = self.condition(yaml.get("when"), file, here);
        let needs = self.needs(yaml.get("execution_needs"), file, here);
        let body = self.body(yaml, file, here, role);
        let catch = yaml.get("catch").map(|caught| {
            let id = text(caught, "id").unwrap_or_else(|| DEFAULT_CATCH_ID.to_owned());
            if let Some(twin) = children(yaml)
                .find(|child| !std::ptr::eq(*child, caught) && text(child, "id").as_ref() == Some(&id))
            {
                let reason =
                    format!("the id `{id}` is also that of the node's `catch`: give one of them another");
                self.mistakes.add(file, id_place(twin), reason);
            }
            here.around.push(Around::Catch);
            let node = self.node(caught, file, here, Role::Catch);
            here.around.pop();
            Box::new(node)
        });
        Node {
            number,
            id,
            when,
            retry: yaml.get("retry").map(|retry| self.retry(retry, file)),
            timeout: millis(yaml, "timeout"),
            needs,
            body,
            catch,
        }
    }

    fn body(&mut self, yaml: &Yaml, file: &str, here: &mut Here, role: Role) -> Body {
        let inputs_key = if role == Role::Root { "with" } else { "inputs" };
        let inputs = yaml.get(inputs_key);
        if let Some(op) = yaml.get("op") {
            let mistakes = &mut self.mistakes;
            grammar::ops::check_written(
                op.text().unwrap_or_default(),
                inputs,
                op.place,
                &mut |place, message| mistakes.add(file, place, message),
            );
            let op = op.text().unwrap_or_default();
            // What runs on no worker has no secrets: their names would be taken for the values.
            let inputs = self.inputs(inputs, file, here, !SESSION_OPS.contains(&op));
            return Body::Op { op: op.to_owned(), inputs };
        }
        if let Some((target, value)) = included(yaml, file) {
            let template = self.inputs(inputs, file, here, false);
            let recipe = self.recipe(&target, false);
            self.given(&recipe, inputs, value.place, file);
            return Body::Include { recipe: Arc::new(recipe), inputs: template };
        }
        if let Some(found) = inputs {
            let reason = format!("`{inputs_key}` belongs to `op` and `include`; this node has neither");
            self.mistakes.add(file, found.place, reason);
        }
        if let Some(machine) = yaml.get("state") {
            return Body::States(self.machine(machine, file, here));
        }
        if let Some(branches) = yaml.get("parallel") {
            let known = self.known(branches.elements(), file);
            here.around.push(Around::Parallel(known));
            let nodes = branches.elements().iter().map(|b| self.node(b, file, here, Role::Inner)).collect();
            here.around.pop();
            return Body::Parallel(nodes);
        }
        let nodes = yaml.get("sequence").map_or(&[][..], Yaml::elements);
        let known = self.known(nodes, file);
        here.around.push(Around::Sequence(known, 0));
        let compiled = nodes
            .iter()
            .enumerate()
            .map(|(n, node)| {
                if let Some(Around::Sequence(_, at)) = here.around.last_mut() {
                    *at = n;
                }
                self.node(node, file, here, Role::Inner)
            })
            .collect();
        here.around.pop();
        Body::Sequence(compiled)
    }

    fn machine(&mut self, yaml: &Yaml, file: &str, here: &mut Here) -> StateMachine {
        let states = yaml.get("states").map_or(&[][..], Yaml::elements);
        let known = self.known(states, file);
        let ids: Vec<String> = known.iter().map(|state| state.id.clone()).collect();
        let initial = self.target(yaml.get("initial"), &ids, file);
        here.around.push(Around::Machine(known));
        let mut compiled = Vec::with_capacity(states.len());
        for state in states {
            let node = self.node(state, file, here, Role::Inner);
            let written = state.get("transitions").map_or(&[][..], Yaml::elements);
            let mut transitions = Vec::with_capacity(written.len());
            for (n, transition) in written.iter().enumerate() {
                if n + 1 < written.len() && transition.get("when").is_none() {
                    let next = &written[n + 1];
                    self.mistakes.add(
                        file,
                        next.place,
                        "this transition is never taken: the one before it always holds",
                    );
                }
                let payload = transition.get("payload").map(|payload| self.value(payload, file, here, false));
                transitions.push(Transition {
                    when: self.condition(transition.get("when"), file, here),
                    to: self.target(transition.get("to"), &ids, file),
                    payload,
                });
            }
            compiled.push(State { node, transitions });
        }
        here.around.pop();
        StateMachine { initial, states: compiled }
    }

    fn target(&mut self, yaml: Option<&Yaml>, ids: &[String], file: &str) -> usize {
        let Some(yaml) = yaml else { return 0 };
        let found = yaml.text().and_then(|id| ids.iter().position(|known| known == id));
        found.unwrap_or_else(|| {
            let reason = format!(
                "there is no state `{}`; there are: {}",
                yaml.text().unwrap_or_default(),
                ids.join(", ")
            );
            self.mistakes.add(file, yaml.place, reason);
            0
        })
    }

    /// Siblings as they refer to each other, with the numbers that they will get.
    fn known(&mut self, siblings: &[Yaml], file: &str) -> Vec<Known> {
        let mut seen = HashSet::new();
        let mut at = self.next;
        let mut known = Vec::with_capacity(siblings.len());
        for node in siblings {
            let id = text(node, "id").unwrap_or_default();
            if !seen.insert(id.clone()) {
                self.mistakes.add(
                    file,
                    id_place(node),
                    format!("the id `{id}` comes twice among these nodes"),
                );
            }
            let mut branch_at = at + 1;
            let mut branches = Vec::new();
            for branch in node.get("parallel").map_or(&[][..], Yaml::elements) {
                branches.push((text(branch, "id").unwrap_or_default(), NodeNumber(branch_at)));
                branch_at += self.size(branch, file);
            }
            known.push(Known { id, number: NodeNumber(at), branches });
            at += self.size(node, file);
        }
        known
    }

    /// How many numbers a node takes. The survey has bounded it.
    fn size(&self, yaml: &Yaml, file: &str) -> usize {
        let included = included(yaml, file).map_or(0, |(target, _)| self.size(&self.files[&target], &target));
        1 + included + children(yaml).map(|child| self.size(child, file)).sum::<usize>()
    }

    fn retry(&mut self, yaml: &Yaml, file: &str) -> Retry {
        let backoff = millis(yaml, "backoff").unwrap_or(DEFAULT_BACKOFF);
        let cap = millis(yaml, "backoff_cap");
        if let (Some(cap), Some(value)) = (cap, yaml.get("backoff_cap"))
            && cap < backoff
        {
            self.mistakes.add(file, value.place, "`backoff_cap` must not be shorter than `backoff`");
        }
        let attempts = match yaml.get("max_attempts").map(|attempts| &attempts.value) {
            Some(Value::Number(text)) => text.parse().unwrap_or(1),
            _ => 1,
        };
        let on = yaml.get("on").map_or(&[][..], Yaml::elements);
        Retry {
            max_attempts: attempts,
            backoff,
            backoff_cap: cap.unwrap_or_else(|| DEFAULT_BACKOFF_CAP.max(backoff)),
            on: on.iter().filter_map(Yaml::text).map(str::to_owned).collect(),
        }
    }

    fn condition(&mut self, yaml: Option<&Yaml>, file: &str, here: &Here) -> Option<Template> {
        let yaml = yaml?;
        match &yaml.value {
            Value::Text(_) => {
                let template = self.template(yaml, file, here)?;
                if !template.is_whole() {
                    self.mistakes.add(
                        file,
                        yaml.place,
                        "a condition is one template and nothing around it: ${{ … }}",
                    );
                }
                Some(template)
            }
            _ => Some(Template::constant(&yaml.to_json())),
        }
    }

    fn needs(&mut self, yaml: Option<&Yaml>, file: &str, here: &Here) -> Needs {
        let resource = |key: &str| yaml.and_then(|needs| needs.get("resources")).and_then(|r| r.get(key));
        Needs {
            cpu: self.need(Field::Cpu, resource("cpu"), file, here),
            memory: self.need(Field::Memory, resource("memory"), file, here),
            ephemeral_storage: self.need(Field::EphemeralStorage, resource("ephemeral-storage"), file, here),
            platform: self.need(Field::Platform, yaml.and_then(|needs| needs.get("platform")), file, here),
            image: self.need(Field::Image, yaml.and_then(|needs| needs.get("image")), file, here),
        }
    }

    fn need(&mut self, field: Field, yaml: Option<&Yaml>, file: &str, here: &Here) -> Option<Template> {
        let yaml = yaml?;
        let template = self.template(yaml, file, here)?;
        // An amount that is there already is checked now; one that comes out of a template, when it is known.
        if let (Some(_), Json::String(text) | Json::Number(text)) = (template.as_constant(), yaml.to_json())
            && !super::template::has_template(&text)
            && let Err(refused) = Requirements::default().set(field, &text)
        {
            self.mistakes.add(file, yaml.place, refused.to_string());
        }
        Some(template)
    }

    /// None after a mistake, which has then been told.
    fn template(&mut self, yaml: &Yaml, file: &str, here: &Here) -> Option<Template> {
        let Some(text) = yaml.text() else { return Some(Template::constant(&yaml.to_json())) };
        match Template::compile(text, here) {
            Ok(template) => Some(template),
            Err(reason) => {
                self.mistakes.add(file, yaml.place, reason);
                None
            }
        }
    }

    fn value(&mut self, yaml: &Yaml, file: &str, here: &Here, secrets: bool) -> ValueTemplate {
        let mistakes = &mut self.mistakes;
        ValueTemplate::compile(yaml, here, secrets, &mut |place, message| mistakes.add(file, place, message))
    }

    fn inputs(&mut self, yaml: Option<&Yaml>, file: &str, here: &Here, secrets: bool) -> ValueTemplate {
        yaml.map_or_else(ValueTemplate::empty, |yaml| self.value(yaml, file, here, secrets))
    }

    /// What an include gives against what the included recipe declares; the types of templates are checked when they
    /// have a value.
    fn given(&mut self, recipe: &Recipe, inputs: Option<&Yaml>, include: Place, file: &str) {
        let members = inputs.map_or(&[][..], Yaml::members);
        for (key, value) in members {
            match recipe.inputs.get(&key.name) {
                None => {
                    let reason = format!("the included recipe declares no input `{}`", key.name);
                    self.mistakes.add(file, key.place, reason);
                }
                Some(input) => {
                    let json = value.to_json();
                    let template = matches!(&json, Json::String(text) if super::template::has_template(text));
                    if !template && !input.kind.admits(&json) {
                        let reason =
                            format!("`{}` must be {}, not {}", key.name, input.kind.described(), json.kind());
                        self.mistakes.add(file, value.place, reason);
                    }
                }
            }
        }
        for (name, input) in &recipe.inputs {
            if input.default.is_none() && !members.iter().any(|(key, _)| key.name == *name) {
                let place = inputs.map_or(include, |inputs| inputs.place);
                self.mistakes.add(file, place, format!("the included recipe requires the input `{name}`"));
            }
        }
    }
}

fn text(yaml: &Yaml, key: &str) -> Option<String> {
    yaml.get(key).and_then(Yaml::text).map(str::to_owned)
}

fn id_place(yaml: &Yaml) -> Place {
    yaml.get("id").map_or(yaml.place, |id| id.place)
}

fn millis(yaml: &Yaml, key: &str) -> Option<Duration> {
    let millis = grammar::duration(yaml.get(key)?.text()?).ok()?;
    u64::try_from(millis).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests;
