//! Everything that people and agents ask of the store, through pgbouncer in transaction mode: no prepared
//! statement survives there, and sessions change hands after every transaction.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::{
    Client,
    config::DatabaseSettings,
    postgres::{PgStore, cancel::CancelAnswer, doctor::CheckStatus, nodes::NodeState, read::JobFilter},
    protocol::{
        domain::{JobState, Namespace, NewJob, NodeId, ProcessId},
        ports::EngineInfo,
    },
    submission::document::WorkflowDocument,
};

use crate::support::{
    database::{TestDatabase, client, settings},
    pgbouncer::PgBouncer,
    rows,
};

#[tokio::test]
async fn submits_of_every_kind_go_through_together() {
    let db = TestDatabase::create().await;
    let bouncer = PgBouncer::start(db.url(), "").await;
    let url = bouncer.url(db.url());
    let patient = DatabaseSettings { store_timeout: Duration::from_secs(20), ..settings(&url) };
    let store = PgStore::connect(&patient, tokio::runtime::Handle::current()).await.unwrap();
    assert!(store.is_pooled());
    let work = join_all((0..40_i64).map(|n| {
        let (store, url) = (store.clone(), url.clone());
        async move {
            match n % 4 {
                0 => {
                    let jobs = (0..50).map(|m| NewJob::handler("x", &(n, m))).collect();
                    store.submit_bulk(jobs).await.unwrap().len()
                }
                1 => {
                    let mut theirs = client(&url).await;
                    let transaction = theirs.transaction().await.unwrap();
                    Client::submit(&transaction, NewJob::handler("x", &n)).await.unwrap();
                    transaction.commit().await.unwrap();
                    1
                }
                2 => {
                    let yaml = format!("name: w{}\nhandler: x\npriority: {n}\n", n % 3);
                    let document =
                        WorkflowDocument::parse_all(&yaml, &Namespace::default()).unwrap().remove(0);
                    store.workflow_apply(&document).await.unwrap();
                    0
                }
                _ => {
                    store.submit(&NewJob::handler("x", &n)).await.unwrap();
                    1
                }
            }
        }
    }))
    .await;
    let page =
        store.list_jobs(&JobFilter { limit: 1000, ..JobFilter::all(Namespace::default()) }).await.unwrap();
    assert_eq!(page.items.len(), work.iter().sum::<usize>());
}

#[tokio::test]
async fn every_question_is_answered() {
    let db = TestDatabase::create().await;
    let bouncer = PgBouncer::start(db.url(), "").await;
    let store =
        PgStore::connect(&settings(&bouncer.url(db.url())), tokio::runtime::Handle::current()).await.unwrap();
    let (namespace, direct) = (Namespace::default(), db.client().await);
    let document = WorkflowDocument::parse_all("name: w\nhandler: x\n", &namespace).unwrap().remove(0);
    store.workflow_apply(&document).await.unwrap();
    let run = store.workflow_trigger(&namespace, "w").await.unwrap().job;
    store.workflow_pause(&namespace, "w").await.unwrap();
    store.workflow_resume(&namespace, "w").await.unwrap();
    assert_eq!(store.workflow_list(&namespace, 10, None).await.unwrap().items.len(), 1);
    assert_eq!(store.workflow_show(&namespace, "w").await.unwrap().unwrap().history.len(), 2);
    store.retry_job(&namespace, run).await.unwrap();
    rows::hold(&direct, run, 30.0).await;
    assert!(store.why(&namespace, run).await.unwrap().unwrap().contains("RUNNING"));
    let canceled = store.request_cancel(&namespace, run, Duration::from_secs(1)).await.unwrap();
    assert!(matches!(canceled, CancelAnswer::Requested { .. }));
    rows::fail(&direct, run, 1).await;
    let shown = store.show_job(&namespace, run).await.unwrap().unwrap();
    assert_eq!((shown.row.state, shown.leases.len(), shown.reopened.len()), (JobState::Failed, 1, 1));
    let oldest = JobFilter { oldest_first: true, ..JobFilter::all(namespace.clone()) };
    assert_eq!(store.list_jobs(&oldest).await.unwrap().items.len(), 1);
    assert!(store.read_logs(&namespace, run, 0, 10).await.unwrap().is_empty());
    store.workflow_terminate(&namespace, "w").await.unwrap();

    let (node, process) = (NodeId::new("n1").unwrap(), ProcessId::generate());
    let registration = leasehold::postgres::nodes::NodeRegistration {
        namespace: namespace.clone(),
        node: node.clone(),
        process,
        endpoint: "unix:///x".to_owned(),
        max_concurrency: 1,
        engine: EngineInfo {
            engine_id: "e".to_owned(),
            os: "linux".to_owned(),
            architecture: "x86_64".to_owned(),
            cpu_millis: 1000,
            memory_bytes: 1 << 30,
            version: "1".to_owned(),
        },
        heartbeat_ttl: Duration::from_secs(15),
        lost_after: Duration::from_secs(60),
    };
    store.node_register(&registration).await.unwrap();
    store
        .node_register(&leasehold::postgres::nodes::NodeRegistration {
            process: ProcessId::generate(),
            ..registration.clone()
        })
        .await
        .unwrap();
    store.node_heartbeat(&namespace, &node, process, NodeState::Unhealthy, Some("x")).await.unwrap();
    store.node_drain(&namespace, &node, true).await.unwrap();
    assert_eq!(store.node_list(&namespace).await.unwrap()[0].state, NodeState::Draining);
    store.node_farewell(&namespace, &node, process).await.unwrap();
    store.node_forget(&namespace, &node, false).await.unwrap();
    let claimant = crate::support::jobs::claimant("w1");
    let worker = leasehold::postgres::workers::WorkerRegistration {
        claimant: claimant.clone(),
        host: "h".to_owned(),
        concurrency: 1,
        status: "{}".to_owned(),
    };
    store.worker_register(&worker).await.unwrap();
    store.worker_seen(&claimant, "{}", true).await.unwrap();
    assert_eq!(store.worker_list(&namespace).await.unwrap().len(), 1);
    let checks = store.doctor(&namespace).await;
    assert!(
        checks.iter().all(|check| check.status != CheckStatus::Fail || check.name == "durability"),
        "{checks:?}"
    );
    assert!(checks[0].detail.contains("transaction pooler"), "{checks:?}");
}
