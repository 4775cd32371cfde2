//! Tasks that do not fit where they are, and jobs that go on elsewhere.

use std::time::Duration;

use leasehold::recipe::execution::replay;
use leasehold_actors::{
    domain::{JobState, Namespace, RawJson},
    ports::{Ended, PayloadUpdate, recipe::PayloadSet},
    testing::crash_points::{CrashPoints, Deed, Fault, Side},
    work::WorkOutcome,
};

use super::bed::{Bed, output};
use crate::support::eventually::eventually;

/// E8
pub async fn a_job_goes_from_amd64_to_arm64_and_back_over_nested_scopes_each_task_once(bed: Bed) {
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
    let told: Vec<_> = amd.handoffs().into_iter().chain(arm.handoffs()).collect();
    assert_eq!(told.iter().map(|h| h.path.as_str()).collect::<Vec<_>>(), ["inner/a", "last"]);
    assert_eq!(told[0].requirements.to_string(), "platform=linux/arm64");
    assert!(told.iter().all(|handoff| handoff.published));
    assert_eq!(bed.view(job).await.attempt, 1, "a handoff is no attempt");
}

/// E2: whoever claims it, and whatever it knew then, a task runs only where it fits.
pub async fn a_task_never_runs_where_it_does_not_fit(bed: Bed) {
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
    // Also when its hint is stale, since the one that fits died, and it takes the job once more: it runs nothing.
    let points = CrashPoints::with([Fault::once("recipe.history", Side::Before, Deed::Hang)]);
    let dies = bed.worker_behind(&points, "large", "memory=32Gi");
    let grant = bed.claim(&dies).await.expect("it fits");
    let death = points.until_done_at("recipe.history", Side::Before);
    assert!(bed.run(&dies, &grant, death).await.is_none());
    bed.recover(&large, job).await;
    bed.harness.store().dispatch(&Namespace::default(), 10).await.unwrap();
    bed.harness.age_queued(job, Duration::from_secs(5)).await;
    let turn = bed.turn(&small).await.expect("a stale hint keeps nobody for long");
    assert_eq!(turn.ended, Some(Ended::Rescheduled));
    bed.finish(&[&large], job).await;
    assert_eq!(bed.ran(), ["probe on small", "heavy on large", "light on large"]);
    assert_eq!(small.handoffs().len(), 2);
    assert_eq!(bed.view(job).await.state, JobState::Completed);
}

/// E4
pub async fn a_replay_asks_for_no_environment_that_finished_work_once_needed(bed: Bed) {
    let (large, small) = (bed.worker("large", "memory=32Gi"), bed.worker("small", ""));
    let yaml = r#"
id: r
sequence:
  - { id: heavy, execution_needs: { resources: { memory: 16Gi } }, op: work, inputs: { ask: { resources: { cpu: "64" } } } }
  - { id: nap, op: sleep, inputs: { for: 1500ms } }
  - { id: light, when: "${{ false }}", op: work }
"#;
    let job = bed.submit(yaml).await;
    let turn = bed.turn(&large).await.expect("it is queued");
    assert_eq!(turn.ended, Some(Ended::Rescheduled), "it waits: {turn:?}");
    let before = bed.view(job).await;

    // Without a lease, by whoever asks: everything recorded is walked over, and nothing is changed.
    let about = bed.harness.recipes().recipe_job(&Namespace::default(), job).await.unwrap().unwrap();
    let walked = replay(&Namespace::default(), job, &about, bed.log(job).await).await.unwrap();
    assert_eq!(walked.tasks.len(), 1);
    assert_eq!(walked.tasks[0].needs.as_ref().unwrap().to_string(), "cpu=64,memory=16Gi");
    assert_eq!(bed.view(job).await.epoch, before.epoch);

    let view = bed.finish(&[&small], job).await;
    assert_eq!(output(&view), r#"{"heavy":null,"nap":null,"light":null}"#);
    assert_eq!(view.payload_revision, before.payload_revision, "nothing was published");
    assert_eq!((bed.ran(), small.handoffs()), (vec!["heavy on large".to_owned()], vec![]));
}

/// E5
pub async fn a_publication_keeps_what_another_client_writes_meanwhile(bed: Bed) {
    // The first read is that of the admission; before the next three are answered, the client is faster.
    let late = Deed::ReplyLate(Duration::from_secs(1));
    let points = CrashPoints::with([
        Fault::once("recipe.read", Side::After, Deed::ReplyLate(Duration::ZERO)),
        Fault { times: 3, ..Fault::once("recipe.read", Side::After, late) },
    ]);
    let worker = bed.worker_behind(&points, "w", "");
    let job = bed.submit("id: r\nexecution: { resources: { cpu: \"2\" } }\nop: work\n").await;
    let store = bed.harness.recipes();
    let client = async {
        for n in 1..=3 {
            eventually(Duration::from_secs(60), "the worker has read the job", async || {
                (points.done() > n).then_some(())
            })
            .await;
            let present = store.recipe_job(&Namespace::default(), job).await.unwrap().unwrap();
            let update = PayloadUpdate {
                value: format!(r#"{{"mine": {n}.50 , "big":123456789012345678901234567890}}"#),
                expected_revision: present.payload_revision,
            };
            let set = store.set_payload(&Namespace::default(), job, &update).await.unwrap();
            assert!(matches!(set, PayloadSet::Set { .. }), "{set:?}");
        }
    };
    let (turn, ()) = tokio::join!(bed.turn(&worker), client);
    let turn = turn.expect("it is queued");
    assert_eq!(turn.ended, Some(Ended::Rescheduled), "{turn:?}");
    let payload = bed.payload(job).await;
    assert!(
        payload.starts_with(
            r#"{"mine": 3.50 , "big":123456789012345678901234567890,"execution":{"version":1,"requirements":{"resources":{"cpu":"2"}}"#
        ),
        "{payload}"
    );
    assert_eq!(worker.handoffs().len(), 1);
}

/// E6
pub async fn a_handoff_without_an_answer_runs_nothing_and_reports_none(mut bed: Bed) {
    bed.lease = Duration::from_secs(2);
    for (side, deed) in [(Side::Before, Deed::RequestLost), (Side::After, Deed::ReplyLost)] {
        let bed = bed.anew();
        let points =
            CrashPoints::with([Fault { times: 1000, ..Fault::once("recipe.reschedule", side, deed) }]);
        let worker = bed.worker_behind(&points, "w", "");
        let large = bed.worker("large", "cpu=4");
        let job = bed.submit("id: r\nexecution: { resources: { cpu: \"2\" } }\nop: work\n").await;
        let turn = bed.turn(&worker).await.expect("it is queued");
        assert_eq!(turn.outcome, WorkOutcome::Abandoned);
        assert_eq!(worker.handoffs(), []);
        if deed == Deed::RequestLost {
            assert_eq!(bed.view(job).await.state, JobState::Running, "left to recovery");
            bed.recover(&large, job).await;
        }
        bed.finish(&[&large], job).await;
        assert_eq!(bed.ran(), [". on large"]);
    }
}

/// E6: one answer is lost, the repeat is answered: that is an acknowledgement, and counts once.
pub async fn an_answer_to_the_repeat_of_a_handoff_acknowledges_it(bed: Bed) {
    let points = CrashPoints::with([Fault::once("recipe.reschedule", Side::After, Deed::ReplyLost)]);
    let worker = bed.worker_behind(&points, "w", "");
    bed.submit("id: r\nexecution: { resources: { cpu: \"2\" } }\nop: work\n").await;
    let turn = bed.turn(&worker).await.expect("it is queued");
    assert_eq!(turn.ended, Some(Ended::Rescheduled));
    assert_eq!((worker.handoffs().len(), bed.runs().len()), (1, 0));
}

/// E3: what stands in the client payload is never taken for a requirement, and two workers that know nothing of each
/// other come to the same needs.
pub async fn needs_come_from_the_recipe_its_input_its_overrides_and_its_log_alone(bed: Bed) {
    let worker = bed.worker("w", "cpu=1");
    let published = r#"{"execution":{"version":1,"requirements":{"resources":{"cpu":"64"}}}}"#;
    let job = bed.submit_with("id: r\nop: work\n", |_, job| job.payload = published.to_owned()).await;
    bed.finish(&[&worker], job).await;
    assert_eq!(bed.ran(), [". on w"]);

    let needy = "
id: r
inputs: { gib: { type: integer } }
sequence:
  - { id: asks, op: work, inputs: { ask: { resources: { memory: 3Gi } } } }
  - { id: a, execution_needs: { resources: { ephemeral-storage: \"${{ string(inputs.gib) + 'Gi' }}\" } }, op: work }
";
    let with_overrides = async |cpu: &str, gib: u32| {
        let require = format!(r#"{{"resources":{{"cpu":"{cpu}"}}}}"#);
        bed.submit_with(needy, |spec, job| {
            spec.require = RawJson::new(require).unwrap();
            spec.inputs = RawJson::new(format!(r#"{{"gib":{gib}}}"#)).unwrap();
            job.payload = published.to_owned();
        })
        .await
    };
    let first = bed.worker("first", "cpu=2");
    for (cpu, gib, needs) in [
        ("2", 5, "cpu=2,memory=3Gi,ephemeral-storage=5Gi"),
        ("1", 7, "cpu=1,memory=3Gi,ephemeral-storage=7Gi"),
    ] {
        let job = with_overrides(cpu, gib).await;
        bed.turn(&first).await.expect("it is queued");
        assert_eq!(first.handoffs().last().unwrap().requirements.to_string(), needs);
        assert!(!bed.view(job).await.state.is_terminal());
        // Published is what the log says, and not what stood there.
        assert!(bed.payload(job).await.contains(&format!(r#""cpu":"{cpu}""#)));
        assert!(!bed.payload(job).await.contains("64"));
    }
}
