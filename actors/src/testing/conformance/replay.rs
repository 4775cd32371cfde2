//! Replay: a repeat under the same command id *is* the claim, and never anything new.

use futures_util::future::join_all;

use super::bench::{Bench, claimant, complete, release};
use crate::{
    domain::{CommandId, JobId, JobState, LeaseToken},
    error::{Applied, StoreErrorKind},
    ports::{Grant, ListedAnswer, ListedClaim, OpenClaim},
    testing::harness::StoreHarness,
};

fn identities(grants: &[Grant]) -> Vec<(JobId, LeaseToken, i64, i32)> {
    grants.iter().map(|g| (g.authority.job, g.authority.token, g.authority.epoch.0, g.attempt)).collect()
}

async fn repeat(bench: &Bench<'_>, request: &OpenClaim) -> Vec<Grant> {
    let request = OpenClaim { repeat: true, ..request.clone() };
    bench.store.claim(&request).await.expect("the store answers").grants
}

/// L10: the answer was lost; asking again brings the same grants and raises no counter.
pub async fn a_repeat_brings_the_recorded_grants(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for _ in 0..5 {
        bench.queued().await;
    }
    let request = bench.open(3);
    let first = bench.store.claim(&request).await.expect("the store answers").grants;
    assert_eq!(first.len(), 3);
    for _ in 0..2 {
        let mut again = repeat(&bench, &request).await;
        again.sort_by_key(|grant| grant.authority.job);
        assert_eq!(identities(&again), identities(&first));
    }
    for grant in &first {
        let view = bench.view(grant.authority.job).await;
        assert_eq!((view.attempt, view.epoch), (1, grant.authority.epoch.0));
    }
}

/// A replayed grant is as good as the first answer: the worker can renew with it.
pub async fn a_replayed_grant_is_complete(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    bench.node("n1", 2).await;
    bench.queued_container().await;
    let request = bench.open(1);
    let first = bench.store.claim(&request).await.expect("the store answers").grants;
    let again = repeat(&bench, &request).await;
    assert_eq!(format!("{:?}", again[0]), format!("{:?}", first[0]));
    assert!(matches!(bench.renew(&again[0].authority).await, crate::ports::Renewal::Held { .. }));
}

/// Only what is still live under the recorded token is told again.
pub async fn a_repeat_leaves_out_what_is_over(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for _ in 0..5 {
        bench.queued().await;
    }
    let request = bench.open(5);
    let grants = bench.store.claim(&request).await.expect("the store answers").grants;
    let [ended, expired, released, reclaimed, live] = &grants[..] else { panic!("five grants") };
    bench.end(ended, complete()).await;
    harness.expire(expired.authority.job).await;
    bench.end(released, release()).await;
    bench.end(reclaimed, release()).await;
    bench.requeue(reclaimed.authority.job).await;
    let second = bench.claim(reclaimed.authority.job).await;
    assert_eq!(identities(&repeat(&bench, &request).await), identities(std::slice::from_ref(live)));
    let view = bench.view(second.authority.job).await;
    assert_eq!((view.state, view.epoch), (JobState::Running, second.authority.epoch.0));
}

/// The request itself was lost: its repeat is the first to arrive, and grants.
pub async fn a_repeat_of_what_never_arrived_grants(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    bench.queued().await;
    let request = bench.open(3);
    let granted = repeat(&bench, &request).await;
    assert_eq!(granted.len(), 1);
    bench.queued().await;
    let again = repeat(&bench, &request).await;
    assert_eq!(identities(&again), identities(&granted), "nothing new under a recorded command");
    // The first try, late on the way, arrives after its own repeat.
    let late = bench.store.claim(&request).await.expect("the store answers").grants;
    assert_eq!(identities(&late), identities(&granted));
}

/// An empty answer to a repeat is final too.
pub async fn an_empty_repeat_stays_empty(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let request = bench.open(3);
    assert!(repeat(&bench, &request).await.is_empty());
    let job = bench.queued().await;
    assert!(repeat(&bench, &request).await.is_empty());
    let late = bench.store.claim(&request).await.expect("the store answers").grants;
    assert!(late.is_empty());
    assert_eq!(bench.state(job).await, JobState::Queued);
}

/// The same claim sent many times at once is one claim.
pub async fn concurrent_repeats_agree(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for _ in 0..6 {
        bench.queued().await;
    }
    let request = bench.open(2);
    let answers = join_all((0..6).map(|_| repeat(&bench, &request))).await;
    for mut grants in answers {
        grants.sort_by_key(|grant| grant.authority.job);
        assert_eq!(grants.len(), 2);
        for grant in grants {
            let view = bench.view(grant.authority.job).await;
            assert_eq!((view.attempt, view.epoch), (1, grant.authority.epoch.0));
        }
    }
    // A repeat that came too late may hold rows for a moment longer than it takes to say so.
    let mut others = 0;
    for _ in 0..1000 {
        others += bench.claim_open(10).await.len();
        if others >= 4 {
            break;
        }
    }
    assert_eq!(others, 4, "the other four were not touched");
}

/// Another request under a used id is refused, and changes nothing.
pub async fn another_request_under_the_id_is_a_conflict(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for _ in 0..4 {
        bench.queued().await;
    }
    let request = bench.open(1);
    let granted = bench.store.claim(&request).await.expect("the store answers").grants;
    let other = OpenClaim { limit: 2, ..request.clone() };
    for repeat in [false, true] {
        let other = OpenClaim { repeat, ..other.clone() };
        let error = bench.store.claim(&other).await.expect_err("another request under the same id");
        assert_eq!((error.kind, error.applied), (StoreErrorKind::CommandConflict, Applied::No), "{error}");
    }
    let listed = ListedClaim { command: request.command, ..bench.listed(Vec::new()) };
    let listed = ListedClaim { jobs: vec![bench.message(granted[0].authority.job).await], ..listed };
    let error = bench.store.claim_listed(&listed).await.expect_err("another request under the same id");
    assert_eq!(error.kind, StoreErrorKind::CommandConflict, "{error}");
    assert_eq!(bench.claim_open(10).await.len(), 3);
}

/// A command id is no secret: another process gets nothing by it.
pub async fn another_process_cannot_replay_a_claim(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    bench.queued().await;
    let request = bench.open(1);
    bench.store.claim(&request).await.expect("the store answers");
    let thief =
        OpenClaim { owner: claimant(&bench.namespace, bench.owner.worker.as_str()), repeat: true, ..request };
    match bench.store.claim(&thief).await {
        Ok(answer) => assert!(answer.grants.is_empty(), "{answer:?}"),
        Err(error) => assert_eq!(error.kind, StoreErrorKind::CommandConflict, "{error}"),
    }
}

/// The listed form replays the same way: grants as recorded, and nothing new.
pub async fn a_listed_claim_replays(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (kept, ended) = (bench.queued().await, bench.queued().await);
    let missing = crate::ports::DispatchedJob { job: JobId(987_654_321), generation: 1, dispatch_attempt: 1 };
    let request = bench.listed(vec![bench.message(kept).await, missing, bench.message(ended).await]);
    let first = bench.store.claim_listed(&request).await.expect("the store answers");
    let granted = |answers: &[ListedAnswer]| -> Vec<(JobId, LeaseToken)> {
        answers
            .iter()
            .filter_map(|answer| match answer {
                ListedAnswer::Granted(grant) => Some((grant.authority.job, grant.authority.token)),
                ListedAnswer::Rejected(..) => None,
            })
            .collect()
    };
    assert_eq!(granted(&first).len(), 2);
    let repeated = ListedClaim { repeat: true, ..request };
    let again = bench.store.claim_listed(&repeated).await.expect("the store answers");
    assert_eq!(again.len(), 3, "one answer for each listed job");
    assert_eq!(granted(&again), granted(&first));
    let ListedAnswer::Granted(grant) = &first[2] else { panic!("the third was granted") };
    bench.end(grant, complete()).await;
    let later = bench.store.claim_listed(&repeated).await.expect("the store answers");
    assert_eq!(granted(&later), granted(&first)[..1]);
    assert_eq!(bench.view(kept).await.attempt, 1);
}

/// A repeat of a listed claim that granted nothing then grants nothing now.
pub async fn a_listed_repeat_grants_nothing_new(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued_container().await;
    let request = bench.listed(vec![bench.message(job).await]);
    let first = bench.store.claim_listed(&request).await.expect("the store answers");
    assert!(matches!(first[..], [ListedAnswer::Rejected(..)]), "there is no node yet");
    bench.node("n1", 1).await;
    let repeated = ListedClaim { repeat: true, ..request };
    let again = bench.store.claim_listed(&repeated).await.expect("the store answers");
    assert!(matches!(again[..], [ListedAnswer::Rejected(..)]), "{again:?}");
    assert_eq!(bench.state(job).await, JobState::Queued);
    let fresh = ListedClaim { command: CommandId::generate(), repeat: false, ..repeated };
    let now = bench.store.claim_listed(&fresh).await.expect("the store answers");
    assert!(matches!(now[..], [ListedAnswer::Granted(_)]), "{now:?}");
}
