//! When two states are the same: workers and jobs may change places, and so may permits with the same role,
//! and command ids are only names. A state hashes as the least of its images, so that the checker explores
//! one state of each class, while the way to it stays concrete and readable.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
};

use crate::{
    names::{Job, JobSet, Worker},
    state::{
        Answer, Call, Grant, JobRow, LATE, PERMITS, Permit, Phase, Place, Process, Request, Stage, State,
        Token, View,
    },
};

/// Words of an image: jobs and flags, permits, late calls, command names.
const WORDS: usize = 1 + 2 * PERMITS + LATE + 1;

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.least_image().hash(hasher);
    }
}

impl State {
    /// The least of the images.
    #[must_use]
    pub fn least_image(&self) -> [u64; WORDS] {
        Renaming { swap_jobs: false }.image(self).min(Renaming { swap_jobs: true }.image(self))
    }
}

/// A renaming of the jobs, if not of the workers: those are put in the order of their words.
#[derive(Clone, Copy)]
struct Renaming {
    swap_jobs: bool,
}

/// A permit's word, without its command, and the command.
type PermitWord = (u64, u8);

impl Renaming {
    fn image(self, s: &State) -> [u64; WORDS] {
        let workers: [[PermitWord; PERMITS]; 2] = std::array::from_fn(|w| {
            let mut words = std::array::from_fn(|n| {
                let permit = &s.permits[w][n];
                (self.permit(permit), permit.phase.command())
            });
            if s.alike.permits {
                words.sort_unstable_by_key(|(word, _)| *word);
            }
            words
        });
        let order = if s.alike.workers {
            workers[0].iter().map(|(word, _)| word).cmp(workers[1].iter().map(|(word, _)| word))
        } else {
            Ordering::Less
        };
        match order {
            Ordering::Less => self.image_in_order(s, &workers, false),
            Ordering::Greater => self.image_in_order(s, &workers, true),
            Ordering::Equal => {
                self.image_in_order(s, &workers, false).min(self.image_in_order(s, &workers, true))
            }
        }
    }

    fn image_in_order(self, s: &State, workers: &[[PermitWord; PERMITS]; 2], swapped: bool) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let mut names = Names { swapped, names: [0; 16], used: 0 };
        let jobs = if self.swap_jobs { [1, 0] } else { [0, 1] };
        words[0] = u64::from(s.broken) << 48
            | self.job(&s.jobs[jobs[0]], &names) << 16
            | self.job(&s.jobs[jobs[1]], &names);
        let mut commands = Packer::new();
        let mut at = 1;
        for worker in if swapped { [1, 0] } else { [0, 1] } {
            for (word, command) in workers[worker] {
                words[at] = word;
                commands.push(4, u64::from(names.of(command)));
                at += 1;
            }
        }
        let mut late: [(u64, u8); LATE] = std::array::from_fn(|n| match s.late[n] {
            Some(call) => (self.call(&call) << 2 | names.process(call.from), call.request.command()),
            None => (0, 0),
        });
        late.sort_unstable_by_key(|(word, _)| *word);
        for (word, command) in late {
            words[at] = word;
            commands.push(4, u64::from(names.of(command)));
            at += 1;
        }
        for job in jobs {
            let command = if let Place::Running(lease) = s.jobs[job].place { lease.command } else { 0 };
            commands.push(4, u64::from(names.of(command)));
        }
        words[at] = commands.0;
        for (command, name) in names.names.iter().enumerate() {
            if *name > 0 && s.recorded & (1 << command) != 0 {
                words[at] |= 1 << (40 + *name);
            }
        }
        words
    }
    fn job_ix(self, job: Job) -> u64 {
        u64::from((job == Job::B) != self.swap_jobs)
    }

    fn set(self, set: JobSet) -> u64 {
        let bits = u64::from(set.0);
        if self.swap_jobs { (bits & 1) << 1 | bits >> 1 } else { bits }
    }

    /// Token numbers are 1 and 2, and prefer the job of that number; they change places with the jobs.
    fn number(self, token: u8) -> u64 {
        if self.swap_jobs { 3 - u64::from(token) } else { u64::from(token) }
    }

    fn job(self, row: &JobRow, names: &Names) -> u64 {
        let mut p = Packer::new();
        p.flag(row.cancel);
        p.flag(row.orphan);
        p.push(2, u64::from(row.epoch_lag));
        match row.place {
            Place::Pending => p.push(2, 0),
            Place::Queued => p.push(2, 1),
            Place::Ended => p.push(2, 2),
            Place::Running(lease) => {
                p.push(2, 3);
                p.push(2, names.process(lease.owner));
                p.push(2, self.number(lease.token));
                p.push(3, u64::from(lease.left));
                p.flag(lease.renewed);
            }
        }
        p.0
    }

    fn permit(self, permit: &Permit) -> u64 {
        let mut p = Packer::new();
        match permit.phase {
            Phase::Free => p.push(4, 0),
            Phase::Asking { repeat, recovery, .. } => {
                p.push(4, 1);
                p.flag(repeat);
                p.flag(recovery);
            }
            Phase::Joined { .. } => p.push(4, 2),
            Phase::Starting { grant, origin } => {
                p.push(4, 3);
                self.grant(&mut p, grant);
                p.push(2, origin as u64);
            }
            Phase::Running { grant, deadline } => {
                p.push(4, 4);
                self.grant(&mut p, grant);
                p.push(3, u64::from(deadline));
            }
            Phase::Cleaning { grant, started } => {
                p.push(4, 5);
                self.grant(&mut p, grant);
                p.flag(started);
            }
            Phase::Ending { grant, outcome } => {
                p.push(4, 6);
                self.grant(&mut p, grant);
                p.push(2, outcome as u64);
            }
            Phase::Stuck { grant, deadline, blocked } => {
                p.push(4, 7);
                self.grant(&mut p, grant);
                p.push(3, u64::from(deadline));
                p.flag(blocked);
            }
            Phase::Reconciling { grant } => {
                p.push(4, 8);
                self.grant(&mut p, grant);
            }
        }
        permit.call.map_or(0, |call| self.call(&call)) << 16 | p.0
    }

    fn grant(self, p: &mut Packer, grant: Grant) {
        p.push(1, self.job_ix(grant.job));
        p.push(
            2,
            match grant.token {
                Token::Replaced => 0,
                Token::Is(token) => self.number(token),
                Token::Ended => 3,
            },
        );
    }

    fn call(self, call: &Call) -> u64 {
        let mut p = Packer::new();
        p.push(3, u64::from(call.age));
        match call.request {
            Request::Claim { repeat, room, .. } => {
                p.push(3, 0);
                p.flag(repeat);
                p.push(2, u64::from(room));
            }
            Request::Recover { repeat, except, .. } => {
                p.push(3, 1);
                p.flag(repeat);
                p.push(2, self.set(except));
            }
            Request::Renew(grant) => {
                p.push(3, 2);
                self.grant(&mut p, grant);
            }
            Request::End(grant, outcome) => {
                p.push(3, 3);
                self.grant(&mut p, grant);
                p.push(2, outcome as u64);
            }
            Request::Reconcile(grant) => {
                p.push(3, 4);
                self.grant(&mut p, grant);
            }
        }
        match call.stage {
            Stage::Sent => p.push(3, 0),
            Stage::Snapped(view) => {
                p.push(3, 1);
                self.view(&mut p, view);
            }
            Stage::Holding(view) => {
                p.push(3, 2);
                self.view(&mut p, view);
            }
            Stage::Written(view) => {
                p.push(3, 3);
                self.view(&mut p, view);
            }
            Stage::Replied(answer) => {
                p.push(3, 4);
                p.push(
                    3,
                    match answer {
                        Answer::Granted(_) => 0,
                        Answer::Held { cancel: false } => 1,
                        Answer::Held { cancel: true } => 2,
                        Answer::NotLive => 3,
                        Answer::Done => 4,
                        Answer::Live => 5,
                        Answer::Over => 6,
                    },
                );
                if let Answer::Granted(jobs) = answer {
                    p.push(2, self.set(jobs));
                }
            }
        }
        p.0
    }

    fn view(self, p: &mut Packer, view: View) {
        p.push(2, self.set(view.jobs));
        p.flag(view.live);
        p.flag(view.recorded);
        p.push(2, u64::from(view.left));
    }
}

/// New names of workers and command ids; the latter are given in the order in which they are met.
struct Names {
    swapped: bool,
    names: [u8; 16],
    used: u8,
}

impl Names {
    fn of(&mut self, command: u8) -> u8 {
        if command == 0 {
            return 0;
        }
        let name = &mut self.names[usize::from(command)];
        if *name == 0 {
            self.used += 1;
            *name = self.used;
        }
        *name
    }

    /// Two bits.
    fn process(&self, process: Process) -> u64 {
        u64::from((process.worker == Worker::W2) != self.swapped) << 1 | u64::from(process.alive)
    }
}

/// Packs small numbers into one word. Starts with a 1, so that no two of different length are equal.
struct Packer(u64);

impl Packer {
    const fn new() -> Self {
        Self(1)
    }

    fn push(&mut self, bits: u32, value: u64) {
        debug_assert!(value < 1 << bits, "a field outgrew its bits");
        self.0 = self.0 << bits | value;
    }

    fn flag(&mut self, flag: bool) {
        self.push(1, u64::from(flag));
    }
}
