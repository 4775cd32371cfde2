//! The overlap policy: which run must wait for which, and the slots that make it hold.

use super::world::{AD_HOC, BLOCKED_LOOK, Place, Row, Waiting, World, delta};
use crate::domain::JobId;

impl World {
    /// A run of the same workflow that must end before `id` may be claimed.
    pub(super) fn blocker(&self, id: JobId, row: &Row) -> Option<JobId> {
        let limit = row.overlap.limit?;
        let siblings = |(other, r): &(&JobId, &Row)| {
            **other != id && r.namespace == row.namespace && r.workflow == row.workflow
        };
        if row.overlap.serial {
            let earlier =
                self.rows.iter().filter(siblings).find(|(other, r)| **other < id && !r.state().is_terminal());
            if let Some((other, _)) = earlier {
                return Some(*other);
            }
        }
        let mut running = self.workflow_slots_of(row).map(|(_, job)| job);
        let count = running.clone().count();
        if count >= usize::try_from(limit).unwrap_or(0) { running.next() } else { None }
    }

    /// The occupied slots of a row's workflow, by job.
    pub(super) fn workflow_slots_of<'a>(
        &'a self,
        row: &'a Row,
    ) -> impl Iterator<Item = (i32, JobId)> + Clone + 'a {
        let mut slots: Vec<(i32, JobId)> = self
            .workflow_slots
            .iter()
            .filter(|((ns, name, _), _)| *ns == row.namespace && *name == row.workflow)
            .map(|((_, _, slot), job)| (*slot, *job))
            .collect();
        slots.sort_unstable_by_key(|(_, job)| *job);
        slots.into_iter()
    }

    /// Puts a QUEUED job that the policy holds back among the waiting ones, with a next look soon.
    pub(super) fn hold_back(&mut self, id: JobId, blocker: JobId) {
        let due_at = Some(self.now() + delta(BLOCKED_LOOK));
        let Some(row) = self.rows.get_mut(&id) else { return };
        let Place::Ready(ready) = &row.place else { return };
        row.place = Place::Waiting(Waiting {
            due_at,
            held_due_at: None,
            blocked_by: Some(blocker),
            keep_attempt: ready.keep_attempt,
        });
    }

    /// Takes the lowest free slot of the workflow, where it has a limit. The caller has asked [`Self::blocker`].
    pub(super) fn take_workflow_slot(&mut self, id: JobId, row: &Row) {
        let Some(limit) = row.overlap.limit else { return };
        let key = |slot| (row.namespace.clone(), row.workflow.clone(), slot);
        if let Some(slot) = (1..=limit).find(|slot| !self.workflow_slots.contains_key(&key(*slot))) {
            self.workflow_slots.insert(key(slot), id);
        }
    }

    /// What every end of a lease does to the gates: frees the job's slots and wakes the runs that wait for one.
    pub(super) fn free_slots(&mut self, id: JobId) {
        self.node_slots.retain(|_, (job, _)| *job != id);
        self.task_containers.retain(|(job, _), _| *job != id);
        self.workflow_slots.retain(|_, job| *job != id);
        // As many as a slot may be free for; the others look again by themselves.
        let limit = self.rows.get(&id).and_then(|row| row.overlap.limit);
        self.wake_blocked(id, limit);
    }

    /// Makes the runs due, earliest first, that wait for another run of this job's workflow.
    pub(super) fn wake_blocked(&mut self, id: JobId, limit: Option<i32>) {
        let now = self.now();
        let Some(row) = self.rows.get(&id).filter(|row| row.workflow != AD_HOC) else { return };
        let (namespace, workflow) = (row.namespace.clone(), row.workflow.clone());
        let mut left = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(0));
        for row in self.rows.values_mut().filter(|row| row.namespace == namespace && row.workflow == workflow)
        {
            if let Place::Waiting(waiting) = &mut row.place
                && waiting.blocked_by.is_some()
                && left > 0
            {
                waiting.due_at = Some(now);
                left -= 1;
            }
        }
    }
}
