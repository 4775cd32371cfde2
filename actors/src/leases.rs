//! What all LeaseActors of a worker share: ports, settings, the fence, and the book of who is alive.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use actix::Addr;

use crate::{
    domain::{Epoch, JobId, RetryPolicy},
    fence::Fence,
    lease_actor::LeaseActor,
    nodes::Nodes,
    ports::{LeaseStore, WorkRunner},
    runtime_node_actor::TaskResults,
    settings::{LeaseTimings, RecoverySettings},
};

/// What every LeaseActor is given.
pub struct LeaseEnv {
    /// The jobs service.
    pub store: Arc<dyn LeaseStore>,
    /// Runs HEARTBEAT and HANDLER jobs.
    pub runner: Arc<dyn WorkRunner>,
    /// Runs CONTAINER jobs.
    pub nodes: Nodes,
    /// Records results of recipes' tasks that are found by a recovery; none in a process that runs no recipes.
    pub results: Option<Arc<dyn TaskResults>>,
    /// Ends every workload in time.
    pub fence: Fence,
    /// The times of a lease.
    pub timings: LeaseTimings,
    /// What a failure is worth where the job's policy is silent.
    pub retry_defaults: RetryPolicy,
    /// What is taken over, and how.
    pub recovery: RecoverySettings,
    /// The LeaseActors that live now.
    pub alive: Alive,
    /// What has happened since the start.
    pub tally: Tally,
}

impl fmt::Debug for LeaseEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseEnv").field("timings", &self.timings).finish_non_exhaustive()
    }
}

/// The LeaseActors that live now, by job: for hints and for the drain. An actor leaves by its `Drop`.
#[derive(Default)]
pub struct Alive {
    by_job: Mutex<HashMap<JobId, (Epoch, Addr<LeaseActor>)>>,
}

impl fmt::Debug for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alive").field("count", &self.count()).finish()
    }
}

impl Alive {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, (Epoch, Addr<LeaseActor>)>> {
        self.by_job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, job: JobId, epoch: Epoch, actor: Addr<LeaseActor>) {
        self.lock().insert(job, (epoch, actor));
    }

    pub(crate) fn leave(&self, job: JobId, epoch: Epoch) {
        let left = {
            let mut by_job = self.lock();
            match by_job.get(&job) {
                Some((present, _)) if *present == epoch => by_job.remove(&job),
                _ => None,
            }
        };
        // The address is dropped outside the lock: it may be the last one.
        drop(left);
    }

    /// The LeaseActor of a job.
    #[must_use]
    pub fn of(&self, job: JobId) -> Option<Addr<LeaseActor>> {
        self.lock().get(&job).map(|(_, actor)| actor.clone())
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Addr<LeaseActor>> {
        self.lock().values().map(|(_, actor)| actor.clone()).collect()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().len()
    }
}

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counters since the start, for metrics.
        #[derive(Debug, Default)]
        pub struct Tally {
            $($(#[$doc])* pub $name: Counter,)+
        }

        /// The counters at one moment.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct TallySnapshot {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Tally {
            /// Reads all counters.
            #[must_use]
            pub fn snapshot(&self) -> TallySnapshot {
                TallySnapshot { $($name: self.$name.get(),)+ }
            }
        }
    };
}

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    /// The present value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

tally! {
    /// Claims that were answered.
    claims_answered,
    /// Claims whose answer was lost.
    claims_unknown,
    /// Claims that surely did not take effect.
    claims_failed,
    /// Jobs granted.
    jobs_granted,
    /// Renewals confirmed.
    renewals_held,
    /// Renewals answered with "not live".
    renewals_not_live,
    /// Renewals without an answer.
    renewals_unknown,
    /// Workloads started.
    work_started,
    /// Workloads that panicked.
    work_panicked,
    /// Jobs completed.
    jobs_completed,
    /// Attempts that failed, finally or for a retry.
    jobs_failed,
    /// Jobs cancelled.
    jobs_canceled,
    /// Jobs given back.
    jobs_released,
    /// Leases lost while work was running.
    leases_lost,
    /// Reports without an answer, each try counted.
    reports_unknown,
    /// Reports that came too late: the lease was not live any more.
    reports_not_live,
    /// Grants that had to be reconciled.
    reconciliations,
    /// Jobs that this process made QUEUED.
    jobs_dispatched,
    /// Expired leases that were taken over.
    leases_recovered,
    /// Recoveries that were put off, since the job could not be cleaned up yet.
    recoveries_postponed,
    /// Passes of the recovery without an answer.
    recoveries_unanswered,
    /// Containers of a lost lease that were followed on instead of being stopped.
    containers_adopted,
}
