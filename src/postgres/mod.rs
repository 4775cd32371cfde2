//! The store on PostgreSQL.

pub mod cancel;
pub mod doctor;
pub mod nodes;
pub mod read;
pub mod retry;
pub mod submit;
pub mod workers;
pub mod workflow;
