//! `leasehold dev`: all parts in one process on a private PostgreSQL cluster.

mod child;
pub mod cluster;
pub mod engine;
pub mod folder;
mod responder;
mod server;
