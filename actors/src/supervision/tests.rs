use tokio::time::Instant;

use super::*;
use crate::{
    domain::{JobState, Namespace},
    fixtures::{Rig, RigSettings, Work, done, eventually, noop, paused, planned_panic, submit, takes, work},
    testing::{Fate, MemoryStore, Odds, Operation},
    work::WorkOutcome,
};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn short_lease() -> RigSettings {
    let mut settings = RigSettings::default();
    settings.timings.lease = s(5);
    settings.timings.renew_interval = s(1);
    settings.timings.safety_margin = Duration::from_millis(500);
    settings.timings.store_timeout = Duration::from_millis(500);
    settings
}

// ---------------------------------------------------------------------------------------------------
// Drain
// ---------------------------------------------------------------------------------------------------

/// SH-01: renewals go on until the last report is confirmed.
#[test]
fn a_drain_renews_until_the_last_job_has_ended() {
    paused(async {
        let rig = Rig::with(short_lease(), takes(s(20)));
        let job = rig.submit();
        rig.until_running(job).await;
        tokio::time::sleep(s(1)).await;
        let before = Instant::now();
        let drained = rig.worker.drain(s(30)).await;
        assert!(drained.is_clean());
        assert!(before.elapsed() < s(20), "no longer than the work: {:?}", before.elapsed());
        let view = rig.view(job);
        assert_eq!((view.state, view.attempt), (JobState::Completed, 1));
        assert!(rig.net.calls(Operation::Renew) >= 20);
    });
}

/// SH-03: what ends by itself during the drain, well or badly, is recorded as it was.
#[test]
fn real_outcomes_during_a_drain_are_recorded() {
    paused(async {
        let outcomes: Work = work(|grant, _| async move {
            let id = grant.authority.job.0;
            tokio::time::sleep(s(1 + id.unsigned_abs() % 3)).await;
            match id % 3 {
                0 => done(),
                1 => WorkOutcome::Failed(crate::domain::Failure::new(
                    crate::domain::FailureKind::User,
                    "1",
                    "no",
                )),
                _ => WorkOutcome::Completed { exit_code: Some(0), output: Some("7".to_owned()) },
            }
        });
        let memory = MemoryStore::new();
        let jobs: Vec<JobId> = (0..3).map(|_| submit(&memory)).collect();
        let rig = Rig::on(memory, RigSettings::default(), outcomes);
        eventually(s(1), "all run", || rig.runs().len() == 3).await;
        assert!(rig.worker.drain(s(30)).await.is_clean());
        for job in jobs {
            let expected = if job.0 % 3 == 1 { JobState::Failed } else { JobState::Completed };
            assert_eq!(rig.state(job), expected, "{job}");
        }
    });
}

/// SH-05: no claim after the drain began; its time is bounded by what is in hand.
#[test]
fn a_drain_under_load_claims_nothing_more() {
    paused(async {
        let memory = MemoryStore::new();
        let jobs: Vec<JobId> = (0..2000).map(|_| submit(&memory)).collect();
        let rig = Rig::on(memory, RigSettings::default(), takes(Duration::from_millis(50)));
        let completed = || jobs.iter().filter(|job| rig.state(**job) == JobState::Completed).count();
        eventually(s(10), "it is in full swing", || completed() > 50).await;
        let claims = rig.net.calls(Operation::Claim);
        let before = Instant::now();
        assert!(rig.worker.drain(s(30)).await.is_clean());
        assert!(before.elapsed() < Duration::from_millis(200), "{:?}", before.elapsed());
        rig.worker.work_is_ready();
        tokio::time::sleep(s(10)).await;
        assert_eq!(rig.net.calls(Operation::Claim), claims, "a claim after the drain began");
        let left = jobs.iter().filter(|job| rig.state(**job) == JobState::Queued).count();
        assert_eq!(completed() + left, 2000, "each job is done or still queued");
        assert_eq!(rig.worker.health().not_claiming, Some(NotClaiming::Draining));
    });
}

#[test]
fn work_that_outlasts_the_grace_is_stopped_and_given_back_without_a_mark() {
    for (work, what) in [
        (takes(s(600)), "work that listens"),
        (work(|_, _| std::future::pending()), "work that does not listen"),
    ] {
        paused(async {
            let rig = Rig::new(work);
            let job = rig.submit();
            rig.until_running(job).await;
            let before = Instant::now();
            assert!(rig.worker.drain(s(5)).await.is_clean(), "{what}");
            assert!(before.elapsed() >= s(5) && before.elapsed() < s(10), "{what}: {:?}", before.elapsed());
            let view = rig.view(job);
            assert_eq!((view.state, view.failures), (JobState::Pending, [0, 0, 0]), "{what}");
            assert_eq!(rig.memory.past_leases(job)[0].how, "released", "{what}");
        });
    }
}

#[test]
fn a_drain_ends_in_time_also_when_the_store_is_gone() {
    paused(async {
        let rig = Rig::new(takes(s(600)));
        let job = rig.submit();
        rig.until_running(job).await;
        for operation in [Operation::Renew, Operation::End, Operation::Reconcile, Operation::Claim] {
            rig.net.script(operation, std::iter::repeat_n(Fate::Silent, 1000));
        }
        let before = Instant::now();
        let drained = rig.worker.drain(s(5)).await;
        assert!(before.elapsed() <= s(15), "{:?}", before.elapsed());
        assert!(!drained.is_clean());
        assert_eq!(drained.permits.total(), 4);
        assert!(rig.run_of(job).ended.is_some(), "the work is stopped all the same");
    });
}

#[test]
fn the_second_signal_stops_the_work_at_once_and_gives_it_back() {
    paused(async {
        let rig = Rig::new(work(|_, _| std::future::pending()));
        let job = rig.submit();
        rig.until_running(job).await;
        let worker = rig.worker.clone();
        let draining = actix_rt::spawn(async move { worker.drain(s(300)).await });
        tokio::time::sleep(s(2)).await;
        let before = Instant::now();
        assert!(rig.worker.stop_now().await.is_clean());
        assert!(before.elapsed() < s(2));
        assert_eq!(rig.state(job), JobState::Pending);
        assert!(draining.await.expect("it ends too").is_clean());
    });
}

/// A job whose cancel was requested is not given back for a retry by a drain.
#[test]
fn a_drain_ends_a_job_whose_cancel_was_requested_as_canceled() {
    paused(async {
        let rig = Rig::new(takes(s(600)));
        let job = rig.submit();
        rig.until_running(job).await;
        let _ = rig.memory.cancel(&Namespace::default(), job, s(5));
        assert!(rig.worker.drain(Duration::ZERO).await.is_clean());
        assert_eq!(rig.state(job), JobState::Canceled);
    });
}

// ---------------------------------------------------------------------------------------------------
// Death and health
// ---------------------------------------------------------------------------------------------------

/// SH-14: a panic in each loop in turn.
#[test]
fn each_loop_that_dies_is_rebuilt_and_the_worker_goes_on() {
    for which in ["claim", "dispatch", "reconcile"] {
        paused(async {
            let rig = Rig::new(takes(s(1)));
            let first = rig.submit();
            rig.until_state(first, JobState::Completed).await;
            let inner = &rig.worker.inner;
            match which {
                "claim" => inner.claim.kill(),
                "reconcile" => inner.reconcile.kill(),
                _ => inner.dispatch.as_ref().expect("it dispatches").kill(),
            }
            let alive = |want: SlotState| {
                let health = rig.worker.health();
                let found = health.loops.iter().find(|l| l.name == which).expect("known");
                assert_eq!(health.is_good(), found.state == SlotState::Alive, "never green with one dead");
                found.state == want
            };
            eventually(s(5), "it is dead", || alive(SlotState::Rebuilding)).await;
            eventually(s(5), "it is rebuilt", || alive(SlotState::Alive)).await;
            // A job that takes all three: dispatched, claimed, and reconciled after a lost end.
            rig.net.script(Operation::End, std::iter::repeat_n(Fate::AnswerLost, 5000));
            let later =
                crate::domain::NewJob { run_at: Some(chrono::DateTime::<chrono::Utc>::MAX_UTC), ..noop() };
            let later = rig.memory.submit_job(&later).expect("a plain job").job;
            crate::testing::StoreHarness::make_due(&rig.memory, later).await;
            rig.worker.work_is_waiting();
            rig.until_state(later, JobState::Completed).await;
            rig.until_quiet().await;
        });
    }
}

/// SH-14: never green with one loop dead, and the process ends.
#[test]
fn a_loop_that_keeps_dying_is_fatal() {
    paused(async {
        let panics = (1..100).map(|n| (Operation::Dispatch, n)).collect();
        let rig = Rig::with(RigSettings { panics, ..RigSettings::default() }, takes(s(1)));
        let fatal = tokio::time::timeout(s(60), rig.worker.fatal()).await.expect("fatal within a minute");
        assert_eq!(fatal, Fatal::KeepsDying("dispatch"));
        let health = rig.worker.health();
        assert!(!health.is_good(), "{health:?}");
        // The others go on until the process ends.
        let job = rig.submit();
        rig.until_state(job, JobState::Completed).await;
    });
}

#[test]
fn a_dispatcher_makes_due_jobs_queued_when_they_are_due() {
    paused(async {
        let rig = Rig::new(work(|_, _| async { done() }));
        tokio::time::sleep(s(1)).await;
        let begin = Instant::now();
        let jobs: Vec<JobId> = (1..=3)
            .map(|n| {
                let run_at = rig.memory.clock() + chrono::TimeDelta::milliseconds(n * 400);
                let job = crate::domain::NewJob { run_at: Some(run_at), ..noop() };
                rig.memory.submit_job(&job).expect("a plain job").job
            })
            .collect();
        rig.worker.work_is_waiting();
        for job in &jobs {
            rig.until_state(*job, JobState::Completed).await;
        }
        for (run, n) in rig.runs().iter().zip(1..) {
            let late = (run.began - begin).saturating_sub(Duration::from_millis(n * 400));
            assert!(late < Duration::from_millis(20), "job {n} is {late:?} late");
        }
    });
}

#[test]
fn a_hint_to_a_job_that_is_not_here_is_nothing() {
    paused(async {
        let rig = Rig::new(takes(s(3)));
        rig.worker.cancel_is_requested(JobId(404));
        let job = rig.submit();
        rig.until_state(job, JobState::Completed).await;
        rig.until_quiet().await;
    });
}

/// A flood of hints over a slow network: renewals still come back, and the lease is kept.
#[test]
fn a_flood_of_hints_costs_no_lease() {
    paused(async {
        let odds = Odds { latency: Duration::from_millis(1500), ..Odds::default() };
        let rig = Rig::with(RigSettings { odds, ..RigSettings::default() }, takes(s(60)));
        let job = rig.submit();
        rig.until_running(job).await;
        for _ in 0..600 {
            rig.worker.resync();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        rig.until_state(job, JobState::Completed).await;
        assert_eq!((rig.runs().len(), rig.worker.health().tally.leases_lost), (1, 0));
        assert!(
            rig.net.calls(Operation::Renew) < 200,
            "one after the other: {}",
            rig.net.calls(Operation::Renew)
        );
        rig.until_quiet().await;
    });
}

// ---------------------------------------------------------------------------------------------------
// Everything at once
// ---------------------------------------------------------------------------------------------------

/// L5, L6, L8, L10: requests and answers are lost at every call of the port, by seed, while jobs run and some
/// panic. Permits are conserved at every look; no job ever runs twice at once or without a lease; when the
/// network has healed, every job has ended or its lease has run out (recovery's part), and every permit is
/// free.
#[test]
fn by_seed_whatever_is_lost_permits_are_conserved_and_no_job_runs_twice_at_once() {
    // Jitter comes from outside the seed, so that one run may meet few faults; all of them together do not.
    let (mut completed, mut faults) = (0, 0);
    for seed in 0..24 {
        let (completed_now, faults_now) = paused(async move {
            let settings = RigSettings {
                seed,
                odds: Odds {
                    answer_lost: 15,
                    refused: 5,
                    request_lost: 10,
                    latency: Duration::from_millis(800),
                },
                concurrency: 6,
                ..short_lease()
            };
            let memory = MemoryStore::new();
            let jobs: Vec<JobId> = (0..40).map(|_| submit(&memory)).collect();
            let rig = Rig::on(
                memory,
                settings,
                work(|grant, lease| async move {
                    let id = grant.authority.job.0.unsigned_abs();
                    if id % 10 == 3 && grant.attempt == 1 {
                        planned_panic("in the work");
                    }
                    takes(Duration::from_millis(300 * (id % 12)))(grant, lease).await
                }),
            );
            for tick in 0..400 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let permits = rig.permits();
                assert_eq!(permits.total(), 6, "seed {seed}, tick {tick}: {permits:?}");
                assert_eq!(permits.stuck, 0, "seed {seed}, tick {tick}");
            }
            rig.net.heal();
            let settled = |job: &JobId| rig.state(*job).is_terminal() || rig.is_expired(*job);
            eventually(s(120), "every job has ended or expired", || jobs.iter().all(settled)).await;
            rig.until_quiet().await;

            let runs = rig.runs();
            for (i, run) in runs.iter().enumerate() {
                let ended = run.ended.unwrap_or_else(|| panic!("seed {seed}: {run:?} goes on"));
                for other in &runs[i + 1..] {
                    assert!(
                        other.job != run.job
                            || other.began >= ended
                            || run.began >= other.ended.expect("ended"),
                        "seed {seed}: {run:?} beside {other:?}"
                    );
                }
            }
            assert_eq!(rig.worker.health().leases, 0, "seed {seed}");
            let completed = jobs.iter().filter(|job| rig.state(**job) == JobState::Completed).count();
            (completed, rig.net.faults())
        });
        completed += completed_now;
        faults += faults_now;
    }
    assert!(completed > 24 * 20, "only {completed} of {} completed", 24 * 40);
    assert!(faults > 24 * 20, "{faults} faults are too few to mean anything");
}
