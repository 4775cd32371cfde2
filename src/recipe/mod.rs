//! Recipes: durable programs of tasks, each of which may need an environment that only some workers have.
//!
//! A recipe embeds Rust code as *ops*: see [`op`].

pub mod op;
