//! The connections of one store: who may use how many, how they are opened, and what each has set.
//!
//! Pools by purpose, so that nobody starves what keeps leases alive: renewals have two connections to themselves;
//! claims, ends and the other calls of a lease have a few; calls that wait for a locked row wait on others;
//! everything else (submits, listings, pages) shares the configured rest. All are opened when first needed.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime};
use futures_util::future::BoxFuture;
use leasehold_actors::error::StoreError;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_postgres::{AsyncMessage, Client, Connection, Row};

use super::{
    error,
    servers::{self, Servers},
    session::{Dialect, Param, Session},
    sql_file::Sql,
    tls::Address,
};
use crate::config::DatabaseSettings;

/// Which connections a call may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Renewals only.
    Renewals,
    /// Claims, ends, attach, logs: what a running job needs.
    Leases,
    /// Calls that wait for a row which somebody holds: they must not keep the others from their connections.
    Alone,
    /// Recovery's looks at all leases: the only ones that read a whole table on purpose.
    Recovery,
    /// Everything else.
    General,
}

/// Connections kept for renewals.
const RENEWAL_CONNECTIONS: usize = 2;
/// Connections for the other calls of leases: two statements of claims and two of ends may be under way.
const LEASE_CONNECTIONS: usize = 4;
/// A look at all leases is under way at most once.
const RECOVERY_CONNECTIONS: usize = 1;
/// Connections for calls that wait for a row.
const ALONE_CONNECTIONS: usize = 3;

/// All connections of one store. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Pools {
    renewals: Pool,
    leases: Pool,
    alone: Pool,
    recovery: Pool,
    general: Pool,
    dialect: Arc<Dialect>,
    unreplicated: Arc<Unreplicated>,
    /// The longest that one call may take.
    pub(crate) timeout: Duration,
}

/// Counts commits whose wait for the standby was cut short, on whichever connection.
#[derive(Debug, Default)]
pub(crate) struct Unreplicated(AtomicU64);

impl Unreplicated {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Pools {
    pub(super) fn new(
        settings: &DatabaseSettings,
        mut servers: Servers,
        dialect: Dialect,
        io: &Handle,
    ) -> Self {
        let dialect = Arc::new(dialect);
        let unreplicated = Arc::<Unreplicated>::default();
        let timeout = settings.store_timeout;
        let shares = u32::try_from(servers.in_turn().len()).unwrap_or(1).max(1);
        // One that is silent leaves time for the others.
        let patience = timeout.mul_f64(0.9) / shares;
        servers.each(|config| harden(config, settings, patience));
        let servers = Arc::new(servers);
        let pool = |lane: Lane, size: usize| {
            let opener = Opener {
                servers: Arc::clone(&servers),
                dialect: Arc::clone(&dialect),
                io: io.clone(),
                session: session_settings(lane, timeout),
                patience,
                unreplicated: Arc::clone(&unreplicated),
            };
            let manager = Manager::from_connect(
                tokio_postgres::Config::new(),
                opener,
                ManagerConfig { recycling_method: RecyclingMethod::Fast },
            );
            Pool::builder(manager)
                .max_size(size)
                .runtime(Runtime::Tokio1)
                .wait_timeout(Some(timeout))
                .create_timeout(Some(timeout))
                .recycle_timeout(Some(timeout))
                .build()
                .expect("a runtime is given, so timeouts are allowed")
        };
        Self {
            renewals: pool(Lane::Renewals, RENEWAL_CONNECTIONS),
            leases: pool(Lane::Leases, LEASE_CONNECTIONS),
            alone: pool(Lane::Alone, ALONE_CONNECTIONS),
            recovery: pool(Lane::Recovery, RECOVERY_CONNECTIONS),
            general: pool(Lane::General, settings.pool_size.max(1)),
            dialect,
            unreplicated,
            timeout,
        }
    }

    /// A connection, within the call's own time.
    pub(crate) async fn session(&self, lane: Lane, operation: &'static str) -> Result<Session, StoreError> {
        let pool = match lane {
            Lane::Renewals => &self.renewals,
            Lane::Leases => &self.leases,
            Lane::Alone => &self.alone,
            Lane::Recovery => &self.recovery,
            Lane::General => &self.general,
        };
        match pool.get().await {
            Ok(object) => Ok(Session::new(object, Arc::clone(&self.dialect))),
            Err(PoolError::Backend(e)) => {
                // Whatever the server answered, no statement was sent.
                let mut refused = error::store_error(operation, &e);
                refused.applied = leasehold_actors::error::Applied::No;
                Err(refused)
            }
            Err(PoolError::Timeout(_)) => Err(error::no_connection(
                operation,
                format!("no connection to the database within {:?}", self.timeout),
            )),
            Err(other) => Err(error::no_connection(operation, other.to_string())),
        }
    }

    /// One statement as one transaction, within the call's time. A connection that gave no answer is closed.
    pub(crate) async fn call(
        &self,
        lane: Lane,
        operation: &'static str,
        sql: &Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let session = self.session(lane, operation).await?;
        self.finish(operation, session, async |session| session.query(sql, params).await).await
    }

    /// The last use of a session within the call's time, after which it goes back to its pool, or is closed.
    pub(crate) async fn finish<T>(
        &self,
        operation: &'static str,
        session: Session,
        work: impl AsyncFnOnce(&Session) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, StoreError> {
        let before = self.unreplicated.count();
        let until = Instant::now() + self.timeout;
        match timeout_at(until, work(&session)).await {
            Ok(Ok(answer)) if self.unreplicated.count() == before => Ok(answer),
            // Perhaps it was another connection's: to ask again costs little.
            Ok(Ok(_)) => Err(error::unreplicated(operation)),
            Ok(Err(e)) => {
                if error::must_start_afresh(&e) {
                    self.start_afresh();
                }
                let settled = !error::spoils_connection(&e)
                    && matches!(timeout_at(until, session.settle()).await, Ok(Ok(())));
                if !settled {
                    session.discard();
                }
                Err(error::store_error(operation, &e))
            }
            Err(_) => {
                session.discard();
                Err(error::timed_out(operation, self.timeout))
            }
        }
    }

    pub(crate) fn unreplicated(&self) -> &Unreplicated {
        &self.unreplicated
    }

    /// The server takes no writes: whatever idles in a pool may still point at it when another one does.
    fn start_afresh(&self) {
        for pool in [&self.renewals, &self.leases, &self.alone, &self.recovery, &self.general] {
            let _ = pool.retain(|_, _| false);
        }
    }

    /// Opens the connections that keep leases alive, before anybody else on the server can take their places.
    pub(crate) async fn open_reserved(&self) -> Result<(), StoreError> {
        let (first, second, third) = tokio::join!(
            self.session(Lane::Renewals, "start"),
            self.session(Lane::Renewals, "start"),
            self.session(Lane::Leases, "start"),
        );
        // Only then do they go back.
        first.and(second).and(third).map(drop)
    }

    /// How many connections there are at this moment, and how many there may be, over all pools.
    pub(crate) fn size(&self) -> (usize, usize) {
        let all =
            [&self.renewals, &self.leases, &self.alone, &self.recovery, &self.general].map(Pool::status);
        (all.iter().map(|s| s.size).sum(), all.iter().map(|s| s.max_size).sum())
    }

    pub(crate) fn dialect(&self) -> &Dialect {
        &self.dialect
    }
}

/// A dead peer is noticed, and a connect attempt ends.
fn harden(config: &mut tokio_postgres::Config, settings: &DatabaseSettings, connect_timeout: Duration) {
    config
        .application_name(settings.application_name.clone())
        .connect_timeout(connect_timeout)
        .keepalives(true)
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(3))
        .keepalives_retries(3)
        .tcp_user_timeout(settings.store_timeout * 2);
}

/// What a direct connection sets for its session. (A transaction pooler would hand such settings on to
/// strangers, or lose them: there, [`super::connect`] checks that the server's defaults will do.)
fn session_settings(lane: Lane, timeout: Duration) -> String {
    // The server gives up soon after we did, so that nothing of ours waits for a lock for ever.
    let patience = timeout.saturating_mul(if lane == Lane::General { 20 } else { 2 }).as_millis();
    let mut settings = format!(
        "set default_transaction_isolation = 'read committed'; \
         set synchronous_commit = {SYNC}; \
         set statement_timeout = {patience}; \
         set idle_in_transaction_session_timeout = {patience}; \
         set jit = off",
    );
    if !matches!(lane, Lane::General | Lane::Recovery) {
        // These statements find their rows by key, whatever the statistics say at the moment.
        settings.push_str(
            "; set plan_cache_mode = force_generic_plan; set enable_seqscan = off; \
             set enable_mergejoin = off",
        );
    }
    settings
}

/// Replaced by the level that the connection found, raised to `on` where that is less.
const SYNC: &str = "$SYNC";

/// Opens connections on the store's own runtime, whoever asks: a caller's runtime may end before they do.
#[derive(Clone)]
struct Opener {
    servers: Arc<Servers>,
    dialect: Arc<Dialect>,
    io: Handle,
    session: String,
    /// For each server.
    patience: Duration,
    unreplicated: Arc<Unreplicated>,
}

type Opened = (Client, JoinHandle<()>);

impl deadpool_postgres::Connect for Opener {
    fn connect(&self, _: &tokio_postgres::Config) -> BoxFuture<'_, Result<Opened, tokio_postgres::Error>> {
        let opener = self.clone();
        let opened = self.io.spawn(async move { opener.open().await });
        Box::pin(async move { opened.await.unwrap_or_else(|_| Err(no_answer())) })
    }
}

impl Opener {
    /// A connection to the first server that is the fleet's primary, beginning with the one that was last time.
    async fn open(&self) -> Result<Opened, tokio_postgres::Error> {
        let mut refused: Option<tokio_postgres::Error> = None;
        for (at, address) in self.servers.in_turn() {
            match timeout(self.patience, self.open_at(at, address)).await.unwrap_or_else(|_| Err(no_answer()))
            {
                Ok(opened) => return Ok(opened),
                Err(e) => {
                    // What a server says tells more than the silence of another.
                    if refused.as_ref().is_none_or(|r| r.as_db_error().is_none()) {
                        refused = Some(e);
                    }
                }
            }
        }
        Err(refused.unwrap_or_else(no_answer))
    }

    async fn open_at(&self, at: usize, address: &Address) -> Result<Opened, tokio_postgres::Error> {
        let (client, connection) = address.config.connect(address.tls.clone()).await?;
        let unreplicated = Arc::clone(&self.unreplicated);
        let driver = self.io.spawn(async move { drive(connection, &unreplicated).await });
        let (server, level) = servers::meet(&client, Some(self.servers.known())).await?;
        if !self.dialect.is_pooled() {
            // Commits wait for the disk; or for the standby, where the server says so.
            let sync = if level == "remote_apply" { "remote_apply" } else { "on" };
            client.batch_execute(&self.session.replace(SYNC, sync)).await?;
        }
        self.servers.met(at, server);
        Ok((client, driver))
    }
}

fn no_answer() -> tokio_postgres::Error {
    tokio_postgres::Error::__private_api_timeout()
}

/// Moves a connection's messages. A warning arrives before the success that it qualifies, and is counted before that
/// is handed on.
async fn drive<S, T>(mut connection: Connection<S, T>, unreplicated: &Unreplicated)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                if error::is_unreplicated(&notice) {
                    unreplicated.0.fetch_add(1, Ordering::SeqCst);
                    tracing::warn!("a commit's wait for the synchronous standby was cancelled; asking again");
                }
            }
            Some(Ok(_)) => {}
            Some(Err(e)) => {
                return tracing::debug!(error = %error::describe(&e), "a database connection ended");
            }
            None => return,
        }
    }
}
