//! A node is a lease too: what runs on it is dead before PostgreSQL may call the node lost, whatever its agent
//! was kept from.

use std::{
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use chrono::{DateTime, Utc};
use leasehold::{
    config::NodeSettings,
    node_agent,
    postgres::{PgStore, nodes::NodeRow},
    protocol::{
        domain::{ContainerId, Namespace},
        ports::ContainerState,
    },
};
use rustix::process::{Pid, Signal, kill_process};

use super::yard::Yard;
use crate::support::{
    database::{settings, with_database},
    engine::PrivateEngine,
    eventually::{eventually, never, pass},
    proxy::Proxy,
    services,
};

const SOON: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(600);
/// A tenth of it is left for the killing, which takes a busy machine its time.
const LOST_AFTER: Duration = Duration::from_secs(20);
/// Ends well when it is asked to: only a kill makes 137 of it.
const RUN: &str = "trap 'exit 0' TERM; while :; do sleep 0.2; done";

fn node_settings(endpoint: String) -> NodeSettings {
    NodeSettings {
        namespace: Namespace::default(),
        node_id: "n1".to_owned(),
        endpoint,
        max_concurrency: 10,
        tls: None,
        heartbeat_interval: Duration::from_millis(200),
        heartbeat_ttl: Duration::from_secs(2),
        lost_after: LOST_AFTER,
        // The reaper is not what is tested here.
        orphan_interval: Duration::from_secs(3600),
        drain_grace: Duration::from_secs(1),
    }
}

async fn row(store: &PgStore) -> Option<NodeRow> {
    store.node_list(&Namespace::default()).await.ok()?.into_iter().next()
}

async fn ready(store: &PgStore) -> NodeRow {
    eventually(SOON, "the node is READY and fresh", async || {
        row(store).await.filter(|row| row.fresh && row.state.as_str() == "READY")
    })
    .await
}

/// READY for good: a heartbeat that was on its way for long says READY as well, for a moment, when it arrives at
/// last. Three seconds later there is none of that time any more.
async fn ready_again(store: &PgStore) {
    let first = ready(store).await.heartbeat_at;
    eventually(SOON, "the node stays READY", async || {
        let node = row(store).await?;
        let later = node.heartbeat_at > first + Duration::from_secs(3);
        (later && node.fresh && node.state.as_str() == "READY").then_some(())
    })
    .await;
}

/// Two containers of the node, under live leases, and one of a stranger.
struct Workload {
    ours: Vec<ContainerId>,
    stranger: ContainerId,
}

impl Workload {
    async fn start(yard: &Yard) -> Self {
        let mut ours = Vec::new();
        for grant in &yard.claim(2, RUN, LEASE).await {
            ours.push(yard.attached(grant).await);
        }
        let stranger = yard.engine.started(&yard.engine.script(RUN)).await;
        Self { ours, stranger }
    }

    /// Waits until ours are dead and marked; answers when the last one died.
    async fn killed(&self, yard: &Yard) -> DateTime<Utc> {
        let mut last = DateTime::<Utc>::MIN_UTC;
        for id in &self.ours {
            let status = eventually(SOON, "the container is dead", async || {
                let status = yard.engine.status(id).await;
                matches!(status.state, ContainerState::Exited { .. }).then_some(status)
            })
            .await;
            assert!(matches!(status.state, ContainerState::Exited { code: 137, .. }), "{status:?}");
            assert!(status.name.ends_with(".stopped"), "marked before it was killed: {status:?}");
            last = last.max(status.finished_at.expect("it has ended"));
        }
        assert!(yard.runs(&self.stranger).await, "a stranger's is not ours to kill");
        last
    }
}

/// When PostgreSQL calls the node lost, by its own clock.
async fn lost_at(yard: &Yard) -> DateTime<Utc> {
    let sql = "select heartbeat_at + lost_after_ms * interval '1 ms' from leasehold.nodes";
    yard.client.query_one(sql, &[]).await.unwrap().get(0)
}

/// The engines of the tests and their PostgreSQL have one clock: the machine's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_cut_off_from_its_database_has_killed_its_containers_before_it_counts_as_lost() {
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    let proxy = Proxy::before(&services::database_url()).await;
    let mut by_proxy = settings(&proxy.url(&with_database(&services::database_url(), yard.database.name())));
    by_proxy.store_timeout = Duration::from_secs(1);
    let store = PgStore::connect(&by_proxy, tokio::runtime::Handle::current()).await.unwrap();
    let agent = tokio::spawn(node_agent::run(
        node_settings(yard.engine.endpoint.clone()),
        store,
        std::future::pending(),
    ));
    ready(&yard.store).await;
    let workload = Workload::start(&yard).await;

    proxy.stall(true);
    let killed = workload.killed(&yard).await;
    let lost = lost_at(&yard).await;
    assert!(killed < lost, "killed at {killed}, may be called lost from {lost}");
    assert!(killed > lost - LOST_AFTER / 2, "not before it had to be: {killed}, {lost}");

    // It comes back by itself, and what is placed there then is left alone.
    proxy.stall(false);
    ready_again(&yard.store).await;
    let fresh = yard.attached(&yard.claim(1, RUN, LEASE).await[0]).await;
    never(Duration::from_secs(3), "the fence went on killing", async || {
        (!yard.runs(&fresh).await).then_some(())
    })
    .await;
    assert!(!agent.is_finished());
    agent.abort();
    yard.clear().await;
}

/// Every thread that the agent's tasks could run on stands still, from before the deadline until it is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_every_async_thread_is_blocked_still_kills_in_time() {
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    let release = Arc::new(AtomicBool::new(false));
    let (block, blocked) = mpsc::channel::<()>();
    let (url, settings_of_node) = (
        with_database(&services::database_url(), yard.database.name()),
        node_settings(yard.engine.endpoint.clone()),
    );
    let until = Arc::clone(&release);
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = PgStore::connect(&settings(&url), tokio::runtime::Handle::current()).await.unwrap();
            let agent = tokio::spawn(node_agent::run(settings_of_node, store, std::future::pending()));
            while blocked.try_recv().is_err() {
                pass(Duration::from_millis(20)).await;
            }
            while !until.load(Ordering::SeqCst) {
                std::thread::yield_now();
                std::thread::park_timeout(Duration::from_millis(20));
            }
            // It goes on where it was.
            while blocked.try_recv().is_err() {
                assert!(!agent.is_finished());
                pass(Duration::from_millis(20)).await;
            }
            agent.abort();
        });
    });
    ready(&yard.store).await;
    let workload = Workload::start(&yard).await;
    block.send(()).unwrap();
    let killed = workload.killed(&yard).await;
    let lost = lost_at(&yard).await;
    assert!(killed < lost, "killed at {killed}, may be called lost from {lost}");
    release.store(true, Ordering::SeqCst);
    ready(&yard.store).await;
    block.send(()).unwrap();
    tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
    yard.clear().await;
}

struct NodeProcess(Child);

impl NodeProcess {
    fn start(yard: &Yard, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command
            .args(["node", "--node-id", "n1", "--docker-endpoint", &yard.engine.endpoint])
            .env("DATABASE_URL", yard.database.url())
            .env("RUNTIME_HEARTBEAT_INTERVAL", "200ms")
            .env("RUNTIME_HEARTBEAT_TTL", "1s")
            .env("RUNTIME_LOST_AFTER", "3s")
            .env("RUNTIME_ORPHAN_INTERVAL", "1h")
            .env("LEASEHOLD_LOG", "warn")
            .envs(settings.iter().copied())
            .stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Frozen past every time: too late to be in time, so what ran here is killed as soon as it wakes up, also though
/// its next heartbeat is confirmed at once; and then it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_was_frozen_and_wakes_up_kills_what_ran_meanwhile_and_is_ready_again() {
    let yard = Yard::at(&services::docker_endpoint(2)).await;
    let node = NodeProcess::start(&yard, &[]);
    ready(&yard.store).await;
    let workload = Workload::start(&yard).await;
    node.signal(Signal::STOP);
    eventually(SOON, "the node counts as lost", async || row(&yard.store).await.filter(|row| row.lost)).await;
    for id in &workload.ours {
        assert!(yard.runs(id).await, "nobody can act while it is frozen");
    }
    node.signal(Signal::CONT);
    workload.killed(&yard).await;
    ready_again(&yard.store).await;
    let fresh = yard.attached(&yard.claim(1, RUN, LEASE).await[0]).await;
    never(Duration::from_secs(3), "the fence went on killing", async || {
        (!yard.runs(&fresh).await).then_some(())
    })
    .await;
    drop(node);
    yard.clear().await;
}

/// Frozen for so long that another agent serves the node by now, whose containers bear the same labels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_was_replaced_while_it_was_frozen_touches_nothing_when_it_wakes_up() {
    let yard = Yard::at(&services::docker_endpoint(2)).await;
    let mut old = NodeProcess::start(&yard, &[]);
    ready(&yard.store).await;
    old.signal(Signal::STOP);
    eventually(SOON, "the node counts as lost", async || row(&yard.store).await.filter(|row| row.lost)).await;
    let new = NodeProcess::start(&yard, &[]);
    ready(&yard.store).await;
    let workload = Workload::start(&yard).await;
    old.signal(Signal::CONT);
    let status = eventually(SOON, "the old agent ends", async || old.0.try_wait().unwrap()).await;
    assert!(!status.success(), "it says that its node was taken away");
    for id in &workload.ours {
        assert!(yard.runs(id).await);
    }
    drop(new);
    yard.clear().await;
}

/// An engine that does not answer when the time is over is asked until it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_behind_a_frozen_engine_are_killed_as_soon_as_it_answers() {
    let engine = PrivateEngine::start(&[]).await;
    let yard = Yard::at(&engine.endpoint()).await;
    let proxy = Proxy::before(&services::database_url()).await;
    let mut by_proxy = settings(&proxy.url(&with_database(&services::database_url(), yard.database.name())));
    by_proxy.store_timeout = Duration::from_secs(1);
    let store = PgStore::connect(&by_proxy, tokio::runtime::Handle::current()).await.unwrap();
    let mut quick = node_settings(engine.endpoint());
    quick.lost_after = Duration::from_secs(4);
    let agent = tokio::spawn(node_agent::run(quick, store, std::future::pending()));
    ready(&yard.store).await;
    let workload = Workload::start(&yard).await;
    engine.freeze();
    proxy.stall(true);
    eventually(SOON, "the node counts as lost", async || row(&yard.store).await.filter(|row| row.lost)).await;
    engine.thaw();
    workload.killed(&yard).await;
    assert!(!agent.is_finished());
    // The database is back first this time: nothing is placed there until all is dead.
    proxy.stall(false);
    ready(&yard.store).await;
    agent.abort();
    yard.clear().await;
}
