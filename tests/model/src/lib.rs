//! The lease protocol as a model, for stateright to explore: every interleaving of two workers, the database
//! and the messages between them, within the bounds of a scope.
//!
//! Read docs/model.md first. Then: [`state`] (what there is), [`action`] (what can happen),
//! [`database`] and [`worker`] (what it does), [`properties`] (what must hold), [`mutant`] (what must be
//! caught), [`tidy`], [`symmetry`] and [`scope`] (why it ends), [`trace`] (how to read a counter-example).

pub mod action;
pub mod database;
pub mod explore;
pub mod model;
pub mod mutant;
pub mod names;
pub mod properties;
pub mod protocol;
pub mod report;
pub mod scope;
pub mod settle;
pub mod situations;
pub mod state;
pub mod symmetry;
pub mod tidy;
pub mod trace;
pub mod worker;
