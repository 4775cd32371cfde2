//! The command line: one file per command, no logic of its own. A command reads its flags, calls the library,
//! prints, and answers with an [`Exit`].

mod completions;
mod config;
mod error;
mod flags;
mod follow;
mod job;
mod job_args;
mod jobs;
mod man;
mod migrate;
mod node;
mod output;
mod run;
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
    Migrate(migrate::Args),
    Worker(worker::Args),
    Node(node::Args),
    Submit(submit::Args),
    Run(run::Args),
    Jobs(jobs::Args),
    Job(job::Args),
    Workflow(workflow::Args),
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
        Command::Migrate(args) => migrate::run(&args, settings),
        Command::Worker(args) => worker::run(&args, settings),
        Command::Node(args) => node::run(&args, settings),
        Command::Submit(args) => submit::run(&args, settings),
        Command::Run(args) => run::run(&args, settings),
        Command::Jobs(args) => jobs::run(&args, settings),
        Command::Job(args) => job::run(&args, settings),
        Command::Workflow(args) => workflow::run(&args, settings),
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
        _ => fail(&CliError::usage(condense(&error.to_string()))),
    }
}

/// `error: …`, the arguments that it lists, and the tip; the rest of clap's page is what --help is for.
fn condense(page: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut help = "leasehold --help".to_owned();
    for line in page.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(usage) = line.strip_prefix("Usage:") {
            let words: Vec<&str> =
                usage.split_whitespace().take_while(|w| !w.starts_with(['-', '[', '<'])).collect();
            help = format!("{} --help", words.join(" "));
        } else if let Some(tip) = line.strip_prefix("tip: ") {
            parts.push(tip.to_owned());
        } else if !line.starts_with("For more information") {
            let line = line.strip_prefix("error: ").unwrap_or(line);
            match parts.last_mut() {
                Some(last) if last.ends_with(':') => *last = format!("{last} {line}"),
                _ => parts.push(line.to_owned()),
            }
        }
    }
    format!("{}; see `{help}`", parts.join("; "))
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
        for args in
            [&["leasehold", "confg"][..], &["leasehold", "config", "--jsn"], &["leasehold", "completions"]]
        {
            let error = command().try_get_matches_from(args).unwrap_err();
            let line = CliError::usage(condense(&error.to_string())).line();
            assert!(line.contains("--help`"), "{line}");
            assert_eq!(line.lines().count(), 1);
        }
    }
}
