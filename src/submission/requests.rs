// Requests that every way of submitting must take, and such that each must refuse: good ones but for one place. Shared by the unit tests
// and by the test that compares Rust's verdict with the SQL function's, so it names no module of either.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeZone as _, Utc};
use leasehold_actors::domain::{
    ContainerSpec, HeartbeatSpec, JobDefinition, NewJob, OnOrphan, RawJson, RecipeSpec, RetryPolicy,
};

pub fn container(change: impl FnOnce(&mut ContainerSpec)) -> NewJob {
    let mut spec = ContainerSpec { image: "busybox".to_owned(), ..ContainerSpec::default() };
    change(&mut spec);
    NewJob::ad_hoc(JobDefinition::Container(spec))
}

pub fn probe(change: impl FnOnce(&mut HeartbeatSpec)) -> NewJob {
    let mut spec: HeartbeatSpec =
        serde_json::from_str(r#"{"url": "https://example.com/health?x=1#y"}"#).expect("a definition");
    change(&mut spec);
    NewJob::ad_hoc(JobDefinition::Heartbeat(spec))
}

pub fn handler(change: impl FnOnce(&mut NewJob)) -> NewJob {
    let mut job = NewJob::ad_hoc(JobDefinition::Handler { name: "send-email".to_owned() });
    change(&mut job);
    job
}

pub fn recipe(change: impl FnOnce(&mut RecipeSpec)) -> NewJob {
    let mut spec = RecipeSpec {
        recipe: "process".to_owned(),
        job_type: "recipe".to_owned(),
        language: 1,
        digest: "0123456789abcdef".repeat(4),
        bundle: RawJson::default(),
        inputs: RawJson::new(r#"{"b": 1.50, "a": []}"#).expect("valid JSON"),
        require: RawJson::default(),
    };
    change(&mut spec);
    NewJob::ad_hoc(JobDefinition::Recipe(spec))
}

fn with_payload(mut job: NewJob, payload: &str) -> NewJob {
    job.payload = payload.to_owned();
    job
}

pub fn env(name: &str, value: String) -> BTreeMap<String, String> {
    BTreeMap::from([(name.to_owned(), value)])
}

pub fn good() -> Vec<NewJob> {
    vec![
        container(|_| {}),
        recipe(|_| {}),
        recipe(|r| r.job_type = "тип".to_owned()),
        with_payload(recipe(|_| {}), r#" {"mine": 12345678901234567890} "#),
        container(|c| {
            c.memory_bytes = Some(6 << 20);
            c.cpu_millis = Some(10);
            c.pids_limit = Some(1);
            c.stop_grace_ms = Some(0);
            c.on_orphan = OnOrphan::Adopt;
            c.workdir = Some("/".to_owned());
            c.user = Some("1000:1000".to_owned());
            c.network = Some("none".to_owned());
        }),
        probe(|_| {}),
        probe(|h| h.url = "http://[::1]:8080".to_owned()),
        handler(|j| {
            j.priority = -100;
            j.payload = r#"{"z":1,"a":[]}"#.to_owned();
            j.idempotency_key = Some("ключ".to_owned());
            j.trace_parent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
        }),
        handler(|j| {
            j.workflow = Some("adhoc".to_owned());
        }),
        NewJob::of_workflow("nightly"),
        probe(|h| {
            h.headers = env("X-Trace", "a b\tc; \"d\"".to_owned());
            h.expected_status = vec![100, 599];
            h.body = Some("{\"a\": \"\\n\"}".to_owned());
            h.body_match = Some("^ok$".to_owned());
            h.max_redirects = 10;
            h.timeout_ms = 900_000;
        }),
        container(|c| {
            c.image = "localhost:5000/a/b__c-d:V1@sha256:".to_owned() + &"0a".repeat(32);
            c.command = vec![String::new(), "-c".to_owned(), "echo $HOME\n".to_owned()];
            c.entrypoint = Some(vec!["sh".to_owned()]);
            c.env = env("A", " \r\n\t=\"'\\n🦀".repeat(5000));
        }),
    ]
}

/// Each with the field that a refusal must name.
pub fn bad() -> Vec<(NewJob, &'static str)> {
    vec![
        (container(|c| c.image = String::new()), "image"),
        (container(|c| c.image = "a b".to_owned()), "image"),
        (container(|c| c.command = vec!["a\0".to_owned()]), "command[0]"),
        (container(|c| c.command = vec!["x".repeat(200_000)]), "command[0]"),
        (container(|c| c.entrypoint = Some(vec!["\0".to_owned()])), "entrypoint[0]"),
        (container(|c| c.env = env("", "x".to_owned())), "env."),
        (container(|c| c.env = env("A=B", "x".to_owned())), "env.A=B"),
        (container(|c| c.env = env("A\0", "x".to_owned())), "env.A\\0"),
        (container(|c| c.env = env("A", "\0".to_owned())), "env.A"),
        (container(|c| c.workdir = Some("tmp".to_owned())), "workdir"),
        (container(|c| c.workdir = Some("/\0".to_owned())), "workdir"),
        (container(|c| c.user = Some("a\x1b".to_owned())), "user"),
        (container(|c| c.user = Some(String::new())), "user"),
        (container(|c| c.network = Some("container:x".to_owned())), "network"),
        (container(|c| c.memory_bytes = Some(0)), "memory_bytes"),
        (container(|c| c.memory_bytes = Some(-1)), "memory_bytes"),
        (container(|c| c.memory_bytes = Some((6 << 20) - 1)), "memory_bytes"),
        (container(|c| c.cpu_millis = Some(0)), "cpu_millis"),
        (container(|c| c.cpu_millis = Some(1)), "cpu_millis"),
        (container(|c| c.pids_limit = Some(0)), "pids_limit"),
        (container(|c| c.stop_grace_ms = Some(-1)), "stop_grace_ms"),
        (container(|c| c.stop_grace_ms = Some(i64::MAX)), "stop_grace_ms"),
        (container(|c| c.log_quota_bytes = Some(-1)), "log_quota_bytes"),
        (
            container(|c| c.env = (0..20).map(|n| (format!("K{n}"), "x".repeat(100_000))).collect()),
            "definition",
        ),
        (probe(|h| h.url = String::new()), "url"),
        (probe(|h| h.url = "ftp://example.com".to_owned()), "url"),
        (probe(|h| h.url = "http:example.com".to_owned()), "url"),
        (probe(|h| h.url = "http://".to_owned()), "url"),
        (probe(|h| h.url = "http:///x".to_owned()), "url"),
        (probe(|h| h.url = "http://me:secret@example.com".to_owned()), "url"),
        (probe(|h| h.url = "http://@example.com".to_owned()), "url"),
        (probe(|h| h.url = "http://example.com:99999".to_owned()), "url"),
        (probe(|h| h.url = "http://example.com:0".to_owned()), "url"),
        (probe(|h| h.url = "http://exa\nmple.com".to_owned()), "url"),
        (probe(|h| h.url = "http://example.com\\@evil".to_owned()), "url"),
        (probe(|h| h.url = format!("http://example.com/{}", "x".repeat(9000))), "url"),
        (probe(|h| h.method = "get".to_owned()), "method"),
        (probe(|h| h.method = "CONNECT".to_owned()), "method"),
        (probe(|h| h.expected_status = vec![200, 99]), "expected_status[1]"),
        (probe(|h| h.expected_status = vec![600]), "expected_status[0]"),
        (probe(|h| h.headers = env("a b", String::new())), "headers.a b"),
        (probe(|h| h.headers = env("", String::new())), "headers."),
        (probe(|h| h.headers = env("A", "x\r\nB: y".to_owned())), "headers.A"),
        (probe(|h| h.body = Some("\0".to_owned())), "body"),
        (probe(|h| h.max_redirects = 11), "max_redirects"),
        (probe(|h| h.timeout_ms = 0), "timeout_ms"),
        (probe(|h| h.timeout_ms = 86_400_000), "timeout_ms"),
        (handler(|j| j.definition = Some(JobDefinition::Handler { name: "a\x07".to_owned() })), "handler"),
        (handler(|j| j.definition = None), "definition"),
        (recipe(|r| r.recipe = String::new()), "recipe"),
        (recipe(|r| r.job_type = "a\nb".to_owned()), "job_type"),
        (recipe(|r| r.language = 0), "language"),
        (recipe(|r| r.language = 4_000_000_000), "language"),
        (recipe(|r| r.digest = "0123".to_owned()), "digest"),
        (recipe(|r| r.digest = "0123456789ABCDEF".repeat(4)), "digest"),
        (recipe(|r| r.bundle = RawJson::new("[]").expect("valid JSON")), "bundle"),
        (recipe(|r| r.inputs = RawJson::new("7").expect("valid JSON")), "inputs"),
        (recipe(|r| r.require = RawJson::new("null").expect("valid JSON")), "require"),
        (
            recipe(|r| {
                let long = format!("{{\"x\":\"{}\"}}", "y".repeat(262_144));
                r.bundle = RawJson::new(long).expect("valid JSON");
            }),
            "bundle",
        ),
        (with_payload(recipe(|_| {}), "[]"), "payload"),
        (with_payload(recipe(|_| {}), "7"), "payload"),
        (handler(|j| j.workflow = Some("nightly".to_owned())), "definition"),
        (NewJob::of_workflow("a\nb"), "workflow"),
        (handler(|j| j.payload = "{".to_owned()), "payload"),
        (handler(|j| j.payload = r#"{"a":"\u0000"}"#.to_owned()), "payload"),
        (handler(|j| j.priority = 101), "priority"),
        (handler(|j| j.priority = -101), "priority"),
        (handler(|j| j.run_at = Some(DateTime::<Utc>::MAX_UTC)), "run_at"),
        (handler(|j| j.run_at = Some(DateTime::<Utc>::MIN_UTC)), "run_at"),
        (handler(|j| j.run_at = Utc.with_ymd_and_hms(2200, 1, 1, 0, 0, 0).single()), "run_at"),
        (handler(|j| j.idempotency_key = Some(String::new())), "idempotency_key"),
        (handler(|j| j.idempotency_key = Some("é".repeat(2048))), "idempotency_key"),
        (handler(|j| j.idempotency_key = Some("a\0".to_owned())), "idempotency_key"),
        (handler(|j| j.timeout_ms = Some(0)), "timeout_ms"),
        (handler(|j| j.timeout_ms = Some(-5)), "timeout_ms"),
        (handler(|j| j.timeout_ms = Some(31_536_000_000 + 1)), "timeout_ms"),
        (handler(|j| j.retry.max_user = Some(0)), "retry.max_user"),
        (handler(|j| j.retry.max_system = Some(1001)), "retry.max_system"),
        (handler(|j| j.retry.max_timeout = Some(-1)), "retry.max_timeout"),
        (handler(|j| j.retry.backoff_ms = Some(-1)), "retry.backoff_ms"),
        (handler(|j| j.retry.backoff_cap_ms = Some(i64::MAX)), "retry.backoff_cap_ms"),
        (
            handler(|j| j.retry = RetryPolicy { backoff_ms: Some(2), backoff_cap_ms: Some(1), ..j.retry }),
            "retry.backoff_cap_ms",
        ),
        (handler(|j| j.trace_parent = Some("00-x".to_owned())), "trace_parent"),
    ]
}

/// What only Rust can tell: SQL has another dialect of regular expressions, and does not parse addresses.
pub fn only_rust_can_tell() -> Vec<(NewJob, &'static str)> {
    vec![
        (probe(|h| h.body_match = Some("(".to_owned())), "body_match"),
        (probe(|h| h.body_match = Some("a{1000}{1000}{1000}".to_owned())), "body_match"),
        (probe(|h| h.url = "http://256.256.256.256/".to_owned()), "url"),
    ]
}
