//! One run, from the plan to the removal.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    Node, RunLimits,
    exit::{Exit, verdict},
    guard::KillSwitch,
    logs::{Journal, LogPump},
    plan,
    task::OfTask,
};
use crate::{
    domain::{ContainerId, Failure, FailureKind, OnOrphan},
    error::{Applied, EngineError, EngineErrorKind},
    fence::ContainerGuard,
    ports::{ContainerEngine, ContainerPlan, ContainerStatus, LogOffsets},
    work::{LeaseContext, StopReason, WorkOutcome},
};

/// The first wait before a call to a troubled engine or store is made again; it doubles up to the last.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(100);
pub(super) const LAST_WAIT: Duration = Duration::from_secs(2);

/// One container under one lease.
pub(super) struct Run {
    pub(super) node: Arc<Node>,
    pub(super) lease: LeaseContext,
    pub(super) plan: ContainerPlan,
    pub(super) switch: Arc<KillSwitch>,
    pub(super) journal: Journal,
    /// How much of its output an earlier holder of the job has stored.
    pub(super) stored: LogOffsets,
    /// It is that of a recipe's task.
    pub(super) task: Option<Arc<OfTask>>,
}

/// Why a run goes no further before its container runs.
#[derive(Debug)]
pub(super) enum Halt {
    /// It was told to stop, or its lease is over.
    Stop,
    /// It cannot go on.
    Fail(Failure),
}

/// How the time of a started container was over.
#[derive(Debug)]
pub(super) enum End {
    /// It ended, and not because we stopped it.
    Exit(Exit),
    /// We stopped it, and it is dead.
    Stopped,
    /// We could not stop it in time; the fence goes on trying.
    Unstoppable,
    /// Somebody removed it.
    Gone,
    /// The engine did not come back in time.
    EngineLost(String),
}

impl Halt {
    pub(super) fn fail(kind: FailureKind, code: &str, message: impl Into<String>) -> Self {
        Self::Fail(Failure::new(kind, code, message))
    }

    pub(super) fn outcome(self) -> WorkOutcome {
        match self {
            Self::Stop => WorkOutcome::Stopped,
            Self::Fail(failure) => WorkOutcome::Failed(failure),
        }
    }
}

/// Runs the container of a grant.
pub(super) async fn run(node: Arc<Node>, lease: LeaseContext) -> WorkOutcome {
    let grant = lease.grant();
    if grant.placement.as_ref() != Some(&node.placement) {
        let message = format!("the job was not placed on node {} as it is now", node.placement.node);
        return Halt::fail(FailureKind::System, "wrong_runtime_node", message).outcome();
    }
    let plan = match plan::plan(node.settings.fleet, &node.placement.node, grant) {
        Ok(plan) => plan,
        Err(error) => return Halt::fail(FailureKind::User, "bad_definition", error.to_string()).outcome(),
    };
    let switch = KillSwitch::new(&node, &plan);
    let stored = LogOffsets::default();
    let journal = Journal::new(lease.clone(), node.settings.limits.store_call, stored.system, None);
    Arc::new(Run { node, lease, plan, switch, journal, stored, task: None }).to_its_end().await
}

impl Run {
    pub(super) async fn to_its_end(self: Arc<Self>) -> WorkOutcome {
        if let Err(halt) = self.prepare().await {
            return halt.outcome();
        }
        // From here on something may exist on the engine, and the fence knows.
        let guard = self.lease.guard_container(self.switch.clone(), self.stop_grace() + self.limits().tidy);
        match self.begin().await {
            Ok(id) => self.follow(&id, guard).await,
            Err(halt) => {
                self.discard(guard).await;
                halt.outcome()
            }
        }
    }

    /// The container runs: its output is read, its end is watched, a stop is carried out.
    pub(super) async fn follow(self: &Arc<Self>, id: &ContainerId, guard: ContainerGuard) -> WorkOutcome {
        let (ended, end_seen) = watch::channel(false);
        let life = async {
            let end = self.until_over(id).await;
            match &end {
                End::Unstoppable => drop(guard),
                End::EngineLost(reason) => {
                    tracing::warn!(container = %self.plan.name, node = %self.node.placement.node, reason,
                        "the engine is lost; what may still run there is left to the node's agent");
                    guard.gone();
                }
                End::Exit(_) | End::Stopped | End::Gone => guard.gone(),
            }
            ended.send_replace(true);
            end
        };
        let (end, ()) = tokio::join!(life, LogPump::new(self, id, end_seen).run());
        tracing::debug!(container = %self.plan.name, ?end, "the container is over");
        match end {
            End::Exit(exit) => self.conclude(id, &exit).await,
            End::Stopped => {
                if !self.is_left_to_its_adopter() {
                    self.remove(id).await;
                }
                WorkOutcome::Stopped
            }
            End::Unstoppable => {
                if !self.is_left_to_its_adopter() {
                    self.sweep(id.clone());
                }
                WorkOutcome::Stopped
            }
            End::Gone => Halt::fail(
                FailureKind::System,
                "container_gone",
                format!("container {} was removed while it was running, and not by this run", self.plan.name),
            )
            .outcome(),
            End::EngineLost(reason) => {
                self.sweep(id.clone());
                Halt::fail(FailureKind::System, "engine_lost", reason).outcome()
            }
        }
    }

    async fn until_over(&self, id: &ContainerId) -> End {
        tokio::select! {
            // An exit that is there already is the program's own, also when a stop comes in the same moment.
            biased;
            end = self.until_ended(id) => end,
            reason = self.lease.stopped() => self.stop(id, reason).await,
        }
    }

    async fn conclude(self: &Arc<Self>, id: &ContainerId, exit: &Exit) -> WorkOutcome {
        let verdict = verdict(exit);
        if let Some(remark) = &verdict.remark {
            self.journal.remark(remark).await;
        }
        if self.lease.stop_reason() == Some(StopReason::LeaseLost) {
            // Its exit is the only record of what the program did: whoever takes the job over looks at it.
            tracing::warn!(container = %self.plan.name, "lease lost: the ended container is left for recovery");
        } else {
            self.remove(id).await;
        }
        verdict.outcome
    }

    /// Whoever adopted it meanwhile watches it, and is to see a container that was stopped, not one that is gone. He
    /// removes it, or a recovery does, or the node's agent.
    fn is_left_to_its_adopter(&self) -> bool {
        self.plan.spec.on_orphan == OnOrphan::Adopt && self.lease.stop_reason() == Some(StopReason::LeaseLost)
    }

    // -- what all steps share ---------------------------------------------------------------------------

    pub(super) fn engine(&self) -> &dyn ContainerEngine {
        &*self.node.engine
    }

    pub(super) fn limits(&self) -> &RunLimits {
        &self.node.settings.limits
    }

    /// What the program may take to stop by itself.
    pub(super) fn stop_grace(&self) -> Duration {
        let spec = &self.plan.spec;
        let ms = spec.stop_grace_ms.unwrap_or(crate::domain::ContainerSpec::DEFAULT_STOP_GRACE_MS);
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    /// The look at the lease before every effect.
    pub(super) fn may_act(&self) -> Result<(), Halt> {
        if self.lease.stop_reason().is_some() || self.lease.remaining().is_zero() {
            return Err(Halt::Stop);
        }
        Ok(())
    }

    /// Resolves when a run that was told to stop has no time left.
    pub(super) async fn out_of_time(&self) {
        self.lease.stopped().await;
        loop {
            let left = self.lease.stop_budget();
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }

    /// One call under this actor's own limit.
    pub(super) async fn call<T>(
        &self,
        operation: &'static str,
        limit: Duration,
        call: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        timeout(limit, call).await.unwrap_or_else(|_| {
            Err(EngineError {
                operation,
                kind: EngineErrorKind::Timeout,
                applied: Applied::Maybe,
                message: format!("the engine did not answer within {limit:?}"),
                exit_code: None,
            })
        })
    }

    pub(super) async fn look(&self, id: &ContainerId) -> Result<Option<ContainerStatus>, EngineError> {
        self.call("inspect", self.limits().look_every, self.engine().inspect(id)).await
    }
}

/// Waits that double, up to a time when enough is enough.
pub(super) struct Patience {
    wait: Duration,
    until: Instant,
}

impl Patience {
    pub(super) fn of(limit: Duration) -> Self {
        Self { wait: FIRST_WAIT, until: Instant::now() + limit }
    }

    /// Waits a little; false when the patience is at its end.
    pub(super) async fn wait(&mut self) -> bool {
        if Instant::now() + self.wait > self.until {
            return false;
        }
        sleep(self.wait).await;
        self.wait = (self.wait * 2).min(LAST_WAIT);
        true
    }
}

/// Trouble that may pass without anybody changing the job.
pub(super) fn is_passing(error: &EngineError) -> bool {
    matches!(error.kind, EngineErrorKind::Unreachable | EngineErrorKind::Timeout)
}
