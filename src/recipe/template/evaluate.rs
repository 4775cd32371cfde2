//! Evaluates terms. Pure, bounded in steps, and the same on every machine: values come from the scope, maps are
//! walked in the order of their keys, and nothing is rounded in silence.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use leasehold_actors::ports::recipe::JsonText;

use super::{
    Reference, Scope, functions,
    term::{Literal, Loop, Term},
    value::{self, Value},
};
use crate::recipe::{exact::Json, limits::MAX_EVALUATION_STEPS};

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// What it reads is not there.
    Unresolved(String),
    /// It cannot be computed.
    Failed(String),
    /// It would take too many steps.
    TooCostly,
}

/// How much text is looked through in one step.
const BYTES_PER_STEP: usize = 256;

pub(super) type Evaluated = Result<Value, Fault>;

pub(super) fn failed<T>(reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Failed(reason.into()))
}

/// The steps taken so far.
pub(super) struct Budget(u64);

impl Budget {
    pub(super) fn spend(&mut self, steps: usize) -> Result<(), Fault> {
        self.0 = self.0.saturating_add(steps as u64);
        if self.0 > MAX_EVALUATION_STEPS { Err(Fault::TooCostly) } else { Ok(()) }
    }
}

/// The evaluation of one template or value with all its expressions: they share what was read and the steps.
pub(super) struct Evaluation<'a> {
    scope: &'a dyn Scope,
    /// What was read already: never differs within one evaluation, and big values are parsed once.
    read: HashMap<Reference, Value>,
    /// Loop variables. An accumulator may hold a fault that a later element makes irrelevant.
    slots: Vec<Evaluated>,
    budget: Budget,
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(scope: &'a dyn Scope) -> Self {
        Self { scope, read: HashMap::new(), slots: Vec::new(), budget: Budget(0) }
    }

    /// Evaluates a whole expression. Recursive: call it on a thread with a large stack.
    pub(super) fn compute(&mut self, term: &Term) -> Result<Json, Fault> {
        self.slots.clear();
        self.value(term).map(|value| value.to_json())
    }

    /// The recorded text behind a reference. A path is looked for in it from its beginning each time, which costs steps.
    pub(super) fn text(&mut self, reference: Reference, path: &str) -> Result<JsonText, Fault> {
        let text = self.scope.read(reference).ok_or_else(|| Fault::Unresolved(path.to_owned()))?;
        self.budget.spend(1 + text.len() / BYTES_PER_STEP)?;
        Ok(text)
    }

    fn value(&mut self, term: &Term) -> Evaluated {
        self.budget.spend(1)?;
        match term {
            Term::Literal(literal) => Ok(constant(literal)),
            Term::Slot(slot) => self.slots[*slot].clone(),
            Term::Read(reference, path) => self.reference(*reference, path),
            Term::Select(inner, field) => match self.value(inner)? {
                Value::Map(members) => members.get(field.as_str()).cloned(),
                _ => None,
            }
            .ok_or_else(|| Fault::Unresolved(term.path())),
            Term::Index(inner, index) => {
                let (of, at) = (self.value(inner)?, self.value(index)?);
                match (&of, &at) {
                    (Value::List(elements), Value::Int(at)) => {
                        usize::try_from(*at).ok().and_then(|at| elements.get(at)).cloned()
                    }
                    (Value::Map(members), Value::Text(key)) => members.get(key).cloned(),
                    (Value::List(_) | Value::Map(_), _) => {
                        return failed(format!("a {} cannot be indexed with a {}", of.kind(), at.kind()));
                    }
                    _ => None,
                }
                .ok_or_else(|| Fault::Unresolved(term.path()))
            }
            Term::Has(inner, field) => match self.value(inner)? {
                Value::Map(members) => Ok(Value::Bool(members.contains_key(field.as_str()))),
                Value::Null => Ok(Value::Bool(false)),
                other => failed(format!("`has` asks a map, not a {}", other.kind())),
            },
            Term::HasRead(reference) => Ok(Value::Bool(self.scope.read(*reference).is_some())),
            Term::Call(function, arguments) => {
                let mut values = Vec::with_capacity(arguments.len());
                for argument in arguments {
                    values.push(self.value(argument)?);
                }
                functions::call(*function, &values, &mut self.budget)
            }
            Term::And(left, right) => self.logic(left, right, false),
            Term::Or(left, right) => self.logic(left, right, true),
            Term::Choose(parts) => {
                if self.truth(&parts.0)? {
                    self.value(&parts.1)
                } else {
                    self.value(&parts.2)
                }
            }
            Term::NotFalse(inner) => match self.value(inner) {
                Err(Fault::TooCostly) => Err(Fault::TooCostly),
                answer => Ok(Value::Bool(!matches!(answer, Ok(Value::Bool(false))))),
            },
            Term::List(elements) => {
                let mut values = Vec::with_capacity(elements.len());
                for element in elements {
                    values.push(self.value(element)?);
                }
                Ok(Value::List(Rc::new(values)))
            }
            Term::Map(entries) => {
                let mut members = BTreeMap::new();
                for (key, entry) in entries {
                    let Value::Text(key) = self.value(key)? else {
                        return failed("the keys of a map must be strings");
                    };
                    let entry = self.value(entry)?;
                    if members.insert(Rc::clone(&key), entry).is_some() {
                        return failed(format!("the key {key:?} comes twice"));
                    }
                }
                Ok(Value::Map(Rc::new(members)))
            }
            Term::Loop(found) => self.run(found),
        }
    }

    fn reference(&mut self, reference: Reference, path: &str) -> Evaluated {
        if let Some(known) = self.read.get(&reference) {
            return Ok(known.clone());
        }
        let Some(text) = self.scope.read(reference) else { return Err(Fault::Unresolved(path.to_owned())) };
        let json = Json::parse(&text).map_err(|e| Fault::Failed(format!("{path} cannot be read: it {e}")))?;
        let value = Value::from_json(&json);
        self.read.insert(reference, value.clone());
        Ok(value)
    }

    fn truth(&mut self, term: &Term) -> Result<bool, Fault> {
        match self.value(term)? {
            Value::Bool(value) => Ok(value),
            other => failed(format!("a {} is no condition", other.kind())),
        }
    }

    /// `&&` and `||`: what decides on one side makes a fault on the other irrelevant, whichever stands first.
    fn logic(&mut self, left: &Term, right: &Term, decisive: bool) -> Evaluated {
        let first = self.truth(left);
        if first == Ok(decisive) || first == Err(Fault::TooCostly) {
            return first.map(Value::Bool);
        }
        match self.truth(right) {
            Ok(second) if second == decisive => Ok(Value::Bool(decisive)),
            Ok(_) => first.map(Value::Bool),
            Err(Fault::TooCostly) => Err(Fault::TooCostly),
            Err(second) => Err(first.err().unwrap_or(second)),
        }
    }

    fn run(&mut self, found: &Loop) -> Evaluated {
        let elements: Vec<Value> = match self.value(&found.range)? {
            Value::List(elements) => elements.as_ref().clone(),
            Value::Map(members) => members.keys().map(|key| Value::Text(Rc::clone(key))).collect(),
            other => return failed(format!("a {} cannot be walked", other.kind())),
        };
        self.budget.spend(elements.len())?;
        let start = self.value(&found.start);
        // Only `all` and `exists` go on behind a fault.
        let lenient = matches!(found.condition, Term::NotFalse(_));
        self.slots.push(start);
        for element in elements {
            self.slots.push(Ok(element));
            let stepped = self.truth(&found.condition).and_then(|go_on| {
                if !go_on {
                    return Ok(false);
                }
                self.step(&found.step, found.slot, lenient)?;
                Ok(true)
            });
            self.slots.pop();
            match stepped {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => {
                    self.slots.pop();
                    return Err(fault);
                }
            }
        }
        let result = self.value(&found.result);
        self.slots.pop();
        result
    }

    /// One step of a loop. Appending happens in place: copying a list for each element would be quadratic.
    fn step(&mut self, step: &Term, slot: usize, lenient: bool) -> Result<(), Fault> {
        match step {
            Term::Slot(same) if *same == slot => return Ok(()),
            Term::Choose(parts) => {
                let chosen = if self.truth(&parts.0)? { &parts.1 } else { &parts.2 };
                return self.step(chosen, slot, lenient);
            }
            Term::Call(super::term::Function::Add, arguments) => {
                if let [Term::Slot(same), Term::List(added)] = arguments.as_slice()
                    && *same == slot
                    && let [added] = added.as_slice()
                {
                    let added = self.value(added)?;
                    if let Ok(Value::List(elements)) = &mut self.slots[slot] {
                        Rc::make_mut(elements).push(added);
                        return Ok(());
                    }
                    return failed("a loop lost its list");
                }
            }
            _ => {}
        }
        match self.value(step) {
            Err(fault) if !lenient || fault == Fault::TooCostly => Err(fault),
            answer => {
                self.slots[slot] = answer;
                Ok(())
            }
        }
    }
}

fn constant(literal: &Literal) -> Value {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(value) => Value::Bool(*value),
        Literal::Int(value) => Value::Int(*value),
        Literal::Double(value) => Value::Double(*value),
        Literal::Text(text) => Value::Text(text.as_str().into()),
    }
}

/// Whether two values are the same. Values of different kinds differ; numbers are compared by value.
pub(super) fn equal(one: &Value, other: &Value, budget: &mut Budget) -> Result<bool, Fault> {
    budget.spend(1)?;
    Ok(match (one, other) {
        (Value::Big(text), _) | (_, Value::Big(text)) => return functions::too_big(text),
        (Value::Null, Value::Null) => true,
        (Value::Bool(one), Value::Bool(other)) => one == other,
        (Value::Int(one), Value::Int(other)) => one == other,
        (Value::Double(one), Value::Double(other)) => one == other,
        (Value::Int(int), Value::Double(double)) | (Value::Double(double), Value::Int(int)) => {
            value::int_to_double(*int, *double) == Ordering::Equal
        }
        (Value::Text(one), Value::Text(other)) => {
            budget.spend(one.len().min(other.len()) / 16)?;
            one == other
        }
        (Value::List(one), Value::List(other)) => {
            if one.len() != other.len() {
                return Ok(false);
            }
            for (one, other) in one.iter().zip(other.iter()) {
                if !equal(one, other, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Map(one), Value::Map(other)) => {
            if one.len() != other.len() {
                return Ok(false);
            }
            for ((key, one), (other_key, other)) in one.iter().zip(other.iter()) {
                if key != other_key || !equal(one, other, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        _ => false,
    })
}
