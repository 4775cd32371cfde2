//! A container engine that plays scripts: what a container prints and when, how it ends, how it takes being
//! asked to stop; and, call by call, what goes wrong on the way. Time is tokio's.

mod script;
mod state;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::Notify;

use crate::{
    domain::{ContainerId, PullPolicy},
    error::{Applied, EngineError, EngineErrorKind},
    ports::{
        ContainerEngine, ContainerPlan, ContainerState, ContainerStatus, EngineFactory, EngineInfo, LogChunk,
        LogStream, Placement,
    },
};

pub use script::{Call, OnStop, Script, Trouble};
use state::{Container, State};

/// The engine. Clones are handles on the same one; it is its own factory.
#[derive(Clone)]
pub struct ScriptedEngine {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

impl std::fmt::Debug for ScriptedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedEngine").field("engine_id", &self.state().engine_id).finish_non_exhaustive()
    }
}

impl ScriptedEngine {
    /// An engine with this id. Containers of an image without a script exit with 0 at once.
    #[must_use]
    pub fn new(engine_id: &str) -> Self {
        let shared = Shared { state: Mutex::new(State::new(engine_id)), changed: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    /// What containers of an image do.
    #[must_use]
    pub fn image(self, image: &str, script: Script) -> Self {
        self.state().scripts.insert(image.to_owned(), script);
        self
    }

    /// Something goes wrong with the next call of this sort. Several for one call happen one after the other.
    #[must_use]
    pub fn trouble(self, call: Call, trouble: Trouble) -> Self {
        self.make_trouble(call, trouble);
        self
    }

    /// As [`Self::trouble`], in the middle of a test.
    pub fn make_trouble(&self, call: Call, trouble: Trouble) {
        self.state().troubles.entry(call).or_default().push_back(trouble);
    }

    /// A container that is not ours, with a name that may be.
    pub fn place_foreign(&self, name: &str) -> ContainerId {
        let mut state = self.state();
        let plan = ContainerPlan {
            name: name.to_owned(),
            labels: Vec::new(),
            spec: crate::domain::ContainerSpec::default(),
            env: Vec::new(),
        };
        state.add(&plan)
    }

    /// The engine stops answering, and every open stream breaks. Containers run on.
    pub fn go_down(&self) {
        let mut state = self.state();
        state.down = true;
        state.connections += 1;
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// The engine answers again.
    pub fn come_back(&self) {
        self.state().down = false;
        self.shared.changed.notify_waiters();
    }

    /// Every running container ends with this code, as when an engine is restarted without live-restore.
    pub fn end_all(&self, code: i32) {
        let mut state = self.state();
        let running: Vec<ContainerId> = state.running();
        for id in running {
            state.end(&id, code, false);
        }
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// Open streams break; the engine itself is well.
    pub fn break_streams(&self) {
        self.state().connections += 1;
        self.shared.changed.notify_waiters();
    }

    /// Somebody removes all containers by hand.
    pub fn remove_all(&self) {
        self.state().containers.clear();
        self.shared.changed.notify_waiters();
    }

    /// Another engine answers from now on, with what this one had.
    pub fn become_another(&self, engine_id: &str) {
        self.state().engine_id = engine_id.to_owned();
    }

    /// Puts every container into a state.
    pub fn set_all(&self, to: &ContainerState) {
        self.state().containers.values_mut().for_each(|container| container.state = to.clone());
        self.shared.changed.notify_waiters();
    }

    /// Somebody kills a running container by hand.
    pub fn kill_all(&self) {
        self.end_all(137);
    }

    /// What was asked, in order, each as the call's name and the container's name.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// How often a call of this sort was made.
    #[must_use]
    pub fn count(&self, call: Call) -> usize {
        let name = call.name();
        self.state().calls.iter().filter(|made| made.split(' ').next() == Some(name)).count()
    }

    /// The names of the containers that exist.
    #[must_use]
    pub fn containers(&self) -> Vec<String> {
        self.state().containers.values().map(|container| container.name.clone()).collect()
    }

    /// The plans of all containers that were ever created.
    #[must_use]
    pub fn plans(&self) -> Vec<ContainerPlan> {
        self.state().plans.clone()
    }

    /// How many bytes of output were handed out.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.state().bytes_read
    }

    /// Whether any container runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.state().running().is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("nothing panics while it holds the engine's state")
    }

    /// Notes the call, and lets go wrong what is to go wrong. An error inside `Ok` means: do it, and answer that.
    async fn meet(&self, call: Call, what: &str) -> Result<Option<EngineError>, EngineError> {
        let trouble = {
            let mut state = self.state();
            state.calls.push(format!("{} {what}", call.name()).trim_end().to_owned());
            if state.down {
                return Err(unreachable_engine(call, Applied::No));
            }
            state.troubles.get_mut(&call).and_then(std::collections::VecDeque::pop_front)
        };
        match trouble {
            None => Ok(None),
            Some(Trouble::AnswerLost) => Ok(Some(unreachable_engine(call, Applied::Maybe))),
            Some(Trouble::RequestLost) => Err(unreachable_engine(call, Applied::Maybe)),
            Some(Trouble::Fails(kind, message)) => Err(failure(call, kind, message, None)),
            Some(Trouble::DoneButFails(kind, message)) => Ok(Some(failure(call, kind, message, None))),
            Some(Trouble::CannotRun(code, message)) => {
                Err(failure(call, EngineErrorKind::BadRequest, message, Some(code)))
            }
            Some(Trouble::Slow(duration)) => {
                tokio::time::sleep(duration).await;
                Ok(None)
            }
            Some(Trouble::Silent) => std::future::pending().await,
            Some(Trouble::Panics) => panic!("the script says so"),
        }
    }

    fn answer<T>(instead: Option<EngineError>, answer: T) -> Result<T, EngineError> {
        instead.map_or(Ok(answer), Err)
    }

    fn name_of(&self, id: &ContainerId) -> String {
        self.state().containers.get(id).map_or_else(|| id.to_string(), |container| container.name.clone())
    }

    /// Lets a started container live its script.
    fn live(&self, id: ContainerId, script: Script) {
        let engine = self.clone();
        tokio::spawn(async move {
            for (pause, stream, data) in script.output {
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
                engine.state().print(&id, stream, data);
                engine.shared.changed.notify_waiters();
            }
            if let Some((after, code, oom)) = script.exit {
                tokio::time::sleep(after).await;
                engine.state().end(&id, code, oom);
                engine.shared.changed.notify_waiters();
            }
        });
    }

    /// Waits until a look at the state brings something; a broken connection ends the waiting.
    async fn until<T>(
        &self,
        call: Call,
        connection: u64,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, EngineError> {
        loop {
            let changed = self.shared.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.state();
                if let Some(found) = look(&mut state) {
                    return Ok(found);
                }
                if state.connections != connection {
                    return Err(unreachable_engine(call, Applied::Maybe));
                }
            }
            changed.await;
        }
    }
}

fn failure(call: Call, kind: EngineErrorKind, message: &str, exit_code: Option<i32>) -> EngineError {
    EngineError { operation: call.name(), kind, applied: Applied::No, message: message.to_owned(), exit_code }
}

fn unreachable_engine(call: Call, applied: Applied) -> EngineError {
    EngineError {
        operation: call.name(),
        kind: EngineErrorKind::Unreachable,
        applied,
        message: "connection refused (a fault of the test)".to_owned(),
        exit_code: None,
    }
}

impl EngineFactory for ScriptedEngine {
    fn connect(&self, _: &Placement) -> Result<Box<dyn ContainerEngine>, EngineError> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl ContainerEngine for ScriptedEngine {
    async fn info(&self) -> Result<EngineInfo, EngineError> {
        let instead = self.meet(Call::Info, "").await?;
        let info = EngineInfo {
            engine_id: self.state().engine_id.clone(),
            os: "linux".to_owned(),
            architecture: "x86_64".to_owned(),
            cpu_millis: 2000,
            memory_bytes: 1 << 30,
            version: "0-scripted".to_owned(),
        };
        Self::answer(instead, info)
    }

    async fn ensure_image(&self, image: &str, _: PullPolicy) -> Result<(), EngineError> {
        let instead = self.meet(Call::EnsureImage, image).await?;
        Self::answer(instead, ())
    }

    async fn create(&self, plan: &ContainerPlan) -> Result<ContainerId, EngineError> {
        let instead = self.meet(Call::Create, &plan.name).await?;
        let id = {
            let mut state = self.state();
            let found = state.containers.values().find(|container| container.name == plan.name);
            match found {
                Some(own) if own.plan.labels == plan.labels => own.id.clone(),
                Some(_) => {
                    let message = format!("the name {} is taken", plan.name);
                    return Err(failure(Call::Create, EngineErrorKind::Conflict, &message, None));
                }
                None => state.add(plan),
            }
        };
        Self::answer(instead, id)
    }

    async fn start(&self, id: &ContainerId) -> Result<(), EngineError> {
        let instead = self.meet(Call::Start, &self.name_of(id)).await?;
        let script = self.state().start(id)?;
        if let Some(script) = script {
            self.live(id.clone(), script);
        }
        Self::answer(instead, ())
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>, EngineError> {
        let instead = self.meet(Call::Inspect, &self.name_of(id)).await?;
        let status = self.state().containers.get(id).map(Container::status);
        Self::answer(instead, status)
    }

    async fn wait(&self, id: &ContainerId) -> Result<ContainerStatus, EngineError> {
        let instead = self.meet(Call::Wait, &self.name_of(id)).await?;
        let connection = self.state().connections;
        let ended = self.until(Call::Wait, connection, |state| match state.containers.get(id) {
            None => Some(None),
            Some(container) if matches!(container.state, ContainerState::Running { .. }) => None,
            Some(container) => Some(Some(container.status())),
        });
        let status = ended.await?.ok_or_else(|| state::no_such_container(Call::Wait))?;
        Self::answer(instead, status)
    }

    fn logs(&self, id: &ContainerId) -> BoxStream<'static, Result<LogChunk, EngineError>> {
        let (engine, id) = (self.clone(), id.clone());
        stream::once(async move {
            if let Err(error) = engine.meet(Call::Logs, &engine.name_of(&id)).await {
                return stream::iter([Err(error)]).boxed();
            }
            let connection = engine.state().connections;
            let follow = move |next: Option<usize>| {
                let (engine, id) = (engine.clone(), id.clone());
                async move {
                    let next = next?;
                    let look = |state: &mut State| state.output_after(&id, next);
                    match engine.until(Call::Logs, connection, look).await {
                        Ok(Some(chunk)) => Some((Ok(chunk), Some(next + 1))),
                        Ok(None) => None,
                        Err(error) => Some((Err(error), None)),
                    }
                }
            };
            stream::unfold(Some(0), follow).boxed()
        })
        .flatten()
        .boxed()
    }

    async fn mark_stopped(&self, id: &ContainerId, name: &str) -> Result<(), EngineError> {
        let instead = self.meet(Call::Mark, name).await?;
        let mut state = self.state();
        let container = state.get(Call::Mark, id)?;
        container.name = format!("{name}.stopped");
        drop(state);
        Self::answer(instead, ())
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<(), EngineError> {
        let instead = self.meet(Call::Stop, &format!("{} within {grace:?}", self.name_of(id))).await?;
        let on_stop = match self.state().get(Call::Stop, id) {
            Ok(container) if matches!(container.state, ContainerState::Running { .. }) => {
                container.script.on_stop.clone()
            }
            Ok(_) => return Self::answer(instead, ()),
            Err(_) => return Ok(()),
        };
        let (after, code) = match on_stop {
            OnStop::Ends { after, code, says } if after <= grace => {
                tokio::time::sleep(after).await;
                if let Some(says) = says {
                    self.state().print(id, LogStream::Stdout, Bytes::from_static(says.as_bytes()));
                }
                (Duration::ZERO, code)
            }
            OnStop::Ends { .. } | OnStop::Ignores => (grace, 137),
        };
        tokio::time::sleep(after).await;
        self.state().end(id, code, false);
        self.shared.changed.notify_waiters();
        Self::answer(instead, ())
    }

    async fn kill(&self, id: &ContainerId) -> Result<(), EngineError> {
        let instead = self.meet(Call::Kill, &self.name_of(id)).await?;
        self.state().end(id, 137, false);
        self.shared.changed.notify_waiters();
        Self::answer(instead, ())
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), EngineError> {
        let instead = self.meet(Call::Remove, &self.name_of(id)).await?;
        self.state().containers.remove(id);
        self.shared.changed.notify_waiters();
        Self::answer(instead, ())
    }

    async fn list(&self, labels: &[(String, String)]) -> Result<Vec<ContainerStatus>, EngineError> {
        let instead = self.meet(Call::List, "").await?;
        let state = self.state();
        let ours = state.containers.values().filter(|c| labels.iter().all(|l| c.plan.labels.contains(l)));
        let found = ours.map(Container::status).collect();
        drop(state);
        Self::answer(instead, found)
    }
}
