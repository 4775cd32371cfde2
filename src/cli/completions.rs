//! `leasehold completions`.

use clap_complete::Shell;

use super::{CliError, Exit};

/// Print shell completions
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold"
)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "leasehold", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(Exit::Ok)
}
