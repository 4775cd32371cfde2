//! The connections of one store: who may use how many, how they are opened, and what each has set.
//!
//! Pools by purpose, so that nobody starves what keeps leases alive: renewals have two connections to themselves;
//! claims, ends and the other calls of a lease have a few; calls that wait for a locked row wait on others;
//! everything else (submits, listings, pages) shares the configured rest. All are opened when first needed.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime};
use futures_util::future::BoxFuture;
use leasehold_actors::error::StoreError;
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_postgres::Row;

use super::{
    error,
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
    /// Everything else.
    General,
}

/// Connections kept for renewals.
const RENEWAL_CONNECTIONS: usize = 2;
/// Connections for the other calls of leases: two statements of claims and two of ends may be under way.
const LEASE_CONNECTIONS: usize = 4;
/// Connections for calls that wait for a row.
const ALONE_CONNECTIONS: usize = 3;

/// All connections of one store. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Pools {
    renewals: Pool,
    leases: Pool,
    alone: Pool,
    general: Pool,
    dialect: Arc<Dialect>,
    /// The longest that one call may take.
    pub(crate) timeout: Duration,
}

impl Pools {
    pub(crate) fn new(settings: &DatabaseSettings, address: &Address, dialect: Dialect, io: &Handle) -> Self {
        let dialect = Arc::new(dialect);
        let timeout = settings.store_timeout;
        let pool = |lane: Lane, size: usize| {
            let opener = Opener {
                address: address.clone(),
                dialect: Arc::clone(&dialect),
                io: io.clone(),
                session: session_settings(lane, timeout),
            };
            let mut config = address.config.clone();
            harden(&mut config, settings);
            let manager = Manager::from_connect(
                config,
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
            general: pool(Lane::General, settings.pool_size.max(1)),
            dialect,
            timeout,
        }
    }

    /// A connection, within the call's own time.
    pub(crate) async fn session(&self, lane: Lane, operation: &'static str) -> Result<Session, StoreError> {
        let pool = match lane {
            Lane::Renewals => &self.renewals,
            Lane::Leases => &self.leases,
            Lane::Alone => &self.alone,
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
        match tokio::time::timeout(self.timeout, work(&session)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => {
                if error::is_read_only(&e) {
                    self.start_afresh();
                }
                if error::spoils_connection(&e) {
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

    /// The server takes no writes: whatever idles in a pool may still point at it when another one does.
    fn start_afresh(&self) {
        for pool in [&self.renewals, &self.leases, &self.alone, &self.general] {
            let _ = pool.retain(|_, _| false);
        }
    }

    /// How many connections there are at this moment, and how many there may be, over all pools.
    pub(crate) fn size(&self) -> (usize, usize) {
        let all = [&self.renewals, &self.leases, &self.alone, &self.general].map(Pool::status);
        (all.iter().map(|s| s.size).sum(), all.iter().map(|s| s.max_size).sum())
    }

    pub(crate) fn dialect(&self) -> &Dialect {
        &self.dialect
    }
}

/// A dead peer is noticed, and a connect attempt ends.
fn harden(config: &mut tokio_postgres::Config, settings: &DatabaseSettings) {
    config
        .application_name(settings.application_name.clone())
        .connect_timeout(settings.store_timeout)
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
    if lane != Lane::General {
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
struct Opener {
    address: Address,
    dialect: Arc<Dialect>,
    io: Handle,
    session: String,
}

impl deadpool_postgres::Connect for Opener {
    fn connect(
        &self,
        config: &tokio_postgres::Config,
    ) -> BoxFuture<'_, Result<(tokio_postgres::Client, JoinHandle<()>), tokio_postgres::Error>> {
        let (config, tls) = (config.clone(), self.address.tls.clone());
        let session = (!self.dialect.is_pooled()).then(|| self.session.clone());
        let io = self.io.clone();
        let opened = self.io.spawn(async move {
            let (client, connection) = config.connect(tls).await?;
            let driver = io.spawn(async move {
                if let Err(e) = connection.await {
                    tracing::debug!(error = %error::describe(&e), "a database connection ended");
                }
            });
            if let Some(settings) = session {
                prepare_session(&client, &settings).await?;
            }
            Ok((client, driver))
        });
        Box::pin(async move {
            opened.await.unwrap_or_else(|_| Err(tokio_postgres::Error::__private_api_timeout()))
        })
    }
}

/// Sets up a direct connection: commits wait for the disk (or for the standby, where the server says so).
async fn prepare_session(
    client: &tokio_postgres::Client,
    settings: &str,
) -> Result<(), tokio_postgres::Error> {
    let level = client.simple_query("show synchronous_commit").await?;
    let level = level.iter().find_map(|m| match m {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let sync = if level == Some("remote_apply") { "remote_apply" } else { "on" };
    client.batch_execute(&settings.replace(SYNC, sync)).await
}
