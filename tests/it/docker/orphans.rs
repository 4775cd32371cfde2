//! The reaper on a real engine: what nobody stands behind goes, and nothing else is touched.

use std::time::Duration;

use leasehold::{
    config::NodeSettings,
    node_agent::{
        self,
        orphans::{Orphan, PassError, pass},
    },
    postgres::PgStore,
    protocol::{
        domain::{ContainerId, Namespace, ProcessId},
        ports::{ContainerEngine as _, ContainerPlan},
    },
};
use tokio::task::JoinHandle;

use super::yard::{Yard, by, registration};
use crate::support::{
    database::{settings, with_database},
    engine::{PrivateEngine, TestEngine},
    engine_proxy::{Action, EngineProxy},
    eventually::{eventually, never},
    proxy::Proxy,
    services,
};

const SOON: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(600);
const RUN: &str = "while :; do sleep 1; done";

fn relabelled(mut plan: ContainerPlan, suffix: &str, changes: &[(&str, Option<&str>)]) -> ContainerPlan {
    plan.name.push_str(suffix);
    for (key, value) in changes {
        plan.labels.retain(|(name, _)| name != key);
        plan.labels.extend(value.map(|value| ((*key).to_owned(), value.to_owned())));
    }
    plan
}

async fn sorted(yard: &Yard) -> Vec<ContainerId> {
    let mut ids: Vec<ContainerId> = yard.containers().await.into_iter().map(|status| status.id).collect();
    ids.sort_unstable();
    ids
}

/// L7, and the other half of it: what is no orphan is not touched, nor is anything of others'.
#[tokio::test]
async fn each_kind_of_orphan_is_removed_after_it_was_marked_and_nothing_else_is_touched() {
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    let domain = yard.register().await;
    let grants = yard.claim(8, RUN, LEASE).await;
    let [held, unattached, expired, ended, again, replaced, created, exited] = &grants[..] else { panic!() };

    // What stays: held; just created; of an expired lease, which recovery will look at.
    let mut stays = vec![yard.attached(held).await, yard.run(unattached).await];
    stays.push(yard.attached(expired).await);
    yard.expire(expired.authority.job).await;
    stays.push(yard.engine.engine.create(&yard.plan(created)).await.unwrap());
    // Its program ended by itself after the lease was lost: its exit is all that recovery has.
    let over = relabelled(yard.plan(exited), "", &[]);
    let over = ContainerPlan {
        spec: leasehold::protocol::domain::ContainerSpec {
            command: vec!["true".to_owned()],
            ..over.spec.clone()
        },
        ..over
    };
    let over = yard.engine.started(&over).await;
    yard.engine.engine.wait(&over).await.unwrap();
    yard.expire(exited.authority.job).await;
    stays.push(over);

    // What goes.
    let mut goes = vec![(yard.attached(ended).await, Orphan::NotRunning)];
    yard.complete(ended).await;
    let old = yard.attached(again).await;
    yard.release(again).await;
    let new = &yard.claim_queued(1, LEASE).await[0];
    assert_eq!(new.authority.job, again.authority.job);
    goes.push((old, Orphan::Superseded { claim: new.authority.epoch }));
    stays.push(yard.attached(new).await);
    stays.push(yard.attached(replaced).await);
    let second = relabelled(yard.plan(replaced), "-second", &[]);
    goes.push((yard.engine.started(&second).await, Orphan::Replaced));
    let unknown = relabelled(yard.plan(held), "-unknown", &[("leasehold.job", Some("999999999"))]);
    goes.push((yard.engine.started(&unknown).await, Orphan::NotRunning));
    // Stopped by somebody of ours who was not there for the rest: marked already.
    let half = relabelled(yard.plan(held), "-half.stopped", &[("leasehold.job", Some("999999998"))]);
    goes.push((yard.engine.started(&half).await, Orphan::NotRunning));

    // What is somebody else's, though it looks like an orphan.
    let other_fleet = uuid::Uuid::new_v4().to_string();
    let mut strangers = Vec::new();
    for (suffix, change) in [
        ("-fleet", ("leasehold.fleet", Some(other_fleet.as_str()))),
        ("-no-fleet", ("leasehold.fleet", None)),
        ("-node", ("leasehold.node", Some("n2"))),
        ("-namespace", ("leasehold.namespace", Some("other"))),
        ("-epoch", ("leasehold.epoch", None)),
        ("-odd", ("leasehold.job", Some("seven"))),
    ] {
        let changes =
            [("leasehold.job", Some("999999997")), change, ("leasehold.test", Some(&yard.engine.mark))];
        strangers.push(yard.engine.started(&relabelled(yard.plan(held), suffix, &changes)).await);
    }
    let bare = ContainerPlan { labels: Vec::new(), ..relabelled(yard.plan(held), "-bare", &[]) };
    let bare = yard.engine.started(&bare).await;

    let proxy = EngineProxy::start(&yard.engine.endpoint, |_| Action::Forward).await;
    let done = pass(&by(&proxy.endpoint), &yard.store, &domain).await.unwrap();
    let mut reaped: Vec<Orphan> = done.reaped.iter().map(|reaped| reaped.orphan).collect();
    let mut expected: Vec<Orphan> = goes.iter().map(|(_, why)| *why).collect();
    reaped.sort_unstable_by_key(|why| format!("{why:?}"));
    expected.sort_unstable_by_key(|why| format!("{why:?}"));
    assert_eq!((reaped, done.left, done.listed), (expected, 0, stays.len() + goes.len()), "{done:?}");

    // Nothing was done to anything but them, and each was marked before it was killed.
    let requests: Vec<String> =
        proxy.requests().into_iter().filter(|request| !request.starts_with("GET ")).collect();
    for (id, why) in &goes {
        let of_it: Vec<&str> =
            requests.iter().filter(|request| request.contains(id.as_str())).map(String::as_str).collect();
        let marked = of_it.iter().position(|request| request.contains("/rename?"));
        let removed = of_it.iter().position(|request| request.starts_with("DELETE "));
        assert!(removed.is_some(), "{why:?}: {of_it:?}");
        assert!(marked < removed, "{why:?}: {of_it:?}");
        assert!(yard.engine.engine.inspect(id).await.unwrap().is_none(), "{why:?}");
    }
    assert_eq!(requests.len(), 2 * goes.len() - 1, "one was marked already: {requests:#?}");
    for id in stays.iter().chain(&strangers).chain([&bare]) {
        assert!(yard.engine.engine.inspect(id).await.unwrap().is_some());
    }

    // A second pass finds nothing to do.
    let again = pass(&yard.engine.engine, &yard.store, &domain).await.unwrap();
    assert!(again.reaped.is_empty(), "{again:?}");
    yard.engine.engine.remove(&bare).await.unwrap();
    yard.clear().await;
}

/// No answer from PostgreSQL: nothing is removed, however it is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_answer_from_the_database_nothing_is_removed() {
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    let domain = yard.register().await;
    let proxy = Proxy::before(&services::database_url()).await;
    let mut by_proxy = settings(&proxy.url(&with_database(&services::database_url(), yard.database.name())));
    by_proxy.store_timeout = Duration::from_secs(1);
    let store = PgStore::connect(&by_proxy, tokio::runtime::Handle::current()).await.unwrap();
    let grant = &yard.claim(1, RUN, LEASE).await[0];
    yard.attached(grant).await;
    yard.complete(grant).await;
    let engine = &yard.engine.engine;
    let untouched = sorted(&yard).await;
    assert_eq!(untouched.len(), 1);

    proxy.stall(true);
    let silent = pass(engine, &store, &domain).await;
    assert!(matches!(silent, Err(PassError::Store(_))), "{silent:?}");
    proxy.refuse(true);
    proxy.cut();
    proxy.stall(false);
    let cut = pass(engine, &store, &domain).await;
    assert!(matches!(cut, Err(PassError::Store(_))), "{cut:?}");
    proxy.refuse(false);
    eventually(SOON, "the store is connected again", async || store.fleet().await.ok()).await;
    proxy.swallow_next_answer();
    let lost = pass(engine, &store, &domain).await;
    assert!(matches!(lost, Err(PassError::Store(_))), "{lost:?}");
    assert_eq!(sorted(&yard).await, untouched);

    // Answers that are none: of another fleet's database, and of one in which the node is another process's.
    eventually(SOON, "the store is connected again", async || store.fleet().await.ok()).await;
    let change = "update leasehold.fleet set fleet_id = $1";
    yard.client.execute(change, &[&uuid::Uuid::new_v4()]).await.unwrap();
    let foreign = pass(engine, &store, &domain).await;
    assert!(matches!(foreign, Err(PassError::NotOurs)), "{foreign:?}");
    yard.client.execute(change, &[&yard.fleet]).await.unwrap();
    let successor = yard.domain(ProcessId::generate()).await;
    let taken = pass(engine, &store, &successor).await;
    assert!(matches!(taken, Err(PassError::NotOurs)), "{taken:?}");
    assert_eq!(sorted(&yard).await, untouched);

    let done = pass(engine, &store, &domain).await.unwrap();
    assert_eq!(done.reaped.len(), 1, "with an answer it goes: {done:?}");
}

/// A node's id that is registered anew at another engine: neither engine's containers are touched by it.
#[tokio::test]
async fn a_node_registered_anew_at_another_engine_gets_nothing_touched() {
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    let old = yard.register().await;
    let grants = yard.claim(3, RUN, LEASE).await;
    for grant in &grants {
        yard.attached(grant).await;
    }
    yard.complete(&grants[0]).await;
    yard.expire(grants[1].authority.job).await;
    let before = sorted(&yard).await;
    assert_eq!(before.len(), 3);

    // Its agent dies, and somebody starts one of that name beside another engine.
    let silence = "update leasehold.nodes set heartbeat_at = heartbeat_at - interval '3 hours'";
    yard.client.batch_execute(silence).await.unwrap();
    let elsewhere = TestEngine::at(&services::docker_endpoint(2)).await;
    let process = ProcessId::generate();
    yard.store.node_register(&registration(&elsewhere, &yard.node, process).await).await.unwrap();
    let mut new = old.clone();
    new.process = process;
    // The new agent before it has noticed which engine it has, the old one woken up, and the new one.
    let stale = pass(&elsewhere.engine, &yard.store, &new).await;
    assert!(matches!(stale, Err(PassError::OtherEngine { .. })), "{stale:?}");
    let woken = pass(&yard.engine.engine, &yard.store, &old).await;
    assert!(matches!(woken, Err(PassError::NotOurs)), "{woken:?}");
    let crossed = pass(&yard.engine.engine, &yard.store, &new).await;
    assert!(matches!(crossed, Err(PassError::NotOurs)), "{crossed:?}");
    new.engine_id = elsewhere.engine.info().await.unwrap().engine_id;
    let there = pass(&elsewhere.engine, &yard.store, &new).await.unwrap();
    assert_eq!((there.listed, there.reaped.len()), (0, 0));
    assert_eq!(sorted(&yard).await, before, "what was placed on the old engine stays the old one's");
    for status in yard.containers().await {
        assert!(yard.runs(&status.id).await, "{status:?}");
    }
    yard.clear().await;
}

fn agent_settings(endpoint: String, orphan_interval: Duration) -> NodeSettings {
    NodeSettings {
        namespace: Namespace::default(),
        node_id: "n1".to_owned(),
        endpoint,
        max_concurrency: 10,
        tls: None,
        heartbeat_interval: Duration::from_millis(200),
        heartbeat_ttl: Duration::from_secs(10),
        lost_after: Duration::from_secs(120),
        orphan_interval,
        drain_grace: Duration::from_secs(1),
    }
}

struct Agent(JoinHandle<()>);

impl Agent {
    async fn start(settings: NodeSettings, store: &PgStore) -> Self {
        let run = node_agent::run(settings, store.clone(), std::future::pending());
        let agent = Self(tokio::spawn(async move { panic!("the agent ended: {:?}", run.await) }));
        ready(store).await;
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ready(store: &PgStore) {
    eventually(SOON, "the node is READY", async || {
        let nodes = store.node_list(&Namespace::default()).await.ok()?;
        nodes.into_iter().find(|node| node.fresh && node.state.as_str() == "READY")
    })
    .await;
}

async fn gone(yard: &Yard, id: &ContainerId, limit: Duration) {
    eventually(limit, "the orphan is gone", async || {
        yard.engine.engine.inspect(id).await.unwrap().is_none().then_some(())
    })
    .await;
}

async fn orphan(yard: &Yard) -> ContainerId {
    let grant = &yard.claim(1, RUN, LEASE).await[0];
    let id = yard.attached(grant).await;
    yard.complete(grant).await;
    id
}

/// L7: orphan interval + stop grace + 10 s.
#[tokio::test]
async fn an_orphan_outlives_its_grant_by_no_more_than_the_bound() {
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    let interval = Duration::from_secs(2);
    let agent = Agent::start(agent_settings(yard.engine.endpoint.clone(), interval), &yard.store).await;
    let held = &yard.claim(1, RUN, LEASE).await[0];
    let held = yard.attached(held).await;
    for _ in 0..3 {
        let id = orphan(&yard).await;
        gone(&yard, &id, interval + Duration::from_secs(10)).await;
    }
    assert!(yard.runs(&held).await);
    drop(agent);
    yard.clear().await;
}

/// At every connect and reconnect: the interval is an hour here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_finds_its_engine_or_its_database_again_looks_for_orphans_at_once() {
    let mut engine = PrivateEngine::start(&[]).await;
    let yard = Yard::at(&engine.endpoint()).await;
    let registration = yard.register().await;
    let before = orphan(&yard).await;
    // The predecessor is gone for good.
    yard.store.node_farewell(&registration.namespace, &yard.node, registration.process).await.unwrap();
    let proxy = Proxy::before(&services::database_url()).await;
    let mut by_proxy = settings(&proxy.url(&with_database(&services::database_url(), yard.database.name())));
    by_proxy.store_timeout = Duration::from_secs(1);
    let store = PgStore::connect(&by_proxy, tokio::runtime::Handle::current()).await.unwrap();
    let agent = Agent::start(agent_settings(engine.endpoint(), Duration::from_secs(3600)), &store).await;
    gone(&yard, &before, SOON).await;

    let meanwhile = orphan(&yard).await;
    never(Duration::from_secs(1), "it has an hour's time", async || {
        (!yard.runs(&meanwhile).await).then_some(())
    })
    .await;
    proxy.cut();
    proxy.stall(true);
    eventually(SOON, "a heartbeat is missed", async || {
        let nodes = yard.store.node_list(&Namespace::default()).await.unwrap();
        (nodes[0].heartbeat_age_ms > 2500).then_some(())
    })
    .await;
    assert!(yard.runs(&meanwhile).await, "without the database's word nothing is touched");
    proxy.stall(false);
    gone(&yard, &meanwhile, SOON).await;

    let later = orphan(&yard).await;
    engine.kill();
    engine.boot().await;
    gone(&yard, &later, SOON).await;
    drop(agent);
    yard.clear().await;
}
