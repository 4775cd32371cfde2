//! The store on a real PostgreSQL.

mod authority;
mod listen;
mod cancelling;
mod migrations;
mod nodes;
mod reading;
mod refusing;
mod submitting;
mod workflows;
