//! A recipe that has been checked: what a session walks. Every reference is resolved, every template compiled, every
//! limit kept; nodes are numbered in document order, so that "everything after it" has a meaning.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use leasehold_actors::ports::recipe::JsonText;

use super::template::{Template, ValueTemplate};

/// A node's number in document order, counted over the whole recipe with everything that it includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeNumber(pub usize);

/// A recipe, ready to run.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Its id.
    pub id: String,
    /// The version of the language that it is written in: its evaluation never changes.
    pub language: u32,
    /// The first half of its routes; `recipe` unless it says otherwise.
    pub job_type: String,
    /// Declared inputs, by name.
    pub inputs: BTreeMap<String, Input>,
    /// Constants, by name.
    pub vars: BTreeMap<String, JsonText>,
    /// The base of every task's needs.
    pub execution: Needs,
    /// The root node. Its id is empty and is no part of any path.
    pub root: Node,
    /// How many nodes there are.
    pub nodes: usize,
}

impl Recipe {
    /// The ops of all its tasks that are not built in: a Rust program must bring them.
    #[must_use]
    pub fn ops_to_bring(&self) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut left = vec![&self.root];
        while let Some(node) = left.pop() {
            left.extend(node.catch.as_deref());
            match &node.body {
                Body::Op { op, .. } if !is_built_in(op) => {
                    found.insert(op.as_str());
                }
                Body::Op { .. } => {}
                Body::Sequence(nodes) | Body::Parallel(nodes) => left.extend(nodes),
                Body::States(machine) => left.extend(machine.states.iter().map(|state| &state.node)),
                Body::Include { recipe, .. } => left.push(&recipe.root),
            }
        }
        found
    }
}

fn is_built_in(op: &str) -> bool {
    super::grammar::ops::inputs_of(op).is_some()
}

/// A declared input.
#[derive(Debug, Clone)]
pub struct Input {
    /// What it must be.
    pub kind: InputType,
    /// Taken where the submission gives none; without one the input is required.
    pub default: Option<JsonText>,
}

/// The type of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputType {
    /// Text.
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A list.
    Array,
    /// A map.
    Object,
    /// Anything.
    Any,
}

/// What a scope says of needs; each value may be a template and gives an amount, a platform or a reference.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    /// `resources.cpu`
    pub cpu: Option<Template>,
    /// `resources.memory`
    pub memory: Option<Template>,
    /// `resources.ephemeral-storage`
    pub ephemeral_storage: Option<Template>,
    /// `platform`
    pub platform: Option<Template>,
    /// `image`
    pub image: Option<Template>,
}

/// One node.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its number.
    pub number: NodeNumber,
    /// Its id: one part of a path.
    pub id: String,
    /// Skipped unless this holds; its outputs are then `null`.
    pub when: Option<Template>,
    /// More attempts after a failure.
    pub retry: Option<Retry>,
    /// The longest that one attempt may take.
    pub timeout: Option<Duration>,
    /// What its tasks need, beyond the scopes around it.
    pub needs: Needs,
    /// What it does.
    pub body: Body,
    /// Runs when the last attempt has failed; sees `error`. Its output is then the node's.
    pub catch: Option<Box<Node>>,
}

/// When a failed node is tried again.
#[derive(Debug, Clone)]
pub struct Retry {
    /// Attempts in all, from 1.
    pub max_attempts: u32,
    /// Before the second attempt; doubles with each.
    pub backoff: Duration,
    /// The longest wait.
    pub backoff_cap: Duration,
    /// Kinds and codes of failures that are tried again; empty: every failure.
    pub on: Vec<String>,
}

/// What a node does.
#[derive(Debug, Clone)]
pub enum Body {
    /// One task.
    Op {
        /// Its op.
        op: String,
        /// Its input, a map.
        inputs: ValueTemplate,
    },
    /// Nodes one after the other; the output is a map of all outputs by id.
    Sequence(Vec<Node>),
    /// Branches at once; the output is a map of all outputs by id.
    Parallel(Vec<Node>),
    /// A state machine; the output is that of the state that ended it.
    States(StateMachine),
    /// Another recipe, inline, with inputs, vars and base needs of its own.
    Include {
        /// It.
        recipe: Arc<Recipe>,
        /// Its inputs, a map.
        inputs: ValueTemplate,
    },
}

/// States and the ways between them.
#[derive(Debug, Clone)]
pub struct StateMachine {
    /// Where it begins: an index of `states`.
    pub initial: usize,
    /// The states in the order of the document. A state is a node; its visits are numbered from 1 in paths.
    pub states: Vec<State>,
}

/// One state.
#[derive(Debug, Clone)]
pub struct State {
    /// What it does.
    pub node: Node,
    /// The first that holds is taken; none at all ends the machine.
    pub transitions: Vec<Transition>,
}

/// A way out of a state.
#[derive(Debug, Clone)]
pub struct Transition {
    /// Holds always where there is none.
    pub when: Option<Template>,
    /// The next state: an index of `states`.
    pub to: usize,
    /// What the next state reads as `transition.payload`; `null` where there is none.
    pub payload: Option<ValueTemplate>,
}
