//! Runs one lease that somebody else acquired, and nothing more.
//!
//! ```text
//!  capability ─▶ validate ─▶ redeem ─▶ immediate renewal ─▶ admission ─▶ before_run ─▶ live tasks ─▶ one RunEnd
//!                (read only)  (new token,    └────────── the LeaseActor and the fence of a worker ──────────┘
//!                             once)
//! ```
//!
//! A supervisor acquires a lease and exports it as a [`Capability`] (`leasehold lease acquire`, or a running worker by
//! [`crate::worker::Leases::export`]). [`run_with_lease`] imports it: the first renewal *redeems* it, which puts a new
//! token in the place of the presented one, so that from then on its exporter and a second importer prove nothing. What
//! is uncertain starts nothing. Nothing here acquires: no claim, no recovery, no dispatch.

pub mod capability;
mod end;
mod run;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, time::Duration};

use leasehold_actors::{
    domain::{JobId, Namespace, RetryPolicy, Route},
    nodes::StartNode,
    ports::{Authority, Grant, recipe::RecipeStore},
    settings::LeaseTimings,
};
use tokio::{runtime::Handle, sync::oneshot};
use tokio_util::sync::CancellationToken;

pub use self::{
    capability::Capability,
    end::{Given, LostLease, Refused, RunEnd, RunPhase, Unanswered},
    run::run_here,
};
use super::execution::RecipeEngine;
pub use super::execution::{BeforeRun, LeaseEvent, RunStart, TaskEnd, Waiting};

/// A lease that somebody else acquired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supplied {
    /// Imported: its first renewal redeems it.
    Imported(Capability),
    /// Held in this process already, by whoever claimed it here; it has not been exported.
    Held(Authority),
}

impl Supplied {
    pub(super) fn authority(&self) -> &Authority {
        match self {
            Self::Imported(capability) => capability.authority(),
            Self::Held(authority) => authority,
        }
    }
}

impl From<Capability> for Supplied {
    fn from(capability: Capability) -> Self {
        Self::Imported(capability)
    }
}

impl From<&Grant> for Supplied {
    fn from(grant: &Grant) -> Self {
        Self::Held(grant.authority.clone())
    }
}

/// What is asked of a run.
#[derive(Clone)]
pub struct RunRequest {
    /// The tenant that the job must belong to.
    pub namespace: Namespace,
    /// The job that the lease must be of.
    pub job: JobId,
    /// What is served: a job whose type is not among these is not touched. Of a job's tasks, those run whose ops the
    /// engine has.
    pub routes: Arc<[Route]>,
    /// After so long the work is stopped and the job given back.
    pub deadline: Option<Duration>,
    /// Called after admission, under the renewing lease, before anything of the run begins.
    pub before_run: Option<BeforeRun>,
}

impl fmt::Debug for RunRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunRequest")
            .field("namespace", &self.namespace)
            .field("job", &self.job)
            .field("routes", &self.routes)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl RunRequest {
    /// Asks for this job, whatever the work takes.
    #[must_use]
    pub fn new(namespace: Namespace, job: JobId, routes: impl IntoIterator<Item = Route>) -> Self {
        let routes = routes.into_iter().collect();
        Self { namespace, job, routes, deadline: None, before_run: None }
    }

    /// Whether a lease is of the job that is asked for. Needs no database.
    ///
    /// # Errors
    /// [`Refused::OtherJob`]
    pub fn check(&self, lease: &Supplied) -> Result<(), Refused> {
        let authority = lease.authority();
        if authority.owner.namespace == self.namespace && authority.job == self.job {
            return Ok(());
        }
        Err(Refused::OtherJob {
            namespace: authority.owner.namespace.clone(),
            job: authority.job,
            asked_namespace: self.namespace.clone(),
            asked_job: self.job,
        })
    }
}

/// Told what happens, in order, one event at a time. It may take its time: it holds up nothing but the return.
pub type Listener = Arc<dyn Fn(&LeaseEvent) + Send + Sync>;

/// Ends a run from outside. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct RunStop {
    pub(super) drain: CancellationToken,
    pub(super) now: CancellationToken,
}

impl RunStop {
    /// Lets the work end for the context's grace, then stops it and gives the job back.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Stops the work at once, and gives the job back as far as the database confirms it within 2 s.
    pub fn now(&self) {
        self.now.cancel();
    }
}

/// What a supplied lease is run with. As for a worker, but for the claims.
pub struct RunContext {
    /// The jobs service; the engine's runtime must be over the same.
    pub store: Arc<dyn RecipeStore>,
    /// Runs recipes, behind the guard for what this process has.
    pub engine: Arc<RecipeEngine>,
    /// Where recipes walk: apart from what renews the lease.
    pub threads: Handle,
    /// Starts the actor of a runtime node.
    pub start_node: StartNode,
    /// How fast, for a lease of `timings.lease`; a shorter one is held faster.
    pub timings: LeaseTimings,
    /// What a failure is worth where the job's policy is silent.
    pub retry_defaults: RetryPolicy,
    /// How long the work may go on once it is told to drain.
    pub grace: Duration,
    /// Where the jobs service is, for people: without a password.
    pub destination: String,
    /// Ends the run from outside.
    pub stop: RunStop,
}

impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunContext")
            .field("timings", &self.timings)
            .field("destination", &self.destination)
            .finish_non_exhaustive()
    }
}

/// Runs exactly one lease that somebody else acquired, to its end: completed, rescheduled, handed off, failed, lost.
///
/// The lease has a thread of its own, as a worker's leases have. Dropping the returned future stops the work at once.
pub async fn run_with_lease(
    ctx: RunContext,
    lease: Supplied,
    request: RunRequest,
    listener: Listener,
) -> RunEnd {
    let stop = ctx.stop.clone();
    let dropped = stop.now.clone().drop_guard();
    let (tell, ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name("leasehold-lease".to_owned()).spawn(move || {
        let end = actix_rt::System::new().block_on(run_here(ctx, lease, request, listener));
        // Nobody may be waiting any more.
        let _ = tell.send(end);
    });
    let end = match thread {
        Ok(_) => {
            ended.await.unwrap_or_else(|_| RunEnd::broken("the lease's own thread has panicked; see the log"))
        }
        Err(error) => RunEnd::broken(format!("the operating system gave no thread: {error}")),
    };
    dropped.disarm();
    end
}
