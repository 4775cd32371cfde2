//! Sends each job of a worker to the code for its kind.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_actors::{
    domain::{Failure, FailureKind, JobDefinition, JobKind},
    ports::{Grant, WorkRunner},
    work::{LeaseContext, WorkOutcome},
};
use tokio::runtime::Handle;
use tracing::Instrument as _;

use super::{handler::Handlers, heartbeat::HeartbeatProbe, recipe, task::AbortOnDrop};
use crate::recipe::execution::RecipeEngine;

/// Everything that this process can run without a container.
#[derive(Debug)]
pub struct Workloads {
    handlers: Handlers,
    heartbeat: Arc<HeartbeatProbe>,
    recipes: Option<Arc<RecipeEngine>>,
    runtime: Handle,
}

impl Workloads {
    /// Workloads run on `runtime`, which should have threads of its own: a handler may block them.
    #[must_use]
    pub fn new(handlers: Handlers, heartbeat: HeartbeatProbe, runtime: Handle) -> Self {
        Self { handlers, heartbeat: Arc::new(heartbeat), recipes: None, runtime }
    }

    /// And recipes, by this engine.
    #[must_use]
    pub fn with_recipes(mut self, engine: Option<Arc<RecipeEngine>>) -> Self {
        self.recipes = engine;
        self
    }

    async fn probe(&self, grant: &Grant, lease: LeaseContext) -> WorkOutcome {
        let spec = match JobDefinition::from_json(JobKind::Heartbeat, &grant.definition) {
            Ok(JobDefinition::Heartbeat(spec)) => spec,
            Ok(_) => unreachable!("from_json answers the kind that it was asked for"),
            Err(error) => return bad_definition(&error.to_string()),
        };
        let probe = Arc::clone(&self.heartbeat);
        // Off the caller's thread: TLS takes time, and the caller's thread keeps leases alive.
        let (hold, for_probe) = (lease.hold(), lease.clone());
        let work = async move {
            let _hold = hold;
            probe.run(&spec, &for_probe).await
        };
        let task = self.runtime.spawn(work.in_current_span());
        lease.runs_as(task.abort_handle());
        let mut task = AbortOnDrop(task);
        match (&mut task.0).await {
            Ok(outcome) => outcome,
            Err(error) => WorkOutcome::Failed(Failure::new(
                FailureKind::System,
                "aborted",
                format!("the probe did not come to an end: {error}"),
            )),
        }
    }
}

#[async_trait]
impl WorkRunner for Workloads {
    async fn run(&self, grant: Arc<Grant>, lease: LeaseContext) -> WorkOutcome {
        match grant.kind {
            JobKind::Handler => self.handlers.run(&grant, lease, &self.runtime).await,
            JobKind::Heartbeat => self.probe(&grant, lease).await,
            JobKind::Recipe => match &self.recipes {
                Some(engine) => recipe::run(engine, grant, lease, &self.runtime, Arc::default()).await,
                None => bad_definition("this worker runs no recipes"),
            },
            JobKind::Container => bad_definition("a CONTAINER job cannot run inside the worker process"),
        }
    }
}

fn bad_definition(reason: &str) -> WorkOutcome {
    WorkOutcome::Failed(Failure::new(FailureKind::User, "bad_definition", reason))
}
