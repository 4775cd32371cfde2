//! Jobs, owners and grants for tests of the store, and a look at every row that a call might change.

use std::{sync::Arc, time::Duration};

use leasehold::{
    postgres::PgStore,
    protocol::{
        domain::{
            CommandId, JobDefinition, JobId, LeaseToken, Namespace, NewJob, ProcessId, Route, WorkerId,
        },
        ports::{Authority, Claimant, Grant, LeaseStore, OpenClaim},
    },
};
use tokio_postgres::Client;

/// The lease that tests ask for unless they test its end.
pub const LEASE: Duration = Duration::from_secs(60);

/// A worker process in the default namespace.
pub fn claimant(worker: &str) -> Claimant {
    Claimant {
        namespace: Namespace::default(),
        worker: WorkerId::new(worker).unwrap(),
        process: ProcessId::generate(),
    }
}

/// A handler's job.
pub fn handler_job(name: &str) -> NewJob {
    NewJob::ad_hoc(JobDefinition::Handler { name: name.to_owned() })
}

/// An open claim for one handler.
pub fn open(owner: &Claimant, limit: u32) -> OpenClaim {
    OpenClaim {
        owner: owner.clone(),
        command: CommandId::generate(),
        repeat: false,
        routes: Arc::from([Route::handler("work")]),
        limit,
        lease: LEASE,
        facts: None,
    }
}

/// Submits `count` handler jobs in one statement, QUEUED, and returns their ids in order.
pub async fn queue_many(client: &Client, count: i64) -> Vec<JobId> {
    let rows = client
        .query(
            "with j as (
                 insert into leasehold.jobs (namespace, workflow, generation, kind, route, definition, payload, priority)
                 select 'default', 'adhoc', 1, 'HANDLER', 'work', '{\"handler\":\"work\"}', 'null', 0
                 from generate_series(1, $1::bigint) returning job_id)
             insert into leasehold.ready (job_id, namespace, due_at, kind, route, workflow, rank, generation, dispatch_attempt)
             select job_id, 'default', clock_timestamp(), 'HANDLER', 'work', 'adhoc', 0, 1, 1 from j
             returning job_id",
            &[&count],
        )
        .await
        .unwrap();
    let mut ids: Vec<JobId> = rows.iter().map(|row| JobId(row.get(0))).collect();
    ids.sort_unstable();
    ids
}

/// Queues one job and claims it.
pub async fn held(store: &PgStore, client: &Client, owner: &Claimant) -> Grant {
    queue_many(client, 1).await;
    let mut grants = store.claim(&open(owner, 1)).await.unwrap().grants;
    grants.pop().expect("one job is queued")
}

/// Claims this many of the queued handler jobs.
pub async fn claim_many(store: &PgStore, owner: &Claimant, count: u32) -> Vec<Grant> {
    let mut grants = Vec::new();
    while grants.len() < count as usize {
        let missing = count - u32::try_from(grants.len()).unwrap();
        let more = store.claim(&open(owner, missing.min(500))).await.unwrap().grants;
        assert!(!more.is_empty(), "{} of {count} granted", grants.len());
        grants.extend(more);
    }
    grants
}

/// The same authority with another token.
pub fn with_other_token(authority: &Authority) -> Authority {
    Authority { token: LeaseToken::generate(), ..authority.clone() }
}

/// Every row of a job in every table, with `xmin`: two equal pictures mean that nothing was written.
pub async fn picture(client: &Client, job: JobId) -> String {
    let mut picture = String::new();
    for table in [
        "jobs",
        "waiting",
        "ready",
        "leases",
        "ended",
        "lease_history",
        "job_logs",
        "job_progress",
        "node_slots",
        "task_containers",
        "workflow_slots",
    ] {
        let query =
            format!("select xmin::text, t::text from leasehold.{table} t where t.job_id = $1 order by 2");
        for row in client.query(&query, &[&job.0]).await.unwrap() {
            picture.push_str(&format!("{table} {} {}\n", row.get::<_, &str>(0), row.get::<_, &str>(1)));
        }
    }
    for table in ["nodes", "workflows", "commands"] {
        let query = format!("select xmin::text, t::text from leasehold.{table} t order by 2");
        for row in client.query(&query, &[]).await.unwrap() {
            picture.push_str(&format!("{table} {} {}\n", row.get::<_, &str>(0), row.get::<_, &str>(1)));
        }
    }
    picture
}
