//! What recovery knows of expired leases between two passes.
//!
//! A look reads every lease of the namespace. While many are expired at once, one look serves several passes: what it
//! found is handed out bit by bit. All of it is advice: each lease is looked at again when its row is held.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use leasehold_actors::{domain::Namespace, error::StoreError};

use super::{
    error,
    pool::{Lane, Pools},
    renew::micros,
    sql_file::{Sql, sql},
};

static OUTLOOK: Sql = sql!("recovery_outlook", [TEXT]);
static CANDIDATES: Sql = sql!("recovery_candidates", [TEXT, INT8_ARRAY, INT8]);

const OPERATION: &str = "recover";

/// How long the findings of one look are handed out.
const GOOD_FOR: Duration = Duration::from_secs(5);
/// How far ahead a look sees; as in its statement.
const HORIZON: Duration = Duration::from_secs(15);
/// The most leases that one look brings.
const MOST: i64 = 10_000;

/// What each namespace's latest look found and nobody has asked for yet.
#[derive(Debug, Default)]
pub(super) struct Lookouts(Mutex<HashMap<Namespace, Lookout>>);

impl Lookouts {
    /// What is left of a look that was taken a moment ago.
    pub(super) fn left(&self, namespace: &Namespace) -> Option<Lookout> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(namespace).filter(|l| !l.candidates.is_empty() && l.looked.elapsed() < GOOD_FOR)
    }

    pub(super) fn keep(&self, namespace: &Namespace, lookout: Lookout) {
        if !lookout.candidates.is_empty() {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(namespace.clone(), lookout);
        }
    }
}

/// One look.
#[derive(Debug)]
pub(super) struct Lookout {
    looked: Instant,
    /// The database's clock at the look.
    clock: DateTime<Utc>,
    /// Expired leases that are still there, as far as is known.
    expired: u64,
    oldest: Option<DateTime<Utc>>,
    next: Option<Duration>,
    /// Those that may be taken over, the oldest first.
    candidates: VecDeque<(i64, DateTime<Utc>)>,
}

impl Lookout {
    /// Looks at every lease of the namespace, but for no candidates.
    pub(super) async fn glance(pools: &Pools, namespace: &Namespace) -> Result<Self, StoreError> {
        let garbled = |e| error::garbled(OPERATION, e);
        let looked = Instant::now();
        let rows = pools.call(Lane::Recovery, OPERATION, &OUTLOOK, &[&namespace.as_str()]).await?;
        let row = rows.first().ok_or_else(|| error::garbled(OPERATION, "no row"))?;
        let expired: i64 = row.try_get(0).map_err(garbled)?;
        let next: Option<i64> = row.try_get(2).map_err(garbled)?;
        // What expires later was not looked at more closely.
        let horizon = row.try_get::<_, bool>(4).map_err(garbled)?.then_some(HORIZON);
        Ok(Self {
            looked,
            clock: row.try_get(3).map_err(garbled)?,
            expired: u64::try_from(expired).unwrap_or(0),
            oldest: row.try_get(1).map_err(garbled)?,
            next: next.map(micros).into_iter().chain(horizon).min(),
            candidates: VecDeque::new(),
        })
    }

    /// Looks at every lease of the namespace; for candidates only where something has expired.
    pub(super) async fn take(
        pools: &Pools,
        namespace: &Namespace,
        running_here: &[i64],
    ) -> Result<Self, StoreError> {
        let garbled = |e| error::garbled(OPERATION, e);
        let mut lookout = Self::glance(pools, namespace).await?;
        if lookout.expired > 0 {
            let params: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
                &[&namespace.as_str(), &running_here, &MOST];
            let rows = pools.call(Lane::Recovery, OPERATION, &CANDIDATES, params).await?;
            for row in &rows {
                let candidate = (row.try_get(0).map_err(garbled)?, row.try_get(1).map_err(garbled)?);
                lookout.candidates.push_back(candidate);
            }
        }
        Ok(lookout)
    }

    /// The next candidates, at most so many.
    pub(super) fn next_candidates(&self, most: usize) -> Vec<i64> {
        self.candidates.iter().take(most).map(|(job, _)| *job).collect()
    }

    /// These were asked for, and some of them taken over, for the time of a lease. What was passed over is for the next look, so that it is in
    /// nobody's way until then.
    pub(super) fn asked(&mut self, asked: &[i64], taken: &[i64], all_looked_at: bool, lease: Duration) {
        let last = asked.iter().rposition(|job| taken.contains(job));
        let done = if all_looked_at { asked.len() } else { last.map_or(asked.len(), |at| at + 1) };
        for (_, expired_at) in self.candidates.drain(..done.min(self.candidates.len())) {
            if self.oldest == Some(expired_at) {
                self.oldest = None;
            }
        }
        self.expired = self.expired.saturating_sub(taken.len() as u64);
        if !taken.is_empty() {
            let new = self.looked.elapsed() + lease;
            self.next = Some(self.next.map_or(new, |next| next.min(new)));
        }
        if self.oldest.is_none() {
            self.oldest = self.candidates.front().map(|(_, expired_at)| *expired_at);
        }
    }

    pub(super) fn candidates_left(&self) -> usize {
        self.candidates.len()
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Something is left, and all that is known of it is that it is no candidate.
    pub(super) fn is_unsure(&self) -> bool {
        self.expired > 0 && self.oldest.is_none()
    }

    pub(super) fn backlog(&self) -> u64 {
        self.expired
    }

    /// How long ago the oldest lease expired that is left.
    pub(super) fn oldest(&self) -> Option<Duration> {
        let oldest = self.oldest.filter(|at| self.expired > 0 && *at <= self.clock)?;
        Some((self.clock - oldest).to_std().unwrap_or_default() + self.looked.elapsed())
    }

    /// Time until the next lease expires.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        self.next.map(|next| next.saturating_sub(self.looked.elapsed()))
    }
}
