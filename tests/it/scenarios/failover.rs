//! A primary that dies and a standby that is promoted: two real clusters, one connection string with both.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use leasehold::{
    config::DatabaseSettings,
    postgres::{PgStore, doctor::CheckStatus, migrate},
    protocol::{
        domain::{JobId, JobState, Namespace, NewJob},
        error::{Applied, StoreErrorKind},
        ports::{ClaimAnswer, End, Ended, LeaseStore, OpenClaim, Renewal},
    },
    workload::handler::{HandlerError, Job, LeaseHandle},
};
use leasehold_actors::domain::CommandId;
use tokio::{runtime::Handle, sync::watch};

use super::in_process::{Running, ended, settings as worker_settings};
use crate::support::{
    database,
    eventually::{eventually, pass},
    gate::Gate,
    jobs::{claimant, open, queue_many},
    rows,
    server::{Server, TRUST},
};

/// `fsync` as in earnest: `doctor` says first what is off.
const SETTINGS: &str = "max_connections = 60\nwal_keep_size = 64\nfsync = on";

struct Pair {
    primary: Server,
    standby: Server,
}

impl Pair {
    /// A primary with our schema, and a standby whose clock is ahead by so many seconds.
    async fn start(synchronous: bool, ahead: i32) -> Self {
        let primary = Server::start(SETTINGS, TRUST, |_| {}).await;
        migrate::run(&database::settings(&primary.url())).await.unwrap();
        let standby = primary.standby("standby", SETTINGS, ahead).await;
        if synchronous {
            let admin = primary.client().await;
            admin.batch_execute("alter system set synchronous_standby_names = 'standby'").await.unwrap();
            admin.batch_execute("select pg_reload_conf()").await.unwrap();
            eventually(Duration::from_secs(60), "the standby is synchronous", async || {
                let state = "select from pg_stat_replication where sync_state = 'sync'";
                admin.query_opt(state, &[]).await.unwrap()
            })
            .await;
        }
        Self { primary, standby }
    }

    /// Both servers; which of them is the primary is for the product to find out.
    fn address(&self) -> DatabaseSettings {
        let (first, second) = (self.primary.port(), self.standby.port());
        let url =
            format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/postgres?application_name=x");
        DatabaseSettings { store_timeout: Duration::from_secs(2), ..database::settings(&url) }
    }

    async fn fail_over(&mut self) {
        self.primary.crash();
        self.standby.promote().await;
    }
}

/// Claims until this many are granted. An unknown answer is asked for again under its command id.
async fn claim_all(store: &PgStore, request: &OpenClaim, count: usize) -> ClaimAnswer {
    let mut request = request.clone();
    let mut all = ClaimAnswer::default();
    eventually(Duration::from_secs(60), "all are granted", async || {
        match store.claim(&request).await {
            Ok(answer) => {
                all.grants.extend(answer.grants);
                request.command = CommandId::generate();
                request.repeat = false;
            }
            Err(_) => request.repeat = true,
        }
        (all.grants.len() >= count).then_some(())
    })
    .await;
    all
}

/// With synchronous replication a promotion costs no lease: the workers find the new primary by themselves and
/// renew. The old one, when it comes back, is refused, and whoever stays connected to both goes on by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_promotion_costs_no_lease_and_the_old_primary_is_refused() {
    const JOBS: usize = 16;
    let mut pair = Pair::start(true, 0).await;
    let address = pair.address();
    let store = PgStore::connect(&address, Handle::current()).await.unwrap();
    let doctor = async || store.doctor(&Namespace::default()).await;
    let durability = doctor().await.into_iter().find(|check| check.name == "durability").unwrap();
    assert!(durability.detail.contains("synchronous (standby)"), "{durability:?}");

    let gate = Gate::default();
    let mut timings = worker_settings();
    timings.lease = Duration::from_secs(30);
    timings.renew_interval = Duration::from_secs(1);
    timings.store_timeout = Duration::from_secs(2);
    let builder = leasehold::Worker::builder().database_settings(address.clone()).settings(timings);
    let running = Running::start(builder.handler("work", gate.handler())).await;
    let jobs = store.submit_bulk(vec![NewJob::handler("work", &()); JOBS]).await.unwrap();
    gate.until_entered_by(JOBS).await;

    let cut = Instant::now();
    pair.fail_over().await;
    let (answers, held) = (Instant::now(), running.actors().tally.renewals_held);
    eventually(Duration::from_secs(60), "a lease is renewed on the new primary", async || {
        (running.actors().tally.renewals_held > held).then_some(())
    })
    .await;
    println!(
        "outage {:.1?}; first renewal {:.1?} after the new primary answered",
        answers - cut,
        answers.elapsed()
    );

    let admin = pair.standby.client().await;
    let fleet = "select timeline, cluster_generation, raised_because from leasehold.fleet";
    let fleet = admin.query_one(fleet, &[]).await.unwrap();
    assert_eq!((fleet.get(0), fleet.get(1), fleet.get(2)), (2_i64, 2_i64, "promotion"));
    gate.open();
    for job in jobs {
        let detail = ended(&store, job).await;
        assert_eq!((detail.row.state, detail.row.attempt), (JobState::Completed, 1), "{detail:?}");
        assert_eq!(detail.leases.len(), 1, "{detail:?}");
    }
    assert_eq!(running.actors().tally.leases_lost, 0);
    let next = store.submit(&NewJob::handler("work", &())).await.unwrap().job;
    let next = ended(&store, next).await;
    assert_eq!(next.leases[0].epoch.0 >> 40, 2, "{next:?}");
    assert_eq!(gate.entered(), JOBS + 1, "each was run once");
    let server = doctor().await.into_iter().find(|check| check.name == "server").unwrap();
    assert!(server.detail.contains("timeline 2") && server.detail.contains("promoted"), "{server:?}");

    // It comes back as what it was, and takes writes; its name comes first in the connection string.
    pair.primary.begin().await;
    let fresh = PgStore::connect(&address, Handle::current()).await.unwrap();
    let job = fresh.submit(&NewJob::handler("elsewhere", &())).await.unwrap().job;
    let found = "select from leasehold.jobs where job_id = $1";
    assert!(admin.query_opt(found, &[&job.0]).await.unwrap().is_some(), "written on the old primary");
    drop(admin);
    pair.standby.stop();
    eventually(Duration::from_secs(60), "the old primary is named as such", async || {
        let error = fresh.node_list(&Namespace::default()).await.unwrap_err();
        assert_eq!(error.applied, Applied::No, "{error}");
        (error.kind == StoreErrorKind::Unreachable && error.message.contains("was replaced")).then_some(())
    })
    .await;
    let error = store.submit(&NewJob::handler("work", &())).await.unwrap_err().to_string();
    assert!(error.contains("was replaced"), "{error}");
    pair.standby.begin().await;
    eventually(Duration::from_secs(60), "both go on where they were", async || {
        store.node_list(&Namespace::default()).await.ok()?;
        fresh.node_list(&Namespace::default()).await.ok()
    })
    .await;
    running.drain().await;
    rows::conserved(&pair.standby.client().await).await;
}

/// Without synchronous replication, what the standby lacked is undone: here two hundred grants, a quarter of which
/// had ended. The jobs are granted again, each under a higher epoch, and no earlier holder can change anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_rise_strictly_when_a_promotion_loses_grants() {
    const JOBS: usize = 200;
    let mut pair = Pair::start(false, 0).await;
    let store = PgStore::connect(&pair.address(), Handle::current()).await.unwrap();
    let checks = store.doctor(&Namespace::default()).await;
    let durability = checks.iter().find(|check| check.name == "durability").unwrap();
    assert_eq!(durability.status, CheckStatus::Warn, "{durability:?}");
    assert!(durability.detail.contains("asynchronous"), "{durability:?}");

    let primary = pair.primary.client().await;
    queue_many(&primary, 200).await;
    eventually(Duration::from_secs(60), "the standby has all jobs", async || {
        let behind = "select from pg_stat_replication where replay_lsn >= pg_current_wal_lsn()";
        primary.query_opt(behind, &[]).await.unwrap()
    })
    .await;
    let standby = pair.standby.client().await;
    standby.batch_execute("alter system set primary_conninfo = ''").await.unwrap();
    standby.batch_execute("select pg_reload_conf()").await.unwrap();
    eventually(Duration::from_secs(60), "the standby receives nothing more", async || {
        let senders = "select from pg_stat_replication";
        primary.query_opt(senders, &[]).await.unwrap().is_none().then_some(())
    })
    .await;

    let first = claim_all(&store, &open(&claimant("first"), 200), JOBS).await.grants;
    let done = End::Complete { exit_code: None, output: None };
    for grant in &first[..50] {
        let ended = store.end(&grant.authority, CommandId::generate(), &done).await.unwrap();
        assert_eq!(ended, Ended::Terminal(JobState::Completed));
    }
    for grant in &first[50..100] {
        assert!(matches!(store.renew(&grant.authority).await.unwrap(), Renewal::Held { .. }));
    }
    pair.fail_over().await;

    let second = claim_all(&store, &open(&claimant("second"), 200), JOBS).await.grants;
    let mut highest: HashMap<JobId, i64> = HashMap::new();
    for grant in first.iter().chain(&second) {
        let before = highest.insert(grant.authority.job, grant.authority.epoch.0);
        assert!(before.is_none_or(|before| before < grant.authority.epoch.0), "{grant:?} after {before:?}");
    }
    assert_eq!(highest.len(), JOBS);
    for grant in &first {
        assert_eq!(store.renew(&grant.authority).await.unwrap(), Renewal::NotLive);
        assert_eq!(store.end(&grant.authority, CommandId::generate(), &done).await.unwrap(), Ended::NotLive);
    }
    for grant in &second {
        assert!(matches!(store.renew(&grant.authority).await.unwrap(), Renewal::Held { .. }));
    }
    let ids: Vec<String> = second.iter().map(|grant| grant.authority.job.to_string()).collect();
    println!("{} jobs were granted again, 50 of them had ended: {}", second.len(), ids.join(" "));
}

/// One run of a job in some worker, by the test's own clock.
#[derive(Debug)]
struct Span {
    job: JobId,
    epoch: i64,
    begun: Instant,
    ended: Option<Instant>,
}

#[derive(Debug, Clone, Default)]
struct Ledger(Arc<Mutex<Vec<Span>>>);

/// Ends its span when the handler is gone, however that came.
struct InSpan(Ledger, usize);

impl Drop for InSpan {
    fn drop(&mut self) {
        self.0.0.lock().unwrap()[self.1].ended = Some(Instant::now());
    }
}

impl Ledger {
    fn begin(&self, lease: &LeaseHandle) -> InSpan {
        let mut spans = self.0.lock().unwrap();
        spans.push(Span { job: lease.job(), epoch: lease.epoch().0, begun: Instant::now(), ended: None });
        InSpan(self.clone(), spans.len() - 1)
    }
}

/// The new primary's clock is a minute ahead, so that every lease looks expired to it, and one worker cannot reach it
/// at all: that one goes on until its local deadline. Nobody takes its jobs over before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_whose_clock_is_ahead_gives_no_job_to_two_holders() {
    const JOBS: usize = 8;
    const LEASE: Duration = Duration::from_secs(10);
    let mut pair = Pair::start(true, 60).await;
    let store = PgStore::connect(&pair.address(), Handle::current()).await.unwrap();
    let (ledger, (gate, gated)) = (Ledger::default(), watch::channel(false));
    let worker = |address: DatabaseSettings| {
        let (ledger, gated) = (ledger.clone(), gated.clone());
        let handler = move |_: Job<()>, lease: LeaseHandle| {
            let (ledger, mut gate) = (ledger.clone(), gated.clone());
            async move {
                let _span = ledger.begin(&lease);
                // Only its own end, or the lease's, ends it.
                drop(gate.wait_for(|open| *open).await);
                Ok::<_, HandlerError>(())
            }
        };
        let mut timings = worker_settings();
        timings.lease = LEASE;
        timings.renew_interval = Duration::from_secs(1);
        timings.store_timeout = Duration::from_secs(1);
        timings.safety_margin = Duration::from_secs(1);
        timings.recovery_interval = Duration::from_secs(1);
        leasehold::Worker::builder().database_settings(address).settings(timings).handler("work", handler)
    };
    let cut_off = Running::start(worker(database::settings(&pair.primary.url()))).await;
    let jobs = store.submit_bulk(vec![NewJob::handler("work", &()); JOBS]).await.unwrap();
    eventually(Duration::from_secs(60), "all run", async || {
        (ledger.0.lock().unwrap().len() == JOBS).then_some(())
    })
    .await;
    let running = Running::start(worker(pair.address())).await;

    pair.fail_over().await;
    let promoted = Instant::now();
    eventually(Duration::from_secs(90), "all run again", async || {
        (ledger.0.lock().unwrap().len() == 2 * JOBS).then_some(())
    })
    .await;
    let again = promoted.elapsed();
    gate.send_replace(true);
    for job in jobs {
        let detail = ended(&store, job).await;
        assert_eq!((detail.row.state, detail.losses), (JobState::Completed, 0), "{detail:?}");
    }
    let admin = pair.standby.client().await;
    let held = "select min(extract(epoch from h.ended_at - f.raised_at))::float8 from leasehold.lease_history h, leasehold.fleet f
                where h.how = 'expired'";
    let held: f64 = admin.query_one(held, &[]).await.unwrap().get(0);
    assert!(held >= LEASE.as_secs_f64(), "taken over {held:.1} s after the promotion was noticed");
    let mut spans = std::mem::take(&mut *ledger.0.lock().unwrap());
    spans.sort_by_key(|span| (span.job, span.begun));
    let mut closest = Duration::MAX;
    for (earlier, later) in spans.iter().zip(spans.iter().skip(1)).filter(|(a, b)| a.job == b.job) {
        let ended = earlier.ended.expect("it was ended");
        assert!(ended <= later.begun, "two at once: {earlier:?} {later:?}");
        assert!(earlier.epoch < later.epoch, "{earlier:?} {later:?}");
        closest = closest.min(later.begun - ended);
    }
    println!(
        "first takeover {held:.1} s after the new primary was met; all ran again after {again:.1?}; the closest two runs \
         of a job were {closest:.1?} apart"
    );
    running.drain().await;
    cut_off.abandon();
}

/// An administrator cancels the wait for a standby that does not come: the server answers with success and a warning.
/// That is no "yes": the call may have happened, and its repeat says what did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_wait_for_the_standby_is_a_maybe() {
    let server = Server::start(SETTINGS, TRUST, |_| {}).await;
    let address =
        DatabaseSettings { store_timeout: Duration::from_secs(20), ..database::settings(&server.url()) };
    migrate::run(&address).await.unwrap();
    let store = PgStore::connect(&address, Handle::current()).await.unwrap();
    let admin = server.client().await;
    admin.batch_execute("set synchronous_commit = local").await.unwrap();
    queue_many(&admin, 1).await;
    let wait_for = async |names: &str| {
        let set = format!("alter system set synchronous_standby_names = '{names}'");
        admin.batch_execute(&set).await.unwrap();
        admin.batch_execute("select pg_reload_conf()").await.unwrap();
        pass(Duration::from_millis(200)).await;
    };
    let cancel = async || {
        eventually(Duration::from_secs(60), "a commit waits", async || {
            let cancel = "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'";
            admin.query_opt(cancel, &[]).await.unwrap()
        })
        .await;
    };
    wait_for("nobody").await;
    let owner = claimant("w");
    let mut request = open(&owner, 1);
    let (answer, ()) = tokio::join!(store.claim(&request), cancel());
    let unknown = answer.unwrap_err();
    assert_eq!(unknown.applied, Applied::Maybe, "{unknown}");
    request.repeat = true;
    let grant = store.claim(&request).await.unwrap().grants.pop().expect("it was granted");

    let (command, done) = (CommandId::generate(), End::Complete { exit_code: None, output: None });
    let (answer, ()) = tokio::join!(store.end(&grant.authority, command, &done), cancel());
    let unknown = answer.unwrap_err();
    assert_eq!(unknown.applied, Applied::Maybe, "{unknown}");
    // The repeat, which only reads, has to wait for the standby as well before it may say so.
    let repeat = store.end(&grant.authority, command, &done);
    let (answer, ()) = tokio::join!(repeat, cancel());
    assert_eq!(answer.unwrap_err().applied, Applied::Maybe);
    wait_for("").await;
    let ended = store.end(&grant.authority, command, &done).await.unwrap();
    assert_eq!(ended, Ended::Terminal(JobState::Completed));
}
