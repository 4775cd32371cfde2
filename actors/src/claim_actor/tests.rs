use super::*;
use crate::{
    domain::{JobId, JobState},
    fence::Hold,
    fixtures::{Rig, RigSettings, done, eventually, paused, submit, takes, work},
    testing::{Fate, MemoryStore, Operation},
};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn instant() -> crate::fixtures::Work {
    work(|_, _| async { done() })
}

fn rig_with(jobs: usize, concurrency: u32, work: crate::fixtures::Work) -> (Rig, Vec<JobId>) {
    let memory = MemoryStore::new();
    let jobs = (0..jobs).map(|_| submit(&memory)).collect();
    (Rig::on(memory, RigSettings { concurrency, ..RigSettings::default() }, work), jobs)
}

fn all(rig: &Rig, jobs: &[JobId], state: JobState) -> bool {
    jobs.iter().all(|job| rig.state(*job) == state)
}

#[test]
fn a_hint_is_claimed_and_started_without_any_wait() {
    paused(async {
        let rig = Rig::new(takes(s(1)));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = Instant::now();
        let job = rig.submit();
        rig.until_running(job).await;
        // (The test itself looks each 5 ms.)
        assert!(rig.run_of(job).began - before < Duration::from_millis(2));
    });
}

#[test]
fn a_lost_hint_only_delays_until_the_next_poll() {
    paused(async {
        let rig = Rig::new(takes(s(1)));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let job = submit(&rig.memory); // and nobody is told
        let before = Instant::now();
        rig.until_running(job).await;
        assert!(before.elapsed() <= s(2).mul_f64(1.26), "{:?}", before.elapsed());
    });
}

#[test]
fn a_full_answer_is_followed_by_the_next_claim_at_once() {
    paused(async {
        let (rig, jobs) = rig_with(500, 64, instant());
        let before = Instant::now();
        eventually(s(5), "all completed", || all(&rig, &jobs, JobState::Completed)).await;
        assert!(before.elapsed() < Duration::from_millis(300), "no poll in between: {:?}", before.elapsed());
        assert!(rig.net.calls(Operation::Claim) < 60, "and not one by one");
        rig.until_quiet().await;
    });
}

#[test]
fn no_more_is_claimed_than_can_run_and_health_says_why() {
    paused(async {
        let (rig, jobs) = rig_with(10, 3, takes(s(10)));
        eventually(s(1), "three run", || rig.runs().len() == 3).await;
        tokio::time::sleep(s(5)).await;
        assert_eq!(rig.memory.running().len(), 3, "nothing is leased that waits here");
        let health = rig.worker.health();
        assert_eq!(health.not_claiming, Some(NotClaiming::NoFreePermit));
        assert_eq!((health.permits.active, health.permits.free), (3, 0));
        let claims = rig.net.calls(Operation::Claim);
        tokio::time::sleep(s(4)).await;
        assert_eq!(rig.net.calls(Operation::Claim), claims, "with no permit free it does not even ask");
        eventually(s(60), "all completed", || all(&rig, &jobs, JobState::Completed)).await;
        rig.until_quiet().await;
        assert_eq!(rig.worker.health().not_claiming, None);
        assert!(jobs.iter().all(|job| rig.view(*job).attempt == 1), "CL-13: one attempt each");
    });
}

/// L10: whatever is lost on the way of a claim, each job is run once.
#[test]
fn a_claim_whose_answer_is_lost_is_asked_again_under_its_command_id() {
    for fates in [
        vec![Fate::AnswerLost],
        vec![Fate::AnswerLost, Fate::RequestLost, Fate::AnswerLost, Fate::Refused],
        vec![Fate::Silent],
        vec![Fate::Silent, Fate::Late(s(60)), Fate::AnswerLost],
        vec![Fate::RequestLost],
    ] {
        paused(async {
            let memory = MemoryStore::new();
            let jobs: Vec<JobId> = (0..4).map(|_| submit(&memory)).collect();
            let rig = Rig::on(memory, RigSettings::default(), takes(s(1)));
            rig.net.script(Operation::Claim, fates.clone());
            eventually(s(1), "the permits await the replay", || {
                rig.permits().awaiting_replay == 4 || fates[0] == Fate::Silent
            })
            .await;
            eventually(s(60), "all completed", || all(&rig, &jobs, JobState::Completed)).await;
            rig.until_quiet().await;
            assert_eq!(rig.runs().len(), 4, "{fates:?}: each once");
            assert!(jobs.iter().all(|job| rig.view(*job).attempt == 1), "{fates:?}");
        });
    }
}

#[test]
fn a_claim_that_surely_failed_gives_its_permits_back_and_waits_a_little() {
    paused(async {
        let (rig, jobs) = rig_with(1, 4, takes(s(1)));
        rig.net.script(Operation::Claim, std::iter::repeat_n(Fate::Refused, 5));
        eventually(s(1), "it was refused", || rig.worker.health().tally.claims_failed > 0).await;
        assert_eq!(rig.permits().free, 4);
        let reason = rig.worker.health().not_claiming;
        assert!(matches!(reason, Some(NotClaiming::Store(_))), "{reason:?}");
        let asked = Instant::now();
        rig.until_state(jobs[0], JobState::Completed).await;
        assert!(asked.elapsed() > s(1) + Duration::from_millis(700), "with growing waits");
    });
}

#[test]
fn while_claims_are_unknown_no_permit_is_lost_and_none_is_used_twice() {
    paused(async {
        let (rig, jobs) = rig_with(20, 4, takes(s(1)));
        rig.net.script(Operation::Claim, std::iter::repeat_n(Fate::AnswerLost, 6));
        eventually(s(300), "all completed", || {
            let counts = rig.permits();
            assert_eq!(counts.total(), 4);
            let running = rig.memory.running();
            assert!(
                running.len() <= 4,
                "never more leases than permits: {running:?} {counts:?} {:?}",
                rig.runs()
            );
            all(&rig, &jobs, JobState::Completed)
        })
        .await;
        rig.until_quiet().await;
    });
}

/// "An unknown claim answer, or a dead ClaimActor": killed in the middle of a claim, its successor asks again.
#[test]
fn a_claimer_that_dies_in_the_middle_of_a_claim_leaves_it_to_its_successor() {
    paused(async {
        let settings = RigSettings {
            panics: vec![(Operation::Claim, 1), (Operation::Claim, 3)],
            ..RigSettings::default()
        };
        let memory = MemoryStore::new();
        let jobs: Vec<JobId> = (0..8).map(|_| submit(&memory)).collect();
        let rig = Rig::on(memory, settings, takes(s(1)));
        eventually(s(60), "all completed", || {
            assert_eq!(rig.permits().total(), 4);
            all(&rig, &jobs, JobState::Completed)
        })
        .await;
        rig.until_quiet().await;
        assert_eq!(rig.runs().len(), 8);
        let claimer = rig.worker.health().loops.into_iter().find(|l| l.name == "claim").expect("one");
        assert_eq!(claimer.deaths, 2);
    });
}

/// SH-05: the answer comes after the drain began; what it grants is given back at once, and costs nothing.
#[test]
fn a_grant_that_arrives_during_a_drain_is_given_back_untouched() {
    for fates in [vec![Fate::Late(Duration::from_millis(500))], vec![Fate::AnswerLost, Fate::AnswerLost]] {
        paused(async {
            let memory = MemoryStore::new();
            let jobs: Vec<JobId> = (0..3).map(|_| submit(&memory)).collect();
            let rig = Rig::on(memory, RigSettings::default(), takes(s(1)));
            rig.net.script(Operation::Claim, fates);
            eventually(s(1), "the claim is on its way", || rig.memory.running().len() == 3).await;
            let drained = rig.worker.drain(s(30)).await;
            assert!(drained.is_clean(), "{drained:?}");
            assert!(rig.runs().is_empty());
            for job in jobs {
                let view = rig.view(job);
                assert_eq!(view.state, JobState::Pending);
                let released = rig.memory.past_leases(job);
                assert_eq!((released.len(), released[0].how.as_str()), (1, "released"));
                assert_eq!(view.failures, [0, 0, 0]);
            }
        });
    }
}

#[test]
fn a_grant_of_a_job_that_is_still_in_hand_is_not_run_beside_it() {
    paused(async {
        // Somebody ends the lease while its handler runs, and the handler cannot be ended. The job is queued
        // again, and this worker is granted it again.
        type Kept = Mutex<Option<(Arc<Grant>, Hold)>>;
        let kept: Arc<Kept> = Arc::default();
        let keeper = Arc::clone(&kept);
        let keep = move |grant, lease: crate::work::LeaseContext| {
            let mut kept = keeper.lock().unwrap_or_else(PoisonError::into_inner);
            assert!(kept.is_none(), "run beside itself");
            *kept = Some((grant, lease.hold()));
            std::future::pending()
        };
        let rig = Rig::on(MemoryStore::new(), RigSettings::default(), work(keep));
        let job = rig.submit();
        rig.until_running(job).await;
        let authority = kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|(grant, _)| grant.authority.clone())
            .expect("it runs");
        let end = End::Release { delay: Duration::ZERO, reason: "somebody" };
        rig.memory.port().end(&authority, CommandId::generate(), &end).await.expect("the token is good");
        eventually(s(60), "its second grant is given back", || rig.memory.past_leases(job).len() >= 2).await;
        assert_eq!(rig.runs().len(), 1);
        eventually(s(60), "the first one is stuck", || rig.permits().stuck == 1).await;
        kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        eventually(s(60), "its permit is free", || rig.permits().stuck == 0).await;
    });
}
