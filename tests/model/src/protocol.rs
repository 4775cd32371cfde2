//! The rules that database and workers share, and the small print of a state: whose call is whose, which
//! rows are held, and how a state is tidied so that what cannot matter any more does not tell states apart.

use crate::{
    mutant::Mutant,
    names::{Job, JobSet, Worker},
    scope::Scope,
    state::{
        Alike, Call, Grant, JobRow, LATE, Lease, PERMITS, Permit, Phase, Place, Process, Request, Stage,
        State, Token, Who,
    },
};

/// The protocol within a scope, with at most one defect.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// The bounds.
    pub scope: Scope,
    /// The defect.
    pub mutant: Option<Mutant>,
}

impl Protocol {
    /// Whether this defect is switched on.
    #[must_use]
    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Ticks from the sending of a renewal to the local deadline that its confirmation gives.
    #[must_use]
    pub fn local_term(&self) -> u8 {
        if self.is(Mutant::NoMargin) { self.scope.lease } else { self.scope.lease - self.scope.margin }
    }
}

impl State {
    /// Two jobs submitted, two idle workers.
    #[must_use]
    pub fn first(scope: &Scope) -> Self {
        let row = |n: usize| JobRow {
            place: if n < scope.jobs { Place::Pending } else { Place::Ended },
            cancel: false,
            orphan: false,
            epoch_lag: 0,
        };
        let alike = Alike {
            workers: scope.roles[0] == scope.roles[1],
            permits: scope.roles.iter().all(|roles| roles[0] == roles[1]),
        };
        Self {
            jobs: [row(0), row(1)],
            permits: [[Permit::FREE; PERMITS]; 2],
            late: [None; LATE],
            recorded: 0,
            broken: 0,
            alike,
        }
    }

    /// The row of a job.
    #[must_use]
    pub fn job(&self, job: Job) -> &JobRow {
        &self.jobs[job.ix()]
    }

    /// The lease of a job, if it is RUNNING.
    #[must_use]
    pub fn lease(&self, job: Job) -> Option<Lease> {
        match self.job(job).place {
            Place::Running(lease) => Some(lease),
            _ => None,
        }
    }

    /// A permit.
    #[must_use]
    pub fn permit(&self, worker: Worker, n: usize) -> &Permit {
        &self.permits[worker.ix()][n]
    }

    /// A permit, to change it.
    pub fn permit_mut(&mut self, worker: Worker, n: usize) -> &mut Permit {
        &mut self.permits[worker.ix()][n]
    }

    /// The call of somebody.
    #[must_use]
    pub fn call(&self, who: Who) -> Option<Call> {
        match who {
            Who::Permit(worker, n) => self.permit(worker, n).call,
            Who::Late(n) => self.late[n],
        }
    }

    /// Moves a call on. Nobody listens to the answer of a late call: it is gone with it.
    pub fn advance(&mut self, who: Who, stage: Stage) {
        match who {
            Who::Permit(worker, n) => {
                if let Some(call) = &mut self.permits[worker.ix()][n].call {
                    call.stage = stage;
                }
            }
            Who::Late(n) => match (&mut self.late[n], stage) {
                (slot, Stage::Replied(_)) => *slot = None,
                (Some(call), stage) => call.stage = stage,
                (None, _) => {}
            },
        }
    }

    /// Everybody who has a call under way.
    pub fn callers(&self) -> impl Iterator<Item = (Who, Call)> + '_ {
        Self::everybody().filter_map(|who| Some((who, self.call(who)?)))
    }

    /// Every call, to change it.
    pub fn calls_mut(&mut self) -> impl Iterator<Item = &mut Call> {
        self.permits
            .iter_mut()
            .flatten()
            .filter_map(|permit| permit.call.as_mut())
            .chain(self.late.iter_mut().flatten())
    }

    /// The rows that statements other than this one hold.
    #[must_use]
    pub fn held_by_others(&self, me: Option<Who>) -> JobSet {
        let others = self.callers().filter(|(who, _)| Some(*who) != me);
        JobSet(others.fold(0, |held, (_, call)| held | call.stage.held().0))
    }

    /// Whether a command is recorded.
    #[must_use]
    pub const fn is_recorded(&self, command: u8) -> bool {
        self.recorded & (1 << command) != 0
    }

    /// The jobs of which this row question is true.
    #[must_use]
    pub fn jobs_where(&self, holds: impl Fn(&Place) -> bool) -> JobSet {
        JobSet::of(|job| holds(&self.job(job).place))
    }

    /// A command id that nobody uses.
    #[must_use]
    pub fn fresh_command(&self) -> u8 {
        let mut used = 1u16;
        for permit in self.permits.iter().flatten() {
            used |= 1 << permit.phase.command();
        }
        for (_, call) in self.callers() {
            used |= 1 << call.request.command();
        }
        u8::try_from(used.trailing_ones()).expect("a u16 has at most 16 bits")
    }

    /// A token that no row but this job's holds.
    #[must_use]
    pub fn fresh_token(&self, job: Job) -> u8 {
        let other = Job::ALL[1 - job.ix()];
        let preferred = u8::from(job == Job::B) + 1;
        match self.lease(other) {
            Some(lease) if lease.token == preferred => 3 - preferred,
            _ => preferred,
        }
    }

    /// Everybody who remembers this token of this job now remembers a token that no row holds.
    pub fn retire(&mut self, job: Job, token: u8, becomes: Token) {
        let retire = |grant: &mut Grant| {
            if grant.job == job && grant.token == Token::Is(token) {
                grant.token = becomes;
            }
        };
        for permit in self.permits.iter_mut().flatten() {
            match &mut permit.phase {
                Phase::Starting { grant, .. }
                | Phase::Running { grant, .. }
                | Phase::Cleaning { grant, .. }
                | Phase::Ending { grant, .. }
                | Phase::Stuck { grant, .. }
                | Phase::Reconciling { grant } => retire(grant),
                Phase::Free | Phase::Asking { .. } | Phase::Joined { .. } => {}
            }
        }
        for call in self.calls_mut() {
            match &mut call.request {
                Request::Renew(grant) | Request::End(grant, _) | Request::Reconcile(grant) => retire(grant),
                Request::Claim { .. } | Request::Recover { .. } => {}
            }
        }
    }

    /// A row was deleted: statements whose snapshot shows it will not find it any more, and a later row of
    /// the same job is not in that snapshot.
    pub fn row_left(&mut self, job: Job) {
        for call in self.calls_mut() {
            if let Stage::Snapped(view) = &mut call.stage
                && matches!(call.request, Request::Claim { .. } | Request::Recover { .. })
            {
                view.jobs = view.jobs.without(JobSet::only(job));
            }
        }
    }

    /// The process of a worker that runs now.
    #[must_use]
    pub const fn process(worker: Worker) -> Process {
        Process { worker, alive: true }
    }
}
