//! The node's own fence. The agent is a lease holder too: once PostgreSQL may call its node lost, jobs that were
//! placed here may be given to others. So when no heartbeat was confirmed in time, what runs here is killed
//! before that.
//!
//! ```text
//!   heartbeat sent (the last one that was confirmed)                killed by        may be called lost
//!  ───────────┼───────────────────────────────────────────────────────┼─────────────────────┼──▶ time
//!             confirmed: the deadline moves on            lost after − a tenth          lost after
//! ```
//!
//! It stands on a thread of its own with connections of its own, so that nothing that the agent waits for holds
//! it up, and its clock goes on while the machine sleeps. A fence that has been reached is carried out also when
//! a heartbeat comes through right after: nobody knows what was decided meanwhile. Until it is carried out the
//! node stays UNHEALTHY, so that nothing new is placed under the axe; then it is READY again by itself.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use leasehold_actors::{
    clock::BootInstant,
    error::EngineErrorKind,
    ports::{ContainerEngine, ContainerState, ContainerStatus},
};

use super::orphans::{Domain, MARK, mark};
use crate::{
    config::TlsFiles,
    docker::{DockerEngine, EngineLimits},
};

/// The longest nap of the thread: a suspend freezes naps, so this is how soon after waking up it acts.
const LONGEST_NAP: Duration = Duration::from_millis(250);

/// How long a process that was frozen past all times first asks whether the node is still its own: another one
/// may have taken charge of it meanwhile, whose containers are none of its business.
const THAW: Duration = Duration::from_secs(2);

/// Between two sweeps of a fence that was reached.
const SWEEP_AGAIN: Duration = Duration::from_secs(1);

/// How many containers are killed at once.
const AT_ONCE: usize = 32;

/// A frozen engine must not hold up the next try.
const LIMITS: EngineLimits = EngineLimits {
    look: Duration::from_secs(5),
    act: Duration::from_secs(5),
    watch: Duration::from_secs(5),
    pull_silence: Duration::from_secs(5),
};

/// How an engine is reached, for connections that are opened only when they are needed.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) endpoint: String,
    pub(super) tls: Option<TlsFiles>,
}

/// The agent's hand on its fence. The thread ends with it.
#[derive(Debug)]
pub(super) struct NodeFence {
    shared: Arc<Shared>,
    lost_after: Duration,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// When everything must be dead unless a heartbeat is confirmed before.
    deadline: BootInstant,
    /// The deadline has passed, and what ran then is not known to be dead yet.
    reached: bool,
    /// A tenth of the time in which a node is lost: what the killing may take.
    margin: Duration,
    domain: Domain,
    closing: bool,
}

impl State {
    /// Looks at the clock. Called before anything that could move the deadline on.
    fn look(&mut self, now: BootInstant) -> bool {
        self.reached |= now >= self.deadline;
        self.reached
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NodeFence {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        self.shared.changed.notify_all();
    }
}

impl NodeFence {
    /// Starts the thread. `sent` is when the registration was sent.
    pub(super) fn start(
        way: Way,
        domain: Domain,
        lost_after: Duration,
        sent: BootInstant,
    ) -> std::io::Result<Self> {
        let margin = lost_after / 10;
        let state = State {
            deadline: sent.after(lost_after - margin),
            reached: false,
            margin,
            domain,
            closing: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let watched = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("node-fence".to_owned())
            .spawn(move || watch(&watched, &runtime, &way))?;
        Ok(Self { shared, lost_after })
    }

    /// A heartbeat that was sent at `sent` was confirmed just now.
    pub(super) fn confirmed(&self, sent: BootInstant) {
        let mut state = self.shared.state();
        // An answer that came too late does not undo that the time was over.
        state.look(BootInstant::now());
        let deadline = sent.after(self.lost_after - state.margin);
        state.deadline = state.deadline.max(deadline);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Whether the fence was reached, and what ran here then is not known to be dead yet.
    pub(super) fn is_reached(&self) -> bool {
        self.shared.state().look(BootInstant::now())
    }

    /// The node was registered with another engine, whose containers are not those of before.
    pub(super) fn now_for(&self, engine_id: &str) {
        engine_id.clone_into(&mut self.shared.state().domain.engine_id);
    }
}

/// The thread.
fn watch(shared: &Shared, runtime: &tokio::runtime::Runtime, way: &Way) {
    let mut told = false;
    loop {
        let mut state = shared.state();
        if state.closing {
            return;
        }
        let now = BootInstant::now();
        let nap = if state.look(now) {
            if !told && now >= state.deadline.after(state.margin) {
                let asking = |state: &mut State| !state.closing && now >= state.deadline;
                let waited = shared.changed.wait_timeout_while(state, THAW, asking);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                if state.closing {
                    return;
                }
            }
            let domain = state.domain.clone();
            drop(state);
            if !std::mem::replace(&mut told, true) {
                tracing::error!(node = %domain.node,
                    "no heartbeat was confirmed in time: the database may give this node's jobs to others; killing what runs here");
            }
            let swept = runtime.block_on(sweep(way, &domain));
            state = shared.state();
            match swept {
                // Nothing new was placed here meanwhile: the node was stale, and is UNHEALTHY since.
                Ok(()) if BootInstant::now() < state.deadline => {
                    state.reached = false;
                    told = false;
                    tracing::warn!(node = %domain.node, "all is dead that ran here when the time was over; the node takes jobs again");
                }
                Ok(()) => {}
                Err(error) => {
                    tracing::error!(node = %domain.node, error, "cannot kill what runs here; trying on")
                }
            }
            SWEEP_AGAIN
        } else {
            LONGEST_NAP.min(state.deadline.remaining())
        };
        if state.closing {
            return;
        }
        drop(shared.changed.wait_timeout(state, nap));
    }
}

/// Kills everything of this node that runs; `Ok` when all of it is surely dead. What has ended is left as it
/// is, for those who want to know how.
async fn sweep(way: &Way, domain: &Domain) -> Result<(), String> {
    let words = |error: leasehold_actors::error::EngineError| error.to_string();
    let engine = DockerEngine::connect_with(&way.endpoint, way.tls.as_ref(), LIMITS)
        .map_err(|error| error.to_string())?;
    let found = engine.info().await.map_err(words)?.engine_id;
    if found != domain.engine_id {
        // Not the engine that ran our containers: nothing is touched, and there is nothing to kill.
        return Ok(());
    }
    let labels = domain.labels();
    let listed = engine.list(&labels).await.map_err(words)?;
    let mine = listed.into_iter().filter(|status| labels.iter().all(|label| status.labels.contains(label)));
    let failures: Vec<String> = stream::iter(mine)
        .map(|status| end(&engine, status))
        .buffer_unordered(AT_ONCE)
        .filter_map(|ended| std::future::ready(ended.err()))
        .collect()
        .await;
    match failures.into_iter().next() {
        None => Ok(()),
        Some(first) => Err(first),
    }
}

async fn end(engine: &DockerEngine, status: ContainerStatus) -> Result<(), String> {
    let ended = match status.state {
        ContainerState::Running { .. } => {
            if !status.name.ends_with(MARK) {
                let _marked = mark(engine, &status, &status.name).await;
            }
            tracing::warn!(container = status.name, "killing it: this node may count as lost");
            engine.kill(&status.id).await
        }
        // Its start may be on the way; only the removal forestalls that.
        ContainerState::Created => engine.remove(&status.id).await,
        ContainerState::Exited { .. } | ContainerState::Dead => Ok(()),
    };
    match ended {
        Err(error) if error.kind != EngineErrorKind::NoSuchContainer => Err(error.to_string()),
        _ => Ok(()),
    }
}
