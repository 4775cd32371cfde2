//! The runtime of the workers of a test: the one over a store, with somebody who sees what is recorded and may end the
//! worker right behind it.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use async_trait::async_trait;
use leasehold_actors::{
    domain::{CommandId, Failure, JobId, Namespace, Route},
    error::StoreError,
    ports::{
        Authority, ClaimAnswer, Ended, ListedAnswer, ListedClaim, OpenClaim, Renewal,
        recipe::{Event, JsonText, NewEvent, RecipeJob, Recorded, Refusal, RouteSchemas, SchemaText},
    },
    work::LeaseContext,
};
use tokio::sync::Notify;

use super::outside::Outside;
use crate::recipe::execution::{JobRuntime, Reschedule, StoreRuntime};

/// Behind which events a worker crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crash {
    /// None.
    Never,
    /// The one with this ordinal.
    Behind(i64),
    /// Each.
    BehindEach,
}

/// A runtime that is watched.
pub(super) struct Watched {
    inner: StoreRuntime,
    outside: Arc<Outside>,
    crash: Crash,
    /// The ordinal of the latest event.
    seen: AtomicI64,
    /// The worker is gone.
    pub(super) crashed: Notify,
}

impl Watched {
    pub(super) fn new(outside: &Arc<Outside>, crash: Crash) -> Arc<Self> {
        Arc::new(Self {
            inner: StoreRuntime::new(Arc::new(outside.store.clone())),
            outside: Arc::clone(outside),
            crash,
            seen: AtomicI64::new(0),
            crashed: Notify::new(),
        })
    }
}

#[async_trait]
impl JobRuntime for Watched {
    async fn poll_work(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        self.inner.poll_work(request).await
    }

    async fn get_job_lease(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        self.inner.get_job_lease(request).await
    }

    async fn read_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError> {
        self.inner.read_job(namespace, job).await
    }

    async fn history(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError> {
        self.inner.history(namespace, job, after).await
    }

    async fn lookup(&self, namespace: &Namespace, job: JobId, path: &str) -> Result<Vec<Event>, StoreError> {
        self.inner.lookup(namespace, job, path).await
    }

    async fn record(
        &self,
        lease: &LeaseContext,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError> {
        if let NewEvent::StartChild { job, .. } = event
            && let Some(workflow) = &job.workflow
        {
            // Which workflows there are is not what a recipe's test is about.
            self.outside.store.have_workflow(&job.namespace, workflow);
        }
        let answer = self.inner.record(lease, path, event).await?;
        if let Recorded::Recorded(event) = &answer
            && self.seen.fetch_max(event.ordinal, Ordering::Relaxed) < event.ordinal
        {
            self.outside.recorded(event);
            let crashes = match self.crash {
                Crash::Never => false,
                Crash::Behind(ordinal) => event.ordinal == ordinal,
                Crash::BehindEach => true,
            };
            if crashes {
                self.crashed.notify_one();
                return std::future::pending().await;
            }
        }
        Ok(answer)
    }

    async fn reschedule(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        next: &Reschedule,
    ) -> Result<Ended, StoreError> {
        self.inner.reschedule(lease, command, next).await
    }

    async fn complete(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        output: &JsonText,
    ) -> Result<Ended, StoreError> {
        self.inner.complete(lease, command, output).await
    }

    async fn fail(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        failure: &Failure,
    ) -> Result<Ended, StoreError> {
        self.inner.fail(lease, command, failure).await
    }

    async fn refuse(&self, lease: &LeaseContext, reason: &str) -> Result<Refusal, StoreError> {
        self.inner.refuse(lease, reason).await
    }

    async fn register_schema(
        &self,
        namespace: &Namespace,
        route: &Route,
        schemas: &RouteSchemas,
    ) -> Result<bool, StoreError> {
        self.inner.register_schema(namespace, route, schemas).await
    }

    async fn schema_texts(
        &self,
        namespace: &Namespace,
        digests: &[String],
    ) -> Result<Vec<SchemaText>, StoreError> {
        self.inner.schema_texts(namespace, digests).await
    }

    async fn renew_supplied(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.inner.renew_supplied(authority).await
    }
}
