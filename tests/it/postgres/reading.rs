//! Listings, the story of a job, its output, and the doctor.

use std::{collections::HashMap, sync::Arc, time::Duration};

use leasehold::{
    config::DatabaseSettings,
    postgres::{
        PgStore,
        doctor::{Check, CheckStatus, diagnose},
        read::JobFilter,
    },
    protocol::{
        domain::{
            CommandId, JobDefinition, JobId, JobKind, JobState, Namespace, NewJob, RawJson, RecipeSpec, Route,
        },
        ports::{
            End, Ended, LeaseStore as _, OpenClaim,
            recipe::{Hint, NewSignal, Publication, RecipeStore as _, SignalAnswer, Wake},
        },
    },
};

use crate::support::{
    database::TestDatabase,
    jobs::{claimant, open},
    rows,
};

fn namespace() -> Namespace {
    Namespace::default()
}

async fn submit(store: &PgStore) -> JobId {
    store.submit(&NewJob::handler("x", &1)).await.unwrap().job
}

/// Pages through everything, doing `between` after each page; counts how often each job was seen.
async fn walk(
    store: &PgStore,
    mut filter: JobFilter,
    mut between: impl AsyncFnMut(usize),
) -> HashMap<JobId, u32> {
    let mut seen = HashMap::new();
    for page_number in 0.. {
        let page = store.list_jobs(&filter).await.unwrap();
        assert!(page.items.len() <= filter.limit as usize);
        assert!(
            page.next.is_none() || page.items.len() == filter.limit as usize,
            "only the last page is short"
        );
        for row in page.items {
            *seen.entry(row.id).or_default() += 1;
        }
        between(page_number).await;
        filter.after = page.next;
        if filter.after.is_none() {
            break;
        }
    }
    seen
}

/// AP-01: one transaction gives every job the same time; jobs come, move and end while somebody pages.
#[tokio::test]
async fn every_job_that_exists_throughout_is_on_exactly_one_page() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let jobs = store.submit_bulk((0..137).map(|n: i32| NewJob::handler("x", &n)).collect()).await.unwrap();
    for oldest_first in [false, true] {
        let filter = JobFilter { limit: 10, oldest_first, ..JobFilter::all(namespace()) };
        let seen = walk(&store, filter, async |page| {
            submit(&store).await;
            let queued = "select min(job_id) from leasehold.ready where job_id > $1";
            let next: i64 = client.query_one(queued, &[&(page as i64)]).await.unwrap().get(0);
            rows::hold(&client, JobId(next), 30.0).await;
            if page % 2 == 0 {
                rows::complete(&client, JobId(next)).await;
            }
        })
        .await;
        for job in &jobs {
            assert_eq!(seen.get(job), Some(&1), "job {job}, oldest first: {oldest_first}");
        }
    }
    let refused = store
        .list_jobs(&JobFilter { after: Some("1; drop table".to_owned()), ..JobFilter::all(namespace()) })
        .await
        .unwrap_err();
    assert!(refused.message.contains("cursor"), "{refused}");
}

/// AP-03: a job with many leases is one row, and filters count jobs.
#[tokio::test]
async fn pages_count_jobs_and_not_their_attempts() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let mut failed = Vec::new();
    for attempts in 1..=12 {
        let job = submit(&store).await;
        for _ in 0..attempts {
            rows::hold(&client, job, 30.0).await;
            rows::fail(&client, job, attempts).await;
            store.retry_job(&namespace(), job).await.unwrap();
        }
        if attempts % 2 == 0 {
            rows::hold(&client, job, 30.0).await;
            rows::fail(&client, job, attempts).await;
            failed.push(job);
        }
    }
    let all = walk(&store, JobFilter { limit: 5, ..JobFilter::all(namespace()) }, async |_| {}).await;
    assert_eq!((all.len(), all.values().all(|n| *n == 1)), (12, true));
    let filter = JobFilter {
        limit: 5,
        states: vec![JobState::Failed, JobState::Running],
        ..JobFilter::all(namespace())
    };
    let mut listed: Vec<JobId> = walk(&store, filter, async |_| {}).await.into_keys().collect();
    listed.sort();
    assert_eq!(listed, failed);
    let none = JobFilter { kind: Some(JobKind::Container), ..JobFilter::all(namespace()) };
    assert!(store.list_jobs(&none).await.unwrap().items.is_empty());
    let shown = store.show_job(&namespace(), failed[5]).await.unwrap().unwrap();
    assert_eq!((shown.leases.len(), shown.reopened.len(), shown.row.attempt), (13, 12, 13));
    let epochs: Vec<i64> = shown.leases.iter().map(|lease| lease.epoch.0).collect();
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
}

#[tokio::test]
async fn the_json_of_a_job_has_its_stable_keys_and_no_token() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let job = submit(&store).await;
    rows::hold(&client, job, 30.0).await;
    let token: uuid::Uuid = client.query_one("select token from leasehold.leases", &[]).await.unwrap().get(0);
    let running = serde_json::to_value(store.show_job(&namespace(), job).await.unwrap().unwrap()).unwrap();
    assert_eq!((&running["state"], &running["leases"][0]["how"]), (&"RUNNING".into(), &"running".into()));
    assert!(running["leases"][0]["ended_at"].is_null() && running["leases"][0]["expires_at"].is_string());
    rows::fail(&client, job, 3).await;
    let shown = store.show_job(&namespace(), job).await.unwrap().unwrap();
    let listed = &store.list_jobs(&JobFilter::all(namespace())).await.unwrap().items[0];
    for json in [serde_json::to_value(&shown).unwrap(), serde_json::to_value(listed).unwrap()] {
        for key in ["id", "state", "kind", "workflow", "attempt", "exit_code", "failure", "node"] {
            assert!(json.get(key).is_some(), "{key} is missing");
        }
        assert_eq!(json["failure"], serde_json::json!({"kind": "USER", "code": "3", "message": "it failed"}));
        assert_eq!(
            (&json["state"], &json["exit_code"], &json["id"]),
            (&"FAILED".into(), &3.into(), &job.0.into())
        );
    }
    let lease = &serde_json::to_value(&shown).unwrap()["leases"][0];
    for key in ["epoch", "worker", "granted_at", "ended_at", "how"] {
        assert!(!lease[key].is_null(), "{key} is missing");
    }
    let text = format!("{running} {shown:?}");
    assert!(!text.contains(&token.to_string()) && !text.contains(&token.simple().to_string()));
}

#[tokio::test]
async fn output_is_read_in_order_from_any_batch_on() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let job = submit(&store).await;
    let insert = "insert into leasehold.job_logs (job_id, epoch, stream, first_byte, namespace, data)
                  values ($1, 1, $2, $3, 'default', $4)";
    for n in 0..6_i64 {
        let data = vec![0xff_u8; 1 << 20];
        client.execute(insert, &[&job.0, &((n % 3 + 1) as i16), &n, &data]).await.unwrap();
    }
    let (mut after, mut pages, mut bytes) = (0, 0, 0);
    loop {
        let page = store.read_logs(&namespace(), job, after, 100).await.unwrap();
        let Some(last) = page.last() else { break };
        assert!(page.windows(2).all(|pair| pair[0].seq < pair[1].seq) && page[0].seq > after);
        after = last.seq;
        pages += 1;
        bytes += page.iter().map(|row| row.data.len()).sum::<usize>();
    }
    assert_eq!((pages, bytes), (2, 6 << 20), "a page holds about 4 MiB");
    let other = Namespace::new("other").unwrap();
    assert!(store.read_logs(&other, job, 0, 100).await.unwrap().is_empty());
    assert_eq!(store.show_job(&namespace(), job).await.unwrap().unwrap().log_bytes, 6 << 20);
}

#[tokio::test]
async fn why_says_in_one_sentence_what_a_job_waits_for() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let hour = chrono::Utc::now() + chrono::Duration::hours(1);
    let later = store.submit(&NewJob { run_at: Some(hour), ..NewJob::handler("x", &1) }).await.unwrap().job;
    let image =
        leasehold::protocol::domain::ContainerSpec { image: "busybox".to_owned(), ..Default::default() };
    let container = leasehold::protocol::domain::JobDefinition::Container(image);
    let container = store.submit(&NewJob::ad_hoc(container)).await.unwrap().job;
    let (first, second, running, lost, done) = (
        submit(&store).await,
        submit(&store).await,
        submit(&store).await,
        submit(&store).await,
        submit(&store).await,
    );
    rows::hold(&client, running, 30.0).await;
    rows::hold(&client, lost, -1.0).await;
    rows::hold(&client, done, 30.0).await;
    rows::fail(&client, done, 3).await;
    let why = async |job| store.why(&namespace(), job).await.unwrap().expect("the job exists");
    assert!(why(first).await.contains("no worker process is alive"), "{}", why(first).await);
    client
        .execute(
            "insert into leasehold.workers (namespace, worker_id, process_id, host, concurrency, status)
             values ('default', 'w1', gen_random_uuid(), 'h', 1, '{}')",
            &[],
        )
        .await
        .unwrap();
    let say = async |words: &str| {
        client.execute("update leasehold.workers set status = $1::text::json", &[&words]).await.unwrap();
    };
    say(r#"{"routes": ["CONTAINER", "HANDLER y"], "permits": {"free": 3}}"#).await;
    assert!(why(first).await.contains("serves HANDLER x"), "{}", why(first).await);
    say(r#"{"routes": ["CONTAINER", "HANDLER x"], "permits": {"free": 0}}"#).await;
    assert!(why(first).await.contains("every permit"), "{}", why(first).await);
    say(r#"{"routes": ["CONTAINER", "HANDLER x"], "permits": {"free": 3}}"#).await;
    for (job, says) in [
        (later, "not due before"),
        (container, "no runtime node"),
        (first, "the next of its kind"),
        (second, "1 job is before it"),
        (running, "worker w1 holds it since"),
        (lost, "expired at"),
        (done, "ended FAILED (3)"),
    ] {
        let sentence = why(job).await;
        assert!(sentence.contains(says) && sentence.starts_with(&format!("job {job} is ")), "{sentence}");
        assert!(!sentence.contains('\n') && sentence.len() < 300, "{sentence}");
    }
    client
        .execute("update leasehold.waiting set due_at = clock_timestamp() - interval '1 minute'", &[])
        .await
        .unwrap();
    assert!(why(later).await.contains("has not been dispatched"), "{}", why(later).await);
    assert_eq!(store.why(&namespace(), JobId(99_999)).await.unwrap(), None);
}

#[tokio::test]
async fn why_names_what_a_recipe_waits_for_and_what_it_needs() {
    let db = TestDatabase::create().await;
    let (store, owner) = (db.store().await, claimant("w1"));
    let spec = RecipeSpec {
        recipe: "process".to_owned(),
        job_type: RecipeSpec::DEFAULT_JOB_TYPE.to_owned(),
        language: 1,
        digest: "0".repeat(64),
        bundle: RawJson::default(),
        inputs: RawJson::default(),
        require: RawJson::default(),
    };
    let job = store.submit(&NewJob::ad_hoc(JobDefinition::Recipe(spec))).await.unwrap().job;
    let client = db.client().await;
    client
        .execute(
            "insert into leasehold.workers (namespace, worker_id, process_id, host, concurrency, status)
             values ('default', 'w1', gen_random_uuid(), 'h', 1, '{}')",
            &[],
        )
        .await
        .unwrap();
    let routes: Arc<[Route]> = Arc::from([Route::recipe("recipe", "")]);
    let again = async |wake: Vec<Wake>, publish: Option<Publication>| {
        let request = OpenClaim { routes: Arc::clone(&routes), ..open(&owner, 1) };
        let grant = store.claim(&request).await.unwrap().grants.remove(0);
        let end = End::Reschedule { route: None, delay: Duration::ZERO, payload: None, wake, publish };
        let ended = store.end(&grant.authority, CommandId::generate(), &end).await.unwrap();
        assert_eq!(ended, Ended::Rescheduled);
        store.why(&namespace(), job).await.unwrap().expect("the job exists")
    };
    let why = again(vec![Wake::Signal("go".to_owned()), Wake::Child(job)], None).await;
    assert!(why.ends_with(&format!("waits for the signal \"go\", or the end of job {job}")), "{why}");
    let signal = NewSignal { name: "go".to_owned(), data: "1".to_owned(), key: None };
    let answer = store.send_signal(&namespace(), job, &signal).await.unwrap();
    assert!(matches!(answer, SignalAnswer::Stored { created: true, .. }), "{answer:?}");
    assert_eq!(store.dispatch(&namespace(), 10).await.unwrap().moved, 1);
    let hint = Hint { memory_bytes: Some(16 << 30), ..Hint::default() };
    let declined_by = Some(r#"{"memory":"2Gi"}"#.into());
    again(Vec::new(), Some(Publication { hint, handoff: true, declined_by })).await;
    assert_eq!(store.dispatch(&namespace(), 10).await.unwrap().moved, 1);
    let why = store.why(&namespace(), job).await.unwrap().expect("the job exists");
    assert!(
        why.contains("its next task needs memory=16Gi, and no live worker that polls for it has that: w1 lacks memory (unknown)"),
        "{why}"
    );
    let end = r#"; declined it: {"memory":"2Gi"}; workers say what they have with --allocation-…"#;
    assert!(why.ends_with(end), "{why}");
    // A client that writes what cannot be read is told before any worker has refused it.
    client
        .execute("update leasehold.jobs set payload = '{\"execution\": {\"version\": 1, \"gpu\": 1}}'", &[])
        .await
        .unwrap();
    let why = store.why(&namespace(), job).await.unwrap().expect("the job exists");
    assert!(why.contains("no worker will admit it") && why.contains("gpu"), "{why}");
    client.execute("update leasehold.jobs set payload = 'null'", &[]).await.unwrap();
    // What a worker says of itself is for people, and decides what they are told.
    let say = async |status: &str| {
        client.execute("update leasehold.workers set status = $1::text::json", &[&status]).await.unwrap();
        store.why(&namespace(), job).await.unwrap().expect("the job exists")
    };
    let why = say(r#"{"routes":["RECIPE recipe"],"allocation":{"resources":{"memory":"2Gi"}}}"#).await;
    assert!(why.contains("w1 lacks memory (has 2Gi); declined it"), "{why}");
    let why = say(
        r#"{"routes":["RECIPE recipe"],"permits":{"free":1},"allocation":{"resources":{"memory":"16Gi"}}}"#,
    )
    .await;
    assert!(why.contains("it waits for the next claim by the 1 worker that may run it"), "{why}");
    let why = say(r#"{"routes":["RECIPE other"]}"#).await;
    assert!(why.contains("none of 1 live worker serves RECIPE recipe;"), "{why}");
    let needs = store.recipe_needs(&namespace(), &[job, JobId(99_999)]).await.unwrap();
    let published = needs[0].published.as_ref().expect("they were published");
    assert_eq!((needs.len(), needs[0].job, needs[0].handoffs), (1, job, 1));
    assert!(published.by_handoff && published.exact && published.hint.memory_bytes == Some(16 << 30));
    assert_eq!(needs[0].require.as_deref(), Some("{}"));
}

fn find<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no check {name}: {checks:?}"))
}

/// AP-15: the doctor names what is wrong and the remedy, and never the password.
#[tokio::test]
async fn the_doctor_finds_what_is_stuck_and_says_what_to_do() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let checks = store.doctor(&namespace()).await;
    for name in [
        "database",
        "schema",
        "clock",
        "connections",
        "leases",
        "dispatch",
        "workers",
        "nodes",
        "generations",
    ] {
        assert_eq!(find(&checks, name).status, CheckStatus::Ok, "{checks:?}");
    }
    let (expired, overdue) = (submit(&store).await, submit(&store).await);
    rows::hold(&client, expired, -5.0).await;
    let hour = chrono::Utc::now() + chrono::Duration::hours(1);
    let later = store.submit(&NewJob { run_at: Some(hour), ..NewJob::handler("x", &1) }).await.unwrap().job;
    client
        .execute("update leasehold.waiting set due_at = clock_timestamp() - interval '1 minute'", &[])
        .await
        .unwrap();
    client
        .execute(
            "insert into leasehold.nodes (namespace, node_id, endpoint, engine_id, process_id, max_concurrency, os, architecture,
                 cpu_millis, memory_bytes, engine_version, heartbeat_ttl_ms, lost_after_ms, heartbeat_at)
             values ('default', 'n1', 'unix:///x', 'e', gen_random_uuid(), 1, 'linux', 'x', 1, 1, '1', 1000, 2000,
                 clock_timestamp() - interval '1 hour')",
            &[],
        )
        .await
        .unwrap();
    let checks = store.doctor(&namespace()).await;
    for (name, says) in [
        ("leases", "1 of 1 RUNNING"),
        ("dispatch", "1 PENDING"),
        ("workers", "1 QUEUED"),
        ("nodes", "silent: n1"),
    ] {
        let check = find(&checks, name);
        assert_eq!(check.status, CheckStatus::Warn, "{check:?}");
        assert!(check.detail.contains(says) && check.remedy.is_some(), "{check:?}");
    }
    let _ = (overdue, later);

    let io = tokio::runtime::Handle::current();
    let wrong = DatabaseSettings {
        url: "postgres://somebody:s3cret-pass@127.0.0.1:1/none".to_owned(),
        ..db.settings()
    };
    let checks = diagnose(&wrong, io.clone(), &namespace()).await;
    assert_eq!((checks.len(), checks[0].name, checks[0].status), (1, "database", CheckStatus::Fail));
    assert!(!format!("{checks:?}").contains("s3cret"), "{checks:?}");
    let empty = TestDatabase::empty().await;
    let checks = diagnose(&empty.settings(), io, &namespace()).await;
    assert_eq!((checks[0].name, checks[0].remedy.as_deref()), ("schema", Some("run `leasehold migrate`")));
}

/// One row that somebody edited by hand hides no other, and no job whose row somebody deleted is an odd error.
#[tokio::test]
async fn rows_that_were_edited_or_deleted_by_hand_are_told_of_and_hide_no_others() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let (sound, odd, early, gone) =
        (submit(&store).await, submit(&store).await, submit(&store).await, submit(&store).await);
    for job in [sound, odd, early] {
        rows::hold(&client, job, 30.0).await;
    }
    let forge = "update leasehold.leases set lease_expires_at = $2::text::timestamptz where job_id = $1";
    client.execute(forge, &[&odd.0, &"infinity"]).await.unwrap();
    client.execute(forge, &[&early.0, &"-infinity"]).await.unwrap();
    client.execute("delete from leasehold.ready where job_id = $1", &[&gone.0]).await.unwrap();

    let page = store.list_jobs(&JobFilter::all(namespace())).await.unwrap();
    let expiries: HashMap<JobId, bool> =
        page.items.iter().map(|row| (row.id, row.lease_expires_at.is_some())).collect();
    assert_eq!(expiries, HashMap::from([(sound, true), (odd, false), (early, false)]));
    for job in [odd, early] {
        let shown = store.show_job(&namespace(), job).await.unwrap().expect("it exists");
        assert_eq!(shown.leases[0].expires_at, None);
        let why = store.why(&namespace(), job).await.unwrap().expect("it exists");
        assert!(why.contains("expires at no time") && why.contains("doctor --audit"), "{why}");
    }
    let checks = store.doctor(&namespace()).await;
    let leases = find(&checks, "leases");
    assert_eq!(leases.status, CheckStatus::Fail, "{leases:?}");
    assert!(leases.detail.starts_with("2 of 3 RUNNING"), "{leases:?}");

    let grace = std::time::Duration::from_secs(1);
    for refused in [
        store.show_job(&namespace(), gone).await.unwrap_err(),
        store.why(&namespace(), gone).await.unwrap_err(),
        store.request_cancel(&namespace(), gone, grace).await.unwrap_err(),
        store.retry_job(&namespace(), gone).await.unwrap_err(),
    ] {
        let text = refused.to_string();
        assert!(text.contains("its row is missing") && text.contains("doctor --audit"), "{text}");
    }
}

/// Containers that nothing can run are no healthy fleet, whatever became of the nodes.
#[tokio::test]
async fn the_doctor_fails_while_containers_wait_and_no_node_can_run_them() {
    let db = TestDatabase::create().await;
    let (store, client) = (db.store().await, db.client().await);
    let put = "insert into leasehold.nodes (namespace, node_id, endpoint, engine_id, process_id, max_concurrency, os,
                   architecture, cpu_millis, memory_bytes, engine_version, heartbeat_ttl_ms, lost_after_ms, state)
               values ('default', $1, 'unix:///x', 'e', gen_random_uuid(), 2, 'linux', 'x', 1, 1, '1', 3600000, 7200000, 'READY')";
    for node in ["n1", "n2"] {
        client.execute(put, &[&node]).await.unwrap();
    }
    let checks = store.doctor(&namespace()).await;
    assert_eq!(find(&checks, "nodes").status, CheckStatus::Ok, "{checks:?}");
    let engines = find(&checks, "engines");
    assert_eq!(engines.status, CheckStatus::Warn);
    assert!(engines.detail.contains("n1 and n2 serve one engine"), "{engines:?}");
    client.execute("update leasehold.nodes set engine_id = node_id", &[]).await.unwrap();
    let checks = store.doctor(&namespace()).await;
    assert!(checks.iter().all(|check| check.name != "engines"), "{checks:?}");

    // Both agents took their leave and never came back.
    let leave = "update leasehold.nodes set state = 'DRAINING', heartbeat_at = clock_timestamp() - interval '90 minutes'";
    client.execute(leave, &[]).await.unwrap();
    let checks = store.doctor(&namespace()).await;
    let nodes = find(&checks, "nodes");
    assert_eq!(nodes.status, CheckStatus::Warn, "{nodes:?}");
    assert!(nodes.detail.contains("n1 DRAINING, silent; n2 DRAINING, silent"), "{nodes:?}");

    let image =
        leasehold::protocol::domain::ContainerSpec { image: "busybox".to_owned(), ..Default::default() };
    let container = NewJob::ad_hoc(leasehold::protocol::domain::JobDefinition::Container(image));
    store.submit(&container).await.unwrap();
    let checks = store.doctor(&namespace()).await;
    assert_eq!(find(&checks, "nodes").status, CheckStatus::Warn, "it came a moment ago: {checks:?}");
    let age = "update leasehold.ready set due_at = clock_timestamp() - interval '52 seconds'";
    client.execute(age, &[]).await.unwrap();
    for gone in [false, true] {
        if gone {
            client.execute("delete from leasehold.nodes", &[]).await.unwrap();
        }
        let checks = store.doctor(&namespace()).await;
        let nodes = find(&checks, "nodes");
        assert_eq!(nodes.status, CheckStatus::Fail, "{nodes:?}");
        assert!(nodes.detail.contains("no node can run the 1 QUEUED CONTAINER jobs"), "{nodes:?}");
        assert!(nodes.remedy.as_deref().is_some_and(|text| text.contains("leasehold node")), "{nodes:?}");
    }
    client.execute(put, &[&"n3"]).await.unwrap();
    let checks = store.doctor(&namespace()).await;
    assert_eq!(find(&checks, "nodes").status, CheckStatus::Ok, "{checks:?}");
}
