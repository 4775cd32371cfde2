//! Tasks that do not fit where they are, and jobs that go on elsewhere.

use leasehold_actors::ports::PayloadUpdate;

use super::*;

fn handoff_of(worker: &Worker) -> Vec<ExecutionHandoff> {
    worker.handoffs.lock().unwrap().clone()
}

/// E8
#[tokio::test(start_paused = true)]
async fn a_job_goes_from_amd64_to_arm64_and_back_over_nested_scopes_each_task_once() {
    let bed = Bed::new();
    let (amd, arm) = (bed.worker("amd", "platform=linux/amd64"), bed.worker("arm", "platform=linux/arm64"));
    let yaml = r#"
id: r
execution: { platform: linux/amd64 }
sequence:
  - { id: first, op: work, inputs: { give: 1 } }
  - id: inner
    execution_needs: { platform: linux/arm64 }
    sequence:
      - { id: a, op: work, inputs: { give: "${{ sequence.first.outputs + 1 }}" } }
      - { id: b, op: work }
  - { id: last, op: work, inputs: { give: "${{ sequence.inner.outputs.a + 1 }}" } }
"#;
    let job = bed.submit(yaml).await;
    for worker in [&amd, &arm, &amd] {
        bed.turn(worker).await.expect("the exact hint fits this one");
    }
    assert_eq!(output(&bed.view(job).await), r#"{"first":1,"inner":{"a":2,"b":null},"last":3}"#);
    assert_eq!(bed.ran(), ["first on amd", "inner/a on arm", "inner/b on arm", "last on amd"]);
    let told: Vec<_> = handoff_of(&amd).into_iter().chain(handoff_of(&arm)).collect();
    assert_eq!(told.iter().map(|h| h.path.as_str()).collect::<Vec<_>>(), ["inner/a", "last"]);
    assert_eq!(told[0].requirements.to_string(), "platform=linux/arm64");
    assert!(told.iter().all(|handoff| handoff.published));
    assert_eq!(bed.view(job).await.attempt, 1, "a handoff is no attempt");
}

/// E2, E9: whoever claims it, a task runs only where it fits; and a stale hint keeps nobody for long.
#[tokio::test(start_paused = true)]
async fn a_task_never_runs_where_it_does_not_fit() {
    let bed = Bed::new();
    let (small, large) = (bed.worker("small", "memory=1Gi"), bed.worker("large", "memory=32Gi"));
    let yaml = r#"
id: r
sequence:
  - { id: probe, op: work, inputs: { give: { memory: 16Gi } } }
  - id: heavy
    execution_needs: { resources: { memory: "${{ sequence.probe.outputs.memory }}" } }
    op: work
  - { id: light, op: work }
"#;
    let job = bed.submit(yaml).await;
    let turn = bed.turn(&small).await.expect("it is queued");
    assert_eq!(turn.ended, Some(Ended::Rescheduled));
    assert_eq!(bed.view(job).await.route, ("recipe".to_owned(), "work".to_owned()));
    assert!(bed.turn(&small).await.is_none(), "the exact hint keeps it from who declined it");
    bed.turn(&large).await.expect("it fits");
    assert_eq!(bed.ran(), ["probe on small", "heavy on large", "light on large"]);
    assert_eq!(bed.view(job).await.state, JobState::Completed);
}

/// E4
#[tokio::test(start_paused = true)]
async fn a_replay_asks_for_no_environment_that_finished_work_once_needed() {
    let bed = Bed::new();
    let (large, small) = (bed.worker("large", "memory=32Gi"), bed.worker("small", ""));
    let yaml = r#"
id: r
sequence:
  - { id: heavy, execution_needs: { resources: { memory: 16Gi } }, op: work }
  - { id: nap, op: sleep, inputs: { for: 1h } }
  - { id: light, op: work }
"#;
    let job = bed.submit(yaml).await;
    bed.turn(&large).await.expect("it is queued");
    let before = bed.view(job).await;
    tokio::time::sleep(Duration::from_secs(3601)).await;
    let turn = bed.turn(&small).await.expect("nothing keeps it");
    assert!(matches!(turn.outcome, WorkOutcome::Completed { .. }), "{turn:?}");
    let after = bed.view(job).await;
    assert_eq!(after.payload_revision, before.payload_revision);
    assert_eq!(bed.ran(), ["heavy on large", "light on small"]);
    assert_eq!(handoff_of(&small), []);
}

/// E5
#[tokio::test(start_paused = true)]
async fn a_publication_keeps_what_another_client_writes_meanwhile() {
    let bed = Bed::new();
    let (store, left) = (bed.store.clone(), Arc::new(AtomicU32::new(3)));
    let job_cell = Arc::new(Mutex::new(None));
    let job_of = Arc::clone(&job_cell);
    let runtime = Between::new(&bed.store, move |_, name| {
        let job: Option<JobId> = *job_of.lock().unwrap();
        if name == "reschedule"
            && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
        {
            let (store, left) = (store.clone(), left.load(Ordering::Relaxed));
            futures_util::FutureExt::now_or_never(async move {
                let job = job.expect("it is submitted");
                let present = store.recipe_job(&Namespace::default(), job).await.unwrap().unwrap();
                let update = PayloadUpdate {
                    value: format!(r#"{{"mine": {left}.50 }}"#),
                    expected_revision: present.payload_revision,
                };
                store.set_payload(&Namespace::default(), job, &update).await.unwrap();
            })
            .expect("the memory store never waits");
        }
        Do::Pass
    });
    let worker = bed.worker_on(runtime, "w", "", &bed.ops("w"));
    let yaml = "id: r\nexecution: { resources: { cpu: \"2\" } }\nop: work\n";
    let job = bed.submit(yaml).await;
    *job_cell.lock().unwrap() = Some(job);
    let turn = bed.turn(&worker).await.expect("it is queued");
    assert_eq!(turn.ended, Some(Ended::Rescheduled), "{turn:?}");
    let payload = bed.store.recipe_job(&Namespace::default(), job).await.unwrap().unwrap().payload;
    assert!(payload.starts_with(r#"{"mine": 0.50"#), "{payload}");
    assert!(
        payload.contains(r#""execution":{"version":1,"requirements":{"resources":{"cpu":"2"}}"#),
        "{payload}"
    );
    assert_eq!(handoff_of(&worker).len(), 1);
}

/// E6
#[tokio::test(start_paused = true)]
async fn a_handoff_without_an_answer_runs_nothing_and_reports_none() {
    for lost in [Do::LoseCall, Do::LoseAnswer] {
        let bed = Bed::new();
        let runtime =
            Between::new(&bed.store, move |_, name| if name == "reschedule" { lost } else { Do::Pass });
        let worker = bed.worker_on(runtime, "w", "", &bed.ops("w"));
        let large = bed.worker("large", "cpu=4");
        let job = bed.submit("id: r\nexecution: { resources: { cpu: \"2\" } }\nop: work\n").await;
        let turn = bed.turn(&worker).await.expect("it is queued");
        assert_eq!(turn.outcome, WorkOutcome::Abandoned);
        assert_eq!(handoff_of(&worker), []);
        if lost == Do::LoseCall {
            bed.recover(&large, job).await;
        }
        bed.finish(&large, job).await;
        assert_eq!(bed.ran(), [". on large"]);
    }
}

/// E6: one answer is lost, the repeat is answered: that is an acknowledgement, and counts once.
#[tokio::test(start_paused = true)]
async fn an_answer_to_the_repeat_of_a_handoff_acknowledges_it() {
    let bed = Bed::new();
    let first = AtomicU32::new(0);
    let runtime = Between::new(&bed.store, move |_, name| {
        let lose = name == "reschedule" && first.fetch_add(1, Ordering::Relaxed) == 0;
        if lose { Do::LoseAnswer } else { Do::Pass }
    });
    let worker = bed.worker_on(runtime, "w", "", &bed.ops("w"));
    bed.submit("id: r\nexecution: { resources: { cpu: \"2\" } }\nop: work\n").await;
    let turn = bed.turn(&worker).await.expect("it is queued");
    assert_eq!(turn.ended, Some(Ended::Rescheduled));
    assert_eq!(handoff_of(&worker).len(), 1);
}

/// E3: what stands in the client payload is never taken for a requirement.
#[tokio::test(start_paused = true)]
async fn needs_come_from_the_recipe_and_its_log_and_never_from_the_payload() {
    let bed = Bed::new();
    let worker = bed.worker("w", "cpu=1");
    let published = r#"{"execution":{"version":1,"requirements":{"resources":{"cpu":"64"}}}}"#;
    let job = bed.submit_with("id: r\nop: work\n", |_, job| job.payload = published.to_owned()).await;
    bed.finish(&worker, job).await;
    assert_eq!(bed.ran(), [". on w"]);
    let needy = bed
        .submit_with("id: r\nop: work\n", |spec, _| {
            spec.require = RawJson::new(r#"{"resources":{"cpu":"2"}}"#).unwrap();
        })
        .await;
    let turn = bed.turn(&worker).await.expect("nothing is published yet");
    assert_eq!(turn.ended, Some(Ended::Rescheduled));
    assert!(!bed.view(needy).await.state.is_terminal());
    assert_eq!(handoff_of(&worker)[0].requirements.to_string(), "cpu=2");
}

#[tokio::test(start_paused = true)]
async fn what_a_task_asks_for_counts_from_the_next_live_task_on_and_only_if_it_succeeds() {
    let bed = Bed::new();
    let (small, large) = (bed.worker("small", "memory=1Gi"), bed.worker("large", "memory=32Gi"));
    let yaml = r#"
id: r
execution: { resources: { memory: 1Gi } }
sequence:
  - id: fails
    op: work
    inputs: { fails: 1, ask: { resources: { memory: 64Gi } } }
    catch: { op: work }
  - { id: asks, op: work, inputs: { ask: { resources: { memory: 16Gi } } } }
  - { id: heavy, op: work }
"#;
    let job = bed.submit(yaml).await;
    bed.turn(&small).await.expect("it is queued");
    bed.turn(&large).await.expect("it fits");
    assert_eq!(bed.ran(), ["fails on small", "fails/catch on small", "asks on small", "heavy on large"]);
    assert_eq!(bed.view(job).await.state, JobState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_the_op_sends_the_job_to_the_route_of_its_task() {
    let bed = Bed::new();
    let (without, with) = (bed.worker("without", ""), bed.worker("with", ""));
    let mut ops = bed.ops("with");
    let other = Arc::clone(ops.get("work").unwrap());
    ops.register_shared("other", other).unwrap();
    let with = Worker {
        engine: bed
            .worker_on(Arc::new(StoreRuntime::new(Arc::new(bed.store.clone()))), "with", "", &ops)
            .engine,
        ..with
    };
    let yaml = "id: r\nsequence:\n  - { id: a, op: work }\n  - { id: b, op: other }\n";
    let job = bed.submit(yaml).await;
    bed.turn(&without).await.expect("it is queued");
    assert_eq!(bed.view(job).await.route, ("recipe".to_owned(), "other".to_owned()));
    assert!(bed.turn(&without).await.is_none(), "it does not poll that route");
    bed.turn(&with).await.expect("it has the op");
    assert_eq!(bed.ran(), ["a on without", "b on with"]);
    assert_eq!(handoff_of(&without), []);
}

/// What fits goes on beside what does not; only then the job is handed on, for the first task in the document.
#[tokio::test(start_paused = true)]
async fn a_parallel_is_handed_on_when_nothing_runs_and_nothing_that_fits_is_left() {
    let bed = Bed::new();
    let worker = bed.worker("w", "cpu=1");
    let yaml = r#"
id: r
parallel:
  - id: first
    sequence:
      - { id: a, op: work, inputs: { takes_ms: 3000 } }
      - { id: b, execution_needs: { resources: { cpu: "8" } }, op: work }
  - { id: second, execution_needs: { resources: { cpu: "4" } }, op: work }
  - id: third
    sequence:
      - { id: a, op: work, inputs: { takes_ms: 1000 } }
      - { id: b, op: work, inputs: { takes_ms: 1000 } }
"#;
    let job = bed.submit(yaml).await;
    let turn = bed.turn(&worker).await.expect("it is queued");
    assert_eq!(turn.ended, Some(Ended::Rescheduled));
    assert_eq!(bed.log(job).await.len(), 3);
    let told = handoff_of(&worker);
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].path.as_str(), told[0].requirements.to_string().as_str()), ("first/b", "cpu=8"));
    let large = bed.worker("large", "cpu=8");
    assert_eq!(bed.finish(&large, job).await.state, JobState::Completed);
}

#[tokio::test(start_paused = true)]
async fn an_execution_payload_that_cannot_be_read_is_refused_and_after_five_times_final() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let bad = r#"{"execution":{"version":1,"requirements":{"cpu":"2"}}}"#;
    let job = bed.submit_with("id: r\nop: work\n", |_, job| job.payload = bad.to_owned()).await;
    for _ in 0..4 {
        let turn = bed.turn(&worker).await.expect("it is queued");
        assert_eq!(turn.outcome, WorkOutcome::Abandoned);
        bed.recover(&worker, job).await;
    }
    bed.turn(&worker).await.expect("it is queued");
    let view = bed.view(job).await;
    assert_eq!(view.failure_code.as_deref(), Some("bad_execution_payload"));
    assert_eq!(bed.ran(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_engine_is_not_built_with_what_is_not_its_runtimes() {
    let bed = Bed::new();
    let inner: Arc<dyn JobRuntime> = Arc::new(StoreRuntime::new(Arc::new(bed.store.clone())));
    let tell: OnHandoff = Arc::new(|_| {});
    let wrapped = || ExecutionRuntime::new(Arc::clone(&inner), Allocation::default(), Arc::clone(&tell));
    let build = |runtime: Arc<dyn JobRuntime>, options: RecipeWorkerOptions| {
        RecipeEngine::new(runtime, options, &Ops::new(), Arc::default(), Handle::current()).map(|_| ())
    };
    let options = |of: &ExecutionRuntime| RecipeWorkerOptions {
        stage_execution: Some(of.stage()),
        wrap_task_worker: Some(of.wrap_task_worker()),
        allocation: Allocation::default(),
        on_handoff: Arc::clone(&tell),
    };
    use super::super::EngineError as E;
    let runtime = wrapped();
    let right = options(&runtime);
    assert_eq!(build(Arc::new(wrapped()), right.clone()), Err(E::AnotherRuntime));
    assert_eq!(build(Arc::clone(&inner), right.clone()), Err(E::AnotherRuntime));
    let runtime: Arc<dyn JobRuntime> = Arc::new(runtime);
    let none = RecipeWorkerOptions { stage_execution: None, wrap_task_worker: None, ..right.clone() };
    assert_eq!(build(Arc::clone(&runtime), none.clone()), Err(E::AnotherRuntime));
    let half = RecipeWorkerOptions { stage_execution: None, ..right.clone() };
    assert_eq!(build(Arc::clone(&runtime), half), Err(E::HalfGuarded));
    let mut more = Allocation::default();
    more.set(leasehold_actors::domain::execution::Fact::Cpu, "1").unwrap();
    let other = RecipeWorkerOptions { allocation: more, ..right.clone() };
    assert_eq!(build(Arc::clone(&runtime), other), Err(E::AnotherAllocation));
    let other = RecipeWorkerOptions { on_handoff: Arc::new(|_| {}), ..right.clone() };
    assert_eq!(build(Arc::clone(&runtime), other), Err(E::AnotherCallback));
    assert_eq!(build(runtime, right), Ok(()));
    assert_eq!(build(inner, none), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_a_guard_refuses_every_job_that_needs_anything() {
    let bed = Bed::new();
    let worker = bed.worker("w", "cpu=64");
    let none = RecipeWorkerOptions {
        stage_execution: None,
        wrap_task_worker: None,
        allocation: Allocation::default(),
        on_handoff: Arc::new(|_| {}),
    };
    let inner = Arc::new(StoreRuntime::new(Arc::new(bed.store.clone())));
    let engine = RecipeEngine::new(inner, none, &bed.ops("w"), Arc::default(), Handle::current()).unwrap();
    let worker = Worker { engine, ..worker };
    let free = bed.submit("id: r\nop: work\n").await;
    assert_eq!(bed.finish(&worker, free).await.state, JobState::Completed);
    bed.submit("id: r\nop: work\nexecution_needs: { resources: { cpu: \"1\" } }\n").await;
    let turn = bed.turn(&worker).await.expect("it is queued");
    match turn.outcome {
        WorkOutcome::Failed(failure) => assert_eq!(failure.code, "unguarded_requirements"),
        other => panic!("{other:?}"),
    }
    assert_eq!(bed.runs().len(), 1);
}
