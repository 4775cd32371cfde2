//! What must hold. Some of it can be read off a state; the rest is about a step ("an expired lease was
//! extended"), which the step itself notes in `State::broken`.

use std::sync::atomic::{AtomicU32, Ordering};

use stateright::Property;

use crate::{
    model::LeaseModel,
    names::{Job, Worker},
    situations::SITUATIONS,
    state::{Phase, State, Token},
};

/// Names for the bits of `State::broken`.
#[derive(Debug)]
pub struct Broken;

impl Broken {
    /// A grant was made while another token of the job was live.
    pub const L1: u16 = 1;
    /// A mutation under a token that was not live changed a row.
    pub const L2: u16 = 2;
    /// A renewal extended an expired lease.
    pub const L3: u16 = 4;
    /// A grant did not raise the epoch.
    pub const L4: u16 = 8;
    /// One command granted twice.
    pub const GRANTS_PER_COMMAND: u16 = 16;
    /// An end was answered with what is not so.
    pub const TRUE_ANSWERS: u16 = 32;
    /// A job returned to PENDING after its cancellation was requested.
    pub const CANCEL: u16 = 64;
}

/// A property that must hold in every reachable state.
#[derive(Debug)]
pub struct Rule {
    /// Its name: that of the invariant in the lease protocol, and where there are several, which part.
    pub name: &'static str,
    /// What it says.
    pub says: &'static str,
    holds: fn(&LeaseModel, &State) -> bool,
}

const fn rule(name: &'static str, says: &'static str, holds: fn(&LeaseModel, &State) -> bool) -> Rule {
    Rule { name, says, holds }
}

/// The properties that must hold in every reachable state.
pub const RULES: [Rule; 10] = [
    rule("L1", "at most one token of a job is live", |_, s| s.broken & Broken::L1 == 0),
    rule("L2", "a token that is not live changes nothing", |_, s| s.broken & Broken::L2 == 0),
    rule("L3", "a renewal never revives an expired lease", |_, s| s.broken & Broken::L3 == 0),
    rule("L4", "epochs rise with every grant", |_, s| s.broken & Broken::L4 == 0),
    rule("L5", "no two workloads of a job, and none without a live lease", |_, s| work_is_exclusive(s)),
    rule("L8", "one permit for each live lease of a living process", |_, s| permits_are_conserved(s)),
    rule("L10 grants", "a command grants at most once", |_, s| s.broken & Broken::GRANTS_PER_COMMAND == 0),
    rule("L10 answers", "an end is answered as it was recorded", |_, s| s.broken & Broken::TRUE_ANSWERS == 0),
    rule("L10 progress", "from everywhere, without further faults, every job ends", LeaseModel::settles),
    rule("cancel", "a job to be cancelled never returns to PENDING", |_, s| s.broken & Broken::CANCEL == 0),
];

/// L5: a workload that can be killed runs under a live lease, alone; and no process touches a job whose
/// older workload still runs in it.
fn work_is_exclusive(s: &State) -> bool {
    Job::ALL.into_iter().all(|job| {
        let mut running = usize::from(s.job(job).orphan);
        for worker in Worker::ALL {
            let mut blocked = 0;
            let mut others = 0;
            for permit in &s.permits[worker.ix()] {
                let Some(grant) = permit.phase.grant().filter(|grant| grant.job == job) else { continue };
                match permit.phase {
                    Phase::Stuck { blocked: true, .. } => blocked += 1,
                    Phase::Running { .. } | Phase::Stuck { .. } => {
                        running += 1;
                        others += 1;
                        let lease = s.lease(job).filter(|lease| lease.left > 0);
                        if lease.is_none_or(|lease| grant.token != Token::Is(lease.token)) {
                            return false;
                        }
                    }
                    Phase::Starting { .. } | Phase::Cleaning { .. } | Phase::Ending { .. }
                        if matches!(grant.token, Token::Is(_)) =>
                    {
                        others += 1;
                    }
                    _ => {}
                }
            }
            if blocked > 0 && others > 0 {
                return false;
            }
        }
        running <= 1
    })
}

/// L8: every live lease of a process that is alive is covered by exactly one of its permits: one that holds
/// the token, or one that waits for the answer of the command that granted it.
fn permits_are_conserved(s: &State) -> bool {
    Job::ALL.into_iter().all(|job| {
        let Some(lease) = s.lease(job).filter(|lease| lease.left > 0 && lease.owner.alive) else {
            return true;
        };
        let permits = &s.permits[lease.owner.worker.ix()];
        let holding = permits
            .iter()
            .filter(|p| p.phase.grant().is_some_and(|g| g.job == job && g.token == Token::Is(lease.token)))
            .count();
        if lease.command == 0 {
            return holding == 1;
        }
        let waiting = permits.iter().filter(|p| p.phase.command() == lease.command).count();
        let granted = Job::ALL
            .into_iter()
            .filter(|j| s.lease(*j).is_some_and(|l| l.command == lease.command && l.left > 0))
            .count();
        if waiting > 0 { holding == 0 && granted <= waiting } else { holding == 1 }
    })
}

/// All of them, for stateright: the rules, and the situations that must be met somewhere.
#[must_use]
pub fn all() -> Vec<Property<LeaseModel>> {
    let holds = [
        holds::<0>, holds::<1>, holds::<2>, holds::<3>, holds::<4>, holds::<5>, holds::<6>, holds::<7>,
        holds::<8>, holds::<9>,
    ];
    let met = [
        met::<0>, met::<1>, met::<2>, met::<3>, met::<4>, met::<5>, met::<6>, met::<7>, met::<8>, met::<9>,
        met::<10>, met::<11>, met::<12>, met::<13>, met::<14>, met::<15>, met::<16>, met::<17>,
    ];
    let rules = RULES.iter().zip(holds as [fn(&LeaseModel, &State) -> bool; RULES.len()]);
    let situations = SITUATIONS.iter().zip(met as [fn(&LeaseModel, &State) -> bool; SITUATIONS.len()]);
    let rules = rules.map(|(rule, holds)| Property::always(rule.name, holds));
    rules.chain(situations.map(|(situation, met)| Property::sometimes(situation.name, met))).collect()
}

/// False once only, the first time: the first way found is the shortest, and stateright would replace it by
/// any later one.
fn holds<const N: usize>(model: &LeaseModel, s: &State) -> bool {
    (RULES[N].holds)(model, s) || !first_time(&model.broken, N)
}

/// True once only, the first time.
fn met<const N: usize>(model: &LeaseModel, s: &State) -> bool {
    model.met.load(Ordering::Relaxed) & 1 << N == 0 && (SITUATIONS[N].holds)(s) && first_time(&model.met, N)
}

fn first_time(seen: &AtomicU32, n: usize) -> bool {
    seen.fetch_or(1 << n, Ordering::Relaxed) & 1 << n == 0
}
