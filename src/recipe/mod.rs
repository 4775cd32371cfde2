//! Recipes: durable programs of tasks, each of which may need an environment that only some workers have.
//!
//! A recipe embeds Rust code as *ops*: see [`op`]; [`ops`] are those that every worker can have.

pub mod op;
pub mod ops;
