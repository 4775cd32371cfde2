//! What all cells of a matrix share: a database, an engine with a node agent for each lane, and two ledgers
//! outside of what is tested, without keys: the handlers' file, and the engine's own announcements of starts.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::StreamExt as _;
use leasehold::{
    config::{Effective, Sources},
    node_agent,
    postgres::{PgStore, audit, read::JobDetail},
    protocol::{
        domain::{JobId, Namespace},
        ports::{ContainerEngine as _, ContainerStatus},
    },
};
use tokio::task::AbortHandle;
use tokio_postgres::Client;
use uuid::Uuid;

use super::victim::Place;
use crate::support::{
    database::TestDatabase,
    engine::TestEngine,
    eventually::{eventually, pass},
    rows, services,
};

pub struct Bed {
    pub database: TestDatabase,
    pub store: PgStore,
    pub client: Client,
    engine: TestEngine,
    fleet: Uuid,
    /// The job of every container that was started.
    starts: Arc<Mutex<Vec<JobId>>>,
    folder: PathBuf,
    /// When the machine last stood still.
    stalled: Arc<Mutex<Option<Instant>>>,
    tasks: Vec<AbortHandle>,
}

/// A question to the database that takes this long, and a pause of a tenth of it, mean that the machine stood still: a
/// worker's statement, which does more, may not come back within its timeout of 1.2 s, and a lease of 5 s be lost.
const STALL: Duration = Duration::from_millis(500);

impl Bed {
    /// With this many lanes, on one of the two engines.
    pub async fn create(lanes: usize, engine: u8) -> Self {
        let database = TestDatabase::create().await;
        let (store, client) = (database.store().await, database.client().await);
        let engine = TestEngine::at(&services::docker_endpoint(engine)).await;
        let fleet: Uuid = client.query_one("select fleet_id from leasehold.fleet", &[]).await.unwrap().get(0);
        let folder = std::env::temp_dir().join(format!("lh-crash-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        let mut bed = Self {
            database,
            store,
            client,
            engine,
            fleet,
            starts: Arc::default(),
            folder,
            stalled: Arc::default(),
            tasks: Vec::new(),
        };
        bed.listen();
        bed.watch().await;
        for lane in 0..lanes {
            bed.add_node(lane).await;
        }
        bed
    }

    /// Takes note of every container of this fleet that the engine starts.
    fn listen(&mut self) {
        let filters = HashMap::from([
            ("type", vec!["container".to_owned()]),
            ("event", vec!["start".to_owned()]),
            ("label", vec![format!("leasehold.fleet={}", self.fleet)]),
        ]);
        let mut events =
            self.engine.stranger.events(Some(EventsOptionsBuilder::default().filters(&filters).build()));
        let starts = Arc::clone(&self.starts);
        let listening = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let labels = event.unwrap().actor.and_then(|actor| actor.attributes).unwrap_or_default();
                let job = labels.get("leasehold.job").and_then(|job| job.parse().ok()).map(JobId);
                starts.lock().unwrap().push(job.expect("a container of a fleet says whose it is"));
            }
        });
        self.tasks.push(listening.abort_handle());
    }

    /// Takes note of when the machine stands still.
    async fn watch(&mut self) {
        let (client, stalled) = (self.database.client().await, Arc::clone(&self.stalled));
        let watching = tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                client.query_one("select 1", &[]).await.unwrap();
                pass(STALL / 10).await;
                if begun.elapsed() > STALL {
                    *stalled.lock().unwrap() = Some(Instant::now());
                }
            }
        });
        self.tasks.push(watching.abort_handle());
    }

    /// True when the machine stood still after this.
    pub fn has_stalled_since(&self, begun: Instant) -> bool {
        self.stalled.lock().unwrap().is_some_and(|last| last > begun)
    }

    async fn add_node(&mut self, lane: usize) {
        let mut settings = Effective::load(&Sources::default()).unwrap().node().unwrap();
        settings.namespace = Self::namespace(lane);
        settings.node_id = format!("n{lane}");
        settings.endpoint = self.engine.endpoint.clone();
        settings.max_concurrency = 8;
        settings.heartbeat_interval = Duration::from_secs(1);
        settings.orphan_interval = Duration::from_secs(1);
        let store = self.store.clone();
        let agent = async move {
            let ended = node_agent::run(settings, store, std::future::pending()).await;
            panic!("an agent ended: {ended:?}");
        };
        self.tasks.push(tokio::spawn(agent).abort_handle());
        let namespace = Self::namespace(lane);
        eventually(Duration::from_secs(60), "the node is registered", async || {
            let nodes = self.store.node_list(&namespace).await.unwrap();
            nodes.iter().any(|node| node.fresh).then_some(())
        })
        .await;
    }

    pub fn namespace(lane: usize) -> Namespace {
        format!("lane-{lane}").parse().unwrap()
    }

    /// Where a worker of a lane works.
    pub fn place(&self, lane: usize, name: &str) -> Place {
        Place {
            url: self.database.url().to_owned(),
            namespace: Self::namespace(lane).to_string(),
            name: name.to_owned(),
            ledger: self.folder.join("ledger"),
            platform: None,
        }
    }

    /// How often work on a job began, by the two ledgers.
    pub fn runs(&self, job: JobId) -> usize {
        let handlers = std::fs::read_to_string(self.folder.join("ledger")).unwrap_or_default();
        let of_job = |line: &&str| line.split(' ').next() == Some(&job.to_string());
        let containers = self.starts.lock().unwrap().iter().filter(|started| **started == job).count();
        handlers.lines().filter(of_job).count() + containers
    }

    /// All that is known of a job. A busy machine may need more than one look.
    pub async fn detail(&self, namespace: &Namespace, job: JobId) -> JobDetail {
        eventually(Duration::from_secs(60), "the database answers", async || {
            self.store.show_job(namespace, job).await.ok().map(|found| found.expect("the job exists"))
        })
        .await
    }

    /// The containers of a job, or of all jobs.
    pub async fn containers(&self, job: Option<JobId>) -> Vec<ContainerStatus> {
        let mut labels = vec![("leasehold.fleet".to_owned(), self.fleet.to_string())];
        labels.extend(job.map(|job| ("leasehold.job".to_owned(), job.to_string())));
        self.engine.engine.list(&labels).await.unwrap()
    }

    /// After everything: each job in one table, no lease, no slot, no container, and an audit finds nothing.
    pub async fn assert_clean(&self) {
        rows::conserved(&self.client).await;
        for table in ["leases", "node_slots", "workflow_slots"] {
            let count = format!("select count(*) from leasehold.{table}");
            let left: i64 = self.client.query_one(&count, &[]).await.unwrap().get(0);
            assert_eq!(left, 0, "{table}");
        }
        assert_eq!(self.containers(None).await, []);
        assert_eq!(audit::run(&self.client).await.unwrap(), []);
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
