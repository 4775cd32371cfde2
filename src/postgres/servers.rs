//! The servers of one connection string, and the one that the fleet was last seen on.
//!
//! Every connection begins with a call of `leasehold.meet_server`, which compares the server's identity and timeline
//! with the fleet's row, and with what this process has seen since it started: a primary that was replaced takes
//! writes like any other when it comes back, and its own row knows nothing of its successor. It is refused, and the
//! next server of the list is asked.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tokio_postgres::{Client, SimpleQueryMessage};
use uuid::Uuid;

use super::tls::Address;

/// The latest server that is known to be the fleet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    fleet: Uuid,
    system: i64,
    timeline: i64,
    generation: i64,
}

/// All servers of a connection string.
pub(super) struct Servers {
    addresses: Vec<Address>,
    /// The one that was good last time.
    preferred: AtomicUsize,
    known: Mutex<Known>,
}

impl Servers {
    pub(super) fn new(addresses: Vec<Address>, preferred: usize, known: Known) -> Self {
        Self { addresses, preferred: AtomicUsize::new(preferred), known: Mutex::new(known) }
    }

    /// All of them, the one that was good last time first.
    pub(super) fn in_turn(&self) -> impl ExactSizeIterator<Item = (usize, &Address)> {
        let first = self.preferred.load(Ordering::Relaxed);
        let count = self.addresses.len();
        (0..count).map(move |n| (first + n) % count).map(|at| (at, &self.addresses[at]))
    }

    /// Lets the driver change how it connects, to each.
    pub(super) fn each(&mut self, change: impl Fn(&mut tokio_postgres::Config)) {
        for address in &mut self.addresses {
            change(&mut address.config);
        }
    }

    pub(super) fn known(&self) -> Known {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This server was met, and it is good.
    pub(super) fn met(&self, at: usize, server: Known) {
        self.preferred.store(at, Ordering::Relaxed);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.fleet != server.fleet || known.generation < server.generation {
            tracing::warn!(
                timeline = server.timeline,
                cluster_generation = server.generation,
                "the database is on another server, or was promoted: epochs go on above all earlier ones"
            );
            *known = server;
        }
    }
}

/// Introduces a connection to its server. Answers which one it is, and its session's `synchronous_commit`.
pub(super) async fn meet(
    client: &Client,
    known: Option<Known>,
) -> Result<(Known, String), tokio_postgres::Error> {
    let known = match known {
        Some(k) => format!("'{}'::uuid, {}, {}, {}", k.fleet, k.system, k.timeline, k.generation),
        None => "null, null, null, null".to_owned(),
    };
    // By the simple protocol, which every pooler passes on.
    let question = format!(
        "select current_setting('synchronous_commit'), m.fleet, m.system, m.line, m.generation \
         from leasehold.meet_server({known}) m"
    );
    let answer = client.simple_query(&question).await?;
    let row = answer.iter().find_map(|m| match m {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let text = |n: usize| row.and_then(|row| row.get(n)).unwrap_or_default();
    let number = |n: usize| text(n).parse().unwrap_or_default();
    let met = Known {
        fleet: text(1).parse().unwrap_or_default(),
        system: number(2),
        timeline: number(3),
        generation: number(4),
    };
    Ok((met, text(0).to_owned()))
}
