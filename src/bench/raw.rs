//! The store's own statements without anything above them: the yardstick.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_actors::domain::{LeaseToken, Namespace, ProcessId};
use tokio::time::Instant;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    BenchError, drain,
    fixture::{Bench, HANDLER},
    server::Effort,
};
use crate::postgres::raw::{CLAIM, COMPLETE, RENEW, RawSession};

/// Jobs in one statement.
const BATCH: usize = 500;
/// Connections, each with its own batches.
const CONNECTIONS: usize = 2;
const LEASE_MS: i32 = 30_000;

/// One drain by the statements alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawDrain {
    pub(super) jobs: u32,
    pub(super) took: Duration,
    pub(super) effort: Effort,
}

/// Drives the statements on one connection.
pub(super) struct Driver {
    session: RawSession,
    namespace: Namespace,
    process: Uuid,
    /// Where the next claim begins to look, as the store's own low-water mark does.
    from: (i16, DateTime<Utc>, i64),
}

/// Before every job.
const FIRST: (i16, DateTime<Utc>, i64) = (i16::MIN, DateTime::UNIX_EPOCH, i64::MIN);

/// Grants, column by column, in ascending order of the jobs.
struct Grants {
    jobs: Vec<i64>,
    tokens: Vec<Uuid>,
}

impl Driver {
    pub(super) async fn new(bench: &Bench<'_>, namespace: &Namespace) -> Result<Self, BenchError> {
        let session = bench.store.raw_session().await?;
        Ok(Self { session, namespace: namespace.clone(), process: ProcessId::generate().0, from: FIRST })
    }

    /// One claim of at most so many jobs; answers how many.
    pub(super) async fn claim(&mut self, most: usize) -> Result<usize, BenchError> {
        Ok(self.take(most).await?.jobs.len())
    }

    async fn take(&mut self, most: usize) -> Result<Grants, BenchError> {
        let tokens: Vec<Uuid> = (0..most).map(|_| LeaseToken::generate().expose_to_store()).collect();
        let (rank, due, job) = self.from;
        let rows = self
            .session
            .query(
                &CLAIM,
                &[
                    &self.namespace.as_str(),
                    &vec![Uuid::new_v4()],
                    &vec!["bench-raw"],
                    &vec![self.process],
                    &vec![LEASE_MS],
                    &vec!["bench"],
                    &vec!["claim"],
                    &vec![false],
                    &vec!["HANDLER"],
                    &vec![HANDLER],
                    &vec![""],
                    &vec![rank],
                    &vec![due],
                    &vec![job],
                    &tokens,
                    &vec![1_i32; most],
                    &Vec::<i64>::new(),
                    &Vec::<i64>::new(),
                    &Vec::<i32>::new(),
                    &Vec::<Uuid>::new(),
                    &Vec::<i32>::new(),
                    &false,
                    // No recipes: no version of them is known, and nothing has to fit.
                    &0_i32,
                    &0_i32,
                    &0_i32,
                    &0_i32,
                    &None::<i64>,
                    &None::<i64>,
                    &None::<i64>,
                    &None::<&str>,
                    &None::<&str>,
                    &None::<&str>,
                    &None::<&str>,
                    &None::<&str>,
                ],
            )
            .await?;
        let mut grants: Vec<(i64, Uuid)> = Vec::with_capacity(rows.len());
        for row in &rows {
            grants.push((column(row, "job_id")?, column(row, "token")?));
            self.from = self.from.max((column(row, "rank")?, column(row, "due_at")?, column(row, "job_id")?));
        }
        grants.sort_unstable();
        let (jobs, tokens) = grants.into_iter().unzip();
        Ok(Grants { jobs, tokens })
    }

    /// Claim, renewal, end: batch after batch until nothing is left.
    async fn drain(mut self) -> Result<(), BenchError> {
        loop {
            let looked_at_everything = self.from == FIRST;
            let grants = self.take(BATCH).await?;
            let count = grants.jobs.len();
            if count == 0 {
                if looked_at_everything {
                    return Ok(());
                }
                self.from = FIRST;
                continue;
            }
            let owners = vec![1_i32; count];
            let (namespaces, workers, processes) =
                (vec![self.namespace.as_str()], vec!["bench-raw"], vec![self.process]);
            let renewed = self
                .session
                .query(&RENEW, &[&grants.jobs, &grants.tokens, &owners, &namespaces, &workers, &processes])
                .await?;
            let commands: Vec<Uuid> = (0..count).map(|_| Uuid::new_v4()).collect();
            let ended = self
                .session
                .query(
                    &COMPLETE,
                    &[
                        &grants.jobs,
                        &grants.tokens,
                        &owners,
                        &namespaces,
                        &workers,
                        &processes,
                        &commands,
                        &vec![None::<i32>; count],
                        &vec![None::<&str>; count],
                    ],
                )
                .await?;
            if renewed.len() != count || ended.len() != count {
                return Err(BenchError::Invalidated(format!(
                    "of {count} raw leases {} were renewed and {} ended",
                    renewed.len(),
                    ended.len()
                )));
            }
        }
    }
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, BenchError> {
    Ok(row.try_get(name)?)
}

/// Fills a namespace and drains it.
pub(super) async fn drain(bench: &Bench<'_>, jobs: u32) -> Result<RawDrain, BenchError> {
    let namespace = bench.namespace();
    bench.fill(&namespace, jobs).await?;
    let mut drivers = Vec::new();
    for _ in 0..CONNECTIONS {
        drivers.push(Driver::new(bench, &namespace).await?);
    }
    let before = bench.server.counters().await?;
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for driver in drivers {
        tasks.spawn(driver.drain());
    }
    while let Some(drained) = tasks.join_next().await {
        drained.map_err(|e| BenchError::Invalidated(format!("a raw driver panicked: {e}")))??;
    }
    let took = begun.elapsed();
    let at_once = bench.server.counters().await?;
    bench.check(&namespace, jobs).await?;
    let delivered = drain::delivered(bench).await?;
    Ok(RawDrain { jobs, took, effort: before.until(at_once, delivered) })
}
