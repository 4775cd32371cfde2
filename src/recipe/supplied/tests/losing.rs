//! Authority that goes away on the way, and answers that stay out.

use leasehold_actors::{
    domain::LeaseToken,
    ports::recipe::{RecipeStore as _, Redeemed},
    testing::StoreHarness as _,
};

use super::{super::LostLease, *};

const LONG: &str = "id: r\nsequence: [ { id: a, op: work }, { id: b, op: long }, { id: c, op: work } ]\n";

/// E7, E10: authority that is lost on the way ends what runs, starts nothing more and reports nothing.
#[test]
fn a_lease_that_is_lost_on_the_way_ends_its_tasks() {
    paused(async {
        for by_expiry in [true, false] {
            let bed = Bed::new();
            let job = bed.submit(LONG).await;
            let grant = bed.acquire().await;
            let run = bed.run(&grant, job);
            let take = async {
                bed.long_began.notified().await;
                if by_expiry {
                    bed.store.expire(job).await;
                } else {
                    let token = LeaseToken::generate();
                    let redeemed = bed.store.redeem(&grant.authority, CommandId::generate(), &token).await;
                    assert!(matches!(redeemed, Ok(Redeemed::Redeemed { .. })));
                }
            };
            let (end, ()) = tokio::join!(run, take);
            assert_eq!(end, RunEnd::Lost(LostLease::NotLive));
            assert_eq!((end.word(), end.exit_code()), ("lost", 3));
            assert_eq!(bed.ran(), ["a", "b", "b stopped"]);
            assert_eq!(bed.told(), ["renewed", "a started", "a finished", "b started", "lost"]);
            assert_eq!(bed.net.calls("end"), 0, "nothing is reported");
            assert_eq!(bed.state(job).await, JobState::Running, "it is left to recovery");
        }
    });
}

/// A database that does not answer is told apart from a lease that is lost: by operation, phase, category and destination.
#[test]
fn renewals_without_an_answer_are_a_failure_of_transport() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(LONG).await;
        let capability = bed.export().await;
        let run = bed.run(capability, job);
        let lose = async {
            bed.long_began.notified().await;
            for operation in ["renew", "end", "reconcile"] {
                bed.net.lose(operation, std::iter::repeat_n(Lose::Request, 10_000));
            }
        };
        let (end, ()) = tokio::join!(run, lose);
        let RunEnd::Unknown(unanswered) = &end else { panic!("{end:?}") };
        assert_eq!(
            (unanswered.phase.to_string(), unanswered.category),
            ("renewal".to_owned(), "unreachable")
        );
        assert_eq!(end.exit_code(), 6);
        let line = unanswered.to_string();
        assert!(line.starts_with("renewal: `") && line.contains("postgres://app:***@db/app"), "{line}");
        assert_eq!(bed.ran(), ["a", "b", "b stopped"]);
        assert_eq!(bed.told().last().map(String::as_str), Some("lost"));
    });
}

/// The end is reported again and again under one command; only one that is never confirmed is unknown.
#[test]
fn an_end_whose_answer_is_lost_is_reported_again() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit("id: r\nsequence: [ { id: a, op: work } ]\n").await;
        bed.net.lose("end", [Lose::Answer, Lose::Request]);
        assert_eq!(bed.run(bed.export().await, job).await.word(), "completed");
        assert_eq!(bed.state(job).await, JobState::Completed);

        let job = bed.submit("id: r\nsequence: [ { id: a, op: work } ]\n").await;
        bed.net.lose("end", std::iter::repeat_n(Lose::Answer, 10_000));
        let end = bed.run(bed.export().await, job).await;
        let RunEnd::Unknown(unanswered) = &end else { panic!("{end:?}") };
        assert_eq!((unanswered.phase.to_string().as_str(), unanswered.operation), ("report", "end"));
        assert_eq!(end.exit_code(), 6);
    });
}

/// E6, E7: a handoff whose answer stays out reports no handoff, and runs nothing.
#[test]
fn a_handoff_without_an_answer_is_none() {
    paused(async {
        let bed = Bed::new();
        let job = bed
            .submit("id: r\nexecution: { resources: { memory: 4Gi } }\nsequence: [ { id: a, op: work } ]\n")
            .await;
        let capability = bed.export().await;
        bed.net.lose("end", std::iter::repeat_n(Lose::Request, 10_000));
        let run = bed.run(capability, job);
        let lose = async {
            until("the handoff is asked for", || bed.net.calls("end") > 0).await;
            bed.net.lose("renew", std::iter::repeat_n(Lose::Request, 10_000));
        };
        let (end, ()) = tokio::join!(run, lose);
        assert!(matches!(end, RunEnd::Unknown(_)), "{end:?}");
        assert_eq!(end.exit_code(), 6);
        assert_eq!((bed.ran().len(), bed.told()), (0, vec!["renewed".to_owned(), "lost".to_owned()]));
    });
}

/// The secret is in nothing that anybody could print.
#[test]
fn the_token_is_in_nothing_that_can_be_shown() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(LONG).await;
        let grant = bed.acquire().await;
        let capability = Capability::from(grant.authority.clone());
        let ctx = bed.context("");
        let request = bed.request(job);
        let supplied = Supplied::from(capability.clone());
        let mut shown = vec![
            format!("{capability:?} {supplied:?} {:?} {grant:?}", Supplied::from(&grant)),
            format!("{ctx:?} {request:?}"),
        ];
        let stop = ctx.stop.clone();
        let run = bed.run_with(ctx, capability.clone(), request);
        let second = async {
            bed.long_began.notified().await;
            let refused = bed.run(capability.clone(), job).await;
            stop.now();
            format!("{refused:?}")
        };
        let (end, refused) = tokio::join!(run, second);
        shown.push(format!("{end:?} {refused} {:?}", bed.events.lock().unwrap()));
        let token = grant.authority.token.expose_to_store();
        let forms = [token.to_string(), token.simple().to_string()];
        for form in &forms {
            assert!(capability.expose().contains(&forms[0]), "what is looked for can be found");
            for part in [&form[..8], &form[form.len() - 12..]] {
                assert!(shown.iter().all(|shown| !shown.contains(part)), "{shown:?}");
            }
        }
    });
}
