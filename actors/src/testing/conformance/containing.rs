//! The runtime nodes of recipes' tasks.

use std::time::Duration;

use super::bench::{Bench, LAG, complete, every_end, id, reschedule};
use crate::{
    domain::{CommandId, JobState, NodeId, TaskKey, execution::Platform},
    ports::{
        Attach, Authority, ClaimRejection, Ended, Grant, LogAppend, LogBatch, LogStream, NodeNeeds,
        Placement, RuntimeStanding, StoredLogs, TaskOccurrence, TaskPlace, TaskPlaced, TaskUnplaced,
        recipe::{NewEvent, TaskOutcome},
    },
    testing::harness::{StoreHarness, TestNode},
};

fn key(path: &str) -> TaskKey {
    TaskKey::new(path.replace('/', "-")).expect("the test names a valid key")
}

fn occurrence(path: &str) -> TaskOccurrence {
    TaskOccurrence {
        op: format!("op of {path}"),
        input_hash: "0f".repeat(32),
        attempt: 3,
        secrets: vec!["A".to_owned(), path.to_owned()],
        log_quota_bytes: (path != "b").then_some(3 << 40),
    }
}

async fn ask(bench: &Bench<'_>, authority: &Authority, path: &str, needs: NodeNeeds) -> TaskPlaced {
    let place = TaskPlace { task: key(path), path: path.to_owned(), needs, occurrence: occurrence(path) };
    bench.store.place_task(authority, &place).await.expect("the store answers")
}

async fn try_place(bench: &Bench<'_>, grant: &Grant, path: &str) -> TaskPlaced {
    ask(bench, &grant.authority, path, NodeNeeds::default()).await
}

async fn place(bench: &Bench<'_>, grant: &Grant, path: &str) -> Placement {
    match try_place(bench, grant, path).await {
        TaskPlaced::Placed(placement) => placement,
        other => panic!("{path} is not placed: {other:?}"),
    }
}

async fn unplace(bench: &Bench<'_>, grant: &Grant, path: &str) -> TaskUnplaced {
    bench.store.unplace_task(&grant.authority, &key(path)).await.expect("the store answers")
}

async fn attach(
    bench: &Bench<'_>,
    authority: &Authority,
    path: &str,
    node: &NodeId,
    container: &str,
) -> Attach {
    let answer = bench.store.attach_task(authority, &key(path), node, &id(container)).await;
    answer.expect("the store answers")
}

async fn slots(bench: &Bench<'_>, node: &TestNode) -> usize {
    bench.harness.node_slots(&bench.namespace, &node.node).await.len()
}

fn no_node(placed: &TaskPlaced) -> Duration {
    let TaskPlaced::NoNode { retry_in, .. } = placed else { panic!("it found a node: {placed:?}") };
    *retry_in
}

/// L9, L10: a lost answer takes no second slot.
pub async fn a_task_is_placed_once_however_often_it_asks(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 3).await;
    let grant = bench.held_recipe().await;
    let first = place(&bench, &grant, "build").await;
    assert_eq!(
        (&first.node, &first.endpoint, &first.engine_id),
        (&node.node, &node.endpoint, &node.engine_id)
    );
    assert_eq!(place(&bench, &grant, "build").await, first);
    assert_eq!(slots(&bench, &node).await, 1);
    let (one, two) = tokio::join!(place(&bench, &grant, "test"), place(&bench, &grant, "test"));
    assert_eq!(one, two);
    assert_eq!(slots(&bench, &node).await, 2);
}

/// L9: the branches of a recipe have a slot each, and so has a CONTAINER job.
pub async fn tasks_and_jobs_share_the_slots_of_a_node(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 2).await;
    let (grant, other) = (bench.held_recipe().await, bench.held_recipe().await);
    place(&bench, &grant, "one").await;
    place(&bench, &grant, "two").await;
    no_node(&try_place(&bench, &other, "one").await);
    let job = bench.queued_container().await;
    assert_eq!(bench.try_claim(job).await.err(), Some(ClaimRejection::NoRuntimeNode));
    assert_eq!(unplace(&bench, &grant, "one").await, TaskUnplaced::Done);
    assert_eq!(unplace(&bench, &grant, "one").await, TaskUnplaced::Done, "a repeat");
    assert_eq!(slots(&bench, &node).await, 1);
    bench.claim(job).await;
    no_node(&try_place(&bench, &other, "one").await);
    assert_eq!(slots(&bench, &node).await, 2);
}

/// L9
pub async fn concurrent_tasks_do_not_overfill_a_node(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 3).await;
    let grant = bench.held_recipe().await;
    let paths: Vec<String> = (0..8).map(|n| format!("branch-{n}")).collect();
    let asked = paths.iter().map(|path| try_place(&bench, &grant, path));
    let answers = futures_util::future::join_all(asked).await;
    let placed = answers.iter().filter(|answer| matches!(answer, TaskPlaced::Placed(_))).count();
    assert_eq!((placed, slots(&bench, &node).await), (3, 3), "{answers:?}");
}

pub async fn a_task_goes_only_where_its_needs_are_met(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    bench.node("n1", 9).await;
    let grant = bench.held_recipe().await;
    let platform = |text: &str| Some(Platform::parse(text).expect("the test names a platform"));
    let (cpu, memory) = (Some(TestNode::CPU_MILLIS), Some(TestNode::MEMORY_BYTES));
    let more = |amount: Option<i64>| amount.map(|amount| amount + 1);
    let fits = [
        NodeNeeds { cpu_millis: cpu, memory_bytes: memory, platform: platform("linux/amd64") },
        NodeNeeds { platform: platform("x86_64"), ..NodeNeeds::default() },
    ];
    let too_much = [
        NodeNeeds { cpu_millis: more(cpu), ..NodeNeeds::default() },
        NodeNeeds { memory_bytes: more(memory), ..NodeNeeds::default() },
        NodeNeeds { platform: platform("linux/arm64"), ..NodeNeeds::default() },
        NodeNeeds { platform: platform("linux/amd64/v3"), ..NodeNeeds::default() },
        NodeNeeds { platform: platform("windows/amd64"), ..NodeNeeds::default() },
    ];
    for (n, needs) in too_much.into_iter().enumerate() {
        no_node(&ask(&bench, &grant.authority, &format!("no-{n}"), needs).await);
    }
    for (n, needs) in fits.into_iter().enumerate() {
        let answer = ask(&bench, &grant.authority, &format!("yes-{n}"), needs.clone()).await;
        assert!(matches!(answer, TaskPlaced::Placed(_)), "{needs:?}: {answer:?}");
    }
}

pub async fn a_silent_or_draining_node_gets_no_task(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (silent, draining) = (bench.node("n1", 2).await, bench.node("n2", 2).await);
    let grant = bench.held_recipe().await;
    harness.silence_node(&bench.namespace, &silent.node).await;
    harness.drain_node(&bench.namespace, &draining.node).await;
    no_node(&try_place(&bench, &grant, "build").await);
    harness.register_node(&silent).await;
    assert_eq!(place(&bench, &grant, "build").await.node, silent.node);
}

/// It is looked for again after a second at first, and no failure is counted.
pub async fn without_a_node_the_job_comes_to_no_harm(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let before = bench.view(grant.authority.job).await;
    let wait = no_node(&try_place(&bench, &grant, "build").await);
    assert!(wait >= Duration::from_millis(500) && wait <= Duration::from_secs(2) + LAG, "{wait:?}");
    let after = bench.view(grant.authority.job).await;
    assert_eq!((after.attempt, after.failures, after.state), (before.attempt, before.failures, before.state));
    bench.node("n1", 1).await;
    place(&bench, &grant, "build").await;
}

pub async fn the_container_of_a_task_is_recorded_once(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 2).await;
    let grant = bench.held_recipe().await;
    place(&bench, &grant, "one").await;
    place(&bench, &grant, "two").await;
    let elsewhere = NodeId::new("n9").expect("a plain name");
    let authority = &grant.authority;
    assert_eq!(attach(&bench, authority, "one", &elsewhere, "c1").await, Attach::WrongRuntimeNode);
    assert_eq!(attach(&bench, authority, "none", &node.node, "c1").await, Attach::WrongRuntimeNode);
    for _ in 0..2 {
        assert_eq!(attach(&bench, authority, "one", &node.node, "c1").await, Attach::Attached);
    }
    assert_eq!(attach(&bench, authority, "two", &node.node, "c2").await, Attach::Attached);
    let conflict = Attach::ContainerConflict { attached: id("c1") };
    assert_eq!(attach(&bench, authority, "one", &node.node, "c3").await, conflict);
}

/// L2
pub async fn only_the_holder_places_tasks(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 4).await;
    let grant = bench.held_recipe().await;
    place(&bench, &grant, "one").await;
    let mut stranger = grant.clone();
    stranger.authority.owner = bench.rescuer.clone();
    let handler = bench.held().await;
    for other in [&stranger, &handler] {
        assert_eq!(try_place(&bench, other, "two").await, TaskPlaced::NotLive);
    }
    for round in 0..2 {
        let late = if round == 0 { &stranger } else { &grant };
        assert_eq!(try_place(&bench, late, "two").await, TaskPlaced::NotLive);
        assert_eq!(attach(&bench, &late.authority, "one", &node.node, "c1").await, Attach::NotLive);
        assert_eq!(unplace(&bench, late, "one").await, TaskUnplaced::NotLive);
        assert_eq!(slots(&bench, &node).await, 1, "an expired lease keeps its slots");
        harness.expire(grant.authority.job).await;
    }
}

/// L9: whichever way a lease ends, the slots of its tasks are free.
pub async fn every_end_frees_the_slots_of_tasks(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let node = bench.node("n1", 2).await;
    for (name, end) in every_end() {
        let grant = bench.held_recipe().await;
        place(&bench, &grant, "one").await;
        place(&bench, &grant, "two").await;
        bench.end(&grant, end).await;
        assert_eq!(slots(&bench, &node).await, 0, "{name}");
        if bench.state(grant.authority.job).await == JobState::Pending {
            bench.requeue(grant.authority.job).await;
            let next = bench.claim(grant.authority.job).await;
            place(&bench, &next, "one").await;
            assert_eq!(bench.end(&next, complete()).await, Ended::Terminal(JobState::Completed), "{name}");
        }
    }
}

/// L7, L9: whoever takes a recipe over is told of every container that there may be, and has their slots until they
/// are cleaned up.
pub async fn a_takeover_inherits_the_tasks(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (node, gone) = (bench.node("n1", 2).await, bench.node("n2", 1).await);
    let grant = bench.held_recipe().await;
    bench.renew(&grant.authority).await;
    let mut nodes = Vec::new();
    for (path, container) in [("a/one", Some("c1")), ("a/two", None), ("b", Some("c3"))] {
        let placement = place(&bench, &grant, path).await;
        if let Some(container) = container {
            attach(&bench, &grant.authority, path, &placement.node, container).await;
        }
        nodes.push(placement.node.clone());
    }
    nodes.sort();
    assert_eq!(nodes, [node.node.clone(), node.node.clone(), gone.node.clone()]);
    harness.forget_node(&bench.namespace, &gone.node).await;
    harness.expire(grant.authority.job).await;
    let request = bench.recovery(10);
    let taken = bench.recover_with(request.clone()).await.takeovers.remove(0);
    let told: Vec<_> = taken.tasks.iter().map(|task| (task.path.as_str(), task.container.clone())).collect();
    assert_eq!(told, [("a/one", Some(id("c1"))), ("a/two", None), ("b", Some(id("c3")))]);
    for task in &taken.tasks {
        assert_eq!((&task.task, task.epoch), (&key(&task.path), grant.authority.epoch));
        assert_eq!(task.occurrence, Some(occurrence(&task.path)));
        let unavailable = task.placement.node == gone.node;
        assert_eq!(task.runtime == RuntimeStanding::Unavailable, unavailable, "{task:?}");
    }
    assert_eq!(slots(&bench, &node).await, 2);
    let mut again = request;
    again.repeat = true;
    assert_eq!(
        bench.recover_with(again).await.takeovers.remove(0).tasks,
        taken.tasks,
        "a repeat tells the same"
    );
    assert_eq!(bench.end(&taken.grant, reschedule()).await, Ended::Rescheduled);
    assert_eq!(slots(&bench, &node).await, 0);
}

/// The output of each task is counted by itself.
pub async fn the_output_of_tasks_is_kept_apart(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    let (one, two) = (key("one"), key("two"));
    let batch = |task: &TaskKey, first_byte, data: &'static [u8]| LogBatch {
        task: Some(task.clone()),
        stream: LogStream::Stdout,
        first_byte,
        data: bytes::Bytes::from_static(data),
    };
    let batches =
        [batch(&one, 0, b"abc"), batch(&two, 0, b"de"), batch(&one, 3, b"f"), batch(&one, 0, b"abc")];
    let stored = bench.store.append_logs(&grant.authority, &batches).await;
    assert_eq!(stored.expect("the store answers"), LogAppend::Stored);
    for (task, expected) in [(Some(&one), 4), (Some(&two), 2), (None, 0)] {
        let told = bench.store.log_offsets(&grant.authority, task).await.expect("the store answers");
        let StoredLogs::Offsets(offsets) = told else { panic!("{told:?}") };
        assert_eq!(offsets.stdout, expected, "{task:?}");
    }
    assert_eq!(harness.logs(grant.authority.job).await.len(), 3);
}

/// A wait for a node does not grow over what happened before the last event.
pub async fn the_wait_for_a_node_begins_anew_with_every_event(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_recipe().await;
    no_node(&try_place(&bench, &grant, "one").await);
    let event = NewEvent::Task {
        op: "work".to_owned(),
        input_hash: "0".repeat(64),
        attempt: 1,
        outcome: TaskOutcome::Succeeded { output: "null".into() },
        directive: None,
    };
    bench.record(&grant, "zero", &event).await;
    let wait = no_node(&try_place(&bench, &grant, "one").await);
    assert!(wait <= Duration::from_secs(2) + LAG, "{wait:?}");
    assert_eq!(
        bench.end_as(&grant.authority, CommandId::generate(), &complete()).await,
        Ended::Terminal(JobState::Completed)
    );
}
