//! JSON Schemas of job types and ops: registered by route, kept by digest, read back for what a job was submitted under.

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{InvalidDefinition, JobDefinition, JobKind, Namespace, NewJob, RecipeSpec, Route},
    error::StoreError,
    ports::recipe::{MAX_SCHEMA_TASKS, RouteSchemas, SchemaText},
};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio_postgres::{Row, Transaction, types::Type};

use super::{
    PgStore, error,
    row::Columns,
    session::Param,
    sql_file::{Sql, sql},
    submit::SubmitError,
};
use crate::recipe::schemas;

const REGISTER: Sql = sql!("register_schema", [TEXT, TEXT, TEXT, TEXT_ARRAY, TEXT_ARRAY, TEXT, TEXT, INT8]);
const TEXTS: Sql = sql!("schema_texts", [TEXT, TEXT_ARRAY]);
const LIST: Sql = sql!("schema_list", [TEXT]);
const OF_INPUTS: Sql = sql!("schema_of_inputs", [TEXT, TEXT]);
const OF_INPUTS_OPERATION: &str = "schema_of_inputs";

/// What is asked of jobs of a route that are submitted now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SchemaRow {
    /// The type of recipes.
    pub job_type: String,
    /// The op; empty for the recipe itself.
    pub op: String,
    /// Digest of the schema for inputs.
    pub input: Option<String>,
    /// Digest of the schema for the output.
    pub output: Option<String>,
    /// Since when.
    pub registered_at: DateTime<Utc>,
}

impl PgStore {
    /// What is asked of jobs that are submitted now, by job type and op.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn schema_list(&self, namespace: &Namespace) -> Result<Vec<SchemaRow>, StoreError> {
        const OPERATION: &str = "schema_list";
        let rows = self.call(OPERATION, &LIST, &[&namespace.as_str()]).await?;
        let row = |row| {
            let columns = Columns::new(OPERATION, row);
            Ok(SchemaRow {
                job_type: columns.get("job_type")?,
                op: columns.get("task")?,
                input: columns.get("input_digest")?,
                output: columns.get("output_digest")?,
                registered_at: columns.get("registered_at")?,
            })
        };
        rows.iter().map(row).collect()
    }

    /// [`RecipeStore::register_schema`](leasehold_actors::ports::recipe::RecipeStore::register_schema)
    pub(super) async fn put_schemas(
        &self,
        namespace: &Namespace,
        route: &Route,
        asked: &RouteSchemas,
    ) -> Result<bool, StoreError> {
        const OPERATION: &str = "register_schema";
        if route.kind != JobKind::Recipe {
            return Err(error::refused(OPERATION, "only recipes and their ops have schemas"));
        }
        let both = || [&asked.input, &asked.output].into_iter().flatten();
        let digests: Vec<&str> = both().map(|schema| schema.digest.as_str()).collect();
        let texts: Vec<&str> = both().map(|schema| &*schema.text).collect();
        let digest = |schema: &Option<SchemaText>| schema.as_ref().map(|schema| schema.digest.clone());
        let (input, output) = (digest(&asked.input), digest(&asked.output));
        let params: [Param<'_>; 8] = [
            &namespace.as_str(),
            &route.name,
            &route.task,
            &digests,
            &texts,
            &input,
            &output,
            &MAX_SCHEMA_TASKS,
        ];
        let rows = self.call(OPERATION, &REGISTER, &params).await?;
        let columns = Columns::only(OPERATION, &rows)?;
        if columns.get("is_full")? {
            let name = &route.name;
            let full = format!("job type {name:?} has schemas of {MAX_SCHEMA_TASKS} ops already");
            return Err(error::refused(OPERATION, full));
        }
        columns.get("changed")
    }

    /// [`RecipeStore::schema_texts`](leasehold_actors::ports::recipe::RecipeStore::schema_texts)
    pub(super) async fn read_schemas(
        &self,
        namespace: &Namespace,
        digests: &[String],
    ) -> Result<Vec<SchemaText>, StoreError> {
        const OPERATION: &str = "schema_texts";
        let rows = self.call(OPERATION, &TEXTS, &[&namespace.as_str(), &digests]).await?;
        let row = |row| {
            let columns = Columns::new(OPERATION, row);
            Ok(SchemaText { digest: columns.get("digest")?, text: columns.get::<&str>("schema")?.into() })
        };
        rows.iter().map(row).collect()
    }

    /// Holds the inputs of a recipe against the schema of its type, if that has one.
    pub(super) async fn check_inputs(&self, job: &NewJob) -> Result<(), SubmitError> {
        let Some(JobDefinition::Recipe(spec)) = &job.definition else { return Ok(()) };
        Ok(self.check_spec(&job.namespace, spec).await?.map_or(Ok(()), Err)?)
    }

    /// As [`PgStore::check_inputs`], for a definition alone.
    pub(super) async fn check_spec(
        &self,
        namespace: &Namespace,
        spec: &RecipeSpec,
    ) -> Result<Option<InvalidDefinition>, StoreError> {
        let rows = self.call(OF_INPUTS_OPERATION, &OF_INPUTS, &[&namespace.as_str(), &spec.job_type]).await?;
        let Some(schema) = schema_in(&rows)? else { return Ok(None) };
        let inputs = spec.inputs.get().to_owned();
        let checked = self.inner.io.spawn_blocking(move || refusal(&schema, &inputs));
        checked.await.map_err(|e| error::garbled(OF_INPUTS_OPERATION, e))
    }
}

/// As [`PgStore::check_inputs`], over a connection and in a transaction that are the caller's.
pub(crate) async fn check_inputs_in(transaction: &Transaction<'_>, job: &NewJob) -> Result<(), SubmitError> {
    let Some(JobDefinition::Recipe(spec)) = &job.definition else { return Ok(()) };
    let namespace = job.namespace.as_str();
    let typed: [(Param<'_>, Type); 2] = [(&namespace, Type::TEXT), (&spec.job_type, Type::TEXT)];
    let rows = transaction.query_typed(OF_INPUTS.text, &typed).await;
    let rows = rows.map_err(|e| error::store_error(OF_INPUTS_OPERATION, &e))?;
    let Some(schema) = schema_in(&rows)? else { return Ok(()) };
    let inputs = spec.inputs.get().to_owned();
    let broken = match Handle::try_current() {
        Ok(runtime) => {
            let checked = runtime.spawn_blocking(move || refusal(&schema, &inputs)).await;
            checked.map_err(|e| error::garbled(OF_INPUTS_OPERATION, e))?
        }
        // Whoever drives this future, it is not tokio.
        Err(_) => refusal(&schema, &inputs),
    };
    Ok(broken.map_or(Ok(()), Err)?)
}

fn schema_in(rows: &[Row]) -> Result<Option<String>, StoreError> {
    rows.first().map(|row| Columns::new(OF_INPUTS_OPERATION, row).get("schema")).transpose()
}

/// What of the inputs breaks the schema.
fn refusal(schema: &str, inputs: &str) -> Option<InvalidDefinition> {
    let broken = schemas::violation(schema, inputs)?;
    Some(InvalidDefinition::new(
        format!("inputs{}", broken.pointer),
        format!("schema_violation: {}; see `leasehold schema list`", broken.reason),
    ))
}
