//! A worker's fence with everything real: whatever keeps a lease from being renewed, its container is dead before
//! the database could grant the job anew.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold::{
    Worker,
    protocol::{
        domain::{CommandId, ContainerId, JobId},
        error::StoreError,
        ports::{
            Authority, ContainerEngine as _, ContainerState, ContainerStatus, End, Ended, LeaseStore,
            LogAppend, LogBatch, Renewal,
        },
    },
    worker::WorkerBuilder,
};
use rustix::process::Signal;

use super::yard::Yard;
use crate::{
    scenarios::worker_process::WorkerProcess,
    support::{
        around_store::{Around, around},
        database::{settings, with_database},
        eventually::eventually,
        proxy::Proxy,
        services,
    },
};

const SOON: Duration = Duration::from_secs(60);
/// Says something all the time, and does not listen when it is asked to stop.
const RUN: &str = "trap '' TERM; while :; do echo on; sleep 0.2; done";

/// A lease that leaves a slow machine a second and a half for the killing.
fn worker(yard: &Yard, url: &str) -> WorkerBuilder {
    let mut database = settings(&with_database(url, yard.database.name()));
    database.store_timeout = Duration::from_secs(1);
    Worker::builder().database_settings(database).containers(true).configure(|settings| {
        settings.concurrency = 4;
        settings.lease = Duration::from_secs(12);
        settings.renew_interval = Duration::from_millis(1500);
        settings.safety_margin = Duration::from_millis(1500);
        settings.store_timeout = Duration::from_secs(1);
        settings.shutdown_grace = Duration::from_secs(1);
    })
}

/// Submits jobs whose containers run; answers them with their ids.
async fn running(yard: &Yard, count: usize) -> Vec<(JobId, ContainerId)> {
    let jobs = yard.submit(count, RUN).await;
    let mut running = Vec::new();
    for job in jobs {
        let id = eventually(SOON, "it runs", async || {
            let sql = "select container_id from leasehold.leases where job_id = $1";
            let row = yard.client.query_opt(sql, &[&job.0]).await.unwrap()?;
            let id = ContainerId::new(row.get::<_, Option<String>>(0)?).unwrap();
            yard.runs(&id).await.then_some(id)
        })
        .await;
        running.push((job, id));
    }
    running
}

/// None when it was removed as well.
async fn dead(yard: &Yard, id: &ContainerId) -> Option<ContainerStatus> {
    eventually(SOON, "the container is dead", async || match yard.engine.engine.inspect(id).await.unwrap() {
        None => Some(None),
        Some(status) => matches!(status.state, ContainerState::Exited { .. }).then_some(Some(status)),
    })
    .await
}

async fn expiry(yard: &Yard, job: JobId) -> DateTime<Utc> {
    let sql = "select lease_expires_at from leasehold.leases where job_id = $1";
    yard.client.query_one(sql, &[&job.0]).await.unwrap().get(0)
}

/// The engines of the tests and their PostgreSQL have one clock: the machine's.
async fn assert_dead_in_time(yard: &Yard, running: &[(JobId, ContainerId)]) {
    for (job, id) in running {
        let ended = match dead(yard, id).await {
            // Not later than now.
            None => yard.client.query_one("select clock_timestamp()", &[]).await.unwrap().get(0),
            Some(status) => {
                assert!(status.name.ends_with(".stopped"), "marked first: {status:?}");
                status.finished_at.expect("it has ended")
            }
        };
        let expires = expiry(yard, *job).await;
        assert!(ended < expires, "dead at {ended}, to be granted anew from {expires}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_dead_before_its_lease_expires_when_renewals_hang() {
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    yard.register().await;
    let proxy = Proxy::before(&services::database_url()).await;
    let running_worker = worker(&yard, &proxy.url(&services::database_url())).build().await.unwrap();
    let task = tokio::spawn(running_worker.run_until(std::future::pending()));
    let held = running(&yard, 2).await;
    proxy.stall(true);
    assert_dead_in_time(&yard, &held).await;
    task.abort();
    yard.clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_dead_before_its_lease_expires_when_the_database_is_unreachable() {
    let yard = Yard::at(&services::docker_endpoint(2)).await;
    yard.register().await;
    let proxy = Proxy::before(&services::database_url()).await;
    let running_worker = worker(&yard, &proxy.url(&services::database_url())).build().await.unwrap();
    let task = tokio::spawn(running_worker.run_until(std::future::pending()));
    let held = running(&yard, 2).await;
    proxy.refuse(true);
    proxy.cut();
    assert_dead_in_time(&yard, &held).await;
    task.abort();
    yard.clear().await;
}

/// Blocks whichever thread makes a call under a lease, as a defect would.
struct Blocking(Arc<AtomicBool>);

impl Blocking {
    fn block(&self) {
        while self.0.load(Ordering::SeqCst) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

#[async_trait]
impl Around for Blocking {
    async fn renew(&self, store: &dyn LeaseStore, authority: &Authority) -> Result<Renewal, StoreError> {
        self.block();
        store.renew(authority).await
    }

    async fn append_logs(
        &self,
        store: &dyn LeaseStore,
        authority: &Authority,
        batches: &[LogBatch],
    ) -> Result<LogAppend, StoreError> {
        self.block();
        store.append_logs(authority, batches).await
    }

    async fn end(
        &self,
        store: &dyn LeaseStore,
        authority: &Authority,
        command: CommandId,
        end: &End,
    ) -> Result<Ended, StoreError> {
        self.block();
        store.end(authority, command, end).await
    }
}

/// The actors' thread stands in a renewal, and both threads that speak to engines stand in the output of two
/// containers: nothing of the worker runs any more but its fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_dead_before_its_lease_expires_when_every_async_thread_is_blocked() {
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    yard.register().await;
    let blocked = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&blocked);
    let running_worker = worker(&yard, &services::database_url())
        .intercept_store(move |store| around(store, Blocking(switch)))
        .build()
        .await
        .unwrap();
    let task = tokio::spawn(running_worker.run_until(std::future::pending()));
    let held = running(&yard, 3).await;
    blocked.store(true, Ordering::SeqCst);
    assert_dead_in_time(&yard, &held).await;
    blocked.store(false, Ordering::SeqCst);
    task.abort();
    yard.clear().await;
}

/// Stopped and continued, with nobody else to recover: it is the woken worker itself that ends what it had started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_frozen_past_its_lease_ends_its_containers_when_it_wakes_up() {
    let yard = Yard::at(&services::docker_endpoint(2)).await;
    yard.register().await;
    let settings = [
        ("SCENARIO_CONTAINERS", "1"),
        ("EXECUTION_WORKER_LEASE_DURATION", "5s"),
        ("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "1s"),
        ("EXECUTION_WORKER_STORE_TIMEOUT", "1s"),
        ("EXECUTION_WORKER_SAFETY_MARGIN", "500ms"),
    ];
    let frozen = WorkerProcess::start(&yard.database, "w1", &settings);
    let held = running(&yard, 1).await;
    let (job, id) = &held[0];
    frozen.signal(Signal::STOP);
    eventually(SOON, "its lease is over", async || {
        let sql = "select from leasehold.leases where job_id = $1 and lease_expires_at < clock_timestamp()";
        yard.client.query_opt(sql, &[&job.0]).await.unwrap()
    })
    .await;
    assert!(yard.runs(id).await, "nobody can act while it is frozen");
    frozen.signal(Signal::CONT);
    eventually(SOON, "the container is ended", async || (!yard.runs(id).await).then_some(())).await;
    drop(frozen);
    yard.clear().await;
}
