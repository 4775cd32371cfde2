//! The nodes of a recipe's tasks: taken when a task starts, kept until it or the lease ends.

use std::time::Duration;

use super::world::{PlacedTask, World, delta, until};
use crate::{
    domain::{ContainerId, Epoch, JobId, JobKind, Namespace, NodeId, TaskKey, execution::Platform},
    ports::{
        Attach, Authority, NodeNeeds, RuntimeStanding, TaskContainer, TaskPlace, TaskPlaced, TaskUnplaced,
    },
    testing::harness::TestNode,
};

/// The first and the longest wait for a node.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

impl World {
    pub(super) fn place_task(&mut self, authority: &Authority, place: &TaskPlace) -> TaskPlaced {
        let job = authority.job;
        let Some(lease) = self.live(authority) else { return TaskPlaced::NotLive };
        let claim = lease.claim_epoch;
        if self.rows.get(&job).is_none_or(|row| row.route.kind != JobKind::Recipe) {
            return TaskPlaced::NotLive;
        }
        if let Some(placed) = self.task_containers.get(&(job, place.task.clone())) {
            if placed.epoch == claim {
                return TaskPlaced::Placed(placed.placement.clone());
            }
            return TaskPlaced::Leftover;
        }
        let namespace = &authority.owner.namespace;
        let placement = fits_test_nodes(&place.needs)
            .then(|| self.place(namespace, job, Some(place.task.clone())))
            .flatten();
        let now = self.now();
        let Some(recipe) = self.recipes.get_mut(&job) else { return TaskPlaced::NotLive };
        let Some(placement) = placement else {
            let events = recipe.events.len();
            let since = match recipe.unplaced {
                Some((since, at)) if at == events => since,
                _ => now,
            };
            recipe.unplaced = Some((since, events));
            let retry_in = until(since, now).clamp(WAITS.0, WAITS.1);
            return TaskPlaced::NoNode { retry_at: now + delta(retry_in), retry_in };
        };
        recipe.unplaced = None;
        let placed = PlacedTask {
            path: place.path.clone(),
            epoch: claim,
            placement: placement.clone(),
            container: None,
            occurrence: place.occurrence.clone(),
        };
        self.task_containers.insert((job, place.task.clone()), placed);
        TaskPlaced::Placed(placement)
    }

    pub(super) fn attach_task(
        &mut self,
        authority: &Authority,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Attach {
        if self.live(authority).is_none() {
            return Attach::NotLive;
        }
        let Some(placed) = self.task_containers.get_mut(&(authority.job, task.clone())) else {
            return Attach::WrongRuntimeNode;
        };
        if placed.placement.node != *node {
            return Attach::WrongRuntimeNode;
        }
        match &placed.container {
            Some(attached) if attached != container => {
                Attach::ContainerConflict { attached: attached.clone() }
            }
            _ => {
                placed.container = Some(container.clone());
                Attach::Attached
            }
        }
    }

    pub(super) fn unplace_task(&mut self, authority: &Authority, task: &TaskKey) -> TaskUnplaced {
        if self.live(authority).is_none() {
            return TaskUnplaced::NotLive;
        }
        let key = (authority.job, Some(task.clone()));
        self.node_slots.retain(|_, holder| *holder != key);
        self.task_containers.remove(&(authority.job, task.clone()));
        TaskUnplaced::Done
    }

    /// The tasks of a job that have a node, in the order of their keys.
    pub(super) fn tasks_of(&self, job: JobId, namespace: &Namespace) -> Vec<TaskContainer> {
        let of_the_job = self.task_containers.iter().filter(|((of, _), _)| *of == job);
        of_the_job
            .map(|((_, task), placed)| TaskContainer {
                task: task.clone(),
                path: placed.path.clone(),
                epoch: Epoch(placed.epoch),
                placement: placed.placement.clone(),
                container: placed.container.clone(),
                // A node that is silent for a while is asked all the same: its engine may answer.
                runtime: self
                    .standing(namespace, Some(&placed.placement))
                    .unwrap_or(RuntimeStanding::Available),
                occurrence: Some(placed.occurrence.clone()),
            })
            .collect()
    }
}

/// All nodes of tests have the same.
fn fits_test_nodes(needs: &NodeNeeds) -> bool {
    let has = Platform::of_engine(TestNode::OS, TestNode::ARCHITECTURE);
    needs.cpu_millis.is_none_or(|needed| needed <= TestNode::CPU_MILLIS)
        && needs.memory_bytes.is_none_or(|needed| needed <= TestNode::MEMORY_BYTES)
        && needs.platform.as_ref().is_none_or(|needed| needed.accepts(&has))
}
