//! The agent's loop: a heartbeat at each interval and at each change, then the drain.

use std::{future::Future, pin::Pin, time::Duration};

use leasehold_actors::{clock::BootInstant, error::StoreError, ports::EngineInfo};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    NodeError, NodeExit,
    fence::NodeFence,
    orphans::Reaper,
    probe::{Health, Probe},
};
use crate::{
    config::NodeSettings,
    postgres::{
        PgStore,
        nodes::{NodeBeat, NodeRegistered, NodeRegistration, NodeState},
    },
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
    confirmed: BootInstant,
    /// The last heartbeat brought no answer.
    silent: bool,
    /// The engine was not well at the last heartbeat.
    ill: bool,
    /// Why the node is being stopped, once it is.
    draining: bool,
    fence: NodeFence,
    reaper: Reaper,
}

impl Agent {
    pub(super) fn new(
        store: PgStore,
        registration: NodeRegistration,
        settings: &NodeSettings,
        state: NodeState,
        fence: NodeFence,
        reaper: Reaper,
    ) -> Self {
        Self {
            store,
            registration,
            interval: settings.heartbeat_interval,
            state,
            confirmed: BootInstant::now(),
            silent: false,
            ill: false,
            draining: false,
            fence,
            reaper,
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
                        return Err(self.part_died());
                    }
                }
                _ = &mut self.reaper.task => return Err(self.part_died()),
            }
            next = Instant::now() + self.interval;
            self.beat(&probe).await?;
        }
        self.drain(&mut probe, now.as_mut(), grace).await
    }

    async fn beat(&mut self, probe: &Probe) -> Result<(), NodeError> {
        let health = probe.health.borrow().clone();
        let well = matches!(health, Health::Well(_));
        if std::mem::replace(&mut self.ill, !well) && well {
            self.reaper.hurry();
        }
        let (state, reason) = match (&health, self.draining) {
            (Health::Well(info), _) if info.engine_id != self.registration.engine.engine_id => {
                return self.register_again(info).await;
            }
            (_, true) => (NodeState::Draining, Some("its agent is shutting down")),
            // Nothing new is placed here while the fence is at work.
            (Health::Well(_), false) if self.fence.is_reached() => (
                NodeState::Unhealthy,
                Some("its agent was silent for too long, and ends what ran here meanwhile"),
            ),
            (Health::Well(_), false) => (NodeState::Ready, None),
            (Health::Ill(reason), false) => (NodeState::Unhealthy, Some(reason.as_str())),
        };
        let node = &self.registration;
        let sent = BootInstant::now();
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
        let sent = BootInstant::now();
        match self.store.node_register(&registration).await {
            Ok(NodeRegistered::Registered { incarnation, state }) => {
                tracing::warn!(
                    node = %registration.node, was = %self.registration.engine.engine_id, is = %info.engine_id,
                    incarnation, "another engine answers at the endpoint; registered anew"
                );
                self.registration = registration;
                self.fence.now_for(&info.engine_id);
                self.reaper.now_for(&info.engine_id);
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

    fn confirm(&mut self, sent: BootInstant, in_force: NodeState, reason: Option<&str>) {
        self.fence.confirmed(sent);
        let away = Duration::from_nanos(sent.as_nanos().saturating_sub(self.confirmed.as_nanos()));
        if std::mem::take(&mut self.silent) {
            tracing::info!(node = %self.registration.node, ?away, "heartbeats are confirmed again");
            self.reaper.hurry();
        } else if away >= self.registration.heartbeat_ttl {
            tracing::warn!(node = %self.registration.node, ?away, "this process stood still");
            self.reaper.hurry();
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
            if self.reaper.task.is_finished() {
                return Err(self.part_died());
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

    fn part_died(&self) -> NodeError {
        NodeError::PartDied { node: self.registration.node.clone() }
    }
}
