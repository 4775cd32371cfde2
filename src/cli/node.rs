//! `leasehold node`: the agent of a runtime node, and `node list|drain|undrain|forget`.

use clap::Subcommand;
use leasehold_actors::domain::NodeId;

use super::{
    CliError, Exit,
    output::{self, Listing, or_dash},
    store,
};
use crate::{
    config::Effective,
    postgres::{
        PgStore,
        nodes::{NodeForgotten, NodeState},
    },
};
use leasehold_actors::domain::quantity::{Bytes, CpuMillis};

/// Look after runtime nodes
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold node drain builder-1")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List runtime nodes
    #[command(after_help = "Example: leasehold node list --json")]
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Place no more jobs on a node; what runs there goes on
    #[command(after_help = "Example: leasehold node drain builder-1")]
    Drain {
        /// The node
        node: NodeId,
    },
    /// Place jobs on a node again
    #[command(after_help = "Example: leasehold node undrain builder-1")]
    Undrain {
        /// The node
        node: NodeId,
    },
    /// Take a node out of the list
    #[command(after_help = "Example: leasehold node forget builder-1")]
    Forget {
        /// The node
        node: NodeId,
        /// Also when jobs are RUNNING there: their containers are then out of anybody's reach
        #[arg(long)]
        force: bool,
    },
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let command = &args.command;
    let namespace = settings.namespace();
    store::with_store(settings, async |store| {
        match command {
            Command::List { json } => list(&store, settings, *json).await?,
            Command::Drain { node } => {
                store.node_drain(&namespace, node, true).await?.ok_or_else(|| unknown(node))?;
                output::line(&format!("{node} gets no more jobs; what runs there goes on"))?;
            }
            Command::Undrain { node } => {
                store.node_drain(&namespace, node, false).await?.ok_or_else(|| unknown(node))?;
                output::line(&format!("{node} gets jobs again"))?;
            }
            Command::Forget { node, force } => match store.node_forget(&namespace, node, *force).await? {
                NodeForgotten::NotFound => return Err(unknown(node)),
                NodeForgotten::HasRunningJobs { running } => {
                    let jobs: Vec<String> = running.iter().map(ToString::to_string).collect();
                    return Err(CliError::new(
                        Exit::Refused,
                        format!(
                            "{node} runs jobs ({}); drain it and wait, or use --force: their containers are then out of reach",
                            jobs.join(", ")
                        ),
                    ));
                }
                NodeForgotten::Forgotten { .. } => output::line(&format!("{node} is forgotten"))?,
            },
        }
        Ok(Exit::Ok)
    })
}

fn unknown(node: &NodeId) -> CliError {
    CliError::new(Exit::NotFound, format!("there is no node {node}; see `leasehold node list`"))
}

async fn list(store: &PgStore, settings: &Effective, json: bool) -> Result<(), CliError> {
    let nodes = store.node_list(&settings.namespace()).await?;
    let mut table =
        Listing::new(&["node", "state", "fresh", "slots", "cpu", "memory", "docker", "endpoint", "reason"]);
    for node in nodes {
        if json {
            output::json(&node)?;
            continue;
        }
        let state = match node.state {
            NodeState::Ready => "READY",
            NodeState::Draining => "DRAINING",
            NodeState::Unhealthy => "UNHEALTHY",
        };
        let fresh = if node.lost {
            "lost"
        } else if node.fresh {
            "yes"
        } else {
            "no"
        };
        table.row(vec![
            node.id.to_string(),
            state.to_owned(),
            fresh.to_owned(),
            format!("{}/{}", node.slots_used, node.slots),
            CpuMillis(node.cpu_millis).to_string(),
            Bytes(node.memory_bytes).to_string(),
            node.engine_version.clone(),
            node.endpoint.clone(),
            or_dash(node.reason.as_ref()),
        ]);
    }
    if json { Ok(()) } else { table.print() }
}
