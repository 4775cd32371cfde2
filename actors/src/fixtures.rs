//! Values that the unit tests of this crate are made of.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    domain::{
        CommandId, ContainerId, Epoch, JobDefinition, JobId, JobKind, JobState, LeaseToken, Namespace,
        NewJob, NodeId, ProcessId, RetryPolicy, Route, TaskKey, WorkerId, lease::StopReason,
    },
    error::StoreError,
    nodes::{NodeAddress, StartNode},
    permits::PermitCounts,
    ports::{
        Attach, Authority, ClaimAnswer, Claimant, Dispatched, End, Ended, Grant, LeaseStore, ListedAnswer,
        ListedClaim, LogAppend, LogBatch, OpenClaim, Postponed, Reconciliation, RecoverAnswer,
        RecoverRequest, Renewal, StoredLogs, TaskPlace, TaskPlaced, TaskUnplaced, WorkRunner,
    },
    runtime_node_actor::{RecoverContainer, RunContainer},
    settings::{ActorSettings, ClaimSettings, DispatchSettings, LeaseTimings, RecoverySettings},
    supervision::{Supervision, WorkerParts},
    testing::{FlakyStore, JobView, MemoryStore, Odds, Operation, Probe},
    work::{LeaseContext, WorkOutcome},
};

/// The lease that fixtures are granted for.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

pub(crate) fn owner() -> Claimant {
    Claimant {
        namespace: Namespace::default(),
        worker: WorkerId::new("w-1").expect("a plain name"),
        process: ProcessId::generate(),
    }
}

pub(crate) fn claim(limit: u32) -> OpenClaim {
    OpenClaim {
        owner: owner(),
        command: CommandId::generate(),
        repeat: false,
        routes: Arc::from([Route::handler("noop")]),
        limit,
        lease: LEASE,
        facts: None,
    }
}

pub(crate) fn grant(job: i64, epoch: i64) -> Arc<Grant> {
    Arc::new(Grant {
        authority: Authority {
            owner: owner(),
            job: JobId(job),
            token: LeaseToken::generate(),
            epoch: Epoch(epoch),
        },
        kind: JobKind::Handler,
        route: Route::handler("noop"),
        workflow: "adhoc".to_owned(),
        generation: 1,
        dispatch_attempt: 1,
        attempt: 1,
        lease: LEASE,
        definition: Arc::from(r#"{"handler":"noop"}"#),
        payload: Arc::from("null"),
        timeout: None,
        retry: RetryPolicy::default(),
        trace_parent: None,
        placement: None,
    })
}

/// Runs a test as the arbiter of a system whose clock stands still until everybody waits for it.
pub(crate) fn paused<F: Future>(test: F) -> F::Output {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a test may have a runtime")
    };
    actix::System::with_tokio_rt(runtime).block_on(test)
}

/// Waits, in the test's own time, until something is the case.
pub(crate) async fn eventually(limit: Duration, what: &str, mut check: impl FnMut() -> bool) {
    let since = Instant::now();
    while !check() {
        assert!(since.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A workload: what a job does in a test.
pub(crate) type Work = Arc<dyn Fn(Arc<Grant>, LeaseContext) -> BoxFuture<'static, WorkOutcome> + Send + Sync>;

pub(crate) fn work<F>(f: impl Fn(Arc<Grant>, LeaseContext) -> F + Send + Sync + 'static) -> Work
where
    F: Future<Output = WorkOutcome> + Send + 'static,
{
    Arc::new(move |grant, lease| Box::pin(f(grant, lease)))
}

/// Work that is done after this long, and stops when it is asked to.
pub(crate) fn takes(time: Duration) -> Work {
    work(move |_, lease| async move {
        tokio::select! {
            () = tokio::time::sleep(time) => done(),
            _ = lease.stopped() => WorkOutcome::Stopped,
        }
    })
}

pub(crate) fn done() -> WorkOutcome {
    WorkOutcome::Completed { exit_code: None, output: None }
}

/// Every run of a workload: when it began, why it was stopped, and when it ended.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) job: JobId,
    pub(crate) began: Instant,
    pub(crate) stop: Option<StopReason>,
    pub(crate) ended: Option<Instant>,
}

struct RecordingRunner {
    work: Work,
    runs: Arc<Mutex<Vec<Run>>>,
}

struct EndOfRun(usize, Arc<Mutex<Vec<Run>>>, LeaseContext);

impl Drop for EndOfRun {
    fn drop(&mut self) {
        let mut runs = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        runs[self.0].ended = Some(Instant::now());
        runs[self.0].stop = self.2.stop_reason();
    }
}

#[async_trait]
impl WorkRunner for RecordingRunner {
    async fn run(&self, grant: Arc<Grant>, lease: LeaseContext) -> WorkOutcome {
        let _end = {
            let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            runs.push(Run { job: grant.authority.job, began: Instant::now(), stop: None, ended: None });
            EndOfRun(runs.len() - 1, Arc::clone(&self.runs), lease.clone())
        };
        (self.work)(grant, lease).await
    }
}

/// How a rig is set up.
pub(crate) struct RigSettings {
    pub(crate) timings: LeaseTimings,
    pub(crate) concurrency: u32,
    pub(crate) poll: Duration,
    pub(crate) seed: u64,
    pub(crate) odds: Odds,
    /// Panics in the call of that operation with that number, counted from 1.
    pub(crate) panics: Vec<(Operation, u32)>,
    pub(crate) start_node: StartNode,
    pub(crate) recovery: RecoverySettings,
    pub(crate) retry: RetryPolicy,
}

impl Default for RigSettings {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            timings: LeaseTimings {
                lease: LEASE,
                renew_interval: s(10),
                safety_margin: s(3),
                store_timeout: s(2),
                stop_grace: s(3),
            },
            concurrency: 4,
            poll: s(2),
            seed: 1,
            odds: Odds::default(),
            panics: Vec::new(),
            start_node: Box::new(|placement| panic!("no container is run here, but {placement:?}")),
            recovery: RecoverySettings {
                // Tests that watch what a worker leaves to recovery want none; the others say so.
                permits: 0,
                batch: 100,
                interval: s(15),
                give_up: s(600),
                loss_limit: 3,
            },
            retry: RetryPolicy { max_system: Some(3), backoff_ms: Some(1000), ..RetryPolicy::default() },
        }
    }
}

/// A node whose actor only runs what was claimed.
pub(crate) fn node_that_runs(run: actix::Recipient<RunContainer>) -> NodeAddress {
    let recover =
        Probe::answering(|message: RecoverContainer| panic!("nothing is recovered here, but {message:?}"));
    NodeAddress { run, recover: recover.recipient }
}

/// A whole worker on the memory store, behind a network that loses what it is told to.
pub(crate) struct Rig {
    pub(crate) memory: MemoryStore,
    pub(crate) net: FlakyStore,
    pub(crate) worker: Supervision,
    runs: Arc<Mutex<Vec<Run>>>,
}

impl Rig {
    pub(crate) fn new(work: Work) -> Self {
        Self::with(RigSettings::default(), work)
    }

    /// Starts a worker; submit first with [`Rig::on`] where a test needs jobs before it.
    pub(crate) fn with(settings: RigSettings, work: Work) -> Self {
        Self::on(MemoryStore::new(), settings, work)
    }

    pub(crate) fn on(memory: MemoryStore, settings: RigSettings, work: Work) -> Self {
        let net = FlakyStore::new(memory.port(), settings.seed, settings.odds);
        let runs = Arc::new(Mutex::new(Vec::new()));
        let store: Arc<dyn LeaseStore> = if settings.panics.is_empty() {
            Arc::new(net.clone())
        } else {
            Arc::new(PanickingStore { inner: net.clone(), panics: settings.panics, calls: Mutex::default() })
        };
        let parts = WorkerParts {
            store,
            runner: Arc::new(RecordingRunner { work, runs: Arc::clone(&runs) }),
            start_node: settings.start_node,
            results: None,
            on_stuck: Box::new(|_, _| {}),
            settings: ActorSettings {
                claim: ClaimSettings {
                    owner: owner(),
                    routes: Arc::from([
                        Route::handler("noop"),
                        Route::container(),
                        Route::recipe("recipe", ""),
                    ]),
                    concurrency: settings.concurrency,
                    batch: 100,
                    poll_interval: settings.poll,
                    facts: None,
                },
                timings: settings.timings,
                retry_defaults: settings.retry,
                dispatch: Some(DispatchSettings { batch: 100, poll_interval: settings.poll }),
                recovery: settings.recovery,
            },
        };
        let worker = Supervision::start(parts).expect("the fence has its thread");
        Self { memory, net, worker, runs }
    }

    pub(crate) fn submit(&self) -> JobId {
        let job = submit(&self.memory);
        self.worker.work_is_ready();
        job
    }

    pub(crate) fn view(&self, job: JobId) -> JobView {
        self.memory.view(&Namespace::default(), job).expect("the job exists")
    }

    pub(crate) fn state(&self, job: JobId) -> JobState {
        self.view(job).state
    }

    /// Whether the job is RUNNING under a lease whose time is over: left to recovery.
    pub(crate) fn is_expired(&self, job: JobId) -> bool {
        self.view(job).lease_expires_at.is_some_and(|at| at <= self.memory.clock())
    }

    pub(crate) fn permits(&self) -> PermitCounts {
        self.worker.health().permits
    }

    pub(crate) fn runs(&self) -> Vec<Run> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn run_of(&self, job: JobId) -> Run {
        self.runs().into_iter().find(|run| run.job == job).expect("the job has run")
    }

    pub(crate) fn has_run(&self, job: JobId) -> bool {
        self.runs().iter().any(|run| run.job == job)
    }

    pub(crate) async fn until_running(&self, job: JobId) {
        eventually(Duration::from_secs(60), "the work has begun", || self.has_run(job)).await;
    }

    pub(crate) async fn until_state(&self, job: JobId, state: JobState) {
        eventually(Duration::from_secs(300), "the job's state", || self.state(job) == state).await;
    }

    pub(crate) async fn until_quiet(&self) {
        eventually(Duration::from_secs(600), "every permit is free", || {
            let permits = self.permits();
            permits.free == permits.total()
        })
        .await;
    }
}

pub(crate) fn submit(memory: &MemoryStore) -> JobId {
    memory.submit_job(&noop()).expect("a plain job is accepted").job
}

pub(crate) fn noop() -> NewJob {
    NewJob::ad_hoc(JobDefinition::Handler { name: "noop".to_owned() })
}

/// Unwinds like a panic, but leaves the output of the tests readable.
pub(crate) fn planned_panic(place: &'static str) -> ! {
    std::panic::resume_unwind(Box::new(place))
}

/// Panics where a test wants a part of the worker to die in the middle of a call.
struct PanickingStore {
    inner: FlakyStore,
    panics: Vec<(Operation, u32)>,
    calls: Mutex<HashMap<Operation, u32>>,
}

impl PanickingStore {
    fn maybe_panic(&self, operation: Operation) {
        let number = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let number = calls.entry(operation).or_default();
            *number += 1;
            *number
        };
        assert!(
            !self.panics.contains(&(operation, number)),
            "a planned panic in call {number} of {operation:?}"
        );
    }
}

#[async_trait]
impl LeaseStore for PanickingStore {
    async fn dispatch(&self, namespace: &Namespace, limit: u32) -> Result<Dispatched, StoreError> {
        self.maybe_panic(Operation::Dispatch);
        self.inner.dispatch(namespace, limit).await
    }

    async fn claim(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        self.maybe_panic(Operation::Claim);
        self.inner.claim(request).await
    }

    async fn claim_listed(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        self.maybe_panic(Operation::ClaimListed);
        self.inner.claim_listed(request).await
    }

    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.maybe_panic(Operation::Renew);
        self.inner.renew(authority).await
    }

    async fn attach(
        &self,
        authority: &Authority,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.maybe_panic(Operation::Attach);
        self.inner.attach(authority, node, container).await
    }

    async fn place_task(&self, authority: &Authority, place: &TaskPlace) -> Result<TaskPlaced, StoreError> {
        self.maybe_panic(Operation::PlaceTask);
        self.inner.place_task(authority, place).await
    }

    async fn attach_task(
        &self,
        authority: &Authority,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.maybe_panic(Operation::AttachTask);
        self.inner.attach_task(authority, task, node, container).await
    }

    async fn unplace_task(&self, authority: &Authority, task: &TaskKey) -> Result<TaskUnplaced, StoreError> {
        self.maybe_panic(Operation::UnplaceTask);
        self.inner.unplace_task(authority, task).await
    }

    async fn append_logs(
        &self,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
        self.maybe_panic(Operation::AppendLogs);
        self.inner.append_logs(authority, batches).await
    }

    async fn log_offsets(
        &self,
        authority: &Authority,
        task: Option<&TaskKey>,
    ) -> Result<StoredLogs, StoreError> {
        self.maybe_panic(Operation::LogOffsets);
        self.inner.log_offsets(authority, task).await
    }

    async fn report_progress(&self, authority: &Authority, progress: &str) -> Result<Renewal, StoreError> {
        self.maybe_panic(Operation::ReportProgress);
        self.inner.report_progress(authority, progress).await
    }

    async fn end(&self, authority: &Authority, command: CommandId, end: &End) -> Result<Ended, StoreError> {
        self.maybe_panic(Operation::End);
        self.inner.end(authority, command, end).await
    }

    async fn recover(&self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        self.maybe_panic(Operation::Recover);
        self.inner.recover(request).await
    }

    async fn postpone_recovery(
        &self,
        authority: &Authority,
        delay: Duration,
    ) -> Result<Postponed, StoreError> {
        self.maybe_panic(Operation::PostponeRecovery);
        self.inner.postpone_recovery(authority, delay).await
    }

    async fn reconcile(&self, authority: &Authority) -> Result<Reconciliation, StoreError> {
        self.maybe_panic(Operation::Reconcile);
        self.inner.reconcile(authority).await
    }
}
