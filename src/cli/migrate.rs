//! `leasehold migrate`.

use super::{CliError, Exit, output, store};
use crate::{
    config::Effective,
    postgres::migrate::{self, SchemaStatus},
};

/// Bring the database's schema up to date, or check that it is
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: leasehold migrate --database-url postgres://lh_fleet@db/leasehold\n\
                        Example: leasehold migrate --check || echo 'the schema is behind'")]
pub(super) struct Args {
    /// Change nothing; exit 1 when the schema is behind
    #[arg(long)]
    check: bool,
}

pub(super) fn run(args: &Args, settings: &Effective) -> Result<Exit, CliError> {
    let database = settings.database_for_command("leasehold migrate")?;
    let runtime = store::runtime()?;
    if args.check {
        return match runtime.block_on(migrate::check(&database))? {
            SchemaStatus::Current { version } => {
                output::line(&format!("the schema is up to date: version {version}"))?;
                Ok(Exit::Ok)
            }
            SchemaStatus::Missing => Err(behind("there is no schema yet")),
            SchemaStatus::Behind { version, latest } => {
                Err(behind(&format!("the schema is version {version}, and {latest} is needed")))
            }
            SchemaStatus::Newer { version, latest } => Err(CliError::new(
                Exit::Refused,
                format!(
                    "the schema is version {version}, newer than this program's {latest}; use a newer leasehold"
                ),
            )),
        };
    }
    let report = runtime.block_on(migrate::run(&database))?;
    for name in &report.applied {
        output::line(&format!("applied {name}"))?;
    }
    output::line(&format!("the schema is up to date: version {}", report.version))?;
    Ok(Exit::Ok)
}

fn behind(what: &str) -> CliError {
    CliError::new(Exit::Failed, format!("{what}; run `leasehold migrate`"))
}
