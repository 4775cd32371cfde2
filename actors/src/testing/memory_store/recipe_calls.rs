//! The calls of [`RecipeStore`]: reading, refusals, redemption, signals and payloads.

use async_trait::async_trait;

use super::{
    MemoryStore,
    recipe::{StoredSignal, may_be_a_client_payload},
    refused,
    world::{Place, World, delta, until},
};
use crate::{
    domain::{CommandId, JobId, JobKind, LeaseToken, Namespace, Route, json},
    error::StoreError,
    ports::{
        Authority, PayloadUpdate,
        recipe::{
            Event, HeldLease, LeaseRead, MAX_PENDING_SIGNAL_BYTES, MAX_PENDING_SIGNALS, MAX_SCHEMA_TASKS,
            NewEvent, NewSignal, PayloadSet, RecipeJob, RecipeStore, Recorded, Redeemed, Refusal,
            ReopenAnswer, Reopening, RouteSchemas, SchemaDigests, SchemaText, SignalAnswer, Wake,
        },
    },
};

/// Events of one page.
const PAGE: usize = 500;

#[async_trait]
impl RecipeStore for MemoryStore {
    async fn recipe_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError> {
        Ok(self.world().recipe_job(namespace, job))
    }

    async fn events(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError> {
        let world = self.world();
        if world.rows.get(&job).is_none_or(|row| row.namespace != *namespace) {
            return Ok(Vec::new());
        }
        let events = world.recipes.get(&job).map_or(&[][..], |recipe| &recipe.events);
        Ok(events.iter().filter(|event| event.ordinal > after).take(PAGE).cloned().collect())
    }

    async fn events_at(
        &self,
        namespace: &Namespace,
        job: JobId,
        path: &str,
    ) -> Result<Vec<Event>, StoreError> {
        let world = self.world();
        if world.rows.get(&job).is_none_or(|row| row.namespace != *namespace) {
            return Ok(Vec::new());
        }
        let events = world.recipes.get(&job).map_or(&[][..], |recipe| &recipe.events);
        Ok(events.iter().filter(|event| event.path == path).cloned().collect())
    }

    async fn record(
        &self,
        authority: &Authority,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError> {
        self.world().record_event(authority, path, event)
    }

    async fn refuse(&self, authority: &Authority, reason: &str) -> Result<Refusal, StoreError> {
        let _ = reason;
        Ok(self.world().refuse(authority))
    }

    async fn read_lease(&self, authority: &Authority) -> Result<LeaseRead, StoreError> {
        Ok(self.world().read_lease(authority))
    }

    async fn redeem(
        &self,
        authority: &Authority,
        command: CommandId,
        new_token: &LeaseToken,
    ) -> Result<Redeemed, StoreError> {
        Ok(self.world().redeem(authority, command, *new_token))
    }

    async fn register_schema(
        &self,
        namespace: &Namespace,
        route: &Route,
        schemas: &RouteSchemas,
    ) -> Result<bool, StoreError> {
        if route.kind != JobKind::Recipe {
            return Err(refused("register_schema", "only recipes and their ops have schemas"));
        }
        self.world().register_schema(namespace, route, schemas)
    }

    async fn schema_texts(
        &self,
        namespace: &Namespace,
        digests: &[String],
    ) -> Result<Vec<SchemaText>, StoreError> {
        let world = self.world();
        let known = |digest: &String| {
            let text = world.schemas.get(&(namespace.clone(), digest.clone()))?;
            Some(SchemaText { digest: digest.clone(), text: text.clone() })
        };
        let mut texts: Vec<SchemaText> = digests.iter().filter_map(known).collect();
        texts.sort_by(|one, other| one.digest.cmp(&other.digest));
        texts.dedup();
        Ok(texts)
    }

    async fn reopen(
        &self,
        namespace: &Namespace,
        job: JobId,
        reopening: &Reopening,
    ) -> Result<ReopenAnswer, StoreError> {
        Ok(self.world().reopen(namespace, job, reopening))
    }

    async fn send_signal(
        &self,
        namespace: &Namespace,
        job: JobId,
        signal: &NewSignal,
    ) -> Result<SignalAnswer, StoreError> {
        check_json("send_signal", "data", &signal.data)?;
        Ok(self.world().send_signal(namespace, job, signal))
    }

    async fn set_payload(
        &self,
        namespace: &Namespace,
        job: JobId,
        update: &PayloadUpdate,
    ) -> Result<PayloadSet, StoreError> {
        check_json("set_payload", "payload", &update.value)?;
        self.world().set_payload(namespace, job, update)
    }
}

impl World {
    fn recipe_job(&self, namespace: &Namespace, id: JobId) -> Option<RecipeJob> {
        let row = self.rows.get(&id).filter(|row| row.namespace == *namespace)?;
        let (job, recipe) = (self.jobs.get(&id)?, self.recipes.get(&id)?);
        Some(RecipeJob {
            state: row.state(),
            definition: job.definition.clone(),
            payload: job.payload.clone(),
            payload_revision: job.payload_revision,
            submitted_at: job.submitted_at,
            published: recipe.hint.clone(),
            handoffs: recipe.handoffs(),
            events: i64::try_from(recipe.events.len()).unwrap_or(i64::MAX),
            schemas: recipe.schemas.clone(),
        })
    }

    fn register_schema(
        &mut self,
        namespace: &Namespace,
        route: &Route,
        schemas: &RouteSchemas,
    ) -> Result<bool, StoreError> {
        let of_type = (namespace.clone(), route.name.clone());
        let tasks = self.schema_routes.entry(of_type).or_default();
        if !tasks.contains_key(&route.task) && tasks.len() as i64 >= MAX_SCHEMA_TASKS {
            return Err(refused(
                "register_schema",
                format!("job type {:?} has schemas of {MAX_SCHEMA_TASKS} ops already", route.name),
            ));
        }
        let digest = |schema: &Option<SchemaText>| schema.as_ref().map(|schema| schema.digest.clone());
        let digests = SchemaDigests { input: digest(&schemas.input), output: digest(&schemas.output) };
        let before = tasks.insert(route.task.clone(), digests.clone());
        for schema in [&schemas.input, &schemas.output].into_iter().flatten() {
            let key = (namespace.clone(), schema.digest.clone());
            self.schemas.entry(key).or_insert_with(|| schema.text.clone());
        }
        Ok(before != Some(digests))
    }

    fn refuse(&mut self, authority: &Authority) -> Refusal {
        if self.live(authority).is_none() {
            return Refusal::NotLive;
        }
        let epoch = self.rows.get(&authority.job).map(|row| row.epoch);
        let Some(recipe) = self.recipes.get_mut(&authority.job) else { return Refusal::NotLive };
        // Said twice under one lease it is one refusal.
        if recipe.refused_epoch != epoch {
            recipe.refused_epoch = epoch;
            recipe.refusals += 1;
        }
        Refusal::Recorded { in_a_row: recipe.refusals }
    }

    fn read_lease(&self, authority: &Authority) -> LeaseRead {
        let known = self.rows.get(&authority.job).filter(|row| row.namespace == authority.owner.namespace);
        let Some(row) = known else { return LeaseRead::JobNotFound };
        let lease = self.live(authority).filter(|_| row.epoch == authority.epoch.0);
        match (lease, self.grant(authority.job)) {
            (Some(lease), Some(grant)) => LeaseRead::Live(Box::new(HeldLease {
                grant,
                remaining: until(self.now(), lease.expires_at),
                // A run deadline is the timeout and one lease.
                timeout_left: lease.run_deadline.map(|at| until(self.now(), at - delta(lease.duration))),
            })),
            _ => LeaseRead::NotLive,
        }
    }

    fn redeem(&mut self, authority: &Authority, command: CommandId, new_token: LeaseToken) -> Redeemed {
        let now = self.now();
        let redeemed = Authority { token: new_token, ..authority.clone() };
        let lease = if self.live(&redeemed).is_some_and(|lease| lease.redeemed == Some(command)) {
            self.live_mut(&redeemed)
        } else {
            self.live_mut(authority)
        };
        let Some(lease) = lease else { return Redeemed::NotLive };
        lease.token = new_token;
        lease.redeemed = Some(command);
        Redeemed::Redeemed { remaining: until(now, lease.expires_at) }
    }

    fn send_signal(&mut self, namespace: &Namespace, id: JobId, signal: &NewSignal) -> SignalAnswer {
        let Some(row) = self.rows.get(&id).filter(|row| row.namespace == *namespace) else {
            return SignalAnswer::NotFound;
        };
        let Some(recipe) = self.recipes.get_mut(&id) else { return SignalAnswer::NotFound };
        let same_key = recipe.signals.iter().find(|s| s.key.is_some() && s.key == signal.key);
        if let Some(stored) = same_key {
            return if stored.name == signal.name && stored.data == signal.data {
                SignalAnswer::Stored { id: stored.id, created: false }
            } else {
                SignalAnswer::KeyConflict
            };
        }
        if let Place::Ended(ended) = &row.place {
            return SignalAnswer::JobEnded { state: ended.state };
        }
        let pending = || recipe.signals.iter().filter(|signal| !signal.taken);
        let bytes: usize = pending().map(|s| s.name.len() + s.data.len()).sum();
        let bytes = bytes + signal.name.len() + signal.data.len();
        if pending().count() as i64 >= MAX_PENDING_SIGNALS
            || i64::try_from(bytes).unwrap_or(i64::MAX) > MAX_PENDING_SIGNAL_BYTES
        {
            return SignalAnswer::TooMany;
        }
        self.last_signal += 1;
        recipe.signals.push(StoredSignal {
            id: self.last_signal,
            name: signal.name.clone(),
            data: signal.data.clone(),
            key: signal.key.clone(),
            taken: false,
        });
        self.wake(id, &Wake::Signal(signal.name.clone()));
        SignalAnswer::Stored { id: self.last_signal, created: true }
    }

    fn set_payload(
        &mut self,
        namespace: &Namespace,
        id: JobId,
        update: &PayloadUpdate,
    ) -> Result<PayloadSet, StoreError> {
        let Some(row) = self.rows.get(&id).filter(|row| row.namespace == *namespace) else {
            return Ok(PayloadSet::NotFound);
        };
        if let Place::Ended(ended) = &row.place {
            return Ok(PayloadSet::JobEnded { state: ended.state });
        }
        let Some(job) = self.jobs.get_mut(&id) else { return Ok(PayloadSet::NotFound) };
        if job.kind == JobKind::Recipe && !may_be_a_client_payload(&update.value) {
            return Err(refused("set_payload", "payload: of a recipe must be a JSON object, or null"));
        }
        if job.payload_revision != update.expected_revision {
            return Ok(PayloadSet::Conflict { current_revision: job.payload_revision });
        }
        job.payload = update.value.as_str().into();
        job.payload_revision += 1;
        if let Some(recipe) = self.recipes.get_mut(&id) {
            recipe.refusals = 0;
        }
        Ok(PayloadSet::Set { revision: job.payload_revision })
    }
}

fn check_json(operation: &'static str, field: &str, text: &str) -> Result<(), StoreError> {
    json::check(field, text).map_err(|invalid| refused(operation, invalid.to_string()))
}
