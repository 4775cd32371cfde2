//! The engine adapter on real Docker daemons. Containers run without a network.

mod exits;
mod flood;
mod identity;
mod images;
mod jobs;
mod node_agent;
mod node_fence;
mod not_found;
mod orphans;
mod outages;
mod output;
mod reaper;
mod stopping;
mod tasks;
mod tls;
mod versions;
mod worker_fence;
mod yard;
