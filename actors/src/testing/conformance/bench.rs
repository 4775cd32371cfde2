//! What every case begins with: a worker, a namespace, and short words for common steps.

use std::{sync::Arc, time::Duration};

use crate::{
    domain::{
        CommandId, ContainerId, ContainerSpec, Failure, FailureKind, JobDefinition, JobId, JobState,
        LeaseToken, Namespace, NewJob, ProcessId, RawJson, RecipeSpec, RetryPolicy, Route, WorkerId,
    },
    ports::{
        Attach, Authority, ClaimRejection, Claimant, DispatchedJob, End, Ended, Grant, LeaseStore,
        ListedAnswer, ListedClaim, OpenClaim, Reconciliation, RecoverAnswer, RecoverRequest, Renewal,
        recipe::{
            Event, NewEvent, NewSignal, RecipeJob, RecipeStore, Recorded, Redeemed, Refusal, SignalAnswer,
        },
    },
    testing::harness::{JobView, StoreHarness, TestNode},
};

/// Long enough that no lease expires by itself while a case runs on a busy machine.
pub(super) const LEASE: Duration = Duration::from_mins(1);

/// How far a machine under load may lag behind between a request and its answer.
pub(super) const LAG: Duration = Duration::from_secs(20);

pub(super) struct Bench<'a> {
    pub(super) harness: &'a dyn StoreHarness,
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) recipes: Arc<dyn RecipeStore>,
    pub(super) namespace: Namespace,
    pub(super) owner: Claimant,
    /// Another process, which takes over.
    pub(super) rescuer: Claimant,
}

impl<'a> Bench<'a> {
    pub(super) fn new(harness: &'a dyn StoreHarness) -> Self {
        let namespace = Namespace::default();
        let (owner, rescuer) = (claimant(&namespace, "worker-a"), claimant(&namespace, "worker-b"));
        Self { harness, store: harness.store(), recipes: harness.recipes(), namespace, owner, rescuer }
    }

    // -- jobs -----------------------------------------------------------------------------------------

    /// An ad-hoc HANDLER job, due at once.
    pub(super) fn new_job(&self) -> NewJob {
        let mut job = NewJob::ad_hoc(JobDefinition::Handler { name: "work".to_owned() });
        job.namespace = self.namespace.clone();
        job
    }

    pub(super) async fn queued(&self) -> JobId {
        self.submit(|_| {}).await
    }

    pub(super) async fn submit(&self, change: impl FnOnce(&mut NewJob)) -> JobId {
        let mut job = self.new_job();
        change(&mut job);
        self.harness.submit(&job).await
    }

    pub(super) async fn queued_container(&self) -> JobId {
        self.submit(|job| job.definition = Some(container())).await
    }

    pub(super) async fn queued_recipe(&self) -> JobId {
        self.submit(|job| job.definition = Some(recipe())).await
    }

    pub(super) async fn run_of(&self, workflow: &str) -> JobId {
        let mut job = NewJob::of_workflow(workflow);
        job.namespace = self.namespace.clone();
        self.harness.submit(&job).await
    }

    pub(super) async fn node(&self, name: &str, slots: i32) -> TestNode {
        let node = TestNode::new(&self.namespace, name, slots);
        self.harness.register_node(&node).await;
        node
    }

    pub(super) async fn view(&self, job: JobId) -> JobView {
        self.harness.job(&self.namespace, job).await.expect("the job exists")
    }

    pub(super) async fn state(&self, job: JobId) -> JobState {
        self.view(job).await.state
    }

    /// Everything that a refused call must leave alone.
    pub(super) async fn picture(&self, job: JobId) -> String {
        let view = self.view(job).await;
        let (history, logs) = (self.harness.history(job).await, self.harness.logs(job).await);
        let slots = match &view.node {
            Some(node) => self.harness.node_slots(&self.namespace, node).await,
            None => Vec::new(),
        };
        let progress = self.harness.progress_note(job).await;
        format!("{view:#?} {history:#?} {logs:#?} {slots:?} {progress:?}")
    }

    /// Makes a PENDING job due and moves it to QUEUED; a QUEUED one stays.
    pub(super) async fn requeue(&self, job: JobId) {
        if self.state(job).await == JobState::Pending {
            self.harness.make_due(job).await;
            self.dispatch().await;
        }
        assert_eq!(self.state(job).await, JobState::Queued);
    }

    pub(super) async fn dispatch(&self) -> u32 {
        self.store.dispatch(&self.namespace, 1000).await.expect("the store answers").moved
    }

    // -- claims ---------------------------------------------------------------------------------------

    /// The dispatch message of a job, as it stands now.
    pub(super) async fn message(&self, job: JobId) -> DispatchedJob {
        let view = self.view(job).await;
        DispatchedJob { job, generation: view.generation, dispatch_attempt: view.dispatch_attempt }
    }

    pub(super) fn listed(&self, jobs: Vec<DispatchedJob>) -> ListedClaim {
        ListedClaim {
            owner: self.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            jobs,
            lease: LEASE,
        }
    }

    pub(super) fn open(&self, limit: u32) -> OpenClaim {
        OpenClaim {
            owner: self.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            routes: vec![Route::handler("work"), Route::container()].into(),
            limit,
            lease: LEASE,
            facts: None,
        }
    }

    pub(super) async fn claim_open(&self, limit: u32) -> Vec<Grant> {
        self.store.claim(&self.open(limit)).await.expect("the store answers").grants
    }

    pub(super) async fn claim_message(&self, message: DispatchedJob) -> Result<Grant, ClaimRejection> {
        let request = self.listed(vec![message]);
        let mut answers = self.store.claim_listed(&request).await.expect("the store answers");
        assert_eq!(answers.len(), 1, "one answer for each listed job");
        match answers.remove(0) {
            ListedAnswer::Granted(grant) => Ok(*grant),
            ListedAnswer::Rejected(job, rejection) => {
                assert_eq!(job, message.job, "the answer names its job");
                Err(rejection)
            }
        }
    }

    pub(super) async fn try_claim(&self, job: JobId) -> Result<Grant, ClaimRejection> {
        self.claim_message(self.message(job).await).await
    }

    pub(super) async fn claim(&self, job: JobId) -> Grant {
        self.try_claim(job).await.expect("the job can be claimed")
    }

    /// A fresh HANDLER job, claimed.
    pub(super) async fn held(&self) -> Grant {
        self.claim(self.queued().await).await
    }

    /// A fresh RECIPE job, claimed.
    pub(super) async fn held_recipe(&self) -> Grant {
        self.claim(self.queued_recipe().await).await
    }

    /// A fresh CONTAINER job, claimed, on a node of its own.
    pub(super) async fn held_container(&self, node: &str) -> Grant {
        self.node(node, 2).await;
        self.claim(self.queued_container().await).await
    }

    // -- recovery -------------------------------------------------------------------------------------

    pub(super) fn recovery(&self, limit: u32) -> RecoverRequest {
        RecoverRequest {
            owner: self.rescuer.clone(),
            command: CommandId::generate(),
            repeat: false,
            limit,
            lease: LEASE,
            running_here: Vec::new().into(),
        }
    }

    pub(super) async fn recover(&self, limit: u32) -> RecoverAnswer {
        self.recover_with(self.recovery(limit)).await
    }

    pub(super) async fn recover_with(&self, request: RecoverRequest) -> RecoverAnswer {
        self.store.recover(&request).await.expect("the store answers")
    }

    // -- calls under a lease --------------------------------------------------------------------------

    pub(super) async fn renew(&self, authority: &Authority) -> Renewal {
        self.store.renew(authority).await.expect("the store answers")
    }

    pub(super) async fn attach(&self, grant: &Grant, container: &str) -> Attach {
        let node = grant.placement.clone().expect("a CONTAINER grant has a node").node;
        self.store.attach(&grant.authority, &node, &id(container)).await.expect("the store answers")
    }

    pub(super) async fn end(&self, grant: &Grant, end: End) -> Ended {
        self.end_as(&grant.authority, CommandId::generate(), &end).await
    }

    pub(super) async fn end_as(&self, authority: &Authority, command: CommandId, end: &End) -> Ended {
        self.store.end(authority, command, end).await.expect("the store answers")
    }

    pub(super) async fn reconcile(&self, authority: &Authority) -> Reconciliation {
        self.store.reconcile(authority).await.expect("the store answers")
    }
}

// -- recipes ------------------------------------------------------------------------------------------
impl Bench<'_> {
    pub(super) async fn record(&self, grant: &Grant, path: &str, event: &NewEvent) -> Recorded {
        self.recipes.record(&grant.authority, path, event).await.expect("the store answers")
    }

    pub(super) async fn events(&self, grant: &Grant) -> Vec<Event> {
        self.recipes.events(&self.namespace, grant.authority.job, 0).await.expect("the store answers")
    }

    pub(super) async fn recipe(&self, grant: &Grant) -> RecipeJob {
        let job = self.recipes.recipe_job(&self.namespace, grant.authority.job).await;
        job.expect("the store answers").expect("it is a recipe")
    }

    pub(super) async fn send(&self, job: JobId, signal: &NewSignal) -> SignalAnswer {
        self.recipes.send_signal(&self.namespace, job, signal).await.expect("the store answers")
    }

    pub(super) async fn refuse(&self, grant: &Grant) -> Refusal {
        let answer = self.recipes.refuse(&grant.authority, "`execution` cannot be read").await;
        answer.expect("the store answers")
    }

    pub(super) async fn redeem(&self, grant: &Grant, command: CommandId, token: &LeaseToken) -> Redeemed {
        self.recipes.redeem(&grant.authority, command, token).await.expect("the store answers")
    }
}

pub(super) fn claimant(namespace: &Namespace, worker: &str) -> Claimant {
    Claimant {
        namespace: namespace.clone(),
        worker: WorkerId::new(worker).expect("a valid name"),
        process: ProcessId::generate(),
    }
}

pub(super) fn container() -> JobDefinition {
    JobDefinition::Container(ContainerSpec { image: "busybox".to_owned(), ..ContainerSpec::default() })
}

pub(super) fn recipe() -> JobDefinition {
    let json = |text: &str| RawJson::new(text).expect("valid JSON");
    JobDefinition::Recipe(RecipeSpec {
        recipe: "process".to_owned(),
        job_type: RecipeSpec::DEFAULT_JOB_TYPE.to_owned(),
        language: 1,
        digest: "0".repeat(64),
        bundle: json(r#"{"root": {"id":  "process"}}"#),
        inputs: json(r#"{"n": 1.50}"#),
        require: json("{}"),
    })
}

pub(super) fn id(container: &str) -> ContainerId {
    ContainerId::new(container).expect("a valid name")
}

pub(super) fn complete() -> End {
    End::Complete { exit_code: Some(0), output: None }
}

pub(super) fn fail(kind: FailureKind) -> End {
    End::Fail {
        failure: Failure::new(kind, "boom", "it did not work"),
        // As a worker's settings are: a short back-off keeps the cases quick to think about.
        defaults: RetryPolicy { max_system: Some(3), backoff_ms: Some(1000), ..RetryPolicy::default() },
    }
}

/// A loss; the worker's defaults allow so many SYSTEM failures, and so many losses in a row.
pub(super) fn lost(max_system: i32, loss_limit: i32) -> End {
    End::Lost {
        defaults: RetryPolicy {
            max_system: Some(max_system),
            backoff_ms: Some(1000),
            ..RetryPolicy::default()
        },
        loss_limit,
        message: "nobody was there".to_owned(),
    }
}

pub(super) fn release() -> End {
    End::Release { delay: Duration::ZERO, reason: "drain" }
}

pub(super) fn reschedule() -> End {
    End::Reschedule { route: None, delay: Duration::ZERO, payload: None, wake: Vec::new(), publish: None }
}

/// Every way to end a lease, with a name for messages.
pub(super) fn every_end() -> Vec<(&'static str, End)> {
    vec![
        ("complete", complete()),
        ("fail for good", fail(FailureKind::User)),
        ("fail and retry", fail(FailureKind::System)),
        ("cancel", End::Cancel),
        ("lose", lost(3, 3)),
        ("release", release()),
        ("reschedule", reschedule()),
    ]
}
