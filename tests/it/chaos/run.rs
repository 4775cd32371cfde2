//! One run: the fleet comes up, jobs are submitted as fast as the plan says, faults are played, everything comes
//! to rest, and what is left behind becomes a history.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use leasehold::protocol::domain::{JobId, Namespace};
use tokio::time::Instant;

use super::{
    defects::Defect,
    fleet::{Member, Role},
    gather::{self, Watch},
    history::{Accepted, History},
    injectors::{Dose, Injection},
    ledger::Ledger,
    plan::{From, Plan, Script},
    report::Report,
    world::World,
};
use crate::support::eventually::{eventually, pass};

/// What a run is made of.
#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    /// How long faults are played.
    pub length: Duration,
    /// Jobs a second.
    pub rate: f64,
    /// Of a hundred jobs.
    pub containers: u32,
    /// How long work takes, in milliseconds.
    pub work: std::ops::Range<u64>,
    pub handlers: usize,
    pub runners: usize,
    pub engines: usize,
    pub dose: Dose,
    pub defect: Option<Defect>,
}

/// Of some places the wall clocks are off by hours; of the others they are right.
const CLOCKS: [Option<&str>; 3] = [None, Some("-3h"), Some("+5h")];

/// Jobs may take this long to come to rest after the last fault.
const REST: Duration = Duration::from_secs(180);

pub async fn run(settings: Settings) -> Report {
    println!("chaos: seed {}, {:?} of faults", settings.seed, settings.length);
    let ledger = Ledger::open();
    let world = Arc::new(World::start(settings.engines).await);
    if let Some(defect) = settings.defect {
        defect.install(&world.session().await.expect("the server runs")).await;
    }
    let members = Arc::new(start_fleet(&settings, &world, &ledger).await);
    let watch = Watch::start(Arc::clone(&world));
    let injection = Arc::new(Injection {
        world: Arc::clone(&world),
        members: Arc::clone(&members),
        begun: Instant::now(),
        length: settings.length,
        dose: settings.dose.clone(),
        tally: Mutex::default(),
        freezes: Mutex::default(),
        outages: Mutex::default(),
        over: AtomicBool::new(false),
    });
    let unasked = Arc::new(AtomicU32::new(0));
    let keeping = tokio::spawn(revive(Arc::clone(&members), Arc::clone(&unasked)));
    let submitting =
        tokio::spawn(submit(settings.clone(), Arc::clone(&world), ledger.clone(), Arc::clone(&injection)));
    injection.play(settings.seed).await;
    let accepted = submitting.await.unwrap();
    println!("chaos: {} jobs were accepted; waiting for rest", accepted.len());

    // Defects may leave jobs behind for good.
    let patience = if settings.defect.is_some() { Duration::from_secs(20) } else { REST };
    let stuck = rest(&world, accepted.len(), patience).await;
    keeping.abort();
    let _ = keeping.await;
    let unasked = unasked.load(SeqCst);
    let left = gather::await_no_containers(&world).await;
    let mut history = History { accepted, left, ..History::default() };
    watch.finish(&mut history, &members).await;
    // A drain of an idle process is short and clean.
    let exits: Vec<(String, Option<i32>)> =
        members.iter().map(|member| (member.name.clone(), member.end())).collect();
    history.runs = ledger.runs();
    history.freezes = std::mem::take(&mut injection.freezes.lock().unwrap());
    history.outages = std::mem::take(&mut injection.outages.lock().unwrap());
    history.nodes = world.engines.iter().map(|engine| (engine.node.clone(), engine.node.clone())).collect();
    for engine in &world.engines {
        history.touched.extend(engine.wire.named().into_iter().map(|id| (engine.node.clone(), id)));
    }
    gather::read_database(&world, &mut history).await;
    let tally = std::mem::take(&mut *injection.tally.lock().unwrap());
    let report = Report::new(settings, history, tally, exits, unasked, stuck, injection.begun.elapsed());
    let logs = gather::keep_logs(&report, &members);
    drop((injection, members));
    if let Ok(world) = Arc::try_unwrap(world).map_err(|_| ()) {
        world.stop().await;
    }
    report.with(ledger.probes_answered(), logs)
}

async fn start_fleet(settings: &Settings, world: &World, ledger: &Ledger) -> Vec<Member> {
    let mut places = Vec::new();
    places.extend((1..=settings.engines).map(|n| (format!("node-{n}"), Role::Node)));
    places.extend((1..=settings.handlers).map(|n| (format!("handlers-{n}"), Role::Handlers)));
    places.extend((1..=settings.runners).map(|n| (format!("runner-{n}"), Role::Runner)));
    let mut members = Vec::new();
    for (n, (name, role)) in places.into_iter().enumerate() {
        let member = Member::new(world, ledger, &name, role, CLOCKS[n % CLOCKS.len()]).await;
        let member = member.with(settings.defect);
        member.start();
        members.push(member);
    }
    eventually(Duration::from_secs(90), "the whole fleet is up", async || {
        for member in &members {
            member.revive();
        }
        let nodes = world.store.node_list(&Namespace::default()).await.ok()?;
        let workers = world.store.worker_list(&Namespace::default()).await.ok()?;
        let fresh = nodes.iter().filter(|node| node.fresh).count();
        (fresh == settings.engines && workers.len() >= settings.handlers + settings.runners).then_some(())
    })
    .await;
    members
}

/// Starts what has ended by itself, and counts: nobody should.
async fn revive(members: Arc<Vec<Member>>, count: Arc<AtomicU32>) {
    loop {
        pass(Duration::from_secs(1)).await;
        for member in members.iter() {
            count.fetch_add(u32::from(member.revive()), SeqCst);
        }
    }
}

/// Submits at the planned rate for as long as faults are played.
async fn submit(
    settings: Settings,
    world: Arc<World>,
    ledger: Ledger,
    injection: Arc<Injection>,
) -> Vec<Accepted> {
    let containers = if settings.engines == 0 { 0 } else { settings.containers };
    let mut plan = Plan::new(settings.seed, &ledger, containers, settings.work.clone());
    let probes = settings.runners > 0;
    let mut accepted = Vec::new();
    let mut cancels = tokio::task::JoinSet::new();
    while !injection.over.load(SeqCst) {
        let due = injection.begun.elapsed().as_secs_f64() * settings.rate;
        if (accepted.len() as f64) > due {
            pass(Duration::from_millis(20)).await;
            continue;
        }
        let script = plan.next();
        if script.kind == super::history::Kind::Heartbeat && !probes {
            continue;
        }
        let job = accept(&world, &script).await;
        if let Some((after, from)) = script.cancel {
            cancels.spawn(cancel(Arc::clone(&world), ledger.clone(), job, after, from));
        }
        accepted.push(Accepted { job: job.0, kind: script.kind, outcome: script.outcome });
    }
    while cancels.join_next().await.is_some() {}
    accepted
}

/// Asks until the answer is known: the idempotency key makes it one job.
async fn accept(world: &World, script: &Script) -> JobId {
    loop {
        match world.store.submit(&script.job).await {
            Ok(submitted) => return submitted.job,
            Err(error) => {
                assert!(!error.to_string().contains("invalid"), "{error}");
                pass(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Cancels a job when its script says so; asks until the answer is known.
async fn cancel(world: Arc<World>, ledger: Ledger, job: JobId, after: Duration, from: From) {
    // Work that cannot begin for so long is cancelled before it begins.
    let patience = Instant::now() + Duration::from_secs(60);
    while from == From::Start && !ledger.has_begun(job.0) && Instant::now() < patience {
        pass(Duration::from_millis(20)).await;
    }
    pass(after).await;
    while world.store.request_cancel(&Namespace::default(), job, Duration::from_secs(1)).await.is_err() {
        pass(Duration::from_millis(100)).await;
    }
}

/// Waits until every accepted job has ended. Jobs that do not are left to the checker.
async fn rest(world: &World, accepted: usize, patience: Duration) -> usize {
    let begun = Instant::now();
    let mut told = 0;
    loop {
        let ended = match world.session().await {
            Some(client) => client.query_one("select count(*) from leasehold.ended", &[]).await.ok(),
            None => None,
        };
        let ended = ended.map_or(0, |row| row.get::<_, i64>(0)) as usize;
        if ended >= accepted || begun.elapsed() > patience {
            println!("chaos: at rest after {:?}: {ended} of {accepted} ended", begun.elapsed());
            return accepted.saturating_sub(ended);
        }
        if begun.elapsed().as_secs() / 10 > told {
            told += 1;
            println!("chaos: {ended} of {accepted} have ended");
        }
        pass(Duration::from_millis(300)).await;
    }
}
