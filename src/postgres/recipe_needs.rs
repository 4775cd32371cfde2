//! What recipe jobs need, as far as it is known: for listings, in one question a page. [`super::execution_view`] makes
//! of it what people see.

use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{Epoch, JobId, JobState, Namespace},
    error::StoreError,
    ports::recipe::{Hint, JsonText},
};

use super::{
    PgStore, recipe,
    row::Columns,
    sql_file::{Sql, sql},
};

static RECIPE_NEEDS: Sql = sql!("recipe_needs", [TEXT, INT8_ARRAY]);

/// What is known of a recipe job's needs.
#[derive(Debug, Clone)]
pub struct RecipeNeeds {
    /// The job.
    pub job: JobId,
    /// Where it stands: only what is PENDING or QUEUED waits.
    pub state: JobState,
    /// The epoch of its latest lease; 0 before the first.
    pub epoch: Epoch,
    /// The needs that were last published.
    pub published: Option<PublishedNeeds>,
    /// Handoffs in a row with nothing recorded between.
    pub handoffs: i32,
    /// What declined it in this row, each as raw JSON text.
    pub declined: Vec<String>,
    /// How often in a row its payload was refused.
    pub refusals: i32,
    /// Why it was refused last.
    pub refusal: Option<String>,
    /// When.
    pub refused_at: Option<DateTime<Utc>>,
    /// The requirements that were given at submission: raw JSON text.
    pub require: Option<JsonText>,
    /// The digest of its recipe, as it was submitted.
    pub digest: Option<String>,
    /// What the client payload is: `object`, `null`, or what no payload may be.
    pub payload_is: String,
    /// What stands under the payload's key `execution`: raw JSON text.
    pub execution: Option<JsonText>,
}

/// Needs that a reschedule published.
#[derive(Debug, Clone)]
pub struct PublishedNeeds {
    /// The needs.
    pub hint: Hint,
    /// By a handoff; otherwise by the way, when the job went to sleep or elsewhere.
    pub by_handoff: bool,
    /// The handoff that published them is the last thing that happened to the job.
    pub exact: bool,
    /// When.
    pub at: DateTime<Utc>,
}

impl PgStore {
    /// What these jobs need; those that are no recipes of the namespace are left out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn recipe_needs(
        &self,
        namespace: &Namespace,
        jobs: &[JobId],
    ) -> Result<Vec<RecipeNeeds>, StoreError> {
        const OPERATION: &str = "recipe_needs";
        let jobs: Vec<i64> = jobs.iter().map(|job| job.0).collect();
        let rows = self.call(OPERATION, &RECIPE_NEEDS, &[&namespace.as_str(), &jobs]).await?;
        rows.iter().map(|row| read(Columns::new(OPERATION, row))).collect()
    }
}

fn read(columns: Columns<'_>) -> Result<RecipeNeeds, StoreError> {
    let published = match columns.get::<Option<DateTime<Utc>>>("published_at")? {
        None => None,
        Some(at) => Some(PublishedNeeds {
            hint: recipe::hint(columns)?,
            by_handoff: columns.get("by_handoff")?,
            exact: columns.get::<Option<bool>>("exact")?.unwrap_or(false),
            at,
        }),
    };
    let json = |column: &str| -> Result<Option<JsonText>, StoreError> {
        Ok(columns.get::<Option<&str>>(column)?.map(JsonText::from))
    };
    Ok(RecipeNeeds {
        job: JobId(columns.get("job_id")?),
        state: columns.parse("state")?,
        epoch: Epoch(columns.get::<Option<i64>>("epoch")?.unwrap_or(0)),
        published,
        handoffs: columns.get("handoffs")?,
        declined: columns.get("declined")?,
        refusals: columns.get("refusals")?,
        refusal: columns.get("refusal")?,
        refused_at: columns.instant("refused_at")?,
        require: json("require")?,
        digest: columns.get("digest")?,
        payload_is: columns.get("payload_is")?,
        execution: json("execution")?,
    })
}
