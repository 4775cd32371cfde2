//! Recipes: durable programs of tasks, each of which may need an environment that only some workers have.
//!
//! A recipe is YAML (`yaml.rs`; `grammar.rs` says which keys there are and what they hold), in one or more files that
//! are pinned together as a [`bundle`]; [`compile()`] checks it and makes the [`compiled`] form, in which every reference
//! is resolved (`names.rs`) and every [`template`] parsed. Values are JSON text throughout ([`exact`]), compared and
//! hashed by their [`canonical`] form. All [`limits`] are in one place, and [`schema`] publishes the grammar.
//!
//! A recipe embeds Rust code as *ops*: see [`op`]; [`ops`] are those that every worker can have.

pub mod bundle;
pub mod canonical;
mod child;
mod compile;
pub mod compiled;
pub mod exact;
pub mod execution;
mod grammar;
pub mod inputs;
pub mod limits;
mod mistake;
mod names;
pub mod op;
pub mod ops;
pub mod rehearsal;
pub mod schema;
pub mod schemas;
mod session;
pub mod supplied;
pub mod template;
mod yaml;

pub use compile::compile;
pub use mistake::{Mistake, Mistakes, Place};
