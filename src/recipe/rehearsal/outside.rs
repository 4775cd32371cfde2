//! The world outside the workers: what ops do, who sends signals, how children end. It outlives every worker that
//! crashes, and goes on meanwhile: an op that is called again under its key is the same effect, and answers when the
//! first call would have.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use leasehold_actors::{
    domain::{JobId, Namespace},
    ports::recipe::{Event, EventBody, JsonText, NewSignal, RecipeStore as _, SignalAnswer, TaskOutcome},
    testing::MemoryStore,
};
use tokio::{sync::Notify, time::Instant};

use super::{
    file::{Reply, Test},
    locate::locate,
};
use crate::recipe::{
    Mistake, Place,
    bundle::Bundle,
    canonical::{canonical, canonical_value},
    op::{Op, Task, TaskError},
    ops::secrets::Secrets,
};

/// What is outside, for one job.
pub(super) struct Outside {
    pub(super) test: Arc<Test>,
    pub(super) file: String,
    recipe: PathBuf,
    bundle: Arc<Bundle>,
    pub(super) store: MemoryStore,
    pub(super) secrets: Arc<Secrets>,
    state: Mutex<State>,
    /// The job cannot go on: the test says too little.
    pub(super) stuck: Notify,
    /// Something has come that the job may wait for.
    pub(super) changed: Notify,
}

#[derive(Default)]
struct State {
    /// By key of the task.
    answered: BTreeMap<String, Answered>,
    used: BTreeSet<(usize, usize)>,
    children_used: BTreeSet<usize>,
    /// Tasks whose success is recorded.
    recorded: BTreeSet<String>,
    /// What is still to come.
    awaited: usize,
    unsent: BTreeSet<usize>,
    problems: Vec<Mistake>,
}

#[derive(Clone)]
struct Answered {
    fixture: usize,
    reply: usize,
    since: Instant,
    inputs: String,
}

impl Outside {
    pub(super) fn new(
        test: &Arc<Test>,
        file: &str,
        recipe: &std::path::Path,
        bundle: &Arc<Bundle>,
        store: MemoryStore,
    ) -> Arc<Self> {
        let state = State {
            awaited: test.signals.len(),
            unsent: (0..test.signals.len()).collect(),
            ..State::default()
        };
        Arc::new(Self {
            test: Arc::clone(test),
            file: file.to_owned(),
            recipe: recipe.to_owned(),
            bundle: Arc::clone(bundle),
            store,
            secrets: Arc::new(Secrets::of(test.secrets.clone())),
            state: Mutex::new(state),
            stuck: Notify::new(),
            changed: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every critical section here leaves whole values.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is still to come that the job may wait for.
    pub(super) fn is_awaited(&self) -> bool {
        self.state().awaited > 0
    }

    pub(super) fn problems(&self) -> Vec<Mistake> {
        self.state().problems.clone()
    }

    fn has_come(&self) {
        self.state().awaited -= 1;
        self.changed.notify_one();
    }

    /// Without more, the test cannot go on.
    fn give_up(&self, file: String, place: Place, message: String) {
        self.state().problems.push(Mistake { file, place, message });
        self.stuck.notify_one();
    }

    /// The node that a path names, as an editor can open it.
    pub(super) fn node(&self, path: &str) -> (String, Place) {
        let (file, place) = locate(&self.bundle, path);
        let folder = self.recipe.parent().filter(|folder| !folder.as_os_str().is_empty());
        let shown = folder.map(|folder| folder.join(&file).display().to_string());
        (shown.unwrap_or(file), place)
    }

    /// The fixture that answers a call, and since when it does.
    fn answer(&self, task: &Task) -> Option<(&Reply, Instant)> {
        let shown = self.secrets.mask_json(&task.inputs).into_owned();
        let inputs = canonical(&shown).unwrap_or(shown);
        let fixtures = &self.test.fixtures;
        let mut state = self.state();
        let twice = if state.recorded.contains(&task.path) {
            Some("runs again, although its success is recorded")
        } else {
            let known = state.answered.get(&task.idempotency_key);
            known.filter(|known| known.inputs != inputs).map(|_| "runs again with other inputs")
        };
        if let Some(wrong) = twice {
            drop(state);
            let (file, place) = self.node(&task.path);
            self.give_up(file, place, format!("{} {wrong}", task.path));
            return None;
        }
        if let Some(known) = state.answered.get(&task.idempotency_key) {
            return Some((&fixtures[known.fixture].replies[known.reply], known.since));
        }
        let found = fixtures.iter().enumerate().find_map(|(n, fixture)| {
            let fits = fixture.op.as_ref().is_none_or(|op| *op == task.op)
                && fixture.path.as_ref().is_none_or(|path| path.fits(&task.path))
                && fixture.attempt.is_none_or(|attempt| attempt == task.attempt);
            let mut free =
                (0..fixture.replies.len()).filter(|m| fixture.repeats || !state.used.contains(&(n, *m)));
            fits.then(|| free.next()).flatten().map(|m| (n, m))
        });
        let Some((n, m)) = found else {
            drop(state);
            let (file, place) = self.node(&task.path);
            let message = format!(
                "op {} at {}, attempt {}, has no fixture in {}, test {:?}: add one under `ops`",
                task.op, task.path, task.attempt, self.file, self.test.name
            );
            self.give_up(file, place, message);
            return None;
        };
        let reply = &fixtures[n].replies[m];
        let since = Instant::now();
        state.used.insert((n, m));
        if let Some((place, wanted)) = &reply.inputs
            && canonical_value(wanted) != inputs
        {
            let message =
                format!("inputs of {}: expected {}, found {inputs}", task.path, canonical_value(wanted));
            state.problems.push(Mistake { file: self.file.clone(), place: *place, message });
        }
        state.answered.insert(task.idempotency_key.clone(), Answered { fixture: n, reply: m, since, inputs });
        Some((reply, since))
    }

    /// What stands in the log from now on.
    pub(super) fn recorded(self: &Arc<Self>, event: &Event) {
        match &event.body {
            EventBody::Task { outcome: TaskOutcome::Succeeded { .. }, .. } => {
                self.state().recorded.insert(event.path.clone());
            }
            EventBody::ChildStarted { job } => self.run_child(&event.path, *job),
            _ => {}
        }
    }

    fn run_child(self: &Arc<Self>, path: &str, job: JobId) {
        let children = &self.test.children;
        let fits = |n: &usize| children[*n].path.as_ref().is_none_or(|wanted| wanted.fits(path));
        let Some(n) = (0..children.len()).find(fits) else {
            let (file, place) = self.node(path);
            let message = format!(
                "the child job at {path} has no end in {}, test {:?}: add one under `children`",
                self.file, self.test.name
            );
            return self.give_up(file, place, message);
        };
        let mut state = self.state();
        state.children_used.insert(n);
        state.awaited += 1;
        drop(state);
        let outside = Arc::clone(self);
        tokio::spawn(async move {
            let child = &outside.test.children[n];
            tokio::time::sleep(child.takes).await;
            let failure = child.failure.clone().map(Into::into);
            outside.store.conclude(job, child.state, child.output.clone(), failure);
            outside.has_come();
        });
    }

    /// Sends the signals of the test, each at its time.
    pub(super) async fn send_signals(self: Arc<Self>, job: JobId, since: Instant) {
        let mut order: Vec<usize> = (0..self.test.signals.len()).collect();
        order.sort_by_key(|n| self.test.signals[*n].at);
        for n in order {
            let signal = &self.test.signals[n];
            if !signal.at.is_zero() {
                tokio::time::sleep_until(since + signal.at).await;
            }
            let new =
                NewSignal { name: signal.name.clone(), data: signal.data.clone(), key: signal.key.clone() };
            let sent = self.store.send_signal(&Namespace::default(), job, &new).await;
            let refused = match sent {
                Ok(SignalAnswer::Stored { .. }) => {
                    self.state().unsent.remove(&n);
                    None
                }
                Ok(SignalAnswer::KeyConflict) => Some("its key is that of another signal".to_owned()),
                Ok(SignalAnswer::TooMany) => {
                    Some("too_many_signals: nobody has taken those before it".to_owned())
                }
                Ok(SignalAnswer::JobEnded { .. } | SignalAnswer::NotFound) => None,
                Err(error) => Some(error.to_string()),
            };
            if let Some(refused) = refused {
                let message = format!("signal {} is refused: {refused}", signal.name);
                self.state().problems.push(Mistake { file: self.file.clone(), place: signal.place, message });
            }
            self.has_come();
        }
    }

    /// What the test holds and the job never asked for.
    pub(super) fn unused(&self, events: &[Event]) -> Vec<Mistake> {
        let state = self.state();
        let mut unused = Vec::new();
        let mut tell = |place: Place, message: String| {
            unused.push(Mistake { file: self.file.clone(), place, message });
        };
        for (n, fixture) in self.test.fixtures.iter().enumerate() {
            let used = |m: usize| state.used.contains(&(n, m));
            let count = (0..fixture.replies.len()).filter(|m| used(*m)).count();
            if count == 0 {
                tell(fixture.place, "this fixture is never used".to_owned());
                continue;
            }
            for (m, reply) in fixture.replies.iter().enumerate().filter(|(m, _)| !used(*m)) {
                let number = m + 1;
                tell(reply.place, format!("call {number} of this fixture is never made: there were {count}"));
            }
        }
        for (n, child) in self.test.children.iter().enumerate() {
            if !state.children_used.contains(&n) {
                tell(child.place, "this child is never started".to_owned());
            }
        }
        let mut taken: Vec<&str> = events
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::Signal { name, .. } => Some(name.as_str()),
                _ => None,
            })
            .collect();
        for (n, signal) in self.test.signals.iter().enumerate() {
            let place = taken.iter().position(|name| *name == signal.name);
            let is_taken = match place {
                Some(place) if !state.unsent.contains(&n) && signal.taken => {
                    taken.remove(place);
                    true
                }
                _ => false,
            };
            if signal.taken && !is_taken {
                let when =
                    if state.unsent.contains(&n) { "never sent: the job had ended" } else { "never taken" };
                tell(signal.place, format!("signal {} was {when}", signal.name));
            }
        }
        let untaken: Vec<_> = self.test.signals.iter().filter(|signal| !signal.taken).collect();
        for name in taken {
            if let Some(signal) = untaken.iter().find(|signal| signal.name == name) {
                tell(signal.place, format!("signal {name} was taken"));
            }
        }
        unused
    }
}

/// An op as the test plays it.
pub(super) struct Player(pub(super) Arc<Outside>);

#[async_trait]
impl Op for Player {
    async fn run(&self, task: Task) -> Result<JsonText, TaskError> {
        let stopped = || TaskError::system("stopped", "the task was told to end");
        let Some((reply, since)) = self.0.answer(&task) else {
            task.context.cancelled().await;
            return Err(stopped());
        };
        let ends = since + reply.takes;
        if ends > Instant::now() {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(ends) => {}
                _ = task.context.cancelled() => return Err(stopped()),
            }
        }
        if let Some(asks) = &reply.asks {
            task.context.suspend_for(asks);
        }
        reply.result.clone()
    }
}
