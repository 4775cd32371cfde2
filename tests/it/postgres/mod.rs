//! The store on a real PostgreSQL.

mod authority;
mod cancelling;
mod conformance;
mod harness;
mod claiming;
mod listen;
mod migrations;
mod nodes;
mod reading;
mod refusing;
mod submitting;
mod workflows;
