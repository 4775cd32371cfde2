//! The runtime nodes of recipes' tasks: what is asked of the store, and what it tells whoever takes the job over.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Placement, RuntimeStanding};
use crate::domain::{ContainerId, Epoch, TaskKey, execution::Platform};

/// What a runtime node must have to be given a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeNeeds {
    /// Thousandths of a core.
    pub cpu_millis: Option<i64>,
    /// Bytes.
    pub memory_bytes: Option<i64>,
    /// What its engine runs.
    pub platform: Option<Platform>,
}

/// A request for a runtime node for one task of a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPlace {
    /// The task.
    pub task: TaskKey,
    /// Its path, for people.
    pub path: String,
    /// What the node must have.
    pub needs: NodeNeeds,
    /// What its result would be recorded as.
    pub occurrence: TaskOccurrence,
}

/// Which run of which op a container is: kept with it, so that whoever takes the job over can record its result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskOccurrence {
    /// The op.
    pub op: String,
    /// Hash over the op's name and its canonical input.
    pub input_hash: String,
    /// Which attempt of its node this is, from 1.
    pub attempt: i32,
    /// The names of the secrets that its program was given, in order: whoever reads its output must know them, to blot
    /// them out.
    pub secrets: Vec<String>,
    /// The most bytes of its output that are stored, where it says so.
    pub log_quota_bytes: Option<i64>,
}

/// The answer to [`LeaseStore::place_task`](super::LeaseStore::place_task).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskPlaced {
    /// The task has a slot of this node until it is unplaced, or the lease ends. A repeat answers the same.
    Placed(Placement),
    /// No fresh READY node fits, or every one that does is full. That is noted with the job, with no harm to it.
    NoNode {
        /// When to look again, by the database's clock: later, the longer it has been like that with nothing recorded
        /// between.
        retry_at: DateTime<Utc>,
        /// How far ahead that is.
        retry_in: Duration,
    },
    /// The task was placed under an older claim, and what it may have left there is not cleaned up.
    Leftover,
    /// The lease is not live; nothing was changed.
    NotLive,
}

/// The answer to [`LeaseStore::unplace_task`](super::LeaseStore::unplace_task).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskUnplaced {
    /// The task has no node (any more).
    Done,
    /// The lease is not live; nothing was changed.
    NotLive,
}

/// A container of a recipe's task, as whoever takes the job over must know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskContainer {
    /// The task.
    pub task: TaskKey,
    /// Its path.
    pub path: String,
    /// The epoch of the claim that it was placed under, which its container carries.
    pub epoch: Epoch,
    /// Where it was placed.
    pub placement: Placement,
    /// Its container, once there was one.
    pub container: Option<ContainerId>,
    /// Whether its engine can be asked.
    pub runtime: RuntimeStanding,
    /// What its result is recorded as; none for what an older release has placed.
    pub occurrence: Option<TaskOccurrence>,
}
