//! The reaper beside recoveries: it must not take a container away from whoever is cleaning up or going on with it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bollard::query_parameters::KillContainerOptionsBuilder;
use futures_util::{StreamExt as _, stream};
use leasehold::{
    node_agent::orphans::{Domain, Orphan, Pass, Reaped, pass},
    postgres::PgStore,
    protocol::{
        domain::{CommandId, ContainerId, RetryPolicy},
        ports::{
            ContainerEngine as _, ContainerState, End, Ended, Grant, LeaseStore as _, RecoverRequest,
            Renewal, RuntimeStanding, Takeover,
        },
    },
};
use tokio::task::JoinHandle;

use super::yard::{Yard, by};
use crate::support::{eventually::eventually, jobs::claimant, services, size};

const SOON: Duration = Duration::from_secs(120);
const LEASE: Duration = Duration::from_secs(600);

/// Passes in a tight loop, and what they removed.
struct Loop {
    begun: Arc<AtomicU64>,
    reaped: Arc<Mutex<Vec<Reaped>>>,
    task: JoinHandle<()>,
}

impl Loop {
    fn start(yard: &Yard, domain: Domain, store: PgStore) -> Self {
        let (begun, reaped) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (count, removed, engine) = (Arc::clone(&begun), Arc::clone(&reaped), by(&yard.engine.endpoint));
        let task = tokio::spawn(async move {
            loop {
                count.fetch_add(1, Ordering::SeqCst);
                let Pass { reaped, left, .. } = pass(&engine, &store, &domain).await.unwrap();
                assert_eq!(left, 0);
                removed.lock().unwrap().extend(reaped);
            }
        });
        Self { begun, reaped, task }
    }

    /// Waits until a pass that began after this call is over.
    async fn one_more(&self) {
        let now = self.begun.load(Ordering::SeqCst);
        eventually(SOON, "a pass is made", async || {
            assert!(!self.task.is_finished(), "the loop has failed");
            (self.begun.load(Ordering::SeqCst) >= now + 2).then_some(())
        })
        .await;
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn take_over(yard: &Yard, count: usize) -> Vec<Takeover> {
    let owner = claimant("rescuer");
    let mut takeovers = Vec::new();
    eventually(SOON, "all are taken over", async || {
        let request = RecoverRequest {
            owner: owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            limit: u32::try_from(count).unwrap(),
            lease: LEASE,
            running_here: Arc::from([]),
        };
        takeovers.extend(yard.store.recover(&request).await.unwrap().takeovers);
        (takeovers.len() == count).then_some(())
    })
    .await;
    takeovers
}

async fn renew(yard: &Yard, grant: &Grant) {
    let answer = yard.store.renew(&grant.authority).await.unwrap();
    assert!(matches!(answer, Renewal::Held { .. }), "{answer:?}");
}

/// Claims, starts (a container each, some of them not attached) and loses leases; answers what was taken over.
async fn lost(yard: &Yard, count: u32, script: &str) -> Vec<(Takeover, ContainerId)> {
    let grants = yard.claim(count, script, LEASE).await;
    let containers: HashMap<_, _> = stream::iter(grants.iter().enumerate())
        .map(|(n, grant)| async move {
            renew(yard, grant).await;
            let id = if n % 5 == 4 { yard.run(grant).await } else { yard.attached(grant).await };
            yard.expire(grant.authority.job).await;
            (grant.authority.job, id)
        })
        .buffer_unordered(4)
        .collect()
        .await;
    let takeovers = take_over(yard, grants.len()).await;
    takeovers
        .into_iter()
        .map(|takeover| {
            let id = containers[&takeover.grant.authority.job].clone();
            (takeover, id)
        })
        .collect()
}

/// Stops the container as recovery does, and gives the job back.
async fn recover(yard: &Yard, (takeover, id): (Takeover, ContainerId)) {
    assert_eq!(takeover.runtime, RuntimeStanding::Available);
    assert!(takeover.started && takeover.grant.authority.epoch > takeover.claim_epoch);
    let name = {
        let status = yard.engine.engine.inspect(&id).await.unwrap().expect("the reaper has left it alone");
        assert!(matches!(status.state, ContainerState::Running { .. }), "{status:?}");
        status.name
    };
    assert!(!name.ends_with(".stopped"), "somebody else has marked it: {name}");
    renew(yard, &takeover.grant).await;
    let engine = &yard.engine.engine;
    engine.mark_stopped(&id, &name).await.unwrap();
    engine.stop(&id, Duration::from_millis(500)).await.unwrap();
    let status = engine.inspect(&id).await.unwrap().expect("the reaper has left it alone");
    assert!(matches!(status.state, ContainerState::Exited { .. }), "{status:?}");
    engine.remove(&id).await.unwrap();
    let defaults = RetryPolicy {
        max_user: Some(1),
        max_system: Some(1),
        max_timeout: Some(1),
        backoff_ms: Some(1),
        backoff_cap_ms: Some(1),
    };
    let end = End::Lost { defaults, loss_limit: 1, message: "its worker is gone".to_owned() };
    let ended = yard.store.end(&takeover.grant.authority, CommandId::generate(), &end).await.unwrap();
    assert!(matches!(ended, Ended::Terminal(_)), "{ended:?}");
}

/// Goes on with the container, whose own exit decides.
async fn adopt(yard: &Yard, reaper: &Loop, (takeover, id): (Takeover, ContainerId)) {
    for _ in 0..3 {
        renew(yard, &takeover.grant).await;
        reaper.one_more().await;
        assert!(yard.runs(&id).await, "the reaper has left it alone");
    }
    // Its program comes to its own end.
    let end = KillContainerOptionsBuilder::new().signal("SIGUSR1").build();
    yard.engine.stranger.kill_container(id.as_str(), Some(end)).await.unwrap();
    let status = yard.engine.engine.wait(&id).await.unwrap();
    assert!(matches!(status.state, ContainerState::Exited { code: 0, .. }), "{status:?}");
    assert!(!status.name.ends_with(".stopped"), "{status:?}");
    yard.engine.engine.remove(&id).await.unwrap();
    yard.complete(&takeover.grant).await;
}

/// L7: 200 recoveries and 50 adoptions in the long form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reaper_in_a_tight_loop_takes_no_container_from_recoveries_and_adoptions() {
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    let domain = yard.register().await;
    let reaper = Loop::start(&yard, domain, yard.database.store().await);
    let begun = Instant::now();
    let waves = size::rounds(2, 10);
    let (mut recovered, mut adopted, mut planted) = (0, 0, Vec::new());
    for _ in 0..waves {
        let stubborn = lost(&yard, 20, "while :; do sleep 1; done").await;
        // So that it is known to work: one that nobody stands behind.
        let orphan = &yard.claim(1, "sleep 600", LEASE).await[0];
        yard.attached(orphan).await;
        yard.complete(orphan).await;
        planted.push(orphan.authority.job);
        reaper.one_more().await;
        recovered += stubborn.len();
        stream::iter(stubborn).for_each_concurrent(4, |each| recover(&yard, each)).await;

        let followed = lost(&yard, 5, "trap 'exit 0' USR1; while :; do sleep 0.2; done").await;
        adopted += followed.len();
        stream::iter(followed).for_each_concurrent(5, |each| adopt(&yard, &reaper, each)).await;
    }
    reaper.one_more().await;
    let reaped = reaper.reaped.lock().unwrap().clone();
    let passes = reaper.begun.load(Ordering::SeqCst);
    let mut jobs: Vec<_> = reaped.iter().map(|reaped| reaped.job).collect();
    jobs.sort_unstable();
    assert_eq!(jobs, planted, "the orphans, and nothing else: {reaped:#?}");
    assert!(reaped.iter().all(|reaped| reaped.orphan == Orphan::NotRunning), "{reaped:#?}");
    assert!(yard.containers().await.is_empty());
    println!(
        "{recovered} recoveries and {adopted} adoptions beside {passes} passes of the reaper in {:?}: it removed {} \
         planted orphans and nothing else",
        begun.elapsed(),
        reaped.len()
    );
}

/// That the test above can fail: a reaper that takes a takeover for a claim removes what was taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reaper_that_takes_a_takeover_for_a_claim_is_found_out() {
    const BY_EPOCH: &str = "
        select l.job_id, l.epoch as claim_epoch, l.container_id, '{}'::text[] as tasks, '{}'::text[] as containers
        from leasehold.fleet f
        join leasehold.nodes n on n.namespace = $1 and n.node_id = $2 and n.process_id = $3 and n.engine_id = $4
        left join leasehold.leases l on l.namespace = n.namespace and l.job_id = any($6)
        where f.fleet_id = $5";
    let yard = Yard::at(&services::docker_endpoint(1)).await;
    let domain = yard.register().await;
    let replaced = HashMap::from([("node_claims", BY_EPOCH)]);
    let wrong = PgStore::connect_with(&yard.database.settings(), tokio::runtime::Handle::current(), replaced)
        .await
        .unwrap();
    let taken = lost(&yard, 1, "sleep 600").await;
    let right = pass(&yard.engine.engine, &yard.store, &domain).await.unwrap();
    assert_eq!((right.listed, right.reaped.len()), (1, 0), "{right:?}");
    let wronged = pass(&yard.engine.engine, &wrong, &domain).await.unwrap();
    let epoch = taken[0].0.grant.authority.epoch;
    assert_eq!(wronged.reaped.len(), 1, "{wronged:?}");
    assert_eq!(wronged.reaped[0].orphan, Orphan::Superseded { claim: epoch });
}
