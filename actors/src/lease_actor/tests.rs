use std::sync::{Mutex, PoisonError};

use crate::{
    domain::{ContainerSpec, Failure, FailureKind, JobDefinition, JobState, NewJob},
    error::Applied,
    fence::Hold,
    fixtures::{
        Rig, RigSettings, done, eventually, node_that_runs, noop, paused, planned_panic, submit, takes, work,
    },
    ports::Placement,
    runtime_node_actor::RunContainer,
    testing::{Fate, MemoryStore, Operation, Probe, StoreHarness, TestNode},
};

use super::*;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn timings(lease: u64, renew: u64) -> LeaseTimingsForTest {
    LeaseTimingsForTest { lease: s(lease), renew: s(renew) }
}

struct LeaseTimingsForTest {
    lease: Duration,
    renew: Duration,
}

impl LeaseTimingsForTest {
    fn rig(self) -> RigSettings {
        let mut settings = RigSettings::default();
        settings.timings.lease = self.lease;
        settings.timings.renew_interval = self.renew;
        settings.timings.safety_margin = self.lease / 10;
        settings.timings.store_timeout = self.lease / 10;
        settings.timings.check().expect("sound timings");
        settings
    }
}

// ---------------------------------------------------------------------------------------------------
// Before the work
// ---------------------------------------------------------------------------------------------------

#[test]
fn work_starts_only_after_the_immediate_renewal_is_confirmed() {
    paused(async {
        let rig = Rig::new(takes(s(1)));
        rig.net.script(Operation::Renew, [Fate::Refused, Fate::RequestLost, Fate::Late(s(1))]);
        let job = rig.submit();
        eventually(s(10), "three renewals were asked", || rig.net.calls(Operation::Renew) == 3).await;
        assert!(!rig.has_run(job), "not one of them is confirmed yet");
        rig.until_running(job).await;
        assert_eq!(rig.view(job).renewals, 1);
        rig.until_state(job, JobState::Completed).await;
        rig.until_quiet().await;
    });
}

/// CL-13: a grant that waited longer than its lease is refused by the renewal, and nothing starts.
#[test]
fn a_grant_that_expired_before_its_first_renewal_starts_nothing() {
    paused(async {
        let rig = Rig::new(takes(s(1)));
        rig.net.script(Operation::Renew, [Fate::RequestLost]);
        let job = rig.submit();
        eventually(s(1), "the first renewal is lost", || rig.net.calls(Operation::Renew) == 1).await;
        rig.memory.expire_lease(job);
        rig.until_quiet().await;
        assert!(!rig.has_run(job));
        assert_eq!(rig.worker.health().tally.renewals_not_live, 1);
        assert_eq!(rig.net.calls(Operation::End), 0, "and nothing is reported");
    });
}

#[test]
fn a_grant_whose_first_renewal_is_never_answered_is_left_to_reconciliation() {
    paused(async {
        let rig = Rig::new(takes(s(1)));
        rig.net.script(Operation::Renew, std::iter::repeat_n(Fate::RequestLost, 1000));
        let job = rig.submit();
        eventually(s(30), "it awaits reconciliation", || rig.permits().awaiting_reconciliation == 1).await;
        let renewals = rig.net.calls(Operation::Renew);
        rig.until_quiet().await;
        assert!(!rig.has_run(job));
        assert_eq!(rig.net.calls(Operation::Renew), renewals, "renewals have stopped for good");
    });
}

/// CL-15: a cancel that is acknowledged between the claim and the first renewal.
#[test]
fn a_cancel_before_the_first_renewal_ends_the_job_and_nothing_starts() {
    paused(async {
        let rig = Rig::new(takes(s(1)));
        rig.net.script(Operation::Renew, [Fate::RequestLost]);
        let job = rig.submit();
        eventually(s(1), "it is claimed", || rig.state(job) == JobState::Running).await;
        let _ = rig.memory.cancel(&noop().namespace, job, s(5));
        rig.until_state(job, JobState::Canceled).await;
        rig.until_quiet().await;
        assert!(!rig.has_run(job));
    });
}

// ---------------------------------------------------------------------------------------------------
// While the work runs
// ---------------------------------------------------------------------------------------------------

#[test]
fn a_running_job_is_renewed_at_every_interval_and_completes_once() {
    paused(async {
        let rig = Rig::new(takes(s(65)));
        let job = rig.submit();
        rig.until_state(job, JobState::Completed).await;
        rig.until_quiet().await;
        assert_eq!(rig.runs().len(), 1);
        assert_eq!(rig.net.calls(Operation::Renew), 7, "one before the start, six at 10 s each");
        assert_eq!(rig.worker.health().watched, 0, "the fence has let it go");
    });
}

#[test]
fn a_cancel_stops_the_work_at_the_hint_and_ends_the_job_as_canceled() {
    paused(async {
        let rig = Rig::new(takes(s(600)));
        let job = rig.submit();
        rig.until_running(job).await;
        let asked = Instant::now();
        let _ = rig.memory.cancel(&noop().namespace, job, s(5));
        rig.worker.cancel_is_requested(job);
        rig.until_state(job, JobState::Canceled).await;
        assert!(asked.elapsed() < s(1), "the hint saves the wait for the next renewal");
        assert_eq!(rig.run_of(job).stop, Some(StopReason::Canceled));
        rig.until_quiet().await;
    });
}

#[test]
fn a_cancel_without_a_hint_is_seen_at_the_next_renewal() {
    paused(async {
        let rig = Rig::new(takes(s(600)));
        let job = rig.submit();
        rig.until_running(job).await;
        let asked = Instant::now();
        let _ = rig.memory.cancel(&noop().namespace, job, s(5));
        rig.until_state(job, JobState::Canceled).await;
        assert!(asked.elapsed() <= s(11), "{:?}", asked.elapsed());
        rig.until_quiet().await;
    });
}

#[test]
fn work_that_ignores_a_cancel_is_ended_by_force_after_its_grace() {
    paused(async {
        let rig = Rig::new(work(|_, _| std::future::pending()));
        let job = rig.submit();
        rig.until_running(job).await;
        let asked = Instant::now();
        let _ = rig.memory.cancel(&noop().namespace, job, s(5));
        rig.worker.cancel_is_requested(job);
        rig.until_state(job, JobState::Canceled).await;
        assert!(asked.elapsed() >= s(3) && asked.elapsed() < s(4), "{:?}", asked.elapsed());
        rig.until_quiet().await;
    });
}

/// RN-11
#[test]
fn a_job_that_runs_longer_than_its_timeout_is_stopped_and_fails_as_timeout() {
    paused(async {
        let memory = MemoryStore::new();
        let job = NewJob { timeout_ms: Some(3000), ..noop() };
        let job = memory.submit_job(&job).expect("a plain job").job;
        let rig = Rig::on(memory, RigSettings::default(), takes(s(30)));
        rig.until_state(job, JobState::Failed).await;
        assert_eq!(rig.view(job).failure_code.as_deref(), Some("timeout"));
        let run = rig.run_of(job);
        assert_eq!(run.stop, Some(StopReason::TimedOut));
        let took = run.ended.expect("it ended") - run.began;
        assert!(took >= s(3) && took < s(4), "{took:?}");
        rig.until_quiet().await;
    });
}

#[test]
fn a_panic_in_the_work_fails_that_job_with_its_text_and_no_other() {
    paused(async {
        let memory = MemoryStore::new();
        let first = submit(&memory);
        let others: Vec<JobId> = (0..3).map(|_| submit(&memory)).collect();
        let rig = Rig::on(
            memory,
            RigSettings::default(),
            work(move |grant, lease| async move {
                assert!(grant.authority.job != first || grant.attempt > 1, "no {} today", "work");
                takes(s(20))(grant, lease).await
            }),
        );
        for job in &others {
            rig.until_state(*job, JobState::Completed).await;
        }
        let ended = rig.memory.past_leases(first);
        assert_eq!(ended[0].how, "retrying", "a panic is a SYSTEM failure, and tries are left");
        let failure = ended[0].failure.clone().expect("why it failed");
        assert_eq!((failure.kind, failure.code.as_str()), (FailureKind::System, "panic"));
        assert!(failure.message.contains("no work today"), "{}", failure.message);
        rig.until_state(first, JobState::Completed).await;
        rig.until_quiet().await;
    });
}

// ---------------------------------------------------------------------------------------------------
// Lost renewals, lost leases
// ---------------------------------------------------------------------------------------------------

/// RN-01: the call hangs; there is room for another one before the work must stop.
#[test]
fn a_hung_renewal_is_asked_again_and_the_work_goes_on() {
    paused(async {
        let rig = Rig::new(takes(s(40)));
        rig.net.script(Operation::Renew, [Fate::Fine, Fate::Silent]);
        let job = rig.submit();
        rig.until_state(job, JobState::Completed).await;
        assert_eq!(rig.runs().len(), 1);
        rig.until_quiet().await;
    });
}

/// RN-01, RN-05, L5: renewals that hang, fail or say nothing valid for longer than the lease. The work is
/// dead before the database's expiry; nothing is reported; the permit is freed only after the expiry.
#[test]
fn work_that_cannot_be_renewed_is_dead_before_its_lease_expires() {
    for fate in [Fate::Silent, Fate::Refused, Fate::RequestLost, Fate::Late(s(100))] {
        paused(async {
            let rig = Rig::new(takes(s(600)));
            rig.net.script(Operation::Renew, [Fate::Fine]);
            rig.net.script(Operation::Renew, std::iter::repeat_n(fate, 2000));
            let job = rig.submit();
            rig.until_running(job).await;
            let expires = Instant::now() + crate::fixtures::LEASE;
            eventually(s(60), "the work has ended", || rig.run_of(job).ended.is_some()).await;
            let run = rig.run_of(job);
            assert_eq!(run.stop, Some(StopReason::LeaseLost), "{fate:?}");
            // The margin, and before it the time that it has for stopping: min(3 s, an eighth of the lease).
            assert!(run.ended.expect("it ended") <= expires - s(3) - s(3), "{fate:?}");
            if !matches!(fate, Fate::Silent | Fate::Late(_)) {
                // (Those two reach the store, so the expiry there moves on.)
                assert_eq!(rig.permits().awaiting_reconciliation, 1, "{fate:?}: the store still says live");
            }
            rig.until_quiet().await;
            assert_eq!(rig.net.calls(Operation::End), 0, "{fate:?}: nothing was reported");
            assert_eq!(rig.state(job), JobState::Running, "{fate:?}: left to recovery");
        });
    }
}

/// The deadline is counted from before the request was sent, however late its answer comes: what takes effect
/// at once and is answered after 1.5 s gives no second more.
#[test]
fn a_late_answer_does_not_move_the_deadline_past_its_request() {
    paused(async {
        let rig = Rig::new(work(|_, _| std::future::pending()));
        rig.net.script(Operation::Renew, [Fate::Fine, Fate::Late(Duration::from_millis(1500))]);
        rig.net.script(Operation::Renew, std::iter::repeat_n(Fate::RequestLost, 2000));
        let job = rig.submit();
        rig.until_running(job).await;
        eventually(s(60), "the work has ended", || rig.run_of(job).ended.is_some()).await;
        let run = rig.run_of(job);
        let lived = run.ended.expect("it ended") - run.began;
        let from_the_request = s(10) + crate::fixtures::LEASE - s(3);
        assert!(lived <= from_the_request, "{lived:?}");
        assert!(lived > from_the_request - Duration::from_millis(100), "killed at the deadline: {lived:?}");
        rig.until_quiet().await;
    });
}

/// RN-05: an answer that names no time ahead is no renewal.
#[test]
fn an_answer_without_time_left_does_not_count_as_renewed() {
    paused(async {
        let rig = Rig::new(takes(s(600)));
        let job = rig.submit();
        rig.until_running(job).await;
        // The store extends nothing past a deadline of the job, and says so with ever less time.
        rig.memory.pass_run_deadline(job).await;
        eventually(s(60), "the work has ended", || rig.run_of(job).ended.is_some()).await;
        let run = rig.run_of(job);
        assert_eq!(run.stop, Some(StopReason::LeaseLost));
        assert!(run.ended.expect("it ended") - run.began < s(30));
        rig.until_quiet().await;
    });
}

/// RN-13: renew 1 s, lease 5 s: one lost renewal, then two in a row.
#[test]
fn one_and_two_lost_renewals_in_a_row_cost_nothing() {
    for fate in [Fate::RequestLost, Fate::AnswerLost, Fate::Silent] {
        paused(async {
            let rig = Rig::with(timings(5, 1).rig(), takes(s(20)));
            rig.net.script(Operation::Renew, [Fate::Fine, Fate::Fine, fate, Fate::Fine, fate, fate]);
            let job = rig.submit();
            rig.until_state(job, JobState::Completed).await;
            assert_eq!((rig.runs().len(), rig.view(job).attempt), (1, 1), "{fate:?}");
            assert_eq!(rig.worker.health().tally.leases_lost, 0, "{fate:?}");
            rig.until_quiet().await;
        });
    }
}

/// L2, L5: told that the lease is not live, the work is ended at once and nothing is reported.
#[test]
fn a_lease_that_somebody_else_ended_kills_the_work_at_once() {
    paused(async {
        let rig = Rig::new(work(|_, _| std::future::pending()));
        let job = rig.submit();
        rig.until_running(job).await;
        rig.memory.expire_lease(job);
        let before = Instant::now();
        eventually(s(60), "the work has ended", || rig.run_of(job).ended.is_some()).await;
        assert!(before.elapsed() <= s(11), "at the next renewal");
        assert_eq!(rig.run_of(job).stop, Some(StopReason::LeaseLost));
        rig.until_quiet().await;
        assert_eq!(rig.net.calls(Operation::End), 0);
    });
}

// ---------------------------------------------------------------------------------------------------
// The report
// ---------------------------------------------------------------------------------------------------

/// L10: the answer to the end is lost; the same command is asked again and reports what is recorded.
#[test]
fn an_end_whose_answer_is_lost_is_repeated_under_its_command_id() {
    for fates in [
        vec![Fate::AnswerLost],
        vec![Fate::RequestLost, Fate::AnswerLost, Fate::Refused],
        vec![Fate::Silent],
        vec![Fate::Silent, Fate::Late(s(1))],
    ] {
        paused(async {
            let rig = Rig::new(takes(s(1)));
            let lost = u32::try_from(fates.len()).expect("a few");
            rig.net.script(Operation::End, fates);
            let job = rig.submit();
            rig.until_state(job, JobState::Completed).await;
            rig.until_quiet().await;
            let history = rig.memory.past_leases(job);
            assert_eq!((history.len(), rig.runs().len()), (1, 1), "ended once, run once");
            assert!(rig.net.calls(Operation::End) > lost.min(1));
            assert_eq!(rig.net.calls(Operation::Reconcile), 0, "no need to reconcile");
            let tally = rig.worker.health().tally;
            assert_eq!(
                (tally.jobs_completed, tally.reports_not_live),
                (1, 0),
                "the recorded outcome is told"
            );
        });
    }
}

/// SH-07: renewals go on while the end is unconfirmed, but for at most one lease; then the store is only
/// asked, and the permit is held until it says that the lease is over.
#[test]
fn an_end_that_is_never_confirmed_is_given_up_after_a_lease_and_reconciled() {
    paused(async {
        let rig = Rig::new(takes(s(1)));
        rig.net.script(Operation::End, std::iter::repeat_n(Fate::RequestLost, 5000));
        let job = rig.submit();
        rig.until_running(job).await;
        let began = Instant::now();
        eventually(s(120), "it awaits reconciliation", || rig.permits().awaiting_reconciliation == 1).await;
        let gave_up = began.elapsed();
        assert!(gave_up >= s(30) && gave_up <= s(33), "after one lease: {gave_up:?}");
        let renewals = rig.net.calls(Operation::Renew);
        assert!(renewals >= 4, "renewed meanwhile: {renewals}");
        rig.until_quiet().await;
        assert_eq!(rig.net.calls(Operation::Renew), renewals, "renewals have stopped for good");
        assert!(rig.net.calls(Operation::Reconcile) > 0);
    });
}

/// SH-07 (a): the end was applied, every answer to it lost; reconciliation reads it and frees the permit.
#[test]
fn reconciliation_frees_the_permit_of_an_end_that_was_applied_unseen() {
    paused(async {
        let rig = Rig::new(takes(s(1)));
        rig.net.script(Operation::End, std::iter::repeat_n(Fate::AnswerLost, 5000));
        let job = rig.submit();
        rig.until_state(job, JobState::Completed).await;
        rig.until_quiet().await;
        assert_eq!(rig.memory.past_leases(job).len(), 1);
    });
}

#[test]
fn a_report_that_the_store_refuses_for_good_becomes_a_failure_and_is_not_repeated_for_ever() {
    paused(async {
        let rig = Rig::new(work(|_, _| async {
            WorkOutcome::Completed { exit_code: None, output: Some("{ this is no JSON".to_owned()) }
        }));
        let job = rig.submit();
        eventually(s(60), "its first try has ended", || !rig.memory.past_leases(job).is_empty()).await;
        let ended = rig.memory.past_leases(job).remove(0);
        assert_eq!(ended.failure.map(|f| f.code).as_deref(), Some("report_refused"));
    });
}

// ---------------------------------------------------------------------------------------------------
// Stuck work, dead actors
// ---------------------------------------------------------------------------------------------------

#[test]
fn work_that_outlives_its_kill_keeps_its_permit_until_it_ends() {
    paused(async {
        let kept: Arc<Mutex<Option<Hold>>> = Arc::default();
        let keeper = Arc::clone(&kept);
        let memory = MemoryStore::new();
        let job = NewJob { timeout_ms: Some(1000), ..noop() };
        let job = memory.submit_job(&job).expect("a plain job").job;
        // What a handler that blocks a thread looks like from here: its hold is not given back.
        let rig = Rig::on(
            memory,
            RigSettings::default(),
            work(move |_, lease| {
                *keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease.hold());
                std::future::pending()
            }),
        );
        eventually(s(60), "it counts as stuck", || rig.permits().stuck == 1).await;
        assert!(!rig.worker.health().is_good());
        tokio::time::sleep(s(120)).await;
        assert_eq!(rig.permits().stuck, 1, "nothing frees it while it goes on");
        assert!(rig.is_expired(job), "the store extends it no more, so that recovery can take the job");
        kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        rig.until_quiet().await;
        assert!(rig.worker.health().is_good());
    });
}

/// SH-12, L8: the actor dies in the middle of each of its calls. Only its job is harmed: the work is told
/// that its lease is lost, the permit awaits reconciliation and is freed when the lease has expired.
#[test]
fn the_death_of_a_lease_actor_harms_only_its_job() {
    for (operation, number) in
        [(Operation::Renew, 1), (Operation::Renew, 5), (Operation::Renew, 7), (Operation::End, 1)]
    {
        paused(async {
            let settings = RigSettings { panics: vec![(operation, number)], ..RigSettings::default() };
            let memory = MemoryStore::new();
            let jobs: Vec<JobId> = (0..4).map(|_| submit(&memory)).collect();
            let rig = Rig::on(memory, settings, takes(s(25)));
            let completed = || jobs.iter().filter(|job| rig.state(**job) == JobState::Completed).count();
            eventually(s(300), "the others complete", || completed() == 3).await;
            rig.until_quiet().await;
            assert_eq!(completed(), 3, "{operation:?} {number}");
            assert_eq!(rig.worker.health().leases, 0);
            for run in rig.runs() {
                assert!(run.ended.is_some(), "{operation:?} {number}: work goes on without an actor");
            }
            // And the worker is as good as before.
            let next = rig.submit();
            rig.until_state(next, JobState::Completed).await;
        });
    }
}

#[test]
fn done_at_once_costs_one_renewal_and_one_end() {
    paused(async {
        let rig = Rig::new(work(|_, _| async { done() }));
        let job = rig.submit();
        let before = Instant::now();
        rig.until_state(job, JobState::Completed).await;
        assert!(before.elapsed() < Duration::from_millis(20), "no wait anywhere: {:?}", before.elapsed());
        assert_eq!((rig.net.calls(Operation::Renew), rig.net.calls(Operation::End)), (1, 1));
    });
}

// ---------------------------------------------------------------------------------------------------
// Containers
// ---------------------------------------------------------------------------------------------------

async fn container_rig(start_node: crate::nodes::StartNode) -> (Rig, JobId) {
    let memory = MemoryStore::new();
    memory.register_node(&TestNode::new(&noop().namespace, "n-1", 2)).await;
    let spec = ContainerSpec { image: "busybox".to_owned(), ..ContainerSpec::default() };
    let job = NewJob::ad_hoc(JobDefinition::Container(spec));
    let job = memory.submit_job(&job).expect("a plain job").job;
    let settings = RigSettings { start_node, ..RigSettings::default() };
    (Rig::on(memory, settings, work(|_, _| async { panic!("no handler runs here") })), job)
}

#[test]
fn a_container_is_run_by_the_actor_of_the_node_that_the_claim_named() {
    paused(async {
        let node = Probe::answering_later(|message: RunContainer| async move {
            let placement = message.lease.grant().placement.clone().expect("placed by the claim");
            assert_eq!(placement.node.as_str(), "n-1");
            tokio::time::sleep(s(25)).await;
            WorkOutcome::Failed(Failure::new(FailureKind::User, "3", "exit code 3").with_exit_code(3))
        });
        let recipient = node.recipient.clone();
        let start = move |_: &Placement| Ok(node_that_runs(recipient.clone()));
        let (rig, job) = container_rig(Box::new(start)).await;
        rig.until_state(job, JobState::Failed).await;
        rig.until_quiet().await;
        assert_eq!((node.asked(), rig.view(job).failure_code.as_deref()), (1, Some("3")));
    });
}

struct KillSwitch(Arc<std::sync::atomic::AtomicU32>);

impl crate::fence::Kill for KillSwitch {
    fn kill(&self) -> futures_util::future::BoxFuture<'static, Result<(), String>> {
        let call = self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Box::pin(async move { if call == 0 { Err("the engine is away".to_owned()) } else { Ok(()) } })
    }
}

/// A node actor that dies with a container in hand: the fence kills the container, and only when that is
/// confirmed is the attempt over; the next job gets a new node actor.
#[test]
fn a_container_whose_node_actor_dies_is_killed_before_its_attempt_counts_as_over() {
    paused(async {
        let kills = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let (at_kill, started) = (Arc::clone(&kills), Arc::new(std::sync::atomic::AtomicU32::new(0)));
        let starts = Arc::clone(&started);
        let (rig, job) = container_rig(Box::new(move |_| {
            let first = starts.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
            let kills = Arc::clone(&at_kill);
            let node = Probe::answering(move |message: RunContainer| {
                if first {
                    let kill = Arc::new(KillSwitch(Arc::clone(&kills)));
                    let _guard = message.lease.guard_container(kill, s(10));
                    planned_panic("in the node actor");
                }
                done()
            });
            Ok(node_that_runs(node.recipient))
        }))
        .await;
        eventually(s(100_000), "its first attempt is over", || !rig.memory.past_leases(job).is_empty()).await;
        let failure = rig.memory.past_leases(job)[0].failure.clone().expect("why");
        assert_eq!((failure.kind, failure.code.as_str()), (FailureKind::System, "node_actor_died"));
        let kills = kills.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(kills, 2, "one failed, one confirmed, and only then the report");
        rig.until_state(job, JobState::Completed).await;
        assert_eq!(started.load(std::sync::atomic::Ordering::SeqCst), 2);
        rig.until_quiet().await;
    });
}

#[test]
fn a_node_that_cannot_be_used_fails_the_attempt_as_system() {
    paused(async {
        let (rig, job) = container_rig(Box::new(|_| {
            Err(crate::error::EngineError {
                operation: "connect",
                kind: crate::error::EngineErrorKind::BadRequest,
                applied: Applied::No,
                message: "the endpoint is no address".to_owned(),
                exit_code: None,
            })
        }))
        .await;
        rig.until_state(job, JobState::Failed).await;
        let tries = rig.memory.past_leases(job);
        assert_eq!(tries.len(), 3, "as often as SYSTEM failures are tried");
        assert_eq!(rig.view(job).failure_code.as_deref(), Some("node_unusable"));
        rig.until_quiet().await;
    });
}

// ---------------------------------------------------------------------------------------------------
// Work that ends its lease itself
// ---------------------------------------------------------------------------------------------------

/// Ends the lease in a "transaction", which is committed or not; then goes on for `lingers`, and returns `outcome`.
fn completes_itself(
    memory: &MemoryStore,
    commits: bool,
    lingers: Duration,
    outcome: fn() -> WorkOutcome,
) -> crate::fixtures::Work {
    let store = memory.port();
    work(move |grant, lease| {
        let store = Arc::clone(&store);
        async move {
            let command = crate::domain::CommandId::generate();
            lease.pledge(command);
            if commits {
                let end = crate::ports::End::Complete { exit_code: None, output: Some("7".to_owned()) };
                store.end(&grant.authority, command, &end).await.expect("it answers");
            }
            tokio::time::sleep(lingers).await;
            outcome()
        }
    })
}

#[test]
fn a_job_that_its_work_completed_is_completed_whatever_the_work_returns() {
    // An error: the answer to its commit was lost.
    let lost = || WorkOutcome::Failed(Failure::new(FailureKind::User, "handler_error", "connection closed"));
    for outcome in [done, lost] {
        paused(async move {
            let memory = MemoryStore::new();
            // It goes on for longer than until the next renewal, which finds no lease any more.
            let work = completes_itself(&memory, true, s(12), outcome);
            let rig = Rig::on(memory, RigSettings::default(), work);
            let job = rig.submit();
            rig.until_state(job, JobState::Completed).await;
            rig.until_quiet().await;
            let tally = rig.worker.health().tally;
            assert_eq!((tally.jobs_completed, tally.leases_lost, tally.reports_not_live), (1, 0, 0));
            assert_eq!(rig.permits().free, rig.permits().total(), "the permit is free");
            assert_eq!(rig.runs().len(), 1);
        });
    }
}

#[test]
fn a_job_whose_completion_was_never_committed_is_not_completed() {
    paused(async {
        let memory = MemoryStore::new();
        let work = completes_itself(&memory, false, Duration::ZERO, done);
        let rig = Rig::on(memory, RigSettings::default(), work);
        let job = rig.submit();
        eventually(s(60), "it has failed", || rig.worker.health().tally.jobs_failed >= 1).await;
        assert_ne!(rig.state(job), JobState::Completed);
        let tally = rig.worker.health().tally;
        assert_eq!((tally.jobs_completed, tally.leases_lost), (0, 0));
    });
}

// ---------------------------------------------------------------------------------------------------
// Work that goes on elsewhere, is final, or gives up
// ---------------------------------------------------------------------------------------------------

#[test]
fn work_that_ended_its_lease_to_go_on_elsewhere_frees_its_permit_under_the_same_command() {
    paused(async {
        let memory = MemoryStore::new();
        let store = memory.port();
        let goes_on = work(move |grant, lease| {
            let store = Arc::clone(&store);
            async move {
                let end = crate::ports::End::Reschedule {
                    route: Some(crate::domain::Route::handler("elsewhere")),
                    delay: Duration::ZERO,
                    payload: None,
                    wake: Vec::new(),
                    publish: None,
                };
                let command = crate::domain::CommandId::generate();
                lease.pledge(command);
                store.end(&grant.authority, command, &end).await.expect("it answers");
                WorkOutcome::GoesOn { end: Box::new(end) }
            }
        });
        let rig = Rig::on(memory, RigSettings::default(), goes_on);
        let job = rig.submit();
        eventually(s(60), "it has gone on", || rig.view(job).route.0 == "elsewhere").await;
        rig.until_quiet().await;
        let tally = rig.worker.health().tally;
        assert_eq!((tally.jobs_released, tally.reports_not_live, tally.leases_lost), (1, 0, 0));
        assert_eq!(rig.view(job).failures, [0, 0, 0]);
    });
}

#[test]
fn a_failure_for_good_is_final_although_tries_are_left() {
    paused(async {
        let failure = || Failure::new(FailureKind::System, "recipe", "its own policies have decided");
        let rig = Rig::new(work(move |_, _| async move { WorkOutcome::FailedForGood(failure()) }));
        let job = rig.submit();
        rig.until_state(job, JobState::Failed).await;
        rig.until_quiet().await;
        assert_eq!(rig.runs().len(), 1);
    });
}

#[test]
fn work_that_gives_up_reports_nothing_and_its_lease_is_renewed_no_more() {
    paused(async {
        let rig = Rig::new(work(|_, _| async { WorkOutcome::Abandoned }));
        let job = rig.submit();
        eventually(s(30), "it awaits reconciliation", || rig.permits().awaiting_reconciliation == 1).await;
        let renewals = rig.net.calls(Operation::Renew);
        eventually(s(120), "its lease has run out", || rig.is_expired(job)).await;
        rig.until_quiet().await;
        assert_eq!(rig.net.calls(Operation::Renew), renewals);
        assert_eq!(rig.net.calls(Operation::End), 0);
    });
}
