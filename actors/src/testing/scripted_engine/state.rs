//! What the scripted engine remembers.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use super::script::{Call, Script, Trouble};
use crate::{
    domain::ContainerId,
    error::{Applied, EngineError, EngineErrorKind},
    ports::{ContainerPlan, ContainerState, ContainerStatus, LogChunk, LogStream},
};

#[derive(Debug)]
pub(super) struct State {
    pub(super) engine_id: String,
    pub(super) down: bool,
    /// Rises when open streams break.
    pub(super) connections: u64,
    pub(super) scripts: HashMap<String, Script>,
    pub(super) troubles: BTreeMap<Call, VecDeque<Trouble>>,
    pub(super) containers: BTreeMap<ContainerId, Container>,
    pub(super) plans: Vec<ContainerPlan>,
    pub(super) calls: Vec<String>,
    pub(super) bytes_read: u64,
}

#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: ContainerId,
    pub(super) name: String,
    pub(super) plan: ContainerPlan,
    pub(super) state: ContainerState,
    pub(super) script: Script,
    pub(super) output: Vec<LogChunk>,
    /// It ended while the engine was down.
    pub(super) unseen: bool,
}

impl Container {
    pub(super) fn status(&self) -> ContainerStatus {
        ContainerStatus {
            id: self.id.clone(),
            name: self.name.clone(),
            state: self.state.clone(),
            labels: self.plan.labels.clone(),
            started_at: None,
            finished_at: None,
            witnessed: !self.unseen,
        }
    }
}

pub(super) fn no_such_container(call: Call) -> EngineError {
    EngineError {
        operation: call.name(),
        kind: EngineErrorKind::NoSuchContainer,
        applied: Applied::No,
        message: "no such container".to_owned(),
        exit_code: None,
    }
}

impl State {
    pub(super) fn new(engine_id: &str) -> Self {
        Self {
            engine_id: engine_id.to_owned(),
            down: false,
            connections: 0,
            scripts: HashMap::new(),
            troubles: BTreeMap::new(),
            containers: BTreeMap::new(),
            plans: Vec::new(),
            calls: Vec::new(),
            bytes_read: 0,
        }
    }

    pub(super) fn add(&mut self, plan: &ContainerPlan) -> ContainerId {
        self.plans.push(plan.clone());
        let id = ContainerId::new(format!("c{}", self.plans.len())).expect("a plain name");
        let container = Container {
            id: id.clone(),
            name: plan.name.clone(),
            plan: plan.clone(),
            state: ContainerState::Created,
            script: self.scripts.get(&plan.spec.image).cloned().unwrap_or_else(|| Script::exits(0)),
            output: Vec::new(),
            unseen: false,
        };
        self.containers.insert(id.clone(), container);
        id
    }

    pub(super) fn get(&mut self, call: Call, id: &ContainerId) -> Result<&mut Container, EngineError> {
        self.containers.get_mut(id).ok_or_else(|| no_such_container(call))
    }

    /// The script to be lived, if this start is the one that started it.
    pub(super) fn start(&mut self, id: &ContainerId) -> Result<Option<Script>, EngineError> {
        let container = self.get(Call::Start, id)?;
        if container.state != ContainerState::Created {
            return Ok(None);
        }
        container.state = ContainerState::Running { paused: container.script.paused };
        Ok(Some(container.script.clone()))
    }

    /// Prints, if it still runs.
    pub(super) fn print(&mut self, id: &ContainerId, stream: LogStream, data: Bytes) {
        if let Some(container) = self.containers.get_mut(id)
            && matches!(container.state, ContainerState::Running { .. })
        {
            container.output.push(LogChunk { stream, data });
        }
    }

    /// Ends it, if it still runs.
    pub(super) fn end(&mut self, id: &ContainerId, code: i32, oom_killed: bool) {
        if let Some(container) = self.containers.get_mut(id)
            && matches!(container.state, ContainerState::Running { .. })
        {
            container.state = ContainerState::Exited { code, oom_killed, error: String::new() };
            container.unseen = self.down;
        }
    }

    pub(super) fn running(&self) -> Vec<ContainerId> {
        let running = self.containers.values().filter(|c| matches!(c.state, ContainerState::Running { .. }));
        running.map(|container| container.id.clone()).collect()
    }

    /// The chunk at a place of the output; `Some(None)` when there will be none.
    pub(super) fn output_after(&mut self, id: &ContainerId, next: usize) -> Option<Option<LogChunk>> {
        let Some(container) = self.containers.get(id) else { return Some(None) };
        if let Some(chunk) = container.output.get(next) {
            self.bytes_read += chunk.data.len() as u64;
            return Some(Some(chunk.clone()));
        }
        match container.state {
            ContainerState::Running { .. } | ContainerState::Created => None,
            ContainerState::Exited { .. } | ContainerState::Dead => Some(None),
        }
    }
}
