//! The store on a real PostgreSQL.

mod migrations;
mod refusing;
mod submitting;
