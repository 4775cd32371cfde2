//! Tasks: replayed where they are recorded, else staged, compared, run and recorded.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use leasehold_actors::{
    domain::{Failure, FailureKind, JobId, execution::Requirements, json},
    ports::{
        TaskOccurrence,
        recipe::{Event, EventBody, JsonText, NewEvent, TaskOutcome, Wake},
    },
    work::StopReason,
};
use sha2::{Digest as _, Sha256};

use super::{
    Parked, Session,
    failure::{Fatal, Fault, NodeFailure},
    live::{Record, STOP_GRACE},
    lock,
    strand::Strand,
    walk::{Done, Place, Walked, never},
};
use crate::recipe::{
    canonical::input_hash,
    exact::Json,
    execution::{Admitted, Declined, LeaseEvent, ReplayedTask},
    limits::MAX_RESULT_BYTES,
    op::{Later, Task, TaskContext, TaskError, TaskStop, TaskStopper},
    ops::secrets::Secrets,
    schemas::{JobSchemas, Side},
    template::{Rendered, ValueTemplate},
};

/// How a task ended here, and what it asked for; none when it was stopped and there is nothing to record.
type Ran = Option<(TaskOutcome, Option<Requirements>)>;

/// The longest that a task without a runtime node is waited for in place.
const SHORT: Duration = Duration::from_millis(1500);

impl Session {
    /// Walks one task.
    pub(super) async fn task<'a>(
        &'a self,
        op: &'a str,
        inputs: &'a ValueTemplate,
        at: Place<'a>,
        attempt: u32,
        strand: &'a mut Strand,
    ) -> Walked {
        let path = at.path.to_string();
        let input = match inputs.render(&at.env) {
            Ok(input) => input,
            Err(error) => {
                return Err(self.fault(Fault::of_template(&error), &path, at.since, strand).await);
            }
        };
        let hash = input_hash(op, &input.canonical());
        let stands = lock(&self.log).visit(&path);
        if let Some(other) = stands.other_than(|body| matches!(body, EventBody::Task { .. })) {
            return self.contradicts(&other, &format!("op {op}"), strand).await;
        }
        let event = match stands.task {
            Some(event) => event,
            None => self.live_task(op, &input, &hash, &at, attempt, strand).await?,
        };
        let EventBody::Task { op: recorded, input_hash: recorded_hash, outcome, .. } = &event.body else {
            return never(strand).await;
        };
        if recorded != op || *recorded_hash != hash {
            return self.contradicts(&event, &format!("op {op} with input {hash}"), strand).await;
        }
        if self.hands.is_none() {
            let needs = self.effective(&at.scopes).ok();
            lock(&self.trace).push(ReplayedTask { event: Arc::clone(&event), needs });
        }
        let since = at.since.max(event.ordinal);
        match outcome {
            TaskOutcome::Succeeded { output } => Ok(Done { output: Arc::clone(output), since, env: at.env }),
            TaskOutcome::Failed(failure) => Err(NodeFailure { failure: failure.clone(), path, at: since }),
            // Whoever stopped it goes on elsewhere.
            TaskOutcome::Canceled => never(strand).await,
        }
    }

    /// Ends the invocation: the log and the recipe contradict each other.
    pub(super) async fn contradicts<T>(&self, event: &Event, found: &str, strand: &mut Strand) -> T {
        self.end_by(Fatal::NotDeterministic {
            path: event.path.clone(),
            ordinal: event.ordinal,
            expected: describe(event),
            found: found.to_owned(),
        });
        never(strand).await
    }

    /// Stages, compares, runs and records a task that is not in the log.
    async fn live_task(
        &self,
        op: &str,
        input: &Rendered,
        hash: &str,
        at: &Place<'_>,
        attempt: u32,
        strand: &mut Strand,
    ) -> Result<Arc<Event>, NodeFailure> {
        let path = at.path.as_str();
        self.come_alive(path, strand).await;
        let attempt = i32::try_from(attempt).unwrap_or(i32::MAX);
        let ran = loop {
            let (admitted, needs) = self.admitted(op, at, strand).await?;
            // The fence may have said so before this walk has heard of it.
            if self.hands().lease.stop_reason().is_some() {
                return never(strand).await;
            }
            let occurrence = TaskOccurrence {
                op: op.to_owned(),
                input_hash: hash.to_owned(),
                attempt,
                secrets: input.secret_names(),
                log_quota_bytes: None,
            };
            match self.run_task(admitted, &needs, occurrence, input, path, strand).await {
                Ok(ran) => break ran,
                Err(later) => self.wait_for_a_node(later, needs, path, strand).await,
            }
        };
        let Some((outcome, directive)) = ran else { return never(strand).await };
        let directive = directive.filter(|_| matches!(outcome, TaskOutcome::Succeeded { .. })).map(|patch| {
            serde_json::to_string(&patch).expect("texts under fixed keys always serialize").into()
        });
        let event =
            NewEvent::Task { op: op.to_owned(), input_hash: hash.to_owned(), attempt, outcome, directive };
        match self.record(path, &event, strand).await {
            Record::Stands(event) => {
                if let EventBody::Task { outcome, .. } = &event.body {
                    self.hands().watch.tell(|| LeaseEvent::TaskFinished {
                        path: path.to_owned(),
                        op: op.to_owned(),
                        attempt,
                        end: outcome.into(),
                    });
                }
                Ok(event)
            }
            Record::Refused { code, message } => {
                Err(self.fault(Fault::user(code, message), path, at.since, strand).await)
            }
            Record::NotYet => never(strand).await,
        }
    }

    /// Nothing was begun for want of a runtime node: others go on, and if nothing else does, the job is given back until
    /// it is time to look again.
    async fn wait_for_a_node(&self, later: Later, needs: Requirements, path: &str, strand: &mut Strand) {
        let park = self.park(path, Parked::Waits { wake: Wake::At(later.at), needs: Some(needs) });
        if later.after > SHORT {
            strand.rest();
        }
        tokio::time::sleep(later.after).await;
        drop(park);
        self.go_on(strand).await;
    }

    /// Stages and compares until the task fits this worker, with what it needs then.
    async fn admitted(
        &self,
        op: &str,
        at: &Place<'_>,
        strand: &mut Strand,
    ) -> Result<(Admitted, Requirements), NodeFailure> {
        let path = at.path.as_str();
        let hands = self.hands();
        loop {
            let directed = self.directed.notified();
            let mut directed = std::pin::pin!(directed);
            directed.as_mut().enable();
            let needs = match self.effective(&at.scopes) {
                Ok(needs) => needs,
                Err(fault) => return Err(self.fault(fault, path, at.since, strand).await),
            };
            tracing::debug!(job = %self.job.job, path, "staging");
            let staged = hands.stage.stage(&needs);
            tracing::debug!(job = %self.job.job, path, %needs, "staged");
            let mismatches = match hands.tasks.get(op) {
                Some(task) => match task.admit(staged) {
                    Ok(admitted) => return Ok((admitted, needs)),
                    Err(Declined(mismatches)) => mismatches,
                },
                None => hands.stage.compare(&needs),
            };
            // Tasks that run may still change what this one needs.
            let park = self.park(path, Parked::Declined { op: op.to_owned(), needs, mismatches });
            strand.rest();
            directed.await;
            drop(park);
            self.go_on(strand).await;
        }
    }

    /// Runs an admitted task to its end, or stops it. An error: it could not begin, and is to be tried later.
    async fn run_task(
        &self,
        admitted: Admitted,
        needs: &Requirements,
        occurrence: TaskOccurrence,
        input: &Rendered,
        path: &str,
        strand: &Strand,
    ) -> Result<Ran, Later> {
        let hands = self.hands();
        let (op, attempt) = (occurrence.op.as_str(), occurrence.attempt);
        // Held against its schema is what is stored: secrets by their names.
        if let Err(failure) = hands.schemas.check(op, Side::Input, &input.text.as_str().into()).await {
            return Ok(Some((TaskOutcome::Failed(failure), None)));
        }
        let inputs = match input.with_secrets(|name| hands.secrets.get(name).map(str::to_owned)) {
            Ok(inputs) => inputs,
            Err(missing) => {
                let failure = Failure::new(FailureKind::System, "missing_secret", missing.to_string());
                return Ok(Some((TaskOutcome::Failed(failure), None)));
            }
        };
        let stopper = TaskStopper::default();
        let context = TaskContext::of(hands.lease.clone(), stopper.clone()).recorded_as(occurrence.clone());
        let task = Task {
            namespace: self.job.namespace.clone(),
            job: self.job.job,
            path: path.to_owned(),
            op: op.to_owned(),
            attempt,
            epoch: hands.lease.authority().epoch,
            idempotency_key: key(self.job.job, path, attempt, lock(&self.log).round(path)),
            needs: needs.clone(),
            inputs: inputs.into(),
            context: context.clone(),
        };
        hands.watch.tell(|| LeaseEvent::TaskStarted { path: path.to_owned(), op: op.to_owned(), attempt });
        let mut running = admitted.start(task, &hands.lease, &hands.threads);
        let (result, stop) = tokio::select! {
            biased;
            result = running.ended() => (Some(result), None),
            why = strand.group.stopped() => {
                stopper.stop(why);
                let result = tokio::time::timeout(STOP_GRACE, running.ended()).await.ok();
                (result, Some(why))
            }
        };
        let result = match result {
            Some(result) => result,
            None => {
                running.abort().await;
                Err(TaskError::system("stopped", "it did not stop in its time"))
            }
        };
        // What a lost lease did is nobody's to record.
        if hands.lease.stop_reason() == Some(StopReason::LeaseLost) {
            return Ok(None);
        }
        Ok(match (result, stop) {
            (_, Some(TaskStop::TimedOut)) => None,
            (Ok(output), _) => {
                let outcome = succeeded(path, op, &output, &hands.secrets, &hands.schemas).await;
                Some((outcome, context.asked_for()))
            }
            (Err(_), Some(TaskStop::SiblingFailed)) => Some((TaskOutcome::Canceled, None)),
            // What goes wrong after the request to stop is a consequence of it.
            (Err(_), _) if hands.lease.stop_reason().is_some() || self.stopping.load(Ordering::Relaxed) => {
                None
            }
            (Err(error), _) => {
                if let Some(later) = context.waits_for_a_node() {
                    return Err(later);
                }
                Some((failed(error, &hands.secrets), None))
            }
        })
    }
}

/// What the log says of a task that gave this output.
pub(in crate::recipe) async fn succeeded(
    path: &str,
    op: &str,
    output: &str,
    secrets: &Secrets,
    schemas: &JobSchemas,
) -> TaskOutcome {
    let output = match checked(path, &secrets.mask_json(output)) {
        Ok(output) => output,
        Err(failure) => return TaskOutcome::Failed(failure),
    };
    match schemas.check(op, Side::Output, &output).await {
        Ok(()) => TaskOutcome::Succeeded { output },
        Err(failure) => TaskOutcome::Failed(failure),
    }
}

/// What the log says of a task that failed.
pub(in crate::recipe) fn failed(mut error: TaskError, secrets: &Secrets) -> TaskOutcome {
    error.message = secrets.mask(&error.message).into_owned();
    TaskOutcome::Failed(error.into())
}

/// An output as it may be stored: what the log would refuse is a failure of the task, and not of this machine.
pub(super) fn checked(path: &str, output: &str) -> Result<JsonText, Failure> {
    check_size(path, output)?;
    let bad = |why: String| Failure::new(FailureKind::User, "bad_output", format!("{path}: {why}"));
    json::check("output", output).map_err(|invalid| bad(invalid.to_string()))?;
    match Json::parse(output) {
        Ok(_) => Ok(output.into()),
        Err(error) => Err(bad(format!("the output of a task must be JSON, but it {error}"))),
    }
}

/// What is over the limit is not stored; what is stored instead has a fixed size.
fn check_size(path: &str, output: &str) -> Result<(), Failure> {
    if output.len() <= MAX_RESULT_BYTES {
        return Ok(());
    }
    let path: String = path.chars().take(300).collect();
    Err(Failure::new(
        FailureKind::User,
        "result_too_large",
        format!("{path}: the result is {} bytes long; at most {MAX_RESULT_BYTES} are kept", output.len()),
    ))
}

/// The same at each run of this attempt of this task, and no other's. Where a person reopened what had ended, what
/// runs in its place is another occurrence (the next `round`): the effect is wanted once more.
pub(super) fn key(job: JobId, path: &str, attempt: i32, round: u32) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("leasehold/task/1\n{job}\n{attempt}\n"));
    hash.update(path.as_bytes());
    if round > 0 {
        hash.update(format!("\nreopened {round}"));
    }
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What an event says, in a few words.
pub(super) fn describe(event: &Event) -> String {
    match &event.body {
        EventBody::Task { op, input_hash, .. } => format!("op {op} with input {input_hash}"),
        EventBody::TimerSet { .. } | EventBody::TimerFired => "a timer".to_owned(),
        EventBody::Signal { name, .. } => format!("signal {name:?}"),
        EventBody::ChildStarted { job } | EventBody::ChildEnded { job, .. } => format!("child job {job}"),
        EventBody::Reopened { .. } => "a reopening".to_owned(),
    }
}
