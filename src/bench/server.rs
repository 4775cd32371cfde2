//! What the benchmark asks the server about itself, on a connection of its own.

use futures_util::{StreamExt as _, stream};
use tokio_postgres::{AsyncMessage, Client};

use super::BenchError;
use crate::{
    config::DatabaseSettings,
    postgres::{connect, tls},
};

/// Counters of the server at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counters {
    wal: i64,
    updates: i64,
    hot: i64,
}

/// What happened between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Effort {
    pub(super) wal_bytes: i64,
    /// Renewals that left all indexes alone, of all; none when nothing was renewed.
    pub(super) hot_ratio: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Server {
    client: Client,
}

impl Server {
    pub(super) async fn connect(database: &DatabaseSettings) -> Result<Self, BenchError> {
        Ok(Self { client: connect::connect_plain(database).await? })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) async fn version(&self) -> Result<String, BenchError> {
        let row = self.client.query_typed("select current_setting('server_version')", &[]).await?;
        Ok(row.first().map_or_else(String::new, |row| row.get(0)))
    }

    /// The counters of `leases`, which the server's sessions deliver with up to a second's delay.
    pub(super) async fn counters(&self) -> Result<Counters, BenchError> {
        let rows = self
            .client
            .query_typed(
                "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
                        coalesce(sum(n_tup_upd), 0)::bigint, coalesce(sum(n_tup_hot_upd), 0)::bigint
                 from pg_stat_user_tables where schemaname = 'leasehold' and relname = 'leases'",
                &[],
            )
            .await?;
        let row = rows.first().ok_or_else(|| BenchError::Sql("no counters".to_owned()))?;
        Ok(Counters { wal: row.get(0), updates: row.get(1), hot: row.get(2) })
    }
}

impl Counters {
    /// WAL is counted at once, renewals only once their session has delivered them: hence two later moments.
    pub(super) fn until(self, at_once: Self, delivered: Self) -> Effort {
        let updates = delivered.updates - self.updates;
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let hot_ratio = (updates > 0).then(|| (delivered.hot - self.hot) as f64 / updates as f64);
        Effort { wal_bytes: at_once.wal - self.wal, hot_ratio }
    }
}

/// A plain connection that calls `notified` for each notification.
pub(super) async fn listening(
    database: &DatabaseSettings,
    channel: &str,
    notified: impl Fn() + Send + 'static,
) -> Result<Client, BenchError> {
    let address =
        tls::parse(&database.url, database.ca_file.as_ref()).map_err(connect::ConnectError::from)?;
    let (client, mut connection) = address.config.connect(address.tls.clone()).await?;
    tokio::spawn(async move {
        let mut messages = std::pin::pin!(stream::poll_fn(move |cx| connection.poll_message(cx)));
        while let Some(Ok(message)) = messages.next().await {
            if matches!(message, AsyncMessage::Notification(_)) {
                notified();
            }
        }
    });
    client.batch_execute(&format!("listen {channel}")).await?;
    Ok(client)
}
