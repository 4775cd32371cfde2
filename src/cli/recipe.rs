//! `leasehold recipe`: recipes before they are submitted. Needs no database.

mod test;
mod verify;

use std::{collections::BTreeSet, fs, path::PathBuf};

use clap::Subcommand;
use serde::Serialize;

use super::{CliError, Exit, output};
use crate::recipe::{Mistake, Mistakes, bundle::Bundle, compile, compiled::Recipe, schema, template::Trial};

/// Check, test and verify recipes, print their schema, try out templates
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold recipe check process.yaml")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check recipe files and everything that they include
    ///
    /// Exit 0 when all are good; 2 when any has a mistake, each told with file, line and column; 4 when one is not there.
    #[command(after_help = "Example: leasehold recipe check recipes/*.yaml")]
    Check {
        /// Recipe files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// One JSON object a file
        #[arg(long)]
        json: bool,
    },
    Test(test::Args),
    Verify(verify::Args),
    /// Print the JSON Schema of recipe files
    #[command(after_help = "Example: leasehold recipe schema > recipe.schema.json")]
    Schema,
    /// Evaluate templates against values from a file
    ///
    /// Prints one line of JSON for each template: its value, or an error. Exit 1 when any has no value.
    #[command(after_help = "Example: leasehold recipe eval --values values.json '${{ inputs.size * 2 }}'")]
    Eval {
        /// A JSON object: {"inputs": …, "vars": …, "sequence": {"ID": {"outputs": …}}, …}
        #[arg(long, value_name = "FILE")]
        values: PathBuf,
        /// Texts with templates
        #[arg(required = true, value_name = "TEMPLATE")]
        templates: Vec<String>,
    },
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    match &args.command {
        Command::Check { files, json } => check(files, *json),
        Command::Test(args) => test::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Schema => {
            let text = serde_json::to_string_pretty(&schema::schema())
                .map_err(|e| CliError::new(Exit::Failed, format!("cannot write the schema: {e}")))?;
            output::line(&text)?;
            Ok(Exit::Ok)
        }
        Command::Eval { values, templates } => eval(values, templates),
    }
}

/// What `check --json` says of a file.
#[derive(Serialize)]
struct Checked<'a> {
    file: String,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
    /// Ops that are not built in: a Rust program must bring them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    ops_to_bring: BTreeSet<&'a str>,
    mistakes: &'a [Mistake],
}

fn check(files: &[PathBuf], json: bool) -> Result<Exit, CliError> {
    let mut exit = Exit::Ok;
    for file in files {
        let checked = Bundle::read(file).and_then(|bundle| {
            let recipe = compile(&bundle)?;
            Ok((recipe, bundle.digest()))
        });
        let checked = checked.map_err(|mut found| {
            found.below(file);
            found
        });
        if checked.is_err() {
            exit = exit.or(Exit::of_file(file));
        }
        tell(file.display().to_string(), &checked, json)?;
    }
    Ok(exit)
}

fn tell(file: String, checked: &Result<(Recipe, String), Mistakes>, json: bool) -> Result<(), CliError> {
    match checked {
        Ok((recipe, digest)) if json => output::json(&Checked {
            file,
            ok: true,
            id: Some(&recipe.id),
            nodes: Some(recipe.nodes),
            digest: Some(digest),
            ops_to_bring: recipe.ops_to_bring(),
            mistakes: &[],
        }),
        Ok((recipe, _)) => {
            let plural = if recipe.nodes == 1 { "" } else { "s" };
            // A name that is misspelled is no mistake of form: such a job would wait for a worker that never comes.
            let ops: Vec<&str> = recipe.ops_to_bring().into_iter().collect();
            let ops = match ops.as_slice() {
                [] => String::new(),
                ops => format!("; not built in, a worker must bring: {}", ops.join(", ")),
            };
            output::line(&super::one_line(&format!("{file}: ok, {} node{plural}{ops}", recipe.nodes)))
        }
        Err(found) if json => output::json(&Checked {
            file,
            ok: false,
            id: None,
            nodes: None,
            digest: None,
            ops_to_bring: BTreeSet::new(),
            mistakes: &found.mistakes,
        }),
        Err(found) => {
            for mistake in &found.mistakes {
                output::line(&super::one_line(&mistake.to_string()))?;
            }
            Ok(())
        }
    }
}

/// What `eval` says of a template without a value.
#[derive(Serialize)]
struct NoValue {
    error: &'static str,
    message: String,
}

fn eval(values: &PathBuf, templates: &[String]) -> Result<Exit, CliError> {
    let text = fs::read_to_string(values)
        .map_err(|e| CliError::unreadable(format!("cannot read {}: {e}", values.display()), &e))?;
    let trial = Trial::new(&text)
        .map_err(|e| CliError::usage(format!("{} cannot be used: it {e}", values.display())))?;
    let mut exit = Exit::Ok;
    for template in templates {
        match trial.evaluate(template) {
            // A value may hold line breaks between its parts, as it was written: one line each all the same.
            Ok(value) => output::line(&super::text::json(value.replace(['\n', '\r'], " ")))?,
            Err(error) => {
                exit = Exit::Failed;
                output::json(&NoValue { error: error.code(), message: error.to_string() })?;
            }
        }
    }
    Ok(exit)
}
