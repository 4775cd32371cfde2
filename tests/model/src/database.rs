//! The jobs service: what each statement does, in the steps that READ COMMITTED gives it. It takes its
//! snapshot; it takes its rows, waiting for them or skipping them; it reads the clock and writes. A row that
//! it waited for is read again in its present version; every other row it knows from the snapshot only.

use crate::{
    mutant::Mutant,
    names::{Job, JobSet},
    properties::Broken,
    protocol::Protocol,
    scope::Snapshots,
    state::{Answer, Call, Grant, Lease, Outcome, Place, Request, Stage, State, Token, View, Who},
};

/// The sets of rows that a statement may take next; there are never more than four.
#[derive(Clone, Copy, Debug, Default)]
pub struct Takes([Option<JobSet>; 4]);

impl Takes {
    fn push(&mut self, rows: JobSet) {
        let free = self.0.iter_mut().find(|set| set.is_none()).expect("two jobs make four choices at most");
        *free = Some(rows);
    }

    /// The sets.
    pub fn iter(self) -> impl Iterator<Item = JobSet> {
        self.0.into_iter().flatten()
    }
}

impl Protocol {
    /// Whether the snapshot is a step of its own. Mutants that are about old snapshots always have it so.
    #[must_use]
    pub fn takes_a_snapshot(&self, request: Request) -> bool {
        let search = matches!(request, Request::Claim { .. } | Request::Recover { .. });
        match self.scope.snapshots {
            Snapshots::All => true,
            Snapshots::Searches => search,
        }
    }

    /// The statement begins: it takes its snapshot.
    pub fn snapshot(&self, s: &mut State, who: Who, call: Call) {
        match self.look(s, call) {
            Ok(view) => s.advance(who, Stage::Snapped(view)),
            Err(answer) => s.advance(who, Stage::Replied(answer)),
        }
    }

    /// What a snapshot taken now shows the statement; or its answer, where the snapshot is all it needs.
    pub fn look(&self, s: &State, call: Call) -> Result<View, Answer> {
        let mut view = View::default();
        match call.request {
            Request::Claim { command, repeat: true, .. } | Request::Recover { command, repeat: true, .. }
                if s.is_recorded(command) && !self.is(Mutant::ReplayGrantsAgain) =>
            {
                return Err(self.replay(s, command, View { recorded: true, ..view }));
            }
            Request::Claim { .. } => {
                view.jobs = s.jobs_where(|place| matches!(place, Place::Queued));
            }
            Request::Recover { except, .. } => {
                let all = !self.is(Mutant::DeadOwnersForgotten);
                view.jobs = s.jobs_where(
                    |place| matches!(place, Place::Running(lease) if lease.left == 0 && (all || lease.owner.alive)),
                );
                if !self.is(Mutant::RecoveryWhileRunning) {
                    view.jobs = view.jobs.without(except);
                }
            }
            Request::Renew(grant) | Request::End(grant, _) => {
                if self.is(Mutant::ClockBeforeTheLock) {
                    view.live = s.is_live(call, grant);
                }
                if self.is(Mutant::StaleSnapshotEnd) {
                    view.recorded = grant.token == Token::Ended;
                }
            }
            Request::Reconcile(grant) => {
                if self.is(Mutant::ReconcileClockAfterSnapshot) {
                    view.left = s
                        .lease(grant.job)
                        .filter(|lease| is_held_by(lease, call, grant))
                        .map_or(0, |l| l.left);
                } else {
                    // One moment: the clock is read before the snapshot, so an expiry that it has passed was
                    // passed in the snapshot too, and an expired lease never comes back (L3).
                    let answer = if s.is_live(call, grant) { Answer::Live } else { Answer::Over };
                    return Err(answer);
                }
            }
        }
        Ok(view)
    }

    /// The sets of rows that the statement may take now. None at all: it waits for somebody else's row.
    pub fn takes(&self, s: &State, who: Option<Who>, call: Call, view: View, takes: &mut Takes) {
        let held = s.held_by_others(who);
        match call.request {
            Request::Claim { room, .. } => {
                let found = s.jobs_where(|place| matches!(place, Place::Queued));
                let found = JobSet(found.0 & view.jobs.0).without(held);
                self.choose(s, who, call.request, found, room, takes);
            }
            Request::Recover { .. } => {
                let unchecked = self.is(Mutant::RecoverWithoutRecheck);
                let found = s.jobs_where(
                    |place| matches!(place, Place::Running(lease) if lease.left == 0 || unchecked),
                );
                let found = JobSet(found.0 & view.jobs.0).without(held);
                self.choose(s, who, call.request, found, 1, takes);
            }
            Request::Renew(grant) | Request::End(grant, _) => {
                let rows = self.rows_of(s, call, grant);
                if !rows.meets(held) {
                    takes.push(rows);
                } else if self.is(Mutant::SkippedRowBelieved) && matches!(call.request, Request::Renew(_)) {
                    takes.push(JobSet::NONE);
                }
            }
            Request::Reconcile(_) => takes.push(JobSet::NONE),
        }
    }

    fn choose(
        &self,
        s: &State,
        who: Option<Who>,
        request: Request,
        found: JobSet,
        room: u8,
        takes: &mut Takes,
    ) {
        // To record a command its unique key is needed, and whoever has inserted that first is waited for.
        let waits = self.key_is_taken(s, who, request);
        if found.is_empty() {
            if !(repeats(request) && waits) {
                takes.push(JobSet::NONE);
            }
            return;
        }
        if waits && !self.scope.clock_apart {
            return;
        }
        // Where lock and clock are one step, others may have held the rows until just now: a repeat, which is
        // recorded also when it finds nothing, may find nothing. (To a first copy that is no more than a lost
        // request.)
        if repeats(request) && !self.scope.clock_apart {
            takes.push(JobSet::NONE);
        }
        let both = found.iter().count() > 1 && room > 1;
        if both {
            takes.push(found);
        }
        if !both || !self.scope.clock_apart {
            found.iter().for_each(|job| takes.push(JobSet::only(job)));
        }
    }

    /// Whether another copy of the command has inserted the command's unique key and not committed yet:
    /// whoever wants to insert it too has to wait.
    #[must_use]
    pub fn key_is_taken(&self, s: &State, who: Option<Who>, request: Request) -> bool {
        request.command() > 0
            && !self.is(Mutant::ReplayGrantsAgain)
            && s.callers().any(|(other, call)| {
                Some(other) != who
                    && call.request.command() == request.command()
                    && matches!(call.stage, Stage::Written(_))
            })
    }

    /// The statement takes rows and holds them, or finds none and answers.
    pub fn take(&self, s: &mut State, who: Who, call: Call, view: View, rows: JobSet) {
        if !rows.is_empty() {
            let keeps = View { jobs: rows, left: 0, ..view };
            s.advance(who, Stage::Holding(keeps));
            return;
        }
        let answer = match call.request {
            Request::Claim { command, .. } | Request::Recover { command, .. } => {
                if s.is_recorded(command) {
                    self.replay(s, command, view)
                } else {
                    if repeats(call.request) && !self.is(Mutant::EmptyRepeatNotRecorded) {
                        s.recorded |= 1 << command;
                    }
                    Answer::Granted(JobSet::NONE)
                }
            }
            Request::Renew(_) => Answer::NotLive,
            Request::End(grant, _) => self.ended_before(grant, view),
            Request::Reconcile(_) if view.left > 0 => Answer::Live,
            Request::Reconcile(_) => Answer::Over,
        };
        s.advance(who, Stage::Replied(answer));
    }

    /// The same, and where the scope says so the clock is read in the same step.
    pub fn take_now(&self, s: &mut State, who: Who, call: Call, view: View, rows: JobSet) {
        self.take(s, who, call, view, rows);
        if !self.scope.clock_apart {
            self.read_clock(s, who);
        }
    }

    /// The statement reads the clock and writes; where it finds that it may not, it answers.
    pub fn read_clock(&self, s: &mut State, who: Who) {
        let Some(call) = s.call(who) else { return };
        let Stage::Holding(view) = call.stage else { return };
        let (rows, refusal) = match call.request {
            // The unique key refuses a second copy: nothing of it is kept, and a fresh statement reads what
            // the first one recorded.
            Request::Claim { command, .. } | Request::Recover { command, .. }
                if s.is_recorded(command) && !self.is(Mutant::ReplayGrantsAgain) =>
            {
                (JobSet::NONE, self.replay(s, command, view))
            }
            Request::Claim { .. } | Request::Recover { .. } => (view.jobs, Answer::NotLive),
            Request::Renew(grant) | Request::End(grant, _) => {
                (self.authorized(s, call, grant, view), Answer::NotLive)
            }
            Request::Reconcile(_) => return,
        };
        if rows.is_empty() {
            s.advance(who, Stage::Replied(refusal));
        } else {
            s.advance(who, Stage::Written(View { jobs: rows, left: self.scope.lease, ..view }));
        }
    }

    /// What was written becomes visible, and the rows are let go.
    pub fn commit(&self, s: &mut State, who: Who) {
        let Some(call) = s.call(who) else { return };
        let Stage::Written(view) = call.stage else { return };
        let answer = match call.request {
            Request::Claim { command, .. } | Request::Recover { command, .. } => {
                self.grant(s, call, command, view);
                Answer::Granted(view.jobs)
            }
            Request::Renew(_) => {
                let cancel = view.jobs.iter().any(|job| s.job(job).cancel);
                for job in view.jobs.iter() {
                    if let Place::Running(lease) = &mut s.jobs[job.ix()].place {
                        lease.left = view.left;
                        lease.renewed = true;
                    }
                }
                Answer::Held { cancel }
            }
            Request::End(grant, outcome) => {
                for job in view.jobs.iter() {
                    self.end(s, grant, outcome, job);
                }
                Answer::Done
            }
            Request::Reconcile(_) => return,
        };
        s.advance(who, Stage::Replied(answer));
    }

    /// Of the rows held, those that the mutation may change: the one predicate. A defect that lets others
    /// through is noted here, at the moment that counts.
    fn authorized(&self, s: &mut State, call: Call, grant: Grant, view: View) -> JobSet {
        let renewal = matches!(call.request, Request::Renew(_));
        let blind = self.is(Mutant::NoExpiryCheck)
            || self.is(Mutant::UpdateByIdAlone)
            || self.is(Mutant::RenewalRevives) && renewal
            || self.is(Mutant::ClockBeforeTheLock) && view.live;
        let expired = |s: &State, job| s.lease(job).is_none_or(|lease| lease.left == 0);
        let rows = JobSet::of(|job| view.jobs.has(job) && (blind || !expired(s, job)));
        for job in rows.iter() {
            if job != grant.job || !s.is_live(call, grant) {
                s.broken |= Broken::L2;
            }
            if renewal && expired(s, job) {
                s.broken |= Broken::L3;
            }
        }
        rows
    }

    /// Recorded grants of a command that are still live, read in a fresh snapshot.
    fn replay(&self, s: &State, command: u8, view: View) -> Answer {
        if self.is(Mutant::StaleSnapshotClaim) && !view.recorded {
            return Answer::Granted(JobSet::NONE);
        }
        Answer::Granted(s.jobs_where(
            |place| matches!(place, Place::Running(lease) if lease.command == command && lease.left > 0),
        ))
    }

    fn grant(&self, s: &mut State, call: Call, command: u8, view: View) {
        let takeover = matches!(call.request, Request::Recover { .. });
        if s.is_recorded(command) {
            s.broken |= Broken::GRANTS_PER_COMMAND;
        }
        let mut batch_token = None;
        for job in view.jobs.iter() {
            let mut renewed = false;
            if let Some(old) = s.lease(job) {
                renewed = old.renewed && !self.is(Mutant::TakeoverForgetsRenewals);
                if old.left > 0 {
                    s.broken |= Broken::L1;
                }
                s.retire(job, old.token, Token::Replaced);
            } else {
                s.row_left(job);
            }
            let token = match batch_token {
                Some(token) if self.is(Mutant::OneTokenForABatch) => token,
                _ => s.fresh_token(job),
            };
            batch_token = Some(token);
            let row = &mut s.jobs[job.ix()];
            let raised = !(takeover && self.is(Mutant::TakeoverKeepsEpoch));
            if !raised || row.epoch_lag > 0 {
                s.broken |= Broken::L4;
            }
            row.epoch_lag = row.epoch_lag.saturating_sub(u8::from(raised));
            row.place = Place::Running(Lease { owner: call.from, token, left: view.left, renewed, command });
        }
        s.recorded |= 1 << command;
    }

    fn end(&self, s: &mut State, grant: Grant, outcome: Outcome, job: Job) {
        let Some(lease) = s.lease(job) else { return };
        if outcome == Outcome::Postpone {
            s.jobs[job.ix()].place = Place::Running(Lease { left: 0, ..lease });
            return;
        }
        let own = job == grant.job && grant.token == Token::Is(lease.token);
        s.retire(job, lease.token, if own { Token::Ended } else { Token::Replaced });
        s.row_left(job);
        let row = &mut s.jobs[job.ix()];
        let canceled = row.cancel && !self.is(Mutant::CancelForgotten);
        if outcome == Outcome::Terminal || canceled {
            row.place = Place::Ended;
            row.cancel = false;
            return;
        }
        row.place = Place::Pending;
        if self.is(Mutant::ReleaseForgetsEpoch) {
            row.epoch_lag = 1;
        }
        if row.cancel {
            s.broken |= Broken::CANCEL;
        }
    }

    /// The lease is not held any more: did an earlier copy of this very command end it?
    fn ended_before(&self, grant: Grant, view: View) -> Answer {
        let recorded = grant.token == Token::Ended;
        let believed = if self.is(Mutant::StaleSnapshotEnd) { recorded && view.recorded } else { recorded };
        if believed { Answer::Done } else { Answer::NotLive }
    }

    /// The rows that a mutation under this token finds, live or not.
    fn rows_of(&self, s: &State, call: Call, grant: Grant) -> JobSet {
        if self.is(Mutant::UpdateByIdAlone) {
            return s.jobs_where(|place| matches!(place, Place::Running(_))).only_if(grant.job);
        }
        s.jobs_where(|place| matches!(place, Place::Running(lease) if is_held_by(lease, call, grant)))
    }

    /// PENDING becomes QUEUED.
    pub fn dispatch(&self, s: &mut State, job: Job) {
        s.jobs[job.ix()].place = Place::Queued;
    }

    /// Somebody requests cancellation.
    pub fn request_cancel(&self, s: &mut State, job: Job) {
        match s.job(job).place {
            Place::Running(_) => s.jobs[job.ix()].cancel = true,
            _ => {
                s.row_left(job);
                s.jobs[job.ix()].place = Place::Ended;
            }
        }
    }
}

/// A claim or recovery that was sent before. It records its command even when it grants nothing.
pub const fn repeats(request: Request) -> bool {
    matches!(request, Request::Claim { repeat: true, .. } | Request::Recover { repeat: true, .. })
}

/// Token, worker and process match.
fn is_held_by(lease: &Lease, call: Call, grant: Grant) -> bool {
    grant.token == Token::Is(lease.token) && lease.owner == call.from
}

impl JobSet {
    fn only_if(self, job: Job) -> Self {
        Self(self.0 & Self::only(job).0)
    }
}

impl State {
    /// The one predicate, as it really is at this moment.
    #[must_use]
    pub fn is_live(&self, call: Call, grant: Grant) -> bool {
        self.lease(grant.job).is_some_and(|lease| is_held_by(&lease, call, grant) && lease.left > 0)
    }
}
