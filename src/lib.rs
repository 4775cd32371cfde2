//! Leasehold: durable job leases and an execution-aware worker fleet on PostgreSQL and Docker.
//!
//! The protocol itself (domain, ports, actors) is the crate `leasehold-actors`, re-exported as [`protocol`].
//! This crate brings the adapters and the faces: [`postgres`], [`docker`], [`workload`], [`cli`], and the
//! embedding API [`Worker`] and [`Client`].

pub mod bench;
pub mod cli;
pub mod client;
pub mod config;
pub mod dev;
pub mod docker;
pub mod node_agent;
pub mod postgres;
mod process;
pub mod recipe;
pub mod submission;
pub mod telemetry;
pub mod wiring;
pub mod worker;
pub mod workload;

pub use client::Client;
pub use leasehold_actors as protocol;
pub use worker::Worker;

/// The guide for embedding programs: its code is compiled with the documentation's examples.
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
#[derive(Debug)]
pub struct EmbeddingGuide;

/// The guide to leases that somebody else acquired, likewise.
#[cfg(doctest)]
#[doc = include_str!("../docs/run-with-lease.md")]
#[derive(Debug)]
pub struct RunWithLeaseGuide;

/// The guide to fencing, likewise.
#[cfg(doctest)]
#[doc = include_str!("../docs/fencing.md")]
#[derive(Debug)]
pub struct FencingGuide;
