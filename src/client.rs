//! Submission from an embedding program, inside its own transaction: the job exists if, and only if, the
//! program's other writes do.

use leasehold_actors::domain::NewJob;
use tokio_postgres::{Transaction, types::Type};

use crate::{
    postgres::{
        schemas::check_inputs_in,
        submit::{Asked, SUBMIT, SubmitError, Submitted, answer},
    },
    submission,
};

/// Submits jobs through connections that the caller owns. It has no state.
#[derive(Debug, Clone, Copy)]
pub struct Client;

impl Client {
    /// Submits a job in the caller's transaction. Workers see it, and are woken, when that commits; nothing
    /// is left of it when that is rolled back. Works through any pooler that keeps transactions together.
    ///
    /// The inputs of a recipe are held against the schema of its type, as the transaction sees it.
    ///
    /// A refusal by the database (everything but [`SubmitError::Invalid`]) aborts the transaction, as any
    /// failed statement does; use a savepoint where the transaction should go on.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn submit(transaction: &Transaction<'_>, job: NewJob) -> Result<Submitted, SubmitError> {
        submission::validate(&job)?;
        Box::pin(check_inputs_in(transaction, &job)).await?;
        let asked = Asked::of(&job);
        let params = asked.params();
        let typed: Vec<_> =
            params.iter().copied().zip(SUBMIT.types.iter().cloned()).collect::<Vec<(_, Type)>>();
        let rows = transaction.query_typed(SUBMIT.text, &typed).await;
        answer(&job, rows)
    }
}
