//! Crash points: every place between two calls of a worker to its store or to a container engine has a name,
//! and at a named one the process can be killed, stopped, made to panic, or made to lose the call or its answer.
//!
//! The store and the engine are ports, so wrappers around them see every call; the traits have no default
//! methods, so a new method does not compile here until it has a name. A point is the name of a call and a side:
//! `store.renew.first.before`, `engine.create.after`. What differs in meaning differs in name: the renewal that
//! confirms a grant is `store.renew.first`, a repeat under a command id ends in `.replay`, and an end names how
//! the lease ended.
//!
//! Calls that look for work (`dispatch`, `claim`, `recover`) have a point after them only when they found some.
//!
//! Recipes have points of their own ([`RECIPE_CALLS`]), each at a *place*, the path of a task or where a job goes on:
//! `recipe.record.task.after@loop/poll#2`. Those of the durable log are around the store; those inside a worker
//! (`recipe.effect`, `recipe.stage`, `recipe.recorded`, `recipe.callback`) it comes by itself ([`CrashPoints::come_by`]).

mod engine;
mod recipe;
mod store;

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::watch;

use crate::{
    error::{Applied, EngineError, EngineErrorKind, StoreError, StoreErrorKind},
    ports::{EngineFactory, LeaseStore, recipe::RecipeStore},
};

/// Every call that has points around it. A test compares these with the calls that jobs really make.
pub const CALLS: &[&str] = &[
    "store.dispatch",
    "store.claim",
    "store.claim.replay",
    "store.claim_listed",
    "store.claim_listed.replay",
    "store.renew.first",
    "store.renew",
    "store.attach",
    "store.append_logs",
    "store.log_offsets",
    "store.report_progress",
    "store.end.complete",
    "store.end.fail",
    "store.end.cancel",
    "store.end.release",
    "store.end.lost",
    "store.end.reschedule",
    "store.recover",
    "store.recover.replay",
    "store.postpone_recovery",
    "store.reconcile",
    "engine.info",
    "engine.ensure_image",
    "engine.create",
    "engine.start",
    "engine.inspect",
    "engine.wait",
    "engine.logs",
    "engine.mark_stopped",
    "engine.stop",
    "engine.kill",
    "engine.remove",
    "engine.list",
];

/// Every call of a recipe that has points around it.
pub const RECIPE_CALLS: &[&str] = &[
    "recipe.read",
    "recipe.history",
    "recipe.record.task",
    "recipe.record.timer_set",
    "recipe.record.timer_fired",
    "recipe.record.signal",
    "recipe.record.child_started",
    "recipe.record.child_ended",
    "recipe.refuse",
    "recipe.reschedule",
    "recipe.effect",
    "recipe.stage",
    "recipe.recorded",
    "recipe.callback",
];

/// Before a call is made, or after it was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The call has not been made.
    Before,
    /// The call has been made and answered; the caller does not have the answer yet.
    After,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Before, Self::After];
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "before",
            Self::After => "after",
        })
    }
}

/// What happens at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// SIGKILL to this process.
    Kill,
    /// SIGSTOP to this process; somebody else continues it.
    Stop,
    /// The caller's task panics.
    Panic,
    /// Before a call: it is not made, and the caller cannot tell.
    RequestLost,
    /// After a call: the caller gets no answer, and cannot tell whether it was made.
    ReplyLost,
    /// After a call: the caller gets the answer this much later.
    ReplyLate(Duration),
    /// After a call: the caller gets the answer once the worker knows that a job of its shall be cancelled.
    ReplyAtCancel,
    /// The call never comes back: to whoever asked, this process is dead.
    Hang,
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill => f.write_str("kill"),
            Self::Stop => f.write_str("stop"),
            Self::Panic => f.write_str("panic"),
            Self::RequestLost => f.write_str("request-lost"),
            Self::ReplyLost => f.write_str("reply-lost"),
            Self::ReplyLate(late) => write!(f, "reply-late:{}", late.as_millis()),
            Self::ReplyAtCancel => f.write_str("reply-at-cancel"),
            Self::Hang => f.write_str("hang"),
        }
    }
}

/// A deed at a point, a number of times; written `store.end.complete.before=request-lost*3`, or with a place
/// `recipe.record.task.before@loop/poll#2=kill*1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// One of [`CALLS`] or [`RECIPE_CALLS`].
    pub call: String,
    /// Which side of it.
    pub side: Side,
    /// What happens there.
    pub deed: Deed,
    /// How many times, one after the other.
    pub times: u32,
    /// Only at this place; anywhere, when none is given.
    pub place: Option<String>,
}

impl Fault {
    /// A deed that is done once.
    #[must_use]
    pub fn once(call: &str, side: Side, deed: Deed) -> Self {
        Self { call: call.to_owned(), side, deed, times: 1, place: None }
    }

    /// A deed that is done once, at one place.
    #[must_use]
    pub fn at(call: &str, side: Side, place: &str, deed: Deed) -> Self {
        Self { place: Some(place.to_owned()), ..Self::once(call, side, deed) }
    }

    fn is_due_at(&self, call: &str, side: Side, place: Option<&str>) -> bool {
        let here = self.place.as_deref().is_none_or(|wanted| Some(wanted) == place);
        self.times > 0 && self.call == call && self.side == side && here
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.call, self.side)?;
        if let Some(place) = &self.place {
            write!(f, "@{place}")?;
        }
        write!(f, "={}*{}", self.deed, self.times)
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text}: write it like store.renew.first.before=kill*1");
        let (point, rest) = text.split_once('=').ok_or_else(bad)?;
        let (point, place) = match point.split_once('@') {
            Some((point, place)) => (point, Some(place.to_owned())),
            None => (point, None),
        };
        let (call, side) = point.rsplit_once('.').ok_or_else(bad)?;
        let (deed, times) = rest.split_once('*').ok_or_else(bad)?;
        let (deed, late) = deed.split_once(':').unwrap_or((deed, "0"));
        if !CALLS.contains(&call) && !RECIPE_CALLS.contains(&call) {
            return Err(format!("{call} is no call that has points"));
        }
        Ok(Self {
            call: call.to_owned(),
            side: Side::ALL.into_iter().find(|known| known.to_string() == side).ok_or_else(bad)?,
            deed: match deed {
                "kill" => Deed::Kill,
                "stop" => Deed::Stop,
                "panic" => Deed::Panic,
                "request-lost" => Deed::RequestLost,
                "reply-lost" => Deed::ReplyLost,
                "reply-at-cancel" => Deed::ReplyAtCancel,
                "hang" => Deed::Hang,
                "reply-late" => Deed::ReplyLate(Duration::from_millis(late.parse().map_err(|_| bad())?)),
                _ => return Err(bad()),
            },
            times: times.parse().map_err(|_| bad())?,
            place,
        })
    }
}

/// What wraps the ports of one worker. Clones share the plan and the record.
#[derive(Debug, Clone)]
pub struct CrashPoints {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// How many deeds have been done.
    done: watch::Sender<u32>,
    canceled: watch::Sender<Cancel>,
}

/// Whether a cancel has come to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cancel {
    Unknown,
    /// A renewal was answered with it.
    Told,
    /// The next renewal was asked for: what was told before has been acted upon.
    Known,
}

#[derive(Debug)]
struct State {
    faults: Vec<Fault>,
    reached: BTreeMap<String, u32>,
}

impl CrashPoints {
    /// Does what the plan says: the deeds of one point in their order, those of different points as they come.
    #[must_use]
    pub fn with(faults: impl IntoIterator<Item = Fault>) -> Self {
        let state = State { faults: faults.into_iter().collect(), reached: BTreeMap::new() };
        let shared = Shared {
            state: Mutex::new(state),
            done: watch::Sender::new(0),
            canceled: watch::Sender::new(Cancel::Unknown),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Does nothing but take note of every point.
    #[must_use]
    pub fn recording() -> Self {
        Self::with([])
    }

    /// The store with points around its calls.
    #[must_use]
    pub fn store(&self, inner: Arc<dyn LeaseStore>) -> Arc<dyn LeaseStore> {
        Arc::new(store::Pointed::new(inner, self.clone()))
    }

    /// The store as recipes see it, with points around the calls of the durable log.
    #[must_use]
    pub fn recipes(&self, inner: Arc<dyn RecipeStore>) -> Arc<dyn RecipeStore> {
        Arc::new(recipe::Pointed::new(inner, self.clone()))
    }

    /// For a point that is around no call of a port: what can be done to a process is done, and nothing can be lost.
    pub fn come_by(&self, call: &'static str, side: Side, place: &str) {
        let _nothing_to_lose = self.reach(call, side, Some(place));
    }

    /// The engines with points around their calls.
    #[must_use]
    pub fn engines(&self, inner: Arc<dyn EngineFactory>) -> Arc<dyn EngineFactory> {
        Arc::new(engine::Factory::new(inner, self.clone()))
    }

    /// Every point that was reached, and how often.
    #[must_use]
    pub fn reached(&self) -> BTreeMap<String, u32> {
        self.state().reached.clone()
    }

    /// How many deeds have been done.
    #[must_use]
    pub fn done(&self) -> u32 {
        *self.shared.done.borrow()
    }

    /// Resolves when nothing is left of the plan for this point.
    pub async fn until_done_at(&self, call: &str, side: Side) {
        let mut done = self.shared.done.subscribe();
        let left = |fault: &Fault| fault.times > 0 && fault.call == call && fault.side == side;
        // The sender lives as long as this.
        let _ = done.wait_for(|_| !self.state().faults.iter().any(left)).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The point is reached: what is to happen to the call, after what happens to the process.
    fn reach(&self, call: &'static str, side: Side, place: Option<&str>) -> Outcome {
        let deed = {
            let mut state = self.state();
            let name = match place {
                Some(place) => format!("{call}.{side}@{place}"),
                None => format!("{call}.{side}"),
            };
            *state.reached.entry(name).or_default() += 1;
            let Some(fault) = state.faults.iter_mut().find(|fault| fault.is_due_at(call, side, place)) else {
                return Outcome::Fine;
            };
            fault.times -= 1;
            fault.deed
        };
        tracing::warn!(%call, %side, %deed, "a crash point is reached");
        self.shared.done.send_modify(|done| *done += 1);
        match deed {
            Deed::Kill => signal(Signal::KILL),
            Deed::Stop => signal(Signal::STOP),
            Deed::Panic => panic!("crash point {call}.{side}"),
            Deed::RequestLost | Deed::ReplyLost => Outcome::Lost,
            Deed::ReplyLate(late) => Outcome::Late(late),
            Deed::ReplyAtCancel => Outcome::AtCancel,
            Deed::Hang => Outcome::Never,
        }
    }

    async fn until_canceled(&self) {
        let mut canceled = self.shared.canceled.subscribe();
        // The sender lives as long as this.
        let _ = canceled.wait_for(|cancel| *cancel == Cancel::Known).await;
    }

    /// A renewal is about to be asked for.
    fn renews(&self) {
        self.shared.canceled.send_if_modified(|cancel| {
            let told = *cancel == Cancel::Told;
            if told {
                *cancel = Cancel::Known;
            }
            told
        });
    }

    /// A renewal was answered with a cancel.
    fn tells_of_a_cancel(&self) {
        self.shared.canceled.send_if_modified(|cancel| {
            let news = *cancel == Cancel::Unknown;
            if news {
                *cancel = Cancel::Told;
            }
            news
        });
    }

    /// One call with its two points. `counts` says of an answer whether the point after it is on a job's way.
    async fn around<T, E: Lost>(
        &self,
        call: &'static str,
        made: impl Future<Output = Result<T, E>> + Send,
        counts: impl Fn(&T) -> bool + Send,
    ) -> Result<T, E> {
        self.around_at(call, None, made, counts).await
    }

    async fn around_at<T, E: Lost>(
        &self,
        call: &'static str,
        place: Option<&str>,
        made: impl Future<Output = Result<T, E>> + Send,
        counts: impl Fn(&T) -> bool + Send,
    ) -> Result<T, E> {
        match self.reach(call, Side::Before, place) {
            Outcome::Lost => return Err(E::lost(call)),
            Outcome::Never => std::future::pending().await,
            Outcome::Fine | Outcome::Late(_) | Outcome::AtCancel => {}
        }
        let answer = made.await;
        if answer.as_ref().is_ok_and(|answer| !counts(answer)) {
            return answer;
        }
        match self.reach(call, Side::After, place) {
            Outcome::Fine => answer,
            Outcome::Never => std::future::pending().await,
            Outcome::Lost => Err(E::lost(call)),
            Outcome::Late(late) => {
                tokio::time::sleep(late).await;
                answer
            }
            Outcome::AtCancel => {
                self.until_canceled().await;
                answer
            }
        }
    }
}

/// What becomes of the call at a point.
enum Outcome {
    Fine,
    Lost,
    Late(Duration),
    AtCancel,
    Never,
}

fn signal(signal: Signal) -> Outcome {
    kill_process(getpid(), signal).expect("a process may signal itself");
    // Stopped and continued.
    Outcome::Fine
}

/// An error that says "maybe".
trait Lost {
    fn lost(call: &'static str) -> Self;
}

impl Lost for StoreError {
    fn lost(call: &'static str) -> Self {
        Self {
            operation: call,
            kind: StoreErrorKind::Unreachable,
            applied: Applied::Maybe,
            message: "the connection broke (a crash point)".to_owned(),
        }
    }
}

impl Lost for EngineError {
    fn lost(call: &'static str) -> Self {
        Self {
            operation: call,
            kind: EngineErrorKind::Unreachable,
            applied: Applied::Maybe,
            message: "the connection broke (a crash point)".to_owned(),
            exit_code: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_as_it_is_written() {
        for fault in [
            Fault::once("store.renew.first", Side::Before, Deed::Kill),
            Fault { times: 7, ..Fault::once("engine.create", Side::After, Deed::ReplyLost) },
            Fault::once("store.claim", Side::After, Deed::ReplyLate(Duration::from_millis(1500))),
            Fault::once("engine.create", Side::After, Deed::ReplyAtCancel),
            Fault::at("recipe.record.timer_set", Side::Before, "again!1/@backoff", Deed::Hang),
        ] {
            assert_eq!(fault.to_string().parse::<Fault>(), Ok(fault));
        }
        for bad in ["store.renew.before", "store.renewal.before=kill*1", "store.renew.beside=kill*1"] {
            assert!(bad.parse::<Fault>().is_err(), "{bad}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn deeds_are_done_once_at_their_point_and_every_point_is_noted() {
        let points = CrashPoints::with([
            Fault::once("store.renew", Side::Before, Deed::RequestLost),
            Fault::once("store.renew", Side::After, Deed::ReplyLate(Duration::from_secs(5))),
            Fault::once("store.attach", Side::After, Deed::ReplyLost),
        ]);
        let made = std::sync::atomic::AtomicU32::new(0);
        let call = async |name| {
            let made = async {
                made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok::<_, StoreError>(())
            };
            points.around(name, made, |()| true).await
        };
        let begun = tokio::time::Instant::now();
        assert_eq!(call("store.renew").await.expect_err("the request is lost").applied, Applied::Maybe);
        assert_eq!((made.load(std::sync::atomic::Ordering::Relaxed), points.done()), (0, 1));
        call("store.renew").await.expect("it is late, not lost");
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
        call("store.renew").await.expect("the plan is done");
        assert_eq!(call("store.attach").await.expect_err("the reply is lost").applied, Applied::Maybe);
        assert_eq!((made.load(std::sync::atomic::Ordering::Relaxed), points.done()), (3, 3));
        points.until_done_at("store.attach", Side::After).await;
        let noted: Vec<(String, u32)> = points.reached().into_iter().collect();
        let expected = [("attach.after", 1), ("attach.before", 1), ("renew.after", 2), ("renew.before", 3)];
        assert_eq!(noted, expected.map(|(point, count)| (format!("store.{point}"), count)));
    }

    #[tokio::test]
    #[should_panic(expected = "crash point store.renew.before")]
    async fn a_panic_names_its_point() {
        let points = CrashPoints::with([Fault::once("store.renew", Side::Before, Deed::Panic)]);
        let _ = points.around("store.renew", async { Ok::<_, StoreError>(()) }, |()| true).await;
    }
}
