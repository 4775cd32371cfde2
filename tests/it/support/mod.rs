//! What the tests stand on: services, a database each, and waiting for facts.

pub mod around_store;
pub mod database;
pub mod engine;
pub mod engine_proxy;
pub mod eventually;
pub mod gate;
pub mod jobs;
pub mod pgbouncer;
pub mod proxy;
pub mod rows;
pub mod server;
pub mod services;
pub mod size;
