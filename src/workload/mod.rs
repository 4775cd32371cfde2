//! What runs inside the worker process under a lease: HEARTBEAT probes, HANDLER functions, and recipes.
//!
//! [`handler`] holds the embedding API; [`heartbeat`] the probe; `exchange` makes its request; [`egress`] decides which addresses a probe may
//! contact. Containers are not run here but by the actor of their runtime node.

pub mod egress;
pub(crate) mod exchange;
pub mod handler;
pub mod heartbeat;
mod pinned;
pub mod probe_tls;
pub(crate) mod recipe;
mod runner;
mod task;

pub use runner::Workloads;
