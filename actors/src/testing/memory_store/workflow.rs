//! Workflows and nodes: what a person or a node agent does to them.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::{
    end::{superseded_failure, terminal},
    recipe::in_flight,
    world::{Node, Overlap, Place, Ready, Waiting, Workflow, World, millis},
};
use crate::{
    domain::{JobId, JobState, Namespace},
    testing::harness::{TestNode, TestWorkflow, WorkflowChange, WorkflowState},
};

/// When a held job that waits for no time at all would be due.
const FAR: DateTime<Utc> = DateTime::<Utc>::MAX_UTC;

impl World {
    pub(super) fn define_workflow(&mut self, workflow: &TestWorkflow) {
        let key = (workflow.namespace.clone(), workflow.name.clone());
        let defined = Workflow {
            generation: 1,
            state: WorkflowState::Active,
            route: workflow.definition.route(),
            definition: Arc::from(workflow.definition.to_json()),
            overlap: Overlap {
                limit: if workflow.overlap_serial { Some(1) } else { workflow.overlap_limit },
                serial: workflow.overlap_serial,
            },
            timeout: millis(workflow.timeout_ms),
            retry: workflow.retry,
        };
        assert!(self.workflows.insert(key, defined).is_none(), "a test defines a workflow once");
    }

    pub(super) fn change_workflow(&mut self, namespace: &Namespace, name: &str, change: WorkflowChange) {
        let key = (namespace.clone(), name.to_owned());
        let workflow = self.workflows.get_mut(&key).expect("the test defined the workflow");
        match change {
            // It is so already.
            WorkflowChange::Pause if workflow.state != WorkflowState::Active => return,
            WorkflowChange::Resume if workflow.state != WorkflowState::Paused => return,
            WorkflowChange::Resume => {
                workflow.state = WorkflowState::Active;
                let generation = workflow.generation;
                self.let_go(namespace, name, generation);
                return;
            }
            WorkflowChange::Edit => {}
            WorkflowChange::Pause => workflow.state = WorkflowState::Paused,
            WorkflowChange::Terminate => workflow.state = WorkflowState::Terminated,
        }
        workflow.generation += 1;
        let generation = workflow.generation;
        self.supersede(namespace, name, generation, change == WorkflowChange::Terminate);
        if change == WorkflowChange::Pause {
            self.hold(namespace, name);
        }
    }

    /// Holds the recipes in flight, and keeps the time at which they would have been due.
    fn hold(&mut self, namespace: &Namespace, name: &str) {
        for row in self.rows.values_mut() {
            if row.namespace != *namespace || row.workflow != name {
                continue;
            }
            let (held, keep_attempt) = match &row.place {
                Place::Ready(ready) => (Some(ready.due_at), ready.keep_attempt),
                Place::Waiting(waiting) if waiting.held_due_at.is_none() => {
                    (Some(waiting.due_at.unwrap_or(FAR)), waiting.keep_attempt)
                }
                _ => continue,
            };
            row.place =
                Place::Waiting(Waiting { due_at: None, held_due_at: held, blocked_by: None, keep_attempt });
        }
    }

    /// Ends what waits under an older generation; what runs is left alone. What a pause holds gets its
    /// generation only at the resume, so that nothing but a terminate ends it.
    fn supersede(&mut self, namespace: &Namespace, name: &str, generation: i64, held_too: bool) {
        let stale: Vec<JobId> = self
            .rows
            .iter()
            .filter(|(_, row)| row.namespace == *namespace && row.workflow == name)
            .filter(|(_, row)| row.generation < generation)
            .filter(|(_, row)| match &row.place {
                Place::Waiting(waiting) => held_too || (waiting.held_due_at.is_none() && !in_flight(row)),
                Place::Ready(_) => held_too || !in_flight(row),
                Place::Leased(_) | Place::Ended(_) => false,
            })
            .map(|(id, _)| *id)
            .collect();
        for id in stale {
            if let Some(row) = self.rows.get_mut(&id) {
                row.place = terminal(JobState::Canceled, None, Some(superseded_failure()), None);
            }
            self.wake_blocked(id, None);
            self.after_end(id);
        }
    }

    /// Gives the jobs that a pause held the present generation and their own time back.
    fn let_go(&mut self, namespace: &Namespace, name: &str, generation: i64) {
        let now = self.now();
        for row in self.rows.values_mut() {
            if row.namespace != *namespace || row.workflow != name {
                continue;
            }
            if let Place::Waiting(waiting) = &mut row.place
                && let Some(due_at) = waiting.held_due_at.take()
            {
                let keep_attempt = waiting.keep_attempt;
                waiting.due_at = Some(due_at).filter(|at| *at < FAR);
                if due_at <= now {
                    row.dispatch_attempt += 1;
                    row.place = Place::Ready(Ready { due_at, keep_attempt });
                }
                if !in_flight(row) {
                    row.generation = generation;
                }
            }
        }
    }

    pub(super) fn register_node(&mut self, node: &TestNode) {
        let key = (node.namespace.clone(), node.node.clone());
        let incarnation = match self.nodes.get(&key) {
            Some(old) if old.endpoint == node.endpoint && old.engine_id == node.engine_id => old.incarnation,
            Some(old) => old.incarnation + 1,
            None => 1,
        };
        let now = self.now();
        let registered_at = match self.nodes.get(&key) {
            Some(old) if old.incarnation == incarnation => old.registered_at,
            _ => now,
        };
        let registered = Node {
            registered_at,
            endpoint: node.endpoint.clone(),
            engine_id: node.engine_id.clone(),
            incarnation,
            ready: true,
            unhealthy_since: None,
            fresh: true,
            lost: false,
            max_concurrency: node.max_concurrency,
        };
        self.nodes.insert(key, registered);
    }
}
