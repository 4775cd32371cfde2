//! Workers that are stopped (SIGSTOP) for twice the lease and then go on, as if nothing had happened.
//!
//! Both kinds of work write ticks to a ledger outside of everything, a line each. It is built as a fenced resource:
//! of each job it knows the highest epoch that has written, and refuses a tick of a lower one.
//!
//! The handler here never looks at its lease and blocks its thread: nothing can end it, so it does write after
//! the wake-up, and it is the ledger that turns it away. A container is killed by whoever takes its job over, so
//! that ticks of two epochs never interleave in the first place.

use std::{
    collections::{BTreeMap, HashMap},
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use leasehold::{
    config::NodeSettings,
    node_agent,
    postgres::PgStore,
    protocol::{
        domain::{
            CommandId, ContainerId, ContainerSpec, Epoch, Failure, FailureKind, JobDefinition, JobId,
            LeaseToken, Namespace, NewJob, NodeId, ProcessId, PullPolicy, RetryPolicy, WorkerId,
        },
        ports::{
            Attach, Authority, Claimant, End, Ended, LeaseStore as _, LogAppend, LogBatch, LogStream,
            Postponed, Reconciliation, Renewal, StoredLogs,
        },
    },
};
use rustix::process::Signal;
use tokio_postgres::Client;

use super::worker_process::WorkerProcess;
use crate::support::{
    database::TestDatabase,
    engine::{IMAGE, TestEngine},
    eventually::{eventually, pass},
    services, size,
};

const SOON: Duration = Duration::from_secs(120);
const LEASE: Duration = Duration::from_secs(2);
/// Long enough to be frozen in the middle and to go on for a while after that.
const TICKS: u32 = 50;

/// The same for every worker here: the shortest lease that there is.
const SETTINGS: [(&str, &str); 9] = [
    ("EXECUTION_WORKER_LEASE_DURATION", "2s"),
    ("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "400ms"),
    ("EXECUTION_WORKER_STORE_TIMEOUT", "500ms"),
    ("EXECUTION_WORKER_SAFETY_MARGIN", "200ms"),
    ("EXECUTION_WORKER_RECOVERY_INTERVAL", "1s"),
    ("EXECUTION_WORKER_LOSS_LIMIT", "100"),
    ("EXECUTION_WORKER_SYSTEM_RETRY_LIMIT", "100"),
    ("EXECUTION_WORKER_POLL_INTERVAL", "500ms"),
    ("EXECUTION_WORKER_CONCURRENCY", "4"),
];

#[derive(Debug, Clone, Copy)]
struct Tick {
    epoch: i64,
    /// Hundredths of a second since the machine started, by the writer.
    at: u64,
    accepted: bool,
}

#[derive(Debug, Clone)]
struct Ledger {
    address: SocketAddr,
    book: Arc<Mutex<HashMap<i64, Vec<Tick>>>>,
}

impl Ledger {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, book) = (listener.local_addr().unwrap(), Arc::default());
        let shared: Arc<Mutex<HashMap<i64, Vec<Tick>>>> = Arc::clone(&book);
        std::thread::spawn(move || {
            for writer in listener.incoming().flatten() {
                let book = Arc::clone(&shared);
                std::thread::spawn(move || {
                    for line in BufReader::new(writer).lines().map_while(Result::ok) {
                        let words: Vec<&str> = line.split_whitespace().collect();
                        let [job, epoch, at] = words[..] else { continue };
                        let (Ok(job), Ok(epoch)) = (job.parse::<i64>(), epoch.parse::<i64>()) else {
                            continue;
                        };
                        let Ok(at) = at.replace('.', "").parse::<u64>() else { continue };
                        let mut book = book.lock().unwrap();
                        let ticks = book.entry(job).or_default();
                        let accepted = ticks.iter().all(|earlier| earlier.epoch <= epoch);
                        ticks.push(Tick { epoch, at, accepted });
                    }
                });
            }
        });
        Self { address, book }
    }

    fn of(&self, job: JobId) -> Vec<Tick> {
        self.book.lock().unwrap().get(&job.0).cloned().unwrap_or_default()
    }

    fn refused(&self, job: JobId) -> usize {
        self.of(job).iter().filter(|tick| !tick.accepted).count()
    }

    fn highest(&self, job: JobId) -> Option<i64> {
        self.of(job).iter().map(|tick| tick.epoch).max()
    }
}

struct Place {
    database: TestDatabase,
    store: PgStore,
    client: Client,
    ledger: Ledger,
}

impl Place {
    async fn new() -> Self {
        let database = TestDatabase::create().await;
        let (store, client) = (database.store().await, database.client().await);
        Self { database, store, client, ledger: Ledger::open() }
    }

    fn pair(&self, names: [&'static str; 2], containers: bool) -> HashMap<&'static str, WorkerProcess> {
        let ledger = self.ledger.address.to_string();
        let mut settings = SETTINGS.to_vec();
        settings.push(("SCENARIO_LEDGER", &ledger));
        settings.push(("SCENARIO_CONTAINERS", if containers { "1" } else { "0" }));
        names.map(|name| (name, WorkerProcess::start(&self.database, name, &settings))).into()
    }

    async fn submit(&self, mut job: NewJob) -> JobId {
        job.retry =
            RetryPolicy { max_system: Some(100), backoff_ms: Some(1), backoff_cap_ms: Some(1), ..job.retry };
        self.store.submit(&job).await.unwrap().job
    }

    /// Who holds a job under this epoch, with all that proves it.
    async fn holder(&self, job: JobId) -> Option<Authority> {
        let sql = "select worker_id, process_id, token, epoch from leasehold.leases where job_id = $1";
        let row = self.client.query_opt(sql, &[&job.0]).await.unwrap()?;
        let owner = Claimant {
            namespace: Namespace::default(),
            worker: WorkerId::new(row.get::<_, String>(0)).unwrap(),
            process: ProcessId(row.get(1)),
        };
        let (token, epoch) = (LeaseToken::from_store(row.get(2)), Epoch(row.get(3)));
        Some(Authority { owner, job, token, epoch })
    }

    /// Freezes the holder of a job that writes, until a later epoch writes, and lets it go on. Answers what the
    /// holder had in its hands.
    async fn freeze_the_holder(&self, job: JobId, pair: &HashMap<&'static str, WorkerProcess>) -> Authority {
        let first = eventually(SOON, "it writes", async || self.ledger.highest(job)).await;
        let stale = self.holder(job).await.expect("it runs");
        let frozen = &pair[stale.owner.worker.as_str()];
        frozen.signal(Signal::STOP);
        pass(2 * LEASE).await;
        let later =
            async || self.ledger.highest(job).filter(|epoch| *epoch > first.max(stale.epoch.0)).map(drop);
        eventually(SOON, "a later epoch writes", later).await;
        frozen.signal(Signal::CONT);
        stale
    }

    async fn completes(&self, job: JobId) {
        eventually(SOON, "the job is completed", async || {
            let detail = self.store.show_job(&Namespace::default(), job).await.unwrap()?;
            assert!(
                !detail.row.state.is_terminal() || detail.row.state.as_str() == "COMPLETED",
                "{:?}",
                detail.row
            );
            detail.row.state.is_terminal().then_some(())
        })
        .await;
    }

    /// Makes every call that there is under a lease with what a woken worker has in its hands; answers how many.
    async fn everything_is_refused(&self, stale: &Authority) -> usize {
        let (store, node) = (&self.store, NodeId::new("n1").unwrap());
        let container = ContainerId::new("stale").unwrap();
        let batch = LogBatch {
            task: None,
            stream: LogStream::Stdout,
            first_byte: 0,
            data: Bytes::from_static(b"late"),
        };
        assert_eq!(store.renew(stale).await.unwrap(), Renewal::NotLive);
        assert_eq!(store.attach(stale, &node, &container).await.unwrap(), Attach::NotLive);
        assert_eq!(store.append_logs(stale, &[batch]).await.unwrap(), LogAppend::NotLive);
        assert_eq!(store.log_offsets(stale, None).await.unwrap(), StoredLogs::NotLive);
        assert_eq!(store.report_progress(stale, "1").await.unwrap(), Renewal::NotLive);
        let postponed = store.postpone_recovery(stale, Duration::from_secs(1)).await.unwrap();
        assert_eq!(postponed, Postponed::NotLive);
        let standing = store.reconcile(stale).await.unwrap();
        assert!(!matches!(standing, Reconciliation::Live { .. }), "{standing:?}");
        let defaults = RetryPolicy {
            max_user: Some(1),
            max_system: Some(1),
            max_timeout: Some(1),
            backoff_ms: Some(1),
            backoff_cap_ms: Some(1),
        };
        let ends = [
            End::Complete { exit_code: Some(0), output: None },
            End::Fail { failure: Failure::new(FailureKind::User, "late", "too late"), defaults },
            End::Cancel,
            End::Release { delay: Duration::ZERO, reason: "drain" },
            End::Reschedule {
                route: None,
                delay: Duration::ZERO,
                payload: None,
                wake: Vec::new(),
                publish: None,
            },
            End::Lost { defaults, loss_limit: 1, message: "late".to_owned() },
        ];
        let calls = 7 + ends.len();
        for end in ends {
            let ended = store.end(stale, CommandId::generate(), &end).await.unwrap();
            assert_eq!(ended, Ended::NotLive, "{end:?}");
        }
        calls
    }

    /// What the stale epoch left behind after its lease: nothing.
    async fn left_no_trace(&self, stale: &Authority) {
        let sql = "select how::text, worker_id from leasehold.lease_history where job_id = $1 and epoch = $2";
        let row = self.client.query_one(sql, &[&stale.job.0, &stale.epoch.0]).await.unwrap();
        assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("expired", stale.owner.worker.as_str()));
        let ended = "select epoch from leasehold.ended where job_id = $1";
        let epoch: i64 = self.client.query_one(ended, &[&stale.job.0]).await.unwrap().get(0);
        assert!(epoch > stale.epoch.0);
    }
}

fn drain(pair: HashMap<&'static str, WorkerProcess>) {
    for (_, worker) in pair {
        worker.signal(Signal::TERM);
        worker.wait().assert_drained();
    }
}

/// Of a fenced resource: behind the first tick of an epoch none of a lower one was accepted.
fn assert_fenced(ticks: &[Tick]) {
    let mut highest = 0;
    for tick in ticks.iter().filter(|tick| tick.accepted) {
        assert!(tick.epoch >= highest, "a tick of an older epoch was accepted: {ticks:?}");
        highest = tick.epoch;
    }
}

/// "SIGSTOP for twice the lease, then SIGCONT": 50 times in the long form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_was_frozen_is_refused_by_the_database_and_by_the_ledger() {
    let place = Place::new().await;
    let pair = place.pair(["h1", "h2"], false);
    let (rounds, begun) = (size::rounds(3, 50), Instant::now());
    let (mut calls, mut refused, mut accepted) = (0, 0, 0);
    for _ in 0..rounds {
        let job = place.submit(NewJob::handler("ticking", &serde_json::json!({ "ms": TICKS * 100 }))).await;
        let stale = place.freeze_the_holder(job, &pair).await;
        calls += place.everything_is_refused(&stale).await;
        place.completes(job).await;
        // It knows nothing of leases and writes on, into the ledger's refusal.
        eventually(SOON, "the ledger refuses it", async || (place.ledger.refused(job) > 0).then_some(()))
            .await;
        place.left_no_trace(&stale).await;
        let ticks = place.ledger.of(job);
        assert_fenced(&ticks);
        refused += place.ledger.refused(job);
        accepted += ticks.iter().filter(|tick| tick.accepted).count();
    }
    println!(
        "HANDLER: frozen {rounds} times for twice the lease in {:?}: {calls} calls of the woken worker made, all \
         refused; the ledger accepted {accepted} ticks and refused {refused}, all of older epochs",
        begun.elapsed()
    );
    drain(pair);
}

/// The same for containers: whoever takes the job over ends the old one first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ticks_of_two_epochs_of_a_container_never_interleave_when_its_worker_is_frozen() {
    let place = Place::new().await;
    let engine = TestEngine::at(&services::docker_endpoint(2)).await;
    let settings = NodeSettings {
        namespace: Namespace::default(),
        node_id: "n1".to_owned(),
        endpoint: engine.endpoint.clone(),
        max_concurrency: 8,
        tls: None,
        heartbeat_interval: Duration::from_millis(500),
        heartbeat_ttl: Duration::from_secs(30),
        lost_after: Duration::from_secs(120),
        orphan_interval: Duration::from_secs(1),
        drain_grace: Duration::from_secs(1),
    };
    let agent = tokio::spawn(node_agent::run(settings, place.store.clone(), std::future::pending()));
    let pair = place.pair(["c1", "c2"], true);
    let port = place.ledger.address.port();
    let script = format!(
        "i=0; while [ $i -lt {TICKS} ]; do i=$((i+1)); read up idle </proc/uptime; \
         echo \"$LEASEHOLD_JOB_ID $LEASEHOLD_FENCING_EPOCH $up\"; sleep 0.1; done | nc 127.0.0.1 {port}"
    );
    let spec = ContainerSpec {
        image: IMAGE.to_owned(),
        command: vec!["sh".to_owned(), "-c".to_owned(), script],
        network: Some("host".to_owned()),
        stop_grace_ms: Some(300),
        pull: PullPolicy::Never,
        ..ContainerSpec::default()
    };
    let (rounds, begun) = (size::rounds(3, 50), Instant::now());
    let (mut calls, mut ticks, mut epochs) = (0, 0, 0);
    for _ in 0..rounds {
        let job = place.submit(NewJob::ad_hoc(JobDefinition::Container(spec.clone()))).await;
        let stale = place.freeze_the_holder(job, &pair).await;
        calls += place.everything_is_refused(&stale).await;
        place.completes(job).await;
        place.left_no_trace(&stale).await;
        let written = place.ledger.of(job);
        let mut spans: BTreeMap<i64, (u64, u64)> = BTreeMap::new();
        for tick in &written {
            let span = spans.entry(tick.epoch).or_insert((tick.at, tick.at));
            *span = (span.0.min(tick.at), span.1.max(tick.at));
        }
        assert!(spans.len() >= 2, "{written:?}");
        let spans: Vec<(u64, u64)> = spans.into_values().collect();
        assert!(
            spans.windows(2).all(|two| two[0].1 <= two[1].0),
            "ticks of two epochs interleave: {spans:?} {written:?}"
        );
        ticks += written.len();
        epochs += spans.len();
    }
    println!(
        "CONTAINER: frozen {rounds} times for twice the lease in {:?}: {calls} calls of the woken worker made, all \
         refused; {ticks} ticks of {epochs} epochs, none interleaved",
        begun.elapsed()
    );
    drain(pair);
    assert!(!agent.is_finished());
    let fleet = place.store.fleet().await.unwrap().to_string();
    let label = ("leasehold.fleet".to_owned(), fleet);
    eventually(SOON, "no container is left", async || {
        use leasehold::protocol::ports::ContainerEngine as _;
        engine.engine.list(std::slice::from_ref(&label)).await.unwrap().is_empty().then_some(())
    })
    .await;
    agent.abort();
}
