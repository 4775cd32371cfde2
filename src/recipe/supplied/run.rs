//! The run itself: validates, redeems, holds, and finds out how it ended.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use leasehold_actors::{
    clock::Anchor,
    domain::{CommandId, Failure, FailureKind, JobKind, JobState, LeaseToken, lease::StopReason},
    error::{StoreError, StoreErrorKind},
    ports::{
        Authority, End, Ended, Grant, LeaseStore, Reconciliation, WorkRunner,
        recipe::{HeldLease, JsonText, LeaseRead, RecipeStore, Redeemed},
    },
    supplied::{LeaseNotice, LeaseOver, SuppliedLease, SuppliedParts},
    work::{LeaseContext, WorkOutcome},
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
};

use tokio_util::sync::CancellationToken;

use super::{
    Given, Listener, LostLease, Refused, RunContext, RunEnd, RunPhase, RunRequest, Supplied, Unanswered,
};
use crate::{
    recipe::execution::{ExecutionHandoff, LeaseEvent, RecipeEngine, RunWatch, Waiting},
    workload,
};

/// Between two tries of a call without an answer.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// So many store timeouts are waited for an answer that says whether the lease is live at all.
const LOOKS: u32 = 4;

/// How long work that is told to stop may take: after a drain's grace, and at once.
const STOP_IN: Duration = Duration::from_secs(4);
const STOP_NOW_LIMIT: Duration = Duration::from_secs(2);

/// As [`super::run_with_lease`], on the arbiter of the calling thread (an actix system's).
pub async fn run_here(ctx: RunContext, lease: Supplied, request: RunRequest, listener: Listener) -> RunEnd {
    let held = match validate(&ctx, &lease, &request).await {
        Ok(held) => held,
        Err(end) => return *end,
    };
    hold(ctx, held, request, listener).await
}

// ---------------------------------------------------------------------------------------------------
// Before anything starts
// ---------------------------------------------------------------------------------------------------

/// Validates the lease, and redeems an imported one. What is uncertain is no lease.
async fn validate(
    ctx: &RunContext,
    lease: &Supplied,
    request: &RunRequest,
) -> Result<HeldLease, Box<RunEnd>> {
    let authority = lease.authority();
    let owner = &authority.owner;
    let refused = |why| Err(Box::new(RunEnd::Refused(why)));
    request.check(lease).map_err(|why| Box::new(RunEnd::Refused(why)))?;
    let look = || ctx.store.read_lease(authority);
    let limit = ctx.timings.store_timeout * LOOKS;
    let asked = Anchor::now();
    let read = until_answered(ctx, RunPhase::Validation, limit, look).await?;
    let mut held = match read {
        LeaseRead::Live(held) => *held,
        LeaseRead::NotLive => return refused(Refused::NotLive),
        LeaseRead::JobNotFound => {
            return refused(Refused::JobNotFound { namespace: owner.namespace.clone(), job: authority.job });
        }
    };
    let grant = &held.grant;
    if grant.kind != JobKind::Recipe {
        return refused(Refused::WrongKind { kind: grant.kind });
    }
    let served = |route: &leasehold_actors::domain::Route| {
        route.kind == grant.route.kind && route.name == grant.route.name
    };
    if !request.routes.iter().any(served) {
        return refused(Refused::RouteNotServed { route: grant.route.clone() });
    }
    if matches!(lease, Supplied::Imported(_)) {
        // Asked again under its command for as long as the lease can live.
        let limit = asked.after(held.remaining).remaining();
        let (command, token) = (CommandId::generate(), LeaseToken::generate());
        let redeem = || ctx.store.redeem(authority, command, &token);
        match until_answered(ctx, RunPhase::Redemption, limit, redeem).await? {
            Redeemed::Redeemed { .. } => held.grant.authority.token = token,
            Redeemed::NotLive => return refused(Refused::NotLive),
        }
    }
    Ok(held)
}

/// Asks until there is an answer, a refusal, or no time left.
async fn until_answered<T, F>(
    ctx: &RunContext,
    phase: RunPhase,
    limit: Duration,
    ask: impl Fn() -> F,
) -> Result<T, Box<RunEnd>>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let deadline = tokio::time::Instant::now() + limit;
    let unknown =
        |error: &StoreError| Box::new(RunEnd::Unknown(Unanswered::of(phase, &ctx.destination, error)));
    let mut wait = FIRST_RETRY;
    loop {
        let answer = tokio::time::timeout(ctx.timings.store_timeout, ask()).await;
        let error = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if !error.is_retryable() => return Err(unknown(&error)),
            Ok(Err(error)) => error,
            Err(_) => no_answer(ctx.timings.store_timeout),
        };
        tracing::warn!(%error, %phase, "no answer, asking again");
        if tokio::time::Instant::now() + wait >= deadline || ctx.stop.now.is_cancelled() {
            return Err(unknown(&error));
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_RETRY);
    }
}

fn no_answer(after: Duration) -> StoreError {
    StoreError {
        operation: "call",
        kind: StoreErrorKind::Timeout,
        applied: leasehold_actors::error::Applied::Maybe,
        message: format!("no answer within {after:?}"),
    }
}

// ---------------------------------------------------------------------------------------------------
// Under the lease
// ---------------------------------------------------------------------------------------------------

/// Runs the recipe, and keeps what it came to.
struct Runner {
    engine: Arc<RecipeEngine>,
    threads: Handle,
    watch: Arc<RunWatch>,
    outcome: Mutex<Option<WorkOutcome>>,
}

#[async_trait]
impl WorkRunner for Runner {
    async fn run(&self, grant: Arc<Grant>, lease: LeaseContext) -> WorkOutcome {
        let watch = Arc::clone(&self.watch);
        let outcome = workload::recipe::run(&self.engine, grant, lease, &self.threads, watch).await;
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome.clone());
        outcome
    }
}

/// What was seen of the lease.
#[derive(Default)]
struct Seen {
    started: bool,
    stopping: Option<StopReason>,
    not_live: bool,
    /// The last call without an answer, unless another was answered since.
    no_answer: Option<StoreError>,
    why_given: Option<Given>,
}

async fn hold(ctx: RunContext, held: HeldLease, request: RunRequest, listener: Listener) -> RunEnd {
    // One row of events, whoever tells them; and a listener that takes its time holds up nobody.
    let (events, mut told) = mpsc::unbounded_channel::<LeaseEvent>();
    let over = CancellationToken::new();
    let is_over = over.clone();
    let telling = ctx.threads.spawn(async move {
        loop {
            let event = tokio::select! {
                // First: what has happened is told also when it is over.
                biased;
                event = told.recv() => event,
                () = is_over.cancelled() => None,
            };
            let Some(event) = event else { return };
            listener(&event);
        }
    });
    let end = hold_and_tell(ctx, held, request, events).await;
    over.cancel();
    if let Err(error) = telling.await {
        tracing::error!(%error, "the listener failed, and was told nothing more");
    }
    end
}

async fn hold_and_tell(
    ctx: RunContext,
    held: HeldLease,
    request: RunRequest,
    events: mpsc::UnboundedSender<LeaseEvent>,
) -> RunEnd {
    let handoff: Arc<Mutex<Option<ExecutionHandoff>>> = Arc::default();
    let watch = {
        let (events, handoff) = (events.clone(), Arc::clone(&handoff));
        let tell = move |event: LeaseEvent| {
            if let LeaseEvent::Handoff(told) = &event {
                *handoff.lock().unwrap_or_else(PoisonError::into_inner) = Some((**told).clone());
            }
            // Nobody listens any more.
            let _ = events.send(event);
        };
        Arc::new(RunWatch::new(tell, request.before_run.clone()))
    };
    let runner = Arc::new(Runner {
        engine: Arc::clone(&ctx.engine),
        threads: ctx.threads.clone(),
        watch: Arc::clone(&watch),
        outcome: Mutex::new(None),
    });
    let (stuck_tell, stuck) = watch::channel(false);
    let authority = held.grant.authority.clone();
    let store: Arc<dyn LeaseStore> = Arc::clone(&ctx.store) as Arc<dyn LeaseStore>;
    let parts = SuppliedParts {
        store,
        runner: Arc::clone(&runner) as Arc<dyn WorkRunner>,
        start_node: ctx.start_node,
        on_notice: Box::new(move |notice| {
            let event = match notice {
                LeaseNotice::Renewed { remaining } => LeaseEvent::Renewed { remaining },
                LeaseNotice::Stopping(StopReason::LeaseLost) => LeaseEvent::Lost,
                _ => return,
            };
            let _ = events.send(event);
        }),
        on_stuck: Box::new(move |_, _| {
            stuck_tell.send_replace(true);
        }),
        timings: ctx.timings.fitted(held.grant.lease),
        retry_defaults: ctx.retry_defaults,
    };
    let mut lease = match SuppliedLease::hold(parts, held.grant, held.timeout_left) {
        Ok(lease) => lease,
        Err(error) => return RunEnd::broken(format!("the operating system gave no thread: {error}")),
    };
    let orders = Orders { stop: ctx.stop.clone(), grace: ctx.grace, deadline: request.deadline };
    let mut seen = Seen::default();
    let over = follow(&mut lease, &orders, stuck, &mut seen).await;
    let outcome = runner.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
    let handoff = handoff.lock().unwrap_or_else(PoisonError::into_inner).take();
    let found = Found { seen, outcome, handoff, watch };
    drop(lease);
    match over {
        Followed::Over(over) => {
            found.end(&*ctx.store, &authority, &ctx.destination, ctx.timings.store_timeout, over).await
        }
        Followed::Stuck => {
            RunEnd::broken("the work does not end although it was ended by force; end this process")
        }
        Followed::Died => {
            RunEnd::broken("the part of this program that held the lease has failed; see the log")
        }
        Followed::NotConfirmed => RunEnd::Unknown(Unanswered::silent(
            RunPhase::Report,
            "end",
            &ctx.destination,
            "the end was not confirmed in time",
        )),
    }
}

/// When the work is to stop.
struct Orders {
    stop: super::RunStop,
    grace: Duration,
    deadline: Option<Duration>,
}

enum Followed {
    Over(LeaseOver),
    /// The work cannot be ended.
    Stuck,
    /// The LeaseActor is gone without a word.
    Died,
    /// It had to end at once, and there was no answer in time.
    NotConfirmed,
}

/// Follows the lease to its end, and carries out the orders to stop.
async fn follow(
    lease: &mut SuppliedLease,
    orders: &Orders,
    mut stuck: watch::Receiver<bool>,
    seen: &mut Seen,
) -> Followed {
    let stuck = async move { drop(stuck.wait_for(|stuck| *stuck).await) };
    let deadline = async {
        match orders.deadline {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let drained = async {
        orders.stop.drain.cancelled().await;
        tokio::time::sleep(orders.grace).await;
    };
    let (mut stuck, mut deadline, mut drained) =
        (std::pin::pin!(stuck), std::pin::pin!(deadline), std::pin::pin!(drained));
    let late = tokio::time::sleep(Duration::MAX);
    let mut late = std::pin::pin!(late);
    let mut stopped = None;
    loop {
        tokio::select! {
            biased;
            notice = lease.next() => match notice {
                Some(LeaseNotice::Over(over)) => return Followed::Over(over),
                Some(notice) => seen.see(notice),
                None => return Followed::Died,
            },
            () = &mut stuck => return Followed::Stuck,
            () = &mut late, if stopped == Some(Duration::ZERO) => return Followed::NotConfirmed,
            () = orders.stop.now.cancelled(), if stopped != Some(Duration::ZERO) => {
                stopped = Some(Duration::ZERO);
                seen.why_given.get_or_insert(Given::Stopped);
                lease.stop(Duration::ZERO);
                late.as_mut().reset(tokio::time::Instant::now() + STOP_NOW_LIMIT);
            }
            () = &mut deadline, if stopped.is_none() => {
                stopped = Some(STOP_IN);
                seen.why_given.get_or_insert(Given::Deadline);
                lease.stop(STOP_IN);
            }
            () = &mut drained, if stopped.is_none() => {
                stopped = Some(STOP_IN);
                seen.why_given.get_or_insert(Given::Stopped);
                lease.stop(STOP_IN);
            }
        }
    }
}

impl Seen {
    fn see(&mut self, notice: LeaseNotice) {
        match notice {
            LeaseNotice::Renewed { .. } => {
                self.started = true;
                self.no_answer = None;
            }
            LeaseNotice::NotLive => {
                self.not_live = true;
                self.no_answer = None;
            }
            LeaseNotice::NoAnswer(error) => self.no_answer = Some(error),
            LeaseNotice::Stopping(why) => self.stopping = Some(why),
            LeaseNotice::Over(_) => {}
        }
    }
}

// ---------------------------------------------------------------------------------------------------
// How it ended
// ---------------------------------------------------------------------------------------------------

/// All that is known when the lease is over.
struct Found {
    seen: Seen,
    outcome: Option<WorkOutcome>,
    handoff: Option<ExecutionHandoff>,
    watch: Arc<RunWatch>,
}

impl Found {
    async fn end(
        self,
        store: &dyn RecipeStore,
        authority: &Authority,
        destination: &str,
        timeout: Duration,
        over: LeaseOver,
    ) -> RunEnd {
        let phase = if self.seen.started { RunPhase::Renewal } else { RunPhase::FirstRenewal };
        let silent = |phase, error: Option<&StoreError>| {
            RunEnd::Unknown(match error {
                Some(error) => Unanswered::of(phase, destination, error),
                None => Unanswered::silent(phase, "renew", destination, "no answer before the lease ran out"),
            })
        };
        match over {
            LeaseOver::Ended(ended) => self.ended(ended),
            LeaseOver::NeverHeld if self.seen.not_live => RunEnd::Refused(Refused::NotLive),
            LeaseOver::NeverHeld => silent(phase, self.seen.no_answer.as_ref()),
            LeaseOver::Unconfirmed => silent(RunPhase::Report, self.seen.no_answer.as_ref()),
            LeaseOver::Exported => RunEnd::Lost(LostLease::NotLive),
            LeaseOver::Lost if self.seen.not_live => RunEnd::Lost(LostLease::NotLive),
            LeaseOver::Lost => {
                let notes = self.watch.notes();
                // Whose word it was decides; where nobody has spoken, the database is asked once more.
                match tokio::time::timeout(timeout, store.reconcile(authority)).await {
                    Ok(Ok(Reconciliation::Live { .. })) => match (notes.not_admitted, notes.not_given_back) {
                        (Some(reason), _) => RunEnd::Refused(Refused::NotAdmitted(reason)),
                        (None, Some(reason)) => RunEnd::Unknown(Unanswered::silent(
                            RunPhase::Report,
                            "reschedule",
                            destination,
                            reason,
                        )),
                        (None, None) if self.seen.no_answer.is_some() => {
                            silent(phase, self.seen.no_answer.as_ref())
                        }
                        (None, None) => RunEnd::Lost(LostLease::RanOut),
                    },
                    Ok(Ok(Reconciliation::Changed)) => RunEnd::Lost(LostLease::NotLive),
                    Ok(Ok(Reconciliation::Expired)) if self.seen.no_answer.is_some() => {
                        silent(phase, self.seen.no_answer.as_ref())
                    }
                    Ok(Ok(Reconciliation::Expired)) => RunEnd::Lost(LostLease::RanOut),
                    Ok(Err(error)) => silent(phase, self.seen.no_answer.as_ref().or(Some(&error))),
                    Err(_) => silent(phase, self.seen.no_answer.as_ref()),
                }
            }
        }
    }

    /// The database has answered to the report.
    fn ended(self, ended: Ended) -> RunEnd {
        let failure = match &self.outcome {
            Some(WorkOutcome::Failed(failure) | WorkOutcome::FailedForGood(failure)) => Some(failure.clone()),
            _ if self.seen.stopping == Some(StopReason::TimedOut) => {
                Some(Failure::new(FailureKind::Timeout, "timeout", "the attempt ran longer than its timeout"))
            }
            _ => None,
        };
        match ended {
            Ended::Terminal(JobState::Completed) => RunEnd::Completed {
                output: match self.outcome {
                    Some(WorkOutcome::Completed { output, .. }) => output.map(JsonText::from),
                    _ => None,
                },
            },
            Ended::Terminal(JobState::Canceled) => RunEnd::Canceled,
            Ended::Terminal(_) => RunEnd::Failed(failure.unwrap_or_else(|| {
                // Decided in the database: the only end that a handoff can have beside its own.
                Failure::new(
                    FailureKind::System,
                    "handoff_loop",
                    "the job was handed off too often with nothing recorded between; see `leasehold job why`",
                )
            })),
            Ended::Retrying { at } => RunEnd::Retrying { failure, at },
            Ended::Released => {
                let held_back = self.watch.notes().held_back.map(Given::BeforeRun);
                RunEnd::Released(held_back.or(self.seen.why_given).unwrap_or(Given::Stopped))
            }
            Ended::Rescheduled => self.rescheduled(),
            Ended::NotLive => RunEnd::Lost(LostLease::NotLive),
            Ended::PayloadConflict { .. } => RunEnd::broken("the report of the end was refused"),
        }
    }

    fn rescheduled(self) -> RunEnd {
        if let Some(handoff) = self.handoff {
            return RunEnd::EnvironmentRequired(Box::new(handoff));
        }
        match self.outcome {
            Some(WorkOutcome::GoesOn { end }) => match *end {
                End::Reschedule { wake, .. } if !wake.is_empty() => RunEnd::Waiting(Waiting::of(&wake)),
                End::Reschedule { route: Some(route), .. } => RunEnd::OtherRoute { route },
                _ => RunEnd::broken("the job was rescheduled, and nobody here asked for that"),
            },
            _ => RunEnd::broken("the job was rescheduled, and nobody here asked for that"),
        }
    }
}
