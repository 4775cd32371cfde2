//! What tests stand on: the executable specification of the lease rules in memory, a wrapper that loses
//! requests and answers, named points at which a worker crashes, a container engine that plays scripts, probes
//! for mailboxes, and the conformance suite that every store must pass.
//!
//! The memory store and the views of it are behind the feature `memory`, since people test their recipes on it;
//! everything else is behind `testing` and never part of a release binary. Time is tokio's: with a paused runtime it
//! moves only when the test moves it.

#[cfg(feature = "testing")]
pub mod conformance;
#[cfg(feature = "testing")]
pub mod crash_points;
#[cfg(feature = "testing")]
pub mod flaky_store;
pub mod harness;
pub mod memory_store;
#[cfg(feature = "testing")]
pub mod probe;
#[cfg(feature = "testing")]
pub mod scripted_engine;

#[cfg(feature = "testing")]
pub use flaky_store::{Fate, FlakyStore, Odds, Operation};
pub use harness::{
    CancelAnswer, HistoryView, JobView, StoreHarness, StoredLog, TestNode, TestWorkflow, WorkflowChange,
    WorkflowState,
};
pub use memory_store::MemoryStore;
#[cfg(feature = "testing")]
pub use probe::{Probe, Probed};
#[cfg(feature = "testing")]
pub use scripted_engine::{Call, OnStop, Script, ScriptedEngine, Trouble};
