//! `leasehold dev`.

use std::path::PathBuf;

use super::{CliError, Exit, demo, jobs, output, store, worker};
use crate::{
    config::{Effective, Origin, table::Key},
    dev::{Dev, DevError, DevOptions, folder},
    telemetry,
    worker::StopSignals,
};

/// Run all parts in one process on a private PostgreSQL cluster, until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The other commands, given no DATABASE_URL, use the `dev` that runs on .leasehold/dev.\n\n\
                        Example: leasehold dev --demo\n\
                        Example: leasehold dev --data-dir /tmp/try"
)]
pub(super) struct Args {
    /// Submit a few jobs and show how they run (DEMO_EXIT=1 ends after them)
    #[arg(long)]
    demo: bool,
    /// Where the cluster and all other files are kept
    #[arg(long, value_name = "DIR", default_value = folder::DEFAULT_FOLDER)]
    data_dir: PathBuf,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    // Mistakes are told before anything is started.
    settings.worker()?;
    settings.node()?;
    telemetry::init("warn")?;
    let options =
        DevOptions { folder: args.data_dir.clone(), database: database(settings)?, demo: args.demo };
    store::runtime()?.block_on(async {
        let signals = worker::listen()?;
        let start = Dev::start(&options, settings.clone(), |step| output::note(&format!("  {step}")));
        let mut dev = tokio::select! {
            dev = start => dev?,
            () = signals.first() => return Ok(Exit::Ok),
        };
        let outcome = tokio::select! {
            outcome = show(&mut dev, args.demo) => outcome,
            () = signals.first() => Ok(Exit::Ok),
        };
        stop(dev, &signals).await;
        outcome
    })
}

/// Only a flag makes dev leave its own database: one in the environment may be somebody's production.
fn database(settings: &Effective) -> Result<Option<String>, CliError> {
    match settings.origin(Key::DatabaseUrl) {
        Origin::Flag => Ok(Some(settings.database("leasehold dev")?.url)),
        Origin::Environment | Origin::File(_) => {
            output::note(
                "DATABASE_URL is set and not used: dev runs its own database; --database-url makes it use yours",
            );
            Ok(None)
        }
        Origin::Dev(_) | Origin::Default => Ok(None),
    }
}

async fn show(dev: &mut Dev, with_demo: bool) -> Result<Exit, CliError> {
    if !dev.left_running.is_empty() {
        output::note(
            "these jobs were RUNNING when dev was killed; they are taken over as their leases expire:",
        );
        jobs::print_leases(&dev.left_running)?;
    }
    output::note(&format!("  ready; {} has DATABASE_URL", dev.folder.join("env").display()));
    let mut image = "busybox".to_owned();
    if with_demo {
        let shown = demo::run(dev).await?;
        let as_intended = shown.as_intended;
        image = shown.image.unwrap_or(image);
        if std::env::var_os("DEMO_EXIT").is_some_and(|value| value == "1") {
            return Ok(if as_intended { Exit::Ok } else { Exit::Failed });
        }
    }
    hints(dev, &image, with_demo);
    let ended = dev.part_ended().await;
    Err(CliError::new(Exit::Failed, ended.to_string()))
}

fn hints(dev: &Dev, image: &str, with_demo: bool) {
    let is_default =
        std::path::Path::new(folder::DEFAULT_FOLDER).canonicalize().is_ok_and(|path| path == dev.folder);
    let first = if is_default {
        "from this folder, in another terminal:".to_owned()
    } else {
        format!("in another terminal, after `export $(cat {})`:", dev.folder.join("env").display())
    };
    output::note(&first);
    // As this very program was called, which is hardly ever on somebody's PATH yet.
    let program = super::words().next().unwrap_or_else(|| "leasehold".to_owned());
    let run = match with_demo {
        true => "runs one and follows it",
        false => {
            "runs one and follows it; a registry must be in reach (dev --demo makes an image without one)"
        }
    };
    for (command, does) in [
        ("jobs".to_owned(), "lists jobs"),
        ("job show 1".to_owned(), "shows one with its leases"),
        ("job logs 3".to_owned(), "prints its output"),
        (format!("run --image {image} -- echo hi"), run),
        (
            "run --recipe FILE".to_owned(),
            "runs a recipe; those of examples/recipes want dev --allow-commands",
        ),
        ("doctor".to_owned(), "looks whether all is well"),
    ] {
        output::note(&format!("  {program} {command:<40} {does}"));
    }
    output::note("Ctrl-C stops everything");
}

async fn stop(dev: Dev, signals: &StopSignals) {
    output::note("stopping");
    dev.stop(signals.second()).await;
}

impl From<DevError> for CliError {
    fn from(error: DevError) -> Self {
        match error {
            DevError::Folder(e) => e.into(),
            DevError::Cluster(e) => e.into(),
            DevError::Config(e) => e.into(),
            DevError::Migrate(e) => e.into(),
            DevError::Connect(e) => e.into(),
            DevError::Worker(e) => e.into(),
            DevError::Store(e) => e.into(),
            DevError::Responder(_) => Self::new(Exit::Failed, error.to_string()),
        }
    }
}
