//! L10, progress: a lost message may delay a job, and may not lose it. From *every* state that faults can
//! lead to, a run without further faults must end every job, free every permit and leave no container.
//!
//! Stateright's `eventually` overlooks cycles and joins, so this is checked as an invariant instead: a
//! scheduler that commits no faults runs the state forward until everything has ended. States on such a run
//! settle too; they are remembered (in a table that may forget), so most runs stop after a step or two.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::atomic::Ordering,
};

use crate::{
    action::{Action, Way},
    model::LeaseModel,
    names::{Job, Worker},
    protocol::Protocol,
    state::{Outcome, PERMITS, Phase, Place, Stage, State, Token, Who},
};

/// How many fingerprints are remembered.
pub const MEMORY: usize = 1 << 21;
/// Longer than any run that settles.
const PATIENCE: usize = 400;

impl LeaseModel {
    /// Whether a run without further faults ends every job.
    #[must_use]
    pub fn settles(&self, state: &State) -> bool {
        if self.protocol.mutant.is_some_and(|mutant| mutant.breaks() != "L10 progress") {
            // Many a mutant never settles, and to see that again and again takes all the time there is.
            return true;
        }
        let mut s = *state;
        let mut way = Vec::new();
        for _ in 0..PATIENCE {
            let print = BuildHasherDefault::<DefaultHasher>::default().hash_one(s);
            let slot = &self.settled[usize::try_from(print).unwrap_or(usize::MAX) % MEMORY];
            if slot.load(Ordering::Relaxed) == print || is_settled(&s) {
                for (slot, print) in way {
                    let slot: &std::sync::atomic::AtomicU64 = slot;
                    slot.store(print, Ordering::Relaxed);
                }
                return true;
            }
            way.push((slot, print));
            match self.protocol.calm_step(&s) {
                Some(action) => s = self.protocol.step(&s, action),
                None => return false,
            }
        }
        false
    }
}

/// Every job has ended, nothing runs, every permit is free.
fn is_settled(s: &State) -> bool {
    s.jobs.iter().all(|row| row.place == Place::Ended && !row.orphan)
        && s.permits.iter().flatten().all(|permit| permit.phase == Phase::Free)
}

impl Protocol {
    /// Where a run without further faults stops, or is after a long time.
    #[must_use]
    pub fn calm_end(&self, state: &State) -> State {
        let mut s = *state;
        for _ in 0..PATIENCE {
            match self.calm_step(&s) {
                Some(action) => s = self.step(&s, action),
                None => break,
            }
        }
        s
    }

    /// What happens next when nothing fails: messages arrive, statements finish, workers do their duty, and
    /// time passes when nothing else is left to do.
    #[must_use]
    pub fn calm_step(&self, s: &State) -> Option<Action> {
        let mut next = Vec::new();
        for (who, call) in s.callers() {
            if let (Who::Permit(worker, n), Stage::Sent) = (who, call.stage)
                && matches!(s.permit(worker, n).phase, Phase::Running { .. })
            {
                return Some(Action::End(worker, n, Outcome::Terminal));
            }
            if let (Who::Permit(worker, n), Stage::Replied(_)) = (who, call.stage) {
                return Some(Action::Deliver(worker, n));
            }
            self.statement_actions(s, who, &mut next);
            // (The last: a repeat that may find something does.)
            if let Some(action) = next.last() {
                return Some(*action);
            }
        }
        for worker in Worker::ALL {
            for n in 0..PERMITS {
                if let Some(action) = self.duty(s, worker, n) {
                    return Some(action);
                }
            }
        }
        if let Some(job) = Job::ALL.into_iter().find(|job| s.job(*job).place == Place::Pending) {
            return Some(Action::Dispatch(job));
        }
        let mut all = Vec::new();
        self.actions(s, &mut all);
        all.iter()
            .find(|action| {
                matches!(action, Action::Claim(_, _, way) | Action::Recover(_, _, way) if *way != Way::Late)
            })
            .or_else(|| {
                all.iter().find(|action| matches!(action, Action::Tick) && self.step(s, Action::Tick) != *s)
            })
            .copied()
    }

    fn duty(&self, s: &State, worker: Worker, n: usize) -> Option<Action> {
        match s.permit(worker, n).phase {
            Phase::Cleaning { .. } => Some(Action::End(worker, n, Outcome::Back)),
            Phase::Stuck { .. } => Some(Action::WorkloadDead(worker, n)),
            Phase::Reconciling { grant } => {
                let live =
                    s.lease(grant.job).is_some_and(|l| l.left > 0 && grant.token == Token::Is(l.token));
                (!live).then_some(Action::Reconcile(worker, n))
            }
            _ => None,
        }
    }
}
