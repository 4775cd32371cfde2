//! Published needs: who is offered a recipe, and how often it may be handed off.

use std::time::Duration;

use super::{
    bench::{Bench, LEASE, release, reschedule},
    recording::success,
};
use crate::{
    domain::{CommandId, JobState, Route},
    ports::{
        End, Ended, Grant, OpenClaim, PayloadUpdate,
        recipe::{Facts, Hint, Publication},
    },
    testing::harness::StoreHarness,
};

fn big() -> Hint {
    Hint { memory_bytes: Some(16 << 30), ..Hint::default() }
}

fn handoff(hint: Hint) -> End {
    publish(Publication { hint, handoff: true, declined_by: Some(r#"{"memory":"2Gi"}"#.into()) })
}

fn publish(publication: Publication) -> End {
    End::Reschedule {
        route: Some(Route::recipe("recipe", "resize")),
        delay: Duration::ZERO,
        payload: None,
        wake: Vec::new(),
        publish: Some(publication),
    }
}

impl Bench<'_> {
    /// What a worker with these facts is offered.
    async fn offered(&self, facts: Option<Facts>) -> Vec<Grant> {
        let request = OpenClaim {
            owner: self.owner.clone(),
            command: CommandId::generate(),
            repeat: false,
            routes: vec![Route::recipe("recipe", ""), Route::recipe("recipe", "resize")].into(),
            limit: 10,
            lease: LEASE,
            facts: facts.map(Into::into),
        };
        self.store.claim(&request).await.expect("the store answers").grants
    }

    /// A recipe that was handed off with these needs, QUEUED again.
    async fn handed_off(&self, hint: Hint) -> Grant {
        let grant = self.held_recipe().await;
        assert_eq!(self.end(&grant, handoff(hint)).await, Ended::Rescheduled);
        assert_eq!(self.dispatch().await, 1);
        grant
    }
}

fn memory(bytes: i64) -> Option<Facts> {
    Some(Facts { memory_bytes: Some(bytes), ..Facts::default() })
}

/// E9, in part: an exact hint keeps the job for those that satisfy it, and for nobody else.
pub async fn an_exact_hint_keeps_a_job_for_those_that_fit(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.handed_off(big()).await.authority.job;
    harness.age_queued(job, Duration::from_secs(60)).await;
    assert!(bench.offered(None).await.is_empty());
    assert!(bench.offered(memory(2 << 30)).await.is_empty());
    let granted = bench.offered(memory(32 << 30)).await;
    assert_eq!(granted.len(), 1);
    let grant = &granted[0];
    assert_eq!((grant.authority.job, grant.attempt), (job, 1), "a handoff is no attempt");
    assert_eq!(grant.route, Route::recipe("recipe", "resize"));
    let recipe = bench.recipe(grant).await;
    assert_eq!((recipe.published, recipe.handoffs), (Some(big()), 1));
}

/// Each need is compared with its own fact, and an unknown fact satisfies none.
pub async fn every_need_is_compared_with_its_fact(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let platform =
        |variant: Option<&str>| Some(("linux".to_owned(), "arm64".to_owned(), variant.map(str::to_owned)));
    let text = |text: &str| Some(text.to_owned());
    let hints: [(Hint, Facts, Facts); 7] = [
        (
            Hint { cpu_millis: Some(500), ..Hint::default() },
            Facts { cpu_millis: Some(500), ..Facts::default() },
            Facts { cpu_millis: Some(499), ..Facts::default() },
        ),
        (
            Hint { ephemeral_storage_bytes: Some(10), ..Hint::default() },
            Facts { ephemeral_storage_bytes: Some(11), ..Facts::default() },
            Facts { memory_bytes: Some(11), ..Facts::default() },
        ),
        (
            Hint { platform: platform(None), ..Hint::default() },
            Facts { platform: platform(Some("v9")), ..Facts::default() },
            Facts { platform: Some(("linux".to_owned(), "amd64".to_owned(), None)), ..Facts::default() },
        ),
        (
            Hint { platform: platform(Some("v8")), ..Hint::default() },
            Facts { platform: platform(Some("v8")), ..Facts::default() },
            Facts { platform: platform(None), ..Facts::default() },
        ),
        (
            Hint { image_reference: text("docker.io/library/a:1"), ..Hint::default() },
            Facts { image_reference: text("docker.io/library/a:1"), ..Facts::default() },
            Facts { image_reference: text("docker.io/library/a:2"), ..Facts::default() },
        ),
        (
            Hint { image_digest: text("sha256:1"), ..Hint::default() },
            Facts { image_digest: text("sha256:1"), ..Facts::default() },
            Facts { image_reference: text("sha256:1"), ..Facts::default() },
        ),
        (
            Hint { cpu_millis: Some(1), memory_bytes: Some(1), ..Hint::default() },
            Facts { cpu_millis: Some(1), memory_bytes: Some(1), ..Facts::default() },
            Facts { cpu_millis: Some(1), ..Facts::default() },
        ),
    ];
    for (hint, enough, wanting) in hints {
        let job = bench.handed_off(hint.clone()).await.authority.job;
        assert!(bench.offered(Some(wanting.clone())).await.is_empty(), "{hint:?} {wanting:?}");
        assert!(bench.offered(None).await.is_empty(), "{hint:?}");
        let granted = bench.offered(Some(enough.clone())).await;
        assert_eq!(granted.len(), 1, "{hint:?} {enough:?}");
        assert_eq!(granted[0].authority.job, job);
    }
}

/// E9: once anything else happened to the job its hint is stale, and keeps it from nobody for longer than 5 s.
pub async fn a_stale_hint_keeps_nobody_off_for_long(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for how in ["release", "recovery", "reschedule", "published by the way"] {
        let job = bench.handed_off(big()).await.authority.job;
        let grant = bench.offered(memory(32 << 30)).await.remove(0);
        match how {
            "release" => {
                bench.end(&grant, release()).await;
            }
            "reschedule" => {
                bench.end(&grant, reschedule()).await;
            }
            "recovery" => {
                harness.expire(job).await;
                let taken = bench.recover(1).await.takeovers.remove(0).grant;
                bench.end(&taken, reschedule()).await;
            }
            _ => {
                let publication = Publication { hint: big(), handoff: false, declined_by: None };
                bench.end(&grant, publish(publication)).await;
            }
        }
        bench.requeue(job).await;
        assert!(bench.offered(None).await.is_empty(), "{how}: at first it is left to those that fit");
        harness.age_queued(job, Duration::from_secs(6)).await;
        assert_eq!(bench.offered(None).await.len(), 1, "{how}");
    }
}

/// A job that needs nothing, or has published nothing, is anybody's; a listed claim names its job itself.
pub async fn without_needs_a_recipe_is_anybody_s(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    bench.queued_recipe().await;
    assert_eq!(bench.offered(None).await.len(), 1);
    bench.handed_off(Hint::default()).await;
    assert_eq!(bench.offered(None).await.len(), 1);
    let job = bench.handed_off(big()).await.authority.job;
    assert!(bench.try_claim(job).await.is_ok());
}

/// A payload whose `execution` has a version of somebody newer is left to them.
pub async fn an_unknown_version_is_not_claimed(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued_recipe().await;
    let set = |value: &str, expected_revision| PayloadUpdate { value: value.to_owned(), expected_revision };
    let newer = ["2", "0", "-1", "4294967297", "123456789012345678901234567890"];
    for (version, revision) in newer.into_iter().zip(1..) {
        let newer = set(&format!(r#"{{"execution": {{"version": {version}}}}}"#), revision);
        bench.recipes.set_payload(&bench.namespace, job, &newer).await.expect("it answers");
        assert!(bench.offered(None).await.is_empty(), "{version}");
    }
    let known = set(r#"{"execution": {"version": 1}}"#, 6);
    bench.recipes.set_payload(&bench.namespace, job, &known).await.expect("it answers");
    assert_eq!(bench.offered(None).await.len(), 1);
}

/// The tenth handoff in a row with nothing recorded between fails the job, with what declined it.
pub async fn the_tenth_handoff_in_a_row_fails(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued_recipe().await;
    for round in 0..3 {
        let grant = bench.claim(job).await;
        assert_eq!(bench.end(&grant, handoff(big())).await, Ended::Rescheduled, "{round}");
        bench.requeue(job).await;
    }
    let grant = bench.claim(job).await;
    bench.record(&grant, "a", &success("op", "1")).await;
    assert_eq!(bench.recipe(&grant).await.handoffs, 0, "progress was made");
    for round in 1..10 {
        let grant = if round == 1 { grant.clone() } else { bench.claim(job).await };
        assert_eq!(bench.end(&grant, handoff(big())).await, Ended::Rescheduled, "{round}");
        assert_eq!(bench.recipe(&grant).await.handoffs, round);
        bench.requeue(job).await;
    }
    let grant = bench.claim(job).await;
    let command = CommandId::generate();
    let failed = Ended::Terminal(JobState::Failed);
    assert_eq!(bench.end_as(&grant.authority, command, &handoff(big())).await, failed);
    assert_eq!(bench.end_as(&grant.authority, command, &handoff(big())).await, failed, "a repeat");
    let view = bench.view(job).await;
    assert_eq!((view.failure_code.as_deref(), view.failures), (Some("handoff_loop"), [0, 1, 0]));
    let history = harness.history(job).await;
    let failure = history.last().and_then(|lease| lease.failure.clone()).expect("it failed");
    assert!(failure.message.ends_with(r#"declined by {"memory":"2Gi"}"#), "{failure:?}");
}

/// A publication whose payload meets another revision changes nothing.
pub async fn a_conflict_publishes_nothing(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let End::Reschedule { route, delay, wake, publish, .. } = handoff(big()) else { unreachable!() };
    let payload = Some(PayloadUpdate { value: "{}".to_owned(), expected_revision: 9 });
    let end = End::Reschedule { route, delay, payload, wake, publish };
    assert_eq!(bench.end(&grant, end).await, Ended::PayloadConflict { current_revision: 1 });
    let recipe = bench.recipe(&grant).await;
    assert_eq!((recipe.published, recipe.handoffs), (None, 0));
}
