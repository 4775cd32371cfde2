//! A store whose requests and answers get lost: four outcomes (takes effect or not × answers or not), dealt by
//! seed, or laid down call by call ("lose the answer to the second renewal").

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    domain::{CommandId, ContainerId, Namespace, NodeId, TaskKey},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{
        Attach, Authority, ClaimAnswer, Dispatched, End, Ended, LeaseStore, ListedAnswer, ListedClaim,
        LogAppend, LogBatch, OpenClaim, Postponed, Reconciliation, RecoverAnswer, RecoverRequest, Renewal,
        StoredLogs, TaskPlace, TaskPlaced, TaskUnplaced,
    },
};

/// A call of the port, for scripts and counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`LeaseStore::dispatch`]
    Dispatch,
    /// [`LeaseStore::claim`]
    Claim,
    /// [`LeaseStore::claim_listed`]
    ClaimListed,
    /// [`LeaseStore::renew`]
    Renew,
    /// [`LeaseStore::attach`]
    Attach,
    /// [`LeaseStore::place_task`]
    PlaceTask,
    /// [`LeaseStore::attach_task`]
    AttachTask,
    /// [`LeaseStore::unplace_task`]
    UnplaceTask,
    /// [`LeaseStore::append_logs`]
    AppendLogs,
    /// [`LeaseStore::log_offsets`]
    LogOffsets,
    /// [`LeaseStore::report_progress`]
    ReportProgress,
    /// [`LeaseStore::end`]
    End,
    /// [`LeaseStore::recover`]
    Recover,
    /// [`LeaseStore::postpone_recovery`]
    PostponeRecovery,
    /// [`LeaseStore::reconcile`]
    Reconcile,
}

/// What becomes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It takes effect and is answered.
    Fine,
    /// It takes effect; the answer is lost.
    AnswerLost,
    /// It never arrives, and the caller knows that.
    Refused,
    /// It never arrives, and the caller cannot tell.
    RequestLost,
    /// It takes effect and is answered, but only after this long.
    Late(Duration),
    /// It takes effect; nothing ever comes back, not even an error.
    Silent,
}

/// How often each fate is dealt where no script says otherwise, in per cent; the rest is fine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Odds {
    /// Of [`Fate::AnswerLost`].
    pub answer_lost: u32,
    /// Of [`Fate::Refused`].
    pub refused: u32,
    /// Of [`Fate::RequestLost`].
    pub request_lost: u32,
    /// Every call takes between nothing and this long.
    pub latency: Duration,
}

/// A [`LeaseStore`] behind a bad network. Clones share scripts, dice and counters.
#[derive(Clone)]
pub struct FlakyStore {
    inner: Arc<dyn LeaseStore>,
    odds: Odds,
    state: Arc<Mutex<State>>,
}

struct State {
    dice: StdRng,
    healthy: bool,
    scripts: BTreeMap<Operation, VecDeque<Fate>>,
    calls: BTreeMap<Operation, u32>,
    faults: u32,
}

impl std::fmt::Debug for FlakyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlakyStore").field("odds", &self.odds).finish_non_exhaustive()
    }
}

impl FlakyStore {
    /// A wrapper that deals faults by seed.
    #[must_use]
    pub fn new(inner: Arc<dyn LeaseStore>, seed: u64, odds: Odds) -> Self {
        let state = State {
            dice: StdRng::seed_from_u64(seed),
            healthy: false,
            scripts: BTreeMap::new(),
            calls: BTreeMap::new(),
            faults: 0,
        };
        Self { inner, odds, state: Arc::new(Mutex::new(state)) }
    }

    /// A wrapper that does only what scripts say.
    #[must_use]
    pub fn scripted(inner: Arc<dyn LeaseStore>) -> Self {
        Self::new(inner, 0, Odds::default())
    }

    /// Lays down the fate of the next calls of one operation; after them the odds decide again.
    #[must_use]
    pub fn with(self, operation: Operation, fates: impl IntoIterator<Item = Fate>) -> Self {
        self.script(operation, fates);
        self
    }

    /// As [`Self::with`], in the middle of a test.
    pub fn script(&self, operation: Operation, fates: impl IntoIterator<Item = Fate>) {
        self.state().scripts.entry(operation).or_default().extend(fates);
    }

    /// Ends all faults, scripted ones included: a run by seed must be able to come to its end.
    pub fn heal(&self) {
        let mut state = self.state();
        state.healthy = true;
        state.scripts.clear();
    }

    /// How often an operation was called.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> u32 {
        self.state().calls.get(&operation).copied().unwrap_or(0)
    }

    /// How many calls met a fault.
    #[must_use]
    pub fn faults(&self) -> u32 {
        self.state().faults
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the dice")
    }

    fn deal(&self, operation: Operation) -> (Fate, Duration) {
        let mut state = self.state();
        *state.calls.entry(operation).or_default() += 1;
        if state.healthy {
            return (Fate::Fine, Duration::ZERO);
        }
        let delay = state.dice.random_range(Duration::ZERO..=self.odds.latency);
        let roll = state.dice.random_range(0..100);
        let scripted = state.scripts.get_mut(&operation).and_then(VecDeque::pop_front);
        let fate = scripted.unwrap_or_else(|| self.odds.fate(roll));
        if fate != Fate::Fine {
            state.faults += 1;
        }
        (fate, delay)
    }

    async fn through<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let (fate, delay) = self.deal(operation);
        // Half on the way there, half on the way back.
        pause(delay / 2).await;
        let answer = match fate {
            Fate::Refused => return Err(lost(operation, Applied::No)),
            Fate::RequestLost => return Err(lost(operation, Applied::Maybe)),
            Fate::Fine | Fate::AnswerLost | Fate::Late(_) | Fate::Silent => call.await,
        };
        pause(delay / 2).await;
        match fate {
            Fate::AnswerLost => Err(lost(operation, Applied::Maybe)),
            Fate::Silent => std::future::pending().await,
            Fate::Late(late) => {
                pause(late).await;
                answer
            }
            Fate::Fine | Fate::Refused | Fate::RequestLost => answer,
        }
    }
}

impl Odds {
    fn fate(self, roll: u32) -> Fate {
        let (lost, refused) = (self.answer_lost, self.answer_lost + self.refused);
        match roll {
            roll if roll < lost => Fate::AnswerLost,
            roll if roll < refused => Fate::Refused,
            roll if roll < refused + self.request_lost => Fate::RequestLost,
            _ => Fate::Fine,
        }
    }
}

async fn pause(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

fn lost(operation: Operation, applied: Applied) -> StoreError {
    StoreError {
        operation: operation.name(),
        kind: StoreErrorKind::Unreachable,
        applied,
        message: "the connection broke (a fault of the test)".to_owned(),
    }
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::Claim | Self::ClaimListed => "claim",
            Self::Renew => "renew",
            Self::Attach => "attach",
            Self::PlaceTask => "place_task",
            Self::AttachTask => "attach_task",
            Self::UnplaceTask => "unplace_task",
            Self::AppendLogs => "append_logs",
            Self::LogOffsets => "log_offsets",
            Self::ReportProgress => "report_progress",
            Self::End => "end",
            Self::Recover => "recover",
            Self::PostponeRecovery => "postpone_recovery",
            Self::Reconcile => "reconcile",
        }
    }
}

#[async_trait]
impl LeaseStore for FlakyStore {
    async fn dispatch(&self, namespace: &Namespace, limit: u32) -> Result<Dispatched, StoreError> {
        self.through(Operation::Dispatch, self.inner.dispatch(namespace, limit)).await
    }

    async fn claim(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        self.through(Operation::Claim, self.inner.claim(request)).await
    }

    async fn claim_listed(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        self.through(Operation::ClaimListed, self.inner.claim_listed(request)).await
    }

    async fn renew(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.through(Operation::Renew, self.inner.renew(authority)).await
    }

    async fn attach(
        &self,
        authority: &Authority,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.through(Operation::Attach, self.inner.attach(authority, node, container)).await
    }

    async fn place_task(&self, authority: &Authority, place: &TaskPlace) -> Result<TaskPlaced, StoreError> {
        self.through(Operation::PlaceTask, self.inner.place_task(authority, place)).await
    }

    async fn attach_task(
        &self,
        authority: &Authority,
        task: &TaskKey,
        node: &NodeId,
        container: &ContainerId,
    ) -> Result<Attach, StoreError> {
        self.through(Operation::AttachTask, self.inner.attach_task(authority, task, node, container)).await
    }

    async fn unplace_task(&self, authority: &Authority, task: &TaskKey) -> Result<TaskUnplaced, StoreError> {
        self.through(Operation::UnplaceTask, self.inner.unplace_task(authority, task)).await
    }

    async fn append_logs(
        &self,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
        self.through(Operation::AppendLogs, self.inner.append_logs(authority, batches)).await
    }

    async fn log_offsets(
        &self,
        authority: &Authority,
        task: Option<&TaskKey>,
    ) -> Result<StoredLogs, StoreError> {
        self.through(Operation::LogOffsets, self.inner.log_offsets(authority, task)).await
    }

    async fn report_progress(&self, authority: &Authority, progress: &str) -> Result<Renewal, StoreError> {
        self.through(Operation::ReportProgress, self.inner.report_progress(authority, progress)).await
    }

    async fn end(&self, authority: &Authority, command: CommandId, end: &End) -> Result<Ended, StoreError> {
        self.through(Operation::End, self.inner.end(authority, command, end)).await
    }

    async fn recover(&self, request: &RecoverRequest) -> Result<RecoverAnswer, StoreError> {
        self.through(Operation::Recover, self.inner.recover(request)).await
    }

    async fn postpone_recovery(
        &self,
        authority: &Authority,
        delay: Duration,
    ) -> Result<Postponed, StoreError> {
        self.through(Operation::PostponeRecovery, self.inner.postpone_recovery(authority, delay)).await
    }

    async fn reconcile(&self, authority: &Authority) -> Result<Reconciliation, StoreError> {
        self.through(Operation::Reconcile, self.inner.reconcile(authority)).await
    }
}
