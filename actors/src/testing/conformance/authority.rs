//! Authority: the one predicate, one dimension at a time, for every protected call.

use std::time::Duration;

use bytes::Bytes;

use super::bench::{Bench, claimant, every_end, id, release};
use crate::{
    domain::{CommandId, JobId, LeaseToken, Namespace, NodeId, WorkerId},
    ports::{
        Attach, Authority, End, Ended, LogAppend, LogBatch, LogStream, PayloadUpdate, Reconciliation, Renewal,
    },
    testing::harness::StoreHarness,
};

/// The present authority with one thing wrong, each with a name for messages.
async fn strangers(bench: &Bench<'_>, real: &Authority) -> Vec<(&'static str, Authority)> {
    let other = bench.held().await.authority;
    let with = |change: &dyn Fn(&mut Authority)| {
        let mut stranger = real.clone();
        change(&mut stranger);
        stranger
    };
    vec![
        ("another token", with(&|a| a.token = LeaseToken::generate())),
        ("the token of another job", with(&|a| a.token = other.token)),
        ("another job", with(&|a| a.job = other.job)),
        ("a job that does not exist", with(&|a| a.job = JobId(987_654_321))),
        ("another worker", with(&|a| a.owner.worker = WorkerId::new("worker-b").expect("valid"))),
        ("another process", with(&|a| a.owner = claimant(&bench.namespace, "worker-a"))),
        ("another namespace", with(&|a| a.owner.namespace = Namespace::new("elsewhere").expect("valid"))),
    ]
}

/// Every protected call, under one authority; all must be refused.
async fn assert_powerless(bench: &Bench<'_>, who: &str, authority: &Authority, node: &NodeId) {
    let store = &bench.store;
    assert_eq!(bench.renew(authority).await, Renewal::NotLive, "renew by {who}");
    let attach = store.attach(authority, node, &id("stolen")).await.expect("the store answers");
    assert_eq!(attach, Attach::NotLive, "attach by {who}");
    let batch =
        LogBatch { task: None, stream: LogStream::Stdout, first_byte: 90, data: Bytes::from_static(b"late") };
    let append = store.append_logs(authority, &[batch]).await.expect("the store answers");
    assert_eq!(append, LogAppend::NotLive, "logs by {who}");
    let progress = store.report_progress(authority, "66").await.expect("the store answers");
    assert_eq!(progress, Renewal::NotLive, "progress by {who}");
    let with_payload = End::Reschedule {
        route: None,
        delay: Duration::ZERO,
        payload: Some(PayloadUpdate { value: "66".to_owned(), expected_revision: 1 }),
        wake: Vec::new(),
        publish: None,
    };
    for (name, end) in every_end().into_iter().chain([("reschedule with a payload", with_payload)]) {
        let answer = bench.end_as(authority, CommandId::generate(), &end).await;
        assert_eq!(answer, Ended::NotLive, "{name} by {who}");
    }
}

/// L2: whoever differs in one thing changes nothing at all, with any call.
pub async fn a_stranger_changes_nothing(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    bench.attach(&grant, "c1").await;
    bench.renew(&grant.authority).await;
    let node = grant.placement.clone().expect("placed").node;
    let strangers = strangers(&bench, &grant.authority).await;
    for (who, stranger) in &strangers {
        let other = strangers.iter().find(|(name, _)| *name == "another job").expect("listed").1.job;
        let before = (bench.picture(grant.authority.job).await, bench.picture(other).await);
        assert_powerless(&bench, who, stranger, &node).await;
        assert_eq!(bench.reconcile(stranger).await, Reconciliation::Changed, "{who}");
        let after = (bench.picture(grant.authority.job).await, bench.picture(other).await);
        assert_eq!(after, before, "{who}");
    }
    assert!(matches!(bench.renew(&grant.authority).await, Renewal::Held { .. }));
}

/// L2: time alone takes the authority away.
pub async fn an_expired_holder_changes_nothing(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    bench.attach(&grant, "c1").await;
    let node = grant.placement.clone().expect("placed").node;
    harness.expire(grant.authority.job).await;
    let before = bench.picture(grant.authority.job).await;
    assert_powerless(&bench, "an expired holder", &grant.authority, &node).await;
    assert_eq!(bench.reconcile(&grant.authority).await, Reconciliation::Expired);
    assert_eq!(bench.picture(grant.authority.job).await, before);
}

/// L1, L2: once the job is granted anew, the earlier token is worth nothing.
pub async fn a_replaced_token_changes_nothing(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let first = bench.held_container("n1").await;
    let job = first.authority.job;
    bench.end(&first, release()).await;
    bench.requeue(job).await;
    let second = bench.claim(job).await;
    bench.attach(&second, "c2").await;
    let node = second.placement.clone().expect("placed").node;
    let before = bench.picture(job).await;
    assert_powerless(&bench, "the earlier holder", &first.authority, &node).await;
    assert_eq!(bench.reconcile(&first.authority).await, Reconciliation::Changed);
    assert_eq!(bench.picture(job).await, before);
    assert!(matches!(bench.renew(&second.authority).await, Renewal::Held { .. }));
}

/// Reconciliation tells live, expired and changed apart, and extends nothing.
pub async fn reconciliation_only_looks(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (name, end) in every_end() {
        let grant = bench.held().await;
        let before = bench.picture(grant.authority.job).await;
        let Reconciliation::Live { remaining } = bench.reconcile(&grant.authority).await else {
            panic!("the lease is live")
        };
        assert!(remaining <= super::bench::LEASE);
        assert_eq!(bench.picture(grant.authority.job).await, before);
        bench.end(&grant, end).await;
        assert_eq!(bench.reconcile(&grant.authority).await, Reconciliation::Changed, "{name}");
    }
    let grant = bench.held().await;
    harness.expire(grant.authority.job).await;
    assert_eq!(bench.reconcile(&grant.authority).await, Reconciliation::Expired);
}

/// S7: no answer, however it is printed, shows the secret.
pub async fn no_answer_shows_the_token(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let secret = grant.authority.token.expose_to_store().to_string();
    let plain = secret.replace('-', "");
    let shown = format!("{grant:?} {}", bench.picture(grant.authority.job).await);
    assert!(!shown.contains(&secret) && !shown.contains(&plain), "a token is shown");
}
