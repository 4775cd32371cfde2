//! `leasehold recipe verify`: exported histories, replayed read-only against a recipe and this binary.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;

use super::super::{CliError, Exit, one_line, output};
use crate::recipe::{
    bundle::Bundle,
    compile,
    compiled::Recipe,
    execution::{BadHistory, History, Verified},
};

/// Replay exported histories against a recipe: would jobs that have run still be understood?
///
/// Nothing runs. Exit 0 when every history is consistent; 1 when any is not, or cannot be read; 2 when the recipe has a
/// mistake or there is no history of it; 4 when there is no such file or folder. Needs no database.
#[derive(Debug, clap::Args)]
#[command(after_help = "A history is what `leasehold job replay ID --export` prints.\n\n\
                        Example: leasehold recipe verify process.yaml --histories histories/")]
pub(super) struct Args {
    /// The recipe
    #[arg(value_name = "FILE", required_unless_present = "pinned", conflicts_with = "pinned")]
    file: Option<PathBuf>,
    /// A folder of exported histories: its files whose names end in .json
    #[arg(long, value_name = "DIR")]
    histories: PathBuf,
    /// Replay each history against the recipe that is pinned in it: is it this binary that differs?
    #[arg(long)]
    pinned: bool,
    /// One JSON object a history
    #[arg(long)]
    json: bool,
}

#[derive(Serialize, Default)]
struct Told<'a> {
    history: String,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordinal: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recipe: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let recipe = match &args.file {
        Some(file) => match read(file) {
            Ok(recipe) => Some(recipe),
            Err(told) => {
                for line in told {
                    output::line(&one_line(&line))?;
                }
                return Ok(Exit::of_file(file));
            }
        },
        None => None,
    };
    let files = histories(&args.histories)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|e| CliError::new(Exit::Failed, format!("cannot replay: {e}")))?;
    let (mut exit, mut verified) = (Exit::Ok, 0_usize);
    for file in files {
        let history = text(&file).and_then(|text| History::parse(&text).map_err(|e| e.to_string()));
        let answer = history.and_then(|history| {
            let verdict = runtime.block_on(history.verify(recipe.as_ref()));
            verdict.map(|verdict| (history.job(), verdict)).map_err(|e: BadHistory| e.to_string())
        });
        let mut told = Told { history: file.display().to_string(), ..Told::default() };
        if let Ok((job, _)) = &answer {
            told.job = Some(job.0);
        }
        let words = match &answer {
            Ok((_, Verified::Consistent)) => {
                verified += 1;
                told.verdict = "consistent";
                String::new()
            }
            Ok((_, Verified::NotDeterministic(at))) => {
                verified += 1;
                exit = Exit::Failed;
                told.verdict = "not_deterministic";
                (told.path, told.ordinal) = (Some(at.path.as_str()), Some(at.ordinal));
                (told.expected, told.found) = (Some(at.expected.as_str()), Some(at.found.as_str()));
                format!(
                    ": {} (record {}): recorded: {}; found: {}",
                    at.path, at.ordinal, at.expected, at.found
                )
            }
            Ok((_, Verified::OtherRecipe { recipe })) => {
                told.verdict = "other_recipe";
                told.recipe = Some(recipe);
                format!(": a job of {recipe}")
            }
            Err(reason) => {
                verified += 1;
                exit = Exit::Failed;
                told.verdict = "unreadable";
                told.reason = Some(reason.clone());
                format!(": {reason}")
            }
        };
        if args.json {
            output::json(&told)?;
        } else {
            output::line(&one_line(&format!("{}: {}{words}", told.history, told.verdict)))?;
        }
    }
    if verified == 0 {
        let folder = args.histories.display();
        return Err(CliError::usage(format!(
            "there is no history of this recipe in {folder}; make one: leasehold job replay ID --export > {folder}/ID.json"
        )));
    }
    Ok(exit)
}

fn read(file: &Path) -> Result<Arc<Recipe>, Vec<String>> {
    let compiled = Bundle::read(file).and_then(|bundle| compile(&bundle));
    compiled.map(Arc::new).map_err(|mut found| {
        found.below(file);
        found.mistakes.iter().map(ToString::to_string).collect()
    })
}

/// The text of a file; anything else, such as a pipe that nobody writes to, is told and not waited for.
fn text(file: &Path) -> Result<String, String> {
    if !fs::metadata(file).map_err(|e| e.to_string())?.is_file() {
        return Err("it is not a file".to_owned());
    }
    fs::read_to_string(file).map_err(|e| e.to_string())
}

fn histories(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let unreadable = |e| CliError::unreadable(format!("cannot read {}: {e}", folder.display()), &e);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
