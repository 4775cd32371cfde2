//! What happens outside a recipe that is tested: others run its children and apply workflows.

use std::sync::Arc;

use super::{
    MemoryStore,
    end::terminal,
    world::{AD_HOC, Place},
};
use crate::{
    domain::{Failure, JobDefinition, JobId, JobState, Namespace},
    testing::harness::TestWorkflow,
};

impl MemoryStore {
    /// Ends a job as whoever ran it would have. False when there is no such job, or it has ended already.
    ///
    /// # Panics
    /// When `state` is none that a job ends in.
    pub fn conclude(
        &self,
        job: JobId,
        state: JobState,
        output: Option<String>,
        failure: Option<Failure>,
    ) -> bool {
        assert!(state.is_terminal(), "a job does not end as {state}");
        let mut world = self.world();
        let Some(row) = world.rows.get_mut(&job).filter(|row| !row.state().is_terminal()) else {
            return false;
        };
        row.place = terminal(state, None, failure, output);
        world.free_slots(job);
        world.after_end(job);
        true
    }

    /// Applies a workflow whose runs a handler takes, unless there is one of that name.
    pub fn have_workflow(&self, namespace: &Namespace, name: &str) {
        let mut world = self.world();
        if name != AD_HOC && !world.workflows.contains_key(&(namespace.clone(), name.to_owned())) {
            let definition = JobDefinition::Handler { name: name.to_owned() };
            world.define_workflow(&TestWorkflow::new(namespace, name, definition));
        }
    }

    /// Why a job failed, or was cancelled.
    #[must_use]
    pub fn failure(&self, namespace: &Namespace, job: JobId) -> Option<Failure> {
        let world = self.world();
        match &world.rows.get(&job).filter(|row| row.namespace == *namespace)?.place {
            Place::Ended(ended) => ended.failure.clone(),
            _ => None,
        }
    }

    /// The client payload of a job.
    #[must_use]
    pub fn payload(&self, job: JobId) -> Option<Arc<str>> {
        self.world().jobs.get(&job).map(|job| job.payload.clone())
    }
}
