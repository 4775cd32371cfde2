//! PgStore with the hands that the conformance suite and the differential test need: what a person or a node
//! agent does goes through the product's own calls, what only time does is written into the tables.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use leasehold::{
    postgres::{
        PgStore, cancel,
        nodes::{NodeRegistered, NodeRegistration},
    },
    protocol::{
        domain::{
            CommandId, ContainerId, Epoch, Failure, FailureKind, JobId, JobState, Namespace, NewJob, NodeId,
            ProcessId, WorkerId,
        },
        ports::{EngineInfo, LeaseStore, LogStream, recipe::RecipeStore},
    },
    submission::document::{Overlap, WorkflowDocument},
};
use leasehold_actors::testing::{
    CancelAnswer, HistoryView, JobView, StoreHarness, StoredLog, TestNode, TestWorkflow, WorkflowChange,
    WorkflowState,
};
use tokio_postgres::{Client, Row, types::ToSql};
use uuid::Uuid;

use crate::support::database::TestDatabase;

pub struct PgHarness {
    store: PgStore,
    client: Client,
    /// The agent of each node: a live node's id is refused to another process.
    agents: Mutex<HashMap<NodeId, ProcessId>>,
    workflows: Mutex<HashMap<String, TestWorkflow>>,
    edits: AtomicI64,
    _database: TestDatabase,
}

impl PgHarness {
    pub async fn create() -> Self {
        let database = TestDatabase::create().await;
        Self {
            store: database.store().await,
            client: database.client().await,
            agents: Mutex::default(),
            workflows: Mutex::default(),
            edits: AtomicI64::new(0),
            _database: database,
        }
    }

    /// A session of the test's own.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A job that may be refused.
    pub async fn try_submit(&self, job: &NewJob) -> Option<JobId> {
        self.store.submit(job).await.ok().map(|submitted| submitted.job)
    }

    /// Every job of a namespace.
    pub async fn jobs(&self, namespace: &Namespace) -> HashMap<JobId, JobView> {
        let rows = self.client.query(VIEW, &[&namespace.as_str(), &None::<i64>]).await.unwrap();
        let views: HashMap<JobId, JobView> =
            rows.iter().map(|row| (JobId(row.get("job_id")), job_view(row))).collect();
        assert_eq!(views.len(), rows.len(), "a job stands in more than one table");
        views
    }

    /// Makes a PENDING job due only after this long.
    pub async fn put_off(&self, job: JobId, by: Duration) {
        self.write(
            "update leasehold.waiting set due_at = clock_timestamp() + $2 * interval '1 s' where job_id = $1",
            &[&job.0, &by.as_secs_f64()],
        )
        .await;
    }

    /// Writes by hand, exactly one row.
    async fn write(&self, statement: &str, params: &[&(dyn ToSql + Sync)]) {
        let written = self.client.execute(statement, params).await.unwrap();
        assert_eq!(written, 1, "{statement}");
    }

    async fn slots(&self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> Vec<(i32, JobId)> {
        let rows = self.client.query(statement, params).await.unwrap();
        rows.iter().map(|row| (row.get(0), JobId(row.get(1)))).collect()
    }

    fn document(&self, workflow: &TestWorkflow) -> WorkflowDocument {
        WorkflowDocument {
            namespace: workflow.namespace.clone(),
            name: workflow.name.clone(),
            definition: workflow.definition.clone(),
            // Another payload is another definition, and the only thing that an edit of these tests changes.
            payload: format!("{{\"edit\": {}}}", self.edits.fetch_add(1, Ordering::Relaxed)),
            priority: 0,
            overlap: match (workflow.overlap_serial, workflow.overlap_limit) {
                (true, _) => Overlap::Serial,
                (false, Some(limit)) => Overlap::AllowN(limit),
                (false, None) => Overlap::Allow,
            },
            timeout_ms: workflow.timeout_ms,
            retry: workflow.retry,
        }
    }
}

#[async_trait]
impl StoreHarness for PgHarness {
    fn store(&self) -> Arc<dyn LeaseStore> {
        Arc::new(self.store.clone())
    }

    fn recipes(&self) -> Arc<dyn RecipeStore> {
        Arc::new(self.store.clone())
    }

    async fn pretend_log(&self, job: JobId, events: i64, bytes: i64) {
        self.write(
            "update leasehold.recipes set events = events + $2, bytes = bytes + $3 where job_id = $1",
            &[&job.0, &events, &bytes],
        )
        .await;
    }

    async fn age_queued(&self, job: JobId, by: Duration) {
        self.write(
            "update leasehold.ready set due_at = due_at - $2 * interval '1 s' where job_id = $1",
            &[&job.0, &by.as_secs_f64()],
        )
        .await;
    }

    async fn submit(&self, job: &NewJob) -> JobId {
        self.store.submit(job).await.unwrap().job
    }

    async fn define_workflow(&self, workflow: &TestWorkflow) {
        self.store.workflow_apply(&self.document(workflow)).await.unwrap();
        let known = self.workflows.lock().unwrap().insert(workflow.name.clone(), workflow.clone());
        assert!(known.is_none(), "a test defines a workflow once");
    }

    async fn change_workflow(&self, namespace: &Namespace, name: &str, change: WorkflowChange) {
        let workflow = self.workflows.lock().unwrap()[name].clone();
        let done = match change {
            WorkflowChange::Edit => self.store.workflow_apply(&self.document(&workflow)).await,
            WorkflowChange::Pause => self.store.workflow_pause(namespace, name).await,
            WorkflowChange::Resume => self.store.workflow_resume(namespace, name).await,
            WorkflowChange::Terminate => self.store.workflow_terminate(namespace, name).await,
        };
        done.unwrap();
    }

    async fn force_workflow(&self, namespace: &Namespace, name: &str, generation: i64, state: WorkflowState) {
        let state = match state {
            WorkflowState::Active => "ACTIVE",
            WorkflowState::Paused => "PAUSED",
            WorkflowState::Terminated => "TERMINATED",
        };
        self.write(
            "update leasehold.workflows set generation = $3, state = $4::text::leasehold.workflow_state
             where namespace = $1 and name = $2",
            &[&namespace.as_str(), &name, &generation, &state],
        )
        .await;
    }

    async fn request_cancel(&self, namespace: &Namespace, job: JobId, grace: Duration) -> CancelAnswer {
        match self.store.request_cancel(namespace, job, grace).await.unwrap() {
            cancel::CancelAnswer::Canceled => CancelAnswer::Canceled,
            cancel::CancelAnswer::Requested { .. } => CancelAnswer::Requested,
            cancel::CancelAnswer::AlreadyEnded { state } => CancelAnswer::AlreadyEnded(state),
            cancel::CancelAnswer::NotFound => CancelAnswer::NotFound,
        }
    }

    async fn register_node(&self, node: &TestNode) {
        let process =
            *self.agents.lock().unwrap().entry(node.node.clone()).or_insert_with(ProcessId::generate);
        let registration = NodeRegistration {
            namespace: node.namespace.clone(),
            node: node.node.clone(),
            process,
            endpoint: node.endpoint.clone(),
            max_concurrency: u32::try_from(node.max_concurrency).unwrap(),
            engine: EngineInfo {
                engine_id: node.engine_id.clone(),
                os: "linux".to_owned(),
                architecture: "x86_64".to_owned(),
                cpu_millis: 2000,
                memory_bytes: 1 << 30,
                version: "0".to_owned(),
            },
            heartbeat_ttl: Duration::from_secs(3600),
            lost_after: Duration::from_secs(7200),
        };
        let registered = self.store.node_register(&registration).await.unwrap();
        assert!(matches!(registered, NodeRegistered::Registered { .. }), "{registered:?}");
    }

    async fn silence_node(&self, namespace: &Namespace, node: &NodeId) {
        self.write(
            "update leasehold.nodes set heartbeat_at = least(heartbeat_at, clock_timestamp() - interval '90 minutes')
             where namespace = $1 and node_id = $2",
            &[&namespace.as_str(), &node.as_str()],
        )
        .await;
    }

    async fn drain_node(&self, namespace: &Namespace, node: &NodeId) {
        self.write(
            "update leasehold.nodes set state = 'DRAINING' where namespace = $1 and node_id = $2",
            &[&namespace.as_str(), &node.as_str()],
        )
        .await;
    }

    async fn lose_node(&self, namespace: &Namespace, node: &NodeId) {
        self.write(
            "update leasehold.nodes set heartbeat_at = least(heartbeat_at, clock_timestamp() - interval '4 hours')
             where namespace = $1 and node_id = $2",
            &[&namespace.as_str(), &node.as_str()],
        )
        .await;
    }

    async fn sicken_node(&self, namespace: &Namespace, node: &NodeId) {
        self.write(
            "update leasehold.nodes set state = 'UNHEALTHY' where namespace = $1 and node_id = $2",
            &[&namespace.as_str(), &node.as_str()],
        )
        .await;
    }

    async fn age_sickness(&self, namespace: &Namespace, node: &NodeId) {
        self.write(
            "update leasehold.nodes set unhealthy_since = unhealthy_since - interval '4 hours'
             where namespace = $1 and node_id = $2",
            &[&namespace.as_str(), &node.as_str()],
        )
        .await;
    }

    async fn forget_node(&self, namespace: &Namespace, node: &NodeId) {
        let params: &[&(dyn ToSql + Sync)] = &[&namespace.as_str(), &node.as_str()];
        let statement = "delete from leasehold.node_slots where namespace = $1 and node_id = $2";
        self.client.execute(statement, params).await.unwrap();
        self.write("delete from leasehold.nodes where namespace = $1 and node_id = $2", params).await;
    }

    async fn age_registration(&self, namespace: &Namespace, node: &NodeId) {
        self.write(
            "update leasehold.nodes set incarnated_at = incarnated_at - interval '4 hours'
             where namespace = $1 and node_id = $2",
            &[&namespace.as_str(), &node.as_str()],
        )
        .await;
    }

    async fn expire(&self, job: JobId) {
        self.expire_ago(job, Duration::from_millis(1)).await;
    }

    async fn expire_ago(&self, job: JobId, ago: Duration) {
        // The server of the tests may be younger than a lease: the stored duration says when the last renewal was.
        self.write(
            "update leasehold.leases
             set lease_expires_at = clock_timestamp() - $2 * interval '1 s',
                 lease_ms = case when pg_postmaster_start_time() > clock_timestamp() - $2 * interval '1 s'
                                     - lease_ms * interval '1 ms' then 1 else lease_ms end
             where job_id = $1",
            &[&job.0, &ago.as_secs_f64()],
        )
        .await;
    }

    async fn expire_over_a_restart(&self, job: JobId) {
        self.write(
            "update leasehold.leases
             set lease_expires_at = clock_timestamp() - interval '1 ms',
                 lease_ms = 1000 + extract(epoch from clock_timestamp() - pg_postmaster_start_time()) * 1000
             where job_id = $1",
            &[&job.0],
        )
        .await;
    }

    async fn promote(&self) {
        self.write("update leasehold.fleet set cluster_generation = cluster_generation + 1", &[]).await;
    }

    async fn end_postponement(&self, job: JobId) {
        self.write(
            "update leasehold.leases set recovery_not_before = clock_timestamp() - interval '1 ms' where job_id = $1",
            &[&job.0],
        )
        .await;
    }

    async fn make_due(&self, job: JobId) {
        self.write("update leasehold.waiting set due_at = clock_timestamp() where job_id = $1", &[&job.0])
            .await;
    }

    async fn pass_cancel_deadline(&self, job: JobId) {
        self.write(
            "update leasehold.leases set cancel_deadline = clock_timestamp() - interval '1 ms' where job_id = $1",
            &[&job.0],
        )
        .await;
    }

    async fn pass_run_deadline(&self, job: JobId) {
        self.write(
            "update leasehold.leases set run_deadline = clock_timestamp() - interval '1 ms' where job_id = $1",
            &[&job.0],
        )
        .await;
    }

    async fn job(&self, namespace: &Namespace, job: JobId) -> Option<JobView> {
        let rows = self.client.query(VIEW, &[&namespace.as_str(), &Some(job.0)]).await.unwrap();
        assert!(rows.len() <= 1, "job {job} stands in more than one table");
        rows.first().map(job_view)
    }

    async fn history(&self, job: JobId) -> Vec<HistoryView> {
        let rows = self
            .client
            .query(
                "select epoch, how::text, worker_id, process_id, attempt, renewals, command_id, node_id, container_id,
                        failure_kind::text, failure_code, failure_message, exit_code
                 from leasehold.lease_history where job_id = $1 order by epoch",
                &[&job.0],
            )
            .await
            .unwrap();
        rows.iter().map(history_view).collect()
    }

    async fn logs(&self, job: JobId) -> Vec<StoredLog> {
        let rows = self
            .client
            .query(
                "select epoch, stream, first_byte, data from leasehold.job_logs where job_id = $1 order by seq",
                &[&job.0],
            )
            .await
            .unwrap();
        rows.iter()
            .map(|row| StoredLog {
                epoch: Epoch(row.get(0)),
                stream: match row.get::<_, i16>(1) {
                    1 => LogStream::Stdout,
                    2 => LogStream::Stderr,
                    3 => LogStream::System,
                    other => panic!("stream {other}"),
                },
                first_byte: u64::try_from(row.get::<_, i64>(2)).unwrap(),
                data: Bytes::from(row.get::<_, Vec<u8>>(3)),
            })
            .collect()
    }

    async fn progress_note(&self, job: JobId) -> Option<String> {
        let statement = "select progress::text from leasehold.job_progress where job_id = $1";
        self.client.query_opt(statement, &[&job.0]).await.unwrap().map(|row| row.get(0))
    }

    async fn node_slots(&self, namespace: &Namespace, node: &NodeId) -> Vec<(i32, JobId)> {
        let statement = "select slot, job_id from leasehold.node_slots
                         where namespace = $1 and node_id = $2 order by slot";
        self.slots(statement, &[&namespace.as_str(), &node.as_str()]).await
    }

    async fn workflow_slots(&self, namespace: &Namespace, name: &str) -> Vec<(i32, JobId)> {
        let statement = "select slot, job_id from leasehold.workflow_slots
                         where namespace = $1 and workflow = $2 order by slot";
        self.slots(statement, &[&namespace.as_str(), &name]).await
    }
}

/// A job's one row, whichever of the four tables it stands in, in the columns of [`JobView`].
const VIEW: &str = "
    select j.job_id, s.*, j.payload_revision
    from leasehold.jobs j
    join lateral (
        select 'PENDING' as state, w.generation, w.dispatch_attempt, w.attempt, w.epoch, w.failures_user,
               w.failures_system, w.failures_timeout, w.losses, nullif(w.due_at, 'infinity') as due_at, w.blocked_by,
               null::timestamptz as lease_expires_at, 0 as renewals, false as cancel_requested,
               null::timestamptz as cancel_deadline, null::timestamptz as run_deadline, null as node_id,
               null as container_id, w.route, w.task, null::integer as exit_code, null as failure_code,
               null as output
        from leasehold.waiting w where w.job_id = j.job_id
        union all
        select 'QUEUED', r.generation, r.dispatch_attempt, r.attempt, r.epoch, r.failures_user, r.failures_system,
               r.failures_timeout, r.losses, r.due_at, null, null, 0, false, null, null, null, null, r.route, r.task, null,
               null, null
        from leasehold.ready r where r.job_id = j.job_id
        union all
        select 'RUNNING', l.generation, l.dispatch_attempt, l.attempt, l.epoch, l.failures_user, l.failures_system,
               l.failures_timeout, l.losses, null, null, l.lease_expires_at, l.renewals, l.cancel_requested_at is not null,
               l.cancel_deadline, l.run_deadline, l.node_id, l.container_id, l.route, l.task, null, null, null
        from leasehold.leases l where l.job_id = j.job_id
        union all
        select e.state::text, e.generation, e.dispatch_attempt, e.attempt, e.epoch, e.failures_user,
               e.failures_system, e.failures_timeout, e.losses, null, null, null, 0, false, null, null, null, null, e.route, '',
               e.exit_code, e.failure_code, e.output::text
        from leasehold.ended e where e.job_id = j.job_id
    ) s on true
    where j.namespace = $1 and ($2::bigint is null or j.job_id = $2)";

fn job_view(row: &Row) -> JobView {
    let route: &str = row.get("route");
    let task: &str = row.get("task");
    JobView {
        state: row.get::<_, &str>("state").parse::<JobState>().unwrap(),
        generation: row.get("generation"),
        dispatch_attempt: row.get("dispatch_attempt"),
        attempt: row.get("attempt"),
        epoch: row.get("epoch"),
        failures: [row.get("failures_user"), row.get("failures_system"), row.get("failures_timeout")],
        losses: row.get("losses"),
        due_at: row.get::<_, Option<DateTime<Utc>>>("due_at"),
        blocked_by: row.get::<_, Option<i64>>("blocked_by").map(JobId),
        lease_expires_at: row.get("lease_expires_at"),
        renewals: row.get("renewals"),
        cancel_requested: row.get("cancel_requested"),
        cancel_deadline: row.get("cancel_deadline"),
        run_deadline: row.get("run_deadline"),
        node: row.get::<_, Option<&str>>("node_id").map(|node| NodeId::new(node).unwrap()),
        container: row.get::<_, Option<&str>>("container_id").map(|id| ContainerId::new(id).unwrap()),
        route: (route.to_owned(), task.to_owned()),
        payload_revision: row.get("payload_revision"),
        exit_code: row.get("exit_code"),
        failure_code: row.get("failure_code"),
        output: row.get("output"),
    }
}

fn history_view(row: &Row) -> HistoryView {
    let failure = row.get::<_, Option<&str>>(9).map(|kind| {
        let kind = match kind {
            "USER" => FailureKind::User,
            "SYSTEM" => FailureKind::System,
            "TIMEOUT" => FailureKind::Timeout,
            other => panic!("failure kind {other}"),
        };
        Failure {
            kind,
            code: row.get::<_, Option<String>>(10).unwrap_or_default(),
            message: row.get::<_, Option<String>>(11).unwrap_or_default(),
            exit_code: row.get(12),
        }
    });
    HistoryView {
        epoch: Epoch(row.get(0)),
        how: row.get(1),
        worker: WorkerId::new(row.get::<_, &str>(2)).unwrap(),
        process: ProcessId(row.get(3)),
        attempt: row.get(4),
        renewals: row.get(5),
        command: row.get::<_, Option<Uuid>>(6).map(CommandId),
        node: row.get::<_, Option<&str>>(7).map(|node| NodeId::new(node).unwrap()),
        container: row.get::<_, Option<&str>>(8).map(|id| ContainerId::new(id).unwrap()),
        failure,
    }
}
