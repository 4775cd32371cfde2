//! Placement: a CONTAINER job goes to a fresh READY node with a free slot, in the claim's own statement.

use super::bench::{Bench, complete, every_end};
use crate::{
    domain::JobState,
    ports::ClaimRejection,
    testing::harness::{StoreHarness, TestNode},
};

/// Without a node a container waits, and takes nobody's place.
pub async fn without_a_node_a_container_stays_queued(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let container = bench.submit(|job| {
        job.definition = Some(super::bench::container());
        job.priority = 50;
    });
    let container = container.await;
    let handler = bench.queued().await;
    assert_eq!(bench.try_claim(container).await.err(), Some(ClaimRejection::NoRuntimeNode));
    let grants = bench.claim_open(1).await;
    assert_eq!(grants.len(), 1, "the container is left out and takes nobody's place");
    assert_eq!(grants[0].authority.job, handler);
    assert_eq!(grants[0].placement, None);
    assert_eq!(bench.state(container).await, JobState::Queued);
}

/// The grant names the node as it was registered, and its slot is taken.
pub async fn a_container_is_placed_with_all_that_names_its_engine(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 3).await;
    let grant = bench.claim(bench.queued_container().await).await;
    let placement = grant.placement.expect("a container has a node");
    assert_eq!(placement.node, node.node);
    assert_eq!((placement.endpoint, placement.engine_id), (node.endpoint, node.engine_id));
    let slots = harness.node_slots(&bench.namespace, &node.node).await;
    assert_eq!(slots.len(), 1);
    assert!((1..=3).contains(&slots[0].0), "slots are counted from one: {slots:?}");
    assert_eq!(slots[0].1, grant.authority.job);
    assert_eq!(bench.view(grant.authority.job).await.node, Some(placement.node));
}

/// Least loaded first, job after job.
pub async fn containers_spread_over_the_nodes(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let nodes = [bench.node("n1", 10).await, bench.node("n2", 10).await];
    for _ in 0..6 {
        bench.claim(bench.queued_container().await).await;
    }
    for node in &nodes {
        assert_eq!(harness.node_slots(&bench.namespace, &node.node).await.len(), 3);
    }
}

/// L9: a node never holds more than its slots, whatever is claimed at once.
pub async fn a_full_node_takes_no_more(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 2).await;
    for _ in 0..5 {
        bench.queued_container().await;
    }
    let grants = bench.claim_open(10).await;
    assert_eq!(grants.len(), 2);
    assert!(bench.claim_open(10).await.is_empty());
    let waiting = bench.queued_container().await;
    assert_eq!(bench.try_claim(waiting).await.err(), Some(ClaimRejection::NoRuntimeNode));
    assert_eq!(harness.node_slots(&bench.namespace, &node.node).await.len(), 2);
    bench.end(&grants[0], complete()).await;
    bench.claim(waiting).await;
    assert_eq!(harness.node_slots(&bench.namespace, &node.node).await.len(), 2);
}

/// L9: concurrent claims of different jobs cannot overfill a node.
pub async fn concurrent_claims_do_not_overfill_a_node(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 3).await;
    let mut messages = Vec::new();
    for _ in 0..12 {
        let job = bench.queued_container().await;
        messages.push(bench.message(job).await);
    }
    let claims = messages.into_iter().map(|message| bench.claim_message(message));
    let answers = futures_util::future::join_all(claims).await;
    for rejection in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert!(
            matches!(rejection, ClaimRejection::NoRuntimeNode | ClaimRejection::Contended),
            "{rejection}"
        );
    }
    // Claims that raced for one slot may both have gone away empty; another round fills the node.
    while !bench.claim_open(10).await.is_empty() {}
    assert_eq!(harness.node_slots(&bench.namespace, &node.node).await.len(), 3);
}

/// L9: a node that comes back with fewer slots takes no more than those, whatever numbers its jobs hold.
pub async fn a_smaller_node_takes_no_more_than_it_has(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let mut node = bench.node("n1", 3).await;
    for _ in 0..3 {
        bench.queued_container().await;
    }
    let grants = bench.claim_open(3).await;
    let slots = harness.node_slots(&bench.namespace, &node.node).await;
    // The highest slot stays taken.
    for (_, job) in &slots[..2] {
        let grant = grants.iter().find(|grant| grant.authority.job == *job).expect("it was granted");
        bench.end(grant, complete()).await;
    }
    node.max_concurrency = 2;
    harness.register_node(&node).await;
    for _ in 0..3 {
        bench.queued_container().await;
    }
    assert_eq!(bench.claim_open(10).await.len(), 1);
    assert_eq!(harness.node_slots(&bench.namespace, &node.node).await.len(), 2);
}

pub async fn a_draining_node_gets_no_new_work(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 2).await;
    let held = bench.claim(bench.queued_container().await).await;
    harness.drain_node(&bench.namespace, &node.node).await;
    let job = bench.queued_container().await;
    assert_eq!(bench.try_claim(job).await.err(), Some(ClaimRejection::NoRuntimeNode));
    assert!(bench.claim_open(10).await.is_empty());
    assert_eq!(bench.state(held.authority.job).await, JobState::Running, "what runs there goes on");
}

pub async fn a_silent_node_gets_no_new_work(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 2).await;
    harness.silence_node(&bench.namespace, &node.node).await;
    let job = bench.queued_container().await;
    assert_eq!(bench.try_claim(job).await.err(), Some(ClaimRejection::NoRuntimeNode));
    assert!(bench.claim_open(10).await.is_empty());
    harness.register_node(&node).await;
    bench.claim(job).await;
}

/// A node of one tenant is no node of another.
pub async fn a_node_of_another_namespace_is_no_node(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let elsewhere = crate::domain::Namespace::new("elsewhere").expect("a valid name");
    harness.register_node(&TestNode::new(&elsewhere, "n1", 5)).await;
    let job = bench.queued_container().await;
    assert_eq!(bench.try_claim(job).await.err(), Some(ClaimRejection::NoRuntimeNode));
}

/// L9: an expired lease still occupies its slot, until somebody has cleaned up.
pub async fn an_expired_lease_keeps_its_slot(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    bench.node("n1", 1).await;
    let grant = bench.claim(bench.queued_container().await).await;
    harness.expire(grant.authority.job).await;
    let job = bench.queued_container().await;
    assert_eq!(bench.try_claim(job).await.err(), Some(ClaimRejection::NoRuntimeNode));
}

/// L9: whichever way a lease ends, its slot is free.
pub async fn every_end_frees_the_slot(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 1).await;
    for (name, end) in every_end() {
        let grant = bench.claim(bench.queued_container().await).await;
        bench.end(&grant, end).await;
        assert!(harness.node_slots(&bench.namespace, &node.node).await.is_empty(), "{name}");
    }
}

/// A node that comes back with another engine is another incarnation, and a grant says which.
pub async fn a_changed_endpoint_is_a_new_incarnation(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let mut node = bench.node("n1", 2).await;
    let first = bench.claim(bench.queued_container().await).await.placement.expect("placed");
    node.endpoint = "tcp://10.0.0.9:2376".to_owned();
    harness.register_node(&node).await;
    let second = bench.claim(bench.queued_container().await).await.placement.expect("placed");
    assert!(second.incarnation > first.incarnation);
    assert_eq!(second.endpoint, "tcp://10.0.0.9:2376");
}
