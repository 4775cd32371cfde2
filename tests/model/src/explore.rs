//! Explores a scope completely, or until a defect is caught, and measures it.

use std::{
    fs,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use stateright::{Checker as _, HasDiscoveries, Model as _};

use crate::{
    action::Action, model::LeaseModel, mutant::Mutant, properties::RULES, scope::Scope,
    situations::SITUATIONS, state::State,
};

/// The steps that break a property: each state, and the action that leaves it.
pub type Steps = Vec<(State, Option<Action>)>;

/// What an exploration found.
#[derive(Debug)]
pub struct Exploration {
    /// The scope.
    pub scope: Scope,
    /// The defect that was switched on.
    pub mutant: Option<Mutant>,
    /// Different states, after symmetry and tidying.
    pub states: usize,
    /// Steps looked at.
    pub steps: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
    /// Time on the wall.
    pub time: Duration,
    /// Processor time of this process meanwhile.
    pub cpu: Duration,
    /// The most memory that this process held meanwhile, in MiB.
    pub peak_mib: u64,
    /// Properties that do not hold, each with the steps that show it.
    pub broken: Vec<(&'static str, Steps)>,
    /// Situations that were met, each in at least one state.
    pub met: Vec<&'static str>,
    /// Situations that should have been met and were not.
    pub missed: Vec<&'static str>,
}

impl Exploration {
    /// Everything holds in every reachable state (an exploration stops early only where something does not),
    /// and every situation that the scope is there for was met.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.broken.is_empty() && self.missed.is_empty()
    }

    /// The steps that break this property.
    #[must_use]
    pub fn counter_example(&self, property: &str) -> Option<&Steps> {
        self.broken.iter().find(|(name, _)| *name == property).map(|(_, steps)| steps)
    }
}

/// Explores the scope: the protocol as specified until all was seen or something is broken, a mutant until
/// the rule that it must break is broken.
#[must_use]
pub fn explore(scope: Scope, mutant: Option<Mutant>, threads: usize) -> Exploration {
    forget_peak();
    let (start, cpu) = (Instant::now(), cpu_time());
    let finish = match mutant {
        Some(mutant) => HasDiscoveries::AnyOf([mutant.breaks()].into()),
        None => HasDiscoveries::AnyFailures,
    };
    let checker =
        LeaseModel::new(scope, mutant).checker().threads(threads).finish_when(finish).spawn_bfs().join();
    let time = start.elapsed();
    let discoveries = checker.discoveries();
    let broken = RULES
        .iter()
        .filter_map(|rule| Some((rule.name, discoveries.get(rule.name)?.clone().into_vec())))
        .collect();
    let seen = checker.model().met.load(Ordering::Relaxed);
    let (met, missed): (Vec<_>, Vec<_>) =
        SITUATIONS.iter().enumerate().partition(|(n, _)| seen & 1 << n != 0);
    let met = met.into_iter().map(|(_, situation)| situation.name).collect();
    let missed = missed
        .into_iter()
        .filter(|(_, situation)| (situation.expected)(&scope))
        .map(|(_, situation)| situation.name)
        .collect();
    Exploration {
        scope,
        mutant,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        time,
        cpu: cpu_time().saturating_sub(cpu),
        peak_mib: peak_kib() / 1024,
        broken,
        met,
        missed,
    }
}

/// Lets everything else on this machine go first: an exploration is in no hurry, and tests beside it may be.
pub fn give_way() {
    let _ = rustix::process::nice(10);
}

/// Lets the kernel count the peak anew; where it cannot, the figure is the peak of the whole process.
fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// User and system time of this process, in the kernel's hundredths of a second.
fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse().ok())
        .collect();
    Duration::from_millis(fields.iter().sum::<u64>() * 10)
}
