//! Runs the recipe of a grant: admission, the walk, and the end that the walk comes to.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold_actors::{
    domain::{
        Failure, FailureKind, JobDefinition, JobKind, RecipeSpec, Route,
        execution::{AdmissionError, Allocation, Requirements, payload},
    },
    ports::{
        End, Ended, Grant,
        recipe::{Event, RecipeJob, Refusal, SchemaText},
    },
    work::{LeaseContext, WorkOutcome},
};
use tokio::runtime::Handle;

use super::{
    give_back::{GivenBack, Needs, give_back, read, repeat},
    guard::{ExecutionHandoff, GuardedTask, Inner, OnHandoff, Stage, WrapTaskWorker},
    runtime::{JobRuntime, Reschedule},
    watch::{LeaseEvent, RunStart, RunWatch, Waiting},
};
use crate::recipe::{
    bundle::Bundle,
    compiled::Recipe,
    op::Ops,
    ops::secrets::Secrets,
    schemas::{JobSchemas, Schema, Side},
    session::{Hands, Job, Session, SessionEnd},
};

/// So many refusals in a row fail the job.
const REFUSALS: i32 = 5;
/// Compiled recipes that are kept for the next job.
const KEPT: usize = 64;
/// The same of schemas.
const KEPT_SCHEMAS: usize = 1024;

/// What a recipe engine is given beside its runtime. Both functions come from the [`super::ExecutionRuntime`] that
/// the engine is built on, and the rest must be what that was built with; without them nothing stands before a task,
/// and the engine refuses every job that needs anything.
#[derive(Clone)]
pub struct RecipeWorkerOptions {
    /// [`super::ExecutionRuntime::stage`]
    pub stage_execution: Option<Stage>,
    /// [`super::ExecutionRuntime::wrap_task_worker`]
    pub wrap_task_worker: Option<WrapTaskWorker>,
    /// What this worker has.
    pub allocation: Allocation,
    /// Who is told of handoffs.
    pub on_handoff: OnHandoff,
}

impl fmt::Debug for RecipeWorkerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecipeWorkerOptions").field("allocation", &self.allocation).finish_non_exhaustive()
    }
}

/// An engine that cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// One half of the guard is missing.
    #[error("give both stage_execution and wrap_task_worker, from the same ExecutionRuntime, or neither")]
    HalfGuarded,
    /// The runtime is wrapped and the options know nothing of it, or the other way round.
    #[error("build the engine on the ExecutionRuntime that its options come from")]
    AnotherRuntime,
    /// The allocation is not that of the wrapped runtime.
    #[error("the allocation in the options is not the one that the ExecutionRuntime was built with")]
    AnotherAllocation,
    /// The callback is not that of the wrapped runtime.
    #[error("on_handoff in the options is not the one that the ExecutionRuntime was built with")]
    AnotherCallback,
}

/// Runs recipes. It has no other tasks than guarded ones.
pub struct RecipeEngine {
    pub(super) runtime: Arc<dyn JobRuntime>,
    inner: Arc<Inner>,
    guarded: bool,
    tasks: Arc<BTreeMap<String, GuardedTask>>,
    pub(super) secrets: Arc<Secrets>,
    threads: Handle,
    /// Recipes by their digest.
    compiled: Mutex<BTreeMap<String, Arc<Recipe>>>,
    /// Schemas by theirs.
    schemas: Mutex<BTreeMap<String, Arc<Schema>>>,
}

impl fmt::Debug for RecipeEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecipeEngine")
            .field("ops", &self.tasks.keys().collect::<Vec<_>>())
            .field("guarded", &self.guarded)
            .finish_non_exhaustive()
    }
}

impl RecipeEngine {
    /// An engine with these ops, which run on `threads`.
    ///
    /// # Errors
    /// [`EngineError`] when the options do not belong to the runtime.
    pub fn new(
        runtime: Arc<dyn JobRuntime>,
        options: RecipeWorkerOptions,
        ops: &Ops,
        secrets: Arc<Secrets>,
        threads: Handle,
    ) -> Result<Self, EngineError> {
        let wrapped = runtime.execution().map(|execution| Arc::clone(&execution.inner));
        let (inner, guarded) = match (&options.stage_execution, &options.wrap_task_worker, wrapped) {
            (Some(stage), Some(wrap), Some(inner)) => {
                if !Arc::ptr_eq(&stage.inner, &inner) || !Arc::ptr_eq(&wrap.inner, &inner) {
                    return Err(EngineError::AnotherRuntime);
                }
                if options.allocation != inner.allocation {
                    return Err(EngineError::AnotherAllocation);
                }
                if !Arc::ptr_eq(&options.on_handoff, &inner.on_handoff) {
                    return Err(EngineError::AnotherCallback);
                }
                (inner, true)
            }
            (None, None, None) => (Inner::of_nothing(), false),
            (None, Some(_), _) | (Some(_), None, _) => return Err(EngineError::HalfGuarded),
            _ => return Err(EngineError::AnotherRuntime),
        };
        let wrap = WrapTaskWorker { inner: Arc::clone(&inner) };
        let tasks = ops
            .names()
            .filter_map(|name| Some((name.to_owned(), wrap.wrap(Arc::clone(ops.get(name)?)))))
            .collect();
        Ok(Self {
            runtime,
            inner,
            guarded,
            tasks: Arc::new(tasks),
            secrets,
            threads,
            compiled: Mutex::default(),
            schemas: Mutex::default(),
        })
    }

    /// What a worker with this engine polls for, to serve jobs of this type.
    pub fn routes(&self, job_type: &str) -> impl Iterator<Item = Route> {
        let ops = std::iter::once("").chain(self.tasks.keys().map(String::as_str));
        ops.map(|op| Route::recipe(job_type, op)).collect::<Vec<_>>().into_iter()
    }

    /// Runs the job of a grant, until its recipe has an end, or goes on later or elsewhere. The shared runner of
    /// claimed and of supplied leases: it acquires nothing.
    pub async fn run(&self, grant: &Grant, lease: &LeaseContext) -> WorkOutcome {
        self.run_watched(grant, lease, &Arc::default()).await
    }

    /// As [`RecipeEngine::run`], with somebody who looks on.
    pub(crate) async fn run_watched(
        &self,
        grant: &Grant,
        lease: &LeaseContext,
        watch: &Arc<RunWatch>,
    ) -> WorkOutcome {
        let (spec, recipe, overrides) = match self.definition(&grant.definition) {
            Ok(found) => found,
            Err(failure) => return WorkOutcome::FailedForGood(failure),
        };
        let (job, events) = match self.admit(lease).await {
            Ok(admitted) => admitted,
            Err(NotAdmitted { outcome, reason }) => {
                watch.note(|notes| notes.not_admitted = Some(reason));
                return outcome;
            }
        };
        if let Some(outcome) = before_run(grant, lease, watch, events.len()).await {
            return outcome;
        }
        let schemas = match self.schemas(&job, lease).await {
            Ok(schemas) => schemas,
            Err(outcome) => return outcome,
        };
        if let Err(failure) = schemas.check("", Side::Input, &spec.inputs.get().into()).await {
            return WorkOutcome::FailedForGood(failure);
        }
        let hands = Hands {
            schemas: schemas.clone(),
            runtime: Arc::clone(&self.runtime),
            lease: lease.clone(),
            stage: Stage { inner: Arc::clone(&self.inner) },
            tasks: Arc::clone(&self.tasks),
            secrets: Arc::clone(&self.secrets),
            threads: self.threads.clone(),
            watch: Arc::clone(watch),
        };
        let walk = Job {
            namespace: grant.authority.owner.namespace.clone(),
            job: grant.authority.job,
            submitted_at: job.submitted_at,
            recipe,
            inputs: spec.inputs.get().into(),
            overrides,
        };
        let session = match Session::new(walk, events, Some(hands)) {
            Ok(session) => session,
            Err(failure) => return WorkOutcome::FailedForGood(failure),
        };
        if !self.guarded && session.needs_anything() {
            return WorkOutcome::Failed(Failure::new(
                FailureKind::System,
                "unguarded_requirements",
                "the recipe has requirements, and this worker's engine was built without an ExecutionRuntime to guard them",
            ));
        }
        match session.run().await {
            SessionEnd::Completed(output) => {
                if let Err(failure) = schemas.check("", Side::Output, &output).await {
                    return WorkOutcome::FailedForGood(failure);
                }
                WorkOutcome::Completed { exit_code: None, output: Some(output.to_string()) }
            }
            SessionEnd::Failed(failure) => WorkOutcome::FailedForGood(failure),
            SessionEnd::Machine(failure) => WorkOutcome::Failed(failure),
            SessionEnd::Stopped => WorkOutcome::Stopped,
            SessionEnd::Lost | SessionEnd::CacheMiss { .. } => WorkOutcome::Abandoned,
            SessionEnd::HandOff { path, op, needs, mismatches } => {
                let route = Route::recipe(spec.job_type, op);
                let next =
                    Reschedule { route: Some(route.clone()), wake: Vec::new(), payload: None, publish: None };
                // A missing op alone sends it to another route, and says nothing about environments.
                let declined_by = (!mismatches.is_empty()).then_some(&self.inner.allocation);
                let publish = Needs { requirements: &needs, declined_by };
                let given = give_back(&*self.runtime, lease, next, Some(publish)).await;
                if let GivenBack::Acknowledged { answer: Ended::Rescheduled, published, .. } = &given {
                    if mismatches.is_empty() {
                        watch.tell(|| LeaseEvent::OtherRoute { path, route });
                    } else {
                        let handoff = ExecutionHandoff {
                            kind: "environment_required",
                            job: grant.authority.job,
                            path,
                            requirements: needs.clone(),
                            allocation: self.inner.allocation.clone(),
                            mismatches,
                            published: *published,
                        };
                        (self.inner.on_handoff)(&handoff);
                        watch.tell(|| LeaseEvent::Handoff(Box::new(handoff)));
                    }
                }
                after(given, lease, watch)
            }
            SessionEnd::Waits { wake, needs } => {
                let waiting = Waiting::of(&wake);
                let next = Reschedule {
                    route: Some(Route::recipe(spec.job_type, "")),
                    wake,
                    payload: None,
                    publish: None,
                };
                let publish = needs.as_ref().map(|requirements| Needs { requirements, declined_by: None });
                let given = give_back(&*self.runtime, lease, next, publish).await;
                if matches!(given, GivenBack::Acknowledged { answer: Ended::Rescheduled, .. }) {
                    watch.tell(|| LeaseEvent::Waiting(waiting));
                }
                after(given, lease, watch)
            }
        }
    }

    /// Makes the schemas ready that the job was submitted under.
    pub(super) async fn schemas(
        &self,
        job: &RecipeJob,
        lease: &LeaseContext,
    ) -> Result<JobSchemas, WorkOutcome> {
        let unusable = |reason: String| {
            WorkOutcome::Failed(Failure::new(FailureKind::System, "schema_unusable", reason))
        };
        let kept = || self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        if kept().len() >= KEPT_SCHEMAS {
            kept().clear();
        }
        let digests = job.schemas.values().flat_map(|digests| [&digests.input, &digests.output]).flatten();
        // Held here: what is kept for later jobs may be cleared for another one while texts are read.
        let known = |digest: &String| (digest.clone(), kept().get(digest).cloned());
        let known: BTreeMap<String, Option<Arc<Schema>>> = digests.map(known).collect();
        let mut missing: Vec<String> = Vec::new();
        let mut ready: BTreeMap<String, Arc<Schema>> = BTreeMap::new();
        for (digest, schema) in known {
            match schema {
                Some(schema) => drop(ready.insert(digest, schema)),
                None => missing.push(digest),
            }
        }
        if !missing.is_empty() {
            let namespace = &lease.authority().owner.namespace;
            let texts = repeat(lease, || self.runtime.schema_texts(namespace, &missing)).await;
            let texts = texts.map_err(|reason| {
                tracing::warn!(job = %lease.authority().job, reason, "its schemas were not read");
                WorkOutcome::Abandoned
            })?;
            for SchemaText { digest, text } in texts {
                let made = tokio::task::spawn_blocking(move || Schema::new(&text)).await;
                let schema = made.map_err(|error| unusable(format!("schema {digest}: {error}")))?;
                let schema = schema.map_err(|error| unusable(format!("schema {digest}: {error}")))?;
                let schema = Arc::new(schema);
                kept().insert(digest.clone(), Arc::clone(&schema));
                ready.insert(digest, schema);
            }
        }
        JobSchemas::of(&job.schemas, |digest| ready.get(digest).cloned())
            .map_err(|digest| unusable(format!("schema {digest} is not kept any more")))
    }

    fn definition(&self, text: &str) -> Result<(RecipeSpec, Arc<Recipe>, Requirements), Failure> {
        let kept = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let (spec, recipe, overrides) = definition(text, |digest| kept().get(digest).cloned())?;
        let mut kept = kept();
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(spec.digest.clone(), Arc::clone(&recipe));
        Ok((spec, recipe, overrides))
    }

    /// Reads the job and its log. An execution payload that cannot be read is an error, and never "no requirements".
    async fn admit(&self, lease: &LeaseContext) -> Result<(RecipeJob, Vec<Event>), NotAdmitted> {
        let left = |reason: String| {
            tracing::warn!(job = %lease.authority().job, reason, "not admitted");
            NotAdmitted { outcome: WorkOutcome::Abandoned, reason }
        };
        let job = read(&*self.runtime, lease).await.map_err(left)?;
        if let Err(error) = payload::read(&job.payload) {
            let reason = error.to_string();
            if matches!(error, AdmissionError::UnsupportedVersion { .. }) {
                // Somebody newer wrote it, for somebody newer: that is no fault of the job.
                return Err(left(reason));
            }
            let refused = repeat(lease, || self.runtime.refuse(lease, &reason)).await.map_err(left)?;
            return Err(match refused {
                Refusal::Recorded { in_a_row } if in_a_row >= REFUSALS => NotAdmitted {
                    outcome: WorkOutcome::FailedForGood(Failure::new(
                        FailureKind::System,
                        "bad_execution_payload",
                        reason.clone(),
                    )),
                    reason,
                },
                Refusal::Recorded { .. } | Refusal::NotLive => left(reason),
            });
        }
        let authority = lease.authority();
        let mut events: Vec<Event> = Vec::new();
        loop {
            let after = events.last().map_or(0, |event| event.ordinal);
            let page =
                repeat(lease, || self.runtime.history(&authority.owner.namespace, authority.job, after));
            let page = page.await.map_err(left)?;
            if page.is_empty() {
                return Ok((job, events));
            }
            events.extend(page);
        }
    }
}

/// A job that may not begin here.
struct NotAdmitted {
    outcome: WorkOutcome,
    reason: String,
}

/// Asks whoever has a say before a run; what is to be done instead of it, if they say no.
async fn before_run(
    grant: &Grant,
    lease: &LeaseContext,
    watch: &RunWatch,
    recorded: usize,
) -> Option<WorkOutcome> {
    let hook = watch.before_run.as_ref()?;
    let start = RunStart {
        namespace: grant.authority.owner.namespace.clone(),
        job: grant.authority.job,
        epoch: grant.authority.epoch,
        recorded,
    };
    let answer = tokio::select! {
        biased;
        _reason = lease.stopped() => return Some(WorkOutcome::Stopped),
        answer = hook(start) => answer,
    };
    let reason = answer.err()?;
    tracing::warn!(job = %grant.authority.job, reason, "held back before its run, given back");
    watch.note(|notes| notes.held_back = Some(reason));
    Some(WorkOutcome::GoesOn { end: Box::new(End::Release { delay: Duration::ZERO, reason: "before_run" }) })
}

fn after(given: GivenBack, lease: &LeaseContext, watch: &RunWatch) -> WorkOutcome {
    match given {
        GivenBack::Acknowledged { end, .. } => WorkOutcome::GoesOn { end },
        GivenBack::Unacknowledged(reason) => {
            tracing::warn!(job = %lease.authority().job, reason, "not given back; recovery will");
            watch.note(|notes| notes.not_given_back = Some(reason));
            WorkOutcome::Abandoned
        }
    }
}

/// Reads a definition, and compiles its recipe unless it is known by its digest already.
pub(super) fn definition(
    text: &str,
    known: impl FnOnce(&str) -> Option<Arc<Recipe>>,
) -> Result<(RecipeSpec, Arc<Recipe>, Requirements), Failure> {
    let bad = |message: String| Failure::new(FailureKind::User, "bad_definition", message);
    let spec = match JobDefinition::from_json(JobKind::Recipe, text) {
        Ok(JobDefinition::Recipe(spec)) => spec,
        Ok(_) => return Err(bad("the job is no recipe".to_owned())),
        Err(error) => return Err(bad(error.to_string())),
    };
    let overrides =
        serde_json::from_str(spec.require.get()).map_err(|error| bad(format!("require: {error}")))?;
    let bundle = Bundle::parse(spec.bundle.get()).map_err(|error| bad(error.to_string()))?;
    // The digest that a definition names is somebody's word: what is kept is found by the one that it really has.
    let digest = bundle.digest();
    if digest != spec.digest {
        return Err(bad(format!("the recipe's digest is {digest}, and not {} as pinned", spec.digest)));
    }
    let recipe = match known(&digest) {
        Some(recipe) => recipe,
        None => Arc::new(crate::recipe::compile(&bundle).map_err(|error| bad(error.to_string()))?),
    };
    Ok((spec, recipe, overrides))
}
