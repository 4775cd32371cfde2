//! What a recipe runs through: the jobs service with its durable log.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold_actors::{
    domain::{CommandId, Failure, JobId, Namespace, Route},
    error::StoreError,
    ports::{
        Authority, ClaimAnswer, End, Ended, ListedAnswer, ListedClaim, OpenClaim, PayloadUpdate, Renewal,
        recipe::{
            Event, JsonText, NewEvent, Publication, RecipeJob, RecipeStore, Recorded, Refusal, RouteSchemas,
            SchemaText, Wake, no_schemas,
        },
    },
    work::LeaseContext,
};

use super::ExecutionRuntime;

/// A job goes on later or elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reschedule {
    /// The route to go on with; none keeps the present one.
    pub route: Option<Route>,
    /// What makes it due, whichever comes first; with none it is due at once.
    pub wake: Vec<Wake>,
    /// Replaces the client payload, if its revision is still the expected one.
    pub payload: Option<PayloadUpdate>,
    /// The needs of the task to go on with.
    pub publish: Option<Publication>,
}

impl Reschedule {
    /// As a way to end a lease.
    #[must_use]
    pub fn to_end(&self) -> End {
        End::Reschedule {
            route: self.route.clone(),
            delay: Duration::ZERO,
            payload: self.payload.clone(),
            wake: self.wake.clone(),
            publish: self.publish.clone(),
        }
    }
}

/// The persistent runtime of recipes. One implementation is over a [`RecipeStore`]; [`ExecutionRuntime`] wraps any.
///
/// # Errors
/// Every method answers [`StoreError`] when there was no answer; its `applied` says whether it may have happened.
#[async_trait]
pub trait JobRuntime: Send + Sync + 'static {
    /// Claims the next jobs for some routes.
    async fn poll_work(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError>;

    /// Claims exactly these jobs.
    async fn get_job_lease(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError>;

    /// Reads a recipe job. Needs no lease.
    async fn read_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError>;

    /// Reads the log behind an ordinal, oldest first: a bounded page, empty at the end. Needs no lease.
    async fn history(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError>;

    /// Looks up what is recorded at one path, oldest first. Needs no lease.
    async fn lookup(&self, namespace: &Namespace, job: JobId, path: &str) -> Result<Vec<Event>, StoreError>;

    /// Appends one event at a path, under a live lease.
    async fn record(
        &self,
        lease: &LeaseContext,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError>;

    /// Gives a job back to go on later or elsewhere.
    async fn reschedule(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        next: &Reschedule,
    ) -> Result<Ended, StoreError>;

    /// Ends a job as COMPLETED.
    async fn complete(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        output: &JsonText,
    ) -> Result<Ended, StoreError>;

    /// Ends a job as FAILED, whatever its retry policy says.
    async fn fail(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        failure: &Failure,
    ) -> Result<Ended, StoreError>;

    /// Records under a live lease that the job's execution payload was refused.
    async fn refuse(&self, lease: &LeaseContext, reason: &str) -> Result<Refusal, StoreError>;

    /// Says what is asked of recipes of a type, or of one of its ops, from now on.
    async fn register_schema(
        &self,
        namespace: &Namespace,
        route: &Route,
        schemas: &RouteSchemas,
    ) -> Result<bool, StoreError> {
        let _ = (namespace, route, schemas);
        Err(no_schemas("register_schema"))
    }

    /// Reads the schemas that a job was submitted under.
    async fn schema_texts(
        &self,
        namespace: &Namespace,
        digests: &[String],
    ) -> Result<Vec<SchemaText>, StoreError> {
        let _ = (namespace, digests);
        Err(no_schemas("schema_texts"))
    }

    /// Extends a lease that somebody else acquired. Never revives an expired one, and acquires nothing.
    async fn renew_supplied(&self, authority: &Authority) -> Result<Renewal, StoreError>;

    /// The wrapper that tasks are guarded by, if this is one.
    fn execution(&self) -> Option<&ExecutionRuntime> {
        None
    }
}

/// The runtime over a store.
pub struct StoreRuntime {
    store: Arc<dyn RecipeStore>,
}

impl fmt::Debug for StoreRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreRuntime")
    }
}

impl StoreRuntime {
    /// Over this store.
    #[must_use]
    pub fn new(store: Arc<dyn RecipeStore>) -> Self {
        Self { store }
    }
}

#[async_trait]
impl JobRuntime for StoreRuntime {
    async fn poll_work(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        self.store.claim(request).await
    }

    async fn get_job_lease(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        self.store.claim_listed(request).await
    }

    async fn read_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError> {
        self.store.recipe_job(namespace, job).await
    }

    async fn history(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError> {
        self.store.events(namespace, job, after).await
    }

    async fn lookup(&self, namespace: &Namespace, job: JobId, path: &str) -> Result<Vec<Event>, StoreError> {
        self.store.events_at(namespace, job, path).await
    }

    async fn record(
        &self,
        lease: &LeaseContext,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError> {
        self.store.record(lease.authority(), path, event).await
    }

    async fn reschedule(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        next: &Reschedule,
    ) -> Result<Ended, StoreError> {
        self.store.end(lease.authority(), command, &next.to_end()).await
    }

    async fn complete(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        output: &JsonText,
    ) -> Result<Ended, StoreError> {
        let end = End::Complete { exit_code: None, output: Some(output.to_string()) };
        self.store.end(lease.authority(), command, &end).await
    }

    async fn fail(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        failure: &Failure,
    ) -> Result<Ended, StoreError> {
        let end = End::FailForGood { failure: failure.clone() };
        self.store.end(lease.authority(), command, &end).await
    }

    async fn refuse(&self, lease: &LeaseContext, reason: &str) -> Result<Refusal, StoreError> {
        self.store.refuse(lease.authority(), reason).await
    }

    async fn register_schema(
        &self,
        namespace: &Namespace,
        route: &Route,
        schemas: &RouteSchemas,
    ) -> Result<bool, StoreError> {
        self.store.register_schema(namespace, route, schemas).await
    }

    async fn schema_texts(
        &self,
        namespace: &Namespace,
        digests: &[String],
    ) -> Result<Vec<SchemaText>, StoreError> {
        self.store.schema_texts(namespace, digests).await
    }

    async fn renew_supplied(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.store.renew(authority).await
    }
}
