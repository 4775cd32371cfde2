//! A store whose acquisition calls fail the test, and which loses the answers that a test wants lost.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use leasehold_actors::{
    domain::{CommandId, ContainerId, JobId, LeaseToken, Namespace, NodeId, TaskKey},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{
        Attach, Authority, ClaimAnswer, Dispatched, End, Ended, LeaseStore, ListedAnswer, ListedClaim,
        LogAppend, LogBatch, OpenClaim, PayloadUpdate, Postponed, Reconciliation, RecoverAnswer,
        RecoverRequest, Renewal, StoredLogs, TaskPlace, TaskPlaced, TaskUnplaced,
        recipe::{
            Event, LeaseRead, NewEvent, NewSignal, PayloadSet, RecipeJob, RecipeStore, Recorded, Redeemed,
            Refusal, ReopenAnswer, Reopening, SignalAnswer,
        },
    },
    testing::MemoryStore,
};

/// What becomes of a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lose {
    /// It does not reach the store.
    Request,
    /// It takes effect, and nobody hears of it.
    Answer,
}

#[derive(Clone)]
pub(super) struct Acquireless {
    inner: MemoryStore,
    lost: Arc<Mutex<BTreeMap<&'static str, Vec<Lose>>>>,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Acquireless {
    pub(super) fn new(inner: MemoryStore) -> Self {
        Self { inner, lost: Arc::default(), calls: Arc::default() }
    }

    /// Loses the next calls of an operation.
    pub(super) fn lose(&self, operation: &'static str, fates: impl IntoIterator<Item = Lose>) {
        let mut fates: Vec<_> = fates.into_iter().collect();
        fates.reverse();
        self.lost.lock().unwrap().insert(operation, fates);
    }

    /// How often an operation was called.
    pub(super) fn calls(&self, operation: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| **call == operation).count()
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.calls.lock().unwrap().push(operation);
        let fate = self.lost.lock().unwrap().get_mut(operation).and_then(Vec::pop);
        let error = |applied| StoreError {
            operation,
            kind: StoreErrorKind::Unreachable,
            applied,
            message: "the connection broke (a fault of the test)".to_owned(),
        };
        match fate {
            None => call.await,
            Some(Lose::Request) => Err(error(Applied::No)),
            Some(Lose::Answer) => {
                let _ = call.await;
                Err(error(Applied::Maybe))
            }
        }
    }
}

#[async_trait]
impl LeaseStore for Acquireless {
    async fn dispatch(&self, _: &Namespace, _: u32) -> Result<Dispatched, StoreError> {
        panic!("E7: a supplied lease leads to no dispatch")
    }

    async fn claim(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        panic!("E7: a supplied lease leads to no claim: {request:?}")
    }

    async fn claim_listed(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        panic!("E7: a supplied lease leads to no claim: {request:?}")
    }

    async fn recover(&self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        panic!("E7: a supplied lease leads to no takeover: {request:?}")
    }

    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.call("renew", self.inner.renew(authority)).await
    }

    async fn attach(
        &self,
        authority: &Authority,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.call("attach", self.inner.attach(authority, node, container)).await
    }

    async fn place_task(&self, authority: &Authority, place: &TaskPlace) -> Result<TaskPlaced, StoreError> {
        self.call("place_task", self.inner.place_task(authority, place)).await
    }

    async fn attach_task(
        &self,
        authority: &Authority,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.call("attach_task", self.inner.attach_task(authority, task, node, container)).await
    }

    async fn unplace_task(&self, authority: &Authority, task: &TaskKey) -> Result<TaskUnplaced, StoreError> {
        self.call("unplace_task", self.inner.unplace_task(authority, task)).await
    }

    async fn append_logs(
        &self,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
        self.call("append_logs", self.inner.append_logs(authority, batches)).await
    }

    async fn log_offsets(
        &self,
        authority: &Authority,
        task: Option<&TaskKey>,
    ) -> Result<StoredLogs, StoreError> {
        self.call("log_offsets", self.inner.log_offsets(authority, task)).await
    }

    async fn report_progress(&self, authority: &Authority, progress: &str) -> Result<Renewal, StoreError> {
        self.call("report_progress", self.inner.report_progress(authority, progress)).await
    }

    async fn end(&self, authority: &Authority, command: CommandId, end: &End) -> Result<Ended, StoreError> {
        self.call("end", self.inner.end(authority, command, end)).await
    }

    async fn postpone_recovery(
        &self,
        authority: &Authority,
        delay: Duration,
    ) -> Result<Postponed, StoreError> {
        self.call("postpone_recovery", self.inner.postpone_recovery(authority, delay)).await
    }

    async fn reconcile(&self, authority: &Authority) -> Result<Reconciliation, StoreError> {
        self.call("reconcile", self.inner.reconcile(authority)).await
    }
}

#[async_trait]
impl RecipeStore for Acquireless {
    async fn recipe_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError> {
        self.call("recipe_job", self.inner.recipe_job(namespace, job)).await
    }

    async fn events(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError> {
        self.call("events", self.inner.events(namespace, job, after)).await
    }

    async fn events_at(
        &self,
        namespace: &Namespace,
        job: JobId,
        path: &str,
    ) -> Result<Vec<Event>, StoreError> {
        self.call("events_at", self.inner.events_at(namespace, job, path)).await
    }

    async fn record(
        &self,
        authority: &Authority,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError> {
        self.call("record", self.inner.record(authority, path, event)).await
    }

    async fn refuse(&self, authority: &Authority, reason: &str) -> Result<Refusal, StoreError> {
        self.call("refuse", self.inner.refuse(authority, reason)).await
    }

    async fn read_lease(&self, authority: &Authority) -> Result<LeaseRead, StoreError> {
        self.call("read_lease", self.inner.read_lease(authority)).await
    }

    async fn redeem(
        &self,
        authority: &Authority,
        command: CommandId,
        new_token: &LeaseToken,
    ) -> Result<Redeemed, StoreError> {
        self.call("redeem", self.inner.redeem(authority, command, new_token)).await
    }

    async fn send_signal(
        &self,
        namespace: &Namespace,
        job: JobId,
        signal: &NewSignal,
    ) -> Result<SignalAnswer, StoreError> {
        self.call("send_signal", self.inner.send_signal(namespace, job, signal)).await
    }

    async fn set_payload(
        &self,
        namespace: &Namespace,
        job: JobId,
        update: &PayloadUpdate,
    ) -> Result<PayloadSet, StoreError> {
        self.call("set_payload", self.inner.set_payload(namespace, job, update)).await
    }

    async fn reopen(&self, _: &Namespace, job: JobId, _: &Reopening) -> Result<ReopenAnswer, StoreError> {
        panic!("only a person reopens a job: {job}")
    }
}
