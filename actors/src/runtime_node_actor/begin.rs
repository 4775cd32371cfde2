//! From nothing to a started container. Each step looks at the lease first and may be repeated; where an
//! answer is lost, asking again or looking tells what happened.

use super::run::{Halt, Patience, Run, is_passing};
use crate::{
    domain::{ContainerId, Failure, FailureKind},
    error::{Applied, EngineError, EngineErrorKind},
    ports::{Attach, ContainerState},
    work::LeaseCallError,
};

impl Run {
    /// The right engine answers and has the image. Nothing exists yet, so a stop ends this at once.
    pub(super) async fn prepare(&self) -> Result<(), Halt> {
        let work = async {
            self.check_engine().await?;
            self.provide_image().await
        };
        tokio::select! {
            biased;
            _ = self.lease.stopped() => Err(Halt::Stop),
            done = work => done,
        }
    }

    /// Creates, attaches and starts. A call that is under way when the stop comes is waited for, as long as
    /// there is time: an answer that is known needs no cleaning up in the dark.
    pub(super) async fn begin(&self) -> Result<ContainerId, Halt> {
        let work = async {
            let id = self.create().await?;
            self.attach(&id).await?;
            self.start(&id).await?;
            Ok(id)
        };
        tokio::select! {
            biased;
            done = work => done,
            () = self.out_of_time() => Err(Halt::Stop),
        }
    }

    async fn check_engine(&self) -> Result<(), Halt> {
        let expected = &self.node.placement.engine_id;
        let mut patience = Patience::of(self.limits().patience);
        loop {
            self.may_act()?;
            match self.call("info", self.limits().call, self.engine().info()).await {
                Ok(info) if info.engine_id == *expected => return Ok(()),
                Ok(info) => {
                    let message = format!(
                        "engine {} answers at {} where {expected} was registered; nothing is touched",
                        info.engine_id, self.node.placement.endpoint
                    );
                    return Err(Halt::fail(FailureKind::System, "engine_changed", message));
                }
                Err(error) if is_passing(&error) && patience.wait().await => {}
                Err(error) => return Err(Halt::Fail(failure(&error))),
            }
        }
    }

    async fn provide_image(&self) -> Result<(), Halt> {
        let spec = &self.plan.spec;
        let mut patience = Patience::of(self.limits().patience);
        loop {
            self.may_act()?;
            // No limit of ours: a large image takes its time, and the adapter notices a pull that stands still.
            match self.engine().ensure_image(&spec.image, spec.pull).await {
                Ok(()) => return Ok(()),
                Err(error) if is_passing(&error) && patience.wait().await => {}
                Err(error) => return Err(Halt::Fail(failure(&error))),
            }
        }
    }

    async fn create(&self) -> Result<ContainerId, Halt> {
        let mut patience = Patience::of(self.limits().patience);
        loop {
            self.may_act()?;
            match self.call("create", self.limits().call, self.engine().create(&self.plan)).await {
                Ok(id) => return Ok(id),
                // A repeat finds its own container by name and labels.
                Err(error) if is_passing(&error) && patience.wait().await => {
                    tracing::debug!(container = %self.plan.name, %error, "creating again");
                }
                Err(error) => return Err(Halt::Fail(failure(&error))),
            }
        }
    }

    /// Records the container before it may do anything, so that whoever takes the job over finds it.
    async fn attach(&self, id: &ContainerId) -> Result<(), Halt> {
        let node = &self.node.placement.node;
        let mut patience = Patience::of(self.lease.grant().lease);
        loop {
            self.may_act()?;
            let asked = async {
                match &self.task {
                    Some(task) => self.lease.attach_task(&task.key, node, id).await,
                    None => self.lease.attach(node, id).await,
                }
            };
            let answer = tokio::time::timeout(self.limits().store_call, asked).await;
            let trouble = match answer {
                Ok(Ok(Attach::Attached)) => return Ok(()),
                Ok(Ok(Attach::NotLive) | Err(LeaseCallError::Lost)) => return Err(Halt::Stop),
                Ok(Ok(Attach::WrongRuntimeNode)) => {
                    let message = format!("the job is placed on another node than {node}");
                    return Err(Halt::fail(FailureKind::System, "wrong_runtime_node", message));
                }
                Ok(Ok(Attach::ContainerConflict { attached })) => {
                    let message = format!("container {attached} is attached to this job already");
                    return Err(Halt::fail(FailureKind::System, "container_conflict", message));
                }
                Ok(Err(LeaseCallError::Store(error))) => {
                    if error.applied == Applied::No && !error.is_retryable() {
                        return Err(Halt::fail(FailureKind::System, "attach_refused", error.to_string()));
                    }
                    error.to_string()
                }
                Err(_) => "no answer in time".to_owned(),
            };
            tracing::warn!(container = %self.plan.name, error = trouble, "not attached, asking again");
            if !patience.wait().await {
                return Err(Halt::Stop);
            }
        }
    }

    /// Starts it once. What an error leaves open is decided by looking: an engine has been seen to start a
    /// container and answer with an error.
    async fn start(&self, id: &ContainerId) -> Result<(), Halt> {
        let mut patience = Patience::of(self.limits().patience);
        loop {
            self.may_act()?;
            self.switch.starting(id);
            let Err(error) = self.call("start", self.limits().call, self.engine().start(id)).await else {
                break;
            };
            tracing::debug!(container = %self.plan.name, %error, "the start is uncertain, looking");
            match self.look_until_answered(id, &mut patience).await {
                Ok(Some(ContainerState::Running { .. })) => break,
                // A refusal that says why is worth more than the code that the engine wrote down with it.
                Ok(Some(ContainerState::Exited { .. })) if error.kind != EngineErrorKind::BadRequest => break,
                Ok(Some(ContainerState::Created)) if is_passing(&error) && patience.wait().await => {}
                Ok(Some(_)) => return Err(Halt::Fail(failure(&error))),
                Ok(None) => {
                    let message = format!("container {} was removed before its start", self.plan.name);
                    return Err(Halt::fail(FailureKind::System, "container_gone", message));
                }
                Err(looking) => return Err(Halt::Fail(failure(&looking))),
            }
        }
        self.switch.started(id);
        Ok(())
    }

    async fn look_until_answered(
        &self,
        id: &ContainerId,
        patience: &mut Patience,
    ) -> Result<Option<ContainerState>, EngineError> {
        loop {
            match self.look(id).await {
                Ok(status) => return Ok(status.map(|status| status.state)),
                Err(error) if is_passing(&error) && patience.wait().await => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whose fault an engine's refusal is.
fn failure(error: &EngineError) -> Failure {
    let message = error.to_string();
    if let Some(code) = error.exit_code {
        return Failure::new(FailureKind::User, code.to_string(), message).with_exit_code(code);
    }
    let (kind, code) = match error.kind {
        EngineErrorKind::NoSuchImage => (FailureKind::User, "image_not_found"),
        EngineErrorKind::BadRequest => (FailureKind::User, "bad_request"),
        EngineErrorKind::PullFailed => (FailureKind::System, "pull_failed"),
        EngineErrorKind::Conflict => (FailureKind::System, "name_conflict"),
        EngineErrorKind::NoSuchContainer => (FailureKind::System, "container_gone"),
        EngineErrorKind::Unreachable | EngineErrorKind::Timeout => {
            (FailureKind::System, "engine_unreachable")
        }
        EngineErrorKind::Engine => (FailureKind::System, "engine_error"),
    };
    Failure::new(kind, code, message)
}
