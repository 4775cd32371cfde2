//! The result of a task's container that ended by itself while nobody held the lease of its job: what a recovery asks of
//! the side that knows recipes.

use async_trait::async_trait;

use super::task::{Redact, TaskEnded};
use crate::{
    ports::{TaskContainer, TaskOccurrence},
    work::LeaseContext,
};

/// Turns ends of containers into results of tasks, and records them.
#[async_trait]
pub trait TaskResults: Send + Sync {
    /// The longest line of standard output that is remembered whole.
    fn longest_line(&self) -> usize;

    /// What must not be shown of any output.
    fn redact(&self) -> Option<Redact>;

    /// The first of these secrets whose value is not known here: output that may show it is nobody's to read here.
    fn unknown<'s>(&self, secrets: &'s [String]) -> Option<&'s str>;

    /// Records the end of a task's container under a live lease, and comes back when it is certain what the log says.
    /// What was recorded at its path before goes on standing there.
    ///
    /// # Errors
    /// [`NotRecorded`]; it may be asked again.
    async fn record(
        &self,
        lease: &LeaseContext,
        task: &TaskContainer,
        occurrence: &TaskOccurrence,
        ended: TaskEnded,
    ) -> Result<(), NotRecorded>;
}

/// Why a result is not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotRecorded {
    /// The lease is over.
    Lost,
    /// Something stands in the way.
    NotNow {
        /// What, for people.
        reason: String,
    },
}
