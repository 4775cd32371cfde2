//! Who runs containers on which node: one actor per runtime node, started when the first job comes.
//!
//! LeaseActors know no node actor, only its [`NodeAddress`]. What starts one (with its engine,
//! its store, its identity rules) is a factory that the wiring hands in, so that a test can answer with a
//! probe, and so that a node actor that died is started anew for the next job.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
};

use actix::Recipient;

use crate::{
    domain::NodeId,
    error::EngineError,
    ports::Placement,
    runtime_node_actor::{RecoverContainer, RunContainer},
};

/// What a node's actor is asked through.
#[derive(Debug, Clone)]
pub struct NodeAddress {
    /// For jobs that were claimed.
    pub run: Recipient<RunContainer>,
    /// For jobs that were taken over.
    pub recover: Recipient<RecoverContainer>,
}

/// Starts the actor of one runtime node. Called on the arbiter that the LeaseActors live on.
pub type StartNode = Box<dyn Fn(&Placement) -> Result<NodeAddress, EngineError> + Send>;

/// The node actors of this process.
pub struct Nodes {
    start: Mutex<StartNode>,
    /// A changed endpoint or engine is another incarnation, and gets an actor of its own.
    running: Mutex<HashMap<(NodeId, i64), NodeAddress>>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").finish_non_exhaustive()
    }
}

impl Nodes {
    /// No node is known yet.
    #[must_use]
    pub fn new(start: StartNode) -> Self {
        Self { start: Mutex::new(start), running: Mutex::default() }
    }

    /// The actor of the node that a grant was placed on.
    ///
    /// # Errors
    /// [`EngineError`] when the node's endpoint cannot be understood, or its TLS files cannot be read.
    pub fn actor_of(&self, placement: &Placement) -> Result<NodeAddress, EngineError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (placement.node.clone(), placement.incarnation);
        if let Some(actor) = running.get(&key)
            && actor.run.connected()
            && actor.recover.connected()
        {
            return Ok(actor.clone());
        }
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        let actor = start(placement)?;
        drop(start);
        // An older incarnation is not asked again, and its actor ends with its last job.
        running.retain(|(node, incarnation), _| *node != key.0 || *incarnation >= key.1);
        running.insert(key, actor.clone());
        Ok(actor)
    }
}
