//! The store as recipes see it, with points around the calls of the durable log.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::CrashPoints;
use crate::{
    domain::{CommandId, ContainerId, JobId, LeaseToken, Namespace, NodeId, Route, TaskKey},
    error::StoreError,
    ports::{
        Attach, Authority, ClaimAnswer, Dispatched, End, Ended, LeaseStore, ListedAnswer, ListedClaim,
        LogAppend, LogBatch, OpenClaim, PayloadUpdate, Postponed, Reconciliation, RecoverAnswer,
        RecoverRequest, Renewal, StoredLogs, TaskPlace, TaskPlaced, TaskUnplaced,
        recipe::{
            Event, LeaseRead, NewEvent, NewSignal, PayloadSet, Publication, RecipeJob, RecipeStore, Recorded,
            Redeemed, Refusal, ReopenAnswer, Reopening, RouteSchemas, SchemaText, SignalAnswer, Wake,
        },
    },
};

pub(super) struct Pointed {
    inner: Arc<dyn RecipeStore>,
    points: CrashPoints,
}

impl Pointed {
    pub(super) fn new(inner: Arc<dyn RecipeStore>, points: CrashPoints) -> Self {
        Self { inner, points }
    }
}

fn any<T>(_: &T) -> bool {
    true
}

fn record(event: &NewEvent) -> &'static str {
    match event {
        NewEvent::Task { .. } => "recipe.record.task",
        NewEvent::TimerSet { .. } => "recipe.record.timer_set",
        NewEvent::TimerFired => "recipe.record.timer_fired",
        NewEvent::TakeSignal { .. } => "recipe.record.signal",
        NewEvent::StartChild { .. } => "recipe.record.child_started",
        NewEvent::ChildEnded => "recipe.record.child_ended",
    }
}

/// Where a rescheduled job goes on: `needs:arm64`, `task:resize`, or at what it wakes: `time`, `signal:go`, `child`.
fn goes_on(task: Option<&str>, wake: &[Wake], publish: Option<&Publication>) -> String {
    if let Some(publish) = publish.filter(|publish| publish.handoff) {
        let platform = publish.hint.platform.as_ref().map(|(_, architecture, _)| architecture.clone());
        let cpu = publish.hint.cpu_millis.map(|cpu| format!("cpu-{cpu}"));
        let memory = publish.hint.memory_bytes.map(|bytes| format!("memory-{bytes}"));
        let needs: Vec<String> = [platform, cpu, memory].into_iter().flatten().collect();
        return format!("needs:{}", needs.join(","));
    }
    if wake.is_empty() {
        return format!("task:{}", task.unwrap_or_default());
    }
    let mut named: Vec<String> = wake
        .iter()
        .map(|wake| match wake {
            Wake::At(_) => "time".to_owned(),
            Wake::Signal(name) => format!("signal:{name}"),
            Wake::Child(_) => "child".to_owned(),
        })
        .collect();
    named.sort();
    named.dedup();
    named.join(",")
}

#[async_trait]
impl RecipeStore for Pointed {
    async fn recipe_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError> {
        self.points.around("recipe.read", self.inner.recipe_job(namespace, job), any).await
    }

    async fn events(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError> {
        self.points.around("recipe.history", self.inner.events(namespace, job, after), any).await
    }

    async fn events_at(
        &self,
        namespace: &Namespace,
        job: JobId,
        path: &str,
    ) -> Result<Vec<Event>, StoreError> {
        self.inner.events_at(namespace, job, path).await
    }

    async fn record(
        &self,
        authority: &Authority,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError> {
        let made = self.inner.record(authority, path, event);
        let counts = |answer: &Recorded| *answer != Recorded::NotYet;
        self.points.around_at(record(event), Some(path), made, counts).await
    }

    async fn refuse(&self, authority: &Authority, reason: &str) -> Result<Refusal, StoreError> {
        self.points.around("recipe.refuse", self.inner.refuse(authority, reason), any).await
    }

    async fn read_lease(&self, authority: &Authority) -> Result<LeaseRead, StoreError> {
        self.inner.read_lease(authority).await
    }

    async fn redeem(
        &self,
        authority: &Authority,
        command: CommandId,
        new_token: &LeaseToken,
    ) -> Result<Redeemed, StoreError> {
        self.inner.redeem(authority, command, new_token).await
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

    async fn reopen(
        &self,
        namespace: &Namespace,
        job: JobId,
        reopening: &Reopening,
    ) -> Result<ReopenAnswer, StoreError> {
        self.inner.reopen(namespace, job, reopening).await
    }

    async fn send_signal(
        &self,
        namespace: &Namespace,
        job: JobId,
        signal: &NewSignal,
    ) -> Result<SignalAnswer, StoreError> {
        self.inner.send_signal(namespace, job, signal).await
    }

    async fn set_payload(
        &self,
        namespace: &Namespace,
        job: JobId,
        update: &PayloadUpdate,
    ) -> Result<PayloadSet, StoreError> {
        self.inner.set_payload(namespace, job, update).await
    }
}

#[async_trait]
impl LeaseStore for Pointed {
    async fn end(&self, authority: &Authority, command: CommandId, end: &End) -> Result<Ended, StoreError> {
        let made = self.inner.end(authority, command, end);
        let End::Reschedule { route, wake, publish, .. } = end else { return made.await };
        let task = route.as_ref().map(|route| route.task.as_str());
        let place = goes_on(task, wake, publish.as_ref());
        self.points.around_at("recipe.reschedule", Some(&place), made, any).await
    }

    async fn dispatch(&self, namespace: &Namespace, limit: u32) -> Result<Dispatched, StoreError> {
        self.inner.dispatch(namespace, limit).await
    }

    async fn claim(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        self.inner.claim(request).await
    }

    async fn claim_listed(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        self.inner.claim_listed(request).await
    }

    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.inner.renew(authority).await
    }

    async fn attach(
        &self,
        authority: &Authority,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.inner.attach(authority, node, container).await
    }

    async fn place_task(&self, authority: &Authority, place: &TaskPlace) -> Result<TaskPlaced, StoreError> {
        self.inner.place_task(authority, place).await
    }

    async fn attach_task(
        &self,
        authority: &Authority,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.inner.attach_task(authority, task, node, container).await
    }

    async fn unplace_task(&self, authority: &Authority, task: &TaskKey) -> Result<TaskUnplaced, StoreError> {
        self.inner.unplace_task(authority, task).await
    }

    async fn append_logs(
        &self,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
        self.inner.append_logs(authority, batches).await
    }

    async fn log_offsets(
        &self,
        authority: &Authority,
        task: Option<&TaskKey>,
    ) -> Result<StoredLogs, StoreError> {
        self.inner.log_offsets(authority, task).await
    }

    async fn report_progress(&self, authority: &Authority, progress: &str) -> Result<Renewal, StoreError> {
        self.inner.report_progress(authority, progress).await
    }

    async fn recover(&self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        self.inner.recover(request).await
    }

    async fn postpone_recovery(
        &self,
        authority: &Authority,
        delay: Duration,
    ) -> Result<Postponed, StoreError> {
        self.inner.postpone_recovery(authority, delay).await
    }

    async fn reconcile(&self, authority: &Authority) -> Result<Reconciliation, StoreError> {
        self.inner.reconcile(authority).await
    }
}
