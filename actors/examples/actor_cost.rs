//! What the actors themselves cost: jobs per second through claim → LeaseActor → renew → work → complete on one
//! arbiter, with a store that answers at once, or after as many milliseconds as the first argument says.
//! `cargo run --release -p leasehold-actors --example actor_cost -- [LATENCY_MS] [CONCURRENCY]`

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use leasehold_actors::{
    domain::*,
    error::StoreError,
    ports::*,
    settings::*,
    supervision::{Supervision, WorkerParts},
    work::{LeaseContext, WorkOutcome},
};

const JOBS: i64 = 300_000;

struct Instantly {
    latency: Duration,
    next: AtomicI64,
    done: AtomicI64,
}

impl Instantly {
    async fn wait(&self) {
        if self.latency.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(self.latency).await;
        }
    }
}

#[async_trait]
impl LeaseStore for Instantly {
    async fn dispatch(&self, _: &Namespace, _: u32) -> Result<Dispatched, StoreError> {
        Ok(Dispatched { moved: 0, next_due: None })
    }
    async fn claim(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        self.wait().await;
        let first = self.next.fetch_add(i64::from(request.limit), Ordering::Relaxed);
        let grants = (first..(first + i64::from(request.limit)).min(JOBS))
            .map(|job| Grant {
                authority: Authority {
                    owner: request.owner.clone(),
                    job: JobId(job),
                    token: LeaseToken::generate(),
                    epoch: Epoch(1),
                },
                kind: JobKind::Handler,
                route: Route::handler("noop"),
                workflow: "adhoc".to_owned(),
                generation: 1,
                dispatch_attempt: 1,
                attempt: 1,
                lease: request.lease,
                definition: Arc::from("{}"),
                payload: Arc::from("null"),
                timeout: None,
                retry: RetryPolicy::default(),
                trace_parent: None,
                placement: None,
            })
            .collect();
        Ok(ClaimAnswer { grants })
    }
    async fn claim_listed(&self, _: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        Ok(Vec::new())
    }
    async fn renew(&self, _: &Authority) -> Result<Renewal, StoreError> {
        self.wait().await;
        Ok(Renewal::Held { remaining: Duration::from_secs(30), cancel_requested: false })
    }
    async fn attach(&self, _: &Authority, _: &NodeId, _: &ContainerId) -> Result<Attach, StoreError> {
        Ok(Attach::Attached)
    }
    async fn place_task(&self, _: &Authority, _: &TaskPlace) -> Result<TaskPlaced, StoreError> {
        Ok(TaskPlaced::NotLive)
    }
    async fn attach_task(
        &self,
        _: &Authority,
        _: &TaskKey,
        _: &NodeId,
        _: &ContainerId,
    ) -> Result<Attach, StoreError> {
        Ok(Attach::NotLive)
    }
    async fn unplace_task(&self, _: &Authority, _: &TaskKey) -> Result<TaskUnplaced, StoreError> {
        Ok(TaskUnplaced::NotLive)
    }
    async fn append_logs(&self, _: &Authority, _: &[LogBatch]) -> Result<LogAppend, StoreError> {
        Ok(LogAppend::Stored)
    }
    async fn log_offsets(&self, _: &Authority, _: Option<&TaskKey>) -> Result<StoredLogs, StoreError> {
        Ok(StoredLogs::NotLive)
    }
    async fn report_progress(&self, _: &Authority, _: &str) -> Result<Renewal, StoreError> {
        Ok(Renewal::NotLive)
    }
    async fn end(&self, _: &Authority, _: CommandId, _: &End) -> Result<Ended, StoreError> {
        self.wait().await;
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(Ended::Terminal(JobState::Completed))
    }
    async fn recover(&self, _: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        Ok(RecoverAnswer::default())
    }
    async fn postpone_recovery(&self, _: &Authority, _: Duration) -> Result<Postponed, StoreError> {
        Ok(Postponed::NotLive)
    }
    async fn reconcile(&self, _: &Authority) -> Result<Reconciliation, StoreError> {
        Ok(Reconciliation::Changed)
    }
}

struct Noop;

#[async_trait]
impl WorkRunner for Noop {
    async fn run(&self, _: Arc<Grant>, _: LeaseContext) -> WorkOutcome {
        WorkOutcome::Completed { exit_code: None, output: None }
    }
}

fn main() {
    let s = Duration::from_secs;
    actix::System::new().block_on(async {
        let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u32>().expect("a number"));
        let latency = Duration::from_millis(u64::from(numbers.next().unwrap_or(0)));
        let concurrency = numbers.next().unwrap_or(1000);
        let store = Arc::new(Instantly { latency, next: AtomicI64::new(0), done: AtomicI64::new(0) });
        let began = Instant::now();
        let worker = Supervision::start(WorkerParts {
            store: Arc::clone(&store) as Arc<dyn LeaseStore>,
            runner: Arc::new(Noop),
            start_node: Box::new(|_| unreachable!("no container")),
            results: None,
            on_stuck: Box::new(|_, _| {}),
            settings: ActorSettings {
                claim: ClaimSettings {
                    owner: Claimant {
                        namespace: Namespace::default(),
                        worker: WorkerId::new("w").expect("a name"),
                        process: ProcessId::generate(),
                    },
                    routes: Arc::from([Route::handler("noop")]),
                    concurrency,
                    batch: 500,
                    poll_interval: s(5),
                    facts: None,
                },
                timings: LeaseTimings {
                    lease: s(30),
                    renew_interval: s(10),
                    safety_margin: s(3),
                    store_timeout: s(3),
                    stop_grace: s(5),
                },
                retry_defaults: RetryPolicy::default(),
                recovery: RecoverySettings {
                    permits: 1,
                    batch: 100,
                    interval: s(15),
                    give_up: s(600),
                    loss_limit: 3,
                },
                dispatch: None,
            },
        })
        .expect("starts");
        while store.done.load(Ordering::Relaxed) < JOBS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let took = began.elapsed();
        let claims = worker.health().tally.claims_answered;
        println!(
            "{JOBS} jobs in {took:?}: {:.0} jobs/s, {:.2} us each, {claims} claims",
            JOBS as f64 / took.as_secs_f64(),
            took.as_secs_f64() * 1e6 / JOBS as f64,
        );
    });
}
