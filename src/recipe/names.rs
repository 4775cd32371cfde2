//! What a name in an expression means at one place of a recipe: which nodes have ended before it, which states there
//! are around it, whether there is an `error` to read.

use std::collections::BTreeSet;

use super::{
    compiled::NodeNumber,
    template::{Names, Reference},
};

/// What an expression can read, for messages.
const READABLE: &str = "inputs, vars, sequence.ID.outputs, parallel.ID.outputs, states.ID.outputs, error, signal, \
                        transition.payload, job.id and job.submitted_at";

/// A node as others refer to it.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) id: String,
    pub(super) number: NodeNumber,
    /// Its branches, where it is a `parallel`.
    pub(super) branches: Vec<(String, NodeNumber)>,
}

/// One thing around a place.
#[derive(Debug, Clone)]
pub(super) enum Around {
    /// A sequence, and which of its nodes the place is in.
    Sequence(Vec<Known>, usize),
    /// A parallel, and which of its branches the place is in.
    Parallel(Vec<Known>),
    /// A state machine.
    Machine(Vec<Known>),
    /// A `catch`.
    Catch,
}

/// A place.
#[derive(Debug, Clone, Default)]
pub(super) struct Here {
    pub(super) inputs: BTreeSet<String>,
    pub(super) vars: BTreeSet<String>,
    /// Outermost first.
    pub(super) around: Vec<Around>,
}

impl Names for Here {
    fn resolve(&self, chain: &[&str]) -> Result<(Reference, usize), String> {
        match chain {
            ["inputs", name, ..] if !self.inputs.contains(*name) => {
                Err(format!("there is no input `{name}`; declared are: {}", listed(&self.inputs)))
            }
            ["vars", name, ..] if !self.vars.contains(*name) => {
                Err(format!("there is no variable `{name}`; there are: {}", listed(&self.vars)))
            }
            ["inputs", ..] => Ok((Reference::Inputs, 1)),
            ["vars", ..] => Ok((Reference::Vars, 1)),
            ["error", ..] if self.around.iter().any(|around| matches!(around, Around::Catch)) => {
                Ok((Reference::Error, 1))
            }
            ["error", ..] => Err("`error` can be read inside `catch` only".to_owned()),
            ["signal", ..] => Ok((Reference::Signal, 1)),
            ["transition", "payload", ..] => {
                if self.around.iter().any(|around| matches!(around, Around::Machine(_))) {
                    Ok((Reference::TransitionPayload, 2))
                } else {
                    Err("`transition.payload` can be read inside a state only".to_owned())
                }
            }
            ["transition", ..] => Err("write transition.payload".to_owned()),
            ["job", "id", ..] => Ok((Reference::JobId, 2)),
            ["job", "submitted_at", ..] => Ok((Reference::JobSubmittedAt, 2)),
            ["job", ..] => Err("write job.id or job.submitted_at".to_owned()),
            ["sequence", id, "outputs", ..] => Ok((Reference::Outputs(self.earlier(id)?), 3)),
            ["parallel", id, "outputs", ..] => Ok((Reference::Outputs(self.branch(id)?), 3)),
            ["states", id, "outputs", ..] => Ok((Reference::Outputs(self.state(id)?), 3)),
            [kind @ ("sequence" | "parallel" | "states"), ..] => {
                Err(format!("write {kind}.ID.outputs, or {kind}[\"ID\"].outputs where the id has a `-` in it"))
            }
            ["secrets", ..] => Err(
                "a secret stands alone, as the whole value of a text in the inputs of an op: ${{ secrets.NAME }}"
                    .to_owned(),
            ),
            [name, ..] => Err(format!("unknown name `{name}`; an expression can read {READABLE}")),
            [] => Err("there is no name".to_owned()),
        }
    }
}

impl Here {
    /// A node of a sequence around that has ended before this place. The innermost sequence that has the id decides.
    fn earlier(&self, id: &str) -> Result<NodeNumber, String> {
        for around in self.around.iter().rev() {
            let Around::Sequence(nodes, at) = around else { continue };
            let Some(found) = nodes.iter().position(|node| node.id == id) else { continue };
            return match found.cmp(at) {
                std::cmp::Ordering::Less => Ok(nodes[found].number),
                std::cmp::Ordering::Equal => {
                    Err(format!("`{id}` is the node that this stands in: it has no outputs yet"))
                }
                std::cmp::Ordering::Greater => Err(format!("`{id}` comes later: it has no outputs yet")),
            };
        }
        Err(format!("there is no node `{id}` in a sequence around this place"))
    }

    /// A branch of a parallel that has ended before this place.
    fn branch(&self, id: &str) -> Result<NodeNumber, String> {
        for around in self.around.iter().rev() {
            let (nodes, ended) = match around {
                Around::Sequence(nodes, at) => (nodes, *at),
                Around::Machine(nodes) => (nodes, nodes.len()),
                Around::Parallel(branches) if branches.iter().any(|branch| branch.id == id) => {
                    return Err(format!("the branch `{id}` runs at the same time: it has no outputs yet"));
                }
                Around::Parallel(_) | Around::Catch => continue,
            };
            let found = nodes.iter().enumerate().find_map(|(n, node)| {
                node.branches.iter().find(|(branch, _)| branch == id).map(|(_, number)| (n, *number))
            });
            if let Some((n, number)) = found {
                return if n < ended {
                    Ok(number)
                } else {
                    Err(format!("the branch `{id}` has not ended here: it has no outputs yet"))
                };
            }
        }
        Err(format!("there is no branch `{id}` of a parallel before this place"))
    }

    /// A state of a machine around: it may have been visited, whatever the order in the document.
    fn state(&self, id: &str) -> Result<NodeNumber, String> {
        self.around
            .iter()
            .rev()
            .find_map(|around| match around {
                Around::Machine(states) => {
                    states.iter().find(|state| state.id == id).map(|state| state.number)
                }
                _ => None,
            })
            .ok_or_else(|| format!("there is no state `{id}` in a machine around this place"))
    }
}

fn listed(names: &BTreeSet<String>) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}
