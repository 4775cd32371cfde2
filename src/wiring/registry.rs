//! The worker's row in `worker list`: for people only, no decision depends on it.

use std::{sync::Arc, time::Duration};

use leasehold_actors::{
    domain::{Route, execution::Allocation},
    permits::PermitCounts,
    ports::Claimant,
    supervision::{Supervision, WorkerHealth},
};
use serde::Serialize;

use super::hints::{HintHealth, Seen};
use crate::postgres::{PgStore, workers::WorkerRegistration};

/// How often the row is brought up to date. (`worker list` calls a worker alive for 30 s.)
const EVERY: Duration = Duration::from_secs(10);

/// How long a farewell may take: the process is on its way out.
const FAREWELL: Duration = Duration::from_secs(1);

/// What `worker list` shows as the worker's own words.
#[derive(Debug, Serialize)]
struct Status<'a> {
    routes: Vec<String>,
    /// What it was told that its environment has.
    #[serde(skip_serializing_if = "Allocation::is_empty")]
    allocation: &'a Allocation,
    permits: Permits,
    recovery: Recovery,
    healthy: bool,
    draining: bool,
    /// Why nothing is claimed at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_claiming: Option<String>,
    /// How hints come, once that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    hints: Option<HintHealth>,
}

#[derive(Debug, Serialize)]
struct Permits {
    reserved: u32,
    active: u32,
    awaiting_replay: u32,
    awaiting_reconciliation: u32,
    stuck: u32,
    free: u32,
}

/// Jobs that this worker recovers for others, and what is waiting for that.
#[derive(Debug, Serialize)]
struct Recovery {
    /// On top of the others.
    permits: Permits,
    /// Expired leases that the last look left behind.
    expired_leases: u64,
    /// How long the oldest of those had expired by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_expired_ms: Option<u64>,
    /// Since the start: leases taken over, recoveries put off, containers followed on.
    taken_over: u64,
    postponed: u64,
    adopted: u64,
    /// Why nothing is looked for at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

impl From<PermitCounts> for Permits {
    fn from(p: PermitCounts) -> Self {
        Self {
            reserved: p.reserved,
            active: p.active,
            awaiting_replay: p.awaiting_replay,
            awaiting_reconciliation: p.awaiting_reconciliation,
            stuck: p.stuck,
            free: p.free,
        }
    }
}

fn status(
    health: &WorkerHealth,
    routes: &[Route],
    allocation: &Allocation,
    hints: Option<HintHealth>,
) -> String {
    let (seen, tally) = (&health.recovery, &health.tally);
    let status = Status {
        routes: routes.iter().map(route_name).collect(),
        allocation,
        permits: health.permits.into(),
        recovery: Recovery {
            permits: health.recovery_permits.into(),
            expired_leases: seen.backlog,
            oldest_expired_ms: seen.oldest.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            taken_over: tally.leases_recovered,
            postponed: tally.recoveries_postponed,
            adopted: tally.containers_adopted,
            trouble: seen.trouble.clone(),
        },
        healthy: health.is_good(),
        draining: health.draining,
        not_claiming: health.not_claiming.as_ref().map(ToString::to_string),
        hints,
    };
    serde_json::to_string(&status).expect("a status is plain data")
}

/// `HANDLER send-email`, `CONTAINER`.
pub(super) fn route_name(route: &Route) -> String {
    format!("{} {} {}", route.kind, route.name, route.task).trim_end().to_owned()
}

/// The row of one worker.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) store: PgStore,
    pub(super) supervision: Supervision,
    pub(super) owner: Claimant,
    pub(super) concurrency: u32,
    pub(super) routes: Arc<[Route]>,
    pub(super) allocation: Allocation,
    pub(super) hints: Seen,
}

impl Row {
    /// Keeps the row up to date until this is dropped. A database that does not answer is no reason to stop.
    pub(super) async fn keep(self) {
        let mut registered = false;
        loop {
            let words = status(&self.supervision.health(), &self.routes, &self.allocation, self.hints.get());
            let said = if registered {
                self.store.worker_seen(&self.owner, &words, false).await
            } else {
                let registration = WorkerRegistration {
                    claimant: self.owner.clone(),
                    host: host_name(),
                    concurrency: self.concurrency,
                    status: words,
                };
                self.store.worker_register(&registration).await
            };
            match said {
                Ok(()) => registered = true,
                Err(error) => tracing::debug!(%error, "worker list is not up to date"),
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// Says that the process stops; best effort.
pub(super) async fn farewell(
    store: &PgStore,
    supervision: &Supervision,
    owner: &Claimant,
    routes: &[Route],
    allocation: &Allocation,
) {
    let words = status(&supervision.health(), routes, allocation, None);
    // Without an answer the row grows old, and the list says so.
    let _ = tokio::time::timeout(FAREWELL, store.worker_seen(owner, &words, true)).await;
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use leasehold_actors::recovery_actor::RecoveryView;

    use super::*;

    #[test]
    fn the_status_is_one_object_with_permits_that_add_up() {
        let health = WorkerHealth {
            loops: Vec::new(),
            permits: PermitCounts { active: 3, free: 5, ..Default::default() },
            recovery_permits: PermitCounts { active: 1, free: 1, ..Default::default() },
            recovery: RecoveryView { backlog: 7, oldest: Some(Duration::from_secs(2)), trouble: None },
            not_claiming: None,
            leases: 3,
            watched: 3,
            forced_ends: 0,
            draining: false,
            tally: Default::default(),
        };
        let routes = [Route::handler("send-email"), Route::container()];
        let allocation = "memory=16Gi".parse().expect("one fact");
        let json: serde_json::Value = serde_json::from_str(&status(
            &health,
            &routes,
            &allocation,
            Some(HintHealth { listening: true, reconnects: 0 }),
        ))
        .expect("JSON");
        assert_eq!(json["routes"], serde_json::json!(["HANDLER send-email", "CONTAINER"]));
        assert_eq!((&json["permits"]["active"], &json["permits"]["free"]), (&3.into(), &5.into()));
        assert_eq!((&json["healthy"], json.get("not_claiming")), (&true.into(), None));
        assert_eq!(json["allocation"]["resources"]["memory"], "16Gi");
        let recovery = &json["recovery"];
        assert_eq!((&recovery["permits"]["active"], &recovery["permits"]["free"]), (&1.into(), &1.into()));
        assert_eq!((&recovery["expired_leases"], &recovery["oldest_expired_ms"]), (&7.into(), &2000.into()));
        assert_eq!(json["hints"]["listening"], true);
    }
}
