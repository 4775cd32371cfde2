//! `leasehold doctor --audit`: what a healthy database says, and what each forged defect makes it say.

use std::time::Duration;

use bytes::Bytes;
use leasehold::{
    postgres::{
        PgStore,
        audit::{self, AuditSettings, Finding, Sort},
        nodes::NodeRegistration,
        workers::WorkerRegistration,
    },
    protocol::{
        domain::{
            CommandId, ContainerId, ContainerSpec, Failure, FailureKind, JobDefinition, JobId, Namespace,
            NewJob, NodeId, ProcessId, RetryPolicy, Route,
        },
        ports::{Claimant, End, EngineInfo, Grant, LeaseStore, LogBatch, LogStream, OpenClaim},
    },
    submission::document::WorkflowDocument,
};
use tokio_postgres::Client;

use crate::support::{
    database::TestDatabase,
    jobs::{claimant, handler_job, open},
};

/// A little of everything that a healthy database holds. The jobs' ids are those of the names below.
struct Bed {
    client: Client,
    store: PgStore,
    db: TestDatabase,
}

const DONE: i64 = 1;
const HANDLER: i64 = 2;
const CONTAINER: i64 = 3;
const RUN: i64 = 4;
const BLOCKED: i64 = 5;
const REOPENED: i64 = 6;
const RETRYING: i64 = 7;
const CANCELED: i64 = 8;
const LATER: i64 = 9;
const QUEUED: i64 = 10;

async fn claim(store: &PgStore, owner: &Claimant, route: Route) -> Option<Grant> {
    let request = OpenClaim { routes: [route].into(), ..open(owner, 1) };
    store.claim(&request).await.unwrap().grants.pop()
}

async fn submit(store: &PgStore, job: &NewJob, expected: i64) {
    assert_eq!(store.submit(job).await.unwrap().job, JobId(expected));
}

async fn fail(store: &PgStore, grant: &Grant, kind: FailureKind) {
    let failure = Failure::new(kind, "broken", "it broke");
    let end = End::Fail { failure, defaults: RetryPolicy::default() };
    store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
}

impl Bed {
    async fn create() -> Self {
        let db = TestDatabase::create().await;
        let (store, client) = (db.store().await, db.client().await);
        let (namespace, owner) = (Namespace::default(), claimant("w1"));
        let work = || Route::handler("work");
        let node = NodeRegistration {
            namespace: namespace.clone(),
            node: NodeId::new("n1").unwrap(),
            process: ProcessId::generate(),
            endpoint: "unix:///run/n1.sock".to_owned(),
            max_concurrency: 2,
            engine: EngineInfo {
                engine_id: "E1".to_owned(),
                os: "linux".to_owned(),
                architecture: "x86_64".to_owned(),
                cpu_millis: 2000,
                memory_bytes: 1 << 30,
                version: "0".to_owned(),
            },
            heartbeat_ttl: Duration::from_secs(3600),
            lost_after: Duration::from_secs(7200),
        };
        store.node_register(&node).await.unwrap();
        let worker = WorkerRegistration {
            claimant: owner.clone(),
            host: "here".to_owned(),
            concurrency: 4,
            status: r#"{"routes": ["HANDLER work", "CONTAINER"]}"#.to_owned(),
        };
        store.worker_register(&worker).await.unwrap();
        let yaml = "name: turns\nhandler: work\noverlap: serial\n";
        let document = WorkflowDocument::parse_all(yaml, &namespace).unwrap().remove(0);
        store.workflow_apply(&document).await.unwrap();

        let keyed = NewJob { idempotency_key: Some("once".to_owned()), ..handler_job("work") };
        submit(&store, &keyed, DONE).await;
        let done = claim(&store, &owner, work()).await.unwrap();
        let complete = End::Complete { exit_code: None, output: None };
        store.end(&done.authority, CommandId::generate(), &complete).await.unwrap();

        submit(&store, &handler_job("work"), HANDLER).await;
        let running = claim(&store, &owner, work()).await.unwrap();
        store.renew(&running.authority).await.unwrap();
        let batch = |first_byte, text: &'static str| LogBatch {
            task: None,
            stream: LogStream::Stdout,
            first_byte,
            data: Bytes::from_static(text.as_bytes()),
        };
        store.append_logs(&running.authority, &[batch(0, "one\n"), batch(4, "two\n")]).await.unwrap();

        let spec = ContainerSpec { image: "busybox".to_owned(), ..ContainerSpec::default() };
        submit(&store, &NewJob::ad_hoc(JobDefinition::Container(spec)), CONTAINER).await;
        let contained = claim(&store, &owner, Route::container()).await.unwrap();
        store.renew(&contained.authority).await.unwrap();
        let container = ContainerId::new("c".repeat(64)).unwrap();
        store.attach(&contained.authority, &node.node, &container).await.unwrap();

        submit(&store, &NewJob::of_workflow("turns"), RUN).await;
        claim(&store, &owner, work()).await.unwrap();
        submit(&store, &NewJob::of_workflow("turns"), BLOCKED).await;
        assert!(claim(&store, &owner, work()).await.is_none(), "the second run waits for the first");

        submit(&store, &handler_job("work"), REOPENED).await;
        fail(&store, &claim(&store, &owner, work()).await.unwrap(), FailureKind::User).await;
        store.retry_job(&namespace, JobId(REOPENED)).await.unwrap();
        claim(&store, &owner, work()).await.unwrap();

        submit(&store, &handler_job("work"), RETRYING).await;
        let hour = RetryPolicy { backoff_ms: Some(3_600_000), ..RetryPolicy::default() };
        let grant = claim(&store, &owner, work()).await.unwrap();
        let failure = Failure::new(FailureKind::System, "broken", "it broke");
        let end = End::Fail { failure, defaults: hour };
        store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
        client
            .execute(
                "update leasehold.waiting set due_at = now() + interval '1 hour' where job_id = $1",
                &[&RETRYING],
            )
            .await
            .unwrap();

        submit(&store, &handler_job("work"), CANCELED).await;
        store.request_cancel(&namespace, JobId(CANCELED), Duration::from_secs(1)).await.unwrap();
        let hour = chrono::Utc::now() + chrono::Duration::hours(1);
        submit(&store, &NewJob { run_at: Some(hour), ..handler_job("work") }, LATER).await;
        submit(&store, &handler_job("work"), QUEUED).await;
        // It waits for long, and somebody serves it: busy, not stuck.
        client
            .execute("update leasehold.ready set due_at = now() - interval '10 minutes'", &[])
            .await
            .unwrap();
        Self { client, store, db }
    }

    async fn findings(&self) -> Vec<Finding> {
        audit::run(&self.client).await.unwrap()
    }
}

/// Names of the checks with findings, each once.
fn names(findings: &[Finding]) -> Vec<&'static str> {
    let mut names: Vec<_> = findings.iter().map(|finding| finding.check).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[tokio::test]
async fn a_healthy_database_is_clean_whatever_happens_in_it() {
    let bed = Bed::create().await;
    let found = audit::run_with(&bed.client, &AuditSettings::default()).await.unwrap();
    assert_eq!((found.findings, found.jobs, found.standby), (Vec::new(), 10, false));
    assert!(found.checks > 20);
    // A pause, a resume, an edit, and an end that wakes another run.
    let namespace = Namespace::default();
    bed.store.workflow_pause(&namespace, "turns").await.unwrap();
    submit(&bed.store, &NewJob::of_workflow("turns"), 11).await;
    assert_eq!(bed.findings().await, []);
    bed.store.workflow_resume(&namespace, "turns").await.unwrap();
    assert_eq!(bed.findings().await, []);
    bed.store.workflow_terminate(&namespace, "turns").await.unwrap();
    assert_eq!(bed.findings().await, []);
    // A forgotten node took its slots with it, and came back as another.
    let node = NodeId::new("n1").unwrap();
    bed.store.node_forget(&namespace, &node, true).await.unwrap();
    assert_eq!(bed.findings().await, []);
    // An expired lease is recovery's business for a minute, one whose cleanup was put off until then, and one
    // on a silent node until that is lost.
    for harmless in [
        "lease_expires_at = now() - interval '30 seconds'",
        "lease_expires_at = now() - interval '1 hour', recovery_not_before = now() + interval '4 minutes'",
    ] {
        bed.client.batch_execute(&format!("update leasehold.leases set {harmless}")).await.unwrap();
        assert_eq!(bed.findings().await, [], "{harmless}");
    }
}

/// What was done to the database, the checks that must find something (and no others may), the job of the
/// first check's finding, and words of it.
type Forgery = (&'static str, &'static [&'static str], i64, &'static str);

const FORGERIES: &[Forgery] = &[
    (
        "update leasehold.leases set token = (select token from leasehold.leases where job_id = 2) where job_id = 3",
        &["tokens"],
        HANDLER,
        "shares its lease token with job 3",
    ),
    (
        "update leasehold.leases set cancel_requested_at = now() - interval '2 minutes',
             cancel_deadline = now() - interval '10 seconds' where job_id = 2",
        &["deadlines"],
        HANDLER,
        "after its cancel deadline",
    ),
    (
        "update leasehold.leases set lease_expires_at = 'infinity' where job_id = 2",
        &["expiry"],
        HANDLER,
        "its lease expires at infinity, which is no time",
    ),
    (
        "update leasehold.leases set lease_expires_at = '-infinity' where job_id = 3",
        &["expiry"],
        CONTAINER,
        "its lease expires at -infinity, which is no time",
    ),
    (
        "update leasehold.leases set lease_expires_at = now() + interval '1 year' where job_id = 2",
        &["expiry"],
        HANDLER,
        "its lease expires in 31",
    ),
    (
        "update leasehold.leases set run_deadline = now() - interval '3 minutes' where job_id = 6",
        &["cancels"],
        REOPENED,
        "is RUNNING 180 s after its run deadline",
    ),
    (
        "update leasehold.lease_history set epoch = 3 where job_id = 1; update leasehold.ended set epoch = 3 where job_id = 1",
        &["epochs", "grants"],
        DONE,
        "no lease stands between epochs 0 and 3",
    ),
    (
        "update leasehold.lease_history set ended_at = now() + interval '1 hour' where job_id = 6",
        &["epochs"],
        REOPENED,
        "epoch 2 was granted while epoch 1 was still held",
    ),
    (
        "insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at, renewals)
         select job_id, epoch, namespace, 'released', worker_id, process_id, attempt, granted_at, 1 from leasehold.leases where job_id = 2",
        &["epochs"],
        HANDLER,
        "epoch 1 was granted twice",
    ),
    ("update leasehold.leases set attempt = 0 where job_id = 6", &["epochs"], REOPENED, "counts attempt 0 after attempt 1"),
    ("update leasehold.waiting set epoch = 7 where job_id = 7", &["epochs"], RETRYING, "carries epoch 7, its last lease had epoch 1"),
    (
        "insert into leasehold.ready (job_id, namespace, due_at, kind, route, workflow, rank, generation, dispatch_attempt, epoch)
         select job_id, namespace, now(), kind, route, workflow, rank, generation, 2, epoch from leasehold.ended where job_id = 1",
        &["conservation"],
        DONE,
        "stands in ready and ended at once",
    ),
    ("delete from leasehold.waiting where job_id = 9", &["conservation"], LATER, "stands in none of"),
    ("delete from leasehold.jobs where job_id = 9", &["conservation"], LATER, "stands in waiting, but was never submitted"),
    ("update leasehold.waiting set namespace = 'other' where job_id = 9", &["conservation"], LATER, "under another namespace, other"),
    ("update leasehold.ended set state = 'FAILED' where job_id = 1", &["ended_once"], DONE, "is FAILED, but its last lease is completed"),
    ("update leasehold.ended set state = 'CANCELED' where job_id = 1", &["ended_once"], DONE, "is CANCELED, but its last lease is completed"),
    (
        "insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at, renewals)
         select job_id, 2, namespace, 'completed', worker_id, process_id, attempt, ended_at, 0 from leasehold.lease_history where job_id = 1;
         update leasehold.ended set epoch = 2 where job_id = 1",
        &["ended_once"],
        DONE,
        "its leases ended it 2 times, and it was reopened 0 times",
    ),
    ("update leasehold.idempotency_keys set job_id = 77", &["keys"], 77, "there is no such job"),
    ("update leasehold.leases set node_id = null where job_id = 3", &["containers", "node_slots"], CONTAINER, "without a node"),
    (
        "update leasehold.leases l set node_id = c.node_id, node_engine_id = c.node_engine_id, container_id = c.container_id
         from leasehold.leases c where c.job_id = 3 and l.job_id = 2",
        &["containers"],
        HANDLER,
        "shares container cccccccccccc with another job",
    ),
    ("delete from leasehold.node_slots", &["node_slots"], CONTAINER, "runs on node n1 and has no slot there"),
    (
        "insert into leasehold.node_slots (namespace, node_id, slot, job_id)
         select 'default', 'n1', 3 - slot, 1 from leasehold.node_slots",
        &["node_slots"],
        DONE,
        "of node n1 is taken by it, and it is not RUNNING",
    ),
    (
        "insert into leasehold.node_slots (namespace, node_id, slot, job_id, task) values ('default', 'n1', 9, 3, 'k')",
        &["node_slots"],
        CONTAINER,
        "is taken by a task of it, which is not placed there",
    ),
    (
        "insert into leasehold.task_containers (job_id, task, namespace, path, epoch, node_id, node_incarnation,
             node_endpoint, node_engine_id) values (2, 'k', 'default', 'build', 1, 'n1', 99, 'e', 'e')",
        &["node_slots"],
        HANDLER,
        "its task build is placed on node n1, and it is not RUNNING",
    ),
    ("delete from leasehold.workflow_slots", &["run_slots"], RUN, "has no run slot"),
    ("insert into leasehold.workflow_slots values ('default', 'turns', 2, 2)", &["run_slots"], HANDLER, "and it is a run of adhoc"),
    (
        "insert into leasehold.job_logs (job_id, epoch, stream, first_byte, namespace, data) values (2, 1, 1, 6, 'default', 'o')",
        &["logs"],
        HANDLER,
        "output of stream 1 under epoch 1 is stored twice from byte 6",
    ),
    (
        "insert into leasehold.job_logs (job_id, epoch, stream, first_byte, namespace, data) values (2, 9, 1, 0, 'default', 'o')",
        &["logs"],
        HANDLER,
        "has output of epoch 9, which was never granted",
    ),
    (
        "insert into leasehold.recipe_events (job_id, ordinal, namespace, path, path_hash, sort, era, epoch, bytes)
         values (2, 1, 'default', 'a', sha256('a'), 'timer_fired', 0, 1, 1)",
        &["events"],
        HANDLER,
        "has events, and is no recipe",
    ),
    (
        "insert into leasehold.recipes (job_id, namespace, language, events, bytes) values (2, 'default', 1, 2, 2);
         insert into leasehold.recipe_events (job_id, ordinal, namespace, path, path_hash, sort, era, epoch, bytes)
         values (2, 1, 'default', 'a', sha256('a'), 'task', 0, 1, 1), (2, 3, 'default', 'b', sha256('b'), 'task', 0, 1, 1)",
        &["events"],
        HANDLER,
        "the log of 2 events ends at ordinal 3",
    ),
    (
        "insert into leasehold.recipes (job_id, namespace, language, events) values (2, 'default', 1, 3)",
        &["events"],
        HANDLER,
        "3 events are counted, and 0 are in the log",
    ),
    (
        "insert into leasehold.signals (job_id, namespace, name, data) values (2, 'default', 'go', '1')",
        &["signals"],
        HANDLER,
        "belongs to no recipe",
    ),
    (
        "insert into leasehold.recipes (job_id, namespace, language, wake_epoch, wake_signals) values (9, 'default', 1, 0, '{go}');
         insert into leasehold.signals (job_id, namespace, name, data, sent_at)
         values (9, 'default', 'go', '1', now() - interval '1 minute')",
        &["asleep"],
        LATER,
        "waits for what has come already",
    ),
    ("delete from leasehold.lease_history where job_id = 7", &["grants", "epochs"], RETRYING, "left no trace"),
    ("update leasehold.workflows set generation = 2", &["generations"], BLOCKED, "is of generation 1 of workflow turns, which is at 2"),
    ("update leasehold.workflows set state = 'TERMINATED'", &["generations"], BLOCKED, "its workflow turns is terminated"),
    ("delete from leasehold.workflows", &["generations"], BLOCKED, "its workflow turns is gone"),
    ("update leasehold.waiting set due_at = 'infinity' where job_id = 9", &["held"], LATER, "is due never, and nothing holds it"),
    (
        "update leasehold.waiting set due_at = 'infinity', held_due_at = now() where job_id = 5",
        &["held"],
        BLOCKED,
        "is held for workflow turns, which is ACTIVE",
    ),
    (
        "update leasehold.waiting set due_at = now() + interval '1 hour', blocked_by = 1 where job_id = 5",
        &["blocked"],
        BLOCKED,
        "waits for job 1, which has ended, and its next look is 3600 s away",
    ),
    (
        "update leasehold.waiting set due_at = now() - interval '10 minutes' where job_id = 9",
        &["overdue"],
        LATER,
        "is due for 600 s and not dispatched",
    ),
    ("update leasehold.workers set stopped_at = now()", &["unserved"], QUEUED, "no living worker serves HANDLER work"),
    ("update leasehold.workers set seen_at = now() - interval '1 minute'", &["unserved"], QUEUED, "no living worker serves HANDLER work"),
    ("update leasehold.workers set status = '{\"routes\": [\"CONTAINER\"]}'", &["unserved"], QUEUED, "no living worker serves"),
    (
        "update leasehold.ready set kind = 'CONTAINER', route = ''; update leasehold.nodes set state = 'DRAINING'",
        &["unplaced"],
        QUEUED,
        "and of 1 none is READY and fresh",
    ),
    (
        "update leasehold.ready set kind = 'CONTAINER', route = ''; delete from leasehold.node_slots; delete from leasehold.nodes",
        &["unplaced"],
        QUEUED,
        "and none is registered",
    ),
    (
        "update leasehold.leases set lease_expires_at = now() - interval '5 minutes' where job_id in (2, 3);
         update leasehold.nodes set heartbeat_ttl_ms = 1000, heartbeat_at = now() - interval '10 minutes'",
        &["expired"],
        HANDLER,
        "its lease of epoch 1, held by worker w1, expired 300 s ago",
    ),
    (
        "update leasehold.leases set epoch = 6 where job_id = 2;
         insert into leasehold.lease_history (job_id, epoch, namespace, how, worker_id, process_id, attempt, granted_at, ended_at, renewals)
         select 2, n, 'default', 'expired', 'w1', gen_random_uuid(), 1, l.granted_at, l.granted_at, 1
         from leasehold.leases l, generate_series(1, 5) n where l.job_id = 2",
        &["postponed"],
        HANDLER,
        "was taken over 5 times since its claim and is not cleaned up",
    ),
    (
        "update leasehold.commands set created_at = now() - interval '2 days'",
        &["commands"],
        0,
        "commands are older than 26 hours",
    ),
];

#[tokio::test]
async fn each_forged_defect_is_one_line_with_its_remedy() {
    let bed = Bed::create().await;
    let rows = bed.client.query("select token from leasehold.leases", &[]).await.unwrap();
    let tokens: Vec<uuid::Uuid> = rows.iter().map(|row| row.get(0)).collect();
    let all = audit::run_with(&bed.client, &AuditSettings::default()).await.unwrap().checks;
    let healthy = bed.db;
    let mut seen = Vec::new();
    let mut wrong = Vec::new();
    for (forged, checks, job, words) in FORGERIES {
        let db = healthy.copy().await;
        let client = db.client().await;
        // However long the others took.
        let now = "update leasehold.workers set seen_at = now();
                   update leasehold.leases set lease_expires_at = now() + interval '1 minute';
                   update leasehold.waiting set due_at = now() + interval '5 seconds' where blocked_by is not null";
        client.batch_execute(now).await.unwrap();
        client.batch_execute(forged).await.unwrap();
        let findings = audit::run(&client).await.unwrap();
        let mut expected = checks.to_vec();
        expected.sort_unstable();
        let found = findings.iter().find(|finding| finding.check == checks[0]);
        let as_forged = found.is_some_and(|finding| {
            finding.job == (*job != 0).then_some(JobId(*job)) && finding.detail.contains(words)
        });
        if names(&findings) != expected || !as_forged {
            let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
            wrong.push(format!("{forged}\n  must show {checks:?} and `{words}`, and shows {lines:#?}"));
        }
        for finding in &findings {
            let line = finding.to_string();
            assert!(finding.sort != Sort::Unfinished && !finding.remedy.is_empty(), "{line}");
            assert_eq!(finding.namespace.as_deref(), Some("default"), "{line}");
            assert!(line.lines().count() == 1 && line.contains(&finding.remedy), "{line}");
            assert!(!tokens.iter().any(|token| line.contains(&token.to_string())), "{line}");
        }
        seen.extend(checks.iter().copied());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // No check may be without its forgery.
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all, "{seen:?}");
}

#[tokio::test]
async fn an_audit_is_bounded_in_lines_and_in_time_and_says_so() {
    let bed = Bed::create().await;
    bed.client.batch_execute("delete from leasehold.lease_history").await.unwrap();
    let few = AuditSettings { lines: 2, ..AuditSettings::default() };
    let findings = audit::run_with(&bed.client, &few).await.unwrap().findings;
    let grants: Vec<_> = findings.iter().filter(|finding| finding.check == "grants").collect();
    assert_eq!(grants.len(), 3, "{grants:#?}");
    assert!(grants[2].detail.contains("more than the 2 shown"), "{}", grants[2]);
    // Somebody holds a table: what needs it says nothing, the rest says what it finds.
    let mut other = bed.db.client().await;
    let held = other.transaction().await.unwrap();
    held.batch_execute("lock table leasehold.workers in access exclusive mode").await.unwrap();
    let hasty = AuditSettings { check_timeout: Duration::from_millis(500), ..AuditSettings::default() };
    let findings = audit::run_with(&bed.client, &hasty).await.unwrap().findings;
    let unfinished: Vec<_> = findings
        .iter()
        .filter(|finding| finding.sort == Sort::Unfinished)
        .map(|finding| finding.check)
        .collect();
    assert_eq!(unfinished, ["unserved"], "{findings:#?}");
    assert!(findings.iter().any(|finding| finding.check == "grants"));
    held.rollback().await.unwrap();
    // The connection is as good as before.
    assert!(bed.findings().await.iter().all(|finding| finding.sort != Sort::Unfinished));
}
