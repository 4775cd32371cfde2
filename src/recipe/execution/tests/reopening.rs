//! Recipes that failed or were cancelled, and are opened again by a person.

use leasehold_actors::{
    domain::lease::StopReason,
    ports::recipe::{NewSignal, ReopenAnswer, Reopening},
};

use super::{
    between::{Between, Do},
    *,
};
use crate::recipe::execution::{ReopenError, ReplayEnd, reopen, replay};

impl Bed {
    async fn try_reopen(&self, job: JobId, from: Option<&str>) -> Result<ReopenAnswer, ReopenError> {
        reopen(&self.store, &Namespace::default(), job, from).await
    }

    async fn reopen(&self, job: JobId, from: Option<&str>) {
        let answer = self.try_reopen(job, from).await.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(answer, ReopenAnswer::Reopened { state: JobState::Queued });
    }

    /// Lets a worker run the job into its failure.
    async fn fails(&self, worker: &Worker, job: JobId) -> String {
        let view = self.finish(worker, job).await;
        assert_eq!(view.state, JobState::Failed, "{view:?}");
        view.failure_code.expect("a failure has a code")
    }

    /// The paths that ran since there were so many.
    fn ran_since(&self, before: usize) -> Vec<String> {
        self.runs()[before..].iter().map(|run| run.path.clone()).collect()
    }

    /// The keys of an occurrence, run by run.
    fn keys(&self, path: &str) -> Vec<String> {
        self.runs().into_iter().filter(|run| run.path == path).map(|run| run.key).collect()
    }

    /// Where a read-only walk over the log ends.
    async fn replayed(&self, job: JobId) -> ReplayEnd {
        let about = self.store.recipe_job(&Namespace::default(), job).await.expect("it answers");
        let events = self.log(job).await;
        let walked = replay(&Namespace::default(), job, &about.expect("it is a recipe"), events).await;
        walked.expect("its definition is good").end
    }
}

#[tokio::test(start_paused = true)]
async fn the_failed_task_runs_again_under_another_key_and_no_recorded_success_does() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r"
id: r
sequence:
  - { id: a, op: work, inputs: { give: 1 } }
  - { id: b, op: work, inputs: { breaks: 1, give: 2 } }
  - { id: c, op: work }
";
    let job = bed.submit(yaml).await;
    assert_eq!(bed.fails(&worker, job).await, "broken");
    let log = bed.log(job).await;
    bed.reopen(job, None).await;
    assert_eq!(bed.replayed(job).await, ReplayEnd::CacheMiss { path: "b".to_owned() });
    let view = bed.finish(&worker, job).await;
    assert_eq!(output(&view), r#"{"a":1,"b":2,"c":null}"#);
    assert_eq!(view.attempt, 2);
    assert_eq!(bed.ran_since(0), ["a", "b", "b", "c"]);
    let keys = bed.keys("b");
    assert_ne!(keys[0], keys[1], "what had ended is another occurrence");
    let events = bed.log(job).await;
    assert_eq!(events[..2], log, "nothing recorded is deleted");
    assert_eq!(
        (events[2].path.as_str(), &events[2].body),
        ("b", &EventBody::Reopened { again: vec![(2, 2)] })
    );
    assert!(matches!(bed.replayed(job).await, ReplayEnd::Completed(_)));
    let done = bed.try_reopen(job, None).await.expect("it answers");
    assert_eq!(done, ReopenAnswer::NotRetryable { state: JobState::Completed });
}

#[tokio::test(start_paused = true)]
async fn a_failed_task_gets_all_its_attempts_again_and_a_retried_sequence_keeps_its_successes() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
sequence:
  - id: outer
    retry: { max_attempts: 2, backoff: 1s }
    sequence:
      - { id: a, op: work }
      - { id: b, op: work, inputs: { breaks: 2 }, retry: { max_attempts: 2, backoff: 1m } }
"#;
    let job = bed.submit(yaml).await;
    bed.fails(&worker, job).await;
    let before = bed.runs().len();
    assert_eq!(before, 6);
    bed.reopen(job, None).await;
    let began = tokio::time::Instant::now();
    assert_eq!(bed.fails(&worker, job).await, "broken", "each occurrence breaks twice");
    assert_eq!(bed.ran_since(before), ["outer!2/b!1", "outer!2/b!2"]);
    assert!(began.elapsed() >= Duration::from_secs(60), "it waits between them again");
    bed.reopen(job, None).await;
    assert_eq!(output(&bed.finish(&worker, job).await), r#"{"outer":{"a":null,"b":null}}"#);
    assert_eq!(bed.ran_since(before + 2), ["outer!2/b!1"]);
    let mut keys = bed.keys("outer!2/b!1");
    keys.dedup();
    assert_eq!(keys.len(), 3);
}

/// Which failure ended the job is what counts, not which was recorded last.
#[tokio::test(start_paused = true)]
async fn a_failure_that_was_caught_stays_one() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
parallel:
  - id: one
    sequence: [{ id: x, op: work, inputs: { breaks: 1 } }]
  - id: two
    sequence:
      - id: y
        op: work
        inputs: { breaks: 1 }
        catch: { op: work, inputs: { give: "${{ error.code }}", takes_ms: 100 } }
  - { id: three, op: work, inputs: { takes_ms: 60000, slow_once: true, give: 3 } }
  - { id: four, op: work, inputs: { breaks: 1 } }
"#;
    let job = bed.submit(yaml).await;
    bed.fails(&worker, job).await;
    let before = bed.runs().len();
    bed.reopen(job, None).await;
    let view = bed.finish(&worker, job).await;
    let mut again = bed.ran_since(before);
    again.retain(|path| path != "two/y/catch");
    again.sort();
    assert_eq!(again, ["four", "one/x", "three"], "both failures, and what was cancelled for them");
    assert!(output(&view).contains(r#""y":"broken""#), "{view:?}");
    let keys = bed.keys("three");
    assert_eq!(keys[0], keys[1], "what was stopped half-way is the same occurrence");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_counted_anew_and_a_sleep_is_not() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r"
id: r
parallel:
  - id: limited
    timeout: 10m
    sequence:
      - { id: a, op: work }
      - { id: b, op: work, inputs: { takes_ms: 3600000, slow_once: true } }
      - { id: c, op: work, inputs: { takes_ms: 300000 } }
  - { id: nap, op: sleep, inputs: { for: 30m } }
";
    let job = bed.submit(yaml).await;
    assert_eq!(bed.fails(&worker, job).await, "timeout");
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    bed.reopen(job, None).await;
    let began = tokio::time::Instant::now();
    let view = bed.finish(&worker, job).await;
    assert_eq!(output(&view), r#"{"limited":{"a":null,"b":null,"c":null},"nap":null}"#);
    assert!(began.elapsed() < Duration::from_secs(600), "the nap's time was over: {:?}", began.elapsed());
    assert_eq!(bed.ran_since(0), ["limited/a", "limited/b", "limited/b", "limited/c"]);
    assert!(matches!(bed.replayed(job).await, ReplayEnd::Completed(_)));
}

/// A timeout around what failed does not count the time in which the job had ended.
#[tokio::test(start_paused = true)]
async fn a_limit_around_a_failure_goes_on_and_still_ends_what_takes_too_long() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r"
id: r
sequence:
  - id: limited
    timeout: 10m
    sequence:
      - { id: a, op: work, inputs: { breaks: 1 } }
      - { id: b, op: work, inputs: { takes_ms: 3600000 } }
";
    let job = bed.submit(yaml).await;
    assert_eq!(bed.fails(&worker, job).await, "broken");
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    bed.reopen(job, None).await;
    let began = tokio::time::Instant::now();
    assert_eq!(bed.fails(&worker, job).await, "timeout");
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(600) && took < Duration::from_secs(3600), "{took:?}");
    assert_eq!(bed.ran_since(0), ["limited/a", "limited/a", "limited/b"]);
}

#[tokio::test(start_paused = true)]
async fn from_a_path_on_everything_after_it_runs_again() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let big = bed.worker("big", "cpu=2");
    let yaml = r#"
id: r
sequence:
  - { id: a, op: work, inputs: { give: 1, ask: { resources: { cpu: "1" } } } }
  - id: loop
    state:
      initial: poll
      states:
        - id: poll
          op: work
          inputs: { give: "${{ transition.payload == null ? 1 : transition.payload + 1 }}" }
          transitions:
            - { to: done, when: "${{ states.poll.outputs >= 3 }}" }
            - { to: poll, payload: "${{ states.poll.outputs }}" }
        - { id: done, op: work }
  - { id: go, op: wait_for_signal, inputs: { name: go } }
  - { id: z, op: work, inputs: { breaks: 2 } }
"#;
    let job = bed.submit(yaml).await;
    let send = async |data: &str| {
        let signal = NewSignal { name: "go".to_owned(), data: data.to_owned(), key: None };
        bed.store.send_signal(&Namespace::default(), job, &signal).await.expect("it answers");
    };
    send("1").await;
    bed.turn(&worker).await.expect("it is queued");
    assert_eq!(bed.fails(&big, job).await, "broken");
    let before = bed.runs().len();
    bed.reopen(job, Some("loop/poll#2")).await;
    assert_eq!(bed.replayed(job).await, ReplayEnd::CacheMiss { path: "loop/poll#2".to_owned() });
    // A signal that was taken for what is reopened is gone; it waits for another.
    bed.turn(&big).await.expect("it is queued");
    assert_eq!(bed.view(job).await.state, JobState::Pending);
    send("2").await;
    assert_eq!(bed.fails(&big, job).await, "broken");
    assert_eq!(bed.ran_since(before), ["loop/poll#2", "loop/poll#3", "loop/done#1", "z"]);
    let before = bed.runs().len();
    bed.reopen(job, Some("z")).await;
    let view = bed.finish(&big, job).await;
    assert!(output(&view).contains(r#""go":2"#), "{view:?}");
    assert_eq!(bed.ran_since(before), ["z"]);
    let mut keys = bed.keys("loop/poll#2");
    keys.dedup();
    assert_eq!(keys.len(), 2, "a success that a person reopened is another occurrence");
}

#[tokio::test(start_paused = true)]
async fn a_path_that_is_none_or_does_not_help_is_refused_with_the_reason() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
sequence:
  - { id: fetch, op: work, retry: { max_attempts: 2, backoff: 1s } }
  - { id: check, op: work, inputs: { fails: 1 } }
  - { id: late, op: work }
"#;
    let job = bed.submit(yaml).await;
    let running = bed.try_reopen(job, None).await.expect("it answers");
    assert_eq!(running, ReopenAnswer::NotRetryable { state: JobState::Queued });
    bed.fails(&worker, job).await;
    let refused = async |from: &str| bed.try_reopen(job, Some(from)).await.expect_err(from);
    let unknown = refused("fetsh").await;
    assert!(matches!(&unknown, ReopenError::UnknownPath { near, .. } if near[0] == "fetch!1"), "{unknown}");
    assert!(matches!(refused("@timeout").await, ReopenError::UnknownPath { .. }));
    assert!(matches!(refused("late").await, ReopenError::Unrecorded { .. }));
    for slip in ["fetch!9", "fetch!0", "fetch#3!1"] {
        let unknown = refused(slip).await;
        assert!(
            matches!(&unknown, ReopenError::UnknownPath { near, .. } if !near.is_empty()),
            "{slip}: {unknown}"
        );
    }
    assert_eq!(bed.log(job).await.len(), 2, "nothing was written");
    let missing = bed.try_reopen(JobId(99), None).await.expect("it answers");
    assert_eq!(missing, ReopenAnswer::NotFound);
    // Without its number a part stands for the first.
    bed.reopen(job, Some("fetch")).await;
    assert_eq!(bed.log(job).await[2].path, "fetch!1");

    let two = r#"
id: r
parallel:
  - { id: one, op: work, inputs: { takes_ms: 100, fails: 1 } }
  - { id: two, op: work }
"#;
    let job = bed.submit(two).await;
    let _ = bed.store.cancel(&Namespace::default(), JobId(1), Duration::ZERO);
    bed.fails(&worker, job).await;
    let stands = bed.try_reopen(job, Some("two")).await.expect_err("one fails it again");
    assert!(matches!(&stands, ReopenError::Stands { at, .. } if at == "one"), "{stands}");

    let stuck = r#"
id: r
sequence:
  - { id: a, op: work, inputs: { give: 1 } }
  - { id: b, op: work, inputs: { note: "${{ sequence.a.outputs + 'text' }}" } }
"#;
    let job = bed.submit(stuck).await;
    bed.fails(&worker, job).await;
    let inevitable = bed.try_reopen(job, None).await.expect_err("it would fail at once");
    assert!(matches!(&inevitable, ReopenError::Inevitable(_)), "{inevitable}");
    bed.reopen(job, Some("a")).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_goes_on_where_it_was_and_starts_its_cancelled_child_anew() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
parallel:
  - { id: mine, op: child_job, inputs: { handler: h } }
  - { id: nap, op: sleep, inputs: { for: 2h } }
"#;
    let job = bed.submit(yaml).await;
    bed.turn(&worker).await.expect("it is queued");
    let child = |events: &[Event]| -> Vec<JobId> {
        let started = events.iter().filter_map(|event| match event.body {
            EventBody::ChildStarted { job } => Some(job),
            _ => None,
        });
        started.collect()
    };
    let first = child(&bed.log(job).await)[0];
    let _ = bed.store.cancel(&Namespace::default(), job, Duration::ZERO);
    assert_eq!(bed.view(first).await.state, JobState::Canceled);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    bed.reopen(job, None).await;
    let began = tokio::time::Instant::now();
    bed.turn(&worker).await.expect("it is queued");
    let children = child(&bed.log(job).await);
    assert_eq!(children.len(), 2);
    assert_ne!(children[1], first);
    bed.complete(&[children[1]]).await;
    tokio::time::sleep(Duration::from_secs(3500)).await;
    let view = bed.finish(&worker, job).await;
    assert_eq!(output(&view), r#"{"mine":null,"nap":null}"#);
    let took = began.elapsed();
    assert!(
        took >= Duration::from_secs(3000) && took < Duration::from_secs(4000),
        "the nap goes on: {took:?}"
    );
}

impl Bed {
    /// Completes HANDLER jobs.
    async fn complete(&self, jobs: &[JobId]) {
        let worker = self.worker("handler", "");
        let request = OpenClaim {
            owner: worker.owner,
            command: CommandId::generate(),
            repeat: false,
            routes: [leasehold_actors::domain::Route::handler("h")].into(),
            limit: 10,
            lease: LEASE,
            facts: None,
        };
        let grants = self.store.claim(&request).await.expect("it answers").grants;
        assert_eq!(grants.len(), jobs.len());
        for grant in grants {
            assert!(jobs.contains(&grant.authority.job), "{grant:?}");
            let end = End::Complete { exit_code: None, output: None };
            self.store.end(&grant.authority, CommandId::generate(), &end).await.expect("it answers");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_child_is_started_anew_and_one_that_may_stay_is_waited_for() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = r#"
id: r
parallel:
  - { id: stays, op: child_job, inputs: { handler: h, on_parent_end: leave } }
  - { id: fails, op: child_job, inputs: { handler: h } }
"#;
    let job = bed.submit(yaml).await;
    bed.turn(&worker).await.expect("it is queued");
    let started = async |path: &str| -> Vec<JobId> {
        let events = bed.log(job).await.into_iter().filter(|event| event.path == path);
        events
            .filter_map(|event| match event.body {
                EventBody::ChildStarted { job } => Some(job),
                _ => None,
            })
            .collect()
    };
    let (stays, fails) = (started("stays").await[0], started("fails").await[0]);
    let _ = bed.store.cancel(&Namespace::default(), fails, Duration::ZERO);
    assert_eq!(bed.fails(&worker, job).await, "child_canceled");
    assert_eq!(bed.view(stays).await.state, JobState::Queued);
    bed.reopen(job, None).await;
    bed.turn(&worker).await.expect("it is queued");
    let again = started("fails").await;
    assert_eq!((started("stays").await, again.len()), (vec![stays], 2));
    bed.complete(&[stays, again[1]]).await;
    assert_eq!(output(&bed.finish(&worker, job).await), r#"{"stays":null,"fails":null}"#);
}

/// What ended a job without its recipe's doing is nothing to forget: it goes on.
#[tokio::test(start_paused = true)]
async fn after_a_handoff_loop_or_a_contradiction_the_job_goes_on() {
    let bed = Bed::new();
    let small = bed.worker("small", "cpu=1");
    let yaml = "id: r\nsequence:\n  - { id: a, op: work }\n  - { id: b, op: work, execution_needs: { resources: { cpu: '4' } } }\n";
    let job = bed.submit(yaml).await;
    // Its published needs keep it from a worker that does not fit; after a recovery they only order.
    for _ in 0..40 {
        if bed.view(job).await.state == JobState::Failed {
            break;
        }
        if bed.turn(&small).await.is_none() {
            let big = bed.worker("big", "cpu=4");
            if bed.claim(&big).await.is_some() {
                bed.recover(&small, job).await;
            }
            tokio::time::sleep(Duration::from_secs(6)).await;
        }
    }
    assert_eq!(bed.view(job).await.failure_code.as_deref(), Some("handoff_loop"));
    bed.reopen(job, None).await;
    let big = bed.worker("big", "cpu=4");
    assert_eq!(bed.finish(&big, job).await.state, JobState::Completed);
    assert_eq!(bed.ran_since(0), ["a", "b"]);

    let job = bed.submit("id: r\nsequence: [{ id: a, op: work }, { id: b, op: work }]\n").await;
    let grant = bed.claim(&big).await.expect("it is queued");
    let forged = NewEvent::Task {
        op: "work".to_owned(),
        input_hash: "forged".to_owned(),
        attempt: 1,
        outcome: TaskOutcome::Succeeded { output: "1".into() },
        directive: None,
    };
    bed.store.record(&grant.authority, "a", &forged).await.expect("it answers");
    let (lease, _watch) = bed.lease(&grant);
    let outcome = big.engine.run(&grant, &lease).await;
    bed.report(&grant, &lease, outcome).await;
    assert_eq!(bed.view(job).await.failure_code.as_deref(), Some("not_deterministic"));
    bed.reopen(job, None).await;
    assert_eq!(bed.fails(&big, job).await, "not_deterministic", "the record still stands");
    bed.reopen(job, Some("a")).await;
    assert_eq!(bed.finish(&big, job).await.state, JobState::Completed);
}

/// E1: a worker dies at each call after the reopening, and what is recorded then stands as it always does.
#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_after_a_reopening_costs_no_result() {
    let yaml = r#"
id: r
sequence:
  - { id: a, op: work, inputs: { give: 1 } }
  - id: again
    retry: { max_attempts: 2, backoff: 100ms }
    timeout: 1h
    sequence:
      - { id: b, op: work, inputs: { give: 2 } }
      - { id: c, op: work, inputs: { breaks: 1, give: 3 }, timeout: 30s }
  - id: both
    parallel:
      - { id: left, op: work, inputs: { breaks: 1, takes_ms: 5 } }
      - { id: nap, op: sleep, inputs: { for: 1m } }
"#;
    for at in 1.. {
        for how in [Do::DieBefore, Do::DieAfter] {
            let bed = Bed::new();
            let calm = bed.worker("calm", "");
            let job = bed.submit(yaml).await;
            bed.fails(&calm, job).await;
            bed.reopen(job, Some("again!2/c")).await;
            bed.fails(&calm, job).await;
            tokio::time::sleep(Duration::from_secs(7200)).await;
            bed.reopen(job, None).await;
            let before = bed.runs().len();
            let runtime =
                Between::new(&bed.store, move |number, _| if number == at { how } else { Do::Pass });
            let dead = Arc::clone(&runtime);
            let first = bed.worker_on(runtime, "first", "", &bed.ops("first"));
            let grant = bed.claim(&first).await.expect("it is queued");
            let (lease, watch) = bed.lease(&grant);
            let died = tokio::select! {
                outcome = first.engine.run(&grant, &lease) => {
                    bed.report(&grant, &lease, outcome).await;
                    false
                }
                () = dead.dead.notified() => true,
            };
            watch.stop(StopReason::LeaseLost, None);
            drop(lease);
            tokio::task::yield_now().await;
            if died && bed.view(job).await.state == JobState::Running {
                bed.recover(&calm, job).await;
            }
            let view = bed.finish(&calm, job).await;
            assert_eq!(
                output(&view),
                r#"{"a":1,"again":{"b":2,"c":3},"both":{"left":null,"nap":null}}"#,
                "{how:?} at call {at}"
            );
            let mut again = bed.ran_since(before);
            again.dedup();
            assert_eq!(again, ["both/left"], "{how:?} at call {at}");
            let mut keys = bed.keys("both/left");
            keys.dedup();
            assert_eq!(keys.len(), 2, "{how:?} at call {at}");
            if !died {
                assert!(at > 3, "{at}");
                return;
            }
        }
    }
}

/// A reopening that was worked out over another log is not written.
#[tokio::test(start_paused = true)]
async fn a_reopening_of_a_log_that_changed_is_worked_out_again() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let job = bed.submit("id: r\nsequence: [{ id: a, op: work, inputs: { breaks: 2 } }]\n").await;
    bed.fails(&worker, job).await;
    bed.reopen(job, None).await;
    bed.fails(&worker, job).await;
    let stale = Reopening { path: "a".to_owned(), again: vec![(1, 1)], events: 1 };
    let answer = bed.store.reopen(&Namespace::default(), job, &stale).await.expect("it answers");
    assert_eq!(answer, ReopenAnswer::LogChanged);
    bed.reopen(job, None).await;
    assert_eq!(bed.finish(&worker, job).await.state, JobState::Completed);
}
