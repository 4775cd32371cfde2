//! The engine adapter on real Docker daemons. Containers run without a network.

mod exits;
mod flood;
mod identity;
mod images;
mod jobs;
mod node_agent;
mod outages;
mod output;
mod stopping;
mod tls;
mod versions;
