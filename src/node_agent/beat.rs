//! The agent's loop: a heartbeat at each interval and at each change, then the drain.

use std::{future::Future, pin::Pin, time::Duration};

use leasehold_actors::{error::StoreError, ports::EngineInfo};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    NodeError, NodeExit,
    probe::{Health, Probe},
};
use crate::postgres::{
    PgStore,
    nodes::{NodeBeat, NodeRegistered, NodeRegistration, NodeState},
};

/// How often a drain looks whether the last job has ended.
const DRAIN_LOOK: Duration = Duration::from_millis(500);

pub(super) struct Agent {
    store: PgStore,
    registration: NodeRegistration,
    interval: Duration,
    /// The state in force, as the database last said.
    state: NodeState,
    /// When the last confirmed heartbeat was sent.
    confirmed: Instant,
    /// The last heartbeat brought no answer.
    silent: bool,
    /// Why the node is being stopped, once it is.
    draining: bool,
}

impl Agent {
    pub(super) fn new(
        store: PgStore,
        registration: NodeRegistration,
        interval: Duration,
        state: NodeState,
    ) -> Self {
        Self {
            store,
            registration,
            interval,
            state,
            confirmed: Instant::now(),
            silent: false,
            draining: false,
        }
    }

    /// Beats until `shutdown`, then until the drain is over.
    pub(super) async fn serve<S, N>(
        mut self,
        mut probe: Probe,
        mut shutdown: Pin<&mut S>,
        mut now: Pin<&mut N>,
        grace: Duration,
    ) -> Result<NodeExit, NodeError>
    where
        S: Future<Output = ()>,
        N: Future<Output = ()>,
    {
        let mut next = Instant::now() + self.interval;
        loop {
            tokio::select! {
                () = shutdown.as_mut() => break,
                () = sleep_until(next) => {}
                changed = probe.health.changed() => {
                    // A probing task that ended (it cannot, short of a panic) must not turn this into a spin.
                    if changed.is_err() {
                        return Err(self.probe_is_gone());
                    }
                }
            }
            next = Instant::now() + self.interval;
            self.beat(&probe).await?;
        }
        self.drain(&mut probe, now.as_mut(), grace).await
    }

    async fn beat(&mut self, probe: &Probe) -> Result<(), NodeError> {
        let health = probe.health.borrow().clone();
        let (state, reason) = match (&health, self.draining) {
            (Health::Well(info), _) if info.engine_id != self.registration.engine.engine_id => {
                return self.register_again(info).await;
            }
            (_, true) => (NodeState::Draining, Some("its agent is shutting down")),
            (Health::Well(_), false) => (NodeState::Ready, None),
            (Health::Ill(reason), false) => (NodeState::Unhealthy, Some(reason.as_str())),
        };
        let node = &self.registration;
        let sent = Instant::now();
        let answer =
            self.store.node_heartbeat(&node.namespace, &node.node, node.process, state, reason).await;
        match answer {
            Ok(NodeBeat::Recorded(in_force)) => self.confirm(sent, in_force, reason),
            Ok(NodeBeat::NotOurs) => {
                return Err(NodeError::TakenAway { node: self.registration.node.clone() });
            }
            Err(error) => self.unanswered(&error),
        }
        Ok(())
    }

    /// Another engine answers at the endpoint: a new incarnation. Until that is recorded there is no
    /// heartbeat, so that no claim takes the old engine's id for the new one's.
    async fn register_again(&mut self, info: &EngineInfo) -> Result<(), NodeError> {
        let mut registration = self.registration.clone();
        registration.engine = info.clone();
        let sent = Instant::now();
        match self.store.node_register(&registration).await {
            Ok(NodeRegistered::Registered { incarnation, state }) => {
                tracing::warn!(
                    node = %registration.node, was = %self.registration.engine.engine_id, is = %info.engine_id,
                    incarnation, "another engine answers at the endpoint; registered anew"
                );
                self.registration = registration;
                self.confirm(sent, state, None);
                Ok(())
            }
            Ok(NodeRegistered::LiveElsewhere { .. }) => {
                Err(NodeError::TakenAway { node: self.registration.node.clone() })
            }
            Err(error) => {
                self.unanswered(&error);
                Ok(())
            }
        }
    }

    fn confirm(&mut self, sent: Instant, in_force: NodeState, reason: Option<&str>) {
        if std::mem::take(&mut self.silent) {
            let away = self.confirmed.elapsed();
            tracing::info!(node = %self.registration.node, ?away, "heartbeats are confirmed again");
        }
        self.confirmed = sent;
        if self.state != in_force {
            let reason =
                reason.unwrap_or(if in_force == NodeState::Draining { "drained by an operator" } else { "" });
            tracing::info!(node = %self.registration.node, was = self.state.as_str(), is = in_force.as_str(), reason, "node state changed");
            self.state = in_force;
        }
    }

    /// Told once per outage; the loop goes on.
    fn unanswered(&mut self, error: &StoreError) {
        if !std::mem::replace(&mut self.silent, true) {
            tracing::warn!(node = %self.registration.node, %error, "heartbeat not confirmed; trying on");
        }
    }

    async fn drain<N>(
        mut self,
        probe: &mut Probe,
        mut now: Pin<&mut N>,
        grace: Duration,
    ) -> Result<NodeExit, NodeError>
    where
        N: Future<Output = ()>,
    {
        tracing::info!(node = %self.registration.node, ?grace, "draining: no new jobs; waiting for running ones");
        self.draining = true;
        let deadline = Instant::now() + grace;
        let mut next = Instant::now();
        let mut running = None;
        loop {
            if Instant::now() >= next {
                next = Instant::now() + self.interval;
                self.beat(probe).await?;
            }
            // Read only after the drain was recorded: no job can come to the node behind our back.
            if self.state == NodeState::Draining {
                running = self.running().await;
            }
            if running == Some(0) || Instant::now() >= deadline {
                break;
            }
            tokio::select! {
                () = now.as_mut() => break,
                () = sleep(DRAIN_LOOK.min(deadline.saturating_duration_since(Instant::now()))) => {}
            }
        }
        let node = &self.registration;
        if let Err(error) = self.store.node_farewell(&node.namespace, &node.node, node.process).await {
            tracing::warn!(node = %node.node, %error, "the database did not take note of the end; the heartbeat will lapse");
        }
        let exit = match running {
            Some(0) => NodeExit::Drained,
            jobs => NodeExit::StillRunning { jobs },
        };
        tracing::info!(node = %self.registration.node, "{exit}");
        Ok(exit)
    }

    /// How many jobs hold a slot of this node; none without an answer.
    async fn running(&self) -> Option<i64> {
        let node = &self.registration;
        let nodes = self.store.node_list(&node.namespace).await.ok()?;
        nodes.into_iter().find(|row| row.id == node.node).map(|row| row.slots_used)
    }

    fn probe_is_gone(&self) -> NodeError {
        NodeError::ProbeDied { node: self.registration.node.clone() }
    }
}
