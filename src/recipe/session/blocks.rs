//! Nodes that are made of nodes: `sequence`, `parallel`, state machines, `include`.

use std::{future::poll_fn, sync::Arc, task::Poll};

use super::{
    Session,
    env::{bind_inputs, object},
    failure::{Fault, NodeFailure},
    strand::Strand,
    walk::{Done, Place, Walked},
};
use crate::recipe::{
    compiled::{Node, Recipe, StateMachine},
    limits::MAX_IDLE_TRANSITIONS,
    op::TaskStop,
    template::ValueTemplate,
};

impl Session {
    /// One after the other.
    pub(super) async fn sequence<'a>(
        &'a self,
        nodes: &'a [Node],
        mut at: Place<'a>,
        strand: &'a mut Strand,
    ) -> Walked {
        let mut outputs = Vec::with_capacity(nodes.len());
        for node in nodes {
            let place = Place { path: at.path.child(&node.id), ..at.clone() };
            let done = self.node(node, place, strand).await?;
            outputs.push((&node.id, done.output));
            (at.env, at.since) = (done.env, done.since);
        }
        let output = object(outputs.iter().map(|(id, output)| (id, output)));
        Ok(Done { output, since: at.since, env: at.env })
    }

    /// All at once. A failure that leaves its branch stops the siblings; the one with the lowest ordinal counts.
    pub(super) async fn parallel<'a>(
        &'a self,
        nodes: &'a [Node],
        mut at: Place<'a>,
        strand: &'a mut Strand,
    ) -> Walked {
        let group = strand.group.inside();
        let mut branches: Vec<_> = nodes
            .iter()
            .map(|node| {
                let place = Place { path: at.path.child(&node.id), ..at.clone() };
                let mut strand = Strand::new(&group);
                Some(Box::pin(async move { self.node(node, place, &mut strand).await }))
            })
            .collect();
        let mut done: Vec<Option<Done>> = nodes.iter().map(|_| None).collect();
        let mut first: Option<NodeFailure> = None;
        strand.rest();
        poll_fn(|cx| {
            for (place, branch) in branches.iter_mut().enumerate() {
                let Some(running) = branch else { continue };
                let Poll::Ready(walked) = running.as_mut().poll(cx) else { continue };
                *branch = None;
                match walked {
                    Ok(ended) => done[place] = Some(ended),
                    Err(failed) => {
                        group.stop(TaskStop::SiblingFailed);
                        if first.as_ref().is_none_or(|first| failed.at < first.at) {
                            first = Some(failed);
                        }
                    }
                }
            }
            // With a failure: what runs comes to its record first, what rests is given up.
            if branches.iter().all(Option::is_none) || (first.is_some() && group.rests()) {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
        drop(branches);
        strand.resume();
        if let Some(failed) = first {
            return Err(failed);
        }
        let mut outputs = Vec::with_capacity(nodes.len());
        for (node, done) in nodes.iter().zip(done) {
            let done = done.expect("no branch failed, and none is left");
            at.env.join(&done.env);
            at.since = at.since.max(done.since);
            outputs.push((&node.id, done.output));
        }
        let output = object(outputs.iter().map(|(id, output)| (id, output)));
        Ok(Done { output, since: at.since, env: at.env })
    }

    /// From state to state, until one has no way out.
    pub(super) async fn states<'a>(
        &'a self,
        machine: &'a StateMachine,
        mut at: Place<'a>,
        strand: &'a mut Strand,
    ) -> Walked {
        let outside = at.env.payload();
        let mut visits = vec![0; machine.states.len()];
        let mut current = machine.initial;
        let mut payload = None;
        let mut idle = 0;
        loop {
            visits[current] += 1;
            let state = &machine.states[current];
            let path = at.path.visit(&state.node.id, visits[current]);
            let name = path.to_string();
            at.env.set_payload(payload.take());
            let done = self.node(&state.node, Place { path, ..at.clone() }, strand).await?;
            idle = if done.since == at.since { idle + 1 } else { 0 };
            (at.env, at.since) = (done.env, done.since);
            if state.transitions.is_empty() {
                at.env.set_payload(outside);
                return Ok(Done { output: done.output, since: at.since, env: at.env });
            }
            let mut next = None;
            for transition in &state.transitions {
                let taken = match transition.when.as_ref().map_or(Ok(true), |when| when.holds(&at.env)) {
                    Ok(false) => continue,
                    Ok(true) => match &transition.payload {
                        Some(template) => template.render(&at.env).map(|value| Some(value.text.into())),
                        None => Ok(None),
                    },
                    Err(error) => Err(error),
                };
                match taken {
                    Ok(payload) => next = Some((transition.to, payload)),
                    Err(error) => {
                        return Err(self.fault(Fault::of_template(&error), &name, at.since, strand).await);
                    }
                }
                break;
            }
            let fault = match next {
                None => {
                    Fault::user("no_transition", format!("no way out of state {:?} holds", state.node.id))
                }
                Some(_) if idle >= MAX_IDLE_TRANSITIONS => Fault::user(
                    "no_progress",
                    format!("{MAX_IDLE_TRANSITIONS} transitions without a task between them"),
                ),
                Some((to, value)) => {
                    (current, payload) = (to, value);
                    continue;
                }
            };
            return Err(self.fault(fault, &name, at.since, strand).await);
        }
    }

    /// Another recipe, with inputs, constants and base needs of its own.
    pub(super) async fn include<'a>(
        &'a self,
        recipe: &'a Arc<Recipe>,
        inputs: &'a ValueTemplate,
        at: Place<'a>,
        strand: &'a mut Strand,
    ) -> Walked {
        let bound = inputs
            .render(&at.env)
            .map_err(|error| Fault::of_template(&error))
            .and_then(|given| bind_inputs(recipe, &given.text));
        let bound = match bound {
            Ok(bound) => bound,
            Err(fault) => return Err(self.fault(fault, at.path.as_str(), at.since, strand).await),
        };
        let env = at.env.of_included(recipe, bound);
        let scopes = at.scopes.inside(&recipe.execution, &env);
        let place = Place { path: at.path.included(), env, scopes, since: at.since };
        let done = self.node(&recipe.root, place, strand).await?;
        Ok(Done { output: done.output, since: done.since, env: at.env })
    }
}
