//! The first contact with a database: can it be reached, what stands between, does its schema fit?

use std::{collections::HashMap, time::Duration};

use tokio::runtime::Handle;
use uuid::Uuid;

use super::{
    error,
    migrate::{self, MigrateError, SchemaStatus},
    pool::Pools,
    session::Dialect,
    tls::{self, Address, AddressError},
};
use crate::config::{DatabaseSettings, Pooler};

/// Why there is no store. Never shows the connection string or its password.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    /// The connection string cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Nobody answers, or the server refuses this user or database.
    #[error("cannot reach the database: {0}; is the server up, and is DATABASE_URL right?")]
    Unreachable(String),
    /// A standby or a read-only server answered.
    #[error("the database is a standby and takes no writes; let DATABASE_URL name the primary")]
    Standby,
    /// The schema is missing or behind.
    #[error("the database's schema is {found}; run `leasehold migrate`")]
    NotMigrated {
        /// `missing`, or its version.
        found: String,
    },
    /// The schema belongs to a newer program.
    #[error(
        "the database's schema is version {version}, newer than this program's {latest}; use a newer leasehold"
    )]
    Newer {
        /// The database's version.
        version: i32,
        /// The program's version.
        latest: i32,
    },
    /// Through a transaction pooler the server's own defaults apply, and these would not do.
    #[error("{setting} is {value} for this user and database; run: alter role … set {setting} = '{wanted}'")]
    UnsafeDefault {
        /// The server setting.
        setting: &'static str,
        /// What it is.
        value: String,
        /// What it must be.
        wanted: &'static str,
    },
}

impl ConnectError {
    /// True when trying again later may help without anybody changing a setting.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Standby)
    }
}

/// Opens a store's pools after one look at the database through a connection of its own.
pub(super) async fn open(
    settings: &DatabaseSettings,
    io: &Handle,
    replaced: HashMap<&'static str, &'static str>,
) -> Result<Pools, ConnectError> {
    let address = tls::parse(&settings.url, settings.ca_file.as_ref())?;
    let look = {
        let (settings, address) = (settings.clone(), address.clone());
        io.spawn(async move { look(&settings, &address).await })
    };
    let pooled =
        look.await.map_err(|_| ConnectError::Unreachable("the runtime is shutting down".to_owned()))??;
    let dialect = Dialect::new(pooled, settings.pooler != Pooler::Auto, replaced);
    Ok(Pools::new(settings, &address, dialect, io))
}

/// True when a transaction pooler stands between.
async fn look(settings: &DatabaseSettings, address: &Address) -> Result<bool, ConnectError> {
    let (client, pooled) = match settings.pooler {
        Pooler::None => (plain(settings, address).await?, false),
        Pooler::Transaction => (plain(settings, address).await?, true),
        Pooler::Auto => probe(settings, address).await?,
    };
    let unreachable = |e: &tokio_postgres::Error| ConnectError::Unreachable(error::describe(e));
    let facts = client
        .simple_query(
            "select pg_is_in_recovery(), current_setting('default_transaction_isolation'), \
                    current_setting('synchronous_commit')",
        )
        .await
        .map_err(|e| unreachable(&e))?;
    let facts: Vec<String> = facts
        .iter()
        .find_map(|m| match m {
            tokio_postgres::SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|n| row.get(n).unwrap_or_default().to_owned()).collect())
            }
            _ => None,
        })
        .unwrap_or_default();
    let [standby, isolation, commit] = facts.as_slice() else {
        return Err(ConnectError::Unreachable("it is not a PostgreSQL server".to_owned()));
    };
    if standby == "t" {
        return Err(ConnectError::Standby);
    }
    if pooled && isolation != "read committed" {
        return Err(ConnectError::UnsafeDefault {
            setting: "default_transaction_isolation",
            value: isolation.clone(),
            wanted: "read committed",
        });
    }
    if pooled && !matches!(commit.as_str(), "on" | "remote_apply") {
        return Err(ConnectError::UnsafeDefault {
            setting: "synchronous_commit",
            value: commit.clone(),
            wanted: "on",
        });
    }
    match migrate::status_of(&client).await {
        Ok(SchemaStatus::Current { .. }) => Ok(pooled),
        Ok(SchemaStatus::Missing) => Err(ConnectError::NotMigrated { found: "missing".to_owned() }),
        Ok(SchemaStatus::Behind { version, latest }) => {
            Err(ConnectError::NotMigrated { found: format!("at version {version}, and {latest} is needed") })
        }
        Ok(SchemaStatus::Newer { version, latest }) => Err(ConnectError::Newer { version, latest }),
        Err(MigrateError::Connect(e)) => Err(e),
        Err(e) => Err(ConnectError::Unreachable(e.to_string())),
    }
}

/// Finds out whether we speak to the server itself. A session setting sent at start-up reaches only the
/// session that it starts: a pooler refuses it, or drops it, since its server sessions exist already.
pub(super) async fn probe(
    settings: &DatabaseSettings,
    address: &Address,
) -> Result<(tokio_postgres::Client, bool), ConnectError> {
    let nonce = Uuid::new_v4().simple().to_string();
    let mut marked = address.clone();
    let options = marked.config.get_options().map_or_else(String::new, |given| format!("{given} "));
    marked.config.options(format!("{options}-c leasehold.probe={nonce}"));
    match plain(settings, &marked).await {
        Ok(client) => {
            let answer = client
                .simple_query("select current_setting('leasehold.probe', true)")
                .await
                .map_err(|e| ConnectError::Unreachable(error::describe(&e)))?;
            let direct = answer.iter().any(
                |m| matches!(m, tokio_postgres::SimpleQueryMessage::Row(row) if row.get(0) == Some(&nonce)),
            );
            Ok((client, !direct))
        }
        // Not reachable at all, or refused for the option: only the second connects without it.
        Err(refused) => match plain(settings, address).await {
            Ok(client) => Ok((client, true)),
            Err(_) => Err(refused),
        },
    }
}

/// One connection outside of all pools, for migrations and for the first look.
pub(crate) async fn connect_plain(
    settings: &DatabaseSettings,
) -> Result<tokio_postgres::Client, ConnectError> {
    plain(settings, &tls::parse(&settings.url, settings.ca_file.as_ref())?).await
}

async fn plain(
    settings: &DatabaseSettings,
    address: &Address,
) -> Result<tokio_postgres::Client, ConnectError> {
    let mut config = address.config.clone();
    // Whoever waits for a start-up wants an answer, also from a host that swallows packets.
    let limit = settings.store_timeout.max(Duration::from_secs(1));
    config.application_name(settings.application_name.clone()).connect_timeout(limit);
    let connected = tokio::time::timeout(limit, config.connect(address.tls.clone())).await;
    let (client, connection) = connected
        .map_err(|_| ConnectError::Unreachable(format!("no answer within {limit:?}")))?
        .map_err(|e| ConnectError::Unreachable(error::describe(&e)))?;
    tokio::spawn(connection);
    Ok(client)
}
