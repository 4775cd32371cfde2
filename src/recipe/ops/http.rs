//! The op `http`: one request, made by the worker itself under the egress policy of HEARTBEAT.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold_actors::{domain::HeartbeatSpec, ports::recipe::JsonText};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{OUTPUT_LIMIT, bounded, decode, duration, failed, masked, secrets::Secrets, too_large};
use crate::{
    recipe::op::{Op, Task, TaskError},
    submission,
    workload::exchange::{Exchange, Plan, Reached, Stage, read_body},
};

/// When a recipe says nothing.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The headers of an answer that are part of the output: what programs act on, and nothing that may be a credential.
const KEPT: [&str; 9] = [
    "content-language",
    "content-length",
    "content-type",
    "date",
    "etag",
    "last-modified",
    "link",
    "location",
    "retry-after",
];

/// Makes requests.
#[derive(Debug)]
pub(super) struct HttpOp {
    pub(super) exchange: Exchange,
    pub(super) secrets: Arc<Secrets>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input<'a> {
    url: String,
    method: Option<String>,
    #[serde(default, deserialize_with = "super::or_default")]
    headers: BTreeMap<String, String>,
    /// Text goes out as it is, anything else as JSON.
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "super::or_default")]
    expected_status: Vec<u16>,
    #[serde(default, deserialize_with = "super::or_default")]
    max_redirects: u8,
    timeout: Option<String>,
}

#[async_trait]
impl Op for HttpOp {
    async fn run(&self, task: Task) -> Result<JsonText, TaskError> {
        let (spec, limit) = spec(&task, &self.secrets)?;
        let work = async {
            let plan = Plan::new(&spec).map_err(failed)?;
            let stage = Stage::new();
            tokio::select! {
                answer = tokio::time::timeout(limit, self.ask(&plan, &stage)) => {
                    answer.unwrap_or_else(|_| Err(failed(plan.overdue(limit, &stage))))
                }
                why = task.context.cancelled() => {
                    Err(TaskError::system("stopped", format!("the request was given up: {why:?}")))
                }
            }
        };
        work.await.map_err(|error| masked(error, &self.secrets))
    }
}

fn spec(task: &Task, secrets: &Secrets) -> Result<(HeartbeatSpec, Duration), TaskError> {
    let input: Input<'_> = decode(task, secrets)?;
    let limit = input.timeout.as_deref().map_or(Ok(TIMEOUT), duration)?;
    let mut headers = input.headers;
    let has = |headers: &BTreeMap<String, String>, name: &str| {
        headers.keys().any(|key| key.eq_ignore_ascii_case(name))
    };
    if has(&headers, "Idempotency-Key") {
        return Err(TaskError::user("bad_input", "http: headers.Idempotency-Key is set by the op itself"));
    }
    let body = match input.body.map(RawValue::get) {
        None | Some("null") => None,
        Some(text) if text.starts_with('"') => Some(serde_json::from_str::<String>(text)?),
        Some(json) => {
            if !has(&headers, "Content-Type") {
                headers.insert("Content-Type".to_owned(), "application/json".to_owned());
            }
            Some(json.to_owned())
        }
    };
    headers.insert("Idempotency-Key".to_owned(), task.idempotency_key.clone());
    let spec = HeartbeatSpec {
        url: input.url,
        method: input.method.map_or_else(|| "GET".to_owned(), |method| method.to_ascii_uppercase()),
        expected_status: input.expected_status,
        headers,
        body,
        body_match: None,
        max_redirects: input.max_redirects,
        timeout_ms: i64::try_from(limit.as_millis()).unwrap_or(i64::MAX),
        insecure_skip_tls_verify: false,
    };
    submission::heartbeat::check(&spec)
        .map_err(|broken| masked(TaskError::user("bad_input", format!("http: {broken}")), secrets))?;
    Ok((spec, limit))
}

impl HttpOp {
    async fn ask(&self, plan: &Plan<'_>, stage: &Stage) -> Result<JsonText, TaskError> {
        let Reached { response, url, .. } = self.exchange.reach(plan, stage).await.map_err(failed)?;
        let (status, headers) = (response.status().as_u16(), kept(response.headers()));
        let is_json = says_json(response.headers());
        stage.is("while reading the body");
        // One byte more than is kept tells that there is more.
        let body = read_body(response, &url, OUTPUT_LIMIT + 1).await.map_err(failed)?;
        if body.len() > OUTPUT_LIMIT {
            return Err(too_large(body.len()));
        }
        let Ok(text) = String::from_utf8(body) else {
            return Err(TaskError::user("body_not_text", "http: the body of the answer is not UTF-8 text"));
        };
        let headers = serde_json::Value::from(headers);
        let json = is_json && serde_json::from_str::<&RawValue>(&text).is_ok();
        let body = if json { text.trim().to_owned() } else { serde_json::Value::String(text).to_string() };
        bounded(&format!(r#"{{"status":{status},"headers":{headers},"body":{body}}}"#), &self.secrets)
    }
}

fn kept(headers: &HeaderMap) -> serde_json::Map<String, serde_json::Value> {
    let text = |name: &&str| Some(((*name).to_owned(), headers.get(*name)?.to_str().ok()?.into()));
    KEPT.iter().filter_map(text).collect()
}

fn says_json(headers: &HeaderMap) -> bool {
    let said = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.ends_with("+json")
}
