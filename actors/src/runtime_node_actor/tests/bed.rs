//! A node with a scripted engine, a memory store with one claimed CONTAINER job, and a lease that the bed
//! itself keeps, as the LeaseActor would.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    task::{AbortHandle, JoinHandle},
    time::{Instant, sleep},
};
use uuid::Uuid;

use crate::{
    clock::Anchor,
    domain::{
        CommandId, ContainerSpec, FailureKind, JobDefinition, JobId, Namespace, NewJob, ProcessId, Route,
        WorkerId,
    },
    fence::{Terms, Watch},
    ports::{Claimant, EngineFactory, Grant, LeaseStore, LogStream, OpenClaim, Placement, Renewal},
    runtime_node_actor::{Node, NodeRunSettings, RunLimits, run},
    testing::{FlakyStore, MemoryStore, ScriptedEngine, StoreHarness, TestNode},
    work::{LeaseContext, StopReason, WorkOutcome},
};

pub(in crate::runtime_node_actor) const LEASE: Duration = Duration::from_secs(30);
const MARGIN: Duration = Duration::from_secs(3);
const FLEET: Uuid = Uuid::from_u128(0x8d3a_5f01_0000_0000_0000_0000_0000_0001);

/// The engine's id that `n-1` was registered with.
pub(super) const ENGINE: &str = "ENGINE-n-1";

/// The image of every job of the bed.
pub(super) const IMAGE: &str = "busybox";

/// The name of the container of the bed's one grant.
pub(super) const NAME: &str = "leasehold-8d3a5f01-1-1";

pub(super) struct Bed {
    pub(super) engine: ScriptedEngine,
    pub(super) store: MemoryStore,
    pub(super) flaky: FlakyStore,
    pub(super) watch: Arc<Watch>,
    pub(super) lease: LeaseContext,
    pub(super) grant: Arc<Grant>,
    pub(super) limits: RunLimits,
    renewals: AbortHandle,
    /// The longest time between two confirmed renewals.
    pub(super) longest_gap: Arc<Mutex<Duration>>,
}

impl Bed {
    pub(super) async fn new(engine: ScriptedEngine) -> Self {
        Self::with(engine, |_| {}).await
    }

    pub(super) async fn with(engine: ScriptedEngine, change: impl FnOnce(&mut ContainerSpec)) -> Self {
        let store = MemoryStore::new();
        let asked = Anchor::now();
        let mut spec = ContainerSpec { image: IMAGE.to_owned(), ..ContainerSpec::default() };
        change(&mut spec);
        let grant = Arc::new(claim(&store, spec).await);
        let watch = Arc::new(Watch::unfenced(Terms {
            job: grant.authority.job,
            epoch: grant.authority.epoch,
            deadline: asked.after(LEASE - MARGIN),
            lease: LEASE,
            stop_grace: Duration::from_secs(10),
        }));
        let flaky = FlakyStore::scripted(store.port());
        let lease = LeaseContext::new(Arc::clone(&grant), Arc::new(flaky.clone()), &watch);
        let longest_gap = Arc::default();
        let renewals = keep(&store, &grant, &watch, &longest_gap);
        Self {
            engine,
            store,
            flaky,
            watch,
            lease,
            grant,
            limits: RunLimits::default(),
            renewals,
            longest_gap,
        }
    }

    pub(super) fn node(&self) -> Arc<Node> {
        let settings = NodeRunSettings { fleet: FLEET, limits: self.limits, runtime: None };
        let placement = self.placement();
        let engine = self.engine.connect(&placement).expect("a scripted engine can always be reached");
        Arc::new(Node { placement, engine, factory: Arc::new(self.engine.clone()), settings })
    }

    pub(super) fn placement(&self) -> Placement {
        self.grant.placement.clone().expect("a CONTAINER grant has a node")
    }

    pub(super) fn settings(&self) -> NodeRunSettings {
        NodeRunSettings { fleet: FLEET, limits: self.limits, runtime: None }
    }

    /// Starts the run as a task of its own.
    pub(super) fn start(&self) -> JoinHandle<WorkOutcome> {
        let hold = self.lease.hold();
        let run = run::run(self.node(), self.lease.clone());
        tokio::spawn(async move {
            let _hold = hold;
            run.await
        })
    }

    pub(super) async fn run(&self) -> WorkOutcome {
        let outcome = self.start().await.expect("the run does not panic");
        // What removes beside the run may go on for a moment.
        sleep(Duration::from_millis(1)).await;
        outcome
    }

    /// Tells the run to stop, and lets it have this long.
    pub(super) fn stop(&self, reason: StopReason, grace: Duration) {
        self.watch.stop(reason, Some(grace));
    }

    /// From now on nobody renews; the fence would ask the work to stop in time.
    pub(super) fn lose_the_lease(&self) {
        self.renewals.abort();
        self.watch.stop(StopReason::LeaseLost, None);
    }

    pub(super) fn stop_renewing(&self) {
        self.renewals.abort();
    }

    pub(super) fn job(&self) -> JobId {
        self.grant.authority.job
    }

    /// One stream as it is stored. Fails when a byte is missing or stands there twice.
    pub(super) fn stored(&self, stream: LogStream) -> Vec<u8> {
        let mut all = Vec::new();
        for log in self.store.stored_logs(self.job()) {
            if log.stream == stream {
                assert_eq!(
                    log.first_byte,
                    all.len() as u64,
                    "the batches of {stream:?} have gaps or overlap"
                );
                all.extend_from_slice(&log.data);
            }
        }
        all
    }

    pub(super) fn text(&self, stream: LogStream) -> String {
        String::from_utf8(self.stored(stream)).expect("the test prints text")
    }

    /// The entry is over: the fence has nothing left to kill.
    pub(super) fn is_over(&self) -> bool {
        self.watch.entry().is_over()
    }
}

/// Waits until something is so; virtual time makes this cheap.
pub(super) async fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if so() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("never so: {what}");
}

pub(super) fn assert_failed(outcome: &WorkOutcome, kind: FailureKind, code: &str) {
    let WorkOutcome::Failed(failure) = outcome else { panic!("{outcome:?} is no failure") };
    assert_eq!((failure.kind, failure.code.as_str()), (kind, code), "{failure:?}");
}

pub(super) fn completed() -> WorkOutcome {
    WorkOutcome::Completed { exit_code: Some(0), output: None }
}

/// Renews every five seconds, as a LeaseActor would.
pub(super) fn keep(
    store: &MemoryStore,
    grant: &Arc<Grant>,
    watch: &Arc<Watch>,
    longest_gap: &Arc<Mutex<Duration>>,
) -> AbortHandle {
    let (store, grant) = (store.clone(), Arc::clone(grant));
    let (watch, longest_gap) = (Arc::downgrade(watch), Arc::clone(longest_gap));
    let renewals = tokio::spawn(async move {
        let mut last = Instant::now();
        loop {
            sleep(Duration::from_secs(5)).await;
            let asked = Anchor::now();
            let Ok(Renewal::Held { remaining, .. }) = store.renew(&grant.authority).await else { return };
            let Some(watch) = watch.upgrade() else { return };
            watch.renewed(asked.after(remaining.saturating_sub(MARGIN)));
            let mut gap = longest_gap.lock().expect("nothing panics with it");
            *gap = gap.max(last.elapsed());
            last = Instant::now();
        }
    });
    renewals.abort_handle()
}

async fn claim(store: &MemoryStore, spec: ContainerSpec) -> Grant {
    let namespace = Namespace::default();
    store.register_node(&TestNode::new(&namespace, "n-1", 4)).await;
    let mut job = NewJob::ad_hoc(JobDefinition::Container(spec));
    job.namespace = namespace.clone();
    store.submit(&job).await;
    let request = OpenClaim {
        owner: Claimant {
            namespace,
            worker: WorkerId::new("w-1").expect("a plain name"),
            process: ProcessId::generate(),
        },
        command: CommandId::generate(),
        repeat: false,
        routes: vec![Route::container()].into(),
        limit: 1,
        lease: LEASE,
        facts: None,
    };
    store.claim(&request).await.expect("the memory store answers").grants.remove(0)
}

/// A CONTAINER grant on node `n-1`, as a claim brings it.
pub(in crate::runtime_node_actor) fn grant() -> Grant {
    let spec = ContainerSpec { image: IMAGE.to_owned(), ..ContainerSpec::default() };
    let store = MemoryStore::new();
    let claimed = claim(&store, spec);
    futures_util::FutureExt::now_or_never(Box::pin(claimed)).expect("the memory store never waits")
}
