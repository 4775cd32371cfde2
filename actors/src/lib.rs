//! The lease protocol: pure domain, ports, and the actors that hold a worker together.

pub mod clock;
pub mod domain;
pub mod error;
pub mod fence;
#[cfg(test)]
mod fixtures;
pub mod nodes;
pub mod permits;
pub mod ports;
pub mod runtime_node_actor;
pub mod settings;
#[cfg(feature = "testing")]
pub mod testing;
pub mod work;
