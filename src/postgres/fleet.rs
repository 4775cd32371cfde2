//! Which fleet a database is: the identity that tells its containers from another fleet's on the same engine.

use leasehold_actors::error::StoreError;
use uuid::Uuid;

use super::{PgStore, row::Columns, sql_file::Sql, sql_file::sql};

const FLEET: Sql = sql!("fleet", []);

impl PgStore {
    /// The fleet's id; the same for the life of the database.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn fleet(&self) -> Result<Uuid, StoreError> {
        let rows = self.call("fleet", &FLEET, &[]).await?;
        Columns::only("fleet", &rows)?.get("fleet_id")
    }
}
