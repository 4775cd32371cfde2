//! A runtime between the engine and the store, which dies.

use leasehold_actors::{
    domain::Route,
    ports::recipe::{RouteSchemas, SchemaText},
};

use super::*;

/// What a test does at a call of the runtime, by its number and name.
pub(super) type Fault = Arc<dyn Fn(u32, &'static str) -> Do + Send + Sync>;

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Do {
    /// It goes through.
    Pass,
    /// The process dies before it.
    DieBefore,
    /// The process dies when it has been made.
    DieAfter,
}

/// A runtime between the engine and the store.
pub(super) struct Between {
    inner: StoreRuntime,
    calls: AtomicU32,
    fault: Fault,
    pub(super) dead: tokio::sync::Notify,
}

impl Between {
    pub(super) fn new(
        store: &MemoryStore,
        fault: impl Fn(u32, &'static str) -> Do + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner: StoreRuntime::new(Arc::new(store.clone())),
            calls: AtomicU32::new(0),
            fault: Arc::new(fault),
            dead: tokio::sync::Notify::new(),
        })
    }

    async fn call<T>(
        &self,
        name: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        match (self.fault)(number, name) {
            Do::Pass => call.await,
            Do::DieBefore => self.die().await,
            Do::DieAfter => {
                drop(call.await);
                self.die().await
            }
        }
    }

    async fn die<T>(&self) -> T {
        self.dead.notify_one();
        std::future::pending().await
    }
}

#[async_trait]
impl JobRuntime for Between {
    async fn poll_work(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        panic!("nothing is acquired by a run: {request:?}")
    }

    async fn get_job_lease(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        panic!("nothing is acquired by a run: {request:?}")
    }

    async fn read_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError> {
        self.call("read_job", self.inner.read_job(namespace, job)).await
    }

    async fn history(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError> {
        self.call("history", self.inner.history(namespace, job, after)).await
    }

    async fn lookup(&self, namespace: &Namespace, job: JobId, path: &str) -> Result<Vec<Event>, StoreError> {
        self.call("lookup", self.inner.lookup(namespace, job, path)).await
    }

    async fn record(
        &self,
        lease: &LeaseContext,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError> {
        self.call("record", self.inner.record(lease, path, event)).await
    }

    async fn reschedule(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        next: &Reschedule,
    ) -> Result<Ended, StoreError> {
        self.call("reschedule", self.inner.reschedule(lease, command, next)).await
    }

    async fn complete(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        output: &JsonText,
    ) -> Result<Ended, StoreError> {
        self.call("complete", self.inner.complete(lease, command, output)).await
    }

    async fn fail(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        failure: &Failure,
    ) -> Result<Ended, StoreError> {
        self.call("fail", self.inner.fail(lease, command, failure)).await
    }

    async fn refuse(&self, lease: &LeaseContext, reason: &str) -> Result<Refusal, StoreError> {
        self.call("refuse", self.inner.refuse(lease, reason)).await
    }

    async fn register_schema(
        &self,
        namespace: &Namespace,
        route: &Route,
        schemas: &RouteSchemas,
    ) -> Result<bool, StoreError> {
        self.call("register_schema", self.inner.register_schema(namespace, route, schemas)).await
    }

    async fn schema_texts(
        &self,
        namespace: &Namespace,
        digests: &[String],
    ) -> Result<Vec<SchemaText>, StoreError> {
        self.call("schema_texts", self.inner.schema_texts(namespace, digests)).await
    }

    async fn renew_supplied(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.call("renew_supplied", self.inner.renew_supplied(authority)).await
    }
}
