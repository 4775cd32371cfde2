//! The store on a real PostgreSQL.

mod auditing;
mod authority;
mod cancelling;
mod claiming;
mod conformance;
mod connecting;
mod differential;
mod fencing;
mod group_commit;
pub mod harness;
mod listen;
mod migrations;
mod needs;
mod nodes;
mod plans;
mod pooler;
mod reading;
mod recovering;
mod refusing;
mod renewal;
mod replay;
mod retaking;
mod servers;
mod submitting;
mod through_a_pooler;
mod workflows;
