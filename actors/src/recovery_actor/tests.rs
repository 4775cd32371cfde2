use std::sync::PoisonError;

use super::*;
use crate::{
    domain::{ContainerSpec, FailureKind, JobDefinition, JobState, NewJob, Route},
    fence::Hold,
    fixtures::{LEASE, Rig, RigSettings, done, eventually, owner, paused, submit, takes, work},
    nodes::NodeAddress,
    ports::OpenClaim,
    runtime_node_actor::{Adoption, RecoverContainer, Recovered, RunContainer},
    testing::{Fate, MemoryStore, Odds, Operation, Probe, Probed, StoreHarness, TestNode},
    work::WorkOutcome,
};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn recovering(permits: u32) -> RigSettings {
    let mut settings = RigSettings::default();
    settings.recovery.permits = permits;
    settings
}

/// What another worker, which is dead, has claimed; with a first renewal, or killed before that.
async fn left_behind(memory: &MemoryStore, count: u32, renewed: bool) -> Vec<JobId> {
    for _ in 0..count {
        submit(memory);
    }
    claimed_by_another(memory, count, renewed).await
}

async fn claimed_by_another(memory: &MemoryStore, count: u32, renewed: bool) -> Vec<JobId> {
    let request = OpenClaim {
        owner: owner(),
        command: CommandId::generate(),
        repeat: false,
        routes: Arc::from([Route::handler("noop"), Route::container()]),
        limit: count,
        lease: LEASE,
        facts: None,
    };
    let port = memory.port();
    let grants = port.claim(&request).await.expect("the memory store answers").grants;
    assert_eq!(grants.len(), count as usize);
    for grant in grants.iter().filter(|_| renewed) {
        port.renew(&grant.authority).await.expect("the memory store answers");
    }
    grants.iter().map(|grant| grant.authority.job).collect()
}

/// A container of a worker that is dead; one that runs, as far as the store knows.
async fn container_left_behind(memory: &MemoryStore) -> JobId {
    memory.register_node(&TestNode::new(&NewJob::handler("noop", &()).namespace, "n-1", 8)).await;
    let spec = ContainerSpec { image: "busybox".to_owned(), ..ContainerSpec::default() };
    memory.submit_job(&NewJob::ad_hoc(JobDefinition::Container(spec))).expect("a plain job");
    claimed_by_another(memory, 1, true).await[0]
}

/// A node whose actor finds what it is told to find.
fn node_that_finds(
    mut find: impl FnMut(RecoverContainer) -> Recovered + 'static,
) -> (NodeAddress, Probed<RecoverContainer>) {
    let recover = Probe::answering(move |message: RecoverContainer| find(message));
    let run = Probe::answering(|_: RunContainer| WorkOutcome::Stopped);
    (NodeAddress { run: run.recipient, recover: recover.recipient.clone() }, recover)
}

fn total(rig: &Rig) -> u32 {
    rig.worker.health().recovery_permits.total()
}

fn in_recovery(rig: &Rig) -> u32 {
    let permits = rig.worker.health().recovery_permits;
    permits.total() - permits.free
}

async fn until_quiet(rig: &Rig) {
    eventually(s(600), "every recovery permit is free", || in_recovery(rig) == 0).await;
    rig.until_quiet().await;
}

// ---------------------------------------------------------------------------------------------------
// When, and how many
// ---------------------------------------------------------------------------------------------------

/// An idle worker knows when the next lease runs out.
#[test]
fn an_expired_lease_is_taken_over_soon_after_its_expiry() {
    paused(async {
        let memory = MemoryStore::new();
        let job = left_behind(&memory, 1, true).await[0];
        let rig = Rig::on(memory, recovering(2), takes(s(1)));
        let expiry = rig.view(job).lease_expires_at.expect("RUNNING");
        eventually(s(60), "it is taken over", || !rig.memory.past_leases(job).is_empty()).await;
        let late = (rig.memory.clock() - expiry).to_std().expect("not before its expiry");
        assert!(late <= ms(300), "taken over {late:?} after its expiry");
        rig.until_state(job, JobState::Completed).await;
        let how: Vec<_> = rig.memory.past_leases(job).into_iter().map(|past| past.how).collect();
        assert_eq!(how, ["expired", "retrying", "completed"]);
        let view = rig.view(job);
        assert_eq!((view.attempt, view.failures), (2, [0, 1, 0]), "one loss, counted as a SYSTEM failure");
        until_quiet(&rig).await;
    });
}

/// RN-09: what ran out while nobody was there is not waited for once more.
#[test]
fn after_an_outage_everything_that_expired_meanwhile_is_taken_over_in_the_first_pass() {
    paused(async {
        let memory = MemoryStore::new();
        let jobs = left_behind(&memory, 5, true).await;
        tokio::time::sleep(LEASE + s(60)).await;
        let began = Instant::now();
        let rig = Rig::on(memory, recovering(8), takes(s(1)));
        let taken = |job: &JobId| !rig.memory.past_leases(*job).is_empty();
        eventually(s(5), "all are taken over", || jobs.iter().all(taken)).await;
        assert!(began.elapsed() < ms(100), "took {:?}", began.elapsed());
        assert_eq!(rig.net.calls(Operation::Recover), 1);
    });
}

/// RC-15: nothing is known of the workers whose leases they were.
#[test]
fn leases_of_workers_that_nobody_has_heard_of_are_taken_over_like_any_other() {
    paused(async {
        let memory = MemoryStore::new();
        let mut jobs = Vec::new();
        for _ in 0..5 {
            jobs.extend(left_behind(&memory, 1, true).await);
        }
        let rig = Rig::on(memory, recovering(2), takes(s(1)));
        for job in jobs {
            rig.until_state(job, JobState::Completed).await;
        }
    });
}

/// A grant that was never renewed has started nothing.
#[test]
fn what_was_never_begun_is_given_back_and_costs_nothing() {
    paused(async {
        let memory = MemoryStore::new();
        let job = left_behind(&memory, 1, false).await[0];
        let rig = Rig::on(memory, recovering(2), takes(s(1)));
        rig.until_state(job, JobState::Completed).await;
        let view = rig.view(job);
        assert_eq!((view.attempt, view.failures, view.losses), (1, [0, 0, 0], 0), "the same attempt goes on");
        assert_eq!(rig.net.calls(Operation::PostponeRecovery), 0);
    });
}

#[test]
fn a_lost_job_whose_cancel_was_requested_ends_canceled() {
    paused(async {
        let memory = MemoryStore::new();
        let jobs = [left_behind(&memory, 1, true).await[0], left_behind(&memory, 1, false).await[0]];
        for job in jobs {
            let _ = memory.cancel(&owner().namespace, job, s(1));
        }
        let rig = Rig::on(memory, recovering(2), takes(s(1)));
        for job in jobs {
            rig.until_state(job, JobState::Canceled).await;
        }
        assert!(rig.runs().is_empty());
    });
}

/// The permits of recovery are its own.
#[test]
fn a_worker_full_of_long_jobs_still_recovers() {
    paused(async {
        let memory = MemoryStore::new();
        let lost = left_behind(&memory, 6, true).await;
        let long: Vec<JobId> = (0..4).map(|_| submit(&memory)).collect();
        let rig = Rig::on(memory, recovering(1), takes(s(3600)));
        eventually(s(5), "it is full", || rig.permits().active == 4).await;
        eventually(s(120), "all are recovered", || {
            assert_eq!((rig.permits().active, total(&rig)), (4, 1));
            lost.iter().all(|job| rig.state(*job) != JobState::Running)
        })
        .await;
        assert!(long.iter().all(|job| rig.state(*job) == JobState::Running));
    });
}

#[test]
fn never_more_are_in_recovery_than_there_are_permits_and_none_waits_for_the_next_look() {
    paused(async {
        let memory = MemoryStore::new();
        let jobs = left_behind(&memory, 40, true).await;
        let rig = Rig::on(memory, recovering(3), takes(s(1)));
        tokio::time::sleep(LEASE - ms(100)).await;
        let began = Instant::now();
        eventually(s(60), "all are recovered", || {
            assert!(in_recovery(&rig) <= 3 && total(&rig) == 3);
            jobs.iter().all(|job| rig.memory.past_leases(*job).len() >= 2)
        })
        .await;
        assert!(began.elapsed() < s(2), "took {:?}", began.elapsed());
        assert_eq!(rig.worker.health().tally.leases_recovered, 40);
    });
}

/// What cannot be cleaned up is put off for longer and longer, at last counts as lost, and is in nobody's way.
#[test]
fn a_job_that_cannot_be_cleaned_up_does_not_delay_the_others() {
    paused(async {
        let memory = MemoryStore::new();
        let stuck = container_left_behind(&memory).await;
        let others = left_behind(&memory, 10, true).await;
        let (node, asked) = node_that_finds(|message| {
            if message.last_time {
                return Recovered::Lost { message: "it is unavailable".to_owned(), afterwards: None };
            }
            Recovered::NotNow { reason: "the engine says no".to_owned() }
        });
        let mut settings = recovering(1);
        settings.start_node = Box::new(move |_| Ok(node.clone()));
        let rig = Rig::on(memory, settings, takes(s(1)));
        tokio::time::sleep(LEASE).await;
        let recovered = |job: &JobId| rig.memory.past_leases(*job).len() >= 2;
        eventually(s(3), "the others are recovered", || others.iter().all(recovered)).await;
        assert_eq!(rig.state(stuck), JobState::Running, "nothing is known of its container");
        assert_eq!(rig.worker.health().recovery.backlog, 1, "and that is told");

        eventually(s(1200), "it is given up at last", || rig.state(stuck) != JobState::Running).await;
        let asked = asked.asked();
        assert!((5..=14).contains(&asked), "asked {asked} times within ten minutes and a little");
        assert_eq!(rig.view(stuck).failures, [0, 1, 0]);
        until_quiet(&rig).await;
    });
}

// ---------------------------------------------------------------------------------------------------
// What is not taken over
// ---------------------------------------------------------------------------------------------------

/// A process never takes over a job whose workload it still runs: nothing could tell whether it does.
#[test]
fn a_job_that_still_runs_here_is_not_taken_over_here() {
    paused(async {
        let kept: Arc<Mutex<Option<Hold>>> = Arc::default();
        let keeper = Arc::clone(&kept);
        let keep = move |grant: Arc<crate::ports::Grant>, lease: crate::work::LeaseContext| {
            let first = grant.attempt == 1;
            if first {
                *keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease.hold());
            }
            async move { if first { std::future::pending().await } else { done() } }
        };
        let rig = Rig::with(recovering(2), work(keep));
        let job = rig.submit();
        rig.until_running(job).await;
        rig.net.script(Operation::Renew, std::iter::repeat_n(Fate::RequestLost, 100));
        eventually(s(120), "its lease has run out", || rig.is_expired(job)).await;
        tokio::time::sleep(s(60)).await;
        assert!(
            rig.memory.past_leases(job).is_empty(),
            "its handler goes on here, so nobody here takes it over"
        );
        assert_eq!(rig.permits().stuck, 1);
        kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        rig.net.heal();
        rig.until_state(job, JobState::Completed).await;
        let how: Vec<_> = rig.memory.past_leases(job).into_iter().map(|past| past.how).collect();
        assert_eq!(how, ["expired", "retrying", "completed"]);
        until_quiet(&rig).await;
    });
}

#[test]
fn a_live_lease_is_left_alone() {
    paused(async {
        let memory = MemoryStore::new();
        let job = left_behind(&memory, 1, true).await[0];
        let rig = Rig::on(memory, recovering(2), takes(s(1)));
        tokio::time::sleep(LEASE - s(1)).await;
        assert_eq!(rig.state(job), JobState::Running);
        assert!(rig.memory.past_leases(job).is_empty());
    });
}

#[test]
fn a_drain_takes_nothing_over_and_gives_up_what_it_has() {
    paused(async {
        let memory = MemoryStore::new();
        let container = container_left_behind(&memory).await;
        let (lost, later) = (left_behind(&memory, 1, true).await[0], left_behind(&memory, 1, true).await[0]);
        let (node, asked) = node_that_finds(|_| panic!("a drain touches nothing"));
        let mut settings = recovering(8);
        settings.start_node = Box::new(move |_| Ok(node.clone()));
        let rig = Rig::on(memory, settings, takes(s(1)));
        // Their leases run out while the answer to the pass is on its way; then the drain begins.
        memory_expires(&rig, &[container, lost]).await;
        rig.net.script(Operation::Recover, [Fate::Late(s(1))]);
        eventually(s(60), "they are taken over", || rig.memory.past_leases(lost).len() == 1).await;
        let drained = rig.worker.drain(s(30)).await;
        assert!(drained.is_clean(), "{drained:?}");
        assert_eq!(asked.asked(), 0);
        assert_eq!(rig.state(lost), JobState::Pending, "there was nothing to be touched");
        assert!(rig.is_expired(container), "its lease is given up, for others to take over at once");
        rig.memory.expire(later).await;
        tokio::time::sleep(s(60)).await;
        assert_eq!(rig.state(later), JobState::Running, "a drained worker recovers nothing");
    });
}

async fn memory_expires(rig: &Rig, jobs: &[JobId]) {
    for job in jobs {
        rig.memory.expire(*job).await;
    }
}

// ---------------------------------------------------------------------------------------------------
// Lost answers and deaths
// ---------------------------------------------------------------------------------------------------

/// An answer that was lost is asked for again under its command id, until it is answered.
#[test]
fn a_batch_whose_answer_was_lost_is_asked_for_again_and_nothing_is_taken_twice() {
    for fates in [
        vec![Fate::AnswerLost],
        vec![Fate::RequestLost],
        vec![Fate::Silent],
        vec![Fate::Late(s(5))],
        vec![Fate::AnswerLost, Fate::Refused, Fate::RequestLost, Fate::AnswerLost],
        vec![Fate::AnswerLost; 8],
    ] {
        paused(async {
            let memory = MemoryStore::new();
            let jobs = left_behind(&memory, 3, true).await;
            let rig = Rig::on(memory, recovering(4), takes(s(1)));
            tokio::time::sleep(LEASE - s(1)).await;
            rig.net.script(Operation::Recover, fates.clone());
            eventually(s(90), "all completed", || {
                assert_eq!(total(&rig), 4, "{fates:?}");
                jobs.iter().all(|job| rig.state(*job) == JobState::Completed)
            })
            .await;
            until_quiet(&rig).await;
            for job in jobs {
                let how: Vec<_> = rig.memory.past_leases(job).into_iter().map(|past| past.how).collect();
                assert_eq!(how, ["expired", "retrying", "completed"], "{fates:?}");
            }
        });
    }
}

#[test]
fn a_recoverer_that_dies_in_the_middle_of_a_pass_leaves_it_to_its_successor() {
    paused(async {
        let settings =
            RigSettings { panics: vec![(Operation::Recover, 1), (Operation::Recover, 3)], ..recovering(4) };
        let memory = MemoryStore::new();
        let jobs = left_behind(&memory, 6, true).await;
        let rig = Rig::on(memory, settings, takes(s(1)));
        eventually(s(120), "all completed", || {
            assert_eq!(total(&rig), 4);
            jobs.iter().all(|job| rig.state(*job) == JobState::Completed)
        })
        .await;
        until_quiet(&rig).await;
        let recoverer = rig.worker.health().loops.into_iter().find(|l| l.name == "recovery").expect("one");
        assert_eq!(recoverer.deaths, 2);
    });
}

/// Nothing is touched before the immediate renewal is confirmed.
#[test]
fn without_a_confirmed_renewal_nothing_of_the_job_is_touched() {
    for fates in [vec![Fate::RequestLost; 200], vec![Fate::Refused; 200], vec![Fate::Silent; 60]] {
        paused(async {
            let memory = MemoryStore::new();
            let job = container_left_behind(&memory).await;
            let (node, asked) =
                node_that_finds(|_| Recovered::Lost { message: "cleaned up".to_owned(), afterwards: None });
            let mut settings = recovering(1);
            settings.start_node = Box::new(move |_| Ok(node.clone()));
            let rig = Rig::on(memory, settings, takes(s(1)));
            rig.net.script(Operation::Renew, fates);
            eventually(s(120), "it was taken over twice", || rig.memory.past_leases(job).len() >= 2).await;
            assert_eq!(asked.asked(), 0, "no renewal was confirmed");
            assert_eq!(total(&rig), 1);
            rig.net.heal();
            eventually(s(120), "it is recovered", || rig.state(job) != JobState::Running).await;
            assert_eq!(asked.asked(), 1);
        });
    }
}

/// The end of a recovery is reported under one command id until it is answered; counters rise once.
#[test]
fn a_loss_whose_report_was_unanswered_is_counted_once() {
    for fates in
        [vec![Fate::AnswerLost; 4], vec![Fate::RequestLost, Fate::AnswerLost], vec![Fate::Late(s(5))]]
    {
        paused(async {
            let memory = MemoryStore::new();
            let job = left_behind(&memory, 1, true).await[0];
            let rig = Rig::on(memory, recovering(1), takes(s(3600)));
            rig.net.script(Operation::End, fates.clone());
            eventually(s(120), "it runs again", || rig.has_run(job)).await;
            assert_eq!(rig.view(job).failures, [0, 1, 0], "{fates:?}");
            eventually(s(60), "the permit is free", || in_recovery(&rig) == 0).await;
        });
    }
}

/// A recovery of which nobody hears in time: its lease runs out, and the next one begins anew.
#[test]
fn a_recovery_whose_node_actor_dies_or_hangs_is_begun_again() {
    paused(async {
        let memory = MemoryStore::new();
        let job = container_left_behind(&memory).await;
        let started = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = Arc::clone(&started);
        let mut settings = recovering(1);
        settings.start_node = Box::new(move |_| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            Ok(node_that_finds(move |_| {
                assert!(number > 0, "the node's actor dies");
                Recovered::Ended {
                    outcome: WorkOutcome::Completed { exit_code: Some(0), output: None },
                    afterwards: crate::runtime_node_actor::Afterwards::nothing(),
                }
            })
            .0)
        });
        let rig = Rig::on(memory, settings, takes(s(1)));
        rig.until_state(job, JobState::Completed).await;
        assert_eq!((started.load(Ordering::SeqCst), rig.view(job).failures), (2, [0, 0, 0]));
        until_quiet(&rig).await;
    });
}

#[test]
fn what_a_recovery_found_is_what_the_store_is_told() {
    let failure = |kind| crate::domain::Failure::new(kind, "3", "exit code 3").with_exit_code(3);
    let nothing = crate::runtime_node_actor::Afterwards::nothing;
    type Find = Box<dyn Fn() -> Recovered>;
    let completed = WorkOutcome::Completed { exit_code: Some(0), output: None };
    let cases: Vec<(Find, JobState, [i32; 3])> = vec![
        (Box::new(|| Recovered::NotStarted), JobState::Pending, [0, 0, 0]),
        (
            Box::new(|| Recovered::Lost { message: "gone".to_owned(), afterwards: None }),
            JobState::Pending,
            [0, 1, 0],
        ),
        (
            Box::new(move || Recovered::Ended { outcome: completed.clone(), afterwards: nothing() }),
            JobState::Completed,
            [0, 0, 0],
        ),
        (
            Box::new(move || Recovered::Ended {
                outcome: WorkOutcome::Failed(failure(FailureKind::User)),
                afterwards: nothing(),
            }),
            JobState::Failed,
            [1, 0, 0],
        ),
    ];
    for (find, state, failures) in cases {
        paused(async {
            let memory = MemoryStore::new();
            let job = container_left_behind(&memory).await;
            let (node, _) = node_that_finds(move |_| find());
            let mut settings = recovering(1);
            // Nothing is claimed again: what recovery made of the job stands.
            settings.concurrency = 0;
            settings.start_node = Box::new(move |_| Ok(node.clone()));
            let rig = Rig::on(memory, settings, takes(s(1)));
            eventually(s(60), "it is recovered", || rig.state(job) != JobState::Running).await;
            let waits = |state| if state == JobState::Queued { JobState::Pending } else { state };
            assert_eq!((waits(rig.state(job)), rig.view(job).failures), (state, failures));
            until_quiet(&rig).await;
        });
    }
}

// ---------------------------------------------------------------------------------------------------
// Cancel, timeout and drain while a recovery is under way
// ---------------------------------------------------------------------------------------------------

/// A node whose actor follows the container on until it is told to stop.
fn node_that_adopts(timeout: Option<Duration>) -> NodeAddress {
    let recover = Probe::answering_later(move |message: RecoverContainer| async move {
        tokio::time::sleep(s(2)).await;
        let (has_room, room) = tokio::sync::oneshot::channel();
        message.adopts.send(Adoption { timeout, has_room }).expect("its LeaseActor waits");
        if !room.await.expect("it answers") {
            return Recovered::NoRoom;
        }
        message.lease.stopped().await;
        tokio::time::sleep(s(1)).await;
        Recovered::Run(WorkOutcome::Stopped)
    });
    let run = Probe::answering(|_: RunContainer| WorkOutcome::Stopped);
    NodeAddress { run: run.recipient, recover: recover.recipient }
}

async fn adopting(timeout: Option<Duration>) -> (Rig, JobId) {
    let memory = MemoryStore::new();
    let job = container_left_behind(&memory).await;
    let node = node_that_adopts(timeout);
    let mut settings = recovering(1);
    settings.concurrency = 1;
    settings.start_node = Box::new(move |_| Ok(node.clone()));
    let rig = Rig::on(memory, settings, takes(s(1)));
    eventually(s(60), "it is adopted", || rig.worker.health().tally.containers_adopted == 1).await;
    (rig, job)
}

/// A run that was adopted is renewed, canceled, timed out and given back as any other.
#[test]
fn an_adopted_run_is_a_run_like_any_other() {
    paused(async {
        let (rig, job) = adopting(None).await;
        tokio::time::sleep(10 * LEASE).await;
        assert_eq!(rig.state(job), JobState::Running, "it is renewed");
        assert_eq!((rig.permits().active, in_recovery(&rig)), (1, 0), "and takes no permit of recovery");
        let _ = rig.memory.cancel(&owner().namespace, job, s(10));
        rig.worker.cancel_is_requested(job);
        eventually(s(5), "it is canceled", || rig.state(job) == JobState::Canceled).await;
        until_quiet(&rig).await;
    });
    paused(async {
        let (rig, job) = adopting(Some(s(50))).await;
        let adopted = Instant::now();
        rig.until_state(job, JobState::Failed).await;
        assert!(adopted.elapsed() >= s(50) && adopted.elapsed() < s(53), "{:?}", adopted.elapsed());
        assert_eq!(rig.view(job).failures, [0, 0, 1]);
        until_quiet(&rig).await;
    });
    paused(async {
        let (rig, job) = adopting(None).await;
        let drained = rig.worker.drain(s(1)).await;
        assert!(drained.is_clean(), "{drained:?}");
        assert!(matches!(rig.state(job), JobState::Pending | JobState::Queued), "given back");
        assert_eq!(rig.view(job).failures, [0, 0, 0]);
    });
}

/// A worker without room for a run leaves the container alone, for as long as it takes, and recovers others.
#[test]
fn a_full_worker_adopts_only_when_it_has_room() {
    paused(async {
        let memory = MemoryStore::new();
        let adoptable = container_left_behind(&memory).await;
        let lost = left_behind(&memory, 3, true).await;
        submit(&memory);
        let node = node_that_adopts(None);
        let mut settings = recovering(1);
        settings.concurrency = 1;
        settings.start_node = Box::new(move |_| Ok(node.clone()));
        // Longer than a recovery is put off at most.
        let rig = Rig::on(memory, settings, takes(s(900)));
        eventually(s(5), "it is full", || rig.permits().active == 1).await;
        let recovered = |job: &JobId| rig.memory.past_leases(*job).len() >= 2;
        eventually(s(90), "the others are recovered", || lost.iter().all(recovered)).await;
        for job in lost {
            let _ = rig.memory.cancel(&owner().namespace, job, s(1));
        }
        assert_eq!(rig.worker.health().tally.containers_adopted, 0);
        tokio::time::sleep(s(700)).await;
        assert_eq!(rig.state(adoptable), JobState::Running);
        eventually(s(1200), "it is adopted at last", || rig.worker.health().tally.containers_adopted == 1)
            .await;
        assert_eq!(in_recovery(&rig), 0);
    });
}

/// Cleaning up is what a cancel asks for: it goes on, and then the job ends CANCELED.
#[test]
fn a_cancel_does_not_break_a_cleaning_up_off() {
    paused(async {
        let memory = MemoryStore::new();
        let job = container_left_behind(&memory).await;
        let recover = Probe::answering_later(|message: RecoverContainer| async move {
            tokio::select! {
                reason = message.lease.stopped() => panic!("stopped: {reason:?}"),
                () = tokio::time::sleep(2 * LEASE) => {}
            }
            Recovered::Lost { message: "stopped and removed".to_owned(), afterwards: None }
        });
        let run = Probe::answering(|_: RunContainer| WorkOutcome::Stopped);
        let node = NodeAddress { run: run.recipient, recover: recover.recipient };
        let mut settings = recovering(1);
        settings.start_node = Box::new(move |_| Ok(node.clone()));
        let rig = Rig::on(memory, settings, takes(s(1)));
        eventually(s(60), "it is taken over", || rig.memory.past_leases(job).len() == 1).await;
        let _ = rig.memory.cancel(&owner().namespace, job, LEASE);
        rig.worker.cancel_is_requested(job);
        rig.until_state(job, JobState::Canceled).await;
        until_quiet(&rig).await;
    });
}

/// A cleaning up that a drain breaks off leaves the job to others, at once; what it owns may still run.
#[test]
fn a_drain_breaks_a_cleaning_up_off_and_never_gives_the_job_itself_back() {
    paused(async {
        let memory = MemoryStore::new();
        let job = container_left_behind(&memory).await;
        let recover = Probe::answering_later(|message: RecoverContainer| async move {
            message.lease.stopped().await;
            Recovered::Stopped
        });
        let run = Probe::answering(|_: RunContainer| WorkOutcome::Stopped);
        let node = NodeAddress { run: run.recipient, recover: recover.recipient };
        let mut settings = recovering(1);
        settings.start_node = Box::new(move |_| Ok(node.clone()));
        let rig = Rig::on(memory, settings, takes(s(1)));
        eventually(s(60), "it is taken over", || rig.memory.past_leases(job).len() == 1).await;
        tokio::time::sleep(s(1)).await;
        let drained = rig.worker.drain(s(1)).await;
        assert!(drained.is_clean(), "{drained:?}");
        assert_eq!(rig.state(job), JobState::Running);
        assert!(rig.is_expired(job));
    });
}

// ---------------------------------------------------------------------------------------------------
// Everything at once
// ---------------------------------------------------------------------------------------------------

/// Work that takes as long as the job's number says.
fn of_any_length() -> crate::fixtures::Work {
    work(|grant, lease| async move {
        let id = grant.authority.job.0.unsigned_abs();
        takes(ms(300 * (id % 12)))(grant, lease).await
    })
}

/// L5, L6, L8, L10: a fleet of two loses requests and answers at every call, by seed, while a third worker has died
/// with jobs in hand. Permits of both pools are conserved at every look, no job runs twice at once, and every
/// job ends.
#[test]
fn by_seed_whatever_is_lost_every_job_of_the_fleet_ends_and_none_runs_twice_at_once() {
    // Jitter comes from outside the seed, so that one run may meet few faults; all of them together do not.
    let mut faults = 0;
    for seed in 0..12 {
        faults += paused(async move {
            let settings = |seed| {
                let mut settings = recovering(2);
                settings.timings.lease = s(10);
                settings.timings.renew_interval = s(2);
                settings.timings.safety_margin = s(1);
                settings.timings.store_timeout = s(1);
                settings.recovery.interval = s(5);
                settings.recovery.loss_limit = 50;
                settings.retry.max_system = Some(50);
                (settings.seed, settings.concurrency) = (seed, 6);
                settings.odds = Odds { answer_lost: 12, refused: 5, request_lost: 8, latency: ms(600) };
                settings
            };
            let memory = MemoryStore::new();
            let mut jobs = left_behind(&memory, 8, true).await;
            jobs.extend(left_behind(&memory, 4, false).await);
            jobs.extend((0..20).map(|_| submit(&memory)));
            let fleet = [
                Rig::on(memory.clone(), settings(2 * seed), of_any_length()),
                Rig::on(memory.clone(), settings(2 * seed + 1), of_any_length()),
            ];
            for tick in 0..400 {
                tokio::time::sleep(ms(100)).await;
                for rig in &fleet {
                    assert_eq!((rig.permits().total(), total(rig)), (6, 2), "seed {seed}, tick {tick}");
                }
            }
            fleet.iter().for_each(|rig| rig.net.heal());
            let ended = || jobs.iter().all(|job| fleet[0].state(*job).is_terminal());
            eventually(s(600), "every job has ended", ended).await;
            for rig in &fleet {
                until_quiet(rig).await;
            }
            let runs: Vec<_> = fleet.iter().flat_map(Rig::runs).collect();
            for (i, run) in runs.iter().enumerate() {
                let ended = run.ended.unwrap_or_else(|| panic!("seed {seed}: {run:?} goes on"));
                for other in &runs[i + 1..] {
                    let apart = other.began >= ended || run.began >= other.ended.expect("ended");
                    assert!(other.job != run.job || apart, "seed {seed}: {run:?} beside {other:?}");
                }
            }
            let completed = jobs.iter().filter(|job| fleet[0].state(**job) == JobState::Completed).count();
            assert_eq!(completed, jobs.len(), "seed {seed}: none failed, since no limit was reached");
            fleet.iter().map(|rig| rig.net.faults()).sum::<u32>()
        });
    }
    assert!(faults > 24 * 20, "{faults} faults are too few to mean anything");
}
