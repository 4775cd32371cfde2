//! What else is asked of a recipe's lease and payload: refusals, the redemption of a token, a client's own changes.

use std::time::Duration;

use super::{
    bench::{Bench, complete, lost, reschedule},
    recording::success,
};
use crate::{
    domain::{
        CommandId, Epoch, Failure, FailureKind, JobId, JobState, LeaseToken, Namespace, ProcessId,
        RetryPolicy, WorkerId,
    },
    ports::{
        Authority, End, Ended, PayloadUpdate, Renewal,
        recipe::{LeaseRead, PayloadSet, Recorded, Redeemed, Refusal},
    },
    testing::harness::StoreHarness,
};

/// A recipe's own failure is final, whatever the job's policy allows.
pub async fn a_recipe_s_own_failure_is_final(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for kind in [FailureKind::User, FailureKind::System, FailureKind::Timeout] {
        let policy = RetryPolicy {
            max_user: Some(5),
            max_system: Some(5),
            max_timeout: Some(5),
            ..RetryPolicy::default()
        };
        let job = bench
            .submit(|job| {
                job.definition = Some(super::bench::recipe());
                job.retry = policy;
            })
            .await;
        let grant = bench.claim(job).await;
        let failure = Failure::new(kind, "boom", "it did not work").with_exit_code(3);
        let end = End::FailForGood { failure: failure.clone() };
        assert_eq!(bench.end(&grant, end).await, Ended::Terminal(JobState::Failed));
        let view = bench.view(job).await;
        assert_eq!((view.state, view.exit_code), (JobState::Failed, Some(3)));
        assert_eq!(view.failures.iter().sum::<i32>(), 1);
        assert_eq!(harness.history(job).await[0].failure, Some(failure));
    }
}

/// Refusals are counted once a lease, and in a row: what is recorded, or another payload, ends the row.
pub async fn refusals_are_counted_in_a_row(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let mut grant = bench.held_recipe().await;
    let job = grant.authority.job;
    for round in 1..=3 {
        for _ in 0..2 {
            assert_eq!(bench.refuse(&grant).await, Refusal::Recorded { in_a_row: round });
        }
        harness.expire(job).await;
        assert_eq!(bench.refuse(&grant).await, Refusal::NotLive);
        let taken = bench.recover(1).await.takeovers.remove(0).grant;
        bench.end(&taken, lost(1, 1)).await;
        bench.requeue(job).await;
        grant = bench.claim(job).await;
    }
    assert_eq!(bench.view(job).await.losses, 0, "a refusal is no crash");
    assert!(matches!(bench.record(&grant, "a", &success("op", "1")).await, Recorded::Recorded(_)));
    assert_eq!(bench.refuse(&grant).await, Refusal::Recorded { in_a_row: 1 });
    let update = PayloadUpdate { value: "{}".to_owned(), expected_revision: 1 };
    bench.recipes.set_payload(&bench.namespace, job, &update).await.expect("it answers");
    bench.end(&grant, reschedule()).await;
    bench.requeue(job).await;
    assert_eq!(bench.refuse(&bench.claim(job).await).await, Refusal::Recorded { in_a_row: 1 });
}

/// What a lease is worth is told to who can prove it, and what cannot be proven is told apart from what is not there.
pub async fn a_lease_is_read_by_its_owner_alone(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench
        .submit(|job| {
            job.definition = Some(super::bench::recipe());
            job.timeout_ms = Some(60_000);
        })
        .await;
    let grant = bench.claim(job).await;
    let read = async |authority: &Authority| bench.recipes.read_lease(authority).await.expect("it answers");
    let LeaseRead::Live(held) = read(&grant.authority).await else { panic!("it is live") };
    assert_eq!(held.grant.authority, grant.authority);
    assert_eq!(
        (&held.grant.route, held.grant.attempt, held.grant.lease, &held.grant.definition),
        (&grant.route, grant.attempt, grant.lease, &grant.definition)
    );
    assert!(held.remaining > Duration::ZERO && held.remaining <= grant.lease, "{:?}", held.remaining);
    assert!(held.timeout_left.is_some_and(|left| left <= Duration::from_secs(60)), "{:?}", held.timeout_left);
    let mut strangers = vec![grant.authority.clone(); 4];
    strangers[0].token = LeaseToken::generate();
    strangers[1].epoch = Epoch(grant.authority.epoch.0 + 1);
    strangers[2].owner.process = ProcessId::generate();
    strangers[3].owner.worker = WorkerId::new("somebody-else").expect("a plain name");
    for stranger in &strangers {
        assert!(matches!(read(stranger).await, LeaseRead::NotLive), "{stranger:?}");
    }
    let mut elsewhere = grant.authority.clone();
    elsewhere.owner.namespace = Namespace::new("elsewhere").expect("a valid name");
    assert!(matches!(read(&elsewhere).await, LeaseRead::JobNotFound));
    let nowhere = Authority { job: JobId(i64::MAX), ..grant.authority.clone() };
    assert!(matches!(read(&nowhere).await, LeaseRead::JobNotFound));
    harness.expire(job).await;
    assert!(matches!(read(&grant.authority).await, LeaseRead::NotLive));
}

/// A path has its own events and no others, and is looked up without a lease.
pub async fn a_path_is_looked_up(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    for path in ["a", "a/b", "ab"] {
        assert!(matches!(bench.record(&grant, path, &success("op", "1")).await, Recorded::Recorded(_)));
    }
    let at = async |namespace: &Namespace, path: &str| {
        let events = bench.recipes.events_at(namespace, grant.authority.job, path).await;
        events.expect("it answers").into_iter().map(|event| (event.ordinal, event.path)).collect::<Vec<_>>()
    };
    assert_eq!(at(&bench.namespace, "a/b").await, [(2, "a/b".to_owned())]);
    assert_eq!(at(&bench.namespace, "b").await, []);
    assert_eq!(at(&Namespace::new("elsewhere").expect("a valid name"), "a").await, []);
}

/// E10: a redemption is for one; from then on the old token proves nothing, for its exporter or a second importer.
pub async fn a_redeemed_lease_has_one_holder(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let (command, token) = (CommandId::generate(), LeaseToken::generate());
    let answer = bench.redeem(&grant, command, &token).await;
    assert!(matches!(answer, Redeemed::Redeemed { remaining } if remaining > Duration::ZERO), "{answer:?}");
    assert_eq!(bench.renew(&grant.authority).await, Renewal::NotLive);
    assert_eq!(bench.record(&grant, "a", &success("op", "1")).await, Recorded::NotLive);
    let second = bench.redeem(&grant, CommandId::generate(), &LeaseToken::generate()).await;
    assert_eq!(second, Redeemed::NotLive);
    // Its answer was lost.
    let again = bench.redeem(&grant, command, &token).await;
    assert!(matches!(again, Redeemed::Redeemed { .. }), "{again:?}");
    let mut imported = grant.clone();
    imported.authority.token = token;
    assert!(matches!(bench.renew(&imported.authority).await, Renewal::Held { .. }));
    assert!(matches!(bench.record(&imported, "a", &success("op", "1")).await, Recorded::Recorded(_)));
    assert_eq!(bench.view(grant.authority.job).await.epoch, grant.authority.epoch.0);
    assert_eq!(bench.end(&imported, complete()).await, Ended::Terminal(JobState::Completed));
    assert_eq!(bench.redeem(&grant, command, &token).await, Redeemed::NotLive);
}

/// E10: of importers at once one gets the lease; an expired lease is not revived.
pub async fn concurrent_redemptions_agree(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let tokens: Vec<LeaseToken> = (0..5).map(|_| LeaseToken::generate()).collect();
    let calls = tokens.iter().map(|token| bench.redeem(&grant, CommandId::generate(), token));
    let answers = futures_util::future::join_all(calls).await;
    let won = answers.iter().filter(|answer| matches!(answer, Redeemed::Redeemed { .. })).count();
    assert_eq!(won, 1, "{answers:?}");
    let grant = bench.held_recipe().await;
    harness.expire(grant.authority.job).await;
    let late = bench.redeem(&grant, CommandId::generate(), &LeaseToken::generate()).await;
    assert_eq!(late, Redeemed::NotLive);
}

/// E5: a client's change is made against a revision, and only while the job has not ended.
pub async fn a_payload_is_changed_against_its_revision(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let job = grant.authority.job;
    let set = async |value: &str, expected_revision| {
        let update = PayloadUpdate { value: value.to_owned(), expected_revision };
        bench.recipes.set_payload(&bench.namespace, job, &update).await
    };
    let text = r#"{"b": 1.50,  "a": []}"#;
    assert_eq!(set(text, 1).await.expect("it answers"), PayloadSet::Set { revision: 2 });
    let conflict = PayloadSet::Conflict { current_revision: 2 };
    assert_eq!(set("{}", 1).await.expect("it answers"), conflict);
    for bad in ["[]", "7", "{", r#"{"a":1,"a":2}"#] {
        assert!(set(bad, 2).await.is_err(), "{bad}");
    }
    let recipe = bench.recipe(&grant).await;
    assert_eq!((&*recipe.payload, recipe.payload_revision), (text, 2));
    assert_eq!(recipe.state, JobState::Running);
    bench.end(&grant, complete()).await;
    let ended = PayloadSet::JobEnded { state: JobState::Completed };
    assert_eq!(set("{}", 2).await.expect("it answers"), ended);
    let update = PayloadUpdate { value: "{}".to_owned(), expected_revision: 1 };
    let elsewhere = crate::domain::Namespace::new("elsewhere").expect("a valid name");
    let answer = bench.recipes.set_payload(&elsewhere, job, &update).await.expect("it answers");
    assert_eq!(answer, PayloadSet::NotFound);
    assert_eq!(bench.recipes.recipe_job(&elsewhere, job).await.expect("it answers"), None);
    let handler = bench.queued().await;
    assert_eq!(bench.recipes.recipe_job(&bench.namespace, handler).await.expect("it answers"), None);
}
