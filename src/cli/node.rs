//! `leasehold node`: the agent of a runtime node, and `node list|drain|undrain|forget`.

use clap::Subcommand;
use leasehold_actors::domain::{
    NodeId,
    quantity::{Bytes, CpuMillis},
};
use tokio::runtime::Handle;

use super::{
    CliError, Exit,
    output::{self, Listing, or_dash},
    store,
};
use crate::{
    config::Effective,
    node_agent::{self, NodeError},
    postgres::{
        PgStore,
        nodes::{NodeForgotten, NodeState},
    },
    telemetry,
};

/// Register a Docker engine as a runtime node and keep it fresh until SIGTERM; or look after nodes
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example: leasehold node --docker-endpoint unix:///var/run/docker.sock --max-concurrency 4\n\
                  Example: leasehold node drain builder-1"
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
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
    ///
    /// Refused while jobs are RUNNING there. With --force its engine counts as gone: the jobs go on under their
    /// workers as long as their leases are renewed, are given to other workers once those expire, and what still
    /// runs on the engine then is out of everybody's reach.
    #[command(after_help = "Example: leasehold node forget builder-1")]
    Forget {
        /// The node
        node: NodeId,
        /// Also when jobs are RUNNING there: for a machine that does not come back
        #[arg(long)]
        force: bool,
    },
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let Some(command) = &args.command else { return agent(settings) };
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
                            "{node} runs jobs ({}); drain it and wait, or, if it does not come back, use --force: its \
                             engine then counts as gone, and what still runs there is out of reach",
                            jobs.join(", ")
                        ),
                    ));
                }
                NodeForgotten::Forgotten { running } if running.is_empty() => {
                    output::line(&format!("{node} is forgotten"))?;
                }
                NodeForgotten::Forgotten { running } => {
                    let jobs: Vec<String> = running.iter().map(ToString::to_string).collect();
                    output::line(&format!(
                        "{node} is forgotten; jobs {} keep running only as long as their workers renew them",
                        jobs.join(", ")
                    ))?;
                }
            },
        }
        Ok(Exit::Ok)
    })
}

/// Serves a node until it is told to stop.
fn agent(settings: &Effective) -> Result<Exit, CliError> {
    let node = settings.node()?;
    let database = settings.database("leasehold node")?;
    telemetry::init("info")?;
    for warning in node.warnings() {
        tracing::warn!("{warning}");
    }
    tracing::info!(settings = ?settings, "starting the agent of a runtime node");
    store::runtime()?.block_on(async {
        let signals = super::worker::listen()?;
        let store = PgStore::connect(&database, Handle::current()).await?;
        let exit = node_agent::run_or_now(node, store, signals.first(), signals.second()).await?;
        tracing::info!("{exit}");
        // What still runs belongs to its worker: the agent has done its part.
        Ok(Exit::Ok)
    })
}

impl From<NodeError> for CliError {
    fn from(error: NodeError) -> Self {
        let exit = match error {
            NodeError::Store(e) => return e.into(),
            NodeError::Name(_) | NodeError::Connect(_) => Exit::Usage,
            NodeError::Engine { .. } => Exit::Unreachable,
            NodeError::LiveElsewhere { .. } | NodeError::TakenAway { .. } => Exit::Refused,
            NodeError::PartDied { .. } | NodeError::NoThread { .. } => Exit::Failed,
        };
        Self::new(exit, error.to_string())
    }
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
