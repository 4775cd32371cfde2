//! Scenarios: what users met elsewhere, played against the real thing. Ids in the tests' comments name the
//! field reports that they come from.

mod bench;
mod completing;
mod database;
mod failover;
mod frozen;
mod handlers;
mod heartbeat;
mod heartbeat_tls;
mod http_target;
pub mod in_process;
mod outages;
mod provisioner;
mod recipes;
mod recovery;
pub mod worker_process;
