//! Submission: in the caller's transaction, once per key, in bulk, and refused before anything is written.

use std::{collections::HashSet, sync::Arc, time::Duration};

use chrono::Utc;
use futures_util::future::join_all;
use leasehold::{
    Client,
    config::DatabaseSettings,
    postgres::{
        PgStore,
        read::JobFilter,
        submit::{SubmitError, Submitted},
    },
    protocol::{
        domain::{JobDefinition, JobId, JobState, Namespace, NewJob, RawJson, Route},
        ports::{LeaseStore as _, OpenClaim, recipe::RecipeStore as _},
    },
    submission::{document::WorkflowDocument, json},
};

use crate::{
    recipes::spec_of,
    support::{
        database::TestDatabase,
        jobs::{claimant, open},
    },
};

fn handler(payload: &str) -> NewJob {
    let mut job = NewJob::ad_hoc(JobDefinition::Handler { name: "echo".to_owned() });
    job.payload = payload.to_owned();
    job
}

fn keyed(key: &str, payload: &str) -> NewJob {
    let mut job = handler(payload);
    job.idempotency_key = Some(key.to_owned());
    job
}

async fn count(client: &tokio_postgres::Client, table: &str) -> i64 {
    client.query_one(&format!("select count(*) from leasehold.{table}"), &[]).await.unwrap().get(0)
}

/// Rows in every table that a submit writes to.
async fn footprint(client: &tokio_postgres::Client) -> Vec<i64> {
    let mut rows = Vec::new();
    for table in ["jobs", "waiting", "ready", "idempotency_keys"] {
        rows.push(count(client, table).await);
    }
    rows
}

async fn state_of(store: &PgStore, job: JobId) -> JobState {
    store.show_job(&Namespace::default(), job).await.unwrap().expect("the job exists").row.state
}

#[tokio::test]
async fn a_submit_is_invisible_until_the_callers_transaction_commits_and_gone_after_its_rollback() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let mut theirs = db.client().await;
    theirs.batch_execute("create table orders (id int)").await.unwrap();

    let transaction = theirs.transaction().await.unwrap();
    transaction.execute("insert into orders values (1)", &[]).await.unwrap();
    let submitted = Client::submit(&transaction, NewJob::handler("echo", &("a", 1))).await.unwrap();
    assert!(submitted.created);
    assert!(store.show_job(&Namespace::default(), submitted.job).await.unwrap().is_none());
    transaction.commit().await.unwrap();
    let shown = store.show_job(&Namespace::default(), submitted.job).await.unwrap().expect("committed");
    assert_eq!((shown.row.state, shown.payload.get()), (JobState::Queued, r#"["a",1]"#));

    let transaction = theirs.transaction().await.unwrap();
    let gone = Client::submit(&transaction, keyed("k", "1")).await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(store.show_job(&Namespace::default(), gone.job).await.unwrap().is_none());
    assert_eq!(footprint(&db.client().await).await, [1, 0, 1, 0]);

    // The key is free again, and a refusal inside a savepoint leaves the rest of the transaction alone.
    let mut transaction = theirs.transaction().await.unwrap();
    let savepoint = transaction.savepoint("s").await.unwrap();
    let refused = Client::submit(&savepoint, NewJob::of_workflow("none")).await.unwrap_err();
    assert!(matches!(refused, SubmitError::WorkflowNotFound { .. }), "{refused}");
    savepoint.rollback().await.unwrap();
    let again = Client::submit(&transaction, keyed("k", "1")).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(again.created);
}

/// The schema as the transaction sees it; a refusal leaves the transaction alone.
#[tokio::test]
async fn a_recipe_in_the_callers_transaction_is_held_to_the_schema_of_its_type() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let mut theirs = db.client().await;
    let recipe = |inputs: &str| {
        let mut spec = spec_of("id: r\ninputs: { size: { type: any } }\nop: x\n");
        spec.inputs = RawJson::new(inputs).unwrap();
        NewJob::ad_hoc(JobDefinition::Recipe(spec))
    };
    let transaction = theirs.transaction().await.unwrap();
    let before = Client::submit(&transaction, recipe(r#"{"size": "big"}"#)).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(before.created, "nothing is asked of it yet");

    let schema = r#"{"properties": {"size": {"type": "integer", "maximum": 10}}, "required": ["size"]}"#;
    let schemas = leasehold::recipe::schemas::route_schemas(Some(schema), None).unwrap();
    let route = Route::recipe("recipe", "");
    assert!(store.register_schema(&Namespace::default(), &route, &schemas).await.unwrap());
    let transaction = theirs.transaction().await.unwrap();
    for (inputs, place) in
        [(r#"{"size": "s3cret"}"#, "inputs/size"), (r#"{"size": 11}"#, "inputs/size"), ("{}", "inputs")]
    {
        let refused = Client::submit(&transaction, recipe(inputs)).await.unwrap_err();
        let SubmitError::Invalid(broken) = &refused else { panic!("{refused}") };
        let told = broken.to_string();
        assert!(told.starts_with(&format!("{place}: schema_violation: ")), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
    }
    let good = Client::submit(&transaction, recipe(r#"{"size": 10}"#)).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(good.created);
    assert_eq!(count(&theirs, "jobs").await, 2);
}

#[tokio::test]
async fn an_idempotency_key_stands_for_one_request() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let first = store.submit(&keyed("k", "[1]")).await.unwrap();
    let mut repeat = keyed("k", "[1]");
    repeat.trace_parent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    assert_eq!(store.submit(&repeat).await.unwrap(), Submitted { job: first.job, created: false });
    let mut others = vec![keyed("k", "[2]"), keyed("k", "[1 ]")];
    others.push(NewJob { priority: 1, ..keyed("k", "[1]") });
    others.push(NewJob { run_at: Some(Utc::now()), ..keyed("k", "[1]") });
    others.push(NewJob { timeout_ms: Some(1), ..keyed("k", "[1]") });
    others.push(NewJob {
        definition: Some(JobDefinition::Handler { name: "x".to_owned() }),
        ..keyed("k", "[1]")
    });
    for other in others {
        match store.submit(&other).await {
            Err(SubmitError::IdempotencyConflict { job }) => assert_eq!(job, first.job),
            answer => panic!("{other:?}: {answer:?}"),
        }
    }
    let elsewhere = NewJob { namespace: Namespace::new("other").unwrap(), ..keyed("k", "[2]") };
    assert!(store.submit(&elsewhere).await.unwrap().created);
    assert_eq!(footprint(&db.client().await).await, [2, 0, 2, 2]);
}

#[tokio::test]
async fn a_thousand_submits_at_once_under_a_hundred_keys_are_a_hundred_jobs() {
    let db = TestDatabase::create().await;
    let settings =
        DatabaseSettings { store_timeout: Duration::from_secs(60), pool_size: 20, ..db.settings() };
    let store = PgStore::connect(&settings, tokio::runtime::Handle::current()).await.unwrap();
    let answers = join_all((0..1000).map(|n: u32| {
        let store = store.clone();
        async move {
            let key = n % 100;
            (key, store.submit(&keyed(&format!("key-{key}"), &key.to_string())).await.unwrap())
        }
    }))
    .await;
    let jobs: HashSet<(u32, JobId)> = answers.iter().map(|(key, s)| (*key, s.job)).collect();
    assert_eq!(jobs.len(), 100, "one job a key");
    assert_eq!(answers.iter().filter(|(_, s)| s.created).count(), 100);
    assert_eq!(footprint(&db.client().await).await, [100, 0, 100, 100]);
}

#[tokio::test]
async fn what_is_due_is_queued_at_once_and_the_rest_waits() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let now = Utc::now();
    let late = NewJob { run_at: Some(now - chrono::Duration::days(400)), ..handler("1") };
    let early = NewJob { run_at: Some(now + chrono::Duration::hours(1)), ..handler("1") };
    let (late, early) = (store.submit(&late).await.unwrap().job, store.submit(&early).await.unwrap().job);
    let shown = store.show_job(&Namespace::default(), late).await.unwrap().unwrap().row;
    assert_eq!((shown.state, shown.dispatch_attempt, shown.attempt), (JobState::Queued, 1, 0));
    assert!(shown.due_at.unwrap() > now - chrono::Duration::minutes(5), "a late job does not jump the queue");
    let shown = store.show_job(&Namespace::default(), early).await.unwrap().unwrap().row;
    assert_eq!((shown.state, shown.dispatch_attempt), (JobState::Pending, 0));
    assert!((shown.due_at.unwrap() - now - chrono::Duration::hours(1)).num_milliseconds().abs() < 5);
    assert_eq!(state_of(&store, early).await, JobState::Pending);
}

#[tokio::test]
async fn a_bulk_of_a_hundred_thousand_goes_in_whole() {
    let db = TestDatabase::create().await;
    let settings = DatabaseSettings { store_timeout: Duration::from_secs(30), ..db.settings() };
    let store = PgStore::connect(&settings, tokio::runtime::Handle::current()).await.unwrap();
    let jobs: Vec<NewJob> =
        (0..100_000).map(|n| NewJob { priority: (n % 7) as i16, ..handler(&n.to_string()) }).collect();
    let started = std::time::Instant::now();
    let ids = store.submit_bulk(jobs).await.unwrap();
    let seconds = started.elapsed().as_secs_f64();
    println!("100,000 jobs in {seconds:.2} s: {:.0}/s", 100_000.0 / seconds);
    let client = db.client().await;
    assert_eq!(footprint(&client).await, [100_000, 0, 100_000, 0]);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 100_000);
    for n in [0, 12_345, 99_999] {
        let shown = store.show_job(&Namespace::default(), ids[n]).await.unwrap().unwrap();
        assert_eq!(shown.payload.get(), n.to_string());
        assert_eq!(usize::try_from(shown.row.priority).unwrap(), n % 7);
        assert_eq!((shown.row.state, shown.row.dispatch_attempt), (JobState::Queued, 1));
    }
    // The same columns as a single submit leaves.
    let single = store.submit(&handler("5")).await.unwrap().job;
    let row = "select (to_jsonb(j) - 'job_id' - 'submitted_at') || (to_jsonb(r) - 'job_id' - 'due_at') from leasehold.jobs j \
               join leasehold.ready r using (job_id) where job_id = $1";
    let of = async |id: JobId| -> serde_json::Value { client.query_one(row, &[&id.0]).await.unwrap().get(0) };
    let bulk = store.submit_bulk(vec![handler("5")]).await.unwrap()[0];
    assert_eq!(of(single).await, of(bulk).await);
}

#[tokio::test]
async fn a_bulk_is_all_or_nothing_and_keeps_keys_times_and_workflows() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let client = db.client().await;
    let broken = vec![handler("1"), handler("2"), handler("{")];
    let refused = store.submit_bulk(broken).await.unwrap_err();
    assert!(refused.to_string().starts_with("jobs[2].payload: "), "{refused}");
    let refused = store.submit_bulk(vec![handler("1"), NewJob::of_workflow("none")]).await.unwrap_err();
    assert!(matches!(refused, SubmitError::WorkflowNotFound { .. }), "{refused}");
    assert_eq!(footprint(&client).await, [0, 0, 0, 0]);

    let yaml = "name: nightly\nhandler: report\npayload: {a: 1}\npriority: 3\noverlap: serial\ntimeout: 5s\n";
    for document in WorkflowDocument::parse_all(yaml, &Namespace::default()).unwrap() {
        store.workflow_apply(&document).await.unwrap();
    }
    let earlier = store.submit(&keyed("k", "1")).await.unwrap().job;
    let later = Utc::now() + chrono::Duration::hours(1);
    let ids = store
        .submit_bulk(vec![
            keyed("k", "1"),
            keyed("new", "2"),
            keyed("new", "2"),
            NewJob { run_at: Some(later), ..handler("3") },
            NewJob::of_workflow("nightly"),
        ])
        .await
        .unwrap();
    assert_eq!((ids[0], ids[1]), (earlier, ids[2]));
    assert_eq!(state_of(&store, ids[3]).await, JobState::Pending);
    let run = store.show_job(&Namespace::default(), ids[4]).await.unwrap().unwrap();
    assert_eq!(
        (run.row.workflow.as_str(), run.row.route.as_str(), run.row.priority),
        ("nightly", "report", 3)
    );
    assert_eq!((run.payload.get(), run.timeout_ms), (r#"{"a":1}"#, Some(5000)));
    assert_eq!(footprint(&client).await, [4, 1, 3, 2]);

    let refused = store.submit_bulk(vec![handler("1"), keyed("k", "other")]).await.unwrap_err();
    assert!(refused.to_string().contains("payload"), "{refused}");
    let refused = store.submit_bulk(vec![handler("1"), keyed("k", "[1]")]).await.unwrap_err();
    assert!(matches!(refused, SubmitError::IdempotencyConflict { job } if job == earlier), "{refused}");
    store.workflow_pause(&Namespace::default(), "nightly").await.unwrap();
    let held = store.submit_bulk(vec![NewJob::of_workflow("nightly")]).await.unwrap()[0];
    let held = store.show_job(&Namespace::default(), held).await.unwrap().unwrap().row;
    assert_eq!((held.state, held.due_at, held.generation), (JobState::Pending, None, 2));
    store.workflow_terminate(&Namespace::default(), "nightly").await.unwrap();
    let refused = store.submit_bulk(vec![NewJob::of_workflow("nightly")]).await.unwrap_err();
    assert!(matches!(refused, SubmitError::WorkflowTerminated { .. }), "{refused}");
}

/// AP-17, LN-05, PG-11: one limit for the whole path, and a refusal leaves the only connection healthy.
#[tokio::test]
async fn a_payload_that_is_accepted_can_be_claimed_listed_and_shown_and_a_larger_one_is_refused() {
    let db = TestDatabase::create().await;
    let settings = DatabaseSettings { pool_size: 1, store_timeout: Duration::from_secs(20), ..db.settings() };
    let store = PgStore::connect(&settings, tokio::runtime::Handle::current()).await.unwrap();
    let sized = |n: usize| format!("\"{}\"", "x".repeat(n - 2));
    for size in [7_900, 8_100, json::MAX_BYTES - 1, json::MAX_BYTES] {
        for job in [
            store.submit(&handler(&sized(size))).await.unwrap().job,
            store.submit_bulk(vec![handler(&sized(size))]).await.unwrap()[0],
        ] {
            let shown = store.show_job(&Namespace::default(), job).await.unwrap().unwrap();
            assert_eq!(shown.payload.get(), sized(size));
        }
    }
    let owner = claimant("w1");
    let claim = OpenClaim { routes: Arc::from([Route::handler("echo")]), ..open(&owner, 8) };
    let grants = store.claim(&claim).await.unwrap().grants;
    let mut lengths: Vec<usize> = grants.iter().map(|grant| grant.payload.len()).collect();
    lengths.sort_unstable();
    let accepted = [7_900, 8_100, json::MAX_BYTES - 1, json::MAX_BYTES];
    assert_eq!(lengths, accepted.into_iter().flat_map(|n| [n, n]).collect::<Vec<_>>(), "each can be claimed");
    let before = footprint(&db.client().await).await;
    for size in [json::MAX_BYTES + 1, 2 << 20, 100 << 20] {
        let single = store.submit(&handler(&sized(size))).await.unwrap_err();
        let bulk = store.submit_bulk(vec![handler(&sized(size))]).await.unwrap_err();
        assert!(single.to_string().contains("1 MiB") && bulk.to_string().contains("1 MiB"), "{single}");
    }
    for depth in [200, 100_000] {
        let nested = "[".repeat(depth) + &"]".repeat(depth);
        assert!(store.submit(&handler(&nested)).await.unwrap_err().to_string().contains("nested"));
    }
    let key = "€".repeat(4096 / 3);
    assert!(store.submit(&keyed(&key, "1")).await.unwrap_err().to_string().contains("1 to 1024"));
    let key = "€".repeat(1024 / 3);
    assert!(store.submit(&keyed(&key, "1")).await.unwrap().created);
    store.submit_bulk((0..800).map(|n: i32| handler(&n.to_string())).collect()).await.unwrap();
    let after = footprint(&db.client().await).await;
    assert_eq!(after[0], before[0] + 801);
    let page =
        store.list_jobs(&JobFilter { limit: 1000, ..JobFilter::all(Namespace::default()) }).await.unwrap();
    assert_eq!(page.items.len(), 809);
}

#[tokio::test]
async fn payloads_survive_byte_for_byte_on_every_path() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let mut client = db.client().await;
    for payload in [
        r#"{"z":1,"a":2,"m":{"y":[],"b":{}}}"#,
        r#"{"big": 123456789012345678901234567890, "exp": 1E+2, "dec": 10.00, "huge": 1e400}"#,
        "  [ 1 ,\t2\r\n] ",
        r#""\ud83d\ude00 \\N \\. \t \u00e9 é 🦀""#,
        r#"{"'; drop table leasehold.jobs; --":"$1 ${x} {{y}} %s \\x00"}"#,
    ] {
        let transaction = client.transaction().await.unwrap();
        let third = Client::submit(&transaction, handler(payload)).await.unwrap().job;
        transaction.commit().await.unwrap();
        let literal = format!(
            "select job_id from leasehold.submit_job(kind => 'HANDLER', definition => '{{\"handler\":\"echo\"}}', payload => $q${payload}$q$)"
        );
        let fourth = JobId(client.query_one(&literal, &[]).await.unwrap().get(0));
        let ids = [
            store.submit(&handler(payload)).await.unwrap().job,
            store.submit_bulk(vec![handler(payload)]).await.unwrap()[0],
            third,
            fourth,
        ];
        for id in ids {
            let stored: String = client
                .query_one("select payload::text from leasehold.jobs where job_id = $1", &[&id.0])
                .await
                .unwrap()
                .get(0);
            assert_eq!(stored, payload, "job {id}");
            let shown = store.show_job(&Namespace::default(), id).await.unwrap().unwrap();
            assert_eq!(shown.payload.get(), payload.trim_matches([' ', '\t', '\r', '\n']));
        }
    }
}

#[tokio::test]
async fn names_that_look_like_sql_are_only_names() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    for name in
        ["'; drop table leasehold.jobs; --", "\\N", "a\\tb", "$1", "%s", "x\"y", "{}", "null", "ready"]
    {
        let namespace = Namespace::new(name).unwrap();
        let document = WorkflowDocument {
            namespace: namespace.clone(),
            name: name.to_owned(),
            definition: JobDefinition::Handler { name: name.to_owned() },
            payload: "null".to_owned(),
            priority: 0,
            overlap: leasehold::submission::document::Overlap::Allow,
            timeout_ms: None,
            retry: Default::default(),
        };
        store.workflow_apply(&document).await.unwrap();
        let run = NewJob {
            namespace: namespace.clone(),
            idempotency_key: Some(name.to_owned()),
            ..NewJob::of_workflow(name)
        };
        let first = store.submit(&run).await.unwrap().job;
        assert_eq!(store.submit_bulk(vec![run.clone()]).await.unwrap(), [first]);
        let ad_hoc = NewJob {
            namespace: namespace.clone(),
            ..NewJob::ad_hoc(JobDefinition::Handler { name: name.to_owned() })
        };
        let second = store.submit_bulk(vec![ad_hoc]).await.unwrap()[0];
        let filter = JobFilter { workflow: Some(name.to_owned()), ..JobFilter::all(namespace.clone()) };
        let page = store.list_jobs(&filter).await.unwrap();
        assert_eq!(page.items.iter().map(|row| row.id).collect::<Vec<_>>(), [first]);
        let shown = store.show_job(&namespace, second).await.unwrap().unwrap().row;
        assert_eq!((shown.route.as_str(), shown.workflow.as_str()), (name, "adhoc"));
        assert!(store.show_job(&Namespace::default(), second).await.unwrap().is_none(), "another tenant's");
    }
}

/// The examples of docs/submitting.md are run as they stand there.
#[tokio::test]
async fn the_documented_statements_do_what_they_say() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let yaml = "name: nightly-report\nhandler: report\n";
    let document = WorkflowDocument::parse_all(yaml, &Namespace::default()).unwrap().remove(0);
    store.workflow_apply(&document).await.unwrap();
    let text = include_str!("../../../docs/submitting.md");
    let blocks: Vec<&str> =
        text.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    for block in &blocks {
        client.batch_execute(block).await.unwrap();
    }
    assert_eq!(blocks.len(), 3);
    assert_eq!(footprint(&client).await, [4, 1, 3, 1]);
}
