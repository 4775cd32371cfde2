//! The workers: what a permit goes through, from the request that it is reserved for to the answer that
//! frees it, and what happens when answers, actors or whole processes are lost.

use crate::{
    action::Way,
    mutant::Mutant,
    names::{Job, JobSet, Worker},
    properties::Broken,
    protocol::Protocol,
    state::{
        Answer, Call, Grant, LATE, Origin, Outcome, PERMITS, Permit, Phase, Place, Request, Stage, State,
        Token, Who,
    },
};

impl Protocol {
    /// Reserves the free permits that may claim, and asks for as many jobs.
    pub fn claim(&self, s: &mut State, worker: Worker, n: usize, way: Way) {
        let command = s.fresh_command();
        let mut room = 1;
        s.permit_mut(worker, n).phase = Phase::Asking { command, repeat: false, recovery: false };
        for other in 0..PERMITS {
            if s.permit(worker, other).phase == Phase::Free && self.scope.roles[worker.ix()][other].claims() {
                s.permit_mut(worker, other).phase = Phase::Joined { command };
                room += 1;
            }
        }
        s.send(worker, n, Request::Claim { command, repeat: false, room });
        self.go(s, worker, n, way);
    }

    /// Reserves a permit for recovery, and asks for one expired lease.
    pub fn recover(&self, s: &mut State, worker: Worker, n: usize, way: Way) {
        let command = s.fresh_command();
        let except = self.except(s, worker);
        s.permit_mut(worker, n).phase = Phase::Asking { command, repeat: false, recovery: true };
        s.send(worker, n, Request::Recover { command, repeat: false, except });
        self.go(s, worker, n, way);
    }

    /// What becomes of a new claim or recovery. That it travels and nothing else happens needs no state of
    /// its own: it may as well be sent just before the database looks at it.
    fn go(&self, s: &mut State, worker: Worker, n: usize, way: Way) {
        let Some(call) = s.permit(worker, n).call else { return };
        let who = Who::Permit(worker, n);
        match way {
            Way::Late => self.stop_waiting(s, worker, n, true),
            Way::Looks => self.snapshot(s, who, call),
            Way::Takes(rows) => {
                if let Ok(view) = self.look(s, call) {
                    self.take_now(s, who, call, view, rows);
                }
            }
        }
    }

    /// The jobs that a recovery leaves alone because this process still has a permit for them. Where every
    /// workload dies in time, taking them too does no harm, so it is allowed there.
    #[must_use]
    pub fn except(&self, s: &State, worker: Worker) -> JobSet {
        if self.scope.blocks { s.jobs_of(worker) } else { JobSet::NONE }
    }

    /// What the permit's phase calls for: the replay of an unanswered claim or recovery, a renewal, the end.
    fn next_request(&self, s: &State, worker: Worker, n: usize) -> Option<Request> {
        Some(match s.permit(worker, n).phase {
            Phase::Asking { command, recovery: true, .. } => {
                Request::Recover { command, repeat: true, except: self.except(s, worker) }
            }
            Phase::Asking { command, recovery: false, .. } => {
                let joined =
                    s.permits[worker.ix()].iter().filter(|p| p.phase == Phase::Joined { command }).count();
                Request::Claim { command, repeat: true, room: if joined == 0 { 1 } else { 2 } }
            }
            Phase::Starting { grant, .. } | Phase::Running { grant, .. } => Request::Renew(grant),
            Phase::Ending { grant, outcome } => Request::End(grant, outcome),
            Phase::Free
            | Phase::Joined { .. }
            | Phase::Cleaning { .. }
            | Phase::Stuck { .. }
            | Phase::Reconciling { .. } => return None,
        })
    }

    /// Asks what became of the grant. Read-only, so the way of the request there needs no step of its own.
    pub fn reconcile(&self, s: &mut State, worker: Worker, n: usize) {
        let Phase::Reconciling { grant } = s.permit(worker, n).phase else { return };
        s.send(worker, n, Request::Reconcile(grant));
        if let Some(call) = s.permit(worker, n).call {
            self.snapshot(s, Who::Permit(worker, n), call);
        }
    }

    /// The workload has ended, or a recovered container has been dealt with: the end is reported.
    pub fn end_work(&self, s: &mut State, worker: Worker, n: usize, outcome: Outcome) {
        let phase = s.permit(worker, n).phase;
        let Some(grant) = phase.grant() else { return };
        if matches!(phase, Phase::Cleaning { started: true, .. })
            && matches!(grant.token, Token::Is(_))
            && outcome != Outcome::Postpone
            && !self.is(Mutant::CleanupSkipped)
        {
            // Only containers of an older epoch are touched. With a token that has been replaced, what still
            // runs may be younger, and is left alone.
            s.jobs[grant.job.ix()].orphan = false;
        }
        self.enter(s, worker, n, Phase::Ending { grant, outcome });
    }

    /// An answer reaches the permit that waits for it.
    pub fn deliver(&self, s: &mut State, worker: Worker, n: usize, answer: Answer, age: u8) {
        let permit = s.permit_mut(worker, n);
        permit.call = None;
        let term = self.local_term();
        let deadline = if self.is(Mutant::DeadlineFromAnswer) { term } else { term.saturating_sub(age) };
        let next = match (permit.phase, answer) {
            (Phase::Asking { command, recovery, .. }, Answer::Granted(jobs)) => {
                self.take_grants(s, worker, n, command, recovery, jobs);
                return;
            }
            (Phase::Starting { grant, origin }, Answer::Held { cancel }) => {
                match (deadline, origin, cancel) {
                    (0, ..) => Phase::Reconciling { grant },
                    (_, Origin::Claim, true) => Phase::Ending { grant, outcome: Outcome::Terminal },
                    (_, Origin::Claim, false) => Phase::Running { grant, deadline },
                    (_, Origin::Started, _) => Phase::Cleaning { grant, started: true },
                    (_, Origin::Untouched, _) => Phase::Cleaning { grant, started: false },
                }
            }
            (Phase::Running { grant, .. }, Answer::Held { cancel: true }) => {
                Phase::Ending { grant, outcome: Outcome::Terminal }
            }
            (Phase::Running { grant, deadline: before }, Answer::Held { cancel: false }) => {
                Phase::Running { grant, deadline: deadline.max(before) }
            }
            (Phase::Ending { grant, .. }, Answer::NotLive) if grant.token == Token::Ended => {
                s.broken |= Broken::TRUE_ANSWERS;
                Phase::Free
            }
            (Phase::Ending { grant, outcome }, Answer::Done)
                if grant.token != Token::Ended && outcome != Outcome::Postpone =>
            {
                s.broken |= Broken::TRUE_ANSWERS;
                Phase::Free
            }
            (Phase::Reconciling { grant }, Answer::Live) => Phase::Reconciling { grant },
            _ => Phase::Free,
        };
        self.enter(s, worker, n, next);
    }

    /// The permit enters a phase, and what the phase calls for is asked. A request may travel for as long as
    /// it likes, so "not asked yet" needs no state of its own.
    fn enter(&self, s: &mut State, worker: Worker, n: usize, phase: Phase) {
        *s.permit_mut(worker, n) = Permit { phase, call: None };
        if let Some(request) = self.next_request(s, worker, n) {
            s.send(worker, n, request);
        }
    }

    /// Spreads the grants of an answer over the permits that were reserved for it; the others become free.
    fn take_grants(
        &self,
        s: &mut State,
        worker: Worker,
        n: usize,
        command: u8,
        recovered: bool,
        jobs: JobSet,
    ) {
        let mut granted = jobs.iter();
        for at in [n, 1 - n] {
            if s.permit(worker, at).phase.command() != command {
                continue;
            }
            let Some(job) = granted.next() else {
                s.permit_mut(worker, at).phase = Phase::Free;
                continue;
            };
            let lease = s.lease(job).filter(|lease| lease.command == command);
            let token = lease.map_or(Token::Replaced, |lease| Token::Is(lease.token));
            let origin = match lease {
                _ if !recovered => Origin::Claim,
                Some(lease) if !lease.renewed => Origin::Untouched,
                _ => Origin::Started,
            };
            let grant = Grant { job, token };
            let runs_it = s.permits[worker.ix()]
                .iter()
                .any(|permit| permit.phase.works() && permit.phase.grant().is_some_and(|g| g.job == job));
            if runs_it && !(recovered && self.is(Mutant::RecoveryWhileRunning)) {
                // Not to be touched while the workload of an older grant runs in this very process.
                self.enter(s, worker, at, Phase::Reconciling { grant });
            } else if self.is(Mutant::StartWithoutRenewal) && !recovered {
                self.enter(s, worker, at, Phase::Running { grant, deadline: self.local_term() });
            } else {
                self.enter(s, worker, at, Phase::Starting { grant, origin });
            }
        }
    }

    /// The worker stops waiting for an answer. The request is lost, or its answer is, or (`stays`) the
    /// request goes on and may take effect at any later time. It asks again.
    pub fn stop_waiting(&self, s: &mut State, worker: Worker, n: usize, stays: bool) {
        let Some(call) = s.permit_mut(worker, n).call.take() else { return };
        if stays {
            s.add_late(call);
        }
        let mut phase = s.permit(worker, n).phase;
        if let Phase::Asking { repeat, .. } = &mut phase {
            *repeat = true;
        }
        self.enter(s, worker, n, phase);
    }

    /// The actor that holds the permit dies.
    pub fn actor_dies(&self, s: &mut State, worker: Worker, n: usize) {
        let freed = self.is(Mutant::PermitFreedOnDrop);
        let next = match s.permit(worker, n).phase {
            Phase::Running { grant, deadline } => Phase::Stuck { grant, deadline, blocked: false },
            Phase::Starting { grant, .. } | Phase::Cleaning { grant, .. } | Phase::Ending { grant, .. }
                if !freed =>
            {
                Phase::Reconciling { grant }
            }
            _ => Phase::Free,
        };
        self.enter(s, worker, n, next);
    }

    /// The workload of a lost lease or of a dead owner is dead: killed by the fence, or ended by itself.
    pub fn workload_dead(&self, s: &mut State, worker: Worker, n: usize) {
        if let Some(grant) = s.permit(worker, n).phase.grant() {
            self.enter(s, worker, n, Phase::Reconciling { grant });
        }
    }

    /// The workload refuses to die at its deadline.
    pub fn workload_blocks(&self, s: &mut State, worker: Worker, n: usize) {
        if let Some(grant) = s.permit(worker, n).phase.grant() {
            self.enter(s, worker, n, Phase::Stuck { grant, deadline: 0, blocked: true });
        }
    }

    /// The process is killed, and a new one starts under the same worker id. Of its requests in flight those
    /// in `kept` may still take effect. Containers go on; handlers that blocked die with their process.
    pub fn restart(&self, s: &mut State, worker: Worker, kept: [bool; PERMITS]) {
        for (n, stays) in kept.into_iter().enumerate() {
            let permit = std::mem::replace(s.permit_mut(worker, n), Permit::FREE);
            if permit.phase.works()
                && !matches!(permit.phase, Phase::Stuck { blocked: true, .. })
                && let Some(grant) = permit.phase.grant()
            {
                s.jobs[grant.job.ix()].orphan = true;
            }
            if let Some(call) = permit.call.filter(|_| stays) {
                s.add_late(call);
            }
        }
        for call in s.calls_mut() {
            if call.from.worker == worker {
                call.from.alive = false;
            }
        }
        for row in &mut s.jobs {
            if let Place::Running(lease) = &mut row.place
                && lease.owner.worker == worker
            {
                lease.owner.alive = false;
            }
        }
    }

    /// Whether time may pass: never over the deadline of a workload that the fence can kill.
    #[must_use]
    pub fn may_tick(&self, s: &State) -> bool {
        !s.permits.iter().flatten().any(|permit| {
            matches!(
                permit.phase,
                Phase::Running { deadline: 0, .. } | Phase::Stuck { deadline: 0, blocked: false, .. }
            )
        })
    }

    /// A tick of every clock.
    pub fn tick(&self, s: &mut State) {
        let oldest = self.local_term();
        for row in &mut s.jobs {
            if let Place::Running(lease) = &mut row.place {
                lease.left = lease.left.saturating_sub(1);
            }
        }
        for permit in s.permits.iter_mut().flatten() {
            if let Phase::Running { deadline, .. } | Phase::Stuck { deadline, .. } = &mut permit.phase {
                *deadline = deadline.saturating_sub(1);
            }
            // A request that the database has not looked at may as well be sent only now; that gives the
            // later deadline, and so the more daring worker.
            if let Some(call) = &mut permit.call
                && matches!(call.request, Request::Renew(_))
                && call.stage != Stage::Sent
            {
                call.age = (call.age + 1).min(oldest);
            }
        }
        for call in s.calls_mut() {
            if let Stage::Snapped(view) | Stage::Written(view) = &mut call.stage {
                view.left = view.left.saturating_sub(1);
            }
        }
    }
}

impl State {
    /// Sends a request for a permit.
    pub fn send(&mut self, worker: Worker, n: usize, request: Request) {
        let from = Self::process(worker);
        self.permit_mut(worker, n).call = Some(Call { from, request, stage: Stage::Sent, age: 0 });
    }

    /// The jobs that a worker's permits stand for.
    #[must_use]
    pub fn jobs_of(&self, worker: Worker) -> JobSet {
        JobSet::of(|job: Job| {
            self.permits[worker.ix()].iter().any(|permit| permit.phase.grant().is_some_and(|g| g.job == job))
        })
    }

    /// How many late calls there are.
    #[must_use]
    pub fn late_count(&self) -> usize {
        self.late.iter().flatten().count()
    }

    fn add_late(&mut self, call: Call) {
        debug_assert!(self.late_count() < LATE, "the action is only offered where there is room");
        if let Some(slot) = self.late.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(Call { age: 0, ..call });
        }
    }
}
