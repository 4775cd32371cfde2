//! How a run ends when nothing goes wrong.

use leasehold_actors::{
    ports::recipe::{NewSignal, RecipeStore as _},
    testing::StoreHarness as _,
};

use super::{super::Given, *};

const TWO: &str = "id: r\nsequence:\n  - { id: a, op: work }\n  - { id: b, op: work }\n";

/// E7: the store of all these tests fails them when anything is acquired.
#[test]
fn a_supplied_lease_completes_its_recipe_and_tells_what_happens_in_order() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(TWO).await;
        let capability = bed.export().await;
        let end = bed.run(capability, job).await;
        let RunEnd::Completed { output: Some(output) } = &end else { panic!("{end:?}") };
        assert_eq!(&**output, "{\"a\":{\"done\":true},\"b\":{\"done\":true}}");
        assert_eq!((end.word(), end.exit_code()), ("completed", 0));
        assert_eq!(bed.state(job).await, JobState::Completed);
        assert_eq!(bed.ran(), ["a", "b"]);
        assert_eq!(bed.told(), ["renewed", "a started", "a finished", "b started", "b finished"]);
        assert_eq!((bed.net.calls("redeem"), bed.net.calls("read_lease")), (1, 1));
    });
}

/// E7
#[test]
fn a_lease_that_is_held_in_memory_is_run_without_an_export() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(TWO).await;
        let grant = bed.acquire().await;
        assert_eq!(bed.run(&grant, job).await.word(), "completed");
        assert_eq!(bed.net.calls("redeem"), 0, "there is nobody else to be kept out");
        assert_eq!(bed.state(job).await, JobState::Completed);
    });
}

/// E7: one lease lifecycle each, and a capability each.
#[test]
fn a_recipe_that_waits_gives_its_lease_back_and_goes_on_under_the_next() {
    paused(async {
        let bed = Bed::new();
        let yaml = concat!(
            "id: r\nsequence:\n",
            "  - { id: nap, op: sleep, inputs: { for: 1h } }\n",
            "  - { id: ask, op: wait_for_signal, inputs: { name: go } }\n",
            "  - { id: child, op: child_job, inputs: { handler: resize } }\n",
            "  - { id: last, op: work }\n",
        );
        let job = bed.submit(yaml).await;
        let end = bed.run(bed.export().await, job).await;
        let RunEnd::Waiting(waiting) = &end else { panic!("{end:?}") };
        assert!(
            waiting.time.is_some() && waiting.signals.is_empty() && waiting.jobs.is_empty(),
            "{waiting:?}"
        );
        assert_eq!(end.exit_code(), 0);
        assert_eq!(bed.state(job).await, JobState::Pending);
        tokio::time::sleep(s(3601)).await;

        let end = bed.run(bed.export().await, job).await;
        let RunEnd::Waiting(waiting) = &end else { panic!("{end:?}") };
        assert_eq!((waiting.time, &waiting.signals), (None, &vec!["go".to_owned()]));
        let signal = NewSignal { name: "go".to_owned(), data: "1".to_owned(), key: None };
        bed.store.send_signal(&Namespace::default(), job, &signal).await.expect("it answers");

        let end = bed.run(bed.export().await, job).await;
        let RunEnd::Waiting(waiting) = &end else { panic!("{end:?}") };
        let [child] = waiting.jobs[..] else { panic!("{waiting:?}") };
        assert_eq!((waiting.time, waiting.signals.is_empty()), (None, true));
        bed.store.request_cancel(&Namespace::default(), child, Duration::ZERO).await;

        let end = bed.run(bed.export().await, job).await;
        let RunEnd::Failed(failure) = &end else { panic!("{end:?}") };
        assert_eq!((failure.code.as_str(), end.exit_code()), ("child_canceled", 1));
        assert_eq!(bed.told(), ["renewed", "waiting", "renewed", "waiting", "renewed", "waiting", "renewed"]);
    });
}

/// E2, E7: what does not fit does not run, and the job goes on elsewhere.
#[test]
fn an_insufficient_allocation_runs_nothing_and_hands_off() {
    paused(async {
        let bed = Bed::new();
        let yaml = "id: r\nexecution: { resources: { memory: 4Gi } }\nsequence: [ { id: a, op: work } ]\n";
        for allocation in ["", "memory=1Gi"] {
            let job = bed.submit(yaml).await;
            let grant = bed.acquire().await;
            let ctx = bed.context(allocation);
            let end = bed.run_with(ctx, Capability::from(grant.authority), bed.request(job)).await;
            let RunEnd::EnvironmentRequired(handoff) = &end else { panic!("{end:?}") };
            assert_eq!((handoff.job, handoff.path.as_str(), handoff.mismatches.len()), (job, "a", 1));
            assert_eq!((end.word(), end.exit_code()), ("environment_required", 0));
            assert_eq!(bed.ran(), [""; 0]);
            assert_ne!(bed.state(job).await, JobState::Running);
            assert_eq!(bed.view(job).await.route, ("recipe".to_owned(), "work".to_owned()));
            // Not to be claimed for the next round by a supervisor that says nothing of what it has.
            bed.store.request_cancel(&Namespace::default(), job, Duration::ZERO).await;
        }
        assert_eq!(bed.told(), ["renewed", "a handed off", "renewed", "a handed off"]);
        let job = bed.submit(yaml).await;
        let capability = bed.export().await;
        let end = bed.run_with(bed.context("memory=4Gi"), capability, bed.request(job)).await;
        assert_eq!((end.word(), bed.ran().len()), ("completed", 1));
    });
}

/// E7
#[test]
fn a_task_without_its_op_sends_the_job_to_that_task_s_route() {
    paused(async {
        let bed = Bed::new();
        let yaml = "id: r\nsequence: [ { id: a, op: work }, { id: b, op: elsewhere } ]\n";
        let job = bed.submit(yaml).await;
        let end = bed.run(bed.export().await, job).await;
        let RunEnd::OtherRoute { route } = &end else { panic!("{end:?}") };
        assert_eq!((route.task.as_str(), end.exit_code()), ("elsewhere", 0));
        assert_eq!(bed.told(), ["renewed", "a started", "a finished", "b elsewhere"]);
        // Under that route it comes again, and nothing of it runs twice.
        assert_eq!(bed.run(bed.export().await, job).await.word(), "other_route");
        assert_eq!(bed.ran(), ["a"]);
    });
}

/// E7
#[test]
fn a_recipe_that_fails_is_failed_for_good() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit("id: r\nsequence: [ { id: a, op: fail } ]\n").await;
        let end = bed.run(bed.export().await, job).await;
        let RunEnd::Failed(failure) = &end else { panic!("{end:?}") };
        assert_eq!((failure.code.as_str(), end.exit_code()), ("broken", 1));
        assert_eq!(bed.state(job).await, JobState::Failed);
        assert_eq!(bed.told(), ["renewed", "a started", "a finished"]);
    });
}

#[test]
fn a_run_that_is_told_to_stop_gives_the_job_back() {
    paused(async {
        let bed = Bed::new();
        let yaml = "id: r\nsequence: [ { id: a, op: work }, { id: b, op: long } ]\n";
        // By its deadline.
        let job = bed.submit(yaml).await;
        let mut request = bed.request(job);
        request.deadline = Some(s(100));
        let began = tokio::time::Instant::now();
        let end = bed.run_with(bed.context(""), bed.export().await, request).await;
        assert_eq!(end, RunEnd::Released(Given::Deadline));
        assert_eq!((end.exit_code(), began.elapsed().as_secs()), (0, 100));
        assert_eq!(bed.state(job).await, JobState::Pending);
        assert!(bed.net.calls("renew") >= 9, "it was renewed all the time");
        // By a drain, whose grace it may use up.
        let ctx = bed.context("");
        let (stop, began) = (ctx.stop.clone(), Arc::clone(&bed.long_began));
        // That of the first run.
        began.notified().await;
        let told = tokio::spawn(async move {
            began.notified().await;
            stop.drain();
            tokio::time::Instant::now()
        });
        let end = bed.run_with(ctx, bed.export().await, bed.request(job)).await;
        assert_eq!(end, RunEnd::Released(Given::Stopped));
        assert_eq!(told.await.expect("it was told").elapsed().as_secs(), 20);
        // At once.
        let ctx = bed.context("");
        let (stop, began) = (ctx.stop.clone(), Arc::clone(&bed.long_began));
        let told = tokio::spawn(async move {
            began.notified().await;
            stop.now();
            tokio::time::Instant::now()
        });
        let end = bed.run_with(ctx, bed.export().await, bed.request(job)).await;
        assert_eq!(end, RunEnd::Released(Given::Stopped));
        assert_eq!(told.await.expect("it was told").elapsed().as_secs(), 0);
        assert_eq!(bed.ran(), ["a", "b", "b stopped", "b", "b stopped", "b", "b stopped"]);
        let view = bed.view(job).await;
        assert_eq!((view.attempt, view.failures), (1, [0, 0, 0]), "none of that is an attempt or a failure");
    });
}

#[test]
fn a_requested_cancel_cancels_the_job() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit("id: r\nsequence: [ { id: a, op: long } ]\n").await;
        let capability = bed.export().await;
        let (store, began) = (bed.store.clone(), Arc::clone(&bed.long_began));
        tokio::spawn(async move {
            began.notified().await;
            store.request_cancel(&Namespace::default(), job, s(5)).await;
        });
        let end = bed.run(capability, job).await;
        assert_eq!((&end, end.exit_code()), (&RunEnd::Canceled, 1));
        assert_eq!(bed.state(job).await, JobState::Canceled);
    });
}

/// What is left of the attempt's timeout is what counts, not when the lease was handed over.
#[test]
fn the_timeout_of_the_attempt_goes_on_over_the_handover() {
    paused(async {
        let bed = Bed::new();
        let yaml = "id: r\nsequence: [ { id: a, op: long } ]\n";
        let job = bed.submit_with(yaml, |job| job.timeout_ms = Some(60_000)).await;
        let capability = bed.export().await;
        tokio::time::sleep(s(25)).await;
        let began = tokio::time::Instant::now();
        let end = bed.run(capability, job).await;
        let RunEnd::Failed(failure) = &end else { panic!("{end:?}") };
        assert_eq!(failure.code, "timeout");
        assert!(began.elapsed() <= s(36), "{:?}", began.elapsed());
    });
}

#[test]
fn the_hook_before_a_run_is_called_under_the_renewing_lease_and_may_say_no() {
    paused(async {
        let bed = Bed::new();
        let job = bed.submit(TWO).await;
        let capability = bed.export().await;
        let mut request = bed.request(job);
        let starts = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&starts);
        request.before_run = Some(Arc::new(move |start| {
            noted.lock().unwrap().push(start);
            Box::pin(async {
                tokio::time::sleep(s(100)).await;
                Err("the disk is full".to_owned())
            })
        }));
        let end = bed.run_with(bed.context(""), capability, request).await;
        assert_eq!(end, RunEnd::Released(Given::BeforeRun("the disk is full".to_owned())));
        assert!(bed.net.calls("renew") >= 9, "longer than its lease, and renewed all the time");
        assert_eq!(bed.ran(), [""; 0]);
        assert_eq!(bed.state(job).await, JobState::Pending);
        let start = starts.lock().unwrap().pop().expect("it was called");
        assert_eq!((start.job, start.recorded), (job, 0));

        let mut request = bed.request(job);
        request.before_run = Some(Arc::new(|_| Box::pin(async { Ok(()) })));
        let end = bed.run_with(bed.context(""), bed.export().await, request).await;
        assert_eq!(end.word(), "completed");
    });
}
