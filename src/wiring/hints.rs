//! Hands the database's hints to the actors. Each may be lost, repeated or late without harm.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold_actors::supervision::Supervision;
use serde::Serialize;
use tokio::runtime::Handle;

use crate::{
    config::DatabaseSettings,
    postgres::listen::{Hint, ListenMode, Listener},
};

/// How often the state of the connection is looked at while no hint comes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How hints come to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HintHealth {
    /// By NOTIFY; otherwise the tables are looked at every second.
    pub listening: bool,
    /// How often listening broke off and was taken up again.
    pub reconnects: u64,
}

/// What the last look found.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Option<HintHealth>>>);

impl Seen {
    pub(super) fn get(&self) -> Option<HintHealth> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, listener: &Listener) {
        let listening = listener.mode() == ListenMode::Listening;
        let health = HintHealth { listening, reconnects: listener.reconnects() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(health);
    }
}

/// Listens and passes on until this is dropped.
pub(super) async fn pass_on(database: DatabaseSettings, io: Handle, supervision: Supervision, seen: Seen) {
    let mut listener = Listener::start(&database, &io);
    loop {
        let hint = tokio::time::timeout(LOOK_EVERY, listener.recv()).await.ok();
        seen.set(&listener);
        match hint {
            Some(Hint::Ready) => supervision.work_is_ready(),
            Some(Hint::Waiting) => supervision.work_is_waiting(),
            Some(Hint::Cancel(job)) => supervision.cancel_is_requested(job),
            Some(Hint::Resync) if listener.mode() == ListenMode::Listening => supervision.resync(),
            // Polling: work is looked for; that a cancel was requested is told by the next renewal.
            Some(Hint::Resync) => {
                supervision.work_is_ready();
                supervision.work_is_waiting();
            }
            Some(Hint::Ended) | None => {}
        }
    }
}
