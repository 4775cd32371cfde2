//! What starts nothing, and who has a lease when two want it.

use leasehold_actors::{
    domain::{Epoch, LeaseToken},
    ports::{
        Renewal,
        recipe::{PayloadSet, RecipeStore as _},
    },
    testing::StoreHarness as _,
};

use super::{super::Refused, *};

const ONE: &str = "id: r\nsequence: [ { id: a, op: work } ]\n";
const LONG: &str = "id: r\nsequence: [ { id: a, op: long }, { id: b, op: work } ]\n";

/// E10: after a redemption the exporter and every other importer are refused, whatever they try.
#[test]
fn a_lease_is_run_by_one_of_those_who_have_its_capability() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(LONG).await;
        let grant = bed.acquire().await;
        let capability = Capability::from(grant.authority.clone());
        let ctx = bed.context("");
        let stop = ctx.stop.clone();
        let first = bed.run_with(ctx, capability.clone(), bed.request(job));
        let others = async {
            bed.long_began.notified().await;
            assert_eq!(
                bed.run(capability.clone(), job).await,
                RunEnd::Refused(Refused::NotLive),
                "a second import"
            );
            assert_eq!(bed.run(&grant, job).await, RunEnd::Refused(Refused::NotLive), "the exporter itself");
            let renewal = bed.store.renew(&grant.authority).await.expect("it answers");
            assert_eq!(renewal, Renewal::NotLive, "lease_not_live");
            stop.now();
        };
        let (end, ()) = tokio::join!(first, others);
        assert_eq!(end.word(), "released");
        assert_eq!(RunEnd::Refused(Refused::NotLive).exit_code(), 3);
        assert!(Refused::NotLive.to_string().starts_with("lease_not_live"));
        assert_eq!(bed.ran(), ["a", "a stopped"]);
    });
}

/// E10: of importers at the same instant one runs the job.
#[test]
fn importers_at_once_agree_on_one() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(ONE).await;
        let capability = bed.export().await;
        let all = (0..5).map(|_| bed.run(capability.clone(), job));
        let ends = futures_util::future::join_all(all).await;
        let words: Vec<_> = ends.iter().map(RunEnd::word).collect();
        assert_eq!(words.iter().filter(|word| **word == "completed").count(), 1, "{words:?}");
        assert_eq!(words.iter().filter(|word| **word == "refused").count(), 4, "{words:?}");
        assert_eq!(bed.ran(), ["a"]);
    });
}

/// E10: the repeat of a redemption whose answer was lost is that redemption.
#[test]
fn a_redemption_whose_answer_is_lost_is_asked_again_under_its_command() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(ONE).await;
        let capability = bed.export().await;
        bed.net.lose("redeem", [Lose::Answer, Lose::Request, Lose::Answer]);
        assert_eq!(bed.run(capability, job).await.word(), "completed");
        assert_eq!(bed.net.calls("redeem"), 4);
    });
}

/// What is uncertain starts nothing.
#[test]
fn an_import_that_stays_uncertain_starts_nothing() {
    paused(async {
        for (operation, phase) in
            [("read_lease", "validation"), ("redeem", "redemption"), ("renew", "first renewal")]
        {
            for lose in [Lose::Request, Lose::Answer] {
                let bed = Bed::new();
                let job = bed.submit(ONE).await;
                let capability = bed.export().await;
                bed.net.lose(operation, std::iter::repeat_n(lose, 10_000));
                let end = bed.run(capability, job).await;
                let RunEnd::Unknown(unanswered) = &end else { panic!("{operation}: {end:?}") };
                assert_eq!(unanswered.phase.to_string(), phase);
                assert_eq!((unanswered.operation, unanswered.category), (operation, "unreachable"));
                assert_eq!(unanswered.destination, "postgres://app:***@db/app");
                assert_eq!(end.exit_code(), 6);
                assert_eq!((bed.ran().len(), bed.told().len()), (0, 0), "{operation}");
                assert_eq!(bed.net.calls("end"), 0, "nothing is reported");
            }
        }
    });
}

#[test]
fn a_lease_that_does_not_fit_the_request_is_refused_before_anything_changes() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(ONE).await;
        let grant = bed.acquire().await;
        let capability = Capability::from(grant.authority.clone());
        let check = async |capability: &Capability, request: RunRequest, code: u8, word: &str| {
            let end = bed.run_with(bed.context(""), capability.clone(), request).await;
            let RunEnd::Refused(why) = &end else { panic!("{end:?}") };
            assert_eq!(end.exit_code(), code, "{why}");
            assert!(why.to_string().contains(word), "{why}");
        };
        // Another job, another namespace: told without a look at the database.
        check(&capability, bed.request(JobId(job.0 + 1)), 5, "is for job").await;
        let mut request = bed.request(job);
        request.namespace = Namespace::new("elsewhere").expect("a valid name");
        check(&capability, request, 5, "namespace default").await;
        assert_eq!(bed.net.calls("read_lease"), 0);
        // A job that is not there.
        let mut authority = grant.authority.clone();
        authority.job = JobId(4711);
        check(&Capability::from(authority), bed.request(JobId(4711)), 5, "there is no job").await;
        // Its type is not served.
        let mut request = bed.request(job);
        request.routes = Arc::from([Route::recipe("other", ""), Route::handler("recipe")]);
        check(&capability, request, 3, "route_not_served").await;
        // Nobody's lease.
        let mut strangers = vec![grant.authority.clone(); 3];
        strangers[0].token = LeaseToken::generate();
        strangers[1].owner.process = ProcessId::generate();
        strangers[2].epoch = Epoch(grant.authority.epoch.0 - 1);
        for stranger in strangers {
            check(&Capability::from(stranger), bed.request(job), 3, "lease_not_live").await;
        }
        // No recipe.
        let handler = NewJob::ad_hoc(JobDefinition::Handler { name: "noop".to_owned() });
        let other = bed.store.submit(&handler).await;
        let held = bed.acquire_of(Arc::from([Route::handler("noop")])).await;
        check(&Capability::from(held.authority), bed.request(other), 3, "wrong_kind").await;
        assert_eq!((bed.net.calls("redeem"), bed.net.calls("renew")), (0, 0));
        // And after all that it is as good as before.
        assert_eq!(bed.run(capability.clone(), job).await.word(), "completed");
        check(&capability, bed.request(job), 3, "lease_not_live").await;
    });
}

#[test]
fn an_expired_lease_is_not_revived() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(ONE).await;
        let capability = bed.export().await;
        tokio::time::sleep(LEASE).await;
        assert_eq!(bed.run(capability, job).await, RunEnd::Refused(Refused::NotLive));
        assert_eq!(bed.ran(), [""; 0]);
    });
}

/// A payload that cannot be read is no "no requirements": nothing runs, and the lease is left to recovery.
#[test]
fn a_job_with_a_bad_execution_payload_is_not_admitted() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(ONE).await;
        let capability = bed.export().await;
        let update = leasehold_actors::ports::PayloadUpdate {
            value: "{\"execution\":{\"version\":1,\"requirements\":7}}".to_owned(),
            expected_revision: 1,
        };
        let set = bed.store.set_payload(&Namespace::default(), job, &update).await.expect("it answers");
        assert!(matches!(set, PayloadSet::Set { .. }), "{set:?}");
        let end = bed.run(capability, job).await;
        let RunEnd::Refused(Refused::NotAdmitted(_)) = &end else { panic!("{end:?}") };
        assert_eq!((end.exit_code(), bed.ran().len()), (3, 0));
        let view = bed.view(job).await;
        assert_eq!(view.state, JobState::Running, "its lease expires");
        assert_eq!(bed.net.calls("end"), 0);
    });
}
