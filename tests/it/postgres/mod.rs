//! The store on a real PostgreSQL.

mod authority;
mod listen;
mod migrations;
mod refusing;
mod submitting;
