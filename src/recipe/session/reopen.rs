//! What a reopening makes unfinished: the failure that ended the job, or a path and everything after it.
//!
//! Which failure ended a job is not to be seen in its log alone (one that was caught is recorded too): the recipe is
//! walked, read-only. What comes of it is written down with the reopening as plain ordinals, so that no later walk has
//! to find it out again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold_actors::{
    domain::{Epoch, Failure, JobState},
    ports::recipe::{Event, EventBody, Reopening, TaskOutcome},
};

use super::{Job, Session, SessionEnd, failure::NodeFailure, lock, log, order};
use crate::recipe::compiled::{Body, Recipe};

/// What to write down.
pub(in crate::recipe) type Plan = Reopening;

/// Why a job cannot be reopened so.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::recipe) enum Refused {
    /// No record and no node has this path.
    Unknown {
        /// The nearest that there are.
        near: Vec<String>,
    },
    /// The recipe has such a node, and nothing is recorded of it: it is unfinished anyway.
    Unrecorded,
    /// A recorded failure would go on standing, and fail the job again at once.
    Stands {
        /// Where.
        path: String,
        /// It.
        failure: Failure,
    },
    /// The recipe fails without running anything: what is recorded leads to that, whenever it is walked.
    Inevitable(Failure),
}

/// Finds out what counts as unfinished.
pub(in crate::recipe) async fn plan(
    job: Job,
    events: Vec<Event>,
    from: Option<&str>,
) -> Result<Plan, Refused> {
    let recipe = Arc::clone(&job.recipe);
    let standing = log::standing(events.clone(), |_| {});
    let known = i64::try_from(events.len()).unwrap_or(i64::MAX);
    let mut again = BTreeSet::new();
    let mut path = String::new();
    if let Some(from) = from {
        path = resolve(&recipe, &standing, from)?;
        let beginnings = beginnings(&standing);
        let began = |prefix: &str| beginnings.get(prefix).copied();
        let gone = standing.iter().filter(|event| {
            order::unfinished(&recipe, &path, &event.path, began) || is_limit_around(event, &path)
        });
        again.extend(gone.map(|event| event.ordinal));
    }
    // Each walk finds one failure. Several branches of a `parallel` may have failed at once.
    loop {
        let plan = Plan { path: path.clone(), again: log::runs(&again), events: known };
        let Some(failed) = walk(job.clone(), &events, &plan).await else { return Ok(plan) };
        let more: BTreeSet<i64> =
            records_of(&recipe, &standing, &failed).filter(|ordinal| !again.contains(ordinal)).collect();
        if more.is_empty() {
            return Err(Refused::Inevitable(failed.failure));
        }
        if from.is_some() {
            return Err(Refused::Stands { path: failed.path, failure: failed.failure });
        }
        if path.is_empty() {
            path = failed.path;
        }
        again.extend(more);
    }
}

/// The failure of a node that the job would end with after this reopening, if it would without running anything.
async fn walk(job: Job, events: &[Event], plan: &Plan) -> Option<NodeFailure> {
    let mut events = events.to_vec();
    events.push(Event {
        ordinal: plan.events + 1,
        path: plan.path.clone(),
        body: EventBody::Reopened { again: plan.again.clone() },
        at: job.submitted_at,
        worker: None,
        epoch: Epoch(0),
    });
    let session = Session::new(job, events, None).ok()?;
    match session.run().await {
        SessionEnd::Failed(_) => lock(&session.failed).take(),
        _ => None,
    }
}

/// The records that a failure of a node stands on: its own, those of its earlier attempts, and what was cancelled for
/// it. None for a failure that nothing was recorded of.
fn records_of<'a>(
    recipe: &'a Recipe,
    standing: &'a [Arc<Event>],
    failed: &'a NodeFailure,
) -> impl Iterator<Item = i64> + 'a {
    let is_op = order::node(recipe, &failed.path).is_some_and(|node| matches!(node.body, Body::Op { .. }));
    let stem = failed.path.rsplit_once('!').filter(|_| is_op).map(|(stem, _)| stem);
    // The same node: this attempt, and where it is a task, all of them.
    let same_node = move |path: &str| {
        path == failed.path
            || stem.is_some_and(|stem| {
                let attempt = path.strip_prefix(stem).and_then(|rest| rest.strip_prefix('!'));
                attempt.is_some_and(|attempt| attempt.bytes().all(|byte| byte.is_ascii_digit()))
            })
    };
    let ended = standing.iter().filter(move |event| match &event.body {
        EventBody::Task { outcome, .. } => {
            matches!(outcome, TaskOutcome::Failed(_)) && same_node(&event.path)
        }
        EventBody::ChildEnded { state, .. } => *state != JobState::Completed && same_node(&event.path),
        EventBody::TimerFired => event.path.strip_suffix("/@timeout").is_some_and(same_node),
        _ => false,
    });
    let ended: Vec<&Arc<Event>> = ended.collect();
    let first = ended.iter().map(|event| event.ordinal).min().unwrap_or(i64::MAX);
    let ended: BTreeSet<(&str, i64)> =
        ended.iter().map(|event| (event.path.as_str(), event.ordinal)).collect();
    let children: BTreeSet<&str> = ended.iter().map(|(path, _)| *path).collect();
    let gone: Vec<i64> = standing
        .iter()
        .filter(|event| match &event.body {
            EventBody::Task { outcome: TaskOutcome::Canceled, .. } => event.ordinal > first,
            EventBody::ChildStarted { .. } => children.contains(event.path.as_str()),
            EventBody::TimerSet { .. } | EventBody::TimerFired
                if event.path.strip_suffix("/@backoff").is_some_and(same_node) =>
            {
                true
            }
            _ => ended.contains(&(event.path.as_str(), event.ordinal)),
        })
        .map(|event| event.ordinal)
        .collect();
    if ended.is_empty() { Vec::new().into_iter() } else { gone.into_iter() }
}

/// The limit of a node around a path has fired: it cannot go on unless that is forgotten.
fn is_limit_around(event: &Event, path: &str) -> bool {
    let Some(owner) = event.path.strip_suffix("/@timeout").filter(|_| event.body == EventBody::TimerFired)
    else {
        return false;
    };
    let owner = owner.strip_suffix('.').unwrap_or(owner).trim_end_matches('/');
    owner.is_empty() || path.strip_prefix(owner).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The ordinal of the first record of each occurrence, whatever its attempts.
fn beginnings(standing: &[Arc<Event>]) -> BTreeMap<String, i64> {
    let mut beginnings = BTreeMap::new();
    for event in standing {
        let ends = event.path.match_indices('/').map(|(end, _)| end).chain([event.path.len()]);
        for end in ends {
            let path = &event.path[..end];
            let last = path.rfind('/').map_or(0, |slash| slash + 1);
            let stem = path[last..].split('!').next().map_or(path, |stem| &path[..last + stem.len()]);
            beginnings.entry(stem.to_owned()).or_insert(event.ordinal);
        }
    }
    beginnings
}

/// A path as it was recorded. A part without its visit or attempt stands for the first.
fn resolve(recipe: &Recipe, standing: &[Arc<Event>], asked: &str) -> Result<String, Refused> {
    if asked == "." {
        return Ok(asked.to_owned());
    }
    let wanted: Vec<&str> = asked.split('/').collect();
    let is = |part: &str, given: &str| part == given || part == order::id(given);
    let own = wanted.last().is_some_and(|last| last.starts_with('@'));
    let found = |wanted: &[&str], exact: bool| {
        standing.iter().find_map(|event| {
            let mut parts = event.path.split('/');
            let begins: Option<Vec<&str>> = wanted
                .iter()
                .map(|part| parts.next().filter(|given| part == given || !exact && is(part, given)))
                .collect();
            begins.map(|begins| begins.join("/"))
        })
    };
    if let Some(path) = found(&wanted, true).or_else(|| found(&wanted, false)).filter(|_| !own) {
        return Ok(path);
    }
    // With a visit or an attempt that there never was beside others that there were, it is a slip.
    let bare: Vec<&str> = wanted.iter().map(|part| order::id(part)).collect();
    if !own && order::node(recipe, asked).is_some() && found(&bare, false).is_none() {
        return Err(Refused::Unrecorded);
    }
    let mut paths = BTreeSet::new();
    for event in standing {
        let parts: Vec<&str> = event.path.split('/').filter(|part| !part.starts_with('@')).collect();
        paths.extend((1..=parts.len()).map(|n| parts[..n].join("/")));
    }
    let mut near: Vec<(usize, String)> =
        paths.into_iter().map(|path| (crate::recipe::grammar::distance(asked, &path), path)).collect();
    near.sort();
    Err(Refused::Unknown { near: near.into_iter().take(3).map(|(_, path)| path).collect() })
}
