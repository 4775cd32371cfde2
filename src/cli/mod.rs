//! The command line: one file per command, no logic of its own. A command reads its flags, calls the library,
//! prints, and answers with an [`Exit`].

mod allocation;
mod bench;
mod completions;
mod config;
mod demo;
mod dev;
mod doctor;
mod error;
mod flags;
mod follow;
mod job;
mod job_args;
mod jobs;
mod lease;
mod man;
mod migrate;
mod node;
mod output;
mod recipe;
mod recipe_args;
mod run;
mod run_with_lease;
mod schema;
mod steps;
mod store;
mod submit;
mod text;
mod worker;
mod workflow;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub use error::{CliError, Exit};
pub use job_args::JobArgs;
pub use text::{Neutralizer, one_line};

use crate::config::Effective;

/// Durable job leases and an execution-aware worker fleet on PostgreSQL and Docker.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 ok, 1 the job or check failed, 2 usage or configuration, 3 lease refused or lost, \
                  4 not found, 5 refused or conflict, 6 unreachable or answer unknown.\n\n\
                  Example: leasehold dev --demo"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Dev(dev::Args),
    Migrate(migrate::Args),
    Worker(worker::Args),
    Node(node::Args),
    Submit(submit::Args),
    Run(run::Args),
    RunWithLease(run_with_lease::Args),
    Jobs(jobs::Args),
    Job(job::Args),
    Workflow(workflow::Args),
    Recipe(recipe::Args),
    Lease(lease::Args),
    Schema(schema::Args),
    Allocation(allocation::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
    Config(config::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// The command line as clap knows it, settings included.
#[must_use]
pub fn command() -> clap::Command {
    flags::add_to(Cli::command())
}

/// Runs the command that this process was called with.
#[must_use]
pub fn main() -> ExitCode {
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    let outcome = Cli::from_arg_matches(&matches)
        .map_err(|e| CliError::usage(e.to_string()))
        .and_then(|cli| Ok((cli, flags::effective(&matches)?)))
        .and_then(|(cli, settings)| dispatch(cli.command, &settings));
    match outcome {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => fail(&error),
    }
}

fn dispatch(command: Command, settings: &Effective) -> Result<Exit, CliError> {
    match command {
        Command::Dev(args) => dev::run(&args, settings),
        Command::Migrate(args) => migrate::run(&args, settings),
        Command::Worker(args) => worker::run(&args, settings),
        Command::Node(args) => node::run(&args, settings),
        Command::Submit(args) => submit::run(&args, settings),
        Command::Run(args) => run::run(&args, settings),
        Command::RunWithLease(args) => run_with_lease::run(&args, settings),
        Command::Jobs(args) => jobs::run(&args, settings),
        Command::Job(args) => job::run(&args, settings),
        Command::Workflow(args) => workflow::run(&args, settings),
        Command::Recipe(args) => recipe::run(&args),
        Command::Lease(args) => lease::run(&args, settings),
        Command::Schema(args) => schema::run(&args, settings),
        Command::Allocation(args) => allocation::run(&args, settings),
        Command::Doctor(args) => doctor::run(&args, settings),
        Command::Bench(args) => bench::run(&args, settings),
        Command::Config(args) => config::run(&args, settings),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

fn fail(error: &CliError) -> ExitCode {
    if !error.message.is_empty() {
        eprintln!("error: {}", error.line());
    }
    ExitCode::from(error.exit.code())
}

/// clap's answers: help and version as they are, mistakes as one line with the next step.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(Exit::Usage.code())
        }
        _ => fail(&CliError::usage(condense(&error.to_string(), &path_of(words())))),
    }
}

/// Our arguments. One that is no UTF-8 is a mistake to be told, and not one to fall over.
fn words() -> impl Iterator<Item = String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned())
}

/// The command that was meant, as far as its words are known: `leasehold job show`.
fn path_of(arguments: impl Iterator<Item = String>) -> String {
    let mut at = command();
    let mut path = at.get_name().to_owned();
    for word in arguments.skip(1) {
        let Some(sub) = at.find_subcommand(&word).cloned() else { continue };
        path = format!("{path} {}", sub.get_name());
        at = sub;
    }
    path
}

/// clap's page on one line: the mistake, the arguments that it lists, the tip, and where to read on.
fn condense(page: &str, path: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for line in page.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            continue;
        }
        let line = line.strip_prefix("error: ").or_else(|| line.strip_prefix("tip: ")).unwrap_or(line);
        match parts.last_mut() {
            Some(last) if last.ends_with(':') => *last = format!("{last} {line}"),
            _ => parts.push(line.to_owned()),
        }
    }
    format!("{}; see `{path} --help`", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(command: &clap::Command) -> Vec<clap::Command> {
        let mut found = vec![command.clone()];
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            found.extend(all(sub));
        }
        found
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        for mut command in all(&command()) {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{} shows no example:\n{help}", command.get_name());
        }
    }

    #[test]
    fn a_mistake_is_one_line_with_the_next_step() {
        for (args, path) in [
            (&["leasehold", "confg"][..], "leasehold"),
            (&["leasehold", "config", "--jsn"], "leasehold config"),
            (&["leasehold", "job", "show"], "leasehold job show"),
            (&["leasehold", "--namespace", "x", "job", "cancel", "7x"], "leasehold job cancel"),
        ] {
            let error = command().try_get_matches_from(args).unwrap_err();
            let path_found = path_of(args.iter().map(|word| (*word).to_owned()));
            assert_eq!(path_found, path);
            let line = CliError::usage(condense(&error.to_string(), &path_found)).line();
            assert!(line.ends_with(&format!("see `{path} --help`")), "{line}");
            assert_eq!(line.lines().count(), 1);
        }
    }
}
