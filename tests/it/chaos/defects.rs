//! Defects that a run can switch on in the product, to see that the checker finds them: two in the database's
//! one predicate, one in its grants, two in the workers (`worker/defective.rs`).

use std::{ops::Range, time::Duration};

use tokio_postgres::Client;

use super::{injectors::Fault, wire::Cut};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// The predicate looks at the token and not at the expiry.
    NoExpiryCheck,
    /// The predicate looks at the expiry and not at whose lease it is.
    NoTokenCheck,
    /// A takeover keeps the epoch.
    EpochKept,
    /// A worker takes a renewal for granted, whatever the answer.
    RenewalsBelieved,
    /// Recovery takes leases that have not expired.
    EarlyRecovery,
}

impl Defect {
    pub const ALL: [Self; 5] = [
        Self::NoExpiryCheck,
        Self::NoTokenCheck,
        Self::EpochKept,
        Self::RenewalsBelieved,
        Self::EarlyRecovery,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::NoExpiryCheck => "no-expiry-check",
            Self::NoTokenCheck => "no-token-check",
            Self::EpochKept => "epoch-kept",
            Self::RenewalsBelieved => "renewals-believed",
            Self::EarlyRecovery => "early-recovery",
        }
    }

    /// One of these invariants must be reported.
    pub fn breaks(self) -> &'static [&'static str] {
        match self {
            Self::NoExpiryCheck => &["L2", "L3"],
            Self::NoTokenCheck => &["L2", "L3", "L10"],
            Self::EpochKept => &["L4"],
            // Work that never ends under it keeps its permit, too.
            Self::RenewalsBelieved => &["L5", "L8"],
            Self::EarlyRecovery => &["L1"],
        }
    }

    /// Faults that bring it to light: calls that arrive late, for the most part.
    pub fn shown_by(self) -> Vec<Fault> {
        match self {
            Self::NoExpiryCheck => vec![Fault::Everybody(Cut::There)],
            Self::NoTokenCheck => vec![Fault::Postgres(Cut::There)],
            Self::RenewalsBelieved => vec![Fault::Postgres(Cut::BlackHole)],
            Self::EpochKept | Self::EarlyRecovery => vec![Fault::KillWorker],
        }
    }

    /// How long a cut lasts, in milliseconds: past the lease; and where late calls must meet the job's next holder, until
    /// there is one.
    pub fn cuts(self) -> Range<u64> {
        match self {
            Self::NoTokenCheck => 8_500..10_500,
            Self::NoExpiryCheck | Self::EpochKept | Self::RenewalsBelieved | Self::EarlyRecovery => {
                5_500..7_000
            }
        }
    }

    /// Its part in the database.
    pub async fn install(self, client: &Client) {
        let predicate = |body: &str| {
            format!(
                "create or replace function leasehold.lease_is_live(
                     lease_namespace text, lease_token uuid, lease_worker text, lease_process uuid,
                     lease_expires_at timestamptz, namespace text, token uuid, worker text, process uuid
                 ) returns boolean language sql volatile as $$ select {body} $$"
            )
        };
        let sql = match self {
            Self::NoExpiryCheck => predicate(
                "lease_token = token and lease_process = process and lease_worker = worker and lease_namespace = namespace",
            ),
            Self::NoTokenCheck => {
                predicate("lease_namespace = namespace and lease_expires_at > clock_timestamp()")
            }
            Self::EpochKept => "create function chaos.keep_epoch() returns trigger language plpgsql as $$
                 begin new.epoch := old.epoch; return new; end $$;
                 create trigger chaos_keeps before update on leasehold.leases
                     for each row execute function chaos.keep_epoch()"
                .to_owned(),
            // The workers have it.
            Self::RenewalsBelieved | Self::EarlyRecovery => return,
        };
        client.batch_execute(&sql).await.unwrap();
        // Plans that have the old body inside are made anew.
        let others = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()";
        client.batch_execute(others).await.unwrap();
        crate::support::eventually::pass(Duration::from_millis(100)).await;
    }
}
