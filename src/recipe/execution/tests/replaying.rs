//! Histories that a recipe cannot have made, and what may be read of one without a lease.

use super::*;
use crate::recipe::session::{Job, Session, SessionEnd};

const TWO: &str = "id: r\nsequence:\n  - { id: a, op: work, inputs: { note: 1 } }\n  - { id: b, op: work }\n";

/// A walk over these events of another recipe's job.
async fn read_only(yaml: &str, events: Vec<Event>) -> SessionEnd {
    let bundle = Bundle::new("r.yaml", BTreeMap::from([("r.yaml".to_owned(), yaml.to_owned())]));
    let recipe = crate::recipe::compile(&bundle).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let job = Job {
        namespace: Namespace::default(),
        job: JobId(1),
        submitted_at: chrono::DateTime::UNIX_EPOCH,
        recipe: Arc::new(recipe),
        inputs: "{}".into(),
        overrides: leasehold_actors::domain::execution::Requirements::default(),
    };
    match Session::new(job, events, None) {
        Ok(session) => session.run().await,
        Err(failure) => SessionEnd::Failed(failure),
    }
}

/// The log of a finished run.
async fn history(yaml: &str) -> Vec<Event> {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let job = bed.submit(yaml).await;
    bed.finish(&worker, job).await;
    bed.log(job).await
}

fn contradiction(end: &SessionEnd) -> String {
    match end {
        SessionEnd::Failed(failure) => {
            assert_eq!(failure.code, "not_deterministic", "{failure:?}");
            failure.message.clone()
        }
        other => panic!("this is no contradiction: {other:?}"),
    }
}

/// RP-03: a true mismatch is one explained failure, whatever it is.
#[tokio::test(start_paused = true)]
async fn a_history_of_another_recipe_is_told_by_its_first_contradiction() {
    let events = history(TWO).await;
    assert!(matches!(read_only(TWO, events.clone()).await, SessionEnd::Completed(_)));
    let told = contradiction(&read_only(&TWO.replace("note: 1", "note: 2"), events.clone()).await);
    assert!(told.starts_with("a (record 1)"), "{told}");
    let told =
        contradiction(&read_only(&TWO.replace("id: b, op: work", "id: b, op: other"), events.clone()).await);
    assert!(told.starts_with("b (record 2)") && told.contains("op other"), "{told}");
    let told = contradiction(&read_only(&TWO.replace("id: b", "id: c"), events.clone()).await);
    assert!(told.starts_with("b (record 2)"), "{told}");
    let told = contradiction(
        &read_only("id: r\nsequence:\n  - { id: a, op: work, inputs: { note: 1 } }\n", events.clone()).await,
    );
    assert!(told.starts_with("b (record 2)"), "{told}");
    let sleeps = TWO.replace("id: b, op: work", "id: b, op: sleep, inputs: { for: 1s }");
    contradiction(&read_only(&sleeps, events).await);
}

/// RP-11: the same number, however it is written, is the same input; another number is another.
#[tokio::test(start_paused = true)]
async fn an_input_is_compared_by_its_value() {
    let events = history(&TWO.replace("note: 1", "note: 1E+2")).await;
    let same = TWO.replace("note: 1", "note: 100.0");
    assert!(matches!(read_only(&same, events.clone()).await, SessionEnd::Completed(_)));
    contradiction(&read_only(&TWO.replace("note: 1", "note: 100.0000000000000000000000001"), events).await);
}

#[tokio::test(start_paused = true)]
async fn a_read_only_walk_stops_at_what_is_not_recorded() {
    let mut events = history(TWO).await;
    events.pop();
    assert_eq!(read_only(TWO, events).await, SessionEnd::CacheMiss { path: "b".to_owned() });
}

/// A contradiction in a running job ends it, as a failure of its own, and nothing runs or is recorded.
#[tokio::test(start_paused = true)]
async fn a_job_whose_log_contradicts_its_recipe_fails_and_runs_nothing() {
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let job = bed.submit(TWO).await;
    let grant = bed.claim(&worker).await.expect("it is queued");
    let forged = NewEvent::Task {
        op: "work".to_owned(),
        input_hash: "forged".to_owned(),
        attempt: 1,
        outcome: TaskOutcome::Succeeded { output: "1".into() },
        directive: None,
    };
    bed.store.record(&grant.authority, "a", &forged).await.expect("it answers");
    let (lease, _watch) = bed.lease(&grant);
    let outcome = worker.engine.run(&grant, &lease).await;
    bed.report(&grant, &lease, outcome).await;
    let view = bed.view(job).await;
    assert_eq!((view.state, view.failure_code.as_deref()), (JobState::Failed, Some("not_deterministic")));
    assert_eq!((bed.runs().len(), bed.log(job).await.len()), (0, 1));
}

/// RP-05: the same history is walked the same way on a cold worker and on a warm one.
#[tokio::test(start_paused = true)]
async fn a_drained_worker_gives_the_job_back_and_another_goes_on() {
    let bed = Bed::new();
    let (first, second) = (bed.worker("first", ""), bed.worker("second", ""));
    let yaml = "id: r\nsequence:\n  - { id: a, op: work }\n  - { id: b, op: work, inputs: { takes_ms: 60000 } }\n  - { id: c, op: work }\n";
    let job = bed.submit(yaml).await;
    let grant = bed.claim(&first).await.expect("it is queued");
    let (lease, watch) = bed.lease(&grant);
    let (outcome, ()) = tokio::join!(first.engine.run(&grant, &lease), async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        watch.stop(leasehold_actors::domain::lease::StopReason::Draining, None);
    });
    assert_eq!(outcome, WorkOutcome::Stopped);
    bed.report(&grant, &lease, outcome).await;
    assert_eq!(bed.finish(&second, job).await.state, JobState::Completed);
    assert_eq!(bed.ran(), ["a on first", "b on first", "b on second", "c on second"]);
    let runs = bed.runs();
    assert_eq!(runs[1].key, runs[2].key, "the same occurrence, the same key");
}

/// An exported history is the log, byte for byte, and says the same of a recipe.
#[tokio::test(start_paused = true)]
async fn an_exported_history_is_verified_against_a_recipe_without_running_anything() {
    use super::super::{History, Past, Verified};
    let bed = Bed::new();
    let worker = bed.worker("w", "");
    let yaml = "id: r\nsequence:\n  - { id: a, op: work, inputs: { give: { n: 1.50 } } }\n  - { id: nap, op: sleep, inputs: { for: 2s } }\n  - { id: b, op: work, inputs: { fails: 1 }, retry: { max_attempts: 2 } }\n";
    let job = bed.submit(yaml).await;
    let view = bed.finish(&worker, job).await;
    let about = bed.store.recipe_job(&Namespace::default(), job).await.unwrap().unwrap();
    let events = bed.log(job).await;
    let namespace = Namespace::default();
    let past = Past {
        namespace: &namespace,
        job,
        state: view.state,
        submitted_at: about.submitted_at,
        definition: &about.definition,
        output: view.output.as_deref(),
        failure: None,
    };
    let text = History::of(&past, &events).unwrap().to_json();
    let history = History::parse(&text).unwrap();
    assert_eq!(history.to_json(), text);
    assert_eq!(history.verify(None).await.unwrap(), Verified::Consistent);
    let against = async |yaml: &str| {
        let bundle = Bundle::new("r.yaml", BTreeMap::from([("r.yaml".to_owned(), yaml.to_owned())]));
        history.verify(Some(&Arc::new(crate::recipe::compile(&bundle).unwrap()))).await.unwrap()
    };
    assert_eq!(against(&yaml.replace("1.50", "15e-1")).await, Verified::Consistent);
    for (from, to, path, ordinal) in [
        ("n: 1.50", "n: 1.51", "a", 1),
        ("id: nap", "id: rest", "nap", 2),
        ("op: sleep, inputs: { for: 2s }", "op: work", "nap", 2),
        ("max_attempts: 2", "max_attempts: 1", "b!1/@backoff", 5),
    ] {
        match against(&yaml.replace(from, to)).await {
            Verified::NotDeterministic(at) => {
                assert_eq!((at.path.as_str(), at.ordinal), (path, ordinal), "{to}")
            }
            other => panic!("{to}: {other:?}"),
        }
    }
    // A step behind the end is none that this job has taken.
    match against(&format!("{yaml}  - {{ id: more, op: work }}\n")).await {
        Verified::NotDeterministic(at) => assert_eq!(at.path, "more"),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        against(&yaml.replace("id: r\n", "id: s\n")).await,
        Verified::OtherRecipe { recipe: "r".to_owned() }
    );
    for bad in
        ["", "{}", &text.replace("\"version\":1", "\"version\":2"), &text.replace("timer_set", "timer_sat")]
    {
        History::parse(bad).expect_err("it is no history");
    }
}
