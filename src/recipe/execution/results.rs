//! Results of containers that ended by themselves while nobody held the lease of their job: recorded as their op would
//! have, by whoever takes the job over.

use async_trait::async_trait;
use leasehold_actors::{
    ports::{
        TaskContainer, TaskOccurrence,
        recipe::{NewEvent, Recorded},
    },
    runtime_node_actor::{
        NotRecorded, TaskResults,
        task::{Redact, TaskEnded},
    },
    work::{LeaseContext, WorkOutcome},
};

use super::{
    engine::RecipeEngine,
    give_back::{read, repeat},
};
use crate::recipe::{
    ops::{OUTPUT_LIMIT, container::conclude_found},
    session::{failed, succeeded},
};

#[async_trait]
impl TaskResults for RecipeEngine {
    fn longest_line(&self) -> usize {
        OUTPUT_LIMIT
    }

    fn redact(&self) -> Option<Redact> {
        self.secrets.redact()
    }

    fn unknown<'s>(&self, secrets: &'s [String]) -> Option<&'s str> {
        secrets.iter().map(String::as_str).find(|name| self.secrets.get(name).is_none())
    }

    async fn record(
        &self,
        lease: &LeaseContext,
        task: &TaskContainer,
        occurrence: &TaskOccurrence,
        ended: TaskEnded,
    ) -> Result<(), NotRecorded> {
        let not_now = |reason: String| NotRecorded::NotNow { reason };
        let job = read(&*self.runtime, lease).await.map_err(not_now)?;
        let schemas = self.schemas(&job, lease).await.map_err(|why| match why {
            WorkOutcome::Failed(failure) => not_now(failure.message),
            _ => NotRecorded::Lost,
        })?;
        let TaskOccurrence { op, input_hash, attempt, .. } = occurrence;
        let outcome = match conclude_found(&self.secrets, ended) {
            Ok(output) => succeeded(&task.path, op, &output, &self.secrets, &schemas).await,
            Err(error) => failed(error, &self.secrets),
        };
        let event = NewEvent::Task {
            op: op.clone(),
            input_hash: input_hash.clone(),
            attempt: *attempt,
            outcome,
            directive: None,
        };
        match repeat(lease, || self.runtime.record(lease, &task.path, &event)).await {
            Ok(Recorded::Recorded(_) | Recorded::Conflict(_)) => Ok(()),
            Ok(Recorded::NotLive) => Err(NotRecorded::Lost),
            // The recipe meets the same refusal by itself, and ends by it.
            Ok(refused) => {
                tracing::warn!(job = %lease.authority().job, path = task.path, ?refused, "a result was not taken");
                Ok(())
            }
            Err(reason) => Err(not_now(reason)),
        }
    }
}
