//! Recovery: which expired leases are taken over, in which order, and what a takeover keeps and changes.

use std::time::Duration;

use futures_util::future::join_all;

use super::bench::{Bench, LAG, LEASE, claimant, complete, id, release};
use crate::{
    domain::{CommandId, Epoch, JobId, JobState, Namespace},
    error::{Applied, StoreErrorKind},
    ports::{Ended, Grant, OpenClaim, Reconciliation, RecoverRequest, Renewal, RuntimeStanding, Takeover},
    testing::harness::{StoreHarness, TestNode, TestWorkflow},
};

fn jobs(takeovers: &[Takeover]) -> Vec<JobId> {
    takeovers.iter().map(|takeover| takeover.grant.authority.job).collect()
}

async fn renewed(bench: &Bench<'_>, grant: &Grant) {
    assert!(matches!(bench.renew(&grant.authority).await, Renewal::Held { .. }));
}

/// RN-03: the stored expiry decides, whatever the recoverer's own lease is.
pub async fn nothing_is_taken_over_before_it_expires(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let answer = bench.recover(10).await;
    assert!(answer.takeovers.is_empty());
    assert_eq!((answer.next_expiry, answer.backlog, answer.oldest), (None, 0, None));
    let grant = bench.held().await;
    let before = bench.picture(grant.authority.job).await;
    let short = RecoverRequest { lease: Duration::from_secs(2), ..bench.recovery(10) };
    let answer = bench.recover_with(short).await;
    assert!(answer.takeovers.is_empty());
    assert_eq!((answer.backlog, answer.oldest), (0, None));
    let next = answer.next_expiry.expect("a lease runs");
    assert!(next <= LEASE && !next.is_zero(), "{next:?}");
    assert_eq!(bench.picture(grant.authority.job).await, before);
}

/// The next pass is timed by the earliest expiry ahead, which is never told later than it is.
pub async fn the_next_expiry_is_told(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (_, _) = (bench.held().await, bench.queued().await);
    let lease = Duration::from_secs(12);
    let request = OpenClaim { lease, ..bench.open(1) };
    assert_eq!(bench.store.claim(&request).await.expect("the store answers").grants.len(), 1);
    let next = bench.recover(10).await.next_expiry.expect("two leases run");
    assert!(next <= lease, "{next:?}");
}

/// L1, L4: whoever held it is out, for every call.
pub async fn each_takeover_has_its_own_token_and_epoch(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grants = [bench.held().await, bench.held().await];
    for grant in &grants {
        harness.expire(grant.authority.job).await;
    }
    let taken = bench.recover(10).await.takeovers;
    assert_eq!(taken.len(), 2);
    assert_ne!(taken[0].grant.authority.token, taken[1].grant.authority.token);
    for old in &grants {
        let job = old.authority.job;
        let new = taken.iter().find(|t| t.grant.authority.job == job).expect("both were taken over");
        assert!(new.grant.authority.epoch > old.authority.epoch);
        assert_ne!(new.grant.authority.token, old.authority.token);
        assert_eq!(new.grant.authority.owner, bench.rescuer);
        assert_eq!(bench.view(job).await.epoch, new.grant.authority.epoch.0);
        assert_eq!(bench.renew(&old.authority).await, Renewal::NotLive);
        assert_eq!(bench.end(old, complete()).await, Ended::NotLive);
        assert_eq!(bench.reconcile(&old.authority).await, Reconciliation::Changed);
        renewed(&bench, &new.grant).await;
    }
    assert!(bench.recover(10).await.takeovers.is_empty(), "a taken over lease is live");
}

/// RN-07: a new process under the old name takes over as anybody does, and keeps nothing alive before.
pub async fn a_successor_of_the_same_name_takes_over(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    renewed(&bench, &grant).await;
    let successor = claimant(&bench.namespace, bench.owner.worker.as_str());
    let request = RecoverRequest { owner: successor.clone(), ..bench.recovery(10) };
    assert!(bench.recover_with(request.clone()).await.takeovers.is_empty(), "its lease still runs");
    harness.expire(grant.authority.job).await;
    let again = RecoverRequest { command: CommandId::generate(), ..request };
    let taken = bench.recover_with(again).await.takeovers.remove(0);
    assert_eq!(taken.grant.authority.owner, successor);
    assert_eq!(bench.renew(&grant.authority).await, Renewal::NotLive);
    renewed(&bench, &taken.grant).await;
}

pub async fn the_oldest_expiry_comes_first(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let mut expected = Vec::new();
    for ago in [30, 50, 20, 40, 10] {
        let job = bench.held().await.authority.job;
        harness.expire_ago(job, Duration::from_secs(ago)).await;
        expected.push((ago, job));
    }
    expected.sort_by_key(|(ago, _)| std::cmp::Reverse(*ago));
    let expected: Vec<JobId> = expected.into_iter().map(|(_, job)| job).collect();
    let mut taken = Vec::new();
    for left in [3, 1, 0] {
        let answer = bench.recover(2).await;
        assert!(answer.takeovers.len() <= 2, "no more than the limit");
        assert_eq!(answer.backlog, left);
        assert_eq!(answer.oldest.is_some(), left > 0);
        if let Some(oldest) = answer.oldest {
            let least = Duration::from_secs(if left == 3 { 30 } else { 10 });
            assert!(oldest >= least && oldest < least + LAG, "{left} left, the oldest {oldest:?}");
        }
        taken.extend(jobs(&answer.takeovers));
    }
    assert_eq!(taken, expected);
}

/// L7, L9: node, container, slot, attempt and dispatch stay what they were.
pub async fn a_takeover_keeps_what_the_claim_chose(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    let (job, place) = (grant.authority.job, grant.placement.clone().expect("placed"));
    bench.attach(&grant, "c1").await;
    renewed(&bench, &grant).await;
    let slots = harness.node_slots(&bench.namespace, &place.node).await;
    let before = bench.view(job).await;
    harness.expire(job).await;
    let answer = bench.recover(10).await;
    let [taken] = &answer.takeovers[..] else { panic!("one takeover: {answer:?}") };
    assert_eq!(taken.grant.placement, Some(place.clone()));
    assert_eq!(taken.container, Some(id("c1")));
    assert_eq!((taken.claim_epoch, taken.started), (grant.authority.epoch, true));
    assert_eq!((taken.runtime, taken.cleanup_pending_for), (RuntimeStanding::Available, None));
    let same = |g: &Grant| {
        let definition =
            (g.definition.clone(), g.payload.clone(), g.timeout, g.retry, g.trace_parent.clone());
        (g.kind, g.route.clone(), g.workflow.clone(), g.generation, g.dispatch_attempt, g.attempt, definition)
    };
    assert_eq!(same(&taken.grant), same(&grant));
    let after = bench.view(job).await;
    assert_eq!((after.attempt, after.dispatch_attempt), (before.attempt, before.dispatch_attempt));
    assert_eq!((after.failures, after.losses), ([0; 3], 0), "a takeover counts nothing by itself");
    assert_eq!((after.node, after.container), (before.node, before.container));
    assert_eq!(harness.node_slots(&bench.namespace, &place.node).await, slots);
    assert_eq!(bench.end(&taken.grant, complete()).await, Ended::Terminal(JobState::Completed));
    assert!(harness.node_slots(&bench.namespace, &place.node).await.is_empty());
}

pub async fn a_takeover_keeps_the_workflow_s_slot(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let definition = bench.new_job().definition.expect("ad-hoc jobs have one");
    let mut workflow = TestWorkflow::new(&bench.namespace, "serial", definition);
    workflow.overlap_serial = true;
    harness.define_workflow(&workflow).await;
    let grant = bench.claim(bench.run_of("serial").await).await;
    let second = bench.run_of("serial").await;
    harness.expire(grant.authority.job).await;
    let taken = bench.recover(10).await.takeovers.remove(0);
    assert_eq!(harness.workflow_slots(&bench.namespace, "serial").await, [(1, grant.authority.job)]);
    assert!(bench.try_claim(second).await.is_err(), "the first run is not over");
    bench.end(&taken.grant, complete()).await;
    bench.requeue(second).await;
    bench.claim(second).await;
}

/// Each lease that ended has its row, also one that nobody ended.
pub async fn the_lost_lease_is_in_the_history(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    let job = grant.authority.job;
    bench.attach(&grant, "c1").await;
    renewed(&bench, &grant).await;
    renewed(&bench, &grant).await;
    harness.expire(job).await;
    let first = bench.recover(1).await.takeovers.remove(0);
    harness.expire(job).await;
    let second = bench.recover(1).await.takeovers.remove(0);
    let history = harness.history(job).await;
    let [lost, given_up] = &history[..] else { panic!("{history:#?}") };
    assert_eq!((lost.epoch, lost.how.as_str()), (grant.authority.epoch, "expired"));
    assert_eq!((&lost.worker, lost.process), (&bench.owner.worker, bench.owner.process));
    assert_eq!((lost.attempt, lost.renewals, lost.command), (1, 2, None));
    assert_eq!(
        (lost.node.as_ref(), lost.container.as_ref()),
        (grant.placement.as_ref().map(|p| &p.node), Some(&id("c1")))
    );
    assert_eq!((given_up.epoch, given_up.how.as_str()), (first.grant.authority.epoch, "expired"));
    assert_eq!((&given_up.worker, given_up.renewals), (&bench.rescuer.worker, 0));
    // The second takeover is of the same claim.
    assert!(second.grant.authority.epoch > first.grant.authority.epoch);
    assert_eq!((second.claim_epoch, second.grant.attempt), (grant.authority.epoch, 1));
}

pub async fn a_takeover_has_the_recoverer_s_duration(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    harness.expire(grant.authority.job).await;
    let longer = Duration::from_mins(10);
    let answer = bench.recover_with(RecoverRequest { lease: longer, ..bench.recovery(1) }).await;
    assert_eq!(answer.takeovers[0].grant.lease, longer);
    let Renewal::Held { remaining, .. } = bench.renew(&answer.takeovers[0].grant.authority).await else {
        panic!("a takeover is live")
    };
    assert!(remaining > longer - LAG && remaining <= longer, "{remaining:?}");
    for lease in [Duration::from_millis(1999), Duration::from_secs(901)] {
        let request = RecoverRequest { lease, ..bench.recovery(1) };
        let error = bench.store.recover(&request).await.expect_err("out of bounds");
        assert_eq!((error.kind, error.applied), (StoreErrorKind::Refused, Applied::No), "{error}");
    }
}

/// A grant that its own holder never renewed started nothing, whoever held it since.
pub async fn whether_anything_was_started_is_told(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (idle, busy) = (bench.held().await, bench.held().await);
    renewed(&bench, &busy).await;
    for _ in 0..2 {
        for job in [idle.authority.job, busy.authority.job] {
            harness.expire(job).await;
        }
        let taken = bench.recover(10).await.takeovers;
        assert_eq!(taken.len(), 2);
        for takeover in taken {
            assert_eq!(takeover.started, takeover.grant.authority.job == busy.authority.job);
            renewed(&bench, &takeover.grant).await;
        }
    }
}

/// A process never takes over what it still runs; another one does.
pub async fn what_runs_here_is_left_alone(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (mine, other) = (bench.held().await.authority.job, bench.held().await.authority.job);
    harness.expire_ago(mine, Duration::from_secs(60)).await;
    harness.expire(other).await;
    let here = RecoverRequest { running_here: vec![mine].into(), ..bench.recovery(1) };
    let answer = bench.recover_with(here.clone()).await;
    assert_eq!(jobs(&answer.takeovers), [other], "the one that is left alone takes nobody's place");
    assert_eq!(answer.backlog, 1);
    let again = RecoverRequest { command: CommandId::generate(), ..here };
    assert!(bench.recover_with(again).await.takeovers.is_empty());
    assert_eq!(jobs(&bench.recover(10).await.takeovers), [mine]);
}

pub async fn a_recovery_keeps_to_its_namespace(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.held().await.authority.job;
    harness.expire(job).await;
    let elsewhere = Namespace::new("elsewhere").expect("a valid name");
    let owner = claimant(&elsewhere, "worker-b");
    let answer = bench.recover_with(RecoverRequest { owner, ..bench.recovery(10) }).await;
    assert!(answer.takeovers.is_empty());
    assert_eq!((answer.backlog, answer.next_expiry), (0, None));
    assert_eq!(jobs(&bench.recover(10).await.takeovers), [job]);
}

/// A node that is silent for less than its time is waited for, and nobody else waits with it.
pub async fn a_silent_node_s_jobs_are_left_for_later(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    let node = grant.placement.clone().expect("placed").node;
    let handler = bench.held().await.authority.job;
    harness.expire_ago(grant.authority.job, Duration::from_secs(100)).await;
    harness.expire(handler).await;
    harness.silence_node(&bench.namespace, &node).await;
    let answer = bench.recover(1).await;
    assert_eq!(jobs(&answer.takeovers), [handler]);
    assert_eq!(answer.backlog, 1);
    let before = bench.picture(grant.authority.job).await;
    assert!(bench.recover(10).await.takeovers.is_empty());
    assert_eq!(bench.picture(grant.authority.job).await, before);
    // It is back.
    bench.node("n1", 2).await;
    let back = bench.recover(10).await.takeovers;
    assert_eq!((jobs(&back), back[0].runtime), (vec![grant.authority.job], RuntimeStanding::Available));
    // It is gone for good.
    harness.expire(grant.authority.job).await;
    harness.lose_node(&bench.namespace, &node).await;
    let lost = bench.recover(10).await.takeovers;
    assert_eq!((jobs(&lost), lost[0].runtime), (vec![grant.authority.job], RuntimeStanding::Unavailable));
    assert_eq!(lost[0].grant.placement, grant.placement, "where it ran is told all the same");
}

pub async fn a_forgotten_node_is_not_waited_for_and_a_draining_one_is_asked(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (gone, drained) = (bench.held_container("n2").await, bench.held_container("n3").await);
    let node = |grant: &Grant| grant.placement.clone().expect("placed").node;
    harness.forget_node(&bench.namespace, &node(&gone)).await;
    harness.drain_node(&bench.namespace, &node(&drained)).await;
    for grant in [&gone, &drained] {
        harness.expire(grant.authority.job).await;
    }
    let taken = bench.recover(10).await.takeovers;
    assert_eq!(taken.len(), 2);
    for takeover in taken {
        let draining = takeover.grant.authority.job == drained.authority.job;
        let expected = if draining { RuntimeStanding::Available } else { RuntimeStanding::Unavailable };
        assert_eq!(takeover.runtime, expected);
    }
}

/// An engine that restarts makes its node UNHEALTHY for seconds, and its containers may run on: it is waited for as a
/// silent node is.
pub async fn an_unhealthy_node_s_jobs_are_left_for_later(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    let (job, node) = (grant.authority.job, grant.placement.clone().expect("placed").node);
    let handler = bench.held().await.authority.job;
    harness.expire_ago(job, Duration::from_secs(100)).await;
    harness.expire(handler).await;
    harness.sicken_node(&bench.namespace, &node).await;
    let answer = bench.recover(1).await;
    assert_eq!(jobs(&answer.takeovers), [handler], "nobody else waits with it");
    assert_eq!(answer.backlog, 1);
    let before = bench.picture(job).await;
    assert!(bench.recover(10).await.takeovers.is_empty());
    assert_eq!(bench.picture(job).await, before);
    // It is well again.
    bench.node("n1", 2).await;
    let back = bench.recover(10).await.takeovers;
    assert_eq!((jobs(&back), back[0].runtime), (vec![job], RuntimeStanding::Available));
    // It does not get well; that it was ill before does not count.
    harness.expire(job).await;
    harness.sicken_node(&bench.namespace, &node).await;
    assert!(bench.recover(10).await.takeovers.is_empty());
    harness.age_sickness(&bench.namespace, &node).await;
    harness.sicken_node(&bench.namespace, &node).await;
    let lost = bench.recover(10).await.takeovers;
    assert_eq!((jobs(&lost), lost[0].runtime), (vec![job], RuntimeStanding::Unavailable));
    // Silent as well, it is lost by whichever comes first.
    harness.expire(job).await;
    harness.silence_node(&bench.namespace, &node).await;
    let lost = bench.recover(10).await.takeovers;
    assert_eq!((jobs(&lost), lost[0].runtime), (vec![job], RuntimeStanding::Unavailable));
}

/// L7: another engine under the node's name is not the engine that the container is on.
pub async fn a_node_at_another_engine_is_not_the_same_runtime(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held_container("n1").await;
    let (job, place) = (grant.authority.job, grant.placement.clone().expect("placed"));
    harness.expire(job).await;
    // At another address, it is still the same engine; the job's own address is told.
    let moved =
        TestNode { endpoint: "tcp://moved:2376".to_owned(), ..TestNode::new(&bench.namespace, "n1", 2) };
    harness.register_node(&moved).await;
    let taken = bench.recover(10).await.takeovers.remove(0);
    assert_eq!((taken.runtime, taken.grant.placement), (RuntimeStanding::Available, Some(place.clone())));
    harness.expire(job).await;
    harness.register_node(&TestNode { engine_id: "ANOTHER".to_owned(), ..moved }).await;
    assert!(bench.recover(10).await.takeovers.is_empty(), "its agent may have been heard a moment ago");
    harness.age_registration(&bench.namespace, &place.node).await;
    let taken = bench.recover(10).await.takeovers.remove(0);
    assert_eq!((taken.runtime, taken.grant.placement), (RuntimeStanding::Unavailable, Some(place)));
}

/// L1: any number of recoverers, each lease once.
pub async fn concurrent_recoverers_share_the_leases_out(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let mut all = Vec::new();
    for _ in 0..20 {
        let job = bench.held().await.authority.job;
        harness.expire(job).await;
        all.push(job);
    }
    let mut taken = Vec::new();
    // Some may find every row in somebody's hands; the next round finds the rest.
    for _ in 0..100 {
        let rounds = join_all((0..6).map(|_| bench.recover(5))).await;
        for answer in rounds {
            assert!(answer.takeovers.len() <= 5);
            taken.extend(jobs(&answer.takeovers));
        }
        if taken.len() >= all.len() {
            break;
        }
    }
    taken.sort_unstable();
    all.sort_unstable();
    assert_eq!(taken, all);
    for job in all {
        assert_eq!(harness.history(job).await.len(), 1);
    }
}

/// A lease that is live when its row is held is not taken over, whatever was read before.
pub async fn renewals_and_recoveries_do_not_both_win(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for _ in 0..5 {
        let grant = bench.held().await;
        harness.expire(grant.authority.job).await;
        let (renewal, end, answer) =
            tokio::join!(bench.renew(&grant.authority), bench.end(&grant, complete()), bench.recover(10),);
        assert_eq!((renewal, end), (Renewal::NotLive, Ended::NotLive));
        assert!(jobs(&answer.takeovers).len() <= 1);
        // Whoever asked about the row may have held it a moment too long for the recovery.
        let mut taken = answer.takeovers;
        for _ in 0..1000 {
            if !taken.is_empty() {
                break;
            }
            taken = bench.recover(10).await.takeovers;
        }
        bench.end(&taken[0].grant, complete()).await;
    }
}

/// L4: after a promotion the generation is the top part of every epoch.
pub async fn a_promotion_raises_the_epoch_of_takeovers(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    harness.expire(grant.authority.job).await;
    harness.promote().await;
    let taken = bench.recover(1).await.takeovers.remove(0);
    assert_eq!(taken.grant.authority.epoch, Epoch((1 << 40) + 1));
    assert_eq!(taken.claim_epoch, grant.authority.epoch, "its containers still carry the claim's");
}

/// The deadlines were the work's: whoever cleans up has a lease's time, however late it is.
pub async fn past_the_deadlines_there_is_time_to_clean_up(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.claim(bench.submit(|job| job.timeout_ms = Some(30_000)).await).await;
    let job = grant.authority.job;
    harness.request_cancel(&bench.namespace, job, Duration::ZERO).await;
    harness.pass_run_deadline(job).await;
    harness.pass_cancel_deadline(job).await;
    harness.expire(job).await;
    let taken = bench.recover(1).await.takeovers.remove(0);
    assert!(taken.cancel_requested);
    let view = bench.view(job).await;
    let expiry = view.lease_expires_at.expect("running");
    assert!(view.run_deadline.expect("set") >= expiry && view.cancel_deadline.expect("set") >= expiry);
    let Renewal::Held { remaining, cancel_requested } = bench.renew(&taken.grant.authority).await else {
        panic!("a takeover is live")
    };
    assert!(remaining > LEASE - LAG && cancel_requested, "{remaining:?}");
    assert_eq!(bench.view(job).await.renewals, 1, "the renewal extended the lease");
    assert_eq!(bench.end(&taken.grant, release()).await, Ended::Terminal(JobState::Canceled));
}

/// A job without deadlines gets none by a takeover.
pub async fn a_takeover_sets_no_deadline(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.held().await.authority.job;
    harness.expire(job).await;
    bench.recover(1).await;
    let view = bench.view(job).await;
    assert_eq!((view.run_deadline, view.cancel_deadline), (None, None));
}
