//! L2: a token that is not live changes nothing. Each protected call, each way in which an authority can be
//! wrong, one at a time; every row of the job in every table is compared before and after, `xmin` included.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use leasehold::{
    postgres::PgStore,
    protocol::{
        domain::{
            CommandId, ContainerId, ContainerSpec, Failure, FailureKind, JobDefinition, JobId, NewJob,
            NodeId, ProcessId, RetryPolicy, Route, WorkerId,
        },
        error::StoreErrorKind,
        ports::{
            Attach, Authority, Claimant, DispatchedJob, End, Ended, Grant, LeaseStore, ListedAnswer,
            ListedClaim, LogAppend, LogBatch, LogStream, OpenClaim, PayloadUpdate, Reconciliation, Renewal,
        },
    },
};
use tokio_postgres::Client;

use crate::support::{
    database::TestDatabase,
    eventually::eventually,
    jobs::{LEASE, claimant, picture, with_other_token},
};

/// The protected calls. Reconcile is among them: it must change nothing whatever it answers.
const CALLS: [&str; 11] = [
    "renew",
    "attach",
    "logs",
    "progress",
    "complete",
    "fail",
    "retry",
    "cancel",
    "release",
    "reschedule",
    "reconcile",
];

/// What is wrong with an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// Its time is over.
    Expired,
    /// Just a token that nobody ever had.
    Token,
    /// The job was given back and granted again, to the same process.
    Replaced,
    /// The token is live, for another job.
    Job,
    Worker,
    Process,
    Namespace,
}

const WAYS: [Wrong; 7] = [
    Wrong::Expired,
    Wrong::Token,
    Wrong::Replaced,
    Wrong::Job,
    Wrong::Worker,
    Wrong::Process,
    Wrong::Namespace,
];

struct Bench {
    store: PgStore,
    client: Client,
    owner: Claimant,
}

impl Bench {
    async fn new(database: &TestDatabase) -> Self {
        let bench =
            Self { store: database.store().await, client: database.client().await, owner: claimant("w1") };
        bench
            .client
            .batch_execute(
                "insert into leasehold.nodes (namespace, node_id, endpoint, engine_id, process_id, max_concurrency, os,
                     architecture, cpu_millis, memory_bytes, engine_version, heartbeat_ttl_ms, lost_after_ms)
                 values ('default', 'n1', 'unix:///run/n1.sock', 'E1', gen_random_uuid(), 200, 'linux', 'amd64',
                         2000, 1000000000, '20', 3600000, 3600000)",
            )
            .await
            .unwrap();
        bench
    }

    async fn held(&self) -> Grant {
        let spec = ContainerSpec { image: "busybox".to_owned(), ..ContainerSpec::default() };
        let mut job = NewJob::ad_hoc(JobDefinition::Container(spec));
        job.retry.max_system = Some(100);
        self.store.submit(&job).await.unwrap();
        let request = OpenClaim {
            owner: self.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            routes: Arc::from([Route::container()]),
            limit: 1,
            lease: LEASE,
            facts: None,
        };
        self.store.claim(&request).await.unwrap().grants.pop().expect("one container job is queued")
    }

    /// A wrong authority, and the job that it is about.
    async fn wrong(&self, way: Wrong) -> (Authority, JobId) {
        let grant = self.held().await;
        let (right, job) = (grant.authority.clone(), grant.authority.job);
        let mut wrong = right.clone();
        match way {
            Wrong::Expired => {
                self.client
                    .execute(
                        "update leasehold.leases set lease_expires_at = clock_timestamp() - interval '1 ms'
                         where job_id = $1",
                        &[&job.0],
                    )
                    .await
                    .unwrap();
            }
            Wrong::Token => wrong = with_other_token(&right),
            Wrong::Replaced => {
                let end = End::Release { delay: Duration::ZERO, reason: "drain" };
                assert_eq!(
                    self.store.end(&right, CommandId::generate(), &end).await.unwrap(),
                    Ended::Released
                );
                self.store.dispatch(&self.owner.namespace, 10).await.unwrap();
                let again = self.claim_listed(job, 2).await;
                assert_ne!(again.authority.token, right.token);
            }
            Wrong::Job => wrong.token = self.held().await.authority.token,
            Wrong::Worker => wrong.owner.worker = WorkerId::new("w2").unwrap(),
            Wrong::Process => wrong.owner.process = ProcessId::generate(),
            Wrong::Namespace => wrong.owner.namespace = "elsewhere".parse().unwrap(),
        }
        (wrong, job)
    }

    async fn claim_listed(&self, job: JobId, dispatch_attempt: i32) -> Grant {
        let request = ListedClaim {
            owner: self.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            jobs: vec![DispatchedJob { job, generation: 1, dispatch_attempt }],
            lease: LEASE,
        };
        match self.store.claim_listed(&request).await.unwrap().pop() {
            Some(ListedAnswer::Granted(grant)) => *grant,
            other => panic!("{other:?}"),
        }
    }

    /// Makes the call; true when it was obeyed, false when it was refused for lack of a live lease.
    async fn call(&self, call: &str, authority: &Authority) -> bool {
        let store = &self.store;
        let fail = |kind| End::Fail {
            failure: Failure::new(kind, "7", "did not work"),
            defaults: RetryPolicy::default(),
        };
        let end = match call {
            "renew" => {
                return matches!(store.renew(authority).await.unwrap(), Renewal::Held { .. });
            }
            "attach" => {
                let (node, container) = (NodeId::new("n1").unwrap(), ContainerId::new("c1").unwrap());
                return match store.attach(authority, &node, &container).await.unwrap() {
                    Attach::Attached => true,
                    Attach::NotLive => false,
                    other => panic!("{other:?}"),
                };
            }
            "logs" => {
                let batch = LogBatch {
                    task: None,
                    stream: LogStream::Stdout,
                    first_byte: 0,
                    data: Bytes::from_static(b"hi"),
                };
                return store.append_logs(authority, &[batch]).await.unwrap() == LogAppend::Stored;
            }
            "progress" => {
                let answer = store.report_progress(authority, r#"{"done":1}"#).await.unwrap();
                return matches!(answer, Renewal::Held { .. });
            }
            "reconcile" => {
                let answer = store.reconcile(authority).await.unwrap();
                return matches!(answer, Reconciliation::Live { .. });
            }
            "complete" => End::Complete { exit_code: Some(0), output: Some("1".to_owned()) },
            "fail" => fail(FailureKind::User),
            "retry" => fail(FailureKind::System),
            "cancel" => End::Cancel,
            "release" => End::Release { delay: Duration::ZERO, reason: "drain" },
            "reschedule" => End::Reschedule {
                route: None,
                delay: Duration::ZERO,
                payload: Some(PayloadUpdate { value: "2".to_owned(), expected_revision: 1 }),
                wake: Vec::new(),
                publish: None,
            },
            other => panic!("no such call: {other}"),
        };
        store.end(authority, CommandId::generate(), &end).await.unwrap() != Ended::NotLive
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_wrong_in_one_respect_changes_nothing() {
    let database = TestDatabase::create().await;
    let bench = Bench::new(&database).await;
    for call in CALLS {
        for way in WAYS {
            let (wrong, job) = bench.wrong(way).await;
            let before = picture(&bench.client, job).await;
            assert!(before.contains("leases "), "the job is RUNNING");
            assert!(!bench.call(call, &wrong).await, "{call} was obeyed, {way:?}");
            assert_eq!(picture(&bench.client, job).await, before, "{call}, {way:?}");
        }
    }
}

/// The counter-check of the test above: the right authority is obeyed by every one of these calls, and each but
/// reconcile leaves a trace.
#[tokio::test(flavor = "multi_thread")]
async fn the_right_authority_is_obeyed() {
    let database = TestDatabase::create().await;
    let bench = Bench::new(&database).await;
    for call in CALLS {
        let grant = bench.held().await;
        let before = picture(&bench.client, grant.authority.job).await;
        assert!(bench.call(call, &grant.authority).await, "{call} was refused");
        let after = picture(&bench.client, grant.authority.job).await;
        assert_eq!(after == before, call == "reconcile", "{call}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reconcile_tells_live_from_expired_from_changed() {
    let database = TestDatabase::create().await;
    let bench = Bench::new(&database).await;
    for way in WAYS {
        let (wrong, _) = bench.wrong(way).await;
        let expected = if way == Wrong::Expired { Reconciliation::Expired } else { Reconciliation::Changed };
        assert_eq!(bench.store.reconcile(&wrong).await.unwrap(), expected, "{way:?}");
    }
    let grant = bench.held().await;
    let Reconciliation::Live { remaining } = bench.store.reconcile(&grant.authority).await.unwrap() else {
        panic!("a fresh grant is live")
    };
    assert!(remaining <= LEASE && remaining > LEASE / 2, "{remaining:?}");
}

/// "Expired" frees a permit for good, so an extension that is not committed yet must not be overlooked.
#[tokio::test(flavor = "multi_thread")]
async fn reconcile_waits_for_an_extension_that_is_not_committed_yet() {
    let database = TestDatabase::create().await;
    let bench = Bench::new(&database).await;
    let (authority, job) = bench.wrong(Wrong::Expired).await;
    let holder = database.client().await;
    holder.batch_execute("begin").await.unwrap();
    holder
        .execute(
            "update leasehold.leases set lease_expires_at = clock_timestamp() + interval '1 hour'
             where job_id = $1",
            &[&job.0],
        )
        .await
        .unwrap();
    let store = bench.store.clone();
    let asking = tokio::spawn(async move {
        loop {
            match store.reconcile(&authority).await {
                Err(e) if e.kind == StoreErrorKind::RowLocked => {}
                answer => return answer,
            }
        }
    });
    eventually(Duration::from_mins(1), "somebody waits for the row", async || {
        let waiting = "select from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'";
        bench.client.query(waiting, &[]).await.unwrap().pop()
    })
    .await;
    holder.batch_execute("commit").await.unwrap();
    assert!(matches!(asking.await.unwrap(), Ok(Reconciliation::Live { .. })));
}

/// A wrong authority beside 300 right ones in the same statement harms none of them, and is obeyed by none.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_authority_among_many_harms_none_of_them() {
    let database = TestDatabase::create().await;
    let (store, client) = (database.store().await, database.client().await);
    let owner = claimant("w1");
    crate::support::jobs::queue_many(&client, 300).await;
    let grants = crate::support::jobs::claim_many(&store, &owner, 300).await;
    let stranger = claimant("w1");
    let calls = grants.iter().enumerate().map(|(n, grant)| {
        let mut authority = grant.authority.clone();
        if n % 3 == 1 {
            authority.owner = stranger.clone();
        }
        let store = &store;
        async move { (n, store.renew(&authority).await.unwrap()) }
    });
    for (n, renewal) in futures_util::future::join_all(calls).await {
        assert_eq!(renewal == Renewal::NotLive, n % 3 == 1, "{n}: {renewal:?}");
    }
    // The same job asked for by its holder and by a stranger at the same time.
    let calls = grants.iter().flat_map(|grant| {
        let (right, mut wrong) = (grant.authority.clone(), grant.authority.clone());
        wrong.owner = stranger.clone();
        [(right, true), (wrong, false)]
    });
    let calls = calls.map(|(authority, right)| {
        let store = &store;
        async move {
            let end = End::Complete { exit_code: None, output: None };
            let answer = store.end(&authority, CommandId::generate(), &end).await.unwrap();
            (right, answer)
        }
    });
    for (right, answer) in futures_util::future::join_all(calls).await {
        assert_eq!(answer != Ended::NotLive, right, "{answer:?}");
    }
}
