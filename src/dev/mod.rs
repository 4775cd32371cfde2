//! `leasehold dev`: all parts in one process on a private PostgreSQL cluster.

mod child;
pub mod cluster;
pub mod folder;
mod server;
