//! Replay of recoveries: a repeat under the same command id *is* the recovery, and never anything new.

use futures_util::future::join_all;

use super::bench::{Bench, LEASE, claimant, complete};
use crate::{
    domain::{CommandId, JobId, LeaseToken},
    error::{Applied, StoreErrorKind},
    ports::{OpenClaim, RecoverRequest, Renewal, Takeover},
    testing::harness::StoreHarness,
};

fn identities(takeovers: &[Takeover]) -> Vec<(JobId, LeaseToken, i64)> {
    let authority = takeovers.iter().map(|takeover| &takeover.grant.authority);
    authority.map(|a| (a.job, a.token, a.epoch.0)).collect()
}

async fn repeat(bench: &Bench<'_>, request: &RecoverRequest) -> Vec<Takeover> {
    bench.recover_with(RecoverRequest { repeat: true, ..request.clone() }).await.takeovers
}

async fn expired(bench: &Bench<'_>, count: usize) {
    for _ in 0..count {
        let grant = bench.held().await;
        bench.renew(&grant.authority).await;
        bench.harness.expire(grant.authority.job).await;
    }
}

/// L10: the answer was lost; asking again brings the same takeovers, whole, and nothing else.
pub async fn a_repeat_brings_the_recorded_takeovers(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    bench.attach(&grant, "c1").await;
    harness.expire(grant.authority.job).await;
    expired(&bench, 4).await;
    let request = bench.recovery(3);
    let first = bench.recover_with(request.clone()).await;
    assert_eq!((first.takeovers.len(), first.backlog), (3, 2));
    for _ in 0..2 {
        let again = bench.recover_with(RecoverRequest { repeat: true, ..request.clone() }).await;
        assert_eq!(format!("{:?}", again.takeovers), format!("{:?}", first.takeovers));
        assert_eq!(again.backlog, 2, "how things stand is told anew");
        assert!(again.next_expiry.is_some_and(|next| next <= LEASE) && again.oldest.is_some());
    }
    // What runs here by now is no part of the question.
    let running_here = vec![first.takeovers[0].grant.authority.job].into();
    let again = repeat(&bench, &RecoverRequest { running_here, ..request }).await;
    assert_eq!(identities(&again), identities(&first.takeovers));
    for takeover in again {
        assert!(matches!(bench.renew(&takeover.grant.authority).await, Renewal::Held { .. }));
    }
}

/// Only what is still live under that very takeover is told again.
pub async fn a_repeat_leaves_out_what_was_taken_on(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    expired(&bench, 4).await;
    let request = bench.recovery(4);
    let first = bench.recover_with(request.clone()).await.takeovers;
    let [ended, lapsed, retaken, live] = &first[..] else { panic!("four takeovers") };
    bench.end(&ended.grant, complete()).await;
    harness.expire(retaken.grant.authority.job).await;
    // By the same process: only the epoch tells the two takeovers apart.
    let second = bench.recover(1).await.takeovers.remove(0);
    assert_eq!(second.grant.authority.job, retaken.grant.authority.job);
    harness.expire(lapsed.grant.authority.job).await;
    assert_eq!(identities(&repeat(&bench, &request).await), identities(std::slice::from_ref(live)));
    assert!(matches!(bench.renew(&second.grant.authority).await, Renewal::Held { .. }));
}

pub async fn a_repeat_of_what_never_arrived_takes_over(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    expired(&bench, 1).await;
    let request = bench.recovery(3);
    let taken = repeat(&bench, &request).await;
    assert_eq!(taken.len(), 1);
    expired(&bench, 1).await;
    assert_eq!(identities(&repeat(&bench, &request).await), identities(&taken));
    // The first try, late on the way, arrives after its own repeat.
    let late = bench.recover_with(request).await.takeovers;
    assert_eq!(identities(&late), identities(&taken));
}

/// An empty answer to a repeat is final too.
pub async fn an_empty_repeat_stays_empty(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let request = bench.recovery(3);
    assert!(repeat(&bench, &request).await.is_empty());
    expired(&bench, 1).await;
    assert!(repeat(&bench, &request).await.is_empty());
    assert!(bench.recover_with(request).await.takeovers.is_empty());
    assert_eq!(bench.recover(3).await.takeovers.len(), 1);
}

/// The same recovery sent many times at once is one recovery.
pub async fn concurrent_repeats_agree(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    expired(&bench, 6).await;
    let request = bench.recovery(2);
    let answers = join_all((0..6).map(|_| repeat(&bench, &request))).await;
    for takeovers in &answers {
        assert_eq!(takeovers.len(), 2);
        assert_eq!(identities(takeovers), identities(&answers[0]));
    }
    // A repeat that came too late may hold rows for a moment longer than it takes to say so.
    let mut others = 0;
    for _ in 0..1000 {
        others += bench.recover(10).await.takeovers.len();
        if others == 4 {
            return;
        }
    }
    panic!("{others} of the other four were taken over");
}

pub async fn another_request_under_the_id_is_a_conflict(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    expired(&bench, 2).await;
    bench.queued().await;
    let request = bench.recovery(1);
    let taken = bench.recover_with(request.clone()).await.takeovers;
    let stranger = claimant(&bench.namespace, "worker-c");
    for other in [
        RecoverRequest { limit: 2, ..request.clone() },
        RecoverRequest { lease: LEASE * 2, ..request.clone() },
        RecoverRequest { owner: stranger, ..request.clone() },
    ] {
        for repeat in [false, true] {
            let error = bench
                .store
                .recover(&RecoverRequest { repeat, ..other.clone() })
                .await
                .expect_err("another request");
            assert_eq!(
                (error.kind, error.applied),
                (StoreErrorKind::CommandConflict, Applied::No),
                "{error}"
            );
        }
    }
    // Neither is a claim a recovery, nor a recovery a claim.
    let claim = OpenClaim { command: request.command, ..bench.open(1) };
    let error = bench.store.claim(&claim).await.expect_err("a recovery's id");
    assert_eq!(error.kind, StoreErrorKind::CommandConflict, "{error}");
    let claim = OpenClaim { command: CommandId::generate(), ..claim };
    assert_eq!(bench.store.claim(&claim).await.expect("the store answers").grants.len(), 1);
    let recovery = RecoverRequest { command: claim.command, ..bench.recovery(1) };
    let error = bench.store.recover(&recovery).await.expect_err("a claim's id");
    assert_eq!(error.kind, StoreErrorKind::CommandConflict, "{error}");
    assert_eq!(identities(&repeat(&bench, &request).await), identities(&taken));
}
