//! Request cancel: at once for what is not running, a flag and a deadline for what is.

use std::time::Duration;

use super::{
    end::terminal,
    world::{Place, World, delta},
};
use crate::{
    domain::{JobId, JobState, Namespace},
    testing::harness::CancelAnswer,
};

impl World {
    pub(super) fn request_cancel(
        &mut self,
        namespace: &Namespace,
        id: JobId,
        grace: Duration,
    ) -> CancelAnswer {
        let now = self.now();
        let Some(row) = self.rows.get_mut(&id).filter(|row| row.namespace == *namespace) else {
            return CancelAnswer::NotFound;
        };
        match &mut row.place {
            Place::Ended(ended) => CancelAnswer::AlreadyEnded(ended.state),
            Place::Leased(lease) => {
                // A second request does not give the holder more time.
                if !lease.cancel_requested {
                    lease.cancel_requested = true;
                    lease.cancel_deadline = Some(now + delta(grace + lease.duration));
                }
                CancelAnswer::Requested
            }
            Place::Waiting(_) | Place::Ready(_) => {
                row.place = terminal(JobState::Canceled, None, None, None);
                self.wake_blocked(id, None);
                self.after_end(id);
                CancelAnswer::Canceled
            }
        }
    }
}
