//! Lost leases: how a loss is counted and what it leads to; and a recovery that must wait.

use std::time::Duration;

use super::{
    bench::{Bench, LAG, claimant, complete, fail, id, lost, release},
    recording::success,
};
use crate::{
    domain::{CommandId, Failure, FailureKind, JobDefinition, JobId, JobState, LeaseToken, RetryPolicy},
    ports::{
        Authority, End, Ended, Grant, Postponed, Reconciliation, RecoverAnswer, Renewal, Takeover,
        recipe::Recorded,
    },
    testing::harness::{StoreHarness, TestWorkflow, WorkflowChange},
};

/// A claim of the job, which was renewed, lost and taken over.
async fn lose(bench: &Bench<'_>, job: JobId) -> Grant {
    bench.requeue(job).await;
    let grant = bench.claim(job).await;
    bench.renew(&grant.authority).await;
    bench.harness.expire(job).await;
    take_over(bench, job).await.grant
}

async fn take_over(bench: &Bench<'_>, job: JobId) -> Takeover {
    let mut taken = bench.recover(10).await.takeovers;
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].grant.authority.job, job);
    taken.remove(0)
}

async fn counts(bench: &Bench<'_>, job: JobId) -> ([i32; 3], i32) {
    let view = bench.view(job).await;
    (view.failures, view.losses)
}

/// RC-09: a loss is a SYSTEM failure with its own code, and the next claim is a new attempt.
pub async fn a_loss_is_a_system_failure(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    let grant = lose(&bench, job).await;
    assert!(matches!(bench.end(&grant, lost(3, 3)).await, Ended::Retrying { .. }));
    assert_eq!(counts(&bench, job).await, ([0, 1, 0], 1));
    let history = harness.history(job).await;
    let [expired, retrying] = &history[..] else { panic!("{history:#?}") };
    assert_eq!((expired.how.as_str(), retrying.how.as_str()), ("expired", "retrying"));
    let failure = Failure::new(FailureKind::System, "lease_lost", "nobody was there");
    assert_eq!((&expired.failure, &retrying.failure), (&None, &Some(failure)));
    bench.requeue(job).await;
    assert_eq!(bench.claim(job).await.attempt, 2);
}

/// So many losses in a row end the job, under a code that says why.
pub async fn losses_in_a_row_are_a_crash_loop(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    for losses in 1..=3 {
        let grant = lose(&bench, job).await;
        let answer = bench.end(&grant, lost(10, 3)).await;
        assert_eq!(counts(&bench, job).await, ([0, losses, 0], losses));
        match losses {
            3 => assert_eq!(answer, Ended::Terminal(JobState::Failed)),
            _ => assert!(matches!(answer, Ended::Retrying { .. }), "{answer:?}"),
        }
    }
    assert_eq!(bench.view(job).await.failure_code.as_deref(), Some("crash_loop"));
    // Where both limits are reached, the row of losses is what is told.
    let both = bench.queued().await;
    let grant = lose(&bench, both).await;
    assert_eq!(bench.end(&grant, lost(1, 1)).await, Ended::Terminal(JobState::Failed));
    assert_eq!(bench.view(both).await.failure_code.as_deref(), Some("crash_loop"));
}

/// A recipe that kills whoever runs it must come to an end, too; one that has recorded something since its claim has
/// got on, and counts from zero again.
pub async fn a_recipe_that_gets_on_is_no_crash_loop(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued_recipe().await;
    for losses in [1, 2] {
        let grant = lose(&bench, job).await;
        assert!(matches!(bench.end(&grant, lost(9, 3)).await, Ended::Retrying { .. }));
        assert_eq!(counts(&bench, job).await, ([0, losses, 0], losses));
    }
    bench.requeue(job).await;
    let grant = bench.claim(job).await;
    assert!(matches!(bench.record(&grant, "a", &success("op", "1")).await, Recorded::Recorded(_)));
    bench.renew(&grant.authority).await;
    harness.expire(job).await;
    let grant = take_over(&bench, job).await.grant;
    assert!(matches!(bench.end(&grant, lost(9, 3)).await, Ended::Retrying { .. }));
    assert_eq!(counts(&bench, job).await, ([0, 0, 0], 0));
    for losses in 1..=3 {
        let grant = lose(&bench, job).await;
        let answer = bench.end(&grant, lost(9, 3)).await;
        assert_eq!(answer == Ended::Terminal(JobState::Failed), losses == 3, "{answer:?}");
    }
    assert_eq!(bench.view(job).await.failure_code.as_deref(), Some("crash_loop"));
}

pub async fn losses_count_against_the_system_failures(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    let grant = bench.claim(job).await;
    assert!(matches!(bench.end(&grant, fail(FailureKind::System)).await, Ended::Retrying { .. }));
    let grant = lose(&bench, job).await;
    assert_eq!(bench.end(&grant, lost(2, 10)).await, Ended::Terminal(JobState::Failed));
    assert_eq!(bench.view(job).await.failure_code.as_deref(), Some("lease_lost"));
    // The job's own number comes before the worker's.
    let own = bench.submit(|job| job.retry.max_system = Some(2)).await;
    let grant = lose(&bench, own).await;
    assert!(matches!(bench.end(&grant, lost(1, 10)).await, Ended::Retrying { .. }));
    let grant = lose(&bench, own).await;
    assert_eq!(bench.end(&grant, lost(10, 10)).await, Ended::Terminal(JobState::Failed));
}

/// Only losses in a row are a loop: whoever ends a lease ends the row.
pub async fn a_holder_s_word_ends_the_row_of_losses(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for word in [fail(FailureKind::User), release(), super::bench::reschedule()] {
        let job = bench.submit(|job| job.retry.max_user = Some(100)).await;
        for _ in 0..2 {
            let grant = lose(&bench, job).await;
            assert!(matches!(bench.end(&grant, lost(100, 3)).await, Ended::Retrying { .. }));
        }
        bench.requeue(job).await;
        let grant = bench.claim(job).await;
        bench.renew(&grant.authority).await;
        bench.end(&grant, word.clone()).await;
        assert_eq!(bench.view(job).await.losses, 0, "{word:?}");
        for _ in 0..2 {
            let grant = lose(&bench, job).await;
            assert!(matches!(bench.end(&grant, lost(100, 3)).await, Ended::Retrying { .. }));
        }
        let grant = lose(&bench, job).await;
        assert_eq!(bench.end(&grant, lost(100, 3)).await, Ended::Terminal(JobState::Failed));
    }
}

/// While the database itself was away nobody could renew: the job is not to blame.
pub async fn a_loss_over_a_restart_is_not_counted(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    for attempt in 1..=4 {
        bench.requeue(job).await;
        let grant = bench.claim(job).await;
        assert_eq!(grant.attempt, attempt);
        bench.renew(&grant.authority).await;
        harness.expire_over_a_restart(job).await;
        let mut taken = take_over(&bench, job).await;
        if attempt == 2 {
            // That its recoverer is lost as well changes nothing.
            harness.expire(job).await;
            taken = take_over(&bench, job).await;
        }
        let Ended::Retrying { at } = bench.end(&taken.grant, lost(1, 1)).await else {
            panic!("a try is left")
        };
        assert_eq!(counts(&bench, job).await, ([0; 3], 0));
        bench.dispatch().await;
        assert_eq!(bench.state(job).await, JobState::Queued, "it need not wait: {at}");
    }
    let last = harness.history(job).await.pop().expect("four leases were lost");
    assert_eq!((last.how.as_str(), last.failure.expect("told").code.as_str()), ("retrying", "lease_lost"));
    // The next loss is one.
    let grant = lose(&bench, job).await;
    assert_eq!(bench.end(&grant, lost(10, 1)).await, Ended::Terminal(JobState::Failed));
}

pub async fn a_loss_over_a_promotion_is_not_counted(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    let grant = bench.claim(job).await;
    bench.renew(&grant.authority).await;
    harness.promote().await;
    harness.expire(job).await;
    let taken = take_over(&bench, job).await;
    assert!(matches!(bench.end(&taken.grant, lost(1, 1)).await, Ended::Retrying { .. }));
    assert_eq!(counts(&bench, job).await, ([0; 3], 0));
    let grant = lose(&bench, job).await;
    assert_eq!(bench.end(&grant, lost(10, 1)).await, Ended::Terminal(JobState::Failed));
}

/// A grant that was never renewed started nothing: PENDING at once, and no counter tells of it.
pub async fn what_never_started_counts_nothing(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    let grant = lose(&bench, job).await;
    bench.end(&grant, lost(10, 10)).await;
    bench.requeue(job).await;
    let idle = bench.claim(job).await;
    harness.expire(job).await;
    let taken = take_over(&bench, job).await;
    assert!(!taken.started);
    bench.renew(&taken.grant.authority).await;
    let end = End::Release { delay: Duration::ZERO, reason: "never_started" };
    assert_eq!(bench.end(&taken.grant, end).await, Ended::Released);
    assert_eq!(counts(&bench, job).await, ([0, 1, 0], 1), "the earlier loss still stands");
    bench.dispatch().await;
    assert_eq!(bench.state(job).await, JobState::Queued, "due at once");
    assert_eq!(bench.claim(job).await.attempt, idle.attempt);
}

/// A job whose cancel was requested never waits again; a loss that is final stands.
pub async fn after_a_request_to_cancel_a_loss_ends_the_job(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (limit, state, code) in [(10, JobState::Canceled, "lease_lost"), (1, JobState::Failed, "crash_loop")]
    {
        let job = bench.queued().await;
        let grant = bench.claim(job).await;
        bench.renew(&grant.authority).await;
        harness.request_cancel(&bench.namespace, job, Duration::from_secs(5)).await;
        harness.expire(job).await;
        let taken = take_over(&bench, job).await;
        assert!(taken.cancel_requested);
        assert_eq!(bench.end(&taken.grant, lost(10, limit)).await, Ended::Terminal(state));
        let view = bench.view(job).await;
        assert_eq!((view.state, view.failure_code.as_deref()), (state, Some(code)));
    }
}

/// A run of an older generation does not wait again, whether it is released or lost.
pub async fn a_superseded_run_ends_at_its_recovery(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let definition = JobDefinition::Handler { name: "work".to_owned() };
    harness.define_workflow(&TestWorkflow::new(&bench.namespace, "flow", definition)).await;
    for end in [lost(10, 10), End::Release { delay: Duration::ZERO, reason: "never_started" }] {
        let job = bench.run_of("flow").await;
        let grant = lose(&bench, job).await;
        harness.change_workflow(&bench.namespace, "flow", WorkflowChange::Edit).await;
        assert_eq!(bench.state(job).await, JobState::Running, "a raised generation leaves it alone");
        assert_eq!(bench.end(&grant, end).await, Ended::Terminal(JobState::Canceled));
        assert_eq!(bench.view(job).await.failure_code.as_deref(), Some("superseded"));
    }
}

/// L2, L10: as every end, it needs a live lease, and its repeat reports what is recorded.
pub async fn a_repeated_loss_reports_the_recorded_outcome(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    let grant = lose(&bench, job).await;
    let command = CommandId::generate();
    let first = bench.end_as(&grant.authority, command, &lost(10, 10)).await;
    assert!(matches!(first, Ended::Retrying { .. }));
    assert_eq!(bench.end_as(&grant.authority, command, &lost(10, 10)).await, first);
    assert_eq!(bench.end(&grant, lost(10, 10)).await, Ended::NotLive);
    assert_eq!(counts(&bench, job).await, ([0, 1, 0], 1), "counted once");
    let grant = lose(&bench, job).await;
    harness.expire(job).await;
    let before = bench.picture(job).await;
    assert_eq!(bench.end(&grant, lost(10, 10)).await, Ended::NotLive);
    assert_eq!(bench.picture(job).await, before);
}

pub async fn any_message_of_a_loss_is_stored(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for message in ["", "two\nlines", "with \0 NUL", &"é".repeat(5000)] {
        let job = bench.queued().await;
        let grant = lose(&bench, job).await;
        let end = End::Lost { defaults: RetryPolicy::default(), loss_limit: 10, message: message.to_owned() };
        assert!(matches!(bench.end(&grant, end).await, Ended::Retrying { .. }));
        let told = harness.history(job).await.pop().and_then(|lease| lease.failure).expect("told");
        assert_eq!(told, Failure::new(FailureKind::System, "lease_lost", message));
    }
}

// -- cleanup that must wait ---------------------------------------------------------------------------

async fn postpone(bench: &Bench<'_>, authority: &Authority) -> Postponed {
    let delay = Duration::from_mins(5);
    bench.store.postpone_recovery(authority, delay).await.expect("the store answers")
}

/// Until its time has come nobody takes it over; what it had, it keeps.
pub async fn a_postponed_recovery_waits_for_its_time(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let claimed = bench.held_container("n1").await;
    let (job, node) = (claimed.authority.job, claimed.placement.clone().expect("placed").node);
    bench.attach(&claimed, "c1").await;
    bench.renew(&claimed.authority).await;
    let slots = harness.node_slots(&bench.namespace, &node).await;
    harness.expire(job).await;
    let mut last = take_over(&bench, job).await;
    assert_eq!(last.cleanup_pending_for, None);
    for _ in 0..2 {
        let authority = last.grant.authority.clone();
        assert_eq!(postpone(&bench, &authority).await, Postponed::Done);
        // Given up for good.
        assert_eq!(bench.renew(&authority).await, Renewal::NotLive);
        assert_eq!(bench.reconcile(&authority).await, Reconciliation::Expired);
        assert_eq!(postpone(&bench, &authority).await, Postponed::NotLive);
        let RecoverAnswer { takeovers, next_expiry, backlog, oldest } = bench.recover(10).await;
        assert!(takeovers.is_empty());
        let next = next_expiry.expect("it is to be looked at again");
        assert!(next <= Duration::from_mins(5) && !next.is_zero(), "{next:?}");
        assert_eq!((backlog, oldest.is_some()), (1, true));
        let view = bench.view(job).await;
        assert_eq!((view.state, view.container), (JobState::Running, Some(id("c1"))));
        assert_eq!(harness.node_slots(&bench.namespace, &node).await, slots);
        harness.end_postponement(job).await;
        last = take_over(&bench, job).await;
        assert!(last.cleanup_pending_for.is_some_and(|pending| pending < LAG));
        assert_eq!((last.claim_epoch, last.grant.attempt), (claimed.authority.epoch, 1));
        assert_eq!((last.container.clone(), last.started), (Some(id("c1")), true));
    }
    assert_eq!(bench.view(job).await.failures, [0; 3]);
    // A new claim has nothing to do with it.
    bench.end(&last.grant, lost(10, 10)).await;
    bench.requeue(job).await;
    bench.claim(job).await;
    harness.expire(job).await;
    assert_eq!(take_over(&bench, job).await.cleanup_pending_for, None);
}

/// What waits takes nobody's place.
pub async fn a_postponed_recovery_delays_no_other(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (waits, other) = (bench.held().await, bench.held().await);
    harness.expire(waits.authority.job).await;
    let taken = take_over(&bench, waits.authority.job).await;
    assert_eq!(postpone(&bench, &taken.grant.authority).await, Postponed::Done);
    harness.expire(other.authority.job).await;
    let answer = bench.recover(1).await;
    assert_eq!(answer.takeovers[0].grant.authority.job, other.authority.job);
    assert_eq!(answer.backlog, 1);
}

/// L2: only the live holder may.
pub async fn only_the_holder_postpones_a_recovery(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let mine = grant.authority.clone();
    let before = bench.picture(mine.job).await;
    let stranger = claimant(&bench.namespace, "worker-c");
    for wrong in [
        Authority { token: LeaseToken::generate(), ..mine.clone() },
        Authority { owner: stranger, ..mine.clone() },
        Authority { job: JobId(mine.job.0 + 1000), ..mine.clone() },
    ] {
        assert_eq!(postpone(&bench, &wrong).await, Postponed::NotLive);
    }
    assert_eq!(bench.picture(mine.job).await, before);
    harness.expire(mine.job).await;
    let before = bench.picture(mine.job).await;
    assert_eq!(postpone(&bench, &mine).await, Postponed::NotLive);
    assert_eq!(bench.picture(mine.job).await, before);
    let taken = take_over(&bench, mine.job).await;
    assert_eq!(bench.end(&taken.grant, complete()).await, Ended::Terminal(JobState::Completed));
    assert_eq!(postpone(&bench, &taken.grant.authority).await, Postponed::NotLive);
}
