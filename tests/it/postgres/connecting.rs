//! The first contact: TLS as asked for and never less, errors that say what to do, and no word of a password.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use leasehold::{
    config::DatabaseSettings,
    postgres::{
        ConnectError, PgStore,
        migrate::{self, MigrateError},
    },
    protocol::{
        error::{Applied, StoreErrorKind},
        ports::LeaseStore,
    },
};
use tokio::runtime::Handle;

use crate::support::{
    database::{TestDatabase, client, settings},
    jobs::handler_job,
    proxy::Proxy,
    server::{Server, own, run},
};

const PASSWORD: &str = "s3cr3t@:/%";
const IN_URL: &str = "s3cr3t%40%3A%2F%25";

/// An authority, and a certificate for `localhost` signed by it; and an authority that signed nothing.
fn make_certificates(data: &Path) {
    let openssl = |args: &str| {
        let mut command = Command::new("openssl");
        command.current_dir(data).args(args.split(' '));
        run(&mut command);
    };
    for ca in ["ca", "other"] {
        openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={ca} -keyout {ca}.key -out {ca}.crt"
        ));
    }
    openssl("req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr");
    std::fs::write(data.join("san"), "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n").unwrap();
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile san -out server.crt",
    );
    for file in ["server.key", "server.crt"] {
        own(&data.join(file));
    }
    // Where the test, whoever runs it, can read them.
    for file in ["ca.crt", "other.crt"] {
        let copy = data.parent().unwrap().with_extension(file);
        std::fs::copy(data.join(file), copy).unwrap();
    }
}

struct Secured {
    server: Server,
    ca: PathBuf,
    other: PathBuf,
}

impl Drop for Secured {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.ca);
        let _ = std::fs::remove_file(&self.other);
    }
}

/// A server that lets nobody in over TCP without TLS and a password.
async fn secured() -> Secured {
    let files = std::sync::Mutex::new(PathBuf::new());
    let server = Server::start(
        "ssl = on\npassword_encryption = 'scram-sha-256'",
        "hostssl all all 127.0.0.1/32 scram-sha-256",
        |data| {
            make_certificates(data);
            *files.lock().unwrap() = data.parent().unwrap().to_path_buf();
        },
    )
    .await;
    let admin = client(&server.socket_url()).await;
    admin.batch_execute(&format!("create role jo superuser login password '{PASSWORD}'")).await.unwrap();
    migrate::run(&settings(&server.socket_url())).await.unwrap();
    let dir = files.into_inner().unwrap();
    Secured { server, ca: dir.with_extension("ca.crt"), other: dir.with_extension("other.crt") }
}

fn url(port: u16, host: &str, password: &str, query: &str) -> String {
    format!("postgres://jo:{password}@{host}:{port}/postgres{query}")
}

fn with_ca(url: String, ca: Option<&PathBuf>) -> DatabaseSettings {
    DatabaseSettings { ca_file: ca.cloned(), ..settings(&url) }
}

#[tokio::test(flavor = "multi_thread")]
async fn sslmode_is_honoured_and_never_weakened() {
    let secured = secured().await;
    let (ca, other) = (Some(&secured.ca), Some(&secured.other));
    let port = secured.server.port();
    let admin = client(&secured.server.socket_url()).await;
    // The mode, the host, whom we trust, and whether there is to be a connection.
    let table = [
        ("", "localhost", None, true),
        ("?sslmode=prefer", "localhost", None, true),
        ("?sslmode=require", "127.0.0.1", None, true),
        ("?sslmode=require", "127.0.0.1", ca, true),
        ("?sslmode=require", "127.0.0.1", other, false),
        ("?sslmode=verify-ca", "127.0.0.1", ca, true),
        ("?sslmode=verify-ca", "127.0.0.1", other, false),
        ("?sslmode=verify-full", "localhost", ca, true),
        ("?sslmode=verify-full", "127.0.0.1", ca, false),
        ("?sslmode=verify-full", "localhost", other, false),
        ("?sslmode=disable", "localhost", None, false),
    ];
    for (query, host, trusted, expected) in table {
        let settings = with_ca(url(port, host, IN_URL, query), trusted);
        let what = format!("{query} {host} {trusted:?}");
        match PgStore::connect(&settings, Handle::current()).await {
            Ok(store) => {
                assert!(expected, "{what}: connected");
                store.submit(&handler_job("work")).await.unwrap();
                let plain = "select count(*) from pg_stat_ssl join pg_stat_activity using (pid)
                             where usename = 'jo' and not ssl";
                let plain: i64 = admin.query_one(plain, &[]).await.unwrap().get(0);
                assert_eq!(plain, 0, "{what}: a session without TLS");
            }
            Err(e) => {
                assert!(!expected, "{what}: {e}");
                assert!(e.is_unreachable(), "{what}: {e}");
                assert_silent(&e);
            }
        }
    }
}

/// A server without TLS: who asked for it gets no connection, and his password does not leave the process.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_where_tls_was_asked_for() {
    let database = TestDatabase::create().await;
    for mode in ["require", "verify-ca", "verify-full"] {
        let settings = settings(&format!("{}?sslmode={mode}", database.url()));
        // Verifying needs an authority first; where the machine has none, that is said instead.
        let refused = PgStore::connect(&settings, Handle::current()).await.unwrap_err();
        let told = refused.to_string();
        assert!(told.contains("TLS") || told.contains("DATABASE_CA_FILE"), "{mode}: {told}");
    }
    let preferred = settings(&format!("{}?sslmode=prefer", database.url()));
    PgStore::connect(&preferred, Handle::current()).await.unwrap();
}

fn assert_silent(error: &(impl std::fmt::Display + std::fmt::Debug)) {
    for shown in [format!("{error}"), format!("{error:?}"), format!("{error:#?}")] {
        for secret in [PASSWORD, IN_URL, "s3cr3t", "wr0ng", "postgres://"] {
            // What to write instead is no secret.
            let shown = shown.replace("postgres://USER:PASSWORD@HOST", "");
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

/// AP-15: every way in which a start can fail, with a password that URLs must escape.
#[tokio::test(flavor = "multi_thread")]
async fn no_error_shows_the_password_or_the_url() {
    let secured = secured().await;
    let port = secured.server.port();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bad = [
        url(nobody, "127.0.0.1", IN_URL, ""),
        url(port, "no-such-host.invalid", IN_URL, ""),
        url(port, "localhost", "wr0ng", "?sslmode=require"),
        url(port, "localhost", IN_URL, "?sslmode=disable"),
        url(port, "localhost", IN_URL, "?sslmode=verify-full"),
        url(port, "localhost", IN_URL, "?sslmode=s3cr3t"),
        url(port, "localhost", IN_URL, "?s3cr3t=1"),
        format!("postgres://jo:{PASSWORD}@localhost:{port}/postgres"),
        format!("host=localhost port={port} user=jo password=wr0ng s3cr3t dbname=postgres"),
        format!("host=localhost port=s3cr3t user=jo password={PASSWORD}"),
        format!("postgres://jo:{IN_URL}@localhost:{port}/no_such_database"),
        String::new(),
    ];
    for url in bad {
        let mut settings = settings(&url);
        settings.store_timeout = Duration::from_secs(2);
        assert!(!format!("{settings:?}").contains("s3cr3t"), "{settings:?}");
        let refused = PgStore::connect(&settings, Handle::current()).await.expect_err(&url);
        assert_silent(&refused);
        let refused = migrate::check(&settings).await.expect_err(&url);
        assert_silent(&refused);
    }
    // The server goes away under a store that works.
    let settings = settings(&url(port, "localhost", IN_URL, "?sslmode=require"));
    let store = PgStore::connect(&settings, Handle::current()).await.unwrap();
    store.submit(&handler_job("work")).await.unwrap();
    assert_silent(&format!("{store:?}"));
    drop(secured);
    for _ in 0..3 {
        let error = store.submit(&handler_job("work")).await.unwrap_err();
        assert_silent(&error);
    }
}

/// An error names the next step, and tells a wrong setting from a server that may come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_connect_says_what_to_do() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::before(database.url()).await;
    proxy.stall(true);
    let mut silent = settings(&proxy.url(database.url()));
    silent.store_timeout = Duration::from_secs(1);
    let started = Instant::now();
    let refused = PgStore::connect(&silent, Handle::current()).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Unreachable(_)), "{refused}");
    assert!(refused.to_string().contains("DATABASE_URL"), "{refused}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let malformed = PgStore::connect(&settings("not a url"), Handle::current()).await.unwrap_err();
    assert!(!malformed.is_unreachable(), "{malformed}");
}

/// A store on a server that is down: each call ends in time, surely without effect, and works again afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_server_that_is_down_end_in_time() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::before(database.url()).await;
    let mut settings = settings(&proxy.url(database.url()));
    settings.store_timeout = Duration::from_secs(2);
    let store = PgStore::connect(&settings, Handle::current()).await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    for _ in 0..3 {
        let started = Instant::now();
        let error = store.dispatch(&"default".parse().unwrap(), 1).await.unwrap_err();
        assert_eq!((error.kind, error.applied), (StoreErrorKind::Unreachable, Applied::No), "{error}");
        assert!(error.is_retryable());
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    }
    proxy.refuse(false);
    store.submit(&handler_job("work")).await.unwrap();
}

/// CF-11: somebody holds what the migration needs. It gives up in time, names him, and leaves nothing half-done.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_migration_names_who_blocks_it() {
    let database = TestDatabase::empty().await;
    let holder = database.client().await;
    let pid: i32 = holder.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    let patience = Duration::from_secs(1);
    let named = async |what: &str| match migrate::run_within(&database.settings(), patience).await {
        Err(MigrateError::Blocked { blocker, waited }) => {
            assert!(blocker.contains(&format!("session {pid} ")), "{what}: {blocker}");
            assert!(waited < Duration::from_secs(10), "{what}: {waited:?}");
        }
        other => panic!("{what}: {other:?}"),
    };
    holder.batch_execute("select pg_advisory_lock(5327353273)").await.unwrap();
    named("another migration").await;
    holder.batch_execute("select pg_advisory_unlock(5327353273)").await.unwrap();

    holder
        .batch_execute(
            "create schema leasehold;
             create table leasehold.schema_history
                 (version int4 primary key, name varchar(255), applied_on varchar(255), checksum varchar(255))",
        )
        .await
        .unwrap();
    holder.batch_execute("begin; lock table leasehold.schema_history").await.unwrap();
    named("a table").await;
    holder.batch_execute("commit").await.unwrap();
    migrate::run(&database.settings()).await.unwrap();
    database.store().await;
}

/// A role that owns the schema, and may do nothing else in the database, can migrate.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_owns_the_schema_can_migrate() {
    let database = TestDatabase::empty().await;
    let admin = database.client().await;
    let role = database.name();
    admin
        .batch_execute(&format!(
            "drop role if exists {role}; create role {role} login; create schema leasehold authorization {role};
             revoke all on database {role} from public; grant connect on database {role} to {role}"
        ))
        .await
        .unwrap();
    let mut url = url::Url::parse(database.url()).unwrap();
    url.set_username(role).unwrap();
    let settings = settings(url.as_str());
    migrate::run(&settings).await.unwrap();
    assert!(migrate::run(&settings).await.unwrap().applied.is_empty());
    PgStore::connect(&settings, Handle::current()).await.unwrap();
    admin.batch_execute(&format!("drop owned by {role}; drop role {role}")).await.unwrap();
}
