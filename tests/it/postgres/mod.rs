//! The store on a real PostgreSQL.

mod authority;
mod migrations;
mod refusing;
mod submitting;
