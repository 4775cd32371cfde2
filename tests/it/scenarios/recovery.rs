//! Recovery: workers are killed as processes, and others take over what they leave, containers on a real engine
//! among it.
//!
//! The large scene plays small in `make test`; `make proof` plays it in full: a hundred jobs, every setting at its
//! default.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use leasehold::{
    config::NodeSettings,
    docker::DockerEngine,
    node_agent,
    postgres::{PgStore, read::LogStreamName},
    protocol::{
        domain::{ContainerSpec, JobDefinition, JobId, Namespace, NewJob, OnOrphan},
        ports::{ContainerEngine as _, ContainerStatus},
    },
    workload::handler::{HandlerError, Job, LeaseHandle},
};
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::{
    in_process::{Running, worker},
    worker_process::WorkerProcess,
};
use crate::support::{
    database::TestDatabase,
    engine::{IMAGE, TestEngine},
    eventually::{eventually, pass},
    services,
    size::rounds,
};

const SOON: Duration = Duration::from_secs(60);

const SHORT_LEASE: &[(&str, &str)] = &[
    ("EXECUTION_WORKER_LEASE_DURATION", "4s"),
    ("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "800ms"),
    ("EXECUTION_WORKER_STORE_TIMEOUT", "1s"),
    ("EXECUTION_WORKER_SAFETY_MARGIN", "400ms"),
    ("SCENARIO_CONTAINERS", "1"),
];

/// A database, an engine, and the agent that keeps it as a node.
struct Scene {
    database: TestDatabase,
    store: PgStore,
    client: Client,
    engine: DockerEngine,
    agent: JoinHandle<()>,
}

impl Scene {
    async fn new(slots: u32) -> Self {
        let database = TestDatabase::create().await;
        let (store, client) = (database.store().await, database.client().await);
        client
            .batch_execute(
                "create table traces (job bigint, attempt integer, epoch bigint, pid bigint, what text,
                                      at timestamptz default clock_timestamp())",
            )
            .await
            .unwrap();
        let endpoint = services::docker_endpoint(1);
        // So that the image is there.
        TestEngine::at(&endpoint).await;
        let engine = DockerEngine::connect(&endpoint, None).unwrap();
        let settings = NodeSettings {
            namespace: Namespace::default(),
            node_id: "n1".to_owned(),
            endpoint,
            max_concurrency: slots,
            tls: None,
            heartbeat_interval: Duration::from_secs(1),
            heartbeat_ttl: Duration::from_secs(30),
            lost_after: Duration::from_secs(60),
            orphan_interval: Duration::from_secs(30),
            drain_grace: Duration::from_secs(1),
        };
        let agent = node_agent::run(settings, store.clone(), std::future::pending());
        let agent = tokio::spawn(async move { panic!("the agent ended: {:?}", agent.await) });
        let scene = Self { database, store, client, engine, agent };
        eventually(SOON, "the node is registered", async || {
            let nodes = scene.store.node_list(&Namespace::default()).await.unwrap();
            nodes.iter().any(|node| node.fresh).then_some(())
        })
        .await;
        scene
    }

    async fn submit(&self, job: NewJob) -> JobId {
        self.store.submit(&job).await.unwrap().job
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// State, attempt and failure code.
    async fn state(&self, job: JobId) -> (String, i32, Option<String>) {
        let sql = "select state, attempt, failure_code from leasehold.jobs_view where job_id = $1";
        let row = self.client.query_one(sql, &[&job.0]).await.unwrap();
        (row.get(0), row.get(1), row.get(2))
    }

    async fn ends(&self, job: JobId) -> (String, i32, Option<String>) {
        eventually(SOON, "the job ends", async || {
            let state = self.state(job).await;
            ["COMPLETED", "FAILED", "CANCELED"].contains(&state.0.as_str()).then_some(state)
        })
        .await
    }

    async fn output(&self, job: JobId) -> String {
        let (mut bytes, mut after) = (Vec::new(), 0);
        loop {
            let rows = self.store.read_logs(&Namespace::default(), job, after, 1000).await.unwrap();
            let Some(last) = rows.last() else { return String::from_utf8(bytes).unwrap() };
            after = last.seq;
            let out = rows.iter().filter(|row| row.stream == LogStreamName::Stdout);
            bytes.extend(out.flat_map(|row| row.data.clone()));
        }
    }

    async fn speaks(&self, job: JobId) {
        eventually(SOON, "the program writes", async || (!self.output(job).await.is_empty()).then_some(()))
            .await;
    }

    /// How the job's leases ended, in order.
    async fn story(&self, job: JobId) -> Vec<String> {
        let sql = "select how::text from leasehold.lease_history where job_id = $1 order by epoch";
        self.client.query(sql, &[&job.0]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    /// The fleet's containers.
    async fn containers(&self) -> Vec<ContainerStatus> {
        let fleet = self.store.fleet().await.unwrap();
        self.engine.list(&[("leasehold.fleet".to_owned(), fleet.to_string())]).await.unwrap()
    }

    async fn no_container_is_left(&self) {
        eventually(SOON, "every container is gone", async || {
            self.containers().await.is_empty().then_some(())
        })
        .await;
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.agent.abort();
    }
}

fn script(script: &str) -> NewJob {
    container(script, |_| {})
}

fn container(script: &str, change: impl FnOnce(&mut ContainerSpec)) -> NewJob {
    let mut spec = ContainerSpec {
        image: IMAGE.to_owned(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        network: Some("none".to_owned()),
        ..ContainerSpec::default()
    };
    change(&mut spec);
    NewJob::ad_hoc(JobDefinition::Container(spec))
}

/// Runs until it is told to stop.
const OBEDIENT: &str = "trap 'exit 0' TERM; echo begun; while :; do sleep 0.2; done";

// ---------------------------------------------------------------------------------------------------
// A worker with many jobs
// ---------------------------------------------------------------------------------------------------

/// How large the scene is.
struct Size {
    jobs: usize,
    survivors: usize,
    settings: Vec<(&'static str, &'static str)>,
    /// The longest time from a lease's expiry to its takeover.
    soon: Duration,
}

impl Size {
    fn asked_for() -> Self {
        if rounds(0, 1) == 1 {
            let settings = vec![("EXECUTION_WORKER_CONCURRENCY", "100"), ("SCENARIO_CONTAINERS", "1")];
            return Self { jobs: 100, survivors: 5, settings, soon: Duration::from_secs(2) };
        }
        let mut settings = SHORT_LEASE.to_vec();
        settings.push(("EXECUTION_WORKER_CONCURRENCY", "24"));
        // A figure is worth nothing on a machine that does other things beside.
        Self { jobs: 12, survivors: 2, settings, soon: Duration::from_secs(30) }
    }
}

/// A lease of the dead worker: its job's latest claim, and when it runs out by the database's clock, in seconds.
struct Left {
    claim: i64,
    expires: f64,
}

/// RC-05, SH-09: a worker is killed in the middle of its jobs, half of them containers; its row in `worker list` is
/// deleted, and one of the survivors bears its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jobs_of_a_killed_worker_are_recovered_in_time_and_none_of_them_fails() {
    let size = Size::asked_for();
    let half = size.jobs / 2;
    let scene = Scene::new(u32::try_from(size.jobs).unwrap()).await;
    let victim = WorkerProcess::start(&scene.database, "victim", &size.settings);
    for n in 0..size.jobs {
        let job =
            if n < half { script(OBEDIENT) } else { NewJob::handler("trace", &json!({ "ms": 600_000 })) };
        scene.submit(job).await;
    }
    let running = i64::try_from(size.jobs).unwrap();
    eventually(3 * SOON, "all of them run", async || {
        let begun = scene.number("select count(distinct job) from traces").await;
        let spoken = scene.number("select count(distinct job_id) from leasehold.job_logs").await;
        (begun + spoken == running).then_some(())
    })
    .await;
    // The survivors come later, so that they have none of these jobs.
    let survivors: Vec<_> = (0..size.survivors)
        .map(|n| {
            let name = if n == 0 { "victim".to_owned() } else { format!("survivor-{n}") };
            WorkerProcess::start(&scene.database, &name, &size.settings)
        })
        .collect();
    victim.signal(Signal::KILL);
    victim.wait();
    scene.client.batch_execute("delete from leasehold.workers where worker_id = 'victim'").await.unwrap();

    let left = leases_left(&scene.client).await;
    assert_eq!(left.len(), size.jobs, "no lease was lost before");
    let last_expiry = left.values().map(|left| left.expires).fold(0.0, f64::max);
    let lag = takeovers(&scene, &left).await;
    let (gone, settled) = settled(&scene, &left, last_expiry).await;
    println!(
        "{} jobs, {} survivors: takeover after expiry in ms: first {:.0}, median {:.0}, 95 % {:.0}, last {:.0}; \
         seconds after the last expiry: last container gone {gone:.1}, last job PENDING or ended {settled:.1}",
        size.jobs,
        size.survivors,
        lag[0] * 1000.0,
        lag[lag.len() / 2] * 1000.0,
        lag[lag.len() * 95 / 100] * 1000.0,
        lag[lag.len() - 1] * 1000.0,
    );
    assert!(lag[0] >= 0.0, "none before its expiry");
    assert!(lag[lag.len() - 1] <= size.soon.as_secs_f64(), "each soon after its expiry: {lag:?}");
    assert!(gone.max(settled) <= 60.0, "the last container gone, the last job settled");
    assert_eq!(scene.number("select count(*) from leasehold.ended where state = 'FAILED'").await, 0);
    let sql = "select count(*) from leasehold.lease_history where failure_code = 'lease_lost'";
    assert_eq!(scene.number(sql).await, running, "each is one loss");
    for survivor in survivors {
        survivor.signal(Signal::KILL);
        survivor.wait();
    }
    sweep(&scene).await;
}

/// The leases of the dead, once nothing of its own is on its way to the database any more.
async fn leases_left(client: &Client) -> HashMap<i64, Left> {
    let sql =
        "select job_id, claim_epoch, extract(epoch from lease_expires_at)::float8 from leasehold.leases";
    let mut before: Vec<(i64, f64)> = Vec::new();
    loop {
        let rows = client.query(sql, &[]).await.unwrap();
        let now: Vec<(i64, f64)> = rows.iter().map(|row| (row.get(0), row.get(2))).collect();
        if now == before {
            return rows
                .iter()
                .map(|row| (row.get(0), Left { claim: row.get(1), expires: row.get(2) }))
                .collect();
        }
        before = now;
        pass(Duration::from_millis(300)).await;
    }
}

/// How long after its expiry each was taken over, in seconds, sorted: by when the takeover was seen to be committed.
async fn takeovers(scene: &Scene, left: &HashMap<i64, Left>) -> Vec<f64> {
    let sql =
        "select job_id, epoch, extract(epoch from clock_timestamp())::float8 from leasehold.lease_history
               where how = 'expired'";
    let mut seen: HashMap<i64, f64> = HashMap::new();
    eventually(3 * SOON, "every lease is taken over", async || {
        for row in scene.client.query(sql, &[]).await.unwrap() {
            let (job, epoch, now): (i64, i64, f64) = (row.get(0), row.get(1), row.get(2));
            if left.get(&job).is_some_and(|left| left.claim == epoch) {
                seen.entry(job).or_insert(now);
            }
        }
        (seen.len() == left.len()).then_some(())
    })
    .await;
    let mut lag: Vec<f64> = seen.iter().map(|(job, at)| at - left[job].expires).collect();
    lag.sort_by(f64::total_cmp);
    lag
}

/// When the last container of the lost claims was gone, and when the last of their jobs was PENDING or had ended, in
/// seconds after the last expiry.
async fn settled(scene: &Scene, left: &HashMap<i64, Left>, last_expiry: f64) -> (f64, f64) {
    let (mut gone, mut done) = (None, None);
    let lost: Vec<i64> = left.values().map(|left| left.claim).collect();
    // The takeover's own lease has ended, however.
    let sql = "select count(distinct job_id) from leasehold.lease_history where how <> 'expired'";
    let wanted = i64::try_from(left.len()).unwrap();
    eventually(3 * SOON, "everything is cleaned up", async || {
        let clock = "select extract(epoch from clock_timestamp())::float8";
        if done.is_none() && scene.number(sql).await == wanted {
            done = Some(scene.client.query_one(clock, &[]).await.unwrap().get::<_, f64>(0) - last_expiry);
        }
        if gone.is_none() {
            let of_the_lost = |status: &ContainerStatus| {
                status.labels.iter().any(|(key, value)| {
                    key == "leasehold.epoch" && value.parse().is_ok_and(|epoch: i64| lost.contains(&epoch))
                })
            };
            if !scene.containers().await.iter().any(of_the_lost) {
                gone = Some(scene.client.query_one(clock, &[]).await.unwrap().get::<_, f64>(0) - last_expiry);
            }
        }
        gone.zip(done)
    })
    .await
}

/// Removes what the survivors ran when they were killed.
async fn sweep(scene: &Scene) {
    for container in scene.containers().await {
        scene.engine.remove(&container.id).await.unwrap();
    }
}

// ---------------------------------------------------------------------------------------------------
// Single jobs
// ---------------------------------------------------------------------------------------------------

/// `on_orphan: adopt`: the container never notices, its output has no gap, and its own exit decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_is_to_be_adopted_runs_on_through_the_deaths_of_two_workers() {
    const LINES: u32 = 120;
    let scene = Scene::new(4).await;
    let program = format!("n=0; while [ $n -lt {LINES} ]; do echo $n; n=$((n+1)); sleep 0.2; done; exit 7");
    let job = container(&program, |spec| spec.on_orphan = OnOrphan::Adopt);
    let first = WorkerProcess::start(&scene.database, "w0", SHORT_LEASE);
    let job = scene.submit(job).await;
    scene.speaks(job).await;
    let mut worker = first;
    for name in ["w1", "w2"] {
        let next = WorkerProcess::start(&scene.database, name, SHORT_LEASE);
        worker.signal(Signal::KILL);
        worker.wait();
        let before = scene.output(job).await.len();
        eventually(SOON, "its output goes on", async || {
            (scene.output(job).await.len() > before).then_some(())
        })
        .await;
        worker = next;
    }
    let (state, attempt, code) = scene.ends(job).await;
    assert_eq!((state.as_str(), attempt, code.as_deref()), ("FAILED", 1, Some("7")), "its own exit");
    let lines: String = (0..LINES).map(|n| format!("{n}\n")).collect();
    assert_eq!(scene.output(job).await, lines);
    let epochs = "select count(distinct epoch) from leasehold.job_logs";
    assert_eq!(scene.number(epochs).await, 1, "its epoch stays that of its claim");
    assert_eq!(scene.story(job).await, ["expired", "expired", "failed"]);
    worker.signal(Signal::TERM);
    worker.wait().assert_drained();
    scene.no_container_is_left().await;
}

/// What it did while nobody watched counts, and it is not done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_ended_while_its_worker_was_dead_keeps_its_outcome() {
    let scene = Scene::new(4).await;
    let victim = WorkerProcess::start(&scene.database, "w0", SHORT_LEASE);
    let fine = scene.submit(script("echo begun; sleep 2; echo done")).await;
    let wrong = scene.submit(script("echo begun; sleep 2; echo oh; exit 3")).await;
    for job in [fine, wrong] {
        scene.speaks(job).await;
    }
    victim.signal(Signal::KILL);
    victim.wait();
    let survivor = WorkerProcess::start(&scene.database, "w1", SHORT_LEASE);
    assert_eq!(scene.ends(fine).await, ("COMPLETED".to_owned(), 1, None));
    assert_eq!(scene.ends(wrong).await, ("FAILED".to_owned(), 1, Some("3".to_owned())));
    assert_eq!(scene.output(fine).await, "begun\ndone\n");
    assert_eq!(scene.output(wrong).await, "begun\noh\n");
    scene.no_container_is_left().await;
    survivor.signal(Signal::TERM);
    survivor.wait().assert_drained();
}

/// A cancel that nobody was left to see is carried out by whoever takes the job over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_whose_holder_is_dead_is_carried_out_by_recovery() {
    let scene = Scene::new(4).await;
    let victim = WorkerProcess::start(&scene.database, "w0", SHORT_LEASE);
    let contained = scene.submit(script(OBEDIENT)).await;
    let handler = scene.submit(NewJob::handler("trace", &json!({ "ms": 600_000 }))).await;
    scene.speaks(contained).await;
    eventually(SOON, "the handler begins", async || {
        (scene.number("select count(*) from traces").await > 0).then_some(())
    })
    .await;
    victim.signal(Signal::KILL);
    victim.wait();
    for job in [contained, handler] {
        scene.store.request_cancel(&Namespace::default(), job, Duration::from_secs(2)).await.unwrap();
    }
    let survivor = WorkerProcess::start(&scene.database, "w1", SHORT_LEASE);
    for job in [contained, handler] {
        assert_eq!(scene.ends(job).await.0, "CANCELED");
    }
    scene.no_container_is_left().await;
    survivor.signal(Signal::TERM);
    survivor.wait().assert_drained();
}

/// A job that kills its workers, again and again, is not tried for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_lost_three_times_in_a_row_ends_as_a_crash_loop() {
    let scene = Scene::new(4).await;
    let mut job = NewJob::handler("trace", &json!({ "ms": 600_000 }));
    (job.retry.max_system, job.retry.backoff_ms) = (Some(10), Some(0));
    let job = scene.submit(job).await;
    let began = Instant::now();
    for round in 1..=3_i64 {
        let victim = WorkerProcess::start(&scene.database, "w0", SHORT_LEASE);
        let begun = "select count(*) from traces where what = 'begin'";
        eventually(2 * SOON, "it begins once more", async || {
            (scene.number(begun).await == round).then_some(())
        })
        .await;
        victim.signal(Signal::KILL);
        victim.wait();
    }
    let survivor = WorkerProcess::start(&scene.database, "w1", SHORT_LEASE);
    let (state, attempt, code) = scene.ends(job).await;
    assert_eq!((state.as_str(), attempt, code.as_deref()), ("FAILED", 3, Some("crash_loop")));
    assert!(began.elapsed() >= Duration::from_secs(12), "each loss takes a lease");
    survivor.signal(Signal::TERM);
    survivor.wait().assert_drained();
}

/// CL-09: whoever takes the lease over need not know the handler. It gives the job back, and neither fails nor runs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_the_handler_takes_the_lease_over_and_leaves_the_job_to_one_that_has_it() {
    let scene = Scene::new(4).await;
    let victim = WorkerProcess::start(&scene.database, "w0", SHORT_LEASE);
    let mut job = NewJob::handler("trace", &json!({ "ms": 3_000 }));
    job.retry.backoff_ms = Some(0);
    let job = scene.submit(job).await;
    eventually(SOON, "it begins", async || {
        (scene.number("select count(*) from traces").await > 0).then_some(())
    })
    .await;
    victim.signal(Signal::KILL);
    victim.wait();
    let other = |_: Job<()>, _: LeaseHandle| std::future::ready(Ok::<_, HandlerError>(()));
    let without = Running::start(worker(&scene.database).handler("other", other)).await;
    eventually(SOON, "the job is given back", async || {
        (scene.state(job).await.0 == "QUEUED" && scene.story(job).await.len() == 2).then_some(())
    })
    .await;
    assert_eq!(scene.story(job).await, ["expired", "retrying"]);
    let with = WorkerProcess::start(&scene.database, "w1", SHORT_LEASE);
    assert_eq!(scene.ends(job).await, ("COMPLETED".to_owned(), 2, None));
    assert_eq!(scene.story(job).await, ["expired", "retrying", "completed"]);
    with.signal(Signal::TERM);
    with.wait().assert_drained();
    without.drain().await;
}
