//! The agent of a runtime node, with a real engine and a real database.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::{
    config::NodeSettings,
    node_agent::{self, NodeError, NodeExit},
    postgres::{
        PgStore,
        nodes::{NodeRow, NodeState},
    },
    protocol::domain::{Namespace, NodeId},
};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::support::{
    database::TestDatabase,
    engine::PrivateEngine,
    engine_proxy::{Action, EngineProxy},
    eventually::{eventually, never},
    services,
};

const SOON: Duration = Duration::from_secs(20);

fn settings(endpoint: String) -> NodeSettings {
    NodeSettings {
        namespace: Namespace::default(),
        node_id: "n1".to_owned(),
        endpoint,
        max_concurrency: 3,
        tls: None,
        heartbeat_interval: Duration::from_millis(200),
        heartbeat_ttl: Duration::from_secs(2),
        lost_after: Duration::from_secs(10),
        orphan_interval: Duration::from_secs(30),
        drain_grace: Duration::from_secs(30),
    }
}

/// An agent in a task, with the signal that ends it.
struct Running {
    task: JoinHandle<Result<NodeExit, NodeError>>,
    stop: Option<oneshot::Sender<()>>,
}

impl Running {
    fn start(settings: NodeSettings, store: PgStore) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(node_agent::run(settings, store, async {
            let _ = stopped.await;
        }));
        Self { task, stop: Some(stop) }
    }

    fn terminate(&mut self) {
        self.stop.take().expect("terminated once").send(()).expect("the agent runs");
    }

    async fn end(self) -> Result<NodeExit, NodeError> {
        tokio::time::timeout(SOON, self.task).await.expect("the agent ends").unwrap()
    }
}

async fn row(store: &PgStore) -> Option<NodeRow> {
    store.node_list(&Namespace::default()).await.unwrap().into_iter().next()
}

async fn reaches(store: &PgStore, state: NodeState) -> NodeRow {
    eventually(SOON, &format!("the node is {}", state.as_str()), async || {
        row(store).await.filter(|row| row.state == state)
    })
    .await
}

#[tokio::test]
async fn a_node_is_registered_with_what_its_engine_says_and_stays_fresh() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let agent = Running::start(settings(services::docker_endpoint(1)), store.clone());
    let first = reaches(&store, NodeState::Ready).await;
    assert_eq!((first.slots, first.slots_used, first.incarnation), (3, 0, 1));
    assert_eq!(first.os, "linux");
    assert!(first.fresh && first.cpu_millis >= 1000 && first.memory_bytes > 0 && !first.engine_id.is_empty());
    eventually(SOON, "it beats on", async || {
        row(&store).await.filter(|row| row.heartbeat_at > first.heartbeat_at + Duration::from_secs(1))
    })
    .await;
    agent.task.abort();
}

#[tokio::test]
async fn a_node_whose_engine_is_away_is_unhealthy_and_ready_again_by_itself() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let mut engine = PrivateEngine::start(&[]).await;
    let agent = Running::start(settings(engine.endpoint()), store.clone());
    let before = reaches(&store, NodeState::Ready).await;

    engine.kill();
    let ill = reaches(&store, NodeState::Unhealthy).await;
    assert!(ill.reason.is_some_and(|reason| !reason.is_empty()));
    assert!(ill.fresh, "the agent itself is well");

    engine.boot().await;
    let after = reaches(&store, NodeState::Ready).await;
    assert_eq!(after.reason, None);
    assert_eq!((&after.engine_id, after.incarnation), (&before.engine_id, before.incarnation));

    // Another engine at the same endpoint is another incarnation.
    engine.stop();
    engine.forget_identity();
    engine.boot().await;
    let other = eventually(SOON, "the new engine is registered", async || {
        row(&store).await.filter(|row| row.incarnation > before.incarnation)
    })
    .await;
    assert_eq!(other.state, NodeState::Ready);
    assert_ne!(other.engine_id, after.engine_id);
    assert!(!agent.task.is_finished());
    agent.task.abort();
}

/// DK-31
#[tokio::test]
async fn an_engine_that_no_longer_speaks_our_version_makes_its_node_unhealthy_and_says_so() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let refusing = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&refusing);
    let proxy = EngineProxy::start(&services::docker_endpoint(1), move |_| {
        let words = "client version 1.41 is too old. Minimum supported API version is 1.44";
        match now.load(Ordering::SeqCst) {
            true => Action::Answer(400, format!(r#"{{"message":"{words}"}}"#)),
            false => Action::Forward,
        }
    })
    .await;
    let agent = Running::start(settings(proxy.endpoint.clone()), store.clone());
    reaches(&store, NodeState::Ready).await;
    refusing.store(true, Ordering::SeqCst);
    let ill = reaches(&store, NodeState::Unhealthy).await;
    assert!(ill.reason.is_some_and(|reason| reason.contains("1.44")));
    refusing.store(false, Ordering::SeqCst);
    reaches(&store, NodeState::Ready).await;
    assert!(!agent.task.is_finished());
    agent.task.abort();
}

#[tokio::test]
async fn the_name_of_a_live_node_is_refused_and_that_of_a_dead_one_is_taken_over() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let first = Running::start(settings(services::docker_endpoint(1)), store.clone());
    reaches(&store, NodeState::Ready).await;

    let mut elsewhere = settings(services::docker_endpoint(2));
    let error = Running::start(elsewhere.clone(), store.clone()).end().await.expect_err("the name is in use");
    assert!(matches!(error, NodeError::LiveElsewhere { .. }), "{error}");
    assert!(error.to_string().contains(&services::docker_endpoint(1)), "{error}");
    assert_eq!(row(&store).await.unwrap().endpoint, services::docker_endpoint(1), "nothing was changed");

    // A crash says no farewell.
    first.task.abort();
    elsewhere.heartbeat_ttl = Duration::from_secs(5);
    let second = Running::start(elsewhere, store.clone());
    let taken = eventually(SOON, "the name is taken over", async || {
        row(&store).await.filter(|row| row.endpoint == services::docker_endpoint(2))
    })
    .await;
    assert_eq!((taken.incarnation, taken.state), (2, NodeState::Ready));
    second.task.abort();
}

#[tokio::test]
async fn a_shutdown_takes_no_more_jobs_and_ends_when_the_last_one_has() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let client = database.client().await;
    let mut agent = Running::start(settings(services::docker_endpoint(1)), store.clone());
    reaches(&store, NodeState::Ready).await;
    client
        .batch_execute("insert into leasehold.node_slots (namespace, node_id, slot, job_id) values ('default', 'n1', 1, 7)")
        .await
        .unwrap();

    agent.terminate();
    reaches(&store, NodeState::Draining).await;
    never(Duration::from_secs(1), "it ended under a running job", async || {
        agent.task.is_finished().then_some(())
    })
    .await;
    assert!(row(&store).await.unwrap().fresh, "it beats on while it drains");

    client.batch_execute("delete from leasehold.node_slots").await.unwrap();
    assert_eq!(agent.end().await.unwrap(), NodeExit::Drained);
    let left = row(&store).await.unwrap();
    assert_eq!(left.state, NodeState::Draining);
    assert!(!left.fresh, "a farewell frees the name at once");

    // So that the next process need not wait for the heartbeat to lapse.
    let next = Running::start(settings(services::docker_endpoint(1)), store.clone());
    reaches(&store, NodeState::Ready).await;
    next.task.abort();
}

#[tokio::test]
async fn a_drain_ends_with_its_grace_and_says_how_many_jobs_still_run() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let mut settings = settings(services::docker_endpoint(1));
    settings.drain_grace = Duration::from_secs(1);
    let mut agent = Running::start(settings, store.clone());
    reaches(&store, NodeState::Ready).await;
    let slots = "insert into leasehold.node_slots (namespace, node_id, slot, job_id) values \
                 ('default', 'n1', 1, 7), ('default', 'n1', 2, 8)";
    database.client().await.batch_execute(slots).await.unwrap();
    agent.terminate();
    let exit = agent.end().await.unwrap();
    assert_eq!(exit, NodeExit::StillRunning { jobs: Some(2) });
    assert!(exit.to_string().contains("2 jobs"), "{exit}");
}

#[tokio::test]
async fn an_operators_drain_outlasts_heartbeats() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let agent = Running::start(settings(services::docker_endpoint(1)), store.clone());
    reaches(&store, NodeState::Ready).await;
    let (namespace, node) = (Namespace::default(), NodeId::new("n1").unwrap());

    store.node_drain(&namespace, &node, true).await.unwrap();
    never(Duration::from_secs(1), "a heartbeat undid the drain", async || {
        row(&store).await.filter(|row| row.state != NodeState::Draining)
    })
    .await;
    store.node_drain(&namespace, &node, false).await.unwrap();
    reaches(&store, NodeState::Ready).await;
    agent.task.abort();
}

#[tokio::test]
async fn an_agent_outlives_the_absence_of_its_database() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let agent = Running::start(settings(services::docker_endpoint(1)), store.clone());
    reaches(&store, NodeState::Ready).await;
    let shut = format!("alter database {} allow_connections false", database.name());
    let open = format!("alter database {} allow_connections true", database.name());
    let end = format!(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{}'",
        database.name()
    );
    let admin = crate::support::database::client(&services::database_url()).await;

    admin.batch_execute(&shut).await.unwrap();
    admin.batch_execute(&end).await.unwrap();
    never(Duration::from_secs(2), "it gave up", async || agent.task.is_finished().then_some(())).await;
    admin.batch_execute(&open).await.unwrap();
    let back = eventually(SOON, "the database is reachable", async || {
        store.node_list(&Namespace::default()).await.ok()?.into_iter().next()
    })
    .await;
    eventually(SOON, "heartbeats are confirmed again", async || {
        row(&store).await.filter(|row| row.fresh && row.heartbeat_at > back.heartbeat_at)
    })
    .await;
    agent.task.abort();
}

#[tokio::test]
async fn an_agent_whose_node_was_forgotten_ends_and_says_so() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    let agent = Running::start(settings(services::docker_endpoint(1)), store.clone());
    reaches(&store, NodeState::Ready).await;
    store.node_forget(&Namespace::default(), &NodeId::new("n1").unwrap(), false).await.unwrap();
    let error = agent.end().await.expect_err("the node is gone");
    assert!(matches!(error, NodeError::TakenAway { .. }), "{error}");
    assert!(row(&store).await.is_none(), "forgotten is forgotten");
}

/// CF-09
#[tokio::test]
async fn an_engine_that_cannot_be_used_is_one_clear_error_at_the_start() {
    let database = TestDatabase::create().await;
    let store = database.store().await;
    for (endpoint, words) in [
        ("unix:///nowhere/docker.sock", "/nowhere/docker.sock"),
        ("tcp://127.0.0.1:9", "127.0.0.1:9"),
        ("docker.sock", "unix:///var/run/docker.sock"),
    ] {
        let error = node_agent::run(settings(endpoint.to_owned()), store.clone(), std::future::pending())
            .await
            .expect_err("no engine");
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
    assert!(row(&store).await.is_none());
}
