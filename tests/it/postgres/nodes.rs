//! The registries of runtime nodes and workers.

use std::time::Duration;

use leasehold::{
    postgres::{
        PgStore,
        nodes::{NodeBeat, NodeForgotten, NodeRegistered, NodeRegistration, NodeRow, NodeState},
        workers::WorkerRegistration,
    },
    protocol::{
        domain::{Namespace, NewJob, NodeId, ProcessId, WorkerId},
        ports::{Claimant, EngineInfo},
    },
};

use crate::support::{database::TestDatabase, rows};

fn namespace() -> Namespace {
    Namespace::default()
}

fn node(name: &str, process: ProcessId) -> NodeRegistration {
    NodeRegistration {
        namespace: namespace(),
        node: NodeId::new(name).unwrap(),
        process,
        endpoint: "unix:///var/run/docker.sock".to_owned(),
        max_concurrency: 4,
        engine: EngineInfo {
            engine_id: "ENGINE-1".to_owned(),
            os: "linux".to_owned(),
            architecture: "x86_64".to_owned(),
            cpu_millis: 2000,
            memory_bytes: 8 << 30,
            version: "20.10".to_owned(),
        },
        heartbeat_ttl: Duration::from_secs(15),
        lost_after: Duration::from_secs(60),
    }
}

async fn listed(store: &PgStore) -> NodeRow {
    let mut nodes = store.node_list(&namespace()).await.unwrap();
    assert_eq!(nodes.len(), 1);
    nodes.remove(0)
}

async fn silence(client: &tokio_postgres::Client, seconds: f64) {
    let sql = "update leasehold.nodes set heartbeat_at = heartbeat_at - $1 * interval '1 second'";
    client.execute(sql, &[&seconds]).await.unwrap();
}

#[tokio::test]
async fn a_live_nodes_id_is_refused_to_another_process() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let (first, second) = (ProcessId::generate(), ProcessId::generate());
    let registered = NodeRegistered::Registered { incarnation: 1, state: NodeState::Ready };
    assert_eq!(store.node_register(&node("n1", first)).await.unwrap(), registered);
    assert_eq!(
        store.node_register(&node("n1", first)).await.unwrap(),
        registered,
        "a repeat by the same process"
    );
    match store.node_register(&node("n1", second)).await.unwrap() {
        NodeRegistered::LiveElsewhere { endpoint, process, retry_after } => {
            assert_eq!((endpoint.as_str(), process), ("unix:///var/run/docker.sock", first));
            assert!(retry_after <= Duration::from_secs(15) && retry_after > Duration::from_secs(5));
        }
        answer => panic!("{answer:?}"),
    }
    let id = NodeId::new("n1").unwrap();
    let beat = store.node_heartbeat(&namespace(), &id, second, NodeState::Ready, None).await.unwrap();
    assert_eq!(beat, NodeBeat::NotOurs);
    silence(&client, 16.0).await;
    assert!(!listed(&store).await.fresh);
    assert_eq!(
        store.node_register(&node("n1", second)).await.unwrap(),
        registered,
        "the first one fell silent"
    );
    let beat = store.node_heartbeat(&namespace(), &id, first, NodeState::Ready, None).await.unwrap();
    assert_eq!(beat, NodeBeat::NotOurs, "the first one woke up");
    let farewell = store.node_farewell(&namespace(), &id, second).await.unwrap();
    assert_eq!(farewell, NodeBeat::Recorded(NodeState::Draining));
    assert_eq!(
        store.node_register(&node("n1", first)).await.unwrap(),
        registered,
        "at once after a farewell"
    );
}

#[tokio::test]
async fn another_endpoint_or_engine_is_another_incarnation() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let process = ProcessId::generate();
    let register = async |change: &dyn Fn(&mut NodeRegistration)| {
        let mut node = node("n1", process);
        change(&mut node);
        match store.node_register(&node).await.unwrap() {
            NodeRegistered::Registered { incarnation, .. } => incarnation,
            answer => panic!("{answer:?}"),
        }
    };
    assert_eq!(register(&|_| {}).await, 1);
    assert_eq!(register(&|n| n.max_concurrency = 9).await, 1);
    assert_eq!(listed(&store).await.slots, 9);
    assert_eq!(register(&|n| n.endpoint = "tcp://10.0.0.1:2376".to_owned()).await, 2);
    assert_eq!(register(&|n| n.engine.engine_id = "ENGINE-2".to_owned()).await, 3);
    assert_eq!(register(&|n| n.engine.engine_id = "ENGINE-2".to_owned()).await, 3, "the same again");
}

#[tokio::test]
async fn an_operators_drain_outlasts_heartbeats_and_restarts() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let (first, second) = (ProcessId::generate(), ProcessId::generate());
    let id = NodeId::new("n1").unwrap();
    assert_eq!(store.node_drain(&namespace(), &id, true).await.unwrap(), None, "no such node");
    store.node_register(&node("n1", first)).await.unwrap();
    let beat = async |process, state, reason| {
        store.node_heartbeat(&namespace(), &id, process, state, reason).await.unwrap()
    };
    let words = "no answer\0 from the engine\u{1b}[2J".repeat(1000);
    assert_eq!(
        beat(first, NodeState::Unhealthy, Some(words.as_str())).await,
        NodeBeat::Recorded(NodeState::Unhealthy)
    );
    assert!(listed(&store).await.reason.unwrap().len() <= 4096);
    assert_eq!(store.node_drain(&namespace(), &id, true).await.unwrap(), Some(NodeState::Draining));
    assert_eq!(beat(first, NodeState::Ready, None).await, NodeBeat::Recorded(NodeState::Draining));
    silence(&client, 60.0).await;
    assert!(listed(&store).await.lost);
    let registered = store.node_register(&node("n1", second)).await.unwrap();
    assert_eq!(registered, NodeRegistered::Registered { incarnation: 1, state: NodeState::Draining });
    assert_eq!(store.node_drain(&namespace(), &id, false).await.unwrap(), Some(NodeState::Ready));
    assert_eq!(beat(second, NodeState::Ready, None).await, NodeBeat::Recorded(NodeState::Ready));
    let row = listed(&store).await;
    assert_eq!((row.fresh, row.lost, row.reason), (true, false, None));
}

#[tokio::test]
async fn a_node_is_forgotten_only_when_nothing_runs_there_unless_forced() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let id = NodeId::new("n1").unwrap();
    store.node_register(&node("n1", ProcessId::generate())).await.unwrap();
    let job = store.submit(&NewJob::handler("x", &1)).await.unwrap().job;
    rows::hold(&client, job, 30.0).await;
    let place = "with l as (update leasehold.leases set node_id = 'n1' where job_id = $1)
                 insert into leasehold.node_slots (namespace, node_id, slot, job_id) values ('default', 'n1', 2, $1)";
    client.execute(place, &[&job.0]).await.unwrap();
    assert_eq!(listed(&store).await.slots_used, 1);
    let refused = store.node_forget(&namespace(), &id, false).await.unwrap();
    assert_eq!(refused, NodeForgotten::HasRunningJobs { running: vec![job] });
    assert_eq!(listed(&store).await.slots_used, 1, "nothing was changed");
    let forced = store.node_forget(&namespace(), &id, true).await.unwrap();
    assert_eq!(forced, NodeForgotten::Forgotten { running: vec![job] });
    assert!(store.node_list(&namespace()).await.unwrap().is_empty());
    assert_eq!(store.node_forget(&namespace(), &id, true).await.unwrap(), NodeForgotten::NotFound);

    // A claim that is placing a job there at this very moment comes first, and then stands in the way.
    store.node_register(&node("n1", ProcessId::generate())).await.unwrap();
    let mut claim = db.client().await;
    let placing = claim.transaction().await.unwrap();
    placing
        .execute("insert into leasehold.node_slots (namespace, node_id, slot, job_id) values ('default', 'n1', 1, $1)", &[&job.0])
        .await
        .unwrap();
    let forgetting = tokio::spawn({
        let (store, id) = (store.clone(), id.clone());
        async move { store.node_forget(&namespace(), &id, false).await.unwrap() }
    });
    crate::support::eventually::eventually(Duration::from_secs(60), "the forget waits", async || {
        let waiting =
            "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
        client.query_opt(waiting, &[]).await.unwrap()
    })
    .await;
    placing.commit().await.unwrap();
    assert_eq!(forgetting.await.unwrap(), NodeForgotten::HasRunningJobs { running: vec![job] });
}

#[tokio::test]
async fn workers_are_listed_with_the_leases_that_they_hold() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let claimant =
        |process| Claimant { namespace: namespace(), worker: WorkerId::new("w1").unwrap(), process };
    let register = async |process| {
        let worker = WorkerRegistration {
            claimant: claimant(process),
            host: "host-1".to_owned(),
            concurrency: 8,
            status: r#"{"routes":["HANDLER x"]}"#.to_owned(),
        };
        store.worker_register(&worker).await.unwrap();
    };
    let (old, new) = (ProcessId::generate(), ProcessId::generate());
    register(old).await;
    store.worker_seen(&claimant(old), r#"{"health":"stopping"}"#, true).await.unwrap();
    register(new).await;
    let job = store.submit(&NewJob::handler("x", &1)).await.unwrap().job;
    rows::hold(&client, job, 30.0).await;
    client.execute("update leasehold.leases set process_id = $1", &[&new.0]).await.unwrap();
    let workers = store.worker_list(&namespace()).await.unwrap();
    assert_eq!(workers.len(), 2, "one name, two lives");
    assert_eq!(
        (workers[0].process.as_str(), workers[0].alive, workers[0].leases),
        (new.to_string().as_str(), true, 1)
    );
    assert_eq!((workers[1].alive, workers[1].leases, workers[1].stopped_at.is_some()), (false, 0, true));
    assert_eq!(workers[1].status.get(), r#"{"health":"stopping"}"#);
    client
        .execute("update leasehold.workers set seen_at = seen_at - interval '2 days', stopped_at = null", &[])
        .await
        .unwrap();
    assert!(store.worker_list(&namespace()).await.unwrap().iter().all(|w| !w.alive));
    register(ProcessId::generate()).await;
    assert_eq!(store.worker_list(&namespace()).await.unwrap().len(), 1, "the long silent are dropped");
}
