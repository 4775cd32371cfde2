//! How workflows change. Every change that makes scheduled work stale raises the generation, and the same
//! transaction ends, or holds, the PENDING and QUEUED runs of older ones.
//!
//! Each change first locks the workflow's row, which every submit of a run holds in share mode until its own
//! transaction ends. So the statements after it, in their younger snapshots, see every run that was submitted
//! under the old generation, and none can be submitted under it any more.

use leasehold_actors::{
    domain::{JobDefinition, Namespace, NewJob},
    error::StoreError,
};

use super::{
    PgStore,
    row::Columns,
    session::{Param, Session},
    sql_file::{Sql, sql},
    submit::{SubmitError, Submitted},
    transaction::{Stop, transaction},
    workflow::{WorkflowChanged, WorkflowError, WorkflowState},
};
use crate::submission::{
    self,
    document::{Overlap, WorkflowDocument},
};

/// A change that ends many runs may take this many times as long as a single call.
const PATIENCE: u32 = 20;

const DEFINITION: &[tokio_postgres::types::Type] = sql!(
    "workflow_create",
    [TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, INT2, INT4, BOOL, INT8, INT4, INT4, INT4, INT8, INT8]
)
.types;
const CREATE: Sql =
    Sql { name: "workflow_create", text: include_str!("sql/workflow_create.sql"), types: DEFINITION };
const LOCK: Sql =
    Sql { name: "workflow_lock", text: include_str!("sql/workflow_lock.sql"), types: DEFINITION };
const EDIT: Sql =
    Sql { name: "workflow_edit", text: include_str!("sql/workflow_edit.sql"), types: DEFINITION };
const TAKE: Sql = sql!("workflow_take", [TEXT, TEXT]);
const SET_STATE: Sql = sql!("workflow_set_state", [TEXT, TEXT, TEXT]);
const SUPERSEDE: Sql = sql!("workflow_supersede", [TEXT, TEXT, INT8, BOOL]);
const HOLD: Sql = sql!("workflow_hold", [TEXT, TEXT]);
const LET_GO: Sql = sql!("workflow_let_go", [TEXT, TEXT, INT8]);
impl PgStore {
    /// Creates a workflow, or changes its definition. An identical document changes nothing; any other raises
    /// the generation, and runs scheduled under older ones end CANCELED, code `superseded`.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn workflow_apply(
        &self,
        document: &WorkflowDocument,
    ) -> Result<WorkflowChanged, WorkflowError> {
        document.validate()?;
        not_reserved(&document.name)?;
        if let JobDefinition::Recipe(spec) = &document.definition
            && let Some(broken) = self.check_spec(&document.namespace, spec).await?
        {
            return Err(broken.into());
        }
        transaction!(self, "workflow_apply", PATIENCE, session => apply(session, document))
    }

    /// Pauses a workflow: what was scheduled before ends CANCELED, code `superseded`; what is submitted from
    /// now on waits until the resume. RUNNING jobs run on.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn workflow_pause(
        &self,
        namespace: &Namespace,
        name: &str,
    ) -> Result<WorkflowChanged, WorkflowError> {
        not_reserved(name)?;
        transaction!(self, "workflow_pause", PATIENCE, session => pause(session, namespace, name))
    }

    /// Lets the runs of a paused workflow go on, under the generation in force.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn workflow_resume(
        &self,
        namespace: &Namespace,
        name: &str,
    ) -> Result<WorkflowChanged, WorkflowError> {
        not_reserved(name)?;
        transaction!(self, "workflow_resume", PATIENCE, session => resume(session, namespace, name))
    }

    /// Ends a workflow for good: its PENDING and QUEUED runs end CANCELED, it takes no more, and RUNNING jobs
    /// run to their end.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn workflow_terminate(
        &self,
        namespace: &Namespace,
        name: &str,
    ) -> Result<WorkflowChanged, WorkflowError> {
        not_reserved(name)?;
        transaction!(self, "workflow_terminate", PATIENCE, session => terminate(session, namespace, name))
    }

    /// Submits a run of a workflow at once, with the workflow's own payload.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn workflow_trigger(
        &self,
        namespace: &Namespace,
        name: &str,
    ) -> Result<Submitted, SubmitError> {
        let mut job = NewJob::of_workflow(name);
        job.namespace = namespace.clone();
        self.submit(&job).await
    }
}

type Changed<T> = Result<T, Stop<WorkflowError>>;

fn not_reserved(name: &str) -> Result<(), WorkflowError> {
    if name == submission::AD_HOC {
        return Err(WorkflowError::Reserved);
    }
    Ok(())
}

async fn apply(session: &Session, document: &WorkflowDocument) -> Changed<WorkflowChanged> {
    let (overlap_limit, serial) = match document.overlap {
        Overlap::Allow => (None, false),
        Overlap::AllowN(n) => (Some(n), false),
        Overlap::Serial => (Some(1), true),
    };
    let definition = document.definition.to_json();
    let route = document.definition.route().name;
    let retry = &document.retry;
    let params: [Param<'_>; 15] = [
        &document.namespace.as_str(),
        &document.name,
        &document.definition.kind().as_str(),
        &route,
        &definition,
        &document.payload,
        &document.priority,
        &overlap_limit,
        &serial,
        &document.timeout_ms,
        &retry.max_user,
        &retry.max_system,
        &retry.max_timeout,
        &retry.backoff_ms,
        &retry.backoff_cap_ms,
    ];
    if let Some(row) = session.query(&CREATE, &params).await?.first() {
        return Ok(WorkflowChanged::Created { generation: row.try_get("generation")? });
    }
    let rows = session.query(&LOCK, &params).await?;
    let columns = Columns::only("workflow_apply", &rows).map_err(refused)?;
    if columns.parse::<WorkflowState>("state").map_err(refused)? == WorkflowState::Terminated {
        return Err(Stop::Refused(WorkflowError::Terminated { name: document.name.clone() }));
    }
    if columns.get("same").map_err(refused)? {
        return Ok(WorkflowChanged::Unchanged { generation: columns.get("generation").map_err(refused)? });
    }
    let rows = session.query(&EDIT, &params).await?;
    let generation =
        Columns::only("workflow_apply", &rows).and_then(|c| c.get("generation")).map_err(refused)?;
    let superseded =
        supersede(session, document.namespace.as_str(), &document.name, generation, false).await?;
    Ok(WorkflowChanged::Changed { generation, superseded, moved: 0 })
}

async fn pause(session: &Session, namespace: &Namespace, name: &str) -> Changed<WorkflowChanged> {
    let flow = take(session, namespace, name).await?.unless_terminated(name)?;
    if flow.state != WorkflowState::Active {
        return Ok(WorkflowChanged::Unchanged { generation: flow.generation });
    }
    let generation = set_state(session, namespace, name, "PAUSED").await?;
    let superseded = supersede(session, namespace.as_str(), name, generation, false).await?;
    let held = count(session, &HOLD, &[&namespace.as_str(), &name], "held").await?;
    Ok(WorkflowChanged::Changed { generation, superseded, moved: held })
}

async fn resume(session: &Session, namespace: &Namespace, name: &str) -> Changed<WorkflowChanged> {
    let flow = take(session, namespace, name).await?.unless_terminated(name)?;
    if flow.state != WorkflowState::Paused {
        return Ok(WorkflowChanged::Unchanged { generation: flow.generation });
    }
    let generation = set_state(session, namespace, name, "ACTIVE").await?;
    let params: [Param<'_>; 3] = [&namespace.as_str(), &name, &generation];
    let freed = count(session, &LET_GO, &params, "freed").await?;
    Ok(WorkflowChanged::Changed { generation, superseded: 0, moved: freed })
}

async fn terminate(session: &Session, namespace: &Namespace, name: &str) -> Changed<WorkflowChanged> {
    let flow = take(session, namespace, name).await?;
    if flow.state == WorkflowState::Terminated {
        return Ok(WorkflowChanged::Unchanged { generation: flow.generation });
    }
    let generation = set_state(session, namespace, name, "TERMINATED").await?;
    let superseded = supersede(session, namespace.as_str(), name, generation, true).await?;
    Ok(WorkflowChanged::Changed { generation, superseded, moved: 0 })
}

struct Taken {
    generation: i64,
    state: WorkflowState,
}

impl Taken {
    fn unless_terminated(self, name: &str) -> Changed<Self> {
        if self.state == WorkflowState::Terminated {
            return Err(Stop::Refused(WorkflowError::Terminated { name: name.to_owned() }));
        }
        Ok(self)
    }
}

/// Locks a workflow's row. Statements after this one see every run that was submitted before.
async fn take(session: &Session, namespace: &Namespace, name: &str) -> Changed<Taken> {
    let rows = session.query(&TAKE, &[&namespace.as_str(), &name]).await?;
    let Some(row) = rows.first() else {
        return Err(Stop::Refused(WorkflowError::NotFound { name: name.to_owned() }));
    };
    let columns = Columns::new("workflow", row);
    Ok(Taken {
        generation: columns.get("generation").map_err(refused)?,
        state: columns.parse("state").map_err(refused)?,
    })
}

async fn set_state(session: &Session, namespace: &Namespace, name: &str, state: &str) -> Changed<i64> {
    count(session, &SET_STATE, &[&namespace.as_str(), &name, &state], "generation").await
}

async fn supersede(
    session: &Session,
    namespace: &str,
    name: &str,
    generation: i64,
    to_the_last: bool,
) -> Changed<i64> {
    let params: [Param<'_>; 4] = [&namespace, &name, &generation, &to_the_last];
    count(session, &SUPERSEDE, &params, "superseded").await
}

async fn count(session: &Session, sql: &Sql, params: &[Param<'_>], column: &str) -> Changed<i64> {
    let rows = session.query(sql, params).await?;
    Columns::only(sql.name, &rows).and_then(|columns| columns.get(column)).map_err(refused)
}

fn refused(error: StoreError) -> Stop<WorkflowError> {
    Stop::Refused(error.into())
}
