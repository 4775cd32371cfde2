//! The pure part of the protocol: identities, job definitions, retry rules and the lease state machine.
//!
//! Nothing here does I/O, reads a clock or knows actix; everything is a value and can be tested with a table.

pub mod definition;
pub mod execution;
pub mod ids;
pub mod job;
pub mod json;
pub mod lease;
pub mod quantity;
pub mod recipe_spec;

pub use definition::{
    ContainerSpec, HeartbeatSpec, InvalidDefinition, JobDefinition, NewJob, OnOrphan, PullPolicy, RetryPolicy,
};
pub use ids::{
    CommandId, ContainerId, Epoch, InvalidId, JobId, LeaseToken, Namespace, NodeId, ProcessId, Route,
    TaskKey, WorkerId,
};
pub use job::{Failure, FailureKind, JobKind, JobState};
pub use recipe_spec::{RawJson, RecipeSpec};
