//! Keeps one singleton actor alive: rebuilt from its factory, with backoff, whenever it ends unasked.
//!
//! actix's own `Supervisor` does not restart after a panic and, after a stop, restarts the same value with its
//! old state. A slot instead awaits the actor's task, learns how it ended, and starts a *new* value. What was
//! in the dead actor's mailbox is gone: every message to a singleton is a hint, or an order that the parts in
//! its factory remember.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use actix::{Actor, Addr, Context, Handler, Message, dev::ToEnvelope};
use tokio::{
    task::{AbortHandle, JoinHandle},
    time::Instant,
};

use crate::jitter;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);

/// An actor that lived this long has recovered from whatever killed its predecessors.
const LONG_ENOUGH: Duration = Duration::from_secs(30);

/// How many times in a row an actor may die young before that is fatal.
const MOST_DEATHS: u32 = 6;

/// How a singleton is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// It lives.
    Alive,
    /// It died and is about to be rebuilt.
    Rebuilding,
    /// It was asked to stop.
    Stopped,
    /// It died too often; the process has to end.
    GivenUp,
}

/// Holds the address of one singleton, whichever value of it lives at the moment. Usable from any thread.
pub struct Slot<A: Actor> {
    shared: Arc<Shared<A>>,
}

struct Shared<A: Actor> {
    name: &'static str,
    current: Mutex<Current<A>>,
    stopping: AtomicBool,
    deaths: AtomicU32,
}

struct Current<A: Actor> {
    state: SlotState,
    living: Option<(Addr<A>, AbortHandle)>,
}

impl<A: Actor> Clone for Slot<A> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<A: Actor> fmt::Debug for Slot<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("name", &self.shared.name)
            .field("state", &self.shared.lock().state)
            .finish()
    }
}

impl<A: Actor> Shared<A> {
    fn lock(&self) -> MutexGuard<'_, Current<A>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: SlotState, living: Option<(Addr<A>, AbortHandle)>) {
        let old = std::mem::replace(&mut *self.lock(), Current { state, living });
        // The old address is dropped outside the lock.
        drop(old);
    }
}

impl<A: Actor<Context = Context<A>>> Slot<A> {
    /// Starts the first value on this thread's arbiter, and guards it. `fatal` is called once, when it keeps
    /// dying.
    pub fn guard(
        name: &'static str,
        mut make: impl FnMut() -> A + 'static,
        fatal: impl FnOnce(&'static str) + 'static,
    ) -> Self {
        let current = Current { state: SlotState::Rebuilding, living: None };
        let shared = Arc::new(Shared {
            name,
            current: Mutex::new(current),
            stopping: AtomicBool::new(false),
            deaths: AtomicU32::new(0),
        });
        let slot = Self { shared: Arc::clone(&shared) };
        // The first start happens here, so that the slot is not empty for its maker.
        let mut task = start(&shared, &mut make);
        actix_rt::spawn(async move {
            let mut deaths_in_a_row = 0;
            loop {
                let born = Instant::now();
                let panicked = match task {
                    Some(task) => task.await.is_err_and(|error| error.is_panic()),
                    None => true,
                };
                if shared.stopping.load(Ordering::Acquire) {
                    return shared.set(SlotState::Stopped, None);
                }
                shared.deaths.fetch_add(1, Ordering::Relaxed);
                deaths_in_a_row = if born.elapsed() >= LONG_ENOUGH { 1 } else { deaths_in_a_row + 1 };
                if deaths_in_a_row >= MOST_DEATHS {
                    tracing::error!(actor = name, panicked, "died again and again: the process must end");
                    shared.set(SlotState::GivenUp, None);
                    return fatal(name);
                }
                let wait = jitter::backoff(FIRST_BACKOFF, LONGEST_BACKOFF, deaths_in_a_row);
                tracing::error!(actor = name, panicked, rebuild_in = ?wait, "ended unasked");
                shared.set(SlotState::Rebuilding, None);
                tokio::time::sleep(wait).await;
                if shared.stopping.load(Ordering::Acquire) {
                    return shared.set(SlotState::Stopped, None);
                }
                task = start(&shared, &mut make);
            }
        });
        slot
    }

    /// Sends a hint. Dropped silently while the actor is dead: its successor looks for itself.
    pub fn hint<M>(&self, message: M)
    where
        A: Handler<M>,
        M: Message + Send + 'static,
        M::Result: Send,
        A::Context: ToEnvelope<A, M>,
    {
        let address = self.shared.lock().living.as_ref().map(|(address, _)| address.clone());
        if let Some(address) = address {
            // A full mailbox holds hints enough.
            let _ = address.try_send(message);
        }
    }

    /// Ends the actor for good, at whatever point it is: it must be right to kill it there.
    pub fn close(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        let old = {
            let mut current = self.shared.lock();
            current.state = SlotState::Stopped;
            current.living.take()
        };
        if let Some((_, task)) = old {
            task.abort();
        }
    }

    /// Kills the present value as a defect would, for tests of what happens then.
    #[cfg(test)]
    pub(crate) fn kill(&self) {
        let current = self.shared.lock();
        current.living.as_ref().expect("it lives").1.abort();
    }

    /// How it is doing.
    #[must_use]
    pub fn state(&self) -> SlotState {
        self.shared.lock().state
    }

    /// How often it has died.
    #[must_use]
    pub fn deaths(&self) -> u32 {
        self.shared.deaths.load(Ordering::Relaxed)
    }

    /// What it is called, in logs and in health.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.shared.name
    }
}

/// Starts a value; none when its factory panicked, which counts as a death like any other.
fn start<A: Actor<Context = Context<A>>>(
    shared: &Shared<A>,
    make: &mut impl FnMut() -> A,
) -> Option<JoinHandle<()>> {
    let actor = catch_unwind(AssertUnwindSafe(make)).ok()?;
    let context = Context::<A>::new();
    let address = actix::AsyncContext::address(&context);
    let task = actix_rt::spawn(context.into_future(actor));
    shared.set(SlotState::Alive, Some((address, task.abort_handle())));
    Some(task)
}

#[cfg(test)]
mod tests;
