//! `leasehold schema …`: JSON Schemas for what recipes and their ops take and give.

use std::path::PathBuf;

use clap::Subcommand;
use leasehold_actors::{domain::Route, ports::recipe::RecipeStore as _};

use super::{
    CliError, Exit,
    output::{self, Listing, instant, or_dash},
    store,
};
use crate::{config::Effective, recipe::schemas};

/// JSON Schemas for what recipes and their ops take and give
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold schema register --route recipe/resize --input resize.schema.json")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what is asked of recipes of a type, or of one of its ops, from now on
    ///
    /// Jobs that were submitted before stay under what they were submitted under. What is left out is asked no more.
    #[command(after_help = "Example: leasehold schema register --route recipe --input inputs.schema.json\n\
                            Example: leasehold schema register --route recipe/resize --output resized.schema.json")]
    Register {
        /// The type of recipes, and with a slash the op: recipe, or recipe/resize
        #[arg(long, value_name = "TYPE[/OP]")]
        route: String,
        /// The schema of the inputs
        #[arg(long, value_name = "FILE")]
        input: Option<PathBuf>,
        /// The schema of the output
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// One JSON object that says what is asked now
        #[arg(long)]
        json: bool,
    },
    /// List what is asked of jobs that are submitted now
    #[command(after_help = "Example: leasehold schema list --json")]
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Print a schema
    #[command(
        after_help = "Example: leasehold schema show 44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    )]
    Show {
        /// Its digest, as `leasehold schema list` shows it
        digest: String,
    },
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let namespace = settings.namespace();
    let asked = match &args.command {
        Command::Register { route, input, output, .. } => Some(read(route, input.as_ref(), output.as_ref())?),
        _ => None,
    };
    store::with_store(settings, async |store| {
        match (&args.command, &asked) {
            (Command::Register { route, json, .. }, Some((of, schemas))) => {
                let changed = store.register_schema(&namespace, of, schemas).await?;
                let what = if changed { "registered" } else { "unchanged" };
                let [input, output] = [&schemas.input, &schemas.output]
                    .map(|side| side.as_ref().map(|schema| schema.digest.clone()));
                if *json {
                    output::json(&serde_json::json!({
                        "job_type": of.name, "op": of.task, "changed": changed, "input": input, "output": output,
                    }))?;
                } else {
                    // What was left out is asked no more, which is easily overlooked.
                    let words = |side: Option<String>| side.map_or("anything", |_| "its schema");
                    let asked = format!("inputs: {}, output: {}", words(input), words(output));
                    output::line(&super::one_line(&format!("{route} {what}; {asked}")))?;
                }
            }
            (Command::Show { digest }, _) => {
                let found = store.schema_texts(&namespace, std::slice::from_ref(digest)).await?;
                let schema = found.first().ok_or_else(|| {
                    let unknown = format!("there is no schema {digest}; see `leasehold schema list`");
                    CliError::new(Exit::NotFound, unknown)
                })?;
                output::line(&super::text::json(schema.text.replace(['\n', '\r'], " ")))?;
            }
            _ => {
                let json = matches!(args.command, Command::List { json: true });
                let mut table = Listing::new(&["type", "op", "input", "output", "registered"]);
                for row in store.schema_list(&namespace).await? {
                    if json {
                        output::json(&row)?;
                        continue;
                    }
                    let op = Some(row.op).filter(|op| !op.is_empty());
                    table.row(vec![
                        row.job_type,
                        or_dash(op),
                        or_dash(row.input),
                        or_dash(row.output),
                        instant(row.registered_at),
                    ]);
                }
                if !json {
                    table.print()?;
                }
            }
        }
        Ok(Exit::Ok)
    })
}

type Asked = (Route, leasehold_actors::ports::recipe::RouteSchemas);

fn read(route: &str, input: Option<&PathBuf>, output: Option<&PathBuf>) -> Result<Asked, CliError> {
    let (job_type, op) = route.split_once('/').unwrap_or((route, ""));
    crate::submission::text_name("--route", job_type).map_err(|e| CliError::usage(e.to_string()))?;
    if route.ends_with('/') || op.chars().any(char::is_control) || op.len() > 100 {
        return Err(CliError::usage("--route: write TYPE, or TYPE/OP with an op of 1 to 100 bytes"));
    }
    let text = |file: Option<&PathBuf>| {
        file.map(|file| {
            std::fs::read_to_string(file)
                .map_err(|e| CliError::unreadable(format!("{}: {e}", file.display()), &e))
        })
        .transpose()
    };
    let (input_text, output_text) = (text(input)?, text(output)?);
    let schemas =
        schemas::route_schemas(input_text.as_deref(), output_text.as_deref()).map_err(|(side, error)| {
            let file = if side == "input" { input } else { output };
            let file = file.map_or_else(String::new, |file| format!("{}: ", file.display()));
            CliError::usage(format!("{file}{error}"))
        })?;
    Ok((Route::recipe(job_type, op), schemas))
}
