//! What the fleet of a run stands on: a PostgreSQL cluster and two Docker engines of its own, all of which it may
//! restart, the wires before them, and the database's own record of changes.

use std::{os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use leasehold::{
    dev::cluster::Cluster,
    postgres::{PgStore, migrate},
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{runtime::Handle, sync::Mutex};
use tokio_postgres::Client;

use super::wire::Wire;
use crate::support::{
    database,
    engine::{PrivateEngine, TestEngine},
    eventually::eventually,
    proxy::Target,
};

/// How a server is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shutdown {
    Fast,
    Immediate,
}

pub struct World {
    folder: PathBuf,
    cluster: Mutex<Option<Cluster>>,
    /// Straight to the server, past every wire.
    pub url: String,
    pub engines: Vec<Engine>,
    /// The harness's own way to the product.
    pub store: PgStore,
    pub fleet: uuid::Uuid,
}

/// An engine and the way to it that the fleet knows.
pub struct Engine {
    pub node: String,
    pub daemon: Mutex<PrivateEngine>,
    /// The engine's own socket.
    pub socket: PathBuf,
    pub wire: Wire,
}

impl Engine {
    async fn start(number: usize) -> Self {
        let daemon = PrivateEngine::start(&["--shutdown-timeout=3", "--max-concurrent-downloads=1"]).await;
        let socket = PathBuf::from(daemon.endpoint().trim_start_matches("unix://"));
        // So that the image is there.
        TestEngine::at(&daemon.endpoint()).await;
        let wire = Wire::before(Target::Docker(socket.clone())).await;
        Self { node: format!("node-{number}"), daemon: Mutex::new(daemon), socket, wire }
    }

    pub fn endpoint(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.wire.port)
    }
}

impl World {
    /// Starts it, with this many engines.
    pub async fn start(engines: usize) -> Self {
        let folder = std::env::temp_dir().join(format!("leasehold-chaos-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711)).unwrap();
        let mut cluster = Cluster::start(&folder).await.unwrap();
        let client = database::client(cluster.url()).await;
        // The runs kill servers, never the machine.
        for setting in
            ["fsync = off", "full_page_writes = off", "max_connections = 300", "checkpoint_timeout = '5min'"]
        {
            client.batch_execute(&format!("alter system set {setting}")).await.unwrap();
        }
        cluster.stop().await;
        // Without optimization a password costs a tenth of a second, and a run connects thousands of times.
        let trust = "local all all trust\nhost all all 127.0.0.1/32 trust\n";
        std::fs::write(folder.join("pg/pg_hba.conf"), trust).unwrap();
        cluster = Cluster::start(&folder).await.unwrap();
        let url = cluster.url().to_owned();
        let settings = database::settings(&url);
        migrate::run(&settings).await.unwrap();
        let client = database::client(&url).await;
        client.batch_execute(include_str!("audit.sql")).await.unwrap();
        let fleet = client.query_one("select fleet_id from leasehold.fleet", &[]).await.unwrap().get(0);
        let store = PgStore::connect(&settings, Handle::current()).await.unwrap();
        let mut started = Vec::new();
        for number in 1..=engines {
            started.push(Engine::start(number).await);
        }
        Self { folder, cluster: Mutex::new(Some(cluster)), url, engines: started, store, fleet }
    }

    /// A session past every wire; none while the server is away.
    pub async fn session(&self) -> Option<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    /// A new wire to the database, and the address by way of it.
    pub async fn database_wire(&self, member: &str) -> (Wire, String) {
        let mut url = url::Url::parse(&self.url).unwrap();
        let target = format!("127.0.0.1:{}", url.port().unwrap());
        let wire = Wire::before(Target::Postgres(target)).await;
        url.set_port(Some(wire.port)).unwrap();
        // Every session says whose it is, so that the database's record of changes can name who made them.
        url.query_pairs_mut().append_pair("options", &format!("-cchaos.member={member}"));
        (wire, url.into())
    }

    /// Restarts the database's server. It is away for `pause` at least.
    pub async fn restart_server(&self, how: Shutdown, pause: Duration) {
        let mut slot = self.cluster.lock().await;
        let mut cluster = slot.take().expect("one restart at a time");
        if how == Shutdown::Immediate {
            let pid = i32::try_from(cluster.pid()).unwrap();
            kill_process(Pid::from_raw(pid).unwrap(), Signal::QUIT).unwrap();
            eventually(Duration::from_secs(30), "the server is gone", async || {
                cluster.has_ended().then_some(())
            })
            .await;
        }
        cluster.stop().await;
        crate::support::eventually::pass(pause).await;
        let cluster = Cluster::start(&self.folder).await.unwrap();
        assert_eq!(cluster.url(), self.url, "it is reached where it was");
        *slot = Some(cluster);
    }

    /// Everything down. The folder of a run that failed stays, for its logs.
    pub async fn stop(self) {
        if let Some(cluster) = self.cluster.lock().await.take() {
            cluster.stop().await;
        }
        drop(self.engines);
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    /// Where processes log.
    pub fn folder(&self) -> &std::path::Path {
        &self.folder
    }
}
