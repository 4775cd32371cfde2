//! One runtime node: owns the client of its Docker engine and runs containers on it, each from its plan to its
//! removal, under the lease that the request carries.
//!
//! | step | file | what may go wrong, and what then |
//! |---|---|---|
//! | plan | [`plan`] | the stored definition cannot be read: USER |
//! | image, create, attach, start | `begin` | a lost answer is replaced by asking again or by looking |
//! | output | `logs` | a broken stream is read again from the first byte, and what is stored is skipped |
//! | end | `watch` | a broken wait is never an exit: reconnect and look |
//! | stop | `stop` | marked before it is asked; killed where the mark or the time is missing |
//! | whose exit | [`exit`] | a pure table |
//! | removal | `tidy` | bounded; what is left over is said |
//! | a recipe's task | [`task`] | the same run, for a container that a task of a recipe asks for |
//! | recovery | [`recover`] | a lease was taken over: what has become of its container, and what is done with it |
//!
//! Each run is a task of its own and answers by the message's response; the actor's mailbox is never held up,
//! and a panic in one run harms only its job. The container is guarded by the fence from before it is created
//! until it is known to be dead, so that neither this actor's end nor a hung engine call lets it outlive the
//! lease.

mod begin;
pub mod exit;
mod guard;
pub mod logs;
pub mod plan;
pub mod recover;
pub mod results;
mod run;
mod stop;
pub mod task;
#[cfg(test)]
mod tests;
mod tidy;
mod watch;

use std::{sync::Arc, time::Duration};

use actix::{Actor, Context, Handler, Message, ResponseFuture};
use tokio::{runtime::Handle, task::JoinHandle};
use uuid::Uuid;

pub use recover::{Adoption, Afterwards, RecoverContainer, Recovered, TaskRecovery};
pub use results::{NotRecorded, TaskResults};

use crate::{
    domain::{Failure, FailureKind},
    error::EngineError,
    fence::Hold,
    nodes::{NodeAddress, StartNode},
    ports::{ContainerEngine, EngineFactory, Placement},
    work::{LeaseContext, WorkOutcome},
};

/// Runs the container of a CONTAINER grant on the node that the grant names. Sent by the LeaseActor once its
/// immediate renewal was confirmed; answered when the container has ended and is removed.
///
/// The answer keeps to [`LeaseContext::stopped`]: a requested stop is answered [`WorkOutcome::Stopped`] soon
/// after the stop grace, a lost lease in time for its deadline. A container that had already ended by itself
/// is answered with its own outcome.
#[derive(Debug, Message)]
#[rtype(result = "WorkOutcome")]
pub struct RunContainer {
    /// The lease to run under; its grant says what, where and how long.
    pub lease: LeaseContext,
}

/// What a node's actor is told at its start.
#[derive(Debug, Clone)]
pub struct NodeRunSettings {
    /// The fleet: part of every container's name and labels.
    pub fleet: Uuid,
    /// Times and sizes.
    pub limits: RunLimits,
    /// Where the runs' tasks live; none is the actor's own runtime. Reading fast output costs processor time
    /// that renewals on the actors' thread should not have to wait for.
    pub runtime: Option<Handle>,
}

/// Times and sizes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimits {
    /// The longest that one call to the engine may take, whatever the adapter's own limits are.
    pub call: Duration,
    /// How long an engine that does not answer is waited for before it counts as lost.
    pub patience: Duration,
    /// How often the engine is asked about a container that is silent.
    pub look_every: Duration,
    /// Output is stored when this much has gathered …
    pub batch_bytes: usize,
    /// … or when its first byte is this old.
    pub batch_age: Duration,
    /// The longest that one call to the store may take before it is made again.
    pub store_call: Duration,
    /// How long the rest of the output may stay out once the container has ended.
    pub log_tail: Duration,
    /// How long the removal is tried before it is left to a task of its own.
    pub removal: Duration,
    /// Time between the end of the stop grace and the kill by the fence: for the rest of the output and the
    /// removal.
    pub tidy: Duration,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            call: Duration::from_secs(70),
            patience: Duration::from_mins(1),
            look_every: Duration::from_secs(10),
            batch_bytes: 256 * 1024,
            batch_age: Duration::from_millis(200),
            store_call: Duration::from_secs(10),
            log_tail: Duration::from_secs(30),
            removal: Duration::from_secs(15),
            tidy: Duration::from_secs(3),
        }
    }
}

/// The actor. One for each incarnation of a node; see [`crate::nodes::Nodes`].
pub struct RuntimeNodeActor {
    node: Arc<Node>,
}

/// What the runs on one node share: the engine, which nobody else has, and how to open another connection.
struct Node {
    placement: Placement,
    engine: Box<dyn ContainerEngine>,
    factory: Arc<dyn EngineFactory>,
    settings: NodeRunSettings,
}

impl std::fmt::Debug for RuntimeNodeActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeNodeActor").field("placement", &self.node.placement).finish_non_exhaustive()
    }
}

impl RuntimeNodeActor {
    /// Opens the node's engine. The factory is kept for the fence, which kills over connections of its own.
    ///
    /// # Errors
    /// [`EngineError`] when the node's endpoint cannot be understood, or its TLS files cannot be read.
    pub fn open(
        placement: &Placement,
        factory: Arc<dyn EngineFactory>,
        settings: NodeRunSettings,
    ) -> Result<Self, EngineError> {
        let engine = factory.connect(placement)?;
        Ok(Self { node: Arc::new(Node { placement: placement.clone(), engine, factory, settings }) })
    }
}

/// How the nodes' actors of a worker are started; for [`crate::nodes::Nodes`].
#[must_use]
pub fn starter(factory: Arc<dyn EngineFactory>, settings: NodeRunSettings) -> StartNode {
    Box::new(move |placement| {
        let actor = RuntimeNodeActor::open(placement, Arc::clone(&factory), settings.clone())?;
        let actor = actor.start();
        Ok(NodeAddress { run: actor.clone().recipient(), recover: actor.recipient() })
    })
}

impl RuntimeNodeActor {
    /// Lets a piece of work run as a task. Its hold is taken before the task exists: the work goes on until the
    /// task has ended, not until the answer.
    fn beside<T: Send + 'static>(
        &self,
        hold: Hold,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let work = async move {
            let _hold = hold;
            work.await
        };
        let work = tracing::Instrument::in_current_span(work);
        match &self.node.settings.runtime {
            Some(runtime) => runtime.spawn(work),
            None => tokio::spawn(work),
        }
    }
}

impl Actor for RuntimeNodeActor {
    type Context = Context<Self>;
}

impl Handler<RunContainer> for RuntimeNodeActor {
    type Result = ResponseFuture<WorkOutcome>;

    fn handle(&mut self, message: RunContainer, _: &mut Context<Self>) -> Self::Result {
        let node = Arc::clone(&self.node);
        let hold = message.lease.hold();
        let task = self.beside(hold, run::run(node, message.lease));
        Box::pin(async move {
            match task.await {
                Ok(outcome) => outcome,
                Err(error) if error.is_panic() => WorkOutcome::Failed(Failure::new(
                    FailureKind::System,
                    "panic",
                    "running the container failed inside Leasehold; its log tells where",
                )),
                // The runtime is going away; the fence has the container.
                Err(_) => WorkOutcome::Stopped,
            }
        })
    }
}

impl Handler<RecoverContainer> for RuntimeNodeActor {
    type Result = ResponseFuture<Recovered>;

    fn handle(&mut self, message: RecoverContainer, _: &mut Context<Self>) -> Self::Result {
        let node = Arc::clone(&self.node);
        let hold = message.lease.hold();
        let task = self.beside(hold, recover::recover(node, message));
        Box::pin(async move {
            match task.await {
                Ok(recovered) => recovered,
                Err(error) if error.is_panic() => Recovered::NotNow {
                    reason: "recovering the container failed inside Leasehold; its log tells where"
                        .to_owned(),
                },
                // The runtime is going away.
                Err(_) => Recovered::Stopped,
            }
        })
    }
}
