//! Containers and output: recorded once, under a live lease, at the node that the job was placed on.

use std::sync::Arc;

use bytes::Bytes;

use super::bench::{Bench, fail, id, release};
use crate::{
    domain::{CommandId, FailureKind, NodeId, ProcessId},
    ports::{Attach, Grant, LogAppend, LogBatch, LogOffsets, LogStream, RecoverRequest, StoredLogs},
    testing::harness::StoreHarness,
};

pub async fn attaching_is_idempotent(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    assert_eq!(bench.attach(&grant, "c1").await, Attach::Attached);
    assert_eq!(bench.attach(&grant, "c1").await, Attach::Attached);
    assert_eq!(bench.view(grant.authority.job).await.container, Some(id("c1")));
}

pub async fn another_container_is_a_conflict(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    bench.attach(&grant, "c1").await;
    assert_eq!(bench.attach(&grant, "c2").await, Attach::ContainerConflict { attached: id("c1") });
    assert_eq!(bench.view(grant.authority.job).await.container, Some(id("c1")));
}

/// L7: a container is only ever recorded at the node that the claim chose.
pub async fn another_node_is_refused(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    bench.node("n2", 2).await;
    let other = NodeId::new("n2").expect("a valid name");
    let answer = bench.store.attach(&grant.authority, &other, &id("c1")).await.expect("the store answers");
    assert_eq!(answer, Attach::WrongRuntimeNode);
    assert_eq!(bench.view(grant.authority.job).await.container, None);
    let handler = bench.held().await;
    let answer = bench.store.attach(&handler.authority, &other, &id("c1")).await.expect("the store answers");
    assert_eq!(answer, Attach::WrongRuntimeNode, "a job without a node has no container");
}

/// RC-13: a late attach is refused, so that the late worker removes its own container.
pub async fn a_late_attach_is_refused(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    harness.expire(grant.authority.job).await;
    assert_eq!(bench.attach(&grant, "c1").await, Attach::NotLive);
    assert_eq!(bench.view(grant.authority.job).await.container, None);
}

/// The next grant begins without a container, on whatever node it is placed.
pub async fn a_new_grant_has_no_container(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for end in [fail(FailureKind::System), release()] {
        let grant = bench.held_container("n1").await;
        bench.attach(&grant, "c1").await;
        bench.end(&grant, end).await;
        let history = harness.history(grant.authority.job).await;
        assert_eq!(history[0].container, Some(id("c1")), "the history keeps it");
        bench.requeue(grant.authority.job).await;
        let second = bench.claim(grant.authority.job).await;
        assert_eq!(bench.view(grant.authority.job).await.container, None);
        assert_eq!(bench.attach(&second, "c2").await, Attach::Attached);
    }
}

fn batch(stream: LogStream, first_byte: u64, data: &'static [u8]) -> LogBatch {
    LogBatch { task: None, stream, first_byte, data: Bytes::from_static(data) }
}

async fn append(bench: &Bench<'_>, grant: &Grant, batches: &[LogBatch]) -> LogAppend {
    bench.store.append_logs(&grant.authority, batches).await.expect("the store answers")
}

/// DK-21: any bytes, both streams and our own remarks, in the order in which they were stored.
pub async fn output_is_stored_as_it_was_written(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let batches = [
        batch(LogStream::Stdout, 0, b"one\r\n\xff\xfe\x80"),
        batch(LogStream::Stderr, 0, b"\0"),
        batch(LogStream::Stdout, 8, b"last line without newline"),
        batch(LogStream::System, 0, "dropped 5 bytes — über die Quote".as_bytes()),
    ];
    assert_eq!(append(&bench, &grant, &batches[..2]).await, LogAppend::Stored);
    assert_eq!(append(&bench, &grant, &batches[2..]).await, LogAppend::Stored);
    assert_eq!(append(&bench, &grant, &[]).await, LogAppend::Stored);
    let stored = harness.logs(grant.authority.job).await;
    assert_eq!(stored.len(), 4);
    for (stored, sent) in stored.iter().zip(&batches) {
        assert_eq!(stored.epoch, grant.authority.epoch);
        assert_eq!((stored.stream, stored.first_byte), (sent.stream, sent.first_byte));
        assert_eq!(stored.data, sent.data);
    }
}

/// L10: a batch whose answer was lost is sent again, and stands there once.
pub async fn output_sent_twice_is_stored_once(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let first = batch(LogStream::Stdout, 0, b"abc");
    let second = batch(LogStream::Stdout, 3, b"def");
    append(&bench, &grant, std::slice::from_ref(&first)).await;
    assert_eq!(append(&bench, &grant, &[first, second]).await, LogAppend::Stored);
    let stored = harness.logs(grant.authority.job).await;
    assert_eq!(stored.len(), 2);
    let all: Vec<u8> = stored.iter().flat_map(|log| log.data.to_vec()).collect();
    assert_eq!(all, b"abcdef");
}

/// L2: a fenced worker's late batch is refused, whole.
pub async fn late_output_is_refused(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let job = grant.authority.job;
    append(&bench, &grant, &[batch(LogStream::Stdout, 0, b"in time")]).await;
    harness.expire(job).await;
    let late = [batch(LogStream::Stdout, 0, b"in time"), batch(LogStream::Stdout, 7, b"late")];
    assert_eq!(append(&bench, &grant, &late).await, LogAppend::NotLive);
    assert_eq!(harness.logs(job).await.len(), 1);
}

/// Each grant numbers its own bytes from zero.
pub async fn each_epoch_has_its_own_output(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let first = bench.held().await;
    append(&bench, &first, &[batch(LogStream::Stdout, 0, b"first")]).await;
    bench.end(&first, release()).await;
    bench.requeue(first.authority.job).await;
    let second = bench.claim(first.authority.job).await;
    append(&bench, &second, &[batch(LogStream::Stdout, 0, b"second")]).await;
    let stored = harness.logs(first.authority.job).await;
    let told: Vec<_> = stored.iter().map(|log| (log.epoch, log.data.clone())).collect();
    let expected =
        [(first.authority.epoch, Bytes::from("first")), (second.authority.epoch, Bytes::from("second"))];
    assert_eq!(told, expected);
}

/// Takes the one expired lease over, for another worker.
async fn take_over(bench: &Bench<'_>, harness: &dyn StoreHarness, grant: &Grant) -> Grant {
    harness.expire(grant.authority.job).await;
    let mut owner = grant.authority.owner.clone();
    owner.process = ProcessId::generate();
    let request = RecoverRequest {
        owner,
        command: CommandId::generate(),
        repeat: false,
        limit: 1,
        lease: grant.lease,
        running_here: Arc::default(),
    };
    bench.store.recover(&request).await.expect("the store answers").takeovers.remove(0).grant
}

/// Output belongs to the claim: whoever took the job over goes on where the lost holder left off, under its epoch.
pub async fn after_a_takeover_output_goes_on_where_it_was(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    append(&bench, &grant, &[batch(LogStream::Stdout, 0, b"one"), batch(LogStream::System, 0, b"a remark")])
        .await;
    append(&bench, &grant, &[batch(LogStream::Stdout, 3, b"two")]).await;
    let taken = take_over(&bench, harness, &grant).await;
    let offsets = bench.store.log_offsets(&taken.authority, None).await.expect("the store answers");
    assert_eq!(offsets, StoredLogs::Offsets(LogOffsets { stdout: 6, stderr: 0, system: 8 }));
    let rest = [batch(LogStream::Stdout, 6, b"three"), batch(LogStream::Stderr, 0, b"err")];
    assert_eq!(append(&bench, &taken, &rest).await, LogAppend::Stored);
    assert_eq!(append(&bench, &grant, &[batch(LogStream::Stdout, 6, b"late")]).await, LogAppend::NotLive);
    let stored = harness.logs(grant.authority.job).await;
    assert!(stored.iter().all(|log| log.epoch == grant.authority.epoch), "{stored:?}");
    let out = stored.iter().filter(|log| log.stream == LogStream::Stdout);
    assert_eq!(out.flat_map(|log| log.data.to_vec()).collect::<Vec<u8>>(), b"onetwothree");
}

/// Only to the holder of the live lease; and a next claim begins anew.
pub async fn what_is_stored_is_told_under_a_live_lease_only(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let first = bench.held().await;
    append(&bench, &first, &[batch(LogStream::Stdout, 0, b"first")]).await;
    bench.end(&first, release()).await;
    let told = bench.store.log_offsets(&first.authority, None).await.expect("the store answers");
    assert_eq!(told, StoredLogs::NotLive);
    bench.requeue(first.authority.job).await;
    let second = bench.claim(first.authority.job).await;
    let told = bench.store.log_offsets(&second.authority, None).await.expect("the store answers");
    assert_eq!(told, StoredLogs::Offsets(LogOffsets::default()));
    harness.expire(second.authority.job).await;
    let told = bench.store.log_offsets(&second.authority, None).await.expect("the store answers");
    assert_eq!(told, StoredLogs::NotLive);
}
