//! Faults, each on one victim, played from decks by seed. A hit counts only if it met a live lease or a call in
//! flight, which is looked at when the fault begins; a fault that met nothing is played again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Client;

use super::{
    fleet::{Member, Role},
    history::{Freeze, Outage, SECOND},
    ledger::now,
    wire::Cut,
    world::{Shutdown, World},
};
use crate::support::eventually::pass;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    KillWorker,
    FreezeWorker,
    KillNode,
    FreezeNode,
    Postgres(Cut),
    Docker(Cut),
    /// The same cut before every worker at once: whatever was on the way arrives late, and nobody has recovered it.
    Everybody(Cut),
    Server(Shutdown),
    Daemon(usize),
}

impl Fault {
    pub fn name(self) -> String {
        match self {
            Self::KillWorker => "worker: SIGKILL".to_owned(),
            Self::FreezeWorker => "worker: SIGSTOP past the lease, SIGCONT".to_owned(),
            Self::KillNode => "node agent: SIGKILL".to_owned(),
            Self::FreezeNode => "node agent: SIGSTOP past its freshness, SIGCONT".to_owned(),
            Self::Postgres(cut) => format!("PostgreSQL network: {}", cut.name()),
            Self::Docker(cut) => format!("Docker network: {}", cut.name()),
            Self::Everybody(cut) => format!("PostgreSQL network, all workers: {}", cut.name()),
            Self::Server(Shutdown::Fast) => "PostgreSQL server: fast restart".to_owned(),
            Self::Server(Shutdown::Immediate) => "PostgreSQL server: immediate restart".to_owned(),
            Self::Daemon(engine) => format!("Docker daemon {engine}: restart"),
        }
    }
}

/// How often each kind shall hit.
#[derive(Debug, Clone)]
pub struct Dose {
    /// No others than these.
    pub only: Option<Vec<Fault>>,
    /// How long cuts before workers last, in milliseconds.
    pub cuts: std::ops::Range<u64>,
    /// Each kind of process and network faults.
    pub each: usize,
    /// Of each way to restart the server.
    pub servers: usize,
    /// Of each engine's daemon.
    pub daemons: usize,
}

/// What happened so far, shared by all lanes.
pub struct Injection {
    pub world: Arc<World>,
    pub members: Arc<Vec<Member>>,
    pub begun: Instant,
    pub length: Duration,
    pub dose: Dose,
    /// Tries and hits.
    pub tally: Mutex<BTreeMap<Fault, (u32, u32)>>,
    pub freezes: Mutex<Vec<Freeze>>,
    pub outages: Mutex<Vec<Outage>>,
    pub over: AtomicBool,
}

/// Who is hit.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Member(usize),
    Engine(usize),
    Server,
}

impl Injection {
    /// When it is given up to wait for more hits: half as late again as planned. A short run whose every fault must hit
    /// gets two minutes more: its few faults may meet an idle engine several times.
    fn most(&self) -> Duration {
        let most = self.length.mul_f64(1.5);
        if self.dose.only.is_some() { most } else { most.max(self.length + Duration::from_mins(2)) }
    }

    /// Plays a whole dose; ends when it is used up, or there was enough time for it.
    pub async fn play(&self, seed: u64) {
        let dose = &self.dose;
        let mut dice = StdRng::seed_from_u64(seed);
        let mut lanes: Vec<(Victim, Vec<Fault>)> = Vec::new();
        let with = |roles: &[Role]| -> Vec<Victim> {
            let members = self.members.iter().enumerate();
            members
                .filter(|(_, member)| roles.contains(&member.role))
                .map(|(n, _)| Victim::Member(n))
                .collect()
        };
        let workers = with(&[Role::Handlers, Role::Runner]);
        let mut of_workers = vec![Fault::KillWorker, Fault::FreezeWorker];
        of_workers.extend(Cut::ALL.map(Fault::Postgres));
        lanes.extend(deal(&mut dice, &workers, &of_workers, dose.each));
        let nodes = with(&[Role::Node]);
        lanes.extend(deal(&mut dice, &nodes, &[Fault::KillNode, Fault::FreezeNode], dose.each));
        let engines: Vec<Victim> = (0..self.world.engines.len()).map(Victim::Engine).collect();
        let mut of_engines = deal(&mut dice, &engines, &Cut::ALL.map(Fault::Docker), dose.each);
        for (n, (_, deck)) in of_engines.iter_mut().enumerate() {
            deck.extend(vec![Fault::Daemon(n + 1); dose.daemons]);
            deck.shuffle(&mut dice);
        }
        lanes.extend(of_engines);
        let mut of_all = [Shutdown::Fast, Shutdown::Immediate].map(Fault::Server).to_vec();
        of_all.push(Fault::Everybody(Cut::There));
        lanes.extend(deal(&mut dice, &[Victim::Server], &of_all, dose.servers));
        if let Some(only) = &dose.only {
            for (_, deck) in &mut lanes {
                deck.retain(|fault| only.contains(fault));
            }
        }

        futures_util::future::join_all(
            lanes.into_iter().map(|(victim, deck)| self.lane(victim, deck, dice.random())),
        )
        .await;
        self.over.store(true, SeqCst);
    }

    async fn lane(&self, victim: Victim, deck: Vec<Fault>, seed: u64) {
        let mut dice = StdRng::seed_from_u64(seed);
        let mut session = None;
        let count = u32::try_from(deck.len()).unwrap();
        for (n, fault) in (0..).zip(deck) {
            // Spread over nine tenths of the time.
            let turn = (f64::from(n) + dice.random_range(0.1..0.9)) / f64::from(count.max(1));
            sleep_until(self.begun + self.length.mul_f64(0.9 * turn)).await;
            loop {
                if self.begun.elapsed() > self.most() {
                    return;
                }
                let hit = self.inject(victim, fault, &mut session, &mut dice).await;
                self.count(fault, hit);
                if hit {
                    break;
                }
                pass(Duration::from_millis(500)).await;
            }
        }
    }

    fn count(&self, fault: Fault, hit: bool) {
        let mut tally = self.tally.lock().unwrap();
        let entry = tally.entry(fault).or_default();
        entry.0 += 1;
        entry.1 += u32::from(hit);
    }

    async fn inject(
        &self,
        victim: Victim,
        fault: Fault,
        session: &mut Option<Client>,
        dice: &mut StdRng,
    ) -> bool {
        let mut span = |from: u64, to: u64| Duration::from_millis(dice.random_range(from..to));
        match (victim, fault) {
            (Victim::Member(n), Fault::KillWorker | Fault::KillNode) => {
                let member = &self.members[n];
                let pause = span(100, 2000);
                let live = self.live(session, "$1 in (worker_id, node_id)", &member.name).await;
                if live == 0 {
                    return false;
                }
                let from = now();
                member.kill();
                pass(pause).await;
                member.start();
                self.disturbed(member, from);
                true
            }
            (Victim::Member(n), Fault::FreezeWorker | Fault::FreezeNode) => {
                let member = &self.members[n];
                // Leases last 5 s, a node's freshness 3.
                let length = if fault == Fault::FreezeWorker { span(5500, 8000) } else { span(3500, 8000) };
                let live = self.live(session, "$1 in (worker_id, node_id)", &member.name).await;
                let Some(pid) = member.pid().filter(|_| live > 0) else { return false };
                let from = now();
                member.signal(Signal::STOP);
                pass(length).await;
                member.signal(Signal::CONT);
                self.freezes.lock().unwrap().push(Freeze { pid, from, to: now() });
                self.disturbed(member, from);
                true
            }
            (Victim::Member(n), Fault::Postgres(cut)) => {
                let length = span(self.dose.cuts.start, self.dose.cuts.end);
                self.members[n].wire.play(cut, length).await > 0
            }
            (Victim::Server, Fault::Everybody(cut)) => {
                // Past the lease.
                let length = span(5200, 6500);
                let workers = self.members.iter().filter(|member| member.role != Role::Node);
                let met =
                    futures_util::future::join_all(workers.map(|member| member.wire.play(cut, length))).await;
                met.into_iter().any(|met| met > 0)
            }
            (Victim::Engine(n), Fault::Docker(cut)) => {
                let engine = &self.world.engines[n];
                let (from, length) = (now(), span(500, 4000));
                let met = engine.wire.play(cut, length).await > 0;
                self.was_out(&engine.node, from);
                met
            }
            (Victim::Engine(n), Fault::Daemon(_)) => {
                let engine = &self.world.engines[n];
                let live =
                    self.live(session, "$1 = node_id and container_id is not null", &engine.node).await;
                if live == 0 {
                    return false;
                }
                let from = now();
                let mut daemon = engine.daemon.lock().await;
                // In order, as an upgrade does, or by a crash.
                daemon.end(if span(0, 3).is_zero() { "KILL" } else { "TERM" }).await;
                pass(span(0, 1500)).await;
                daemon.boot().await;
                drop(daemon);
                self.was_out(&engine.node, from);
                true
            }
            (Victim::Server, Fault::Server(how)) => {
                let live = self.live(session, "$1 = ''", "").await;
                *session = None;
                if live == 0 {
                    return false;
                }
                let from = now();
                self.world.restart_server(how, span(0, 2500)).await;
                for engine in &self.world.engines {
                    self.was_out(&engine.node, from);
                }
                true
            }
            (victim, fault) => unreachable!("{fault:?} is not dealt to {victim:?}"),
        }
    }

    /// A fault of a node's agent counts as an outage of the node.
    fn disturbed(&self, member: &Member, from: i64) {
        if member.role == Role::Node {
            self.was_out(&member.name, from);
        }
    }

    fn was_out(&self, node: &str, from: i64) {
        // A moment more, until everybody is back in touch.
        let to = now() + 5 * SECOND;
        self.outages.lock().unwrap().push(Outage { node: node.to_owned(), from, to });
    }

    /// How many live leases a victim has at this moment; none when the database does not answer.
    async fn live(&self, session: &mut Option<Client>, whose: &'static str, name: &str) -> i64 {
        let name = name.to_owned();
        if session.as_ref().is_none_or(Client::is_closed) {
            *session = self.world.session().await;
        }
        let Some(client) = session else { return 0 };
        let sql = format!(
            "select count(*) from leasehold.leases where ({whose}) and lease_expires_at > clock_timestamp()"
        );
        let asked = async { client.query_one(&sql, &[&name]).await };
        let asked = tokio::time::timeout(Duration::from_secs(2), asked).await;
        if let Ok(Ok(row)) = asked {
            row.get(0)
        } else {
            *session = None;
            0
        }
    }
}

/// Deals so many of each fault to the victims, shuffled, and evenly.
fn deal(dice: &mut StdRng, victims: &[Victim], faults: &[Fault], each: usize) -> Vec<(Victim, Vec<Fault>)> {
    let mut deck: Vec<Fault> = faults.iter().flat_map(|fault| vec![*fault; each]).collect();
    deck.shuffle(dice);
    let mut lanes: Vec<(Victim, Vec<Fault>)> = victims.iter().map(|victim| (*victim, Vec::new())).collect();
    let count = lanes.len();
    if count > 0 {
        for (n, fault) in deck.into_iter().enumerate() {
            lanes[n % count].1.push(fault);
        }
    }
    lanes
}
