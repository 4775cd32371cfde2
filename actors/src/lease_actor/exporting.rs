//! Tests of leases that are given away, and of those that were supplied.

use crate::{
    domain::{CommandId, JobDefinition, JobId, JobState, LeaseToken, Namespace, NewJob, RawJson, RecipeSpec},
    fixtures::{Rig, RigSettings, eventually, paused, takes, work},
    ports::{
        Authority, Reconciliation,
        recipe::{RecipeStore as _, Redeemed},
    },
    testing::{Fate, Operation},
    work::WorkOutcome,
};

use super::*;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn recipe(rig: &Rig) -> JobId {
    let spec = RecipeSpec {
        recipe: "r".to_owned(),
        job_type: RecipeSpec::DEFAULT_JOB_TYPE.to_owned(),
        language: 1,
        digest: "d".to_owned(),
        bundle: RawJson::default(),
        inputs: RawJson::default(),
        require: RawJson::default(),
    };
    let job = NewJob::ad_hoc(JobDefinition::Recipe(spec));
    let job = rig.memory.submit_job(&job).expect("a plain recipe is accepted").job;
    rig.worker.work_is_ready();
    job
}

async fn redeem(rig: &Rig, authority: &Authority) -> Redeemed {
    let token = LeaseToken::generate();
    rig.memory.redeem(authority, CommandId::generate(), &token).await.expect("the memory store answers")
}

/// E10: the exporter's part ends: its work has stopped when the capability is there, it renews no more, and its permit
/// awaits reconciliation until the lease is another's.
#[test]
fn an_exported_lease_runs_here_no_more_and_its_permit_awaits_reconciliation() {
    paused(async {
        let rig = Rig::new(takes(s(600)));
        let job = recipe(&rig);
        rig.until_running(job).await;
        let authority = rig.worker.export(job, s(3)).await.expect("it is in hand");
        let run = rig.run_of(job);
        assert!(run.ended.is_some(), "nothing runs here any more");
        assert_eq!(run.stop, Some(StopReason::Exported));
        assert_eq!(rig.permits().awaiting_reconciliation, 1);
        assert_eq!(rig.net.calls(Operation::End), 0, "nothing is reported");
        let renewals = rig.net.calls(Operation::Renew);
        let live = rig.memory.port().reconcile(&authority).await;
        assert!(matches!(live, Ok(Reconciliation::Live { .. })), "{live:?}");
        tokio::time::sleep(s(15)).await;
        assert_eq!((rig.permits().awaiting_reconciliation, rig.state(job)), (1, JobState::Running));
        assert!(matches!(redeem(&rig, &authority).await, Redeemed::Redeemed { .. }));
        rig.until_quiet().await;
        assert_eq!(rig.net.calls(Operation::Renew), renewals, "renewals have stopped for good");
        assert_eq!(rig.runs().len(), 1);
        assert_eq!(redeem(&rig, &authority).await, Redeemed::NotLive, "and nobody else gets it");
    });
}

/// Nobody imports it: it expires, and the permit is free.
#[test]
fn an_exported_lease_that_nobody_imports_expires() {
    paused(async {
        let rig = Rig::new(takes(s(600)));
        let job = recipe(&rig);
        rig.until_running(job).await;
        rig.worker.export(job, s(3)).await.expect("it is in hand");
        rig.until_quiet().await;
        assert!(rig.is_expired(job));
    });
}

/// Before the first renewal nothing has started that had to be stopped.
#[test]
fn a_lease_is_exported_before_its_work_has_begun() {
    paused(async {
        let rig = Rig::new(takes(s(600)));
        rig.net.script(Operation::Renew, std::iter::repeat_n(Fate::RequestLost, 1000));
        let job = recipe(&rig);
        eventually(s(10), "it is claimed", || rig.state(job) == JobState::Running).await;
        eventually(s(10), "it is held", || rig.net.calls(Operation::Renew) > 0).await;
        let authority = rig.worker.export(job, s(3)).await.expect("it is in hand");
        assert!(!rig.has_run(job));
        assert!(matches!(redeem(&rig, &authority).await, Redeemed::Redeemed { .. }));
        rig.until_quiet().await;
        assert!(!rig.has_run(job));
    });
}

#[test]
fn what_ends_by_itself_or_is_cancelled_is_not_given_away() {
    paused(async {
        // Told to stop, it comes to its own end.
        let finishes = work(|_, lease| async move {
            lease.stopped().await;
            WorkOutcome::Completed { exit_code: None, output: None }
        });
        let rig = Rig::new(finishes);
        let job = recipe(&rig);
        rig.until_running(job).await;
        assert_eq!(rig.worker.export(job, s(3)).await, None);
        rig.until_state(job, JobState::Completed).await;
        assert_eq!(rig.worker.export(job, s(3)).await, None, "it is in nobody's hands");

        // A cancel that is seen while the work stops.
        let slow = work(|_, lease| async move {
            lease.stopped().await;
            tokio::time::sleep(s(2)).await;
            WorkOutcome::Stopped
        });
        let rig = Rig::with(RigSettings::default(), slow);
        let job = recipe(&rig);
        rig.until_running(job).await;
        let _ = rig.memory.cancel(&Namespace::default(), job, s(5));
        let export = rig.worker.export(job, s(3));
        let cancel = async { rig.worker.cancel_is_requested(job) };
        let (exported, ()) = tokio::join!(export, cancel);
        assert_eq!(exported, None);
        rig.until_state(job, JobState::Canceled).await;
    });
}

/// Only recipes go on from what is recorded.
#[test]
fn a_lease_of_another_kind_is_not_given_away() {
    paused(async {
        let rig = Rig::new(takes(s(5)));
        let job = rig.submit();
        rig.until_running(job).await;
        assert_eq!(rig.worker.export(job, s(3)).await, None);
        rig.until_state(job, JobState::Completed).await;
        assert_eq!(rig.run_of(job).stop, None, "and goes on undisturbed");
    });
}
