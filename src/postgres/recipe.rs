//! `impl RecipeStore for PgStore`: the log, refusals, redemption, signals and client payloads.

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_actors::{
    domain::{CommandId, InvalidDefinition, JobId, LeaseToken, Namespace, Route, json},
    error::{Applied, StoreError, StoreErrorKind},
    ports::{
        Authority, PayloadUpdate,
        recipe::{
            Event, HeldLease, Hint, LeaseRead, NewEvent, NewSignal, PayloadSet, RecipeJob, RecipeStore,
            Recorded, Redeemed, Refusal, ReopenAnswer, Reopening, RouteSchemas, SchemaText, SignalAnswer,
        },
    },
};
use sha2::{Digest, Sha256};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    PgStore, error, grant,
    owners::Holder,
    pool::{Lane, Pools},
    protected::{self, LEASE, Verb},
    recipe_record::{self, RecordAsk},
    renew::micros,
    row::Columns,
    session::Session,
    sql_file::{Sql, sql},
};
use crate::submission;

static RECIPE_JOB: Sql = sql!("recipe_job", [TEXT, INT8]);
static RECIPE_EVENTS: Sql = sql!("recipe_events", [TEXT, INT8, INT8, INT8, INT8]);
static RECIPE_EVENTS_AT: Sql = sql!("recipe_events_at", [TEXT, INT8, TEXT]);
static READ_LEASE: Sql = sql!("read_lease", [INT8, UUID, TEXT, TEXT, UUID, INT8]);
static REFUSE: Sql = sql!("refuse", [INT8, UUID, TEXT, TEXT, UUID, TEXT]);
static REDEEM: Sql = sql!("redeem", [INT8, UUID, TEXT, TEXT, UUID, UUID, UUID, TEXT]);
static SEND_SIGNAL: Sql = sql!("send_signal", [INT8, TEXT, TEXT, TEXT, TEXT]);
static SET_PAYLOAD: Sql = sql!("set_payload", [TEXT, INT8, TEXT, INT8]);

/// The most events of a page.
const PAGE: i64 = 500;
/// A page ends behind the event with which it has more bytes than this.
const PAGE_BYTES: i64 = 4 << 20;
/// The most bytes that are kept of the reason of a refusal.
const REASON_LIMIT: usize = 1000;

#[async_trait]
impl RecipeStore for PgStore {
    async fn recipe_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError> {
        const OPERATION: &str = "recipe_job";
        let (inner, namespace) = (std::sync::Arc::clone(&self.inner), namespace.clone());
        protected::on(&self.inner.io, OPERATION, self.inner.pools.timeout, async move {
            let rows = inner
                .pools
                .call(Lane::Leases, OPERATION, &RECIPE_JOB, &[&namespace.as_str(), &job.0])
                .await?;
            rows.first().map(|row| recipe_job(Columns::new(OPERATION, row))).transpose()
        })
        .await
    }

    async fn events(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError> {
        const OPERATION: &str = "recipe_events";
        let (inner, namespace) = (std::sync::Arc::clone(&self.inner), namespace.clone());
        protected::on(&self.inner.io, OPERATION, self.inner.pools.timeout, async move {
            let rows = inner
                .pools
                .call(
                    Lane::Leases,
                    OPERATION,
                    &RECIPE_EVENTS,
                    &[&namespace.as_str(), &job.0, &after, &PAGE, &PAGE_BYTES],
                )
                .await?;
            rows.iter().map(|row| recipe_record::event(Columns::new(OPERATION, row))).collect()
        })
        .await
    }

    async fn events_at(
        &self,
        namespace: &Namespace,
        job: JobId,
        path: &str,
    ) -> Result<Vec<Event>, StoreError> {
        const OPERATION: &str = "recipe_events_at";
        let (inner, namespace, path) =
            (std::sync::Arc::clone(&self.inner), namespace.clone(), path.to_owned());
        protected::on(&self.inner.io, OPERATION, self.inner.pools.timeout, async move {
            let asked: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[&namespace.as_str(), &job.0, &path];
            let rows = inner.pools.call(Lane::Leases, OPERATION, &RECIPE_EVENTS_AT, asked).await?;
            rows.iter().map(|row| recipe_record::event(Columns::new(OPERATION, row))).collect()
        })
        .await
    }

    async fn record(
        &self,
        authority: &Authority,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError> {
        event.check(path).map_err(|reason| error::refused("record", reason))?;
        if let NewEvent::StartChild { job, .. } = event {
            let refused = if job.namespace == authority.owner.namespace {
                submission::validate(job).err()
            } else {
                Some(InvalidDefinition::new("namespace", "a child belongs to its parent's"))
            };
            if let Some(refused) = refused {
                return Ok(Recorded::Refused { code: "invalid", message: refused.to_string() });
            }
        }
        let ask = RecordAsk { holder: self.holder(authority), path: path.to_owned(), event: event.clone() };
        let (pools, limit) = (self.inner.pools.clone(), self.inner.pools.timeout);
        protected::on(
            &self.inner.io,
            "record",
            limit,
            async move { recipe_record::record(&pools, &ask).await },
        )
        .await
    }

    async fn refuse(&self, authority: &Authority, reason: &str) -> Result<Refusal, StoreError> {
        let mut reason = reason.replace('\0', "");
        while reason.len() > REASON_LIMIT {
            reason.pop();
        }
        self.single::<Refuse>(RefuseAsk { holder: self.holder(authority), reason }).await
    }

    async fn read_lease(&self, authority: &Authority) -> Result<LeaseRead, StoreError> {
        let (pools, holder) = (self.inner.pools.clone(), self.holder(authority));
        let limit = pools.timeout;
        protected::on(&self.inner.io, READ, limit, async move { read_lease(&pools, &holder).await }).await
    }

    async fn redeem(
        &self,
        authority: &Authority,
        command: CommandId,
        new_token: &LeaseToken,
    ) -> Result<Redeemed, StoreError> {
        let ask = RedeemAsk {
            holder: self.holder(authority),
            command: command.0,
            new_token: new_token.expose_to_store(),
        };
        self.single::<Redeem>(ask).await
    }

    async fn register_schema(
        &self,
        namespace: &Namespace,
        route: &Route,
        schemas: &RouteSchemas,
    ) -> Result<bool, StoreError> {
        self.put_schemas(namespace, route, schemas).await
    }

    async fn schema_texts(
        &self,
        namespace: &Namespace,
        digests: &[String],
    ) -> Result<Vec<SchemaText>, StoreError> {
        let (store, namespace, digests) = (self.clone(), namespace.clone(), digests.to_vec());
        protected::on(&self.inner.io, "schema_texts", self.inner.pools.timeout, async move {
            store.read_schemas(&namespace, &digests).await
        })
        .await
    }

    async fn reopen(
        &self,
        namespace: &Namespace,
        job: JobId,
        reopening: &Reopening,
    ) -> Result<ReopenAnswer, StoreError> {
        self.reopen_recipe(namespace, job, reopening).await
    }

    async fn send_signal(
        &self,
        namespace: &Namespace,
        job: JobId,
        signal: &NewSignal,
    ) -> Result<SignalAnswer, StoreError> {
        const OPERATION: &str = "send_signal";
        let refused = |e: InvalidDefinition| error::refused(OPERATION, e.to_string());
        submission::text_name("name", &signal.name).map_err(refused)?;
        json::check("data", &signal.data).map_err(refused)?;
        if let Some(key) = &signal.key {
            submission::idempotency_key(key).map_err(refused)?;
        }
        let rows = self
            .call(
                OPERATION,
                &SEND_SIGNAL,
                &[&job.0, &signal.name, &signal.data, &signal.key, &namespace.as_str()],
            )
            .await?;
        let columns = Columns::only(OPERATION, &rows)?;
        Ok(match columns.get::<Option<&str>>("refused")? {
            None => SignalAnswer::Stored { id: columns.get("signal_id")?, created: columns.get("created")? },
            Some("key_conflict") => SignalAnswer::KeyConflict,
            Some("too_many_signals") => SignalAnswer::TooMany,
            Some("job_ended") => SignalAnswer::JobEnded { state: columns.parse("state")? },
            Some(_) => SignalAnswer::NotFound,
        })
    }

    async fn set_payload(
        &self,
        namespace: &Namespace,
        job: JobId,
        update: &PayloadUpdate,
    ) -> Result<PayloadSet, StoreError> {
        const OPERATION: &str = "set_payload";
        json::check("payload", &update.value).map_err(|e| error::refused(OPERATION, e.to_string()))?;
        let params: [super::session::Param<'_>; 4] =
            [&namespace.as_str(), &job.0, &update.value, &update.expected_revision];
        let rows = self.call(OPERATION, &SET_PAYLOAD, &params).await?;
        let Some(row) = rows.first() else { return Ok(PayloadSet::NotFound) };
        let columns = Columns::new(OPERATION, row);
        if let Some(revision) = columns.get("changed_to")? {
            return Ok(PayloadSet::Set { revision });
        }
        if let Some(state) = columns.parse_opt("state")? {
            return Ok(PayloadSet::JobEnded { state });
        }
        if columns.get("misfit")? {
            return Err(error::refused(
                OPERATION,
                "payload: a recipe's client payload is a JSON object or null",
            ));
        }
        Ok(PayloadSet::Conflict { current_revision: columns.get("revision")? })
    }
}

fn recipe_job(columns: Columns<'_>) -> Result<RecipeJob, StoreError> {
    let published = match columns.get::<Option<DateTime<Utc>>>("published_at")? {
        None => None,
        Some(_) => Some(hint(columns)?),
    };
    Ok(RecipeJob {
        state: columns.parse("state")?,
        definition: columns.get::<&str>("definition")?.into(),
        payload: columns.get::<&str>("payload")?.into(),
        payload_revision: columns.get("payload_revision")?,
        submitted_at: columns.get("submitted_at")?,
        published,
        handoffs: columns.get("handoffs")?,
        events: columns.get("events")?,
        schemas: match columns.get::<Option<&str>>("schemas")? {
            Some(text) => serde_json::from_str(text).map_err(|e| error::garbled("recipe_job", e))?,
            None => BTreeMap::new(),
        },
    })
}

/// The needs that were last published.
pub(super) fn hint(columns: Columns<'_>) -> Result<Hint, StoreError> {
    let platform =
        match (columns.get::<Option<String>>("os")?, columns.get::<Option<String>>("architecture")?) {
            (Some(os), Some(architecture)) => Some((os, architecture, columns.get("variant")?)),
            _ => None,
        };
    Ok(Hint {
        cpu_millis: columns.get("cpu_millis")?,
        memory_bytes: columns.get("memory_bytes")?,
        ephemeral_storage_bytes: columns.get("ephemeral_storage_bytes")?,
        platform,
        image_reference: columns.get("image_reference")?,
        image_digest: columns.get("image_digest")?,
    })
}

#[derive(Debug)]
struct RefuseAsk {
    holder: Holder,
    reason: String,
}

/// Record that the payload was refused.
struct Refuse;

#[async_trait]
impl Verb for Refuse {
    type Ask = RefuseAsk;
    type Answer = Refusal;

    const OPERATION: &'static str = "refuse";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &RefuseAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&RefuseAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        session
            .query(
                &REFUSE,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &ask.reason,
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Refusal), StoreError> {
        let in_a_row = row.try_get(0).map_err(|e| error::garbled(Self::OPERATION, e))?;
        Ok((0, Refusal::Recorded { in_a_row }))
    }

    async fn refused(_: &Pools, _: &RefuseAsk) -> Result<Refusal, StoreError> {
        Ok(Refusal::NotLive)
    }
}

/// Its `Debug` shows neither token.
struct RedeemAsk {
    holder: Holder,
    command: Uuid,
    new_token: Uuid,
}

impl RedeemAsk {
    /// Over everything that was asked for; of 128 random bits each it tells nothing.
    fn hash(&self) -> String {
        let (h, owner) = (&self.holder, &self.holder.owner);
        let mut hash = Sha256::new();
        for part in [
            owner.namespace.as_str().as_bytes(),
            owner.worker.as_str().as_bytes(),
            owner.process.0.as_bytes(),
            &h.job.to_le_bytes(),
            &h.epoch.to_le_bytes(),
            h.token.as_bytes(),
            self.new_token.as_bytes(),
        ] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The operation that reads a lease.
const READ: &str = "read_lease";

async fn read_lease(pools: &Pools, h: &Holder) -> Result<LeaseRead, StoreError> {
    let owner = &h.owner;
    let asked: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
        &[&h.job, &h.token, &owner.namespace.as_str(), &owner.worker.as_str(), &owner.process.0, &h.epoch];
    let rows = pools.call(Lane::Leases, READ, &READ_LEASE, asked).await?;
    let row = rows.first().ok_or_else(|| error::garbled(READ, "no row"))?;
    let columns = Columns::only(READ, &rows)?;
    if columns.get("standby")? {
        return Err(StoreError {
            operation: READ,
            kind: StoreErrorKind::ReadOnly,
            applied: Applied::No,
            message: "a standby answered; only the primary knows".to_owned(),
        });
    }
    let Some(lease_ms) = columns.get::<Option<i32>>("lease_ms")? else {
        return Ok(if columns.get("known")? { LeaseRead::NotLive } else { LeaseRead::JobNotFound });
    };
    Ok(LeaseRead::Live(Box::new(HeldLease {
        grant: grant::read(row, 2, owner, lease_ms).map_err(|e| error::garbled(READ, e))?,
        remaining: micros(columns.get("remaining_us")?),
        timeout_left: columns.get::<Option<i64>>("timeout_left_us")?.map(micros),
    })))
}

/// Put a new token in the place of another.
struct Redeem;

#[async_trait]
impl Verb for Redeem {
    type Ask = RedeemAsk;
    type Answer = Redeemed;

    const OPERATION: &'static str = "redeem";
    const LANE: Lane = Lane::Leases;

    fn holder(ask: &RedeemAsk) -> &Holder {
        &ask.holder
    }

    fn locks() -> &'static [&'static Sql] {
        LEASE
    }

    async fn put(session: &Session, asks: &[&RedeemAsk]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let [ask] = asks else { return Ok(Vec::new()) };
        let (h, owner) = (&ask.holder, &ask.holder.owner);
        session
            .query(
                &REDEEM,
                &[
                    &h.job,
                    &h.token,
                    &owner.namespace.as_str(),
                    &owner.worker.as_str(),
                    &owner.process.0,
                    &ask.command,
                    &ask.new_token,
                    &ask.hash(),
                ],
            )
            .await
    }

    fn read(row: &Row) -> Result<(i64, Redeemed), StoreError> {
        let remaining = row.try_get(0).map_err(|e| error::garbled(Self::OPERATION, e))?;
        Ok((0, Redeemed::Redeemed { remaining: micros(remaining) }))
    }

    async fn refused(_: &Pools, _: &RedeemAsk) -> Result<Redeemed, StoreError> {
        Ok(Redeemed::NotLive)
    }
}
