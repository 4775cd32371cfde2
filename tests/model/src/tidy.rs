//! Tidying: after each step, what can only ever end in one way is brought there at once, and what cannot
//! matter any more is forgotten. Each rule either keeps exactly the same future (the two states cannot be
//! told apart), or replaces a state by one that can do everything that the old one could, and more: a free
//! permit may do whatever a reserved one may, since nobody forces it to do anything.
//!
//! What a rule takes for granted ("a lost lease changes nothing") is not believed but tried: before a call
//! is forgotten it is run to its end on a copy of the state. The scope `plain` explores without these rules.
//! Mutants break their reasons, so a rule is off while what it leans on is broken.

use crate::{
    database::{Takes, repeats},
    mutant::Mutant,
    names::{JobSet, Worker},
    properties::Broken,
    protocol::Protocol,
    state::{
        Answer, Call, Grant, LATE, Outcome, PERMITS, Permit, Phase, Place, Request, Stage, State, Token, Who,
    },
};

impl Protocol {
    /// Tidies a state after a step.
    pub fn tidy(&self, s: &mut State) {
        // (Nothing is finished on the quiet where just that is what goes wrong.)
        if self.scope.tidy && !self.is(Mutant::StaleSnapshotClaim) {
            forget_that_late_calls_are_repeats(s);
            self.finish_empty_statements(s);
            for worker in Worker::ALL {
                for n in 0..PERMITS {
                    self.free_what_can_only_become_free(s, worker, n);
                }
            }
            self.forget_late_calls(s, awaited(s));
        }
        s.late.sort_unstable_by_key(Option::is_none);
        let awaited = awaited(s);
        forget_commands(s, awaited);
    }

    /// A claim or recovery that has found nothing in its snapshot can only grant nothing; a late one is gone
    /// with that.
    fn finish_empty_statements(&self, s: &mut State) {
        for who in State::everybody() {
            if let Some(call) = s.call(who)
                && let Stage::Snapped(view) = call.stage
                && view.jobs.is_empty()
                && matches!(call.request, Request::Claim { .. } | Request::Recover { .. })
                && !(repeats(call.request) && self.key_is_taken(s, Some(who), call.request))
            {
                self.take(s, who, call, view, JobSet::NONE);
            }
        }
    }

    /// Permits that hold nothing and wait for nothing that could still come are as good as free.
    fn free_what_can_only_become_free(&self, s: &mut State, worker: Worker, n: usize) {
        let permit = *s.permit(worker, n);
        match permit.phase {
            Phase::Asking { command, .. } => {
                let Some(call) = permit.call else { return };
                let answered = call.stage == Stage::Replied(Answer::Granted(JobSet::NONE));
                // No copy of the request is left and none has been recorded: this may as well be a new claim.
                let without_trace = call.stage == Stage::Sent
                    && !s.is_recorded(command)
                    && !s.late.iter().flatten().any(|late| late.request.command() == command);
                if answered || without_trace {
                    for permit in &mut s.permits[worker.ix()] {
                        if permit.phase.command() == command {
                            *permit = Permit::FREE;
                        }
                    }
                }
            }
            Phase::Running { .. } => self.forget_a_late_confirmation(s, worker, n),
            Phase::Starting { grant, .. }
            | Phase::Ending { grant, .. }
            | Phase::Cleaning { grant, .. }
            | Phase::Reconciling { grant } => {
                self.forget_a_late_confirmation(s, worker, n);
                if self.is_over(s, grant) && self.changes_nothing(s, Who::Permit(worker, n)) {
                    *s.permit_mut(worker, n) = Permit::FREE;
                }
            }
            _ => {}
        }
    }

    /// A confirmation that has become too old to give a deadline is as good as a lost one.
    fn forget_a_late_confirmation(&self, s: &mut State, worker: Worker, n: usize) {
        let term = self.local_term();
        if let Some(call) = &mut s.permit_mut(worker, n).call
            && matches!(call.stage, Stage::Replied(Answer::Held { .. }))
            && call.age >= term
            && !self.is(Mutant::DeadlineFromAnswer)
        {
            call.stage = Stage::Sent;
            call.age = 0;
        }
    }

    /// Late calls that can never change anything any more: the lease is over, or the command is recorded and
    /// nobody waits for the answer.
    fn forget_late_calls(&self, s: &mut State, awaited: u16) {
        for n in 0..LATE {
            let Some(call) = s.late[n] else { continue };
            let spent = match call.request {
                Request::Renew(grant) | Request::End(grant, _) => self.is_over(s, grant),
                Request::Claim { command, .. } | Request::Recover { command, .. } => {
                    s.is_recorded(command)
                        && awaited & (1 << command) == 0
                        && !self.is(Mutant::ReplayGrantsAgain)
                }
                Request::Reconcile(_) => true,
            };
            if spent && self.changes_nothing(s, Who::Late(n)) {
                s.late[n] = None;
            }
        }
    }

    /// Whether a lease is lost for good: no row holds its token, or it has expired (L3), and no mutation under
    /// it waits for its commit.
    fn is_over(&self, s: &State, grant: Grant) -> bool {
        let broken = self.mutant.is_some_and(Mutant::lets_lost_leases_act);
        let uncommitted = s.callers().any(|(_, call)| {
            matches!(call.stage, Stage::Written(_))
                && matches!(call.request, Request::Renew(held) | Request::End(held, _) if held == grant)
        });
        let lease = s.lease(grant.job).filter(|lease| grant.token == Token::Is(lease.token));
        !broken && lease.is_none_or(|lease| lease.left == 0 && !uncommitted)
    }

    /// Runs a call to its end on a copy of the state. It must change no row, and an end must be answered as
    /// it was recorded. Who holds its row is left out: it could only take the lease away. False: it waits.
    fn changes_nothing(&self, s: &mut State, who: Who) -> bool {
        let Some(call) = s.call(who) else { return true };
        let mut copy = *s;
        for other in State::everybody().filter(|other| *other != who) {
            if s.call(other).is_some_and(|call| !call.stage.held().is_empty()) {
                copy.advance(other, Stage::Sent);
            }
        }
        while let Some(Call { stage, .. }) = copy.call(who) {
            match stage {
                Stage::Sent => self.snapshot(&mut copy, who, call),
                Stage::Snapped(view) => {
                    let mut takes = Takes::default();
                    self.takes(&copy, Some(who), call, view, &mut takes);
                    let Some(rows) = takes.iter().next() else { return false };
                    self.take(&mut copy, who, call, view, rows);
                }
                Stage::Holding(_) => self.read_clock(&mut copy, who),
                Stage::Written(_) => self.commit(&mut copy, who),
                Stage::Replied(answer) => {
                    let recorded = matches!(call.request, Request::End(Grant { token: Token::Ended, .. }, _));
                    let postponed = matches!(call.request, Request::End(_, Outcome::Postpone));
                    if (answer == Answer::Done) != recorded && !postponed {
                        s.broken |= Broken::TRUE_ANSWERS;
                    }
                    break;
                }
            }
        }
        if copy.jobs != s.jobs {
            s.broken |= Broken::L2;
        }
        true
    }
}

/// A late repeat grants what a late first copy grants; if it grants nothing, it records that, and so does the
/// repeat that the permit still waits for.
fn forget_that_late_calls_are_repeats(s: &mut State) {
    for call in s.late.iter_mut().flatten() {
        if let Request::Claim { repeat, .. } | Request::Recover { repeat, .. } = &mut call.request {
            *repeat = false;
        }
    }
}

/// The commands whose answers permits wait for.
fn awaited(s: &State) -> u16 {
    s.permits.iter().flatten().fold(0, |set, permit| set | 1 << permit.phase.command())
}

/// What is recorded under a command matters as long as a permit or a late request names it. (The product
/// keeps it for at least 24 h, longer than any request is late.)
fn forget_commands(s: &mut State, awaited: u16) {
    let used = s.late.iter().flatten().fold(awaited, |set, call| set | 1 << call.request.command()) & !1;
    s.recorded &= used;
    for row in &mut s.jobs {
        if let Place::Running(lease) = &mut row.place
            && used & (1 << lease.command) == 0
        {
            lease.command = 0;
        }
    }
}

impl State {
    /// Everybody who may have a call.
    pub fn everybody() -> impl Iterator<Item = Who> {
        let permits = Worker::ALL.into_iter().flat_map(|w| (0..PERMITS).map(move |n| Who::Permit(w, n)));
        permits.chain((0..LATE).map(Who::Late))
    }
}
