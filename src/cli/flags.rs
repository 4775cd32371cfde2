//! The settings as flags: made from the one table, so that no setting can lack its flag.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::error::CliError;
use crate::{
    config::{
        Effective, Origin, Sources,
        table::{Fallback, Key, Kind, SWITCH, Scope, Setting, TABLE},
    },
    dev::folder,
};

const CONFIG: &str = "config-file";

/// Adds the settings' flags to the commands that take them.
pub(super) fn add_to(command: Command) -> Command {
    let config = Arg::new(CONFIG)
        .long("config")
        .value_name("FILE")
        .global(true)
        .help_heading("Settings")
        .display_order(999)
        .help("A TOML file of settings: the variables' names in lower case [env: LEASEHOLD_CONFIG]");
    let mut command = command.arg(config).args(rows(&[Scope::Everywhere]).map(|row| arg(row).global(true)));
    for (name, scopes) in [
        ("worker", &[Scope::Worker, Scope::Fleet, Scope::Allocation][..]),
        ("run-with-lease", &[Scope::Worker, Scope::Allocation]),
        ("node", &[Scope::Node, Scope::Fleet]),
        ("dev", &[Scope::Worker, Scope::Node, Scope::Fleet, Scope::Allocation]),
        ("config", &[Scope::Worker, Scope::Node, Scope::Fleet, Scope::Allocation]),
        ("allocation", &[Scope::Allocation]),
    ] {
        command = command.mut_subcommand(name, |sub| sub.args(rows(scopes).map(arg)));
    }
    // It drains as a worker does, and has nothing else of what concerns many jobs.
    let grace = |row: &&'static Setting| row.key == Key::ShutdownGrace;
    command = command
        .mut_subcommand("run-with-lease", |sub| sub.args(rows(&[Scope::Fleet]).filter(grace).map(arg)));
    // Whoever acquires a lease holds it under a name, for a while, and does nothing else of a worker.
    let acquirer = |row: &&'static Setting| {
        matches!(
            row.key,
            Key::WorkerId | Key::LeaseDuration | Key::RenewInterval | Key::SafetyMargin | Key::StoreTimeout
        )
    };
    command.mut_subcommand("lease", |lease| {
        lease.mut_subcommand("acquire", |sub| sub.args(rows(&[Scope::Worker]).filter(acquirer).map(arg)))
    })
}

fn rows(scopes: &[Scope]) -> impl Iterator<Item = &'static Setting> {
    let scopes = scopes.to_vec();
    TABLE.iter().filter(move |row| scopes.contains(&row.scope))
}

fn arg(row: &'static Setting) -> Arg {
    let default = match row.fallback {
        Fallback::Unset => String::new(),
        _ => format!(" [default: {}]", row.default_text()),
    };
    let arg = Arg::new(row.name)
        .long(row.flag)
        .value_name("VALUE")
        // A bad value is refused by the same words as from the environment or the file, also "-5s".
        .allow_hyphen_values(true)
        .hide_short_help(!matches!(
            row.key,
            Key::DatabaseUrl | Key::Namespace | Key::DockerEndpoint | Key::MaxConcurrency
        ))
        .help_heading("Settings")
        .display_order(1000 + row.key as usize)
        .help(format!("{} [env: {}]{default}", row.help, row.name));
    match row.kind {
        // `--allow-commands` alone, or `--allow-commands=false`.
        SWITCH => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        Kind::List => arg.action(ArgAction::Append),
        _ => arg,
    }
}

/// All settings in force for this invocation. Without a database address, a running `dev` of the default folder
/// gives its own.
pub(super) fn effective(matches: &ArgMatches) -> Result<Effective, CliError> {
    let (mut given, mut file) = (BTreeMap::new(), None);
    let mut level = Some(matches);
    while let Some(current) = level {
        for row in TABLE {
            if let Ok(Some(texts)) = current.try_get_many::<String>(row.name) {
                // A list may be given in one piece or in several; everything else only once.
                given.insert(row.key, texts.cloned().collect::<Vec<_>>().join(","));
            }
        }
        if let Ok(Some(path)) = current.try_get_one::<String>(CONFIG) {
            file = Some(PathBuf::from(path));
        }
        level = current.subcommand().map(|(_, sub)| sub);
    }
    let mut effective = Effective::load(&Sources::of_process(given, file))?;
    for name in &effective.unknown_variables {
        super::output::note(&format!("warning: {name} is set but is no setting; see `leasehold config`"));
    }
    if !effective.is_given(Key::DatabaseUrl) {
        let default = Path::new(folder::DEFAULT_FOLDER);
        if let Some(url) = folder::running_database(default) {
            effective.set(Key::DatabaseUrl, &url, Origin::Dev(default.to_owned()))?;
        }
    }
    Ok(effective)
}
