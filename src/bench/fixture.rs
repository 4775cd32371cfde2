//! The benchmark's own corner of the database: its namespaces, the jobs in them, and their removal.

use std::sync::{Mutex, PoisonError};

use leasehold_actors::domain::{JobDefinition, Namespace, NewJob};

use super::{BenchError, fresh_namespace, server::Server};
use crate::{config::DatabaseSettings, postgres::PgStore};

/// The handler that the jobs name.
pub(super) const HANDLER: &str = "bench-noop";

/// Jobs in one bulk submit.
const BULK: usize = 10_000;

/// Everything in it goes away again.
const TABLES: &[&str] = &[
    "waiting",
    "ready",
    "leases",
    "ended",
    "lease_history",
    "job_logs",
    "job_progress",
    "commands",
    "node_slots",
    "task_containers",
    "workflow_slots",
    "workers",
    "idempotency_keys",
    "recipe_events",
    "recipe_children",
    "signals",
    "recipes",
    "jobs",
];

pub(super) struct Bench<'a> {
    pub(super) database: DatabaseSettings,
    pub(super) server: Server,
    pub(super) store: PgStore,
    progress: &'a (dyn Fn(&str) + Send + Sync),
    namespaces: Mutex<Vec<Namespace>>,
}

impl<'a> Bench<'a> {
    pub(super) async fn start(
        database: &DatabaseSettings,
        progress: &'a (dyn Fn(&str) + Send + Sync),
    ) -> Result<Self, BenchError> {
        let store = PgStore::connect(database, tokio::runtime::Handle::current()).await?;
        let server = Server::connect(database).await?;
        let bench =
            Self { database: database.clone(), server, store, progress, namespaces: Mutex::default() };
        bench.remove_leftovers().await?;
        Ok(bench)
    }

    pub(super) fn say(&self, what: &str) {
        (self.progress)(what);
    }

    /// A namespace for one measurement.
    pub(super) fn namespace(&self) -> Namespace {
        let namespace = fresh_namespace();
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).push(namespace.clone());
        namespace
    }

    /// Puts so many no-op jobs, due at once, into a namespace.
    pub(super) async fn fill(&self, namespace: &Namespace, jobs: u32) -> Result<(), BenchError> {
        let mut job = NewJob::ad_hoc(JobDefinition::Handler { name: HANDLER.to_owned() });
        job.namespace = namespace.clone();
        let mut left = jobs as usize;
        while left > 0 {
            let now = left.min(BULK);
            self.store.submit_bulk(vec![job.clone(); now]).await?;
            left -= now;
        }
        Ok(())
    }

    /// Every job of the namespace is COMPLETED at its first attempt, with one lease each.
    pub(super) async fn check(&self, namespace: &Namespace, jobs: u32) -> Result<(), BenchError> {
        let rows = self
            .server
            .client()
            .query_typed(
                "select (select count(*) from leasehold.ended where namespace = $1 and state = 'COMPLETED' and attempt = 1),
                        (select count(*) from leasehold.lease_history where namespace = $1 and renewals >= 1)",
                &[(&namespace.as_str(), tokio_postgres::types::Type::TEXT)],
            )
            .await?;
        let row = rows.first().ok_or_else(|| BenchError::Sql("no counts".to_owned()))?;
        let (completed, leases): (i64, i64) = (row.get(0), row.get(1));
        if completed != i64::from(jobs) || leases != i64::from(jobs) {
            return Err(BenchError::Invalidated(format!(
                "of {jobs} jobs {completed} completed at their first attempt, under {leases} renewed leases"
            )));
        }
        Ok(())
    }

    /// Removes what this run has written.
    pub(super) async fn clean_up(&self) -> Result<(), BenchError> {
        let namespaces = std::mem::take(&mut *self.namespaces.lock().unwrap_or_else(PoisonError::into_inner));
        let names: Vec<String> = namespaces.iter().map(|n| n.as_str().to_owned()).collect();
        self.remove(&names).await
    }

    /// Removes what runs left behind that were killed: namespaces of that form without a live lease.
    async fn remove_leftovers(&self) -> Result<(), BenchError> {
        let rows = self
            .server
            .client()
            .query_typed(
                "select distinct w.namespace from leasehold.workers w
                 where w.namespace ~ '^bench-[0-9a-f]{8}$' and w.seen_at < clock_timestamp() - interval '10 minutes'",
                &[],
            )
            .await?;
        self.remove(&rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()).await
    }

    async fn remove(&self, namespaces: &[String]) -> Result<(), BenchError> {
        if namespaces.is_empty() {
            return Ok(());
        }
        for table in TABLES {
            let text = format!("delete from leasehold.{table} where namespace = any ($1)");
            let types = [(&namespaces as _, tokio_postgres::types::Type::TEXT_ARRAY)];
            self.server.client().query_typed(&text, &types).await?;
        }
        Ok(())
    }
}
