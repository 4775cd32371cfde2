//! Group commit: single calls in, statements for many out (D7).
//!
//! Nothing waits for company: with no statement under way a call is sent at once. While one is under way the
//! next calls gather, and go together as soon as it is back; a second statement goes out beside the first when
//! enough have gathered, or when the first takes long. What a call costs its caller is one push and one oneshot.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use leasehold_actors::error::{Applied, StoreError, StoreErrorKind};
use tokio::{runtime::Handle, sync::oneshot};

/// Rows in one statement at most.
pub(super) const MOST_ROWS: usize = 500;
/// Statements under way at most.
const MOST_IN_FLIGHT: usize = 2;
/// This many gathered rows send a second statement out beside the first.
const ENOUGH: usize = 100;
/// This long a first statement is alone, however few have gathered.
const PATIENCE: Duration = Duration::from_millis(3);

/// A call that waits for its answer.
#[derive(Debug)]
pub(super) struct Pending<Q, A> {
    pub(super) ask: Q,
    reply: oneshot::Sender<Result<A, StoreError>>,
}

impl<Q, A> Pending<Q, A> {
    pub(super) fn answer(self, answer: Result<A, StoreError>) {
        // A caller that gave up has made up its mind already: "maybe".
        let _ = self.reply.send(answer);
    }

    /// True when nobody waits any more; such a call is not sent at all.
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

type Run<Q, A> = Box<dyn Fn(Vec<Pending<Q, A>>) -> BoxFuture<'static, ()> + Send + Sync>;

/// Gathers calls of one kind.
pub(super) struct Batcher<Q, A> {
    shared: Arc<Shared<Q, A>>,
}

struct Shared<Q, A> {
    operation: &'static str,
    state: Mutex<State<Q, A>>,
    /// Sends one batch and answers each call in it.
    run: Run<Q, A>,
    /// How many rows a call is.
    rows: fn(&Q) -> usize,
    io: Handle,
}

struct State<Q, A> {
    waiting: VecDeque<Pending<Q, A>>,
    waiting_rows: usize,
    in_flight: usize,
    /// How many of those take long.
    slow: usize,
}

impl<Q, A> std::fmt::Debug for Batcher<Q, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batcher").field("operation", &self.shared.operation).finish_non_exhaustive()
    }
}

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    pub(super) fn new(
        operation: &'static str,
        io: Handle,
        rows: fn(&Q) -> usize,
        run: impl Fn(Vec<Pending<Q, A>>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        let state = State { waiting: VecDeque::new(), waiting_rows: 0, in_flight: 0, slow: 0 };
        let shared = Shared { operation, state: Mutex::new(state), run: Box::new(run), rows, io };
        Self { shared: Arc::new(shared) }
    }

    /// Asks, and waits for the answer at most `limit`. The question may be dropped at any time; what was sent
    /// then takes effect or not, as with any lost answer.
    pub(super) async fn ask(&self, ask: Q, limit: Duration) -> Result<A, StoreError> {
        let operation = self.shared.operation;
        let (reply, answer) = oneshot::channel();
        Shared::push(&self.shared, Pending { ask, reply });
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(StoreError {
                operation,
                kind: StoreErrorKind::Unreachable,
                applied: Applied::Maybe,
                message: "the store was shut down before it answered".to_owned(),
            }),
            Err(_) => Err(super::error::timed_out(operation, limit)),
        }
    }
}

impl<Q: Send + 'static, A: Send + 'static> Shared<Q, A> {
    fn lock(&self) -> std::sync::MutexGuard<'_, State<Q, A>> {
        // The lock is never held over anything that can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(this: &Arc<Self>, call: Pending<Q, A>) {
        let rows = (this.rows)(&call.ask);
        let start = {
            let mut state = this.lock();
            state.waiting.push_back(call);
            state.waiting_rows += rows;
            let reinforces = state.waiting_rows >= ENOUGH || state.slow > 0;
            let start = state.in_flight == 0 || (state.in_flight < MOST_IN_FLIGHT && reinforces);
            state.in_flight += usize::from(start);
            start
        };
        if start {
            Self::start(this);
        }
    }

    /// Starts a stream of statements; the caller has counted it.
    fn start(this: &Arc<Self>) {
        let mut stream = Stream { shared: Arc::clone(this), slow: false, ended: false };
        this.io.spawn(async move {
            while let Some(batch) = stream.shared.take() {
                let mut sent = (stream.shared.run)(batch);
                if tokio::time::timeout(PATIENCE, &mut sent).await.is_err() {
                    stream.is_slow(true);
                    Self::reinforce(&stream.shared);
                    sent.await;
                    stream.is_slow(false);
                }
            }
            stream.came_to_its_end();
        });
    }

    /// The statement under way takes long: whoever has gathered behind it goes now, and whoever comes later does not
    /// wait for it.
    fn reinforce(this: &Arc<Self>) {
        let start = {
            let mut state = this.lock();
            let start = state.in_flight < MOST_IN_FLIGHT && !state.waiting.is_empty();
            state.in_flight += usize::from(start);
            start
        };
        if start {
            Self::start(this);
        }
    }

    /// The next batch; none ends the stream (and uncounts it, under the same lock).
    fn take(&self) -> Option<Vec<Pending<Q, A>>> {
        let mut state = self.lock();
        let mut batch = Vec::with_capacity(state.waiting.len().min(MOST_ROWS));
        let mut rows = 0;
        while let Some(call) = state.waiting.front() {
            let more = (self.rows)(&call.ask);
            if !batch.is_empty() && rows + more > MOST_ROWS {
                break;
            }
            let call = state.waiting.pop_front().expect("the front was there");
            state.waiting_rows -= more;
            if call.is_abandoned() {
                continue;
            }
            rows += more;
            batch.push(call);
        }
        if batch.is_empty() {
            state.in_flight -= 1;
            return None;
        }
        Some(batch)
    }
}

/// A stream of statements that is counted as under way. It never ends silently: when it panics, or its runtime
/// ends, whoever waits behind it is told.
struct Stream<Q: Send + 'static, A: Send + 'static> {
    shared: Arc<Shared<Q, A>>,
    /// Its statement takes long, and is counted as such.
    slow: bool,
    /// Came to its regular end, where it has been uncounted.
    ended: bool,
}

impl<Q: Send + 'static, A: Send + 'static> Stream<Q, A> {
    fn is_slow(&mut self, slow: bool) {
        if self.slow != slow {
            self.slow = slow;
            let mut state = self.shared.lock();
            state.slow = if slow { state.slow + 1 } else { state.slow - 1 };
        }
    }

    fn came_to_its_end(&mut self) {
        self.ended = true;
    }
}

impl<Q: Send + 'static, A: Send + 'static> Drop for Stream<Q, A> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.is_slow(false);
        let left = {
            let mut state = self.shared.lock();
            state.in_flight -= 1;
            state.waiting_rows = 0;
            std::mem::take(&mut state.waiting)
        };
        let operation = self.shared.operation;
        for call in left {
            call.answer(Err(super::error::no_connection(operation, "the store's I/O was interrupted")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that are answered with themselves; 0 is never answered.
    fn echo() -> Batcher<u32, u32> {
        Batcher::new(
            "echo",
            Handle::current(),
            |_| 1,
            |batch| {
                Box::pin(async move {
                    for call in batch {
                        if call.ask == 0 {
                            std::future::pending::<()>().await;
                        }
                        let ask = call.ask;
                        call.answer(Ok(ask));
                    }
                })
            },
        )
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_while_a_statement_hangs_does_not_wait_for_it() {
        let (batcher, limit) = (Arc::new(echo()), Duration::from_secs(60));
        let hangs = tokio::spawn({
            let batcher = Arc::clone(&batcher);
            async move { batcher.ask(0, limit).await }
        });
        for call in 1..=3 {
            // Long after the moment at which those behind the first were looked for.
            tokio::time::sleep(PATIENCE * 10).await;
            assert_eq!(batcher.ask(call, limit / 2).await.unwrap(), call);
        }
        assert_eq!(hangs.await.unwrap().unwrap_err().kind, StoreErrorKind::Timeout);
    }
}
