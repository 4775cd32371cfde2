//! The protocol as stateright sees it.

use std::sync::atomic::{AtomicU32, AtomicU64};

use stateright::{Model, Property};

use crate::{action::Action, mutant::Mutant, properties, protocol::Protocol, scope::Scope, state::State};

/// The protocol, and what an exploration notes on its way.
#[derive(Debug)]
pub struct LeaseModel {
    /// The rules.
    pub protocol: Protocol,
    /// Bit n: the n-th of [`properties::RULES`] was found broken.
    pub broken: AtomicU32,
    /// Bit n: the n-th of [`crate::situations::SITUATIONS`] was met.
    pub met: AtomicU32,
    /// Fingerprints of states known to settle; see [`crate::settle`].
    pub settled: Vec<AtomicU64>,
}

impl LeaseModel {
    /// A model of this scope, with at most one defect.
    #[must_use]
    pub fn new(scope: Scope, mutant: Option<Mutant>) -> Self {
        let settled = (0..crate::settle::MEMORY).map(|_| AtomicU64::new(0)).collect();
        Self {
            protocol: Protocol { scope, mutant },
            broken: AtomicU32::new(0),
            met: AtomicU32::new(0),
            settled,
        }
    }
}

impl Model for LeaseModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(&self.protocol.scope)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.protocol.actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let next = self.protocol.step(last, action);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
