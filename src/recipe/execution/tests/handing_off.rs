//! Tasks that do not fit where they are, and jobs that go on elsewhere. (E1 to E9 are played on both stores, in
//! `tests/it/recipes`.)

use super::*;

fn handoff_of(worker: &Worker) -> Vec<ExecutionHandoff> {
    worker.handoffs.lock().unwrap().clone()
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
