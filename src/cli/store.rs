//! From the settings to an open store, and from the store's errors to exit codes.

use leasehold_actors::error::{Applied, StoreError, StoreErrorKind};
use tokio::runtime::{Builder, Handle, Runtime};

use super::{CliError, Exit};
use crate::{
    config::Effective,
    postgres::{ConnectError, PgStore, migrate::MigrateError, submit::SubmitError, workflow::WorkflowError},
};

/// The runtime that a command's I/O lives on. The command itself runs on the calling thread.
pub(super) fn runtime() -> Result<Runtime, CliError> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("leasehold-io")
        .enable_all()
        .build()
        .map_err(|e| CliError::new(Exit::Failed, format!("cannot start threads: {e}")))
}

/// Runs what a command does with the store.
pub(super) fn with_store<T>(
    settings: &Effective,
    action: impl AsyncFnOnce(PgStore) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let database = settings.database_for_command("leasehold")?;
    runtime()?.block_on(async {
        let store = PgStore::connect(&database, Handle::current()).await?;
        action(store).await
    })
}

impl From<ConnectError> for CliError {
    fn from(error: ConnectError) -> Self {
        let exit = match &error {
            ConnectError::Unreachable(_)
            | ConnectError::Full(_)
            | ConnectError::Standby
            | ConnectError::Superseded(_) => Exit::Unreachable,
            ConnectError::Newer { .. } => Exit::Refused,
            ConnectError::Address(_)
            | ConnectError::NotMigrated { .. }
            | ConnectError::UnsafeDefault { .. } => Exit::Usage,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<MigrateError> for CliError {
    fn from(error: MigrateError) -> Self {
        let exit = match error {
            MigrateError::Connect(e) => return e.into(),
            MigrateError::Newer { .. } | MigrateError::Blocked { .. } => Exit::Refused,
            MigrateError::Failed(_) => Exit::Failed,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let exit = match error.kind {
            StoreErrorKind::Unreachable
            | StoreErrorKind::Timeout
            | StoreErrorKind::RowLocked
            | StoreErrorKind::ReadOnly => Exit::Unreachable,
            StoreErrorKind::Refused | StoreErrorKind::CommandConflict => Exit::Refused,
        };
        let unknown = match error.applied {
            Applied::Maybe => "; whether it was done is unknown: look before you repeat it",
            Applied::No => "",
        };
        Self::new(exit, format!("{error}{unknown}"))
    }
}

impl From<SubmitError> for CliError {
    fn from(error: SubmitError) -> Self {
        let exit = match error {
            SubmitError::Store(e) => return e.into(),
            SubmitError::Invalid(_) => Exit::Usage,
            SubmitError::WorkflowNotFound { .. } => Exit::NotFound,
            SubmitError::IdempotencyConflict { .. } | SubmitError::WorkflowTerminated { .. } => Exit::Refused,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<WorkflowError> for CliError {
    fn from(error: WorkflowError) -> Self {
        let exit = match error {
            WorkflowError::Store(e) => return e.into(),
            WorkflowError::Invalid(_) => Exit::Usage,
            WorkflowError::NotFound { .. } => Exit::NotFound,
            WorkflowError::Reserved | WorkflowError::Terminated { .. } => Exit::Refused,
        };
        Self::new(exit, error.to_string())
    }
}
