//! A lease was taken over: what has become of its container on its stored node, and what is done with it.
//!
//! | found | done |
//! |---|---|
//! | the engine does not answer, or answers with an error | nothing yet: the recovery is put off |
//! | another engine under that endpoint | nothing is touched: put off, until its node is lost |
//! | the runtime is unavailable, or the recovery was put off for too long | one bounded attempt to kill; a loss |
//! | no container was attached | what carries the job's labels and an older epoch is removed; a loss |
//! | none | a loss |
//! | created | removed; given back: nothing has run |
//! | running, paused | followed on, if the job says `on_orphan: adopt` and it is well (left alone for now, where this worker has no room for a run); otherwise marked, stopped, its output stored, removed; a loss |
//! | exited by itself | its output is stored, its outcome reported, then it is removed |
//! | exited, not by itself | its output is stored, a loss reported, then it is removed |
//! | dead, being removed | removed by force; a loss |
//!
//! The container of a recipe's task is recovered by the same table, and removed whatever is found. If it has ended by
//! itself, its end is recorded as the task's result under the new lease first (`of_task`); otherwise the task
//! runs anew.
//!
//! Only the engine that is stored with the job is ever asked. Every step may be repeated, by this process or another
//! one, and output goes on from what is stored; so a recovery may break off anywhere.

mod of_task;

use std::{sync::Arc, time::Duration};

use actix::Message;
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

pub use self::of_task::TaskRecovery;
use super::{
    Node,
    exit::{Exit, verdict},
    guard::KillSwitch,
    logs::{Journal, LogPump},
    plan,
    run::{FIRST_WAIT, LAST_WAIT, Patience, Run, is_passing},
    task::OfTask,
    watch::is_over,
};
use crate::{
    domain::{ContainerId, ContainerSpec, Epoch, Failure, FailureKind, OnOrphan},
    error::{EngineError, EngineErrorKind},
    ports::{
        ContainerEngine, ContainerState, ContainerStatus, LogOffsets, RuntimeStanding, StoredLogs, Takeover,
    },
    work::{LeaseCallError, LeaseContext, WorkOutcome},
};

/// How long an engine that does not answer is asked again before the recovery is put off.
const PATIENCE: Duration = Duration::from_secs(3);

/// The longest that one call to the engine may take here.
const CALL: Duration = Duration::from_secs(10);

/// The longest wait for the mark: a program that is asked to stop without it would be taken for one that ended.
const MARK: Duration = Duration::from_secs(2);

/// The longest that the one attempt on an unavailable runtime may take.
const LAST_ATTEMPT: Duration = Duration::from_secs(10);

/// Recovers the container of a job whose lease was taken over. Sent by its LeaseActor once the immediate renewal
/// was confirmed.
#[derive(Debug, Message)]
#[rtype(result = "Recovered")]
pub struct RecoverContainer {
    /// The new lease.
    pub lease: LeaseContext,
    /// What was taken over.
    pub takeover: Arc<Takeover>,
    /// RECIPE: the task whose container this is about. The answer is [`Recovered::CleanedUp`] once nothing is left of it.
    pub task: Option<TaskRecovery>,
    /// The recovery is put off no more: what the engine does not do now is given up.
    pub last_time: bool,
    /// Asked when the container could be followed on instead of being stopped.
    pub adopts: oneshot::Sender<Adoption>,
}

/// The container's run could go on under the new lease.
#[derive(Debug)]
pub struct Adoption {
    /// How much longer it may run; none is no limit.
    pub timeout: Option<Duration>,
    /// The answer: whether the worker has room for a run.
    pub has_room: oneshot::Sender<bool>,
}

/// What became of a container.
#[derive(Debug)]
pub enum Recovered {
    /// It had ended by itself, and this is what its program did.
    Ended {
        /// Its outcome.
        outcome: WorkOutcome,
        /// To be done once that is reported.
        afterwards: Afterwards,
    },
    /// Its run is lost.
    Lost {
        /// What was found, for people.
        message: String,
        /// To be done once that is reported.
        afterwards: Option<Afterwards>,
    },
    /// Nothing of a task is left: it can run anew.
    CleanedUp,
    /// It was never started, and is gone.
    NotStarted,
    /// It cannot be recovered now.
    NotNow {
        /// Why, for people.
        reason: String,
    },
    /// It can be recovered, but not by this worker.
    NotHere {
        /// Why, for people.
        reason: String,
    },
    /// It is well and to be followed on, and this worker has no room for a run.
    NoRoom,
    /// It was followed on to its end, and this is its outcome.
    Run(WorkOutcome),
    /// The recovery was told to stop. What it was about may still be there.
    Stopped,
}

/// What is left to be done about a container once its end is reported. Dropped, it is not done.
#[derive(Debug)]
pub struct Afterwards(oneshot::Sender<()>);

impl Afterwards {
    /// Nothing is left to be done.
    #[must_use]
    pub fn nothing() -> Self {
        Self(oneshot::channel().0)
    }

    /// Does it, beside everything else.
    pub fn go(self) {
        // Nobody waits for it any more when its runtime goes away; the node's agent removes the container then.
        let _ = self.0.send(());
    }
}

/// Why a recovery goes no further.
#[derive(Debug)]
enum Trouble {
    /// The lease is over, or the worker stops.
    Stop,
    /// The engine, in words.
    Engine(EngineError),
    /// Another engine than the stored one.
    OtherEngine(String),
}

/// How a recovery goes on.
enum Next {
    Done(Recovered),
    Follow(Arc<Run>, ContainerId),
}

struct Recovery {
    run: Arc<Run>,
    takeover: Arc<Takeover>,
    /// The container that was attached.
    container: Option<ContainerId>,
    runtime: RuntimeStanding,
    /// The epoch that it carries.
    claim: Epoch,
    task: Option<TaskRecovery>,
    last_time: bool,
}

/// Recovers a container.
pub(super) async fn recover(node: Arc<Node>, message: RecoverContainer) -> Recovered {
    let RecoverContainer { lease, takeover, task, last_time, adopts } = message;
    let (fleet, at) = (node.settings.fleet, &node.placement.node);
    let planned = match task.as_ref().map(|task| &task.container) {
        Some(task) => {
            let log_quota_bytes = task.occurrence.as_ref().and_then(|occurrence| occurrence.log_quota_bytes);
            let (named, spec) = (
                (&task.task, task.path.as_str()),
                ContainerSpec { log_quota_bytes, ..ContainerSpec::default() },
            );
            Ok(plan::plan_of_task(fleet, at, &takeover.grant, task.epoch, named, spec, Vec::new()))
        }
        None => plan::plan_of_claim(fleet, at, &takeover.grant, takeover.claim_epoch),
    };
    let plan = match planned {
        Ok(plan) => plan,
        // Then none was ever created.
        Err(error) => {
            let failure = Failure::new(FailureKind::User, "bad_definition", error.to_string());
            let outcome = WorkOutcome::Failed(failure);
            return Recovered::Ended { outcome, afterwards: Afterwards::nothing() };
        }
    };
    let switch = KillSwitch::new(&node, &plan);
    let stored = LogOffsets::default();
    let key = task.as_ref().map(|task| task.container.task.clone());
    let journal = Journal::new(lease.clone(), node.settings.limits.store_call, 0, key.clone());
    let results = task.as_ref().and_then(|task| task.results.as_ref());
    let of_task = key.map(|key| {
        let longest_line = results.map_or(0, |results| results.longest_line());
        OfTask::new(key, longest_line, results.and_then(|results| results.redact()))
    });
    let run = Run { node, lease: lease.clone(), plan, switch, journal, stored, task: of_task };
    let (container, runtime, claim) = match task.as_ref().map(|task| &task.container) {
        Some(task) => (task.container.clone(), task.runtime, task.epoch),
        None => (takeover.container.clone(), takeover.runtime, takeover.claim_epoch),
    };
    let recovery = Recovery { run: Arc::new(run), takeover, container, runtime, claim, task, last_time };
    let next = tokio::select! {
        biased;
        _ = lease.stopped() => Ok(Next::Done(Recovered::Stopped)),
        next = recovery.clean_up() => next,
    };
    let next = match (next, &recovery.task) {
        (Ok(Next::Done(found)), Some(task)) => recovery.settle(task, found).await,
        (next, _) => next,
    };
    match next {
        Ok(Next::Done(recovered)) => recovered,
        Ok(Next::Follow(run, id)) => recovery.follow(&run, &id, adopts).await,
        Err(Trouble::Stop) => Recovered::Stopped,
        Err(Trouble::Engine(error)) => Recovered::NotNow { reason: error.to_string() },
        Err(Trouble::OtherEngine(reason)) => Recovered::NotNow { reason },
    }
}

impl Recovery {
    async fn clean_up(&self) -> Result<Next, Trouble> {
        if self.runtime == RuntimeStanding::Unavailable {
            return self.last_attempt().await;
        }
        match self.clean_up_by_the_table().await {
            Err(Trouble::Engine(error)) if self.last_time => {
                tracing::warn!(job = %self.takeover.grant.authority.job, %error, "given up: one last attempt");
                self.last_attempt().await
            }
            done => done,
        }
    }

    async fn clean_up_by_the_table(&self) -> Result<Next, Trouble> {
        self.check_engine().await?;
        match &self.container {
            None => self.clean_up_unattached().await,
            Some(id) => match self.look(id).await? {
                Some(status) => self.clean_up_attached(status).await,
                None => Ok(lost("its container is gone")),
            },
        }
    }

    /// Nothing is touched on an engine that is not the stored one.
    async fn check_engine(&self) -> Result<(), Trouble> {
        let placement = &self.run.node.placement;
        let info = self.patiently("info", || self.engine().info()).await?;
        if info.engine_id == placement.engine_id {
            return Ok(());
        }
        Err(Trouble::OtherEngine(format!(
            "engine {} answers at {} where {} was; nothing is touched",
            info.engine_id, placement.endpoint, placement.engine_id
        )))
    }

    /// What was never attached was never started under this claim; of an older one it may be anything.
    async fn clean_up_unattached(&self) -> Result<Next, Trouble> {
        for id in self.labelled().await? {
            tracing::info!(container = %id, job = %self.takeover.grant.authority.job, "removing what was not attached");
            self.remove(&id).await?;
        }
        Ok(lost("it had no container yet"))
    }

    async fn clean_up_attached(&self, status: ContainerStatus) -> Result<Next, Trouble> {
        let id = status.id.clone();
        match status.state {
            ContainerState::Created => {
                self.remove(&id).await?;
                Ok(Next::Done(Recovered::NotStarted))
            }
            ContainerState::Running { .. } if self.may_adopt(&status) => {
                Ok(Next::Follow(self.going_on().await?, id))
            }
            ContainerState::Running { .. } => self.stop(&id, !is_marked(&status)).await,
            ContainerState::Exited { .. } => self.conclude(&id, is_marked(&status)).await,
            ContainerState::Dead => {
                self.remove(&id).await?;
                Ok(lost("its container was dead"))
            }
        }
    }

    // -- one that runs ----------------------------------------------------------------------------------

    /// It runs, nobody has begun to stop it, and there is time and reason to let it run on.
    fn may_adopt(&self, status: &ContainerStatus) -> bool {
        self.run.plan.spec.on_orphan == OnOrphan::Adopt
            && status.state == (ContainerState::Running { paused: false })
            && !is_marked(status)
            && !self.takeover.cancel_requested
            && self.takeover.timeout_left.is_none_or(|left| !left.is_zero())
    }

    async fn follow(&self, run: &Arc<Run>, id: &ContainerId, adopts: oneshot::Sender<Adoption>) -> Recovered {
        let (has_room, room) = oneshot::channel();
        // A LeaseActor that is gone answers nothing, and its lease is lost.
        let _ = adopts.send(Adoption { timeout: self.takeover.timeout_left, has_room });
        match room.await {
            Ok(true) => {}
            Ok(false) => return Recovered::NoRoom,
            Err(_) => return Recovered::Stopped,
        }
        tracing::info!(container = %run.plan.name, job = %self.takeover.grant.authority.job,
            "following the container of a lost lease on");
        run.switch.started(id);
        let grace = run.stop_grace() + run.limits().tidy;
        let guard = run.lease.guard_container(run.switch.clone(), grace);
        Recovered::Run(run.follow(id, guard).await)
    }

    /// Stops it, stores the rest of its output and removes it. One that ends by itself before it was asked to is
    /// taken for what it is.
    async fn stop(&self, id: &ContainerId, unmarked: bool) -> Result<Next, Trouble> {
        let name = &self.run.plan.name;
        tracing::info!(container = %name, job = %self.takeover.grant.authority.job,
            "stopping the container of a lost lease");
        let mark = timeout(MARK, self.patiently("mark", || self.engine().mark_stopped(id, name)));
        let marked = match mark.await {
            Ok(Ok(())) => true,
            Ok(Err(Trouble::Stop)) => return Err(Trouble::Stop),
            // Whatever the refusal says: the look that follows tells whether there is anything to stop.
            Ok(Err(trouble)) => {
                tracing::warn!(container = %name, ?trouble, "not marked, so it is killed");
                false
            }
            Err(_) => false,
        };
        match self.look(id).await? {
            None => return Ok(lost("its container is gone")),
            // Over before anything was asked of it: the name that the mark gave it does not count.
            Some(status) if is_over(&status) => return self.conclude(id, !unmarked).await,
            Some(_) => {}
        }
        if marked {
            self.may_act()?;
            let lease = self.takeover.grant.lease;
            // One whose stop was begun before, and broke off, has had its time or a part of it; and a lease past a
            // deadline of its job is not extended for ever.
            // What a task's own grace is, its recipe knows.
            let whole = unmarked && self.run.task.is_none();
            let grace = if whole { self.run.stop_grace() } else { self.run.stop_grace().min(lease / 2) };
            let stopped = self.run.call("stop", grace + CALL, self.engine().stop(id, grace)).await;
            if let Err(error) = stopped {
                tracing::warn!(container = %name, %error, "not stopped, so it is killed");
            }
        }
        loop {
            match self.look(id).await? {
                None => return Ok(lost("its container is gone")),
                Some(status) if is_over(&status) => break,
                Some(_) => {}
            }
            match self.patiently("kill", || self.engine().kill(id)).await {
                Err(Trouble::Engine(error)) if error.kind == EngineErrorKind::NoSuchContainer => {}
                other => other?,
            }
            tokio::time::sleep(FIRST_WAIT).await;
        }
        self.collect(id, None).await?;
        self.remove(id).await?;
        Ok(lost("the worker that ran it let its lease expire; its container was stopped"))
    }

    // -- one that has ended -----------------------------------------------------------------------------

    /// Stores the rest of the output, and says whose exit it was. It is removed only when that is reported: until
    /// then its exit is the only record of what the program did.
    async fn conclude(&self, id: &ContainerId, marked: bool) -> Result<Next, Trouble> {
        // Asked by a wait, which also looks for evidence of a lack of memory.
        let mut status = match self.patiently("wait", || self.engine().wait(id)).await {
            Ok(status) => status,
            Err(Trouble::Engine(error)) if error.kind == EngineErrorKind::NoSuchContainer => {
                return match self.look(id).await? {
                    None => Ok(lost("its container is gone")),
                    Some(_) => Err(Trouble::Engine(error)),
                };
            }
            Err(trouble) => return Err(trouble),
        };
        if !marked {
            status.name.clone_from(&self.run.plan.name);
        }
        let verdict = verdict(&Exit { status, outage: false });
        let is_its_own =
            !matches!(&verdict.outcome, WorkOutcome::Failed(failure) if failure.kind == FailureKind::System);
        if let Some(task) = self.task.as_ref().filter(|task| is_its_own && self.waits_for_its_record(task))
            && let Err(reason) = task.telling()
        {
            let reason = format!("{}: {reason}", task.container.path);
            return Ok(Next::Done(Recovered::NotHere { reason }));
        }
        self.collect(id, verdict.remark.as_deref()).await?;
        let afterwards = self.removal(id);
        Ok(Next::Done(match verdict.outcome {
            WorkOutcome::Failed(Failure { kind: FailureKind::System, message, .. }) => {
                Recovered::Lost { message, afterwards: Some(afterwards) }
            }
            outcome => Recovered::Ended { outcome, afterwards },
        }))
    }

    fn removal(&self, id: &ContainerId) -> Afterwards {
        let (go, gone) = oneshot::channel();
        let (run, id) = (Arc::clone(&self.run), id.clone());
        tokio::spawn(async move {
            if gone.await.is_ok() {
                run.remove(&id).await;
            }
        });
        Afterwards(go)
    }

    /// Stores what is not stored yet of the output of a container that has ended.
    async fn collect(&self, id: &ContainerId, remark: Option<&str>) -> Result<(), Trouble> {
        let run = self.going_on().await?;
        if let Some(Err(reason)) = self.task.as_ref().map(TaskRecovery::telling) {
            let words = format!(
                "the worker that ran this task was lost; what it printed since then is not stored: {reason}"
            );
            run.journal.remark(&words).await;
            return self.may_act();
        }
        let (_over, over) = watch::channel(true);
        LogPump::new(&run, id, over).run().await;
        if let Some(remark) = remark {
            run.journal.remark(remark).await;
        }
        // A pump that was refused has stored nothing more, and says nothing.
        self.may_act()
    }

    /// The run as one whose output goes on from what is stored.
    async fn going_on(&self) -> Result<Arc<Run>, Trouble> {
        let stored = self.stored().await?;
        let (node, lease) = (Arc::clone(&self.run.node), self.run.lease.clone());
        let task = self.run.task.clone();
        let key = task.as_ref().map(|task| task.key.clone());
        let journal = Journal::new(lease.clone(), self.run.limits().store_call, stored.system, key);
        let (plan, switch) = (self.run.plan.clone(), Arc::clone(&self.run.switch));
        Ok(Arc::new(Run { node, lease, plan, switch, journal, stored, task }))
    }

    /// Asked under the new lease: nothing of an older one is stored any more.
    async fn stored(&self) -> Result<LogOffsets, Trouble> {
        let mut pause = FIRST_WAIT;
        loop {
            self.may_act()?;
            let key = self.run.task.as_ref().map(|task| &task.key);
            match timeout(self.run.limits().store_call, self.run.lease.log_offsets(key)).await {
                Ok(Ok(StoredLogs::Offsets(stored))) => return Ok(stored),
                Ok(Ok(StoredLogs::NotLive) | Err(LeaseCallError::Lost)) => return Err(Trouble::Stop),
                Ok(Err(LeaseCallError::Store(error))) => tracing::debug!(%error, "what output is stored?"),
                Err(_) => tracing::debug!("no answer to what output is stored, asking again"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_WAIT);
        }
    }

    // -- one whose runtime is unavailable ---------------------------------------------------------------

    /// One bounded attempt to end what may still run; what it does not reach is left to the node's agent.
    async fn last_attempt(&self) -> Result<Next, Trouble> {
        self.may_act()?;
        let attempt = async {
            self.check_engine().await?;
            let found = match &self.container {
                Some(id) => vec![id.clone()],
                None => self.labelled().await?,
            };
            for id in found {
                // Unmarked it is killed all the same: a SIGKILL is never taken for its own end.
                let _ = timeout(MARK, self.engine().mark_stopped(&id, &self.run.plan.name)).await;
                if let Err(trouble) = self.patiently("kill", || self.engine().kill(&id)).await {
                    tracing::warn!(container = %id, ?trouble, "not killed, so it is removed by force");
                }
                self.remove(&id).await?;
            }
            Ok(())
        };
        let what = match timeout(LAST_ATTEMPT, attempt).await {
            Ok(Ok(())) => "what was left of it is removed".to_owned(),
            Ok(Err(Trouble::Stop)) => return Err(Trouble::Stop),
            Ok(Err(Trouble::Engine(error))) => error.to_string(),
            Ok(Err(Trouble::OtherEngine(words))) => words,
            Err(_) => format!("its engine did not answer within {LAST_ATTEMPT:?}"),
        };
        Ok(lost(format!("its runtime node {} is unavailable: {what}", self.run.node.placement.node)))
    }

    // -- what all rows share ----------------------------------------------------------------------------

    fn engine(&self) -> &dyn ContainerEngine {
        self.run.engine()
    }

    /// The look at the lease before every effect.
    fn may_act(&self) -> Result<(), Trouble> {
        self.run.may_act().map_err(|_| Trouble::Stop)
    }

    /// Calls the engine, and again for a while if it does not answer.
    async fn patiently<T, F>(
        &self,
        operation: &'static str,
        mut call: impl FnMut() -> F,
    ) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, EngineError>>,
    {
        let mut patience = Patience::of(PATIENCE);
        loop {
            self.may_act()?;
            match self.run.call(operation, CALL, call()).await {
                Ok(answer) => return Ok(answer),
                Err(error) if is_passing(&error) && patience.wait().await => {}
                Err(error) => return Err(Trouble::Engine(error)),
            }
        }
    }

    /// None also for what does not carry the labels of this job: it is nothing of ours.
    async fn look(&self, id: &ContainerId) -> Result<Option<ContainerStatus>, Trouble> {
        let found = self.patiently("inspect", || self.engine().inspect(id)).await?;
        Ok(found.filter(|status| self.labels_of_the_job().iter().all(|label| status.labels.contains(label))))
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), Trouble> {
        match self.patiently("remove", || self.engine().remove(id)).await {
            Err(Trouble::Engine(error)) if error.kind == EngineErrorKind::NoSuchContainer => Ok(()),
            other => other,
        }
    }

    /// The containers of this job's claims up to the one that was lost.
    async fn labelled(&self) -> Result<Vec<ContainerId>, Trouble> {
        let labels = self.labels_of_the_job();
        let found = self.patiently("list", || self.engine().list(&labels)).await?;
        let ours = found.into_iter().filter(|status| {
            let epoch = status.labels.iter().find(|(key, _)| key == "leasehold.epoch");
            let epoch = epoch.and_then(|(_, value)| value.parse().ok()).map(Epoch);
            epoch.is_some_and(|epoch| epoch <= self.claim)
        });
        Ok(ours.map(|status| status.id).collect())
    }

    fn labels_of_the_job(&self) -> Vec<(String, String)> {
        // A CONTAINER job has one container, and so has each task of a recipe.
        let of_a_task = self.run.task.is_some();
        let of_the_job = |key: &str| {
            matches!(key, "leasehold.fleet" | "leasehold.namespace" | "leasehold.job")
                || of_a_task && key == "leasehold.task"
        };
        self.run.plan.labels.iter().filter(|(key, _)| of_the_job(key)).cloned().collect()
    }
}

/// Whether somebody has begun to stop it.
fn is_marked(status: &ContainerStatus) -> bool {
    status.name.ends_with(".stopped")
}

fn lost(message: impl Into<String>) -> Next {
    Next::Done(Recovered::Lost { message: message.into(), afterwards: None })
}
