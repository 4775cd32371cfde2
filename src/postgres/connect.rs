//! The first contact with a database: can it be reached, which server is the primary, what stands between, does its
//! schema fit?

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use tokio::runtime::Handle;
use uuid::Uuid;

use super::{
    error,
    migrate::{self, MigrateError, SchemaStatus},
    pool::Pools,
    servers::{self, Servers},
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
    /// The server has no connection left for us.
    #[error(
        "the database has no connection left: {0}; raise the server's max_connections (or the limit of this user or \
         database), or lower DATABASE_POOL_SIZE of the workers"
    )]
    Full(String),
    /// A standby or a read-only server answered.
    #[error(
        "the database is a standby and takes no writes; let DATABASE_URL name the primary, or all servers, \
         separated by commas"
    )]
    Standby,
    /// A server that was the primary until another one was promoted in its place.
    #[error(
        "{0}; rebuild it as a standby of the present primary (pg_rewind, pg_basebackup), and let DATABASE_URL name that \
         one"
    )]
    Superseded(String),
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
        matches!(self, Self::Unreachable(_) | Self::Full(_) | Self::Standby | Self::Superseded(_))
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
        let settings = settings.clone();
        io.spawn(async move { look(&settings, &address).await })
    };
    let (servers, pooled) =
        look.await.map_err(|_| ConnectError::Unreachable("the runtime is shutting down".to_owned()))??;
    let dialect = Dialect::new(pooled, settings.pooler != Pooler::Auto, replaced);
    Ok(Pools::new(settings, servers, dialect, io))
}

/// The servers, of which we know the primary; and true when a transaction pooler stands between.
async fn look(settings: &DatabaseSettings, address: &Address) -> Result<(Servers, bool), ConnectError> {
    let addresses = address.servers();
    let found = primary(settings, &addresses).await?;
    let pooled = found.pooled;
    if pooled && found.isolation != "read committed" {
        return Err(ConnectError::UnsafeDefault {
            setting: "default_transaction_isolation",
            value: found.isolation,
            wanted: "read committed",
        });
    }
    if pooled && !matches!(found.commit.as_str(), "on" | "remote_apply") {
        return Err(ConnectError::UnsafeDefault {
            setting: "synchronous_commit",
            value: found.commit,
            wanted: "on",
        });
    }
    match migrate::status_of(&found.client).await {
        Ok(SchemaStatus::Current { .. }) => {}
        Ok(SchemaStatus::Missing) => {
            return Err(ConnectError::NotMigrated { found: "missing".to_owned() });
        }
        Ok(SchemaStatus::Behind { version, latest }) => {
            let found = format!("at version {version}, and {latest} is needed");
            return Err(ConnectError::NotMigrated { found });
        }
        Ok(SchemaStatus::Newer { version, latest }) => return Err(ConnectError::Newer { version, latest }),
        Err(MigrateError::Connect(e)) => return Err(e),
        Err(e) => return Err(ConnectError::Unreachable(e.to_string())),
    }
    let (known, _) = servers::meet(&found.client, None).await.map_err(|e| {
        if error::is_superseded(&e) {
            ConnectError::Superseded(error::describe(&e))
        } else if error::is_read_only(&e) {
            ConnectError::Standby
        } else {
            ConnectError::Unreachable(error::describe(&e))
        }
    })?;
    Ok((Servers::new(addresses, found.at, known), pooled))
}

/// A primary that answered.
pub(super) struct Primary {
    pub(super) client: tokio_postgres::Client,
    /// Which of the addresses it is.
    pub(super) at: usize,
    /// A transaction pooler stands between.
    pub(super) pooled: bool,
    isolation: String,
    commit: String,
    system: String,
    timeline: i64,
    generation: i64,
}

impl Primary {
    /// After a failover the earlier primary may still answer, and take writes.
    fn is_later_than(&self, other: &Self) -> bool {
        if self.system == other.system {
            (self.timeline, self.generation) > (other.timeline, other.generation)
        } else {
            (self.generation, self.timeline) > (other.generation, other.timeline)
        }
    }
}

/// The latest primary among the servers. All are asked at once, so that one that is down costs no time.
pub(super) async fn primary(
    settings: &DatabaseSettings,
    addresses: &[Address],
) -> Result<Primary, ConnectError> {
    let asked = addresses.iter().enumerate().map(|(at, address)| primary_at(settings, address, at));
    let mut best: Option<Primary> = None;
    let mut refused = Vec::new();
    for (answer, address) in join_all(asked).await.into_iter().zip(addresses) {
        match answer {
            Ok(found) if best.as_ref().is_none_or(|best| found.is_later_than(best)) => best = Some(found),
            Ok(_) => {}
            Err(e) => refused.push((e, address)),
        }
    }
    if let Some(best) = best {
        return Ok(best);
    }
    let all = |sort: fn(&ConnectError) -> bool| refused.iter().all(|(e, _)| sort(e));
    if refused.len() == 1
        || all(|e| matches!(e, ConnectError::Standby))
        || all(|e| matches!(e, ConnectError::Full(_)))
    {
        return Err(refused.swap_remove(0).0);
    }
    let each: Vec<String> = refused
        .iter()
        .map(|(e, address)| match e {
            ConnectError::Unreachable(why) | ConnectError::Full(why) => format!("{}: {why}", address.name()),
            ConnectError::Standby => format!("{}: a standby", address.name()),
            other => format!("{}: {other}", address.name()),
        })
        .collect();
    Err(ConnectError::Unreachable(format!("no primary among its servers ({})", each.join("; "))))
}

async fn primary_at(
    settings: &DatabaseSettings,
    address: &Address,
    at: usize,
) -> Result<Primary, ConnectError> {
    let (client, pooled) = match settings.pooler {
        Pooler::None => (plain(settings, address).await?, false),
        Pooler::Transaction => (plain(settings, address).await?, true),
        Pooler::Auto => probe(settings, address).await?,
    };
    let facts = ask(
        &client,
        "select pg_is_in_recovery(), current_setting('default_transaction_isolation'), \
                current_setting('synchronous_commit'), (select system_identifier from pg_control_system()), \
                case when pg_is_in_recovery() then 0 \
                     else ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint end, \
                to_regclass('leasehold.fleet') is not null",
    )
    .await?;
    let [standby, isolation, commit, system, timeline, has_fleet] = facts.as_slice() else {
        return Err(ConnectError::Unreachable("it is not a PostgreSQL server".to_owned()));
    };
    if standby == "t" {
        return Err(ConnectError::Standby);
    }
    let generation = match has_fleet.as_str() {
        "t" => ask(&client, "select cluster_generation from leasehold.fleet").await?,
        _ => Vec::new(),
    };
    let number = |text: &str| text.parse().unwrap_or(0);
    Ok(Primary {
        pooled,
        at,
        isolation: isolation.clone(),
        commit: commit.clone(),
        system: system.clone(),
        timeline: number(timeline),
        generation: generation.first().map_or(0, |text| number(text)),
        client,
    })
}

/// One row by the simple protocol, which every pooler passes on.
async fn ask(client: &tokio_postgres::Client, query: &str) -> Result<Vec<String>, ConnectError> {
    let answer =
        client.simple_query(query).await.map_err(|e| ConnectError::Unreachable(error::describe(&e)))?;
    let row = answer.iter().find_map(|m| match m {
        tokio_postgres::SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|n| row.get(n).unwrap_or_default().to_owned()).collect())
        }
        _ => None,
    });
    Ok(row.unwrap_or_default())
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
        Ok(client) => marked_or_not(client, &nonce).await,
        // Not reachable at all, or refused for the option: only the second connects without it.
        Err(refused) => match plain(settings, address).await {
            // A server that had not quite started a moment ago refuses the first, too, and takes the second.
            Ok(without) => match plain(settings, &marked).await {
                Ok(client) => marked_or_not(client, &nonce).await,
                Err(_) => Ok((without, true)),
            },
            Err(_) => Err(refused),
        },
    }
}

/// Whether the setting that the connection was started with has reached its session: false where it has.
async fn marked_or_not(
    client: tokio_postgres::Client,
    nonce: &str,
) -> Result<(tokio_postgres::Client, bool), ConnectError> {
    let answer = client
        .simple_query("select current_setting('leasehold.probe', true)")
        .await
        .map_err(|e| ConnectError::Unreachable(error::describe(&e)))?;
    let direct = answer
        .iter()
        .any(|m| matches!(m, tokio_postgres::SimpleQueryMessage::Row(row) if row.get(0) == Some(nonce)));
    Ok((client, !direct))
}

/// One connection outside of all pools, for migrations and for the first look.
pub(crate) async fn connect_plain(
    settings: &DatabaseSettings,
) -> Result<tokio_postgres::Client, ConnectError> {
    let servers = tls::parse(&settings.url, settings.ca_file.as_ref())?.servers();
    match servers.as_slice() {
        [only] => plain(settings, only).await,
        several => Ok(primary(settings, several).await?.client),
    }
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
        .map_err(|e| match error::is_full(&e) {
            true => ConnectError::Full(error::describe(&e)),
            false => ConnectError::Unreachable(error::describe(&e)),
        })?;
    tokio::spawn(connection);
    Ok(client)
}
