//! The lease protocol: pure domain, ports, and the actors that hold a worker together.

pub mod claim_actor;
pub mod clock;
pub mod dispatch_actor;
pub mod domain;
pub mod error;
pub mod fence;
#[cfg(test)]
mod fixtures;
mod jitter;
pub mod lease_actor;
pub mod leases;
pub mod nodes;
pub mod permits;
pub mod ports;
pub mod reconcile_actor;
pub mod runtime_node_actor;
pub mod settings;
pub mod slot;
pub mod supervision;
#[cfg(feature = "testing")]
pub mod testing;
pub mod work;
