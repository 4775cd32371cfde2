//! The checker: reads a history and says, for each invariant of the lease protocol, what it looked at and what
//! broke it. It knows nothing of how the history came about; `forged.rs` shows that it rejects what it must.

mod ends;
mod fleet;
mod leases;
mod work;

use super::history::History;

/// What was found for one invariant.
#[derive(Debug, Default)]
pub struct Finding {
    pub invariant: &'static str,
    pub says: &'static str,
    pub looked_at: Vec<(&'static str, usize)>,
    /// Broken only in a way that the invariant itself names.
    pub exceptions: Vec<(&'static str, usize)>,
    pub violations: Vec<String>,
}

impl Finding {
    fn of(invariant: &'static str, says: &'static str) -> Self {
        Self { invariant, says, ..Self::default() }
    }

    fn looked_at(&mut self, what: &'static str, count: usize) {
        self.looked_at.push((what, count));
    }

    fn excuse(&mut self, what: &'static str, count: usize) {
        self.exceptions.push((what, count));
    }

    fn violated(&mut self, how: String) {
        self.violations.push(how);
    }
}

/// All findings, L1 to L10.
pub fn check(history: &History) -> Vec<Finding> {
    vec![
        leases::one_live_token(history),
        leases::only_the_live_change(history),
        leases::nothing_revived(history),
        leases::epochs_rise(history),
        work::never_twice_at_once(history),
        ends::one_end_each(history),
        fleet::containers_at_home(history),
        fleet::permits_conserved(history),
        fleet::slots_are_jobs(history),
        work::nothing_doubled_or_lost(history),
    ]
}

/// The violations of one invariant.
pub fn violations<'a>(findings: &'a [Finding], invariant: &str) -> &'a [String] {
    findings.iter().find(|finding| finding.invariant == invariant).map_or(&[], |finding| &finding.violations)
}
