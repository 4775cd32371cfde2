//! One step of the world. Names are those of the operations in the lease protocol; `Snapshot`, `Take` and
//! `Write` are the three steps of one statement inside the database.

use crate::{
    database::Takes,
    mutant::Mutant,
    names::{Job, JobSet, Worker},
    protocol::Protocol,
    scope::Cancels,
    state::{Answer, Call, LATE, Outcome, PERMITS, Permit, Phase, Place, Request, Stage, State, View, Who},
};

/// How far a new claim or recovery gets before anything else happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The caller's time runs out while it travels: it is late from the start.
    Late,
    /// The database takes its snapshot.
    Looks,
    /// The database takes its snapshot and these rows at once.
    Takes(JobSet),
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// All clocks move on.
    Tick,
    /// A PENDING job becomes QUEUED.
    Dispatch(Job),
    /// Somebody asks for a job to be cancelled.
    RequestCancel(Job),
    /// A permit is reserved and a claim sent.
    Claim(Worker, usize, Way),
    /// A recovery permit is reserved and a recovery sent.
    Recover(Worker, usize, Way),
    /// The work has ended (or a recovered container has been dealt with); complete, fail, release … is sent.
    End(Worker, usize, Outcome),
    /// A reconciliation is sent.
    Reconcile(Worker, usize),
    /// The database starts a statement: its snapshot.
    Snapshot(Who),
    /// The statement takes these rows, or finds none; where the scope says so, it reads the clock at once.
    Take(Who, JobSet),
    /// The same, and just before it somebody asks for the job to be cancelled.
    CancelAndTake(Who, JobSet),
    /// The statement that holds its rows reads the clock and writes …
    ReadClock(Who),
    /// … and commits.
    Commit(Who),
    /// The answer arrives.
    Deliver(Worker, usize),
    /// The request, or the answer to it, is lost; the caller's time runs out.
    Lose(Worker, usize),
    /// The caller's time runs out while the request goes on: it is late now.
    Delay(Worker, usize),
    /// A late request is lost after all.
    LoseLate(usize),
    /// The actor that holds a permit dies.
    ActorDies(Worker, usize),
    /// The fence kills a workload at its deadline.
    Fence(Worker, usize),
    /// A workload cannot be killed at its deadline.
    Blocks(Worker, usize),
    /// A stuck workload is dead at last.
    WorkloadDead(Worker, usize),
    /// A container without a keeper ends by itself.
    OrphanEnds(Job),
    /// A worker's process is killed and started anew; of the requests in flight the marked ones stay.
    Restart(Worker, [bool; PERMITS]),
}

impl Protocol {
    /// Everything that may happen next.
    pub fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if !self.scope.slow_answers && answers(s, actions) {
            return;
        }
        if self.may_tick(s) {
            actions.push(Action::Tick);
        }
        let held = s.held_by_others(None);
        for job in Job::ALL {
            let row = s.job(job);
            if row.place == Place::Pending {
                actions.push(Action::Dispatch(job));
            }
            let may_cancel = match (self.scope.cancel, row.place) {
                (Cancels::No, _) | (_, Place::Ended) | (Cancels::BeforeRelease, Place::Running(_)) => false,
                (Cancels::Anytime, _) | (Cancels::BeforeRelease, _) => !row.cancel && !held.has(job),
            };
            if may_cancel {
                actions.push(Action::RequestCancel(job));
            }
            if row.orphan {
                actions.push(Action::OrphanEnds(job));
            }
        }
        for worker in Worker::ALL {
            for n in 0..PERMITS {
                self.permit_actions(s, worker, n, actions);
            }
            if self.scope.restarts {
                self.restart_actions(s, worker, actions);
            }
        }
        for n in 0..LATE {
            if s.late[n].is_some() {
                self.statement_actions(s, Who::Late(n), actions);
                actions.push(Action::LoseLate(n));
            }
        }
    }

    fn permit_actions(&self, s: &State, worker: Worker, n: usize, actions: &mut Vec<Action>) {
        let permit = s.permit(worker, n);
        if let Some(call) = permit.call {
            let read_only = matches!(call.request, Request::Reconcile(_));
            if matches!(call.stage, Stage::Replied(_)) {
                actions.push(Action::Deliver(worker, n));
            } else {
                self.statement_actions(s, Who::Permit(worker, n), actions);
                if s.late_count() < self.scope.late && !read_only {
                    actions.push(Action::Delay(worker, n));
                }
            }
            if call.stage != Stage::Sent {
                if !read_only {
                    actions.push(Action::Lose(worker, n));
                }
                // Whatever else the worker may do, it does after it stopped waiting.
                return;
            }
        }
        let ends = [Action::End(worker, n, Outcome::Terminal), Action::End(worker, n, Outcome::Back)];
        match permit.phase {
            Phase::Free => self.free_permit_actions(s, worker, n, actions),
            Phase::Asking { .. } if self.is(Mutant::PermitFreedOnDrop) => {
                actions.push(Action::ActorDies(worker, n))
            }
            Phase::Starting { .. } | Phase::Ending { .. } => actions.push(Action::ActorDies(worker, n)),
            Phase::Running { deadline, .. } => {
                actions.extend(ends);
                actions.push(Action::ActorDies(worker, n));
                if deadline == 0 {
                    actions.push(Action::Fence(worker, n));
                    let blocked = |p: &Permit| matches!(p.phase, Phase::Stuck { blocked: true, .. });
                    if self.scope.blocks && !s.permits.iter().flatten().any(blocked) {
                        actions.push(Action::Blocks(worker, n));
                    }
                }
            }
            Phase::Cleaning { started, .. } => {
                actions.extend(ends);
                if started {
                    actions.push(Action::End(worker, n, Outcome::Postpone));
                }
                actions.push(Action::ActorDies(worker, n));
            }
            Phase::Stuck { .. } => actions.push(Action::WorkloadDead(worker, n)),
            // It waits for whoever holds the row: an expiry that is not committed yet is not to be overlooked.
            Phase::Reconciling { grant }
                if !s.held_by_others(None).has(grant.job) || self.is(Mutant::ReconcileDoesNotWait) =>
            {
                actions.push(Action::Reconcile(worker, n));
            }
            Phase::Reconciling { .. } => {}
            Phase::Joined { .. } | Phase::Asking { .. } => {}
        }
    }

    /// A free permit is reserved when there may be something to have for it.
    fn free_permit_actions(&self, s: &State, worker: Worker, n: usize, actions: &mut Vec<Action>) {
        let roles = self.scope.roles[worker.ix()];
        let first = (0..n).all(|m| s.permit(worker, m).phase != Phase::Free || !roles[m].claims());
        if roles[n].claims() && first && Job::ALL.into_iter().any(|job| s.job(job).place == Place::Queued) {
            let room = roles
                .iter()
                .enumerate()
                .filter(|(m, role)| *m >= n && role.claims() && s.permit(worker, *m).phase == Phase::Free);
            let room = if room.count() > 1 { 2 } else { 1 };
            let request = Request::Claim { command: 0, repeat: false, room };
            self.ways(s, worker, request, |way| actions.push(Action::Claim(worker, n, way)));
        }
        let ours = s.jobs_of(worker);
        let wants = |job| {
            s.lease(job).is_some_and(|lease| lease.left == 0)
                && (!ours.has(job) || self.is(Mutant::RecoveryWhileRunning))
        };
        if roles[n].recovers() && Job::ALL.into_iter().any(wants) {
            let request = Request::Recover { command: 0, repeat: false, except: self.except(s, worker) };
            self.ways(s, worker, request, |way| actions.push(Action::Recover(worker, n, way)));
        }
    }

    fn ways(&self, s: &State, worker: Worker, request: Request, mut push: impl FnMut(Way)) {
        if s.late_count() < self.scope.late {
            push(Way::Late);
        }
        if self.takes_a_snapshot(request) {
            push(Way::Looks);
            return;
        }
        let call = Call { from: State::process(worker), request, stage: Stage::Sent, age: 0 };
        let mut takes = Takes::default();
        if let Ok(view) = self.look(s, call) {
            self.takes(s, None, call, view, &mut takes);
        }
        takes.iter().filter(|rows| !rows.is_empty()).for_each(|rows| push(Way::Takes(rows)));
    }

    /// The next steps of a statement.
    pub fn statement_actions(&self, s: &State, who: Who, actions: &mut Vec<Action>) {
        let Some(call) = s.call(who) else { return };
        match call.stage {
            Stage::Sent if self.takes_a_snapshot(call.request) => actions.push(Action::Snapshot(who)),
            Stage::Sent => match self.look(s, call) {
                Ok(view) => self.take_actions(s, who, call, view, actions),
                Err(_) => actions.push(Action::Snapshot(who)),
            },
            Stage::Snapped(view) => self.take_actions(s, who, call, view, actions),
            Stage::Holding(_) if self.key_is_taken(s, Some(who), call.request) => {}
            Stage::Holding(_) => actions.push(Action::ReadClock(who)),
            Stage::Written(_) => actions.push(Action::Commit(who)),
            Stage::Replied(_) => {}
        }
    }

    fn take_actions(&self, s: &State, who: Who, call: Call, view: View, actions: &mut Vec<Action>) {
        let mut takes = Takes::default();
        self.takes(s, Some(who), call, view, &mut takes);
        actions.extend(takes.iter().map(|rows| Action::Take(who, rows)));
        if let (Cancels::BeforeRelease, Request::End(grant, Outcome::Back)) =
            (self.scope.cancel, call.request)
            && s.is_live(call, grant)
            && !s.job(grant.job).cancel
        {
            actions.extend(takes.iter().map(|rows| Action::CancelAndTake(who, rows)));
        }
    }

    fn restart_actions(&self, s: &State, worker: Worker, actions: &mut Vec<Action>) {
        let busy = s.permits[worker.ix()].iter().any(|permit| permit.phase != Phase::Free)
            || Job::ALL
                .into_iter()
                .any(|job| s.lease(job).is_some_and(|lease| lease.owner == State::process(worker)));
        if !busy {
            return;
        }
        let room = self.scope.late - s.late_count();
        let can_stay = |n: usize| {
            s.permit(worker, n).call.is_some_and(|call| {
                !matches!(call.stage, Stage::Replied(_)) && !matches!(call.request, Request::Reconcile(_))
            })
        };
        for kept in [[false, false], [true, false], [false, true], [true, true]] {
            let count = kept.iter().filter(|k| **k).count();
            if count <= room && (0..PERMITS).all(|n| !kept[n] || can_stay(n)) {
                actions.push(Action::Restart(worker, kept));
            }
        }
    }

    /// The state after a step.
    #[must_use]
    pub fn step(&self, before: &State, action: Action) -> State {
        let mut s = *before;
        match action {
            Action::Tick => self.tick(&mut s),
            Action::Dispatch(job) => self.dispatch(&mut s, job),
            Action::RequestCancel(job) => self.request_cancel(&mut s, job),
            Action::Claim(worker, n, way) => self.claim(&mut s, worker, n, way),
            Action::Recover(worker, n, way) => self.recover(&mut s, worker, n, way),
            Action::Reconcile(worker, n) => self.reconcile(&mut s, worker, n),
            Action::End(worker, n, outcome) => self.end_work(&mut s, worker, n, outcome),
            Action::Snapshot(who) => {
                if let Some(call) = s.call(who) {
                    self.snapshot(&mut s, who, call);
                }
            }
            Action::Take(who, rows) | Action::CancelAndTake(who, rows) => {
                if let Action::CancelAndTake(..) = action {
                    rows.iter().for_each(|job| self.request_cancel(&mut s, job));
                }
                if let Some(call) = s.call(who) {
                    let view = match call.stage {
                        Stage::Snapped(view) => Ok(view),
                        _ => self.look(&s, call),
                    };
                    if let Ok(view) = view {
                        self.take_now(&mut s, who, call, view, rows);
                    }
                }
            }
            Action::ReadClock(who) => self.read_clock(&mut s, who),
            Action::Commit(who) => self.commit(&mut s, who),
            Action::Deliver(worker, n) => {
                if let Some((answer, age)) = answer_of(&s, worker, n) {
                    self.deliver(&mut s, worker, n, answer, age);
                }
            }
            Action::Lose(worker, n) => self.stop_waiting(&mut s, worker, n, false),
            Action::Delay(worker, n) => self.stop_waiting(&mut s, worker, n, true),
            Action::LoseLate(n) => s.late[n] = None,
            Action::ActorDies(worker, n) => self.actor_dies(&mut s, worker, n),
            Action::Fence(worker, n) | Action::WorkloadDead(worker, n) => {
                self.workload_dead(&mut s, worker, n)
            }
            Action::Blocks(worker, n) => self.workload_blocks(&mut s, worker, n),
            Action::OrphanEnds(job) => s.jobs[job.ix()].orphan = false,
            Action::Restart(worker, kept) => self.restart(&mut s, worker, kept),
        }
        self.tidy(&mut s);
        s
    }
}

/// An answer arrives or is lost before anything else happens.
fn answers(s: &State, actions: &mut Vec<Action>) -> bool {
    for worker in Worker::ALL {
        for n in 0..PERMITS {
            if let Some(Call { stage: Stage::Replied(_), request, .. }) = s.permit(worker, n).call {
                actions.push(Action::Deliver(worker, n));
                if !matches!(request, Request::Reconcile(_)) {
                    actions.push(Action::Lose(worker, n));
                }
                return true;
            }
        }
    }
    false
}

fn answer_of(s: &State, worker: Worker, n: usize) -> Option<(Answer, u8)> {
    let call = s.permit(worker, n).call?;
    match call.stage {
        Stage::Replied(answer) => Some((answer, call.age)),
        _ => None,
    }
}
