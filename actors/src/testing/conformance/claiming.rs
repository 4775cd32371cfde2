//! Claims: who is granted what, in which order, and every typed reason why not.

use std::{collections::HashSet, time::Duration};

use chrono::{TimeDelta, Utc};
use futures_util::future::join_all;

use super::bench::{Bench, LEASE, claimant, complete, fail};
use crate::{
    domain::{FailureKind, JobDefinition, JobId, JobKind, JobState, Namespace, RetryPolicy, Route},
    error::{Applied, StoreErrorKind},
    ports::{ClaimRejection, DispatchedJob, End, Grant, ListedAnswer},
    testing::harness::{StoreHarness, TestWorkflow, WorkflowState},
};

fn jobs(grants: &[Grant]) -> Vec<JobId> {
    grants.iter().map(|grant| grant.authority.job).collect()
}

/// A grant tells all that its execution needs.
pub async fn a_grant_carries_what_was_submitted(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench
        .submit(|job| {
            job.payload = r#"{"b":1.0,"a":10000000000000000000000}"#.to_owned();
            job.timeout_ms = Some(90_000);
            job.retry = RetryPolicy { max_user: Some(7), ..RetryPolicy::default() };
            job.trace_parent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
        })
        .await;
    let grant = bench.claim(job).await;
    assert_eq!(grant.authority.job, job);
    assert_eq!(grant.authority.owner, bench.owner);
    assert_eq!((grant.kind, &grant.route), (JobKind::Handler, &Route::handler("work")));
    assert_eq!(grant.workflow, "adhoc");
    assert_eq!((grant.generation, grant.dispatch_attempt, grant.attempt), (1, 1, 1));
    assert_eq!(grant.lease, LEASE);
    assert_eq!(
        JobDefinition::from_json(JobKind::Handler, &grant.definition),
        Ok(JobDefinition::Handler { name: "work".to_owned() })
    );
    assert_eq!(&*grant.payload, r#"{"b":1.0,"a":10000000000000000000000}"#, "payloads are never rewritten");
    assert_eq!(grant.timeout, Some(Duration::from_secs(90)));
    assert_eq!(grant.retry.max_user, Some(7));
    assert!(grant.trace_parent.is_some());
    assert_eq!(grant.placement, None);
    let view = bench.view(job).await;
    assert_eq!((view.state, view.attempt, view.epoch), (JobState::Running, 1, grant.authority.epoch.0));
}

/// Higher priority first, then the earlier due time, then the lower id.
pub async fn an_open_claim_takes_the_most_urgent_first(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let plain = bench.queued().await;
    let later = bench.queued().await;
    let low = bench.submit(|job| job.priority = -5).await;
    let high = bench.submit(|job| job.priority = 5).await;
    assert_eq!(jobs(&bench.claim_open(10).await), [high, plain, later, low]);
}

/// A claim takes no more than it can run; the rest is for the next.
pub async fn an_open_claim_takes_no_more_than_its_limit(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(bench.queued().await);
    }
    assert_eq!(jobs(&bench.claim_open(2).await), all[..2]);
    assert_eq!(jobs(&bench.claim_open(10).await), all[2..]);
    assert!(bench.claim_open(10).await.is_empty());
}

/// Jobs of other routes and tenants are nobody's business.
pub async fn an_open_claim_takes_only_its_routes_in_its_namespace(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let other = Some(JobDefinition::Handler { name: "other".to_owned() });
    let foreign = bench.submit(|job| job.definition = other).await;
    let elsewhere = Namespace::new("elsewhere").expect("a valid name");
    bench.submit(|job| job.namespace = elsewhere.clone()).await;
    let mine = bench.queued().await;
    assert_eq!(jobs(&bench.claim_open(10).await), [mine]);
    assert_eq!(bench.state(foreign).await, JobState::Queued);
}

/// L1, L4: each grant has its own secret, and two jobs never share one.
pub async fn each_grant_has_its_own_token(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for _ in 0..8 {
        bench.queued().await;
    }
    let grants = bench.claim_open(8).await;
    let tokens: HashSet<_> = grants.iter().map(|grant| grant.authority.token).collect();
    assert_eq!(tokens.len(), 8);
}

/// L4: every grant of one job has a higher epoch than the one before, and another token.
pub async fn epochs_strictly_rise(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.submit(|job| job.retry.max_system = Some(100)).await;
    let mut last: Option<Grant> = None;
    let ends = [fail(FailureKind::System), super::bench::release(), super::bench::reschedule()];
    for end in ends.into_iter().cycle().take(6) {
        let grant = bench.claim(job).await;
        if let Some(last) = &last {
            assert!(grant.authority.epoch > last.authority.epoch);
            assert_ne!(grant.authority.token, last.authority.token);
        }
        bench.end(&grant, end).await;
        bench.requeue(job).await;
        last = Some(grant);
    }
}

/// CL-03: many claimers, one job, one grant; every loser a typed rejection.
pub async fn concurrent_claims_of_one_job_grant_it_once(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    let message = bench.message(job).await;
    let answers = join_all((0..16).map(|_| bench.claim_message(message))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
    for rejection in answers.into_iter().filter_map(Result::err) {
        assert!(
            matches!(
                rejection,
                ClaimRejection::Contended | ClaimRejection::NotQueued { status: JobState::Running }
            ),
            "{rejection}"
        );
    }
    assert_eq!(bench.view(job).await.attempt, 1);
}

/// CL-03: many open claims over the same jobs share them out without loss or doubles.
pub async fn concurrent_open_claims_share_the_jobs_out(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let mut all = HashSet::new();
    for _ in 0..40 {
        all.insert(bench.queued().await);
    }
    let mut taken = Vec::new();
    // Skipped rows may leave a round short; what is left comes in a later one.
    for _ in 0..20 {
        for grants in join_all((0..8).map(|_| bench.claim_open(5))).await {
            taken.extend(jobs(&grants));
        }
        if taken.len() >= 40 {
            break;
        }
    }
    assert_eq!(taken.len(), 40);
    assert_eq!(taken.into_iter().collect::<HashSet<_>>(), all);
}

pub async fn a_job_that_does_not_exist_is_not_found(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let nobody = DispatchedJob { job: JobId(987_654_321), generation: 1, dispatch_attempt: 1 };
    assert_eq!(bench.claim_message(nobody).await.err(), Some(ClaimRejection::JobNotFound));
}

/// A job of another tenant does not even exist.
pub async fn a_job_of_another_namespace_is_not_found(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let elsewhere = Namespace::new("elsewhere").expect("a valid name");
    let job = bench.submit(|job| job.namespace = elsewhere.clone()).await;
    let message = DispatchedJob { job, generation: 1, dispatch_attempt: 1 };
    assert_eq!(bench.claim_message(message).await.err(), Some(ClaimRejection::JobNotFound));
    let view = harness.job(&elsewhere, job).await.expect("the job exists there");
    assert_eq!(view.state, JobState::Queued);
}

/// A message from before the latest dispatch grants nothing.
pub async fn an_old_dispatch_attempt_is_stale(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let job = grant.authority.job;
    let old = DispatchedJob { job, generation: 1, dispatch_attempt: grant.dispatch_attempt };
    bench.end(&grant, super::bench::release()).await;
    bench.requeue(job).await;
    let current = bench.view(job).await.dispatch_attempt;
    assert_eq!(current, 2, "each dispatch counts");
    let rejection = bench.claim_message(old).await.err();
    assert_eq!(rejection, Some(ClaimRejection::StaleDispatchAttempt { current }));
    let future = DispatchedJob { dispatch_attempt: 3, ..old };
    let rejection = bench.claim_message(future).await.err();
    assert_eq!(rejection, Some(ClaimRejection::StaleDispatchAttempt { current }));
    assert_eq!(bench.state(job).await, JobState::Queued);
}

/// The asker must believe in the generation that the job was scheduled under.
pub async fn an_expected_generation_that_differs_is_stale(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    let message = bench.message(job).await;
    let other = DispatchedJob { generation: 2, ..message };
    let rejection = bench.claim_message(other).await.err();
    assert_eq!(rejection, Some(ClaimRejection::StaleGeneration { current: 1 }));
    assert!(bench.claim_message(message).await.is_ok());
}

/// A job of an older generation that no sweep has reached yet is still not granted, in neither form of claim.
pub async fn a_superseded_job_is_not_granted(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let workflow = TestWorkflow::new(&bench.namespace, "etl", bench.new_job().definition.expect("one"));
    harness.define_workflow(&workflow).await;
    let job = bench.run_of("etl").await;
    harness.force_workflow(&bench.namespace, "etl", 2, WorkflowState::Active).await;
    let rejection = bench.try_claim(job).await.err();
    assert_eq!(rejection, Some(ClaimRejection::StaleGeneration { current: 2 }));
    assert!(bench.claim_open(10).await.is_empty());
    harness.force_workflow(&bench.namespace, "etl", 1, WorkflowState::Active).await;
    assert_eq!(jobs(&bench.claim_open(10).await), [job]);
}

/// Pause and terminate stop claims also of jobs that are QUEUED under the present generation.
pub async fn a_paused_or_terminated_workflow_grants_nothing(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let workflow = TestWorkflow::new(&bench.namespace, "etl", bench.new_job().definition.expect("one"));
    harness.define_workflow(&workflow).await;
    let job = bench.run_of("etl").await;
    for (state, rejection) in [
        (WorkflowState::Paused, ClaimRejection::WorkflowPaused),
        (WorkflowState::Terminated, ClaimRejection::WorkflowTerminated),
    ] {
        harness.force_workflow(&bench.namespace, "etl", 1, state).await;
        assert_eq!(bench.try_claim(job).await.err(), Some(rejection));
        assert!(bench.claim_open(10).await.is_empty(), "{state:?}");
        assert_eq!(bench.state(job).await, JobState::Queued);
    }
}

pub async fn a_pending_job_is_not_queued(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.submit(|job| job.run_at = Some(Utc::now() + TimeDelta::days(40_000))).await;
    let message = DispatchedJob { job, generation: 1, dispatch_attempt: 0 };
    let rejection = bench.claim_message(message).await.err();
    assert_eq!(rejection, Some(ClaimRejection::NotQueued { status: JobState::Pending }));
    assert!(bench.claim_open(10).await.is_empty());
}

/// L1: a job under a lease is granted to nobody else, also when the lease has expired: that is recovery's.
pub async fn a_running_job_is_not_queued(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let running = Some(ClaimRejection::NotQueued { status: JobState::Running });
    assert_eq!(bench.try_claim(grant.authority.job).await.err(), running);
    harness.expire(grant.authority.job).await;
    assert_eq!(bench.try_claim(grant.authority.job).await.err(), running);
    assert!(bench.claim_open(10).await.is_empty());
}

pub async fn an_ended_job_says_how_it_ended(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    for (end, state) in [
        (complete(), JobState::Completed),
        (fail(FailureKind::User), JobState::Failed),
        (End::Cancel, JobState::Canceled),
    ] {
        let grant = bench.held().await;
        let message = bench.message(grant.authority.job).await;
        bench.end(&grant, end).await;
        let rejection = bench.claim_message(message).await.err();
        assert_eq!(rejection, Some(ClaimRejection::AlreadyEnded { state }));
    }
}

/// Each listed job has an answer of its own, in the order of the list; one refusal harms no neighbour.
pub async fn a_listed_claim_answers_for_each_job(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let (first, second) = (bench.queued().await, bench.queued().await);
    let ended = bench.held().await;
    bench.end(&ended, complete()).await;
    let mut list = vec![bench.message(second).await, bench.message(ended.authority.job).await];
    list.push(DispatchedJob { job: JobId(987_654_321), generation: 1, dispatch_attempt: 1 });
    list.push(bench.message(first).await);
    let answers = bench.store.claim_listed(&bench.listed(list)).await.expect("the store answers");
    let told: Vec<String> = answers
        .iter()
        .map(|answer| match answer {
            ListedAnswer::Granted(grant) => format!("granted {}", grant.authority.job),
            ListedAnswer::Rejected(job, rejection) => format!("{job} {rejection}"),
        })
        .collect();
    let ended = ended.authority.job;
    let expected = [
        format!("granted {second}"),
        format!("{ended} already_ended{{state: COMPLETED}}"),
        "987654321 job_not_found".to_owned(),
        format!("granted {first}"),
    ];
    assert_eq!(told, expected);
}

/// A claim that asks for an impossible lease is refused before anything is granted.
pub async fn a_lease_duration_out_of_bounds_is_refused(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let job = bench.queued().await;
    for lease in [Duration::ZERO, Duration::from_millis(1999), Duration::from_secs(901)] {
        let mut open = bench.open(1);
        open.lease = lease;
        let error = bench.store.claim(&open).await.expect_err("this lease is out of bounds");
        assert_eq!((error.kind, error.applied), (StoreErrorKind::Refused, Applied::No), "{error}");
        assert!(error.message.contains("2s") && error.message.contains("15m"), "{error}");
        let mut listed = bench.listed(vec![bench.message(job).await]);
        listed.lease = lease;
        let error = bench.store.claim_listed(&listed).await.expect_err("this lease is out of bounds");
        assert_eq!((error.kind, error.applied), (StoreErrorKind::Refused, Applied::No), "{error}");
    }
    assert_eq!(bench.state(job).await, JobState::Queued);
    for lease in [Duration::from_secs(2), Duration::from_mins(15)] {
        bench.queued().await;
        let mut open = bench.open(1);
        open.lease = lease;
        let grants = bench.store.claim(&open).await.expect("the store answers").grants;
        assert_eq!(grants[0].lease, lease);
    }
}

/// Two workers of one name are two processes; what one holds is not the other's.
pub async fn a_restarted_worker_owns_nothing_of_its_predecessor(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let grant = bench.held().await;
    let successor = claimant(&bench.namespace, bench.owner.worker.as_str());
    let mut stolen = grant.authority.clone();
    stolen.owner = successor;
    assert_eq!(bench.renew(&stolen).await, crate::ports::Renewal::NotLive);
    assert!(matches!(bench.renew(&grant.authority).await, crate::ports::Renewal::Held { .. }));
}
