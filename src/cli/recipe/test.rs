//! `leasehold recipe test`: test files beside recipes, played in a time of their own.

use std::path::PathBuf;

use serde::Serialize;

use super::super::{CliError, Exit, one_line, output};
use crate::recipe::{
    Mistake,
    rehearsal::{Suite, Verdict, span},
};

/// Run the tests of recipes: ops answer what a test file says, and no time passes
///
/// Exit 0 when all are as they should be; 1 when any is not; 2 when a test file or its recipe has a mistake; 4 when a test
/// file is not there. Needs no database.
#[derive(Debug, clap::Args)]
#[command(after_help = "The grammar of test files is in docs/recipes.md.\n\n\
                        Example: leasehold recipe test --crash recipes/tests/*.yaml")]
pub(super) struct Args {
    /// Test files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Play each test once more with a worker that crashes behind every event: nothing may differ
    #[arg(long)]
    crash: bool,
    /// One JSON object a test, or a file that cannot be used
    #[arg(long)]
    json: bool,
}

/// What `--json` says of a test.
#[derive(Serialize)]
struct Told<'a> {
    file: &'a str,
    test: &'a str,
    ok: bool,
    tasks: usize,
    handoffs: usize,
    took_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    crashes: Option<u32>,
    problems: &'a [Mistake],
}

/// What `--json` says of a file that cannot be used.
#[derive(Serialize)]
struct Unusable<'a> {
    file: String,
    ok: bool,
    mistakes: &'a [Mistake],
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let mut exit = Exit::Ok;
    let (mut good, mut bad) = (0_usize, 0_usize);
    for file in &args.files {
        let suite = match Suite::read(file) {
            Ok(suite) => suite,
            Err(found) => {
                exit = exit.or(Exit::of_file(file));
                if args.json {
                    let file = file.display().to_string();
                    output::json(&Unusable { file, ok: false, mistakes: &found.mistakes })?;
                } else {
                    for mistake in &found.mistakes {
                        output::line(&one_line(&mistake.to_string()))?;
                    }
                }
                continue;
            }
        };
        for verdict in suite.run(args.crash) {
            if verdict.is_good() {
                good += 1;
            } else {
                bad += 1;
                exit = exit.or(Exit::Failed);
            }
            tell(&verdict, args.json)?;
        }
    }
    if !args.json {
        let failed = if bad == 0 { String::new() } else { format!(", {bad} failed") };
        output::line(&format!("{good} ok{failed}"))?;
    }
    Ok(exit)
}

fn tell(verdict: &Verdict, json: bool) -> Result<(), CliError> {
    if json {
        return output::json(&Told {
            file: &verdict.file,
            test: &verdict.name,
            ok: verdict.is_good(),
            tasks: verdict.tasks,
            handoffs: verdict.handoffs,
            took_ms: u64::try_from(verdict.took.as_millis()).unwrap_or(u64::MAX),
            crashes: verdict.crashes,
            problems: &verdict.problems,
        });
    }
    let mark = if verdict.is_good() { "ok  " } else { "FAIL" };
    output::line(&one_line(&format!("{mark} {}: {} ({})", verdict.file, verdict.name, way(verdict))))?;
    for problem in &verdict.problems {
        output::line(&format!("     {}", one_line(&problem.to_string())))?;
    }
    Ok(())
}

/// How the job went, in a few words.
fn way(verdict: &Verdict) -> String {
    let counted = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut words = vec![counted(verdict.tasks, "task")];
    if verdict.handoffs > 0 {
        words.push(counted(verdict.handoffs, "handoff"));
    }
    words.push(span(verdict.took));
    if let Some(crashes) = verdict.crashes {
        words.push(counted(crashes as usize, "crash").replace("crashs", "crashes"));
    }
    words.join(", ")
}
