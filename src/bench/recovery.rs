//! `leasehold bench --recovery`: what a look at many live leases costs, and how thousands of leases that expired at once
//! are taken over while others claim.
//!
//! Windows with and without a recovery follow each other, so that a machine whose speed drifts drifts for both.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_actors::{
    domain::{CommandId, Namespace, ProcessId, Route, WorkerId},
    ports::{Claimant, LeaseStore, OpenClaim, RecoverRequest},
    recovery_actor::pause_after,
};
use serde::Serialize;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::{
    BenchError,
    fixture::{Bench, HANDLER},
    stats::{Percentiles, median},
};
use crate::{config::DatabaseSettings, postgres::PgStore};

/// Jobs in one claim of whoever claims meanwhile.
const CLAIM: u32 = 10;
/// Claims in a window without a recovery, and the fewest in one with.
const CLAIMS: usize = 150;
/// Looks at nothing but live leases.
const LOOKS: usize = 40;
const LEASE: Duration = Duration::from_mins(15);

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct RecoveryOptions {
    /// With --recovery: leases that stay live meanwhile
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    pub live: u32,
    /// With --recovery: leases that expire at once, in each round
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub expired: u32,
    /// With --recovery: the most that one statement takes over
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub recovery_batch: u32,
}

/// The figures of one run.
#[derive(Debug, Clone, Serialize)]
pub struct RecoveryReport {
    /// The server's version.
    pub postgres: String,
    /// Whether this program was built with optimisation.
    pub optimised: bool,
    /// Leases that stayed live.
    pub live: u32,
    /// Leases that expired at once, in each round.
    pub expired: u32,
    /// Rounds.
    pub rounds: u32,
    /// A pass that found nothing but live leases.
    pub idle_pass: Option<Percentiles>,
    /// A pass that took something over.
    pub pass: Option<Percentiles>,
    /// The most leases that one statement took over, and the bound.
    pub most_taken: (u64, u32),
    /// From the first pass to the last takeover; median of the rounds.
    pub drained_s: f64,
    /// Claims without a recovery beside them.
    pub quiet_claim: Option<Percentiles>,
    /// Claims while leases were taken over.
    pub busy_claim: Option<Percentiles>,
    /// 95 in a hundred claims: with a recovery over without, the median of the rounds.
    pub claim_p95_ratio: f64,
}

/// Measures; see [`super::run`].
///
/// # Errors
/// [`BenchError`] when there are no figures, or none that are worth anything.
pub async fn run(
    database: &DatabaseSettings,
    options: &RecoveryOptions,
    rounds: u32,
    progress: &(dyn Fn(&str) + Send + Sync),
    stop: impl Future<Output = ()> + Send,
) -> Result<RecoveryReport, BenchError> {
    // It reads and writes many rows at once; a call that waits for that is what is measured, not an error.
    let database = DatabaseSettings { store_timeout: Duration::from_secs(30), ..database.clone() };
    let bench = Bench::start(&database, progress).await?;
    let measured = tokio::select! {
        measured = measure(&bench, options, rounds) => measured,
        () = stop => Err(BenchError::Interrupted),
    };
    progress("removing the benchmark's jobs");
    let removed = bench.clean_up().await;
    let report = measured?;
    removed?;
    Ok(report)
}

async fn measure(
    bench: &Bench<'_>,
    options: &RecoveryOptions,
    rounds: u32,
) -> Result<RecoveryReport, BenchError> {
    let (recovered, claimed) = (bench.namespace(), bench.namespace());
    bench.say(&format!("{} live leases", options.live));
    lease(bench, &recovered, options.live, true).await?;
    bench.say("looks at live leases");
    let mut idle = Vec::new();
    for _ in 0..LOOKS {
        let begun = Instant::now();
        if pass(bench, &recovered, options.recovery_batch).await?.0 > 0 {
            return Err(BenchError::Invalidated("a live lease was taken over".to_owned()));
        }
        idle.push(begun.elapsed());
    }
    // Claims are another process's.
    let claimer = PgStore::connect(&bench.database, tokio::runtime::Handle::current()).await?;
    let mut gathered = Gathered::default();
    for round in 1..=rounds {
        bench.say(&format!("round {round} of {rounds}: claims alone"));
        let never = Arc::new(AtomicBool::new(false));
        let quiet = claims(bench, &claimer, &claimed, &never).await?;
        bench.say(&format!("round {round} of {rounds}: {} leases expired", options.expired));
        lease(bench, &recovered, options.expired, false).await?;
        let going_on = Arc::new(AtomicBool::new(true));
        let (busy, drained) = tokio::join!(
            claims(bench, &claimer, &claimed, &going_on),
            drain(bench, &recovered, options, &going_on),
        );
        gathered.add(quiet, busy?, drained?)?;
    }
    Ok(RecoveryReport {
        postgres: bench.server.version().await?,
        optimised: !cfg!(debug_assertions),
        live: options.live,
        expired: options.expired,
        rounds,
        idle_pass: Percentiles::of(idle),
        pass: Percentiles::of(gathered.passes),
        most_taken: (gathered.most, options.recovery_batch),
        drained_s: median(&gathered.drained).unwrap_or_default(),
        quiet_claim: Percentiles::of(gathered.quiet),
        busy_claim: Percentiles::of(gathered.busy),
        claim_p95_ratio: median(&gathered.ratios).unwrap_or_default(),
    })
}

#[derive(Default)]
struct Gathered {
    passes: Vec<Duration>,
    quiet: Vec<Duration>,
    busy: Vec<Duration>,
    ratios: Vec<f64>,
    drained: Vec<f64>,
    most: u64,
}

impl Gathered {
    fn add(&mut self, quiet: Vec<Duration>, busy: Vec<Duration>, drained: Drained) -> Result<(), BenchError> {
        let p95 = |times: &[Duration]| Percentiles::of(times.to_vec()).map(|p| p.p95_ms);
        let (Some(without), Some(with)) = (p95(&quiet), p95(&busy)) else {
            return Err(BenchError::Invalidated("nothing was claimed".to_owned()));
        };
        self.ratios.push(with / without);
        self.quiet.extend(quiet);
        self.busy.extend(busy);
        self.drained.push(drained.took.as_secs_f64());
        self.most = self.most.max(drained.most);
        self.passes.extend(drained.passes);
        Ok(())
    }
}

struct Drained {
    took: Duration,
    passes: Vec<Duration>,
    most: u64,
}

/// Passes until every expired lease is taken over, each lease once.
async fn drain(
    bench: &Bench<'_>,
    namespace: &Namespace,
    options: &RecoveryOptions,
    going_on: &AtomicBool,
) -> Result<Drained, BenchError> {
    let begun = Instant::now();
    let mut drained = Drained { took: Duration::ZERO, passes: Vec::new(), most: 0 };
    let (mut taken, mut left) = (0, 1);
    while left > 0 {
        let pass_begun = Instant::now();
        let (now, backlog) = pass(bench, namespace, options.recovery_batch).await?;
        let took = pass_begun.elapsed();
        drained.passes.push(took);
        // As a worker does.
        tokio::time::sleep(pause_after(took)).await;
        drained.most = drained.most.max(now);
        taken += now;
        left = backlog;
    }
    drained.took = begun.elapsed();
    going_on.store(false, Ordering::Release);
    if taken != u64::from(options.expired) {
        let expired = options.expired;
        return Err(BenchError::Invalidated(format!("of {expired} expired leases {taken} were taken over")));
    }
    Ok(drained)
}

/// One pass: how many it took over, and how many it left.
async fn pass(bench: &Bench<'_>, namespace: &Namespace, limit: u32) -> Result<(u64, u64), BenchError> {
    let request = RecoverRequest {
        owner: owner(namespace)?,
        command: CommandId::generate(),
        repeat: false,
        limit,
        lease: LEASE,
        running_here: Vec::new().into(),
    };
    let answer = bench.store.recover(&request).await?;
    Ok((answer.takeovers.len() as u64, answer.backlog))
}

/// Claims one after the other: so many, and as long as the recovery goes on.
async fn claims(
    bench: &Bench<'_>,
    store: &PgStore,
    namespace: &Namespace,
    going_on: &AtomicBool,
) -> Result<Vec<Duration>, BenchError> {
    let (mut times, mut filled) = (Vec::new(), 0);
    let owner = owner(namespace)?;
    while times.len() < CLAIMS || going_on.load(Ordering::Acquire) {
        if filled == 0 {
            filled = CLAIMS;
            bench.fill(namespace, CLAIM * u32::try_from(CLAIMS).unwrap_or(u32::MAX)).await?;
        }
        filled -= 1;
        let request = OpenClaim {
            owner: owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            routes: Arc::from([Route::handler(HANDLER)]),
            limit: CLAIM,
            lease: LEASE,
            facts: None,
        };
        let begun = Instant::now();
        store.claim(&request).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

fn owner(namespace: &Namespace) -> Result<Claimant, BenchError> {
    let worker = WorkerId::new("bench-recovery").map_err(|e| BenchError::Invalidated(e.to_string()))?;
    Ok(Claimant { namespace: namespace.clone(), worker, process: ProcessId::generate() })
}

/// Puts leases of a lost worker into a namespace: live ones, renewed as often as in life, or ones that expired just now.
async fn lease(bench: &Bench<'_>, namespace: &Namespace, count: u32, live: bool) -> Result<(), BenchError> {
    let (namespace, count) = (namespace.as_str(), i64::from(count));
    bench
        .server
        .client()
        .query_typed(
            "with j as (
                 insert into leasehold.jobs (namespace, workflow, generation, kind, route, definition, payload, priority)
                 select $1, 'adhoc', 1, 'HANDLER', 'bench-noop', '{\"handler\":\"bench-noop\"}', 'null', 0
                 from generate_series(1, $2) returning job_id)
             insert into leasehold.leases (job_id, lease_expires_at, epoch, claim_epoch, granted_at, token, process_id,
                 lease_ms, namespace, worker_id, claim_renewed, kind, route, workflow, rank, generation,
                 dispatch_attempt, attempt, failures_user, failures_system, failures_timeout, losses)
             select job_id, clock_timestamp() + case when $3 then 1 else 0 end * interval '1 hour', 1, 1,
                    clock_timestamp(), gen_random_uuid(), gen_random_uuid(), 30000, $1, 'lost', true, 'HANDLER',
                    'bench-noop', 'adhoc', 0, 1, 1, 1, 0, 0, 0, 0
             from j",
            &[(&namespace, Type::TEXT), (&count, Type::INT8), (&live, Type::BOOL)],
        )
        .await?;
    if live {
        let renew = "update leasehold.leases set renewals = renewals + 1 where namespace = $1";
        bench.server.client().query_typed(renew, &[(&namespace, Type::TEXT)]).await?;
    }
    Ok(())
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unoptimised = if self.optimised { "" } else { " (built without optimisation)" };
        writeln!(
            f,
            "PostgreSQL {}, {} live leases, {} × {} expired at once{unoptimised}",
            self.postgres, self.live, self.rounds, self.expired
        )?;
        writeln!(f, "{:<32} {:>7} {:>9} {:>9} {:>9} {:>9}", "ms", "count", "p50", "p95", "p99", "max")?;
        for (name, times) in [
            ("pass, nothing expired", self.idle_pass),
            ("pass, leases taken over", self.pass),
            ("claim alone", self.quiet_claim),
            ("claim beside a recovery", self.busy_claim),
        ] {
            let Some(p) = times else { continue };
            writeln!(
                f,
                "{name:<32} {:>7} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
                p.count, p.p50_ms, p.p95_ms, p.p99_ms, p.max_ms
            )?;
        }
        let (most, bound) = self.most_taken;
        write!(
            f,
            "at most {most} taken over by a statement (bound {bound}); all in {:.2} s; claim p95 {:.2} × alone",
            self.drained_s, self.claim_p95_ratio
        )
    }
}
