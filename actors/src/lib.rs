//! The lease protocol: pure domain, ports, and the actors that hold a worker together.

pub mod domain;
pub mod error;
pub mod ports;
pub mod work;
