//! Jobs and workers by name: two of each.

/// One of the two jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Job {
    /// Job A.
    A,
    /// Job B.
    B,
}

impl Job {
    /// Both jobs.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// Its place in an array.
    #[must_use]
    pub const fn ix(self) -> usize {
        self as usize
    }
}

/// One of the two workers. Its process may be restarted; its name stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worker {
    /// Worker 1.
    W1,
    /// Worker 2.
    W2,
}

impl Worker {
    /// Both workers.
    pub const ALL: [Self; 2] = [Self::W1, Self::W2];

    /// Its place in an array.
    #[must_use]
    pub const fn ix(self) -> usize {
        self as usize
    }
}

/// A set of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobSet(pub u8);

impl JobSet {
    /// No job.
    pub const NONE: Self = Self(0);

    /// Just this job.
    #[must_use]
    pub const fn only(job: Job) -> Self {
        Self(1 << job as u8)
    }

    /// The jobs for which `keep` holds.
    pub fn of(keep: impl Fn(Job) -> bool) -> Self {
        Self(Job::ALL.into_iter().filter(|job| keep(*job)).fold(0, |set, job| set | Self::only(job).0))
    }

    /// Whether the job is in it.
    #[must_use]
    pub const fn has(self, job: Job) -> bool {
        self.0 & Self::only(job).0 != 0
    }

    /// Whether nothing is in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether both sets share a job.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// What is in this set and not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The jobs in it, A first.
    pub fn iter(self) -> impl Iterator<Item = Job> {
        Job::ALL.into_iter().filter(move |job| self.has(*job))
    }
}
