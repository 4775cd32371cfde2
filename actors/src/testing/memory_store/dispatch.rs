//! Dispatch: due PENDING jobs become QUEUED.

use super::world::{Place, Ready, World, until};
use crate::{
    domain::{JobId, Namespace},
    ports::Dispatched,
};

impl World {
    pub(super) fn dispatch(&mut self, namespace: &Namespace, limit: u32) -> Dispatched {
        let now = self.now();
        let mut due: Vec<_> = self
            .rows
            .iter()
            .filter(|(_, row)| row.namespace == *namespace)
            .filter_map(|(id, row)| match &row.place {
                Place::Waiting(waiting) => waiting.due_at.map(|at| (at, *id)),
                _ => None,
            })
            .collect();
        due.sort_unstable();
        let chosen: Vec<JobId> =
            due.iter().take_while(|(at, _)| *at <= now).take(limit as usize).map(|(_, id)| *id).collect();
        for id in &chosen {
            self.queue(*id);
        }
        let next_due = due.get(chosen.len()).map(|(at, _)| until(now, *at));
        Dispatched { moved: u32::try_from(chosen.len()).unwrap_or(u32::MAX), next_due }
    }

    fn queue(&mut self, id: JobId) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        let Place::Waiting(waiting) = &row.place else { return };
        let Some(due_at) = waiting.due_at else { return };
        row.place = Place::Ready(Ready { due_at, keep_attempt: waiting.keep_attempt });
        row.dispatch_attempt += 1;
    }
}
