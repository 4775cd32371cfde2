//! A database per test, copied from a template that is migrated once: about 50 ms, and nothing is shared but
//! the server.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use leasehold::{
    config::{DatabaseSettings, Pooler},
    postgres::{PgStore, migrate},
};
use tokio_postgres::{Client, NoTls};

use super::services;

/// Serializes the making of the template over all test processes.
const TEMPLATE_LOCK: i64 = 7_350_124;

/// A database of its own, dropped at the end of the test.
#[derive(Debug)]
pub struct TestDatabase {
    url: String,
    name: String,
}

impl TestDatabase {
    /// A database with the whole schema.
    pub async fn create() -> Self {
        let admin = admin().await;
        let template = template(&admin).await;
        let database = Self::make(&admin, &format!("template {template}")).await;
        // A fleet of its own: containers of tests on a shared engine are told apart by it.
        let client = database.client().await;
        client.batch_execute("update leasehold.fleet set fleet_id = gen_random_uuid()").await.unwrap();
        database
    }

    /// A database without anything in it.
    pub async fn empty() -> Self {
        Self::make(&admin().await, "").await
    }

    /// Another one with the same contents. Whoever is connected to this one is sent away.
    pub async fn copy(&self) -> Self {
        let admin = admin().await;
        let gone = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = $1";
        admin.execute(gone, &[&self.name]).await.unwrap();
        Self::make(&admin, &format!("template {}", self.name)).await
    }

    async fn make(admin: &Client, how: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lh_test_{}_{count}", std::process::id());
        // A process id comes round again.
        admin.batch_execute(&format!("drop database if exists {name} with (force)")).await.unwrap();
        admin.batch_execute(&format!("create database {name} {how}")).await.unwrap();
        Self { url: with_database(&services::database_url(), &name), name }
    }

    /// Its connection string.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name on the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Settings that suit most tests.
    pub fn settings(&self) -> DatabaseSettings {
        settings(&self.url)
    }

    /// A store on it, whose connections live on the test's own runtime.
    pub async fn store(&self) -> PgStore {
        PgStore::connect(&self.settings(), tokio::runtime::Handle::current()).await.unwrap()
    }

    /// A session beside the store, as a person with psql has one.
    pub async fn client(&self) -> Client {
        client(&self.url).await
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let name = self.name.clone();
        // On a thread of its own: a test's runtime cannot block on itself.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let drop = format!("drop database if exists {name} with (force)");
                admin().await.batch_execute(&drop).await.unwrap();
            });
        });
        if dropped.join().is_err() {
            eprintln!("test database {} could not be dropped", self.name);
        }
    }
}

/// Settings for a database under any address, for example a proxy's.
pub fn settings(url: &str) -> DatabaseSettings {
    DatabaseSettings {
        url: url.to_owned(),
        pooler: Pooler::Auto,
        pool_size: 8,
        ca_file: None,
        store_timeout: Duration::from_secs(5),
        application_name: "leasehold-test".to_owned(),
    }
}

/// A plain session under an address.
pub async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The same server, another database.
pub fn with_database(url: &str, name: &str) -> String {
    let mut url = url::Url::parse(url).expect("the tests' database URL is a URL");
    url.set_path(name);
    url.into()
}

async fn admin() -> Client {
    client(&services::database_url()).await
}

/// The name of a migrated database that matches the migrations of this source tree.
async fn template(admin: &Client) -> String {
    let mut hasher = DefaultHasher::new();
    let mut files: Vec<_> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations"))
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    for file in files {
        std::fs::read(file).unwrap().hash(&mut hasher);
    }
    let name = format!("lh_template_{:016x}", hasher.finish());
    let exists = async || {
        let found = admin.query_opt("select from pg_database where datname = $1", &[&name]).await.unwrap();
        found.is_some()
    };
    if exists().await {
        return name;
    }
    admin.execute("select pg_advisory_lock($1)", &[&TEMPLATE_LOCK]).await.unwrap();
    if !exists().await {
        let making = format!("{name}_new");
        admin.batch_execute(&format!("drop database if exists {making} with (force)")).await.unwrap();
        admin.batch_execute(&format!("create database {making}")).await.unwrap();
        let url = with_database(&services::database_url(), &making);
        migrate::run(&settings(&url)).await.unwrap();
        // A connection that migrated may take a moment to be gone, and nobody may be on a template.
        let gone = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = $1";
        admin.execute(gone, &[&making]).await.unwrap();
        admin.batch_execute(&format!("alter database {making} rename to {name}")).await.unwrap();
    }
    admin.execute("select pg_advisory_unlock($1)", &[&TEMPLATE_LOCK]).await.unwrap();
    name
}
