//! Recipes: what stands beside the job's row, who is offered it, and what wakes it.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::world::{Lease, Place, Row, World, delta};
use crate::{
    domain::{Failure, FailureKind, JobId, JobKind, JobState, RecipeSpec},
    ports::{
        Authority,
        recipe::{Event, Facts, Hint, Publication, SchemaDigests, Wake},
    },
    testing::harness::WorkflowState,
};

/// A stale hint that a worker does not fit keeps a job from it for so long.
const STALE_HINT_HOLDS: TimeDelta = TimeDelta::seconds(5);
/// So many handoffs in a row with nothing recorded between fail the job.
const HANDOFF_LIMIT: i32 = 10;

/// What stands beside the row of a RECIPE job (table `recipes`).
#[derive(Debug, Clone, Default)]
pub(super) struct Recipe {
    language: u32,
    pub(super) events: Vec<Event>,
    pub(super) bytes: i64,
    /// What a test pretends to be in the log already.
    pub(super) pretended: (i64, i64),
    handoffs: i32,
    /// How many events there were at the last handoff.
    handoff_at: usize,
    declined: Vec<String>,
    pub(super) refusals: i32,
    pub(super) refused_epoch: Option<i64>,
    pub(super) hint: Option<Hint>,
    pub(super) hint_epoch: Option<i64>,
    /// What it waits for, as long as its epoch is this one.
    wake: Option<(i64, Vec<Wake>)>,
    pub(super) signals: Vec<StoredSignal>,
    /// Since when no node was found, and how many events there were then.
    pub(super) unplaced: Option<(DateTime<Utc>, usize)>,
    /// What it was submitted under.
    pub(super) schemas: BTreeMap<String, SchemaDigests>,
}

/// A signal (table `signals`).
#[derive(Debug, Clone)]
pub(super) struct StoredSignal {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) data: String,
    pub(super) key: Option<String>,
    pub(super) taken: bool,
}

/// A child job (table `recipe_children`).
#[derive(Debug, Clone)]
pub(super) struct Child {
    pub(super) parent: JobId,
    pub(super) cancel_with_parent: bool,
}

impl Recipe {
    pub(super) fn of(definition: &str, schemas: BTreeMap<String, SchemaDigests>) -> Self {
        let language = serde_json::from_str::<RecipeSpec>(definition).map_or(0, |spec| spec.language);
        Self { language, schemas, ..Self::default() }
    }

    /// Handoffs in a row with nothing recorded between.
    pub(super) fn handoffs(&self) -> i32 {
        if self.handoff_at == self.events.len() { self.handoffs } else { 0 }
    }
}

/// Only an object, or nothing yet, has room for the key `execution`.
pub(super) fn may_be_a_client_payload(text: &str) -> bool {
    let text = text.trim();
    text == "null" || text.starts_with('{')
}

/// Whether the present generation of the row's workflow is another one. A recipe is pinned: only a terminate ends it.
pub(super) fn superseded(world: &World, row: &Row) -> bool {
    row.generation != world.current_generation(row)
        && (row.route.kind != JobKind::Recipe
            || world.workflow_of(row).is_some_and(|w| w.state == WorkflowState::Terminated))
}

/// Whether a row is a recipe that was claimed once: it goes on under the definition that it was submitted with.
pub(super) fn in_flight(row: &Row) -> bool {
    row.route.kind == JobKind::Recipe && row.attempt > 0
}

/// Resources are minimums; everything else that is asked for must be known and the same.
pub(super) fn fits(hint: &Hint, facts: &Facts) -> bool {
    let enough = |needed: Option<i64>, there: Option<i64>| {
        needed.is_none_or(|needed| there.is_some_and(|there| there >= needed))
    };
    let same = |needed: &Option<String>, there: &Option<String>| needed.is_none() || needed == there;
    let platform = hint.platform.as_ref().is_none_or(|(os, architecture, variant)| {
        facts.platform.as_ref().is_some_and(|(has_os, has_architecture, has_variant)| {
            os == has_os && architecture == has_architecture && (variant.is_none() || variant == has_variant)
        })
    });
    enough(hint.cpu_millis, facts.cpu_millis)
        && enough(hint.memory_bytes, facts.memory_bytes)
        && enough(hint.ephemeral_storage_bytes, facts.ephemeral_storage_bytes)
        && platform
        && same(&hint.image_reference, &facts.image_reference)
        && same(&hint.image_digest, &facts.image_digest)
}

impl World {
    /// Whether an open claim with these facts may take a QUEUED row.
    pub(super) fn may_be_offered(&self, id: JobId, row: &Row, facts: Option<&Facts>) -> bool {
        let (Some(recipe), Place::Ready(ready)) = (self.recipes.get(&id), &row.place) else { return true };
        let nothing = Facts::default();
        let payload = self.jobs.get(&id).map_or("null", |job| &job.payload);
        if !RecipeSpec::LANGUAGES.contains(&recipe.language)
            || execution_version(payload).is_some_and(|v| !RecipeSpec::EXECUTION_VERSIONS.contains(&v))
        {
            return false;
        }
        let fits = recipe.hint.as_ref().is_none_or(|hint| fits(hint, facts.unwrap_or(&nothing)));
        let exact = recipe.hint_epoch == Some(row.epoch);
        fits || !exact && ready.due_at + STALE_HINT_HOLDS <= self.now()
    }

    /// The failure of a job whose next handoff would be one too many.
    pub(super) fn handoff_loop(&self, id: JobId, publish: Option<&Publication>) -> Option<Failure> {
        let recipe = self.recipes.get(&id)?;
        let publish = publish.filter(|publish| publish.handoff)?;
        if recipe.handoffs() + 1 < HANDOFF_LIMIT {
            return None;
        }
        let mut declined = recipe.declined.clone();
        remember(&mut declined, publish);
        let message = format!(
            "handed off {HANDOFF_LIMIT} times in a row with nothing recorded between, declined by {}",
            declined.join(", ")
        );
        Some(Failure::new(FailureKind::System, "handoff_loop", message))
    }

    /// What a reschedule writes beside the row.
    pub(super) fn publish(
        &mut self,
        authority: &Authority,
        lease: &Lease,
        wake: &[Wake],
        publish: Option<&Publication>,
    ) {
        let epoch = self.rows.get(&authority.job).map_or(0, |row| row.epoch);
        let Some(recipe) = self.recipes.get_mut(&authority.job) else { return };
        recipe.wake = (!wake.is_empty()).then(|| (epoch, wake.to_vec()));
        if lease.claim_epoch == epoch {
            // Who took it over says nothing about whether its payload was accepted.
            recipe.refusals = 0;
        }
        let Some(publish) = publish else { return };
        recipe.hint = Some(publish.hint.clone());
        recipe.hint_epoch = publish.handoff.then_some(epoch);
        if publish.handoff {
            if recipe.handoffs() == 0 {
                recipe.declined.clear();
            }
            recipe.handoffs = recipe.handoffs() + 1;
            recipe.handoff_at = recipe.events.len();
            remember(&mut recipe.declined, publish);
        }
    }

    /// When a rescheduled job becomes due; none when only something else than time makes it due.
    pub(super) fn due_at(
        &self,
        id: JobId,
        delay: std::time::Duration,
        wake: &[Wake],
    ) -> Option<DateTime<Utc>> {
        let at_once = self.now() + delta(delay);
        if wake.is_empty() || wake.iter().any(|wake| self.has_come(id, wake)) {
            return Some(at_once);
        }
        let times = wake.iter().filter_map(|wake| match wake {
            Wake::At(at) => Some((*at).max(at_once)),
            Wake::Signal(_) | Wake::Child(_) => None,
        });
        times.min()
    }

    fn has_come(&self, id: JobId, wake: &Wake) -> bool {
        match wake {
            Wake::At(at) => *at <= self.now(),
            Wake::Signal(name) => self
                .recipes
                .get(&id)
                .is_some_and(|recipe| recipe.signals.iter().any(|s| !s.taken && s.name == *name)),
            Wake::Child(child) => self.rows.get(child).is_none_or(|row| row.state().is_terminal()),
        }
    }

    /// Makes a job due that waits for this.
    pub(super) fn wake(&mut self, id: JobId, come: &Wake) {
        let now = self.now();
        let Some((epoch, wake)) = self.recipes.get(&id).and_then(|recipe| recipe.wake.clone()) else {
            return;
        };
        let Some(row) = self.rows.get_mut(&id).filter(|row| row.epoch == epoch) else { return };
        if let Place::Waiting(waiting) = &mut row.place
            && wake.contains(come)
        {
            match &mut waiting.held_due_at {
                Some(held) => *held = now,
                None => waiting.due_at = Some(now),
            }
        }
    }

    /// What an end does to others: the parent that waits for it is woken, and without success its unfinished
    /// children are cancelled.
    pub(super) fn after_end(&mut self, id: JobId) {
        let Some(state) = self.rows.get(&id).map(Row::state).filter(|state| state.is_terminal()) else {
            return;
        };
        if let Some(parent) = self.children.get(&id).map(|child| child.parent) {
            self.wake(parent, &Wake::Child(id));
        }
        if state != JobState::Completed {
            let children = self.children.iter().filter(|(_, c)| c.parent == id && c.cancel_with_parent);
            let children: Vec<JobId> = children.map(|(child, _)| *child).collect();
            for child in children {
                let Some(namespace) = self.rows.get(&child).map(|row| row.namespace.clone()) else {
                    continue;
                };
                let _ = self.request_cancel(&namespace, child, CHILD_GRACE);
            }
        }
    }
}

/// How long the holder of a child has to carry out its cancel, beside one lease.
const CHILD_GRACE: std::time::Duration = std::time::Duration::from_secs(30);

fn remember(declined: &mut Vec<String>, publish: &Publication) {
    if let Some(by) = &publish.declined_by
        && !declined.iter().any(|known| **known == **by)
    {
        declined.push(by.to_string());
    }
}

/// The version of the payload's key `execution`, where it is a whole number: of any size, since a worker that knows no
/// such version must not claim the job.
fn execution_version(payload: &str) -> Option<u32> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Payload<'p> {
        #[serde(borrow)]
        execution: Option<&'p serde_json::value::RawValue>,
    }
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Execution<'p> {
        #[serde(borrow)]
        version: Option<&'p serde_json::value::RawValue>,
    }
    let execution = serde_json::from_str::<Payload<'_>>(payload).ok()?.execution?.get();
    let version = serde_json::from_str::<Execution<'_>>(execution).ok()?.version?.get();
    let digits = version.strip_prefix('-').unwrap_or(version);
    let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    whole.then(|| version.parse().unwrap_or(u32::MAX))
}
