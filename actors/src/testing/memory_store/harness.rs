//! The memory store under the conformance suite.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::TimeDelta;

use super::{
    MemoryStore,
    world::{Lease, Place, delta},
};
use crate::{
    domain::{Epoch, JobId, Namespace, NewJob, NodeId},
    ports::{LeaseStore, recipe::RecipeStore},
    testing::harness::{
        CancelAnswer, HistoryView, JobView, StoreHarness, StoredLog, TestNode, TestWorkflow, WorkflowChange,
        WorkflowState,
    },
};

impl MemoryStore {
    /// Asks for a job to be cancelled.
    #[must_use]
    pub fn cancel(&self, namespace: &Namespace, job: JobId, grace: Duration) -> CancelAnswer {
        self.world().request_cancel(namespace, job, grace)
    }

    /// One job as it stands; none when there is none in this namespace.
    #[must_use]
    pub fn view(&self, namespace: &Namespace, job: JobId) -> Option<JobView> {
        let world = self.world();
        let row = world.rows.get(&job).filter(|row| row.namespace == *namespace)?;
        let submission = world.jobs.get(&job)?;
        let mut view = JobView {
            state: row.state(),
            generation: row.generation,
            dispatch_attempt: row.dispatch_attempt,
            attempt: row.attempt,
            epoch: row.epoch,
            failures: row.failures,
            losses: row.losses,
            due_at: None,
            blocked_by: None,
            lease_expires_at: None,
            renewals: 0,
            cancel_requested: false,
            cancel_deadline: None,
            run_deadline: None,
            node: None,
            container: None,
            route: (row.route.name.clone(), row.route.task.clone()),
            payload_revision: submission.payload_revision,
            exit_code: None,
            failure_code: None,
            output: None,
        };
        match &row.place {
            Place::Waiting(waiting) => {
                view.due_at = waiting.due_at;
                view.blocked_by = waiting.blocked_by;
            }
            Place::Ready(ready) => view.due_at = Some(ready.due_at),
            Place::Leased(lease) => {
                view.lease_expires_at = Some(lease.expires_at);
                view.renewals = lease.renewals;
                view.cancel_requested = lease.cancel_requested;
                view.cancel_deadline = lease.cancel_deadline;
                view.run_deadline = lease.run_deadline;
                view.node = lease.placement.as_ref().map(|placement| placement.node.clone());
                view.container.clone_from(&lease.container);
            }
            Place::Ended(ended) => {
                view.exit_code = ended.exit_code;
                view.failure_code = ended.failure.as_ref().map(|failure| failure.code.clone());
                view.output.clone_from(&ended.output);
            }
        }
        Some(view)
    }

    /// The stored output of a job, in the order in which it was stored.
    #[must_use]
    pub fn stored_logs(&self, job: JobId) -> Vec<StoredLog> {
        let world = self.world();
        let of_job = world.logs.iter().filter(|stored| stored.job == job);
        of_job
            .map(|stored| StoredLog {
                epoch: stored.epoch,
                stream: stored.stream,
                first_byte: stored.first_byte,
                data: stored.data.clone(),
            })
            .collect()
    }

    /// The last progress note of a job.
    #[must_use]
    pub fn progress(&self, job: JobId) -> Option<String> {
        self.world().progress.get(&job).cloned()
    }

    /// The ended leases of a job, oldest first.
    #[must_use]
    pub fn past_leases(&self, job: JobId) -> Vec<HistoryView> {
        let world = self.world();
        let range = (job, Epoch(i64::MIN))..=(job, Epoch(i64::MAX));
        world.history.range(range).map(|(_, past)| past.view.clone()).collect()
    }

    /// Makes a PENDING job due after this long from now.
    ///
    /// # Panics
    /// When the job is not PENDING.
    pub fn put_off(&self, job: JobId, by: Duration) {
        let mut world = self.world();
        let due_at = world.now() + delta(by);
        match world.rows.get_mut(&job).map(|row| &mut row.place) {
            Some(Place::Waiting(waiting)) => waiting.due_at = Some(due_at),
            other => panic!("{job} is no PENDING job: {other:?}"),
        }
    }

    /// Ends the time of a RUNNING job's lease.
    pub fn expire_lease(&self, job: JobId) {
        let past = self.world().now() - TimeDelta::milliseconds(1);
        self.change_lease(job, |lease| lease.expires_at = past);
    }

    fn change_lease(&self, job: JobId, change: impl FnOnce(&mut Lease)) {
        let mut world = self.world();
        let lease = world.rows.get_mut(&job).and_then(|row| row.lease_mut());
        change(lease.expect("the test names a RUNNING job"));
    }
}

#[async_trait]
impl StoreHarness for MemoryStore {
    fn store(&self) -> Arc<dyn LeaseStore> {
        self.port()
    }

    fn recipes(&self) -> Arc<dyn RecipeStore> {
        Arc::new(self.clone())
    }

    async fn pretend_log(&self, job: JobId, events: i64, bytes: i64) {
        let mut world = self.world();
        world.recipes.get_mut(&job).expect("the test names a recipe").pretended = (events, bytes);
    }

    async fn age_queued(&self, job: JobId, by: Duration) {
        let mut world = self.world();
        match world.rows.get_mut(&job).map(|row| &mut row.place) {
            Some(Place::Ready(ready)) => ready.due_at -= delta(by),
            other => panic!("{job} is no QUEUED job: {other:?}"),
        }
    }

    async fn submit(&self, job: &NewJob) -> JobId {
        self.submit_job(job).expect("the test submits a valid job").job
    }

    async fn define_workflow(&self, workflow: &TestWorkflow) {
        self.world().define_workflow(workflow);
    }

    async fn change_workflow(&self, namespace: &Namespace, name: &str, change: WorkflowChange) {
        self.world().change_workflow(namespace, name, change);
    }

    async fn force_workflow(&self, namespace: &Namespace, name: &str, generation: i64, state: WorkflowState) {
        let mut world = self.world();
        let key = (namespace.clone(), name.to_owned());
        let workflow = world.workflows.get_mut(&key).expect("the test defined the workflow");
        workflow.generation = generation;
        workflow.state = state;
    }

    async fn request_cancel(&self, namespace: &Namespace, job: JobId, grace: Duration) -> CancelAnswer {
        self.cancel(namespace, job, grace)
    }

    async fn register_node(&self, node: &TestNode) {
        self.world().register_node(node);
    }

    async fn silence_node(&self, namespace: &Namespace, node: &NodeId) {
        let mut world = self.world();
        let key = (namespace.clone(), node.clone());
        world.nodes.get_mut(&key).expect("the test registered the node").fresh = false;
    }

    async fn drain_node(&self, namespace: &Namespace, node: &NodeId) {
        let mut world = self.world();
        let key = (namespace.clone(), node.clone());
        let node = world.nodes.get_mut(&key).expect("the test registered the node");
        (node.ready, node.unhealthy_since) = (false, None);
    }

    async fn lose_node(&self, namespace: &Namespace, node: &NodeId) {
        let mut world = self.world();
        let key = (namespace.clone(), node.clone());
        let node = world.nodes.get_mut(&key).expect("the test registered the node");
        (node.fresh, node.lost) = (false, true);
    }

    async fn sicken_node(&self, namespace: &Namespace, node: &NodeId) {
        let mut world = self.world();
        let now = world.now();
        let key = (namespace.clone(), node.clone());
        let node = world.nodes.get_mut(&key).expect("the test registered the node");
        node.ready = false;
        node.unhealthy_since.get_or_insert(now);
    }

    async fn age_sickness(&self, namespace: &Namespace, node: &NodeId) {
        let mut world = self.world();
        let key = (namespace.clone(), node.clone());
        let node = world.nodes.get_mut(&key).expect("the test registered the node");
        *node.unhealthy_since.as_mut().expect("the test made it UNHEALTHY") -= TimeDelta::hours(4);
    }

    async fn forget_node(&self, namespace: &Namespace, node: &NodeId) {
        let mut world = self.world();
        world.nodes.remove(&(namespace.clone(), node.clone()));
        world.node_slots.retain(|(ns, name, _), _| ns != namespace || name != node);
    }

    async fn age_registration(&self, namespace: &Namespace, node: &NodeId) {
        let mut world = self.world();
        let key = (namespace.clone(), node.clone());
        let node = world.nodes.get_mut(&key).expect("the test registered the node");
        node.registered_at -= TimeDelta::hours(4);
    }

    async fn expire(&self, job: JobId) {
        self.expire_lease(job);
    }

    async fn expire_ago(&self, job: JobId, ago: Duration) {
        let at = self.world().now() - delta(ago);
        self.change_lease(job, |lease| lease.expires_at = at);
    }

    async fn expire_over_a_restart(&self, job: JobId) {
        self.expire_lease(job);
        self.change_lease(job, |lease| lease.excused = true);
    }

    async fn promote(&self) {
        MemoryStore::promote(self);
    }

    async fn end_postponement(&self, job: JobId) {
        let past = self.world().now() - TimeDelta::milliseconds(1);
        self.change_lease(job, |lease| lease.not_before = Some(past));
    }

    async fn make_due(&self, job: JobId) {
        self.put_off(job, Duration::ZERO);
    }

    async fn pass_cancel_deadline(&self, job: JobId) {
        let past = self.world().now() - TimeDelta::milliseconds(1);
        self.change_lease(job, |lease| lease.cancel_deadline = Some(past));
    }

    async fn pass_run_deadline(&self, job: JobId) {
        let past = self.world().now() - TimeDelta::milliseconds(1);
        self.change_lease(job, |lease| lease.run_deadline = Some(past));
    }

    async fn job(&self, namespace: &Namespace, job: JobId) -> Option<JobView> {
        self.view(namespace, job)
    }

    async fn history(&self, job: JobId) -> Vec<HistoryView> {
        self.past_leases(job)
    }

    async fn logs(&self, job: JobId) -> Vec<StoredLog> {
        self.stored_logs(job)
    }

    async fn progress_note(&self, job: JobId) -> Option<String> {
        self.progress(job)
    }

    async fn node_slots(&self, namespace: &Namespace, node: &NodeId) -> Vec<(i32, JobId)> {
        self.world().slots_of(namespace, node)
    }

    async fn workflow_slots(&self, namespace: &Namespace, name: &str) -> Vec<(i32, JobId)> {
        let world = self.world();
        let of_workflow =
            world.workflow_slots.iter().filter(|((ns, wf, _), _)| ns == namespace && wf == name);
        of_workflow.map(|((_, _, slot), job)| (*slot, *job)).collect()
    }
}
