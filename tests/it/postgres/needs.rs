//! What listings say of the needs of recipes, and which of them a worker with given facts could take.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use leasehold::{
    postgres::{
        PgStore,
        execution_view::{ExecutionView, Fits},
        read::{JobFilter, JobRow},
    },
    protocol::{
        domain::{
            CommandId, JobDefinition, JobId, JobState, Namespace, NewJob, RawJson, RecipeSpec, Route,
            execution::{Allocation, Requirements},
        },
        error::StoreErrorKind,
        ports::{
            End, Ended, Grant, LeaseStore as _, OpenClaim,
            recipe::{Hint, Publication, RecipeStore as _, Wake},
        },
    },
    recipe::bundle::Bundle,
};

use crate::support::{
    database::TestDatabase,
    jobs::{claimant, open},
    rows,
};

const PLAIN: &str = "id: r\nop: note\n";
const NEEDY: &str = "id: r\nexecution: { platform: linux/arm64 }\nop: note\n";

fn recipe(yaml: &str, require: &str) -> NewJob {
    let bundle = Bundle::new("r.yaml", BTreeMap::from([("r.yaml".to_owned(), yaml.to_owned())]));
    NewJob::ad_hoc(JobDefinition::Recipe(RecipeSpec {
        recipe: "r".to_owned(),
        job_type: RecipeSpec::DEFAULT_JOB_TYPE.to_owned(),
        language: bundle.language,
        digest: bundle.digest(),
        bundle: RawJson::new(bundle.to_json()).unwrap(),
        inputs: RawJson::default(),
        require: RawJson::new(require.to_owned()).unwrap(),
    }))
}

async fn submit(store: &PgStore, yaml: &str, require: &str, payload: &str) -> JobId {
    let job = NewJob { payload: payload.to_owned(), ..recipe(yaml, require) };
    store.submit(&job).await.unwrap().job
}

/// The only recipe that is QUEUED, or the first one.
async fn claim(store: &PgStore) -> Grant {
    let routes: Arc<[Route]> = Arc::from([Route::recipe("recipe", "")]);
    let request = OpenClaim { routes, ..open(&claimant("w1"), 1) };
    store.claim(&request).await.unwrap().grants.remove(0)
}

async fn give_back(store: &PgStore, grant: &Grant, needs: &str, handoff: bool, wake: Vec<Wake>) {
    let needs: Requirements = needs.parse().unwrap();
    let publish = Publication { hint: Hint::from(&needs), handoff, declined_by: None };
    let (route, payload) = (None, None);
    let end = End::Reschedule { route, delay: Duration::ZERO, payload, wake, publish: Some(publish) };
    let ended = store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
    assert_eq!(ended, Ended::Rescheduled);
}

async fn row(store: &PgStore, job: JobId) -> JobRow {
    let listed = store.list_jobs(&JobFilter::all(Namespace::default())).await.unwrap().items;
    let row = listed.into_iter().find(|row| row.id == job).unwrap();
    let shown = store.show_job(&Namespace::default(), job).await.unwrap().unwrap().row;
    assert_eq!(row.execution, shown.execution, "a listing says the same as the job itself");
    row
}

/// As people read it.
async fn needs(store: &PgStore, job: JobId) -> String {
    row(store, job).await.execution.expect("it is a recipe").to_string()
}

#[tokio::test]
async fn a_listing_says_what_a_recipe_needs_while_it_waits_and_only_then() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let other = store.submit(&NewJob::handler("x", &1)).await.unwrap().job;
    assert_eq!(row(&store, other).await.execution, None);
    // Nothing is published yet.
    for (yaml, require, payload, expected) in [
        (PLAIN, "{}", "null", "unspecified"),
        (PLAIN, "{}", r#"{"mine": 1}"#, "unspecified"),
        (PLAIN, r#"{"resources":{"cpu":"2"}}"#, "null", "cpu=2 (submission)"),
        (NEEDY, "{}", "null", "unresolved"),
        (NEEDY, r#"{"resources":{"cpu":"2"}}"#, "null", "unresolved (cpu=2 given)"),
        (
            NEEDY,
            "{}",
            r#"{"execution":{"version":1,"requirements":{"resources":{"memory":"1024Mi"}}}}"#,
            "memory=1Gi (submission, stale)",
        ),
        (NEEDY, "{}", r#"{"execution":{"version":2}}"#, "unsupported (version 2)"),
        (NEEDY, "{}", r#"{"execution":{"version":"1"}}"#, "malformed"),
        (NEEDY, "{}", r#"{"execution":null}"#, "malformed"),
    ] {
        let job = submit(&store, yaml, require, payload).await;
        assert_eq!(needs(&store, job).await, expected, "{yaml} {require} {payload}");
        store.request_cancel(&Namespace::default(), job, Duration::ZERO).await.unwrap();
        assert_eq!(row(&store, job).await.execution, Some(ExecutionView::NotWaiting), "it was cancelled");
    }
    let job = submit(&store, NEEDY, "{}", "null").await;
    let (again, dispatch) =
        (async || claim(&store).await, async || store.dispatch(&Namespace::default(), 10).await.unwrap());
    let grant = again().await;
    assert_eq!(row(&store, job).await.execution, Some(ExecutionView::InFlight));
    give_back(&store, &grant, "memory=1Gi", false, vec![Wake::Signal("go".to_owned())]).await;
    assert_eq!(needs(&store, job).await, "memory=1Gi (reschedule, stale)");
    db.client().await.execute("update leasehold.waiting set due_at = clock_timestamp()", &[]).await.unwrap();
    dispatch().await;
    let facts = async |facts: &str| {
        let filter = JobFilter {
            fits: Some(Fits {
                allocation: Allocation::parse_facts(facts).unwrap(),
                include_unresolved: false,
            }),
            ..JobFilter::all(Namespace::default())
        };
        store.list_jobs(&filter).await.unwrap().items.len()
    };
    assert_eq!((facts("memory=1Gi").await, facts("memory=1023Mi").await), (1, 0));
    // An empty allocation takes what is stale after 5 s: look as a worker that has it.
    let routes: Arc<[Route]> = Arc::from([Route::recipe("recipe", "")]);
    let having: Allocation = "cpu=8,memory=8Gi".parse().unwrap();
    let request = OpenClaim { routes, facts: Some(Arc::new((&having).into())), ..open(&claimant("w1"), 1) };
    let grant = store.claim(&request).await.unwrap().grants.remove(0);
    give_back(&store, &grant, "cpu=2,memory=16Gi", true, Vec::new()).await;
    dispatch().await;
    assert_eq!(needs(&store, job).await, "cpu=2,memory=16Gi (handoff)");
    let json = serde_json::to_value(row(&store, job).await).unwrap();
    assert_eq!(
        json["execution"],
        serde_json::json!({
            "status": "specified", "source": "handoff", "hint": "exact",
            "requirements": {"resources": {"cpu": "2", "memory": "16Gi"}},
        })
    );
    assert_eq!(json.get("admission_refused"), None);
    // Another lease that ended without a word about needs.
    let having: Allocation = "cpu=8,memory=32Gi".parse().unwrap();
    let request = OpenClaim { facts: Some(Arc::new((&having).into())), ..request };
    let request = OpenClaim { command: CommandId::generate(), ..request };
    let grant = store.claim(&request).await.unwrap().grants.remove(0);
    store.refuse(&grant.authority, "it cannot be read").await.unwrap();
    let why = store.why(&Namespace::default(), job).await.unwrap().unwrap();
    assert!(why.contains("RUNNING") && why.contains("refused it once: it cannot be read"), "{why}");
    let end = End::Release { delay: Duration::ZERO, reason: "drained" };
    store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
    let released = row(&store, job).await;
    assert_eq!(released.execution.unwrap().to_string(), "cpu=2,memory=16Gi (handoff, stale)");
    let refused = released.admission_refused.expect("it was refused");
    assert_eq!((refused.in_a_row, refused.reason.as_str()), (1, "it cannot be read"));
}

/// AP-01: pages of what fits are as full as they can be, and together they have each job once, whatever lies between.
#[tokio::test]
async fn pages_of_what_a_worker_could_take_are_full_and_skip_nothing() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let mut fitting = Vec::new();
    let mut jobs = Vec::new();
    for n in 0..230 {
        jobs.push(match n % 10 {
            0 => NewJob { payload: r#"{"execution":{"version":7}}"#.to_owned(), ..recipe(PLAIN, "{}") },
            1 => recipe(NEEDY, "{}"),
            2 => recipe(PLAIN, r#"{"resources":{"memory":"4Gi"}}"#),
            3 => recipe(PLAIN, "{}"),
            4 => NewJob::handler("x", &n),
            _ => recipe(PLAIN, r#"{"resources":{"memory":"8Gi"}}"#),
        });
    }
    let ids = store.submit_bulk(jobs).await.unwrap();
    for (n, id) in ids.iter().enumerate() {
        if matches!(n % 10, 2 | 3) {
            fitting.push(*id);
        }
    }
    // One that fits is running, and one has ended.
    for id in [fitting.remove(7), fitting.remove(20)] {
        rows::hold(&client, id, 60.0).await;
        if id.0 % 2 == 0 {
            rows::complete(&client, id).await;
        }
    }
    let filter = |include_unresolved, limit, oldest_first| JobFilter {
        fits: Some(Fits { allocation: "cpu=1,memory=4Gi".parse().unwrap(), include_unresolved }),
        limit,
        oldest_first,
        ..JobFilter::all(Namespace::default())
    };
    for (limit, oldest_first) in [(1, false), (7, true), (44, false), (45, true), (1000, false)] {
        let mut filter = filter(false, limit, oldest_first);
        let mut seen: Vec<JobId> = Vec::new();
        loop {
            let page = store.list_jobs(&filter).await.unwrap();
            assert!(page.items.iter().all(|row| matches!(row.state, JobState::Pending | JobState::Queued)));
            assert!(page.items.len() == limit as usize || page.next.is_none(), "a page is full");
            assert!(!page.items.is_empty(), "a cursor leads to something");
            seen.extend(page.items.iter().map(|row| row.id));
            filter.after = page.next;
            if filter.after.is_none() {
                break;
            }
        }
        if !oldest_first {
            seen.reverse();
        }
        assert_eq!(seen, fitting, "{limit} a page, oldest first: {oldest_first}");
    }
    let all = store.list_jobs(&filter(true, 1000, true)).await.unwrap().items.len();
    assert_eq!(all, fitting.len() + 23, "those of which nothing is known, when they are asked for");
    let only = JobFilter { states: vec![JobState::Running], ..filter(true, 10, false) };
    assert!(store.list_jobs(&only).await.unwrap().items.is_empty());
    let nothing = Fits { allocation: "image-id=4f2a".parse().unwrap(), include_unresolved: false };
    let refused = store
        .list_jobs(&JobFilter { fits: Some(nothing), ..JobFilter::all(Namespace::default()) })
        .await
        .unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Refused);
}
