//! Histories that the recipe cannot have made, forged in the database or written by a program that sees inputs
//! otherwise: each is one explained failure, and nothing runs.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::recipe::execution::{JobRuntime, Reschedule, StoreRuntime};
use leasehold_actors::{
    domain::{CommandId, Failure, JobId, JobState, Namespace},
    error::StoreError,
    ports::{
        Authority, ClaimAnswer, Ended, ListedAnswer, ListedClaim, OpenClaim, Renewal,
        recipe::{Event, EventBody, JsonText, NewEvent, NewSignal, RecipeJob, Recorded, Refusal},
    },
    work::LeaseContext,
};

use super::bed::Bed;

const RECIPE: &str = r#"
id: r
sequence:
  - { id: a, op: work, inputs: { note: 1, give: one } }
  - { id: b, op: work, inputs: { note: 2.50, give: two } }
  - { id: c, op: work, inputs: { note: "${{ sequence.b.outputs }}", give: three } }
  - { id: wait, op: wait_for_signal, inputs: { name: go } }
  - { id: d, op: work }
"#;

/// Each forgery, with the path and the ordinal that the failure names.
const FORGED: &[(&str, &str, &str, i64)] = &[
    (
        "two records swapped",
        "update leasehold.recipe_events e set op = o.op, input_hash = o.input_hash, value = o.value
         from leasehold.recipe_events o
         where e.job_id = $1 and o.job_id = $1 and (e.path, o.path) in (('a', 'b'), ('b', 'a'))",
        "a",
        1,
    ),
    (
        "a record missing",
        "delete from leasehold.recipe_events where job_id = $1 and path = 'b'",
        "c",
        3,
    ),
    (
        "a record inserted",
        "insert into leasehold.recipe_events (job_id, ordinal, namespace, path, path_hash, sort, era, worker_id, epoch, bytes,
             op, input_hash, attempt, outcome, value)
         select job_id, 4, namespace, 'x', sha256('x'), sort, era, worker_id, epoch, bytes, op, input_hash, attempt, outcome, value
         from leasehold.recipe_events where job_id = $1 and path = 'c'",
        "x",
        4,
    ),
    (
        "a record renamed",
        "update leasehold.recipe_events set path = 'b2', path_hash = sha256('b2') where job_id = $1 and path = 'b'",
        "b2",
        2,
    ),
    (
        "another input hash",
        "update leasehold.recipe_events set input_hash = repeat('0', 64) where job_id = $1 and path = 'c'",
        "c",
        3,
    ),
    (
        "another op",
        "update leasehold.recipe_events set op = 'other' where job_id = $1 and path = 'a'",
        "a",
        1,
    ),
    (
        "a timer where a task was",
        "update leasehold.recipe_events set sort = 'timer_fired' where job_id = $1 and path = 'b'",
        "b",
        2,
    ),
];

/// Three records, and a wait.
async fn waiting(bed: &Bed) -> JobId {
    let worker = bed.worker("first", "");
    let job = bed.submit(RECIPE).await;
    assert_eq!(bed.turn(&worker).await.expect("it is queued").ended, Some(Ended::Rescheduled));
    assert_eq!(bed.log(job).await.len(), 3);
    job
}

/// Goes on with it: it must fail there, and nothing may run.
async fn contradicts(bed: &Bed, job: JobId, what: &str, path: &str, ordinal: i64) {
    let before = bed.runs();
    let log = bed.log(job).await;
    let signal = NewSignal { name: "go".to_owned(), data: "null".to_owned(), key: None };
    bed.harness.recipes().send_signal(&Namespace::default(), job, &signal).await.unwrap();
    let worker = bed.worker("second", "");
    let turn = bed.turn(&worker).await.expect("the signal wakes it");
    let leasehold_actors::work::WorkOutcome::FailedForGood(failure) = &turn.outcome else {
        panic!("{what}: {turn:?}")
    };
    assert_eq!(failure.code, "not_deterministic", "{what}: {failure:?}");
    assert!(failure.message.starts_with(&format!("{path} (record {ordinal})")), "{what}: {failure:?}");
    let view = bed.view(job).await;
    assert_eq!((view.state, view.failures[0]), (JobState::Failed, 1), "{what}: the user's own: {view:?}");
    assert_eq!(bed.runs(), before, "{what}: an op was called");
    assert_eq!(bed.log(job).await, log, "{what}: something was recorded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_that_was_forged_in_the_database_fails_with_its_place_and_runs_nothing() {
    let (bed, harness) = Bed::postgres_and_client().await;
    // The honest one goes on: what fails below fails for its forgery.
    let job = waiting(&bed).await;
    let signal = NewSignal { name: "go".to_owned(), data: "null".to_owned(), key: None };
    bed.harness.recipes().send_signal(&Namespace::default(), job, &signal).await.unwrap();
    let worker = bed.worker("second", "");
    assert_eq!(bed.finish(&[&worker], job).await.state, JobState::Completed);
    for (what, forge, path, ordinal) in FORGED {
        let job = waiting(&bed).await;
        let forged = harness.client().execute(*forge, &[&job.0]).await.unwrap();
        assert!(forged > 0, "{what}");
        contradicts(&bed, job, what, path, *ordinal).await;
    }
}

/// A program whose canonical form of inputs is another one: it does not sort keys, or keeps numbers as they are written.
struct Otherwise(StoreRuntime);

#[async_trait]
impl JobRuntime for Otherwise {
    async fn record(
        &self,
        lease: &LeaseContext,
        path: &str,
        event: &NewEvent,
    ) -> Result<Recorded, StoreError> {
        let mut otherwise = event.clone();
        let NewEvent::Task { input_hash: own, .. } = event else {
            return self.0.record(lease, path, event).await;
        };
        if let NewEvent::Task { input_hash, .. } = &mut otherwise
            && path == "b"
        {
            *input_hash = own.chars().rev().collect();
        }
        let mut answer = self.0.record(lease, path, &otherwise).await;
        // To itself it is the same.
        if let Ok(Recorded::Recorded(event)) = &mut answer
            && let EventBody::Task { input_hash, .. } = &mut event.body
        {
            input_hash.clone_from(own);
        }
        answer
    }

    async fn poll_work(&self, request: &OpenClaim) -> Result<ClaimAnswer, StoreError> {
        self.0.poll_work(request).await
    }

    async fn get_job_lease(&self, request: &ListedClaim) -> Result<Vec<ListedAnswer>, StoreError> {
        self.0.get_job_lease(request).await
    }

    async fn read_job(&self, namespace: &Namespace, job: JobId) -> Result<Option<RecipeJob>, StoreError> {
        self.0.read_job(namespace, job).await
    }

    async fn history(&self, namespace: &Namespace, job: JobId, after: i64) -> Result<Vec<Event>, StoreError> {
        self.0.history(namespace, job, after).await
    }

    async fn lookup(&self, namespace: &Namespace, job: JobId, path: &str) -> Result<Vec<Event>, StoreError> {
        self.0.lookup(namespace, job, path).await
    }

    async fn reschedule(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        next: &Reschedule,
    ) -> Result<Ended, StoreError> {
        self.0.reschedule(lease, command, next).await
    }

    async fn complete(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        output: &JsonText,
    ) -> Result<Ended, StoreError> {
        self.0.complete(lease, command, output).await
    }

    async fn fail(
        &self,
        lease: &LeaseContext,
        command: CommandId,
        failure: &Failure,
    ) -> Result<Ended, StoreError> {
        self.0.fail(lease, command, failure).await
    }

    async fn refuse(&self, lease: &LeaseContext, reason: &str) -> Result<Refusal, StoreError> {
        self.0.refuse(lease, reason).await
    }

    async fn renew_supplied(&self, authority: &Authority) -> Result<Renewal, StoreError> {
        self.0.renew_supplied(authority).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_of_a_program_that_hashes_inputs_otherwise_fails_with_its_place_and_runs_nothing() {
    let bed = Bed::postgres().await;
    let other = Otherwise(StoreRuntime::new(bed.harness.recipes()));
    let first = bed.worker_on(Arc::new(other), "first", "", &bed.ops("first", &["work"]));
    let job = bed.submit(RECIPE).await;
    assert_eq!(bed.turn(&first).await.expect("it is queued").ended, Some(Ended::Rescheduled));
    assert_eq!(bed.ran(), ["a on first", "b on first", "c on first"]);
    contradicts(&bed, job, "another canonical form", "b", 2).await;
}
