//! What a walk does once everything recorded has been walked over: it compares, runs and records.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::execution::{Requirements, overlay},
    ports::recipe::{Event, NewEvent, Recorded},
    work::{LeaseContext, StopReason},
};
use tokio::{runtime::Handle, time::Instant};

use super::{
    ParkKey, Parked, Session,
    env::Scopes,
    failure::{Fatal, Fault},
    lock, order,
    strand::Strand,
    walk::never,
};
use crate::recipe::{
    execution::{GuardedTask, JobRuntime, RunWatch, Stage},
    ops::secrets::Secrets,
    schemas::JobSchemas,
};

/// How long a task that was stopped for a sibling or a timeout may take to end.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(5);

/// Between two tries of a record without an answer.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// What a walk needs to do more than read.
pub(in crate::recipe) struct Hands {
    pub(in crate::recipe) runtime: Arc<dyn JobRuntime>,
    pub(in crate::recipe) lease: LeaseContext,
    pub(in crate::recipe) stage: Stage,
    pub(in crate::recipe) tasks: Arc<BTreeMap<String, GuardedTask>>,
    pub(in crate::recipe) secrets: Arc<Secrets>,
    pub(in crate::recipe) schemas: JobSchemas,
    /// Where ops run: apart from what renews leases.
    pub(in crate::recipe) threads: Handle,
    /// Who looks on.
    pub(in crate::recipe) watch: Arc<RunWatch>,
}

impl fmt::Debug for Hands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hands").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// What became of a record.
#[derive(Debug)]
pub(super) enum Record {
    /// This stands in the log now: what was to be recorded, or what was recorded there before.
    Stands(Arc<Event>),
    NotYet,
    Refused {
        code: &'static str,
        message: String,
    },
}

/// Takes a strand out of the parked ones when it moves again, or is given up.
pub(super) struct Park<'a> {
    session: &'a Session,
    key: ParkKey,
}

impl Drop for Park<'_> {
    fn drop(&mut self) {
        lock(&self.session.parked).remove(&self.key);
    }
}

impl Session {
    /// Comes back when the walk is live and this strand may begin something new.
    pub(super) async fn come_alive(&self, path: &str, strand: &mut Strand) {
        let _park = self.hands.is_none().then(|| self.park(path, Parked::Missing));
        self.look_on(strand).await;
    }

    /// As [`Session::come_alive`], for a strand that only looks on: it rests until then, and is missed by nobody.
    pub(super) async fn look_on(&self, strand: &mut Strand) {
        strand.rest();
        if self.hands.is_none() {
            return never(strand).await;
        }
        loop {
            let went_live = self.went_live.notified();
            let mut went_live = std::pin::pin!(went_live);
            went_live.as_mut().enable();
            if self.live.load(Ordering::Relaxed) {
                return self.go_on(strand).await;
            }
            went_live.await;
        }
    }

    /// Moves on, unless nothing new may begin any more.
    pub(super) async fn go_on(&self, strand: &mut Strand) {
        if self.stopping.load(Ordering::Relaxed) || strand.group.stop_reason().is_some() {
            return never(strand).await;
        }
        strand.resume();
    }

    /// The hands of a walk that came alive.
    pub(super) fn hands(&self) -> &Hands {
        self.hands.as_ref().expect("only a walk with hands comes alive")
    }

    /// Says what a strand rests on.
    pub(super) fn park(&self, path: &str, what: Parked) -> Park<'_> {
        let key = (order::place(&self.job.recipe, path), path.to_owned());
        lock(&self.parked).insert(key.clone(), what);
        Park { session: self, key }
    }

    /// The needs of a task in these scopes, as things stand: the scopes, the submission's overrides, and what tasks
    /// asked for.
    pub(super) fn effective(&self, scopes: &Scopes<'_>) -> Result<Requirements, Fault> {
        let declared = overlay(&scopes.requirements()?, &self.job.overrides);
        Ok(overlay(&declared, &lock(&self.log).directed()))
    }

    /// Appends to the log, and comes back when it is certain what stands there. An answer that stays out until the
    /// lease runs out ends the invocation.
    pub(super) async fn record(&self, path: &str, event: &NewEvent, strand: &mut Strand) -> Record {
        let hands = self.hands();
        let turn = self.recording.lock().await;
        let mut wait = FIRST_RETRY;
        let fatal = loop {
            if hands.lease.remaining().is_zero() || hands.lease.stop_reason() == Some(StopReason::LeaseLost) {
                break Fatal::Lost;
            }
            let asked = Instant::now();
            match hands.runtime.record(&hands.lease, path, event).await {
                Ok(Recorded::Recorded(event) | Recorded::Conflict(event)) => {
                    let event = Arc::new(*event);
                    *lock(&self.clock) = Some((event.at, asked));
                    match lock(&self.log).put(Arc::clone(&event)) {
                        Ok(true) => {
                            self.poked.store(true, Ordering::Relaxed);
                            self.directed.notify_waiters();
                        }
                        Ok(false) => {}
                        Err(bad) => {
                            break Fatal::NotDeterministic {
                                path: bad.path,
                                ordinal: bad.ordinal,
                                expected: "a change of needs".to_owned(),
                                found: "one that this program cannot read".to_owned(),
                            };
                        }
                    }
                    tracing::debug!(job = %self.job.job, path, ordinal = event.ordinal, "recorded");
                    return Record::Stands(event);
                }
                Ok(Recorded::NotYet) => return Record::NotYet,
                Ok(Recorded::Refused { code, message }) => return Record::Refused { code, message },
                Ok(Recorded::Full { what, limit }) => break Fatal::LogFull { what, limit },
                Ok(Recorded::NotLive) => break Fatal::Lost,
                Err(error) if error.is_retryable() => {
                    tracing::warn!(job = %self.job.job, path, %error, "not recorded, asking again");
                    tokio::time::sleep(wait.min(hands.lease.remaining())).await;
                    wait = (wait * 2).min(LAST_RETRY);
                }
                Err(error) => {
                    break Fatal::Machine { code: "record_refused", message: format!("{path}: {error}") };
                }
            }
        };
        drop(turn);
        self.end_by(fatal);
        never(strand).await
    }

    /// Time until an instant of the database's clock; none while nothing is known of that clock.
    pub(super) fn until(&self, at: DateTime<Utc>) -> Option<Duration> {
        let (then, seen) = (*lock(&self.clock))?;
        let ahead = (at - then).to_std().unwrap_or_default();
        Some(ahead.saturating_sub(seen.elapsed()))
    }
}
