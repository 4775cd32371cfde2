//! The binary and the parts that only it uses, as a person meets them.

mod bad_input;
mod cluster;
mod dev;
mod engine;
mod fleet;
mod guide;
mod jobs;
pub mod leasehold;
mod leases;
mod passwords;
mod printed;
mod recipe_language;
mod recipes;
mod settings;
mod terminal;
mod workflows;
