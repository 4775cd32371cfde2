//! What one way of submitting refuses, the other refuses too, and neither leaves anything behind.

#[path = "../../../src/submission/requests.rs"]
#[allow(dead_code, reason = "the unit tests of submission use the rest")]
mod requests;

use leasehold::{postgres::submit::SubmitError, protocol::domain::NewJob, submission};
use tokio_postgres::{Client, types::Type};

use crate::support::database::TestDatabase;

const SUBMIT: &str = "select job_id from leasehold.submit_job(kind => $1, definition => $2::json, payload => $3::json, \
     namespace => $4, workflow => $5, priority => $6, run_at => $7, idempotency_key => $8, timeout_ms => $9, \
     retry => $10::json, trace_parent => $11)";

/// The call as another language would make it, without Rust's checks before it.
async fn in_sql(client: &Client, job: &NewJob) -> Result<i64, tokio_postgres::Error> {
    let kind = job.definition.as_ref().map(|d| d.kind().as_str());
    let definition = job.definition.as_ref().map(|d| d.to_json());
    let retry = serde_json::to_string(&job.retry).unwrap();
    let rows = client
        .query_typed(
            SUBMIT,
            &[
                (&kind, Type::TEXT),
                (&definition, Type::TEXT),
                (&job.payload, Type::TEXT),
                (&job.namespace.as_str(), Type::TEXT),
                (&job.workflow, Type::TEXT),
                (&i32::from(job.priority), Type::INT4),
                (&job.run_at, Type::TIMESTAMPTZ),
                (&job.idempotency_key, Type::TEXT),
                (&job.timeout_ms, Type::INT8),
                (&retry, Type::TEXT),
                (&job.trace_parent, Type::TEXT),
            ],
        )
        .await?;
    Ok(rows[0].get(0))
}

/// Refused by a rule of ours, or before that by the server's own reading of text, JSON and time.
fn assert_refused(answer: Result<i64, tokio_postgres::Error>, what: &str, field: Option<&str>) {
    let error = answer.expect_err(what);
    let Some(db) = error.as_db_error() else { return };
    let code = db.code().code();
    assert!(matches!(code, "LH001" | "22008" | "22021" | "22P02" | "22P05" | "54001"), "{what}: {error:?}");
    if let (Some(field), "LH001") = (field, code) {
        // A NUL is found in the definition's text, before its fields are looked at.
        let field = if db.message().contains("NUL") && field != "payload" { "definition" } else { field };
        assert_eq!(db.column(), Some(field), "{what}: {error:?}");
        assert!(db.message().starts_with(&format!("{field}: ")), "{what}: {error:?}");
    }
}

async fn nothing_stands(client: &Client) {
    for table in ["jobs", "waiting", "ready", "idempotency_keys"] {
        let n: i64 =
            client.query_one(&format!("select count(*) from leasehold.{table}"), &[]).await.unwrap().get(0);
        assert_eq!(n, 0, "rows in {table}");
    }
}

/// AP-05, RQ-09, RQ-13, DK-33, HB-01 and the limits: one table for both ways.
#[tokio::test]
async fn rust_and_sql_refuse_the_same_requests_and_write_nothing() {
    let db = TestDatabase::create().await;
    let store = db.store().await;
    let client = db.client().await;
    for (job, field) in requests::bad() {
        match store.submit(&job).await {
            Err(SubmitError::Invalid(invalid)) => assert_eq!(invalid.field, field),
            answer => panic!("{job:?}: {answer:?}"),
        }
        // What is too long as a whole has no field of its own in SQL.
        let in_column = Some(field).filter(|f| *f != "definition" && !f.contains('\\'));
        assert_refused(in_sql(&client, &job).await, &format!("{job:?}"), in_column);
    }
    for (job, _) in requests::only_rust_can_tell() {
        assert!(submission::validate(&job).is_err(), "{job:?}");
    }
    nothing_stands(&client).await;
    let good = requests::handler(|_| {});
    assert!(
        in_sql(&client, &good).await.is_ok() && store.submit(&good).await.is_ok(),
        "the sessions are healthy"
    );
}

#[tokio::test]
async fn sql_refuses_what_no_rust_type_can_hold() {
    let db = TestDatabase::create().await;
    let client = db.client().await;
    let statement = "select job_id from leasehold.submit_job(kind => $1, definition => $2::json, payload => $3::json, retry => $4::json)";
    let call = async |kind: &str, definition: &str, payload: &str, retry: &str| {
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 4] =
            [(&kind, Type::TEXT), (&definition, Type::TEXT), (&payload, Type::TEXT), (&retry, Type::TEXT)];
        client.query_typed(statement, &params).await.map(|rows| rows[0].get::<_, i64>(0))
    };
    for (kind, definition, field) in [
        ("BATCH", r#"{"image":"x"}"#, Some("kind")),
        ("RECIPE", r#"{"image":"x"}"#, Some("image")),
        ("container", r#"{"image":"x"}"#, Some("kind")),
        ("CONTAINER", "[]", Some("definition")),
        ("CONTAINER", "{", None),
        ("CONTAINER", "{}", Some("image")),
        ("CONTAINER", r#"{"image":null}"#, Some("image")),
        ("CONTAINER", r#"{"image":"x","colour":"red"}"#, Some("colour")),
        ("CONTAINER", r#"{"image":"x","image":"y"}"#, Some("definition")),
        ("CONTAINER", r#"{"image":"x","env":{"A":"1","A":"2"}}"#, Some("definition")),
        ("CONTAINER", r#"{"image":"x","env":{"A":1}}"#, Some("env.A")),
        ("CONTAINER", r#"{"image":"x","env":null}"#, Some("env")),
        ("CONTAINER", r#"{"image":"x","command":"sh -c"}"#, Some("command")),
        ("CONTAINER", r#"{"image":"x","command":[1]}"#, Some("command[0]")),
        ("CONTAINER", r#"{"image":"x","memory_bytes":"64Mi"}"#, Some("memory_bytes")),
        ("CONTAINER", r#"{"image":"x","memory_bytes":67108864.0}"#, Some("memory_bytes")),
        ("CONTAINER", r#"{"image":"x","memory_bytes":99999999999999999999999999}"#, Some("memory_bytes")),
        ("CONTAINER", r#"{"image":"x","pull":"sometimes"}"#, Some("pull")),
        ("CONTAINER", r#"{"image":"x","pull":null}"#, Some("pull")),
        ("HEARTBEAT", r#"{"url":["http://x"]}"#, Some("url")),
        ("HEARTBEAT", r#"{"url":"http://x","max_redirects":-1}"#, Some("max_redirects")),
        (
            "HEARTBEAT",
            r#"{"url":"http://x","insecure_skip_tls_verify":"no"}"#,
            Some("insecure_skip_tls_verify"),
        ),
        ("HEARTBEAT", r#"{"url":"http://x","expected_status":[true]}"#, Some("expected_status[0]")),
        ("HANDLER", r#"{"handler":5}"#, Some("handler")),
        ("HANDLER", r#"{"handler":"x","args":[]}"#, Some("args")),
    ] {
        assert_refused(call(kind, definition, "null", "{}").await, definition, field);
    }
    let good = r#"{"handler":"x"}"#;
    for payload in [
        r#"{"a":1,"a":2}"#,
        r#"[{"b":[{"c":1,"c":2}]}]"#,
        r#""\u0000""#,
        r#""\\\u0000""#,
        r#""\ud83d""#,
        r#""\ude00\ud83d""#,
        r#""\ud83d\\\ude00""#,
        &("[".repeat(101) + &"]".repeat(101)),
        &("[".repeat(100_000) + &"]".repeat(100_000)),
        &format!("\"{}\"", "x".repeat((1 << 20) - 1)),
        "[1,]",
        "nope",
        "",
    ] {
        let what: String = payload.chars().take(60).collect();
        assert_refused(call("HANDLER", good, payload, "{}").await, &what, Some("payload"));
    }
    for retry in
        ["[]", r#"{"max_user":0}"#, r#"{"tries":3}"#, r#"{"max_user":1.5}"#, r#"{"max_user":1,"max_user":2}"#]
    {
        assert_refused(call("HANDLER", good, "null", retry).await, retry, None);
    }
    nothing_stands(&client).await;
    for payload in [r#""\\u0000 \\ud83d \ud83d\ude00""#, &("[".repeat(100) + &"]".repeat(100))] {
        call("HANDLER", good, payload, r#"{"max_user":null}"#).await.unwrap();
    }
}
