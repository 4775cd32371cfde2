//! `leasehold man`.

use std::{io::Write as _, path::PathBuf};

use super::{CliError, Exit};

/// Print the manual page, or write one for each command
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: leasehold man | man -l -\nExample: leasehold man --dir /usr/local/share/man/man1"
)]
pub(super) struct Args {
    /// Write all pages into this folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    match &args.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .and_then(|()| clap_mangen::generate_to(super::command(), dir))
                .map_err(|e| {
                    CliError::usage(format!(
                        "--dir {}: {e}; name a folder that can be written",
                        dir.display()
                    ))
                })?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(super::command()).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
        }
    }
    Ok(Exit::Ok)
}
