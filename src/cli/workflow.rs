//! `leasehold workflow …`.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use leasehold_actors::domain::NewJob;

use super::{
    CliError, Exit,
    output::{self, Listing, instant},
    store,
};
use crate::{
    config::Effective,
    postgres::{
        PgStore,
        workflow::{WorkflowChanged, WorkflowDetail, WorkflowError},
    },
    submission::document::WorkflowDocument,
};

/// Named, versioned definitions: apply them from YAML, look at them, pause, trigger or end them
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: leasehold workflow apply nightly.yaml && leasehold workflow trigger nightly"
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create or change workflows as a YAML file says
    #[command(after_help = "Example: leasehold workflow apply nightly.yaml\n\n\
        name: nightly\ncontainer:\n  image: busybox\n  command: [sh, -c, \"echo report\"]\n  memory: 64Mi\n\
        overlap: serial\nretry: {max_user: 3, backoff: 1s}")]
    Apply {
        /// The file; `-` is standard input
        file: PathBuf,
    },
    /// List workflows
    #[command(after_help = "Example: leasehold workflow list --json")]
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Show a workflow and its generations
    #[command(after_help = "Example: leasehold workflow show nightly")]
    Show {
        /// Its name
        name: String,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let no run start until it is resumed
    #[command(after_help = "Example: leasehold workflow pause nightly")]
    Pause {
        /// Its name
        name: String,
    },
    /// Let runs start again
    #[command(after_help = "Example: leasehold workflow resume nightly")]
    Resume {
        /// Its name
        name: String,
    },
    /// Submit a run
    #[command(after_help = "Example: leasehold workflow trigger nightly")]
    Trigger {
        /// Its name
        name: String,
        /// A repeat of the same request with this key returns the first job
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
    },
    /// End it for good: no run starts any more
    #[command(after_help = "Example: leasehold workflow terminate nightly")]
    Terminate {
        /// Its name
        name: String,
    },
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let namespace = settings.namespace();
    let documents = match &args.command {
        Command::Apply { file } => read(file, settings)?,
        _ => Vec::new(),
    };
    store::with_store(settings, async |store| {
        match &args.command {
            Command::Apply { .. } => apply(&store, &documents).await?,
            Command::List { json } => list(&store, settings, *json).await?,
            Command::Show { name, json } => {
                let found = store.workflow_show(&namespace, name).await?;
                let workflow = found.ok_or_else(|| WorkflowError::NotFound { name: name.clone() })?;
                if *json { output::json(&workflow)? } else { show(&workflow)? }
            }
            Command::Pause { name } => say(name, "paused", &store.workflow_pause(&namespace, name).await?)?,
            Command::Resume { name } => {
                say(name, "resumed", &store.workflow_resume(&namespace, name).await?)?
            }
            Command::Terminate { name } => {
                say(name, "terminated", &store.workflow_terminate(&namespace, name).await?)?;
            }
            Command::Trigger { name, idempotency_key } => {
                let mut job = NewJob::of_workflow(name);
                job.namespace = namespace.clone();
                job.idempotency_key.clone_from(idempotency_key);
                output::line(&store.submit(&job).await?.job.to_string())?;
            }
        }
        Ok(Exit::Ok)
    })
}

fn read(file: &PathBuf, settings: &Effective) -> Result<Vec<WorkflowDocument>, CliError> {
    let name = file.display();
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let text =
        text.map_err(|e| CliError::unreadable(format!("{name}: {e}; name a readable UTF-8 file"), &e))?;
    let folder = file.parent().filter(|_| file.as_os_str() != "-").unwrap_or_else(|| Path::new(""));
    WorkflowDocument::parse_all_in(&text, &settings.namespace(), folder)
        .map_err(|e| CliError::usage(format!("{name}: {e}")))
}

async fn apply(store: &PgStore, documents: &[WorkflowDocument]) -> Result<(), CliError> {
    for document in documents {
        let changed = store.workflow_apply(document).await?;
        say(&document.name, "changed", &changed)?;
    }
    Ok(())
}

fn say(name: &str, verb: &str, changed: &WorkflowChanged) -> Result<(), CliError> {
    let name = super::one_line(name);
    output::line(&match changed {
        WorkflowChanged::Created { generation } => format!("{name} created, generation {generation}"),
        WorkflowChanged::Unchanged { generation } => format!("{name} unchanged, generation {generation}"),
        WorkflowChanged::Changed { generation, superseded, moved } => {
            let mut words = format!("{name} {verb}, generation {generation}");
            if *superseded > 0 {
                words.push_str(&format!("; {superseded} older runs were superseded"));
            }
            if *moved > 0 {
                words.push_str(&format!(
                    "; {moved} runs {}",
                    if verb == "resumed" { "wait no more" } else { "wait" }
                ));
            }
            words
        }
    })
}

async fn list(store: &PgStore, settings: &Effective, json: bool) -> Result<(), CliError> {
    let mut table = Listing::new(&["name", "state", "generation", "kind", "overlap", "priority", "updated"]);
    let mut after: Option<String> = None;
    loop {
        let page = store.workflow_list(&settings.namespace(), 1000, after.as_deref()).await?;
        for row in page.items {
            if json {
                output::json(&row)?;
            } else {
                table.row(vec![
                    row.name.clone(),
                    state_word(&row.state)?,
                    row.generation.to_string(),
                    row.kind.to_string(),
                    row.overlap.clone(),
                    row.priority.to_string(),
                    instant(row.updated_at),
                ]);
            }
        }
        after = page.next;
        if after.is_none() {
            return if json { Ok(()) } else { table.print() };
        }
    }
}

/// The word that JSON uses too.
fn state_word(state: &impl serde::Serialize) -> Result<String, CliError> {
    match serde_json::to_value(state) {
        Ok(serde_json::Value::String(word)) => Ok(word),
        _ => Err(CliError::new(Exit::Failed, "a state has no name")),
    }
}

fn show(workflow: &WorkflowDetail) -> Result<(), CliError> {
    let row = &workflow.row;
    let mut facts = Listing::facts();
    for (name, value) in [
        ("workflow", row.name.clone()),
        ("state", state_word(&row.state)?),
        ("generation", row.generation.to_string()),
        ("kind", row.kind.to_string()),
        ("overlap", row.overlap.clone()),
        ("priority", row.priority.to_string()),
        ("definition", workflow.definition.get().to_owned()),
        ("payload", workflow.payload.get().to_owned()),
        ("runs", {
            let runs = &workflow.jobs;
            format!("{} PENDING, {} QUEUED, {} RUNNING", runs.pending, runs.queued, runs.running)
        }),
        ("updated", instant(row.updated_at)),
    ] {
        facts.row(vec![name.to_owned(), value]);
    }
    facts.print()?;
    let mut table = Listing::new(&["generation", "change", "when"]);
    for change in &workflow.history {
        table.row(vec![change.generation.to_string(), change.change.clone(), instant(change.changed_at)]);
    }
    table.print()
}
