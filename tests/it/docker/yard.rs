//! A node without an agent and jobs without a worker: claims, containers and their ends are made by hand, so that
//! a test decides what stands behind a container.

use std::{sync::Arc, time::Duration};

use leasehold::{
    docker::DockerEngine,
    node_agent::orphans::Domain,
    postgres::{
        PgStore,
        nodes::{NodeRegistered, NodeRegistration},
    },
    protocol::{
        domain::{
            CommandId, ContainerId, ContainerSpec, JobDefinition, JobId, Namespace, NewJob, NodeId,
            ProcessId, PullPolicy, Route,
        },
        ports::{
            Attach, Claimant, ContainerEngine as _, ContainerPlan, ContainerState, ContainerStatus, End,
            Ended, Grant, LeaseStore as _, OpenClaim,
        },
        runtime_node_actor::plan::plan,
    },
};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{
    database::TestDatabase,
    engine::{IMAGE, TestEngine},
    eventually::eventually,
    jobs::claimant,
};

pub(super) struct Yard {
    pub(super) database: TestDatabase,
    pub(super) store: PgStore,
    pub(super) client: Client,
    pub(super) engine: TestEngine,
    pub(super) node: NodeId,
    pub(super) fleet: Uuid,
    pub(super) owner: Claimant,
}

impl Yard {
    /// At an engine, whose node is not registered yet.
    pub(super) async fn at(endpoint: &str) -> Self {
        let database = TestDatabase::create().await;
        let (store, client) = (database.store().await, database.client().await);
        let fleet = store.fleet().await.unwrap();
        Self {
            engine: TestEngine::at(endpoint).await,
            node: NodeId::new("n1").unwrap(),
            fleet,
            owner: claimant("w1"),
            database,
            store,
            client,
        }
    }

    /// What an agent's process says of itself.
    pub(super) async fn registration(&self, process: ProcessId) -> NodeRegistration {
        registration(&self.engine, &self.node, process).await
    }

    /// Registers the node for a process that never beats.
    pub(super) async fn register(&self) -> Domain {
        let registration = self.registration(ProcessId::generate()).await;
        let answer = self.store.node_register(&registration).await.unwrap();
        assert!(matches!(answer, NodeRegistered::Registered { .. }), "{answer:?}");
        self.domain(registration.process).await
    }

    pub(super) async fn domain(&self, process: ProcessId) -> Domain {
        Domain {
            namespace: Namespace::default(),
            node: self.node.clone(),
            process,
            engine_id: self.engine.engine.info().await.unwrap().engine_id,
            fleet: self.fleet,
        }
    }

    /// Submits and claims this many jobs, whose programs are this script.
    pub(super) async fn claim(&self, count: u32, script: &str, lease: Duration) -> Vec<Grant> {
        self.submit(count as usize, script).await;
        self.claim_queued(count, lease).await
    }

    pub(super) async fn submit(&self, count: usize, script: &str) -> Vec<JobId> {
        let spec = ContainerSpec {
            image: IMAGE.to_owned(),
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            pull: PullPolicy::Never,
            network: Some("none".to_owned()),
            ..ContainerSpec::default()
        };
        let job = NewJob::ad_hoc(JobDefinition::Container(spec));
        self.store.submit_bulk(vec![job; count]).await.unwrap()
    }

    pub(super) async fn claim_queued(&self, count: u32, lease: Duration) -> Vec<Grant> {
        let mut grants = Vec::new();
        eventually(Duration::from_secs(30), "the jobs are granted", async || {
            self.store.dispatch(&Namespace::default(), 1000).await.unwrap();
            let ask = OpenClaim {
                owner: self.owner.clone(),
                command: CommandId::generate(),
                repeat: false,
                routes: Arc::from([Route::container()]),
                limit: count - u32::try_from(grants.len()).unwrap(),
                lease,
                facts: None,
            };
            grants.extend(self.store.claim(&ask).await.unwrap().grants);
            (grants.len() == count as usize).then_some(())
        })
        .await;
        grants
    }

    pub(super) fn plan(&self, grant: &Grant) -> ContainerPlan {
        plan(self.fleet, &self.node, grant).unwrap()
    }

    /// A running container of a grant, not attached.
    pub(super) async fn run(&self, grant: &Grant) -> ContainerId {
        self.engine.started(&self.plan(grant)).await
    }

    /// A running container of a grant, attached to its job.
    pub(super) async fn attached(&self, grant: &Grant) -> ContainerId {
        let id = self.run(grant).await;
        self.attach(grant, &id).await;
        id
    }

    pub(super) async fn attach(&self, grant: &Grant, id: &ContainerId) {
        let answer = self.store.attach(&grant.authority, &self.node, id).await.unwrap();
        assert_eq!(answer, Attach::Attached);
    }

    pub(super) async fn complete(&self, grant: &Grant) {
        let end = End::Complete { exit_code: Some(0), output: None };
        let ended = self.store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
        assert!(matches!(ended, Ended::Terminal(_)), "{ended:?}");
    }

    pub(super) async fn release(&self, grant: &Grant) {
        let end = End::Release { delay: Duration::ZERO, reason: "drain" };
        let ended = self.store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
        assert_eq!(ended, Ended::Released);
    }

    /// Expires the lease of a job, as one of two seconds that was renewed a little while ago.
    pub(super) async fn expire(&self, job: JobId) {
        let sql = "update leasehold.leases set lease_ms = 2000,
                       lease_expires_at = clock_timestamp() - interval '1 millisecond' where job_id = $1";
        assert_eq!(self.client.execute(sql, &[&job.0]).await.unwrap(), 1);
    }

    /// Every container of the fleet, whatever its node.
    pub(super) async fn containers(&self) -> Vec<ContainerStatus> {
        let label = ("leasehold.fleet".to_owned(), self.fleet.to_string());
        self.engine.engine.list(&[label]).await.unwrap()
    }

    pub(super) async fn runs(&self, id: &ContainerId) -> bool {
        let status = self.engine.engine.inspect(id).await.unwrap();
        status.is_some_and(|status| matches!(status.state, ContainerState::Running { .. }))
    }

    /// Removes what the test has made.
    pub(super) async fn clear(&self) {
        for status in self.containers().await.into_iter().chain(self.engine.mine().await) {
            self.engine.engine.remove(&status.id).await.unwrap();
        }
    }
}

pub(super) async fn registration(engine: &TestEngine, node: &NodeId, process: ProcessId) -> NodeRegistration {
    NodeRegistration {
        namespace: Namespace::default(),
        node: node.clone(),
        process,
        endpoint: engine.endpoint.clone(),
        max_concurrency: 1000,
        engine: engine.engine.info().await.unwrap(),
        heartbeat_ttl: Duration::from_secs(3600),
        lost_after: Duration::from_secs(7200),
    }
}

/// An engine's adapter by another way.
pub(super) fn by(endpoint: &str) -> DockerEngine {
    DockerEngine::connect(endpoint, None).unwrap()
}
