//! What tests stand on: the executable specification of the lease rules in memory, a wrapper that loses
//! requests and answers, named points at which a worker crashes, a container engine that plays scripts, probes
//! for mailboxes, and the conformance suite that every store must pass.
//!
//! Everything here lives behind the feature `testing` and is never part of a release binary. Time is
//! tokio's: with a paused runtime it moves only when the test moves it.

pub mod conformance;
pub mod crash_points;
pub mod flaky_store;
pub mod harness;
pub mod memory_store;
pub mod probe;
pub mod scripted_engine;

pub use flaky_store::{Fate, FlakyStore, Odds, Operation};
pub use harness::{
    CancelAnswer, HistoryView, JobView, StoreHarness, StoredLog, TestNode, TestWorkflow, WorkflowChange,
    WorkflowState,
};
pub use memory_store::MemoryStore;
pub use probe::{Probe, Probed};
pub use scripted_engine::{Call, OnStop, Script, ScriptedEngine, Trouble};
