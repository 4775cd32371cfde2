//! Workflows and nodes: what a person or a node agent does to them.

use std::sync::Arc;

use super::{
    end::{superseded_failure, terminal},
    world::{Node, Overlap, Place, Row, Waiting, Workflow, World, millis},
};
use crate::{
    domain::{JobState, Namespace},
    testing::harness::{TestNode, TestWorkflow, WorkflowChange, WorkflowState},
};

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
            WorkflowChange::Resume => {
                workflow.state = WorkflowState::Active;
                let generation = workflow.generation;
                return self.let_go(namespace, name, generation);
            }
            WorkflowChange::Edit => {}
            WorkflowChange::Pause => workflow.state = WorkflowState::Paused,
            WorkflowChange::Terminate => workflow.state = WorkflowState::Terminated,
        }
        workflow.generation += 1;
        let generation = workflow.generation;
        if change == WorkflowChange::Pause {
            self.hold(namespace, name);
        } else {
            self.supersede(namespace, name, generation);
        }
    }

    /// Ends what waits under an older generation; what runs is left alone.
    fn supersede(&mut self, namespace: &Namespace, name: &str, generation: i64) {
        for row in self.rows_of(namespace, name).filter(|row| row.generation < generation) {
            if matches!(row.place, Place::Waiting(_) | Place::Ready(_)) {
                row.place = terminal(JobState::Canceled, None, Some(superseded_failure()), None);
            }
        }
    }

    /// Keeps what waits from becoming due, and notes when it would have been.
    fn hold(&mut self, namespace: &Namespace, name: &str) {
        for row in self.rows_of(namespace, name) {
            let (due_at, keep_attempt) = match &row.place {
                Place::Waiting(waiting) => (waiting.due_at, waiting.keep_attempt),
                Place::Ready(ready) => (Some(ready.due_at), ready.keep_attempt),
                Place::Leased(_) | Place::Ended(_) => continue,
            };
            if due_at.is_some() {
                row.place = Place::Waiting(Waiting {
                    due_at: None,
                    held_due_at: due_at,
                    blocked_by: None,
                    keep_attempt,
                });
            }
        }
    }

    /// Gives the jobs that a pause held their own time back, and the generation in force.
    fn let_go(&mut self, namespace: &Namespace, name: &str, generation: i64) {
        for row in self.rows_of(namespace, name) {
            if let Place::Waiting(waiting) = &mut row.place
                && let Some(due_at) = waiting.held_due_at.take()
            {
                waiting.due_at = Some(due_at);
                row.generation = generation;
            }
        }
    }

    fn rows_of<'a>(
        &'a mut self,
        namespace: &'a Namespace,
        name: &'a str,
    ) -> impl Iterator<Item = &'a mut Row> {
        self.rows.values_mut().filter(move |row| row.namespace == *namespace && row.workflow == name)
    }

    pub(super) fn register_node(&mut self, node: &TestNode) {
        let key = (node.namespace.clone(), node.node.clone());
        let incarnation = match self.nodes.get(&key) {
            Some(old) if old.endpoint == node.endpoint && old.engine_id == node.engine_id => old.incarnation,
            Some(old) => old.incarnation + 1,
            None => 1,
        };
        let registered = Node {
            endpoint: node.endpoint.clone(),
            engine_id: node.engine_id.clone(),
            incarnation,
            ready: true,
            fresh: true,
            max_concurrency: node.max_concurrency,
        };
        self.nodes.insert(key, registered);
    }
}
