//! The lease protocol: pure domain, ports, and the actors that hold a worker together.

pub mod domain;
pub mod error;
pub mod ports;
pub mod runtime_node_actor;
#[cfg(feature = "testing")]
pub mod testing;
pub mod work;
