//! The container of a recipe's task: what is recorded of it under the new lease before it is removed, and when that is left
//! to another worker or to a later time.

use std::{fmt, sync::Arc};

use super::{Next, Recovered, Recovery, Trouble};
use crate::{
    ports::{TaskContainer, TaskOccurrence},
    runtime_node_actor::{
        results::{NotRecorded, TaskResults},
        task::TaskEnded,
    },
    work::WorkOutcome,
};

/// The task of a recipe whose container is recovered.
#[derive(Clone)]
pub struct TaskRecovery {
    /// What the store tells of it.
    pub container: TaskContainer,
    /// Who can record its result; none in a process that runs no recipes.
    pub results: Option<Arc<dyn TaskResults>>,
}

impl fmt::Debug for TaskRecovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.container.fmt(f)
    }
}

impl TaskRecovery {
    /// Who can record its result, and as what; or why its output is not to be read here.
    pub(super) fn telling(&self) -> Result<(&Arc<dyn TaskResults>, &TaskOccurrence), String> {
        let occurrence = self.container.occurrence.as_ref().ok_or("an older release has started it")?;
        let results = self.results.as_ref().ok_or("this process runs no recipes")?;
        match results.unknown(&occurrence.secrets) {
            Some(name) => Err(format!("this worker has no secret {name}, which its output may show")),
            None => Ok((results, occurrence)),
        }
    }
}

impl Recovery {
    /// Of a task nothing is left to be reported by its job's end: what is known of it is recorded now, and then its
    /// container is removed.
    pub(super) async fn settle(&self, task: &TaskRecovery, found: Recovered) -> Result<Next, Trouble> {
        let (job, path) = (self.takeover.grant.authority.job, &task.container.path);
        let left = match found {
            Recovered::Ended { outcome, .. } => {
                if let Some(reason) = self.record(task, outcome).await? {
                    return Ok(Next::Done(Recovered::NotNow { reason }));
                }
                self.container.as_ref()
            }
            Recovered::Lost { ref message, ref afterwards } => {
                tracing::info!(%job, path, found = message, "a task of a lost lease runs anew");
                self.container.as_ref().filter(|_| afterwards.is_some())
            }
            Recovered::NotStarted => None,
            found => return Ok(Next::Done(found)),
        };
        if let Some(id) = left {
            self.remove(id).await?;
        }
        Ok(Next::Done(Recovered::CleanedUp))
    }

    /// Whether the recovery is put off for as long as the result of the task cannot be recorded: not where nobody ever
    /// can, and not where nobody needs it.
    pub(super) fn waits_for_its_record(&self, task: &TaskRecovery) -> bool {
        !self.last_time && task.container.occurrence.is_some() && !self.takeover.cancel_requested
    }

    /// Records what a task's container came to. Otherwise why this is to be tried later.
    async fn record(&self, task: &TaskRecovery, outcome: WorkOutcome) -> Result<Option<String>, Trouble> {
        let (job, path) = (self.takeover.grant.authority.job, &task.container.path);
        let not_recorded = |reason: String| {
            if self.waits_for_its_record(task) {
                return Some(format!("{path}: {reason}"));
            }
            tracing::warn!(%job, path, reason, "the result of a task of a lost lease is not recorded: it runs anew");
            None
        };
        let (results, occurrence) = match task.telling() {
            Ok(telling) => telling,
            Err(reason) => return Ok(not_recorded(reason)),
        };
        let output = self.run.task.as_ref().map(|task| task.take_output()).unwrap_or_default();
        if !output.complete && self.waits_for_its_record(task) {
            return Ok(not_recorded("its output could not be read to its end".to_owned()));
        }
        self.may_act()?;
        let ended = TaskEnded { outcome, output };
        match results.record(&self.run.lease, &task.container, occurrence, ended).await {
            Ok(()) => {
                tracing::info!(%job, path, "the result of a task of a lost lease is recorded");
                Ok(None)
            }
            Err(NotRecorded::Lost) => Err(Trouble::Stop),
            Err(NotRecorded::NotNow { reason }) => Ok(not_recorded(reason)),
        }
    }
}
