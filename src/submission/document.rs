//! The YAML form of a workflow: what an author writes, with amounts and durations as people write them.

use std::{collections::BTreeMap, fmt, path::Path};

use leasehold_actors::domain::{
    ContainerSpec, HeartbeatSpec, InvalidDefinition, JobDefinition, Namespace, OnOrphan, PullPolicy, RawJson,
    RecipeSpec, RetryPolicy, execution::Requirements, quantity,
};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::recipe::{self, Mistakes, bundle::Bundle};

use super::{
    AD_HOC, json, priority, range, text_name, validate_definition, validate_retry, yaml_json::JsonText,
};

/// The longest file.
pub const MAX_FILE_BYTES: usize = 4 << 20;

/// How many runs of one workflow may be RUNNING at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// No limit.
    #[default]
    Allow,
    /// At most this many.
    AllowN(i32),
    /// One, and in order: none starts while an earlier one is unfinished.
    Serial,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("allow"),
            Self::AllowN(n) => write!(f, "allow({n})"),
            Self::Serial => f.write_str("serial"),
        }
    }
}

impl std::str::FromStr for Overlap {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let limit = text.strip_prefix("allow(").and_then(|rest| rest.strip_suffix(')'));
        match (text, limit.map(str::trim).map(str::parse::<i32>)) {
            ("allow", _) => Ok(Self::Allow),
            ("serial", _) => Ok(Self::Serial),
            (_, Some(Ok(n))) if (1..=1_000_000).contains(&n) => Ok(Self::AllowN(n)),
            _ => {
                Err(format!("unknown overlap policy {text:?}: use allow, allow(n) with n from 1, or serial"))
            }
        }
    }
}

/// A workflow as its author wrote it.
///
/// ```yaml
/// name: nightly-report
/// container:                 # or `heartbeat:`, or `handler: name`, or `recipe: {file: process.yaml, inputs: {…}}`
///   image: busybox
///   command: [sh, -c, "echo report"]
///   memory: 64Mi             # also cpu: 500m, pids: 64, env, workdir, user, network, pull
///   stop_grace: 10s
/// payload: {day: monday}     # for runs that bring none; or payload_json: '{"exact": "JSON text"}'
/// priority: 10               # -100 to 100
/// overlap: serial            # or `allow` (default), `allow(3)`
/// timeout: 10m               # of one attempt
/// retry: {max_user: 3, max_system: 5, backoff: 1s, backoff_cap: 1m}
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowDocument {
    /// The tenant: the document's `namespace`, or the one it is applied in.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// What its runs do.
    pub definition: JobDefinition,
    /// The payload of runs that bring none, as raw JSON text.
    pub payload: String,
    /// Priority of its runs.
    pub priority: i16,
    /// How many runs at once.
    pub overlap: Overlap,
    /// The longest that one attempt may run.
    pub timeout_ms: Option<i64>,
    /// How often to try.
    pub retry: RetryPolicy,
}

impl WorkflowDocument {
    /// Reads a file of one or more documents; `namespace` is for those that name none.
    ///
    /// # Errors
    /// [`DocumentError`] for the first mistake: YAML that cannot be read, an unknown or doubled key, a wrong
    /// type, or a value that breaks a rule. A recipe's file cannot be found from here: see
    /// [`WorkflowDocument::parse_all_in`].
    pub fn parse_all(text: &str, namespace: &Namespace) -> Result<Vec<Self>, DocumentError> {
        Self::parse(text, namespace, None)
    }

    /// As [`WorkflowDocument::parse_all`], for a file in this folder: the recipes that it names are read, with all that
    /// they include, and pinned.
    ///
    /// # Errors
    /// [`DocumentError`].
    pub fn parse_all_in(
        text: &str,
        namespace: &Namespace,
        folder: &Path,
    ) -> Result<Vec<Self>, DocumentError> {
        Self::parse(text, namespace, Some(folder))
    }

    fn parse(text: &str, namespace: &Namespace, folder: Option<&Path>) -> Result<Vec<Self>, DocumentError> {
        if text.len() > MAX_FILE_BYTES {
            return Err(DocumentError::nowhere("the file is larger than 4 MiB"));
        }
        if text.contains('\0') {
            return Err(DocumentError::nowhere("the file contains NUL"));
        }
        let mut options = serde_saphyr::Options::default();
        options.strict_booleans = true;
        options.alias_limits.max_total_replayed_events = 50_000;
        let parsed: Vec<Written> = serde_saphyr::from_multiple_with_options(text, options)?;
        if parsed.is_empty() {
            return Err(DocumentError::nowhere("there is no document in the file"));
        }
        parsed.into_iter().map(|written| Ok(written.checked(namespace, folder)?)).collect()
    }

    /// Checks every rule; what [`WorkflowDocument::parse_all`] gives has passed already.
    ///
    /// # Errors
    /// [`InvalidDefinition`] for the first rule that is broken.
    pub fn validate(&self) -> Result<(), InvalidDefinition> {
        text_name("name", &self.name)?;
        validate_definition(&self.definition)?;
        json::check("payload", &self.payload)?;
        let object = self.payload.trim_start().starts_with('{') || self.payload.trim() == "null";
        if matches!(self.definition, JobDefinition::Recipe(_)) && !object {
            return Err(InvalidDefinition::new("payload", "of a recipe must be a JSON object, or null"));
        }
        priority(self.priority)?;
        range("timeout", self.timeout_ms, 1, super::MAX_TIMEOUT_MS)?;
        validate_retry(&self.retry)
    }
}

/// A document that is no workflow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{}{message}", at(*.line, *.column))]
pub struct DocumentError {
    /// Line of the mistake, from 1; 0 when it is nowhere in particular.
    pub line: u64,
    /// Column of the mistake, from 1.
    pub column: u64,
    /// What is wrong, in one line.
    pub message: String,
}

fn at(line: u64, column: u64) -> String {
    if line == 0 { String::new() } else { format!("line {line}, column {column}: ") }
}

impl DocumentError {
    fn nowhere(message: impl Into<String>) -> Self {
        Self { line: 0, column: 0, message: message.into() }
    }
}

impl From<InvalidDefinition> for DocumentError {
    fn from(broken: InvalidDefinition) -> Self {
        Self::nowhere(broken.to_string())
    }
}

impl From<serde_saphyr::Error> for DocumentError {
    fn from(error: serde_saphyr::Error) -> Self {
        let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
        // The rendered text repeats the place, and may draw the source below it.
        let text = error.without_snippet().to_string();
        let first = text.lines().next().unwrap_or_default();
        let message = match first.rfind(" at line ").or_else(|| first.rfind(" at ")) {
            Some(end) if line > 0 => &first[..end],
            _ => first,
        };
        let message = message.strip_prefix("error: ").unwrap_or(message).to_owned();
        Self { line, column, message }
    }
}

/// The document as serde reads it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    namespace: Option<Namespace>,
    container: Option<WrittenContainer>,
    heartbeat: Option<WrittenHeartbeat>,
    handler: Option<String>,
    recipe: Option<WrittenRecipe>,
    #[serde(default)]
    payload: Option<JsonText>,
    payload_json: Option<String>,
    #[serde(default)]
    priority: i16,
    #[serde(default, deserialize_with = "overlap")]
    overlap: Overlap,
    #[serde(default, deserialize_with = "duration")]
    timeout: Option<i64>,
    #[serde(default)]
    retry: WrittenRetry,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenContainer {
    image: String,
    #[serde(default)]
    command: Vec<String>,
    entrypoint: Option<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    user: Option<String>,
    #[serde(default, deserialize_with = "memory")]
    memory: Option<i64>,
    #[serde(default, deserialize_with = "cpu")]
    cpu: Option<i64>,
    pids: Option<i64>,
    network: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    stop_grace: Option<i64>,
    #[serde(default)]
    pull: PullPolicy,
    #[serde(default, deserialize_with = "memory")]
    log_quota: Option<i64>,
    #[serde(default)]
    on_orphan: OnOrphan,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenHeartbeat {
    url: String,
    method: Option<String>,
    #[serde(default)]
    expected_status: Vec<u16>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<String>,
    body_match: Option<String>,
    #[serde(default)]
    max_redirects: u8,
    #[serde(default, deserialize_with = "duration")]
    timeout: Option<i64>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRecipe {
    file: String,
    #[serde(default)]
    inputs: Option<JsonText>,
    #[serde(default)]
    require: Option<JsonText>,
}

impl WrittenRecipe {
    /// Reads the recipe with everything that it includes, and pins it.
    fn pinned(&self, folder: Option<&Path>) -> Result<RecipeSpec, InvalidDefinition> {
        let invalid = |field: &str, reason: String| InvalidDefinition::new(format!("recipe.{field}"), reason);
        let folder = folder.ok_or_else(|| {
            invalid(
                "file",
                "is relative to the workflow's own file, and this one comes from nowhere".to_owned(),
            )
        })?;
        let first = |found: Mistakes| {
            let mistake = found.mistakes.first().map_or_else(String::new, ToString::to_string);
            invalid("file", mistake)
        };
        let bundle = Bundle::read(&folder.join(&self.file)).map_err(first)?;
        let recipe = recipe::compile(&bundle).map_err(first)?;
        let given = self.inputs.as_ref().map_or("{}", |inputs| inputs.0.as_str());
        let bound =
            recipe::inputs::bind(&recipe.inputs, given).map_err(|e| invalid("inputs", e.to_string()))?;
        let required = self.require.as_ref().map_or("{}", |require| require.0.as_str());
        let required: Requirements =
            serde_json::from_str(required).map_err(|e| invalid("require", e.to_string()))?;
        let required = serde_json::to_string(&required).map_err(|e| invalid("require", e.to_string()))?;
        let raw = |field: &str, text: &str| {
            RawJson::new(text).map_err(|e| invalid(field, format!("cannot be pinned: {e}")))
        };
        Ok(RecipeSpec {
            recipe: recipe.id,
            job_type: recipe.job_type,
            language: recipe.language,
            digest: bundle.digest(),
            bundle: raw("file", &bundle.to_json())?,
            inputs: raw("inputs", &bound)?,
            require: raw("require", &required)?,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenRetry {
    max_user: Option<i32>,
    max_system: Option<i32>,
    max_timeout: Option<i32>,
    #[serde(deserialize_with = "duration")]
    backoff: Option<i64>,
    #[serde(deserialize_with = "duration")]
    backoff_cap: Option<i64>,
}

impl Written {
    fn checked(
        self,
        namespace: &Namespace,
        folder: Option<&Path>,
    ) -> Result<WorkflowDocument, InvalidDefinition> {
        let definition = match (self.container, self.heartbeat, self.handler, self.recipe) {
            (Some(container), None, None, None) => JobDefinition::Container(container.into()),
            (None, Some(heartbeat), None, None) => JobDefinition::Heartbeat(heartbeat.into()),
            (None, None, Some(name), None) => JobDefinition::Handler { name },
            (None, None, None, Some(recipe)) => JobDefinition::Recipe(recipe.pinned(folder)?),
            _ => {
                return Err(InvalidDefinition::new(
                    self.name,
                    "say what to run: exactly one of `container`, `heartbeat`, `handler` and `recipe`",
                ));
            }
        };
        if self.name == AD_HOC {
            return Err(InvalidDefinition::new(
                "name",
                "`adhoc` stands for runs without a workflow: it cannot be edited, paused or terminated",
            ));
        }
        let payload = match (self.payload, self.payload_json) {
            (Some(_), Some(_)) => {
                return Err(InvalidDefinition::new("payload", "give either `payload` or `payload_json`"));
            }
            (payload, text) => payload.map(|p| p.0).or(text).unwrap_or_else(|| "null".to_owned()),
        };
        let document = WorkflowDocument {
            namespace: self.namespace.unwrap_or_else(|| namespace.clone()),
            name: self.name,
            definition,
            payload,
            priority: self.priority,
            overlap: self.overlap,
            timeout_ms: self.timeout,
            retry: RetryPolicy {
                max_user: self.retry.max_user,
                max_system: self.retry.max_system,
                max_timeout: self.retry.max_timeout,
                backoff_ms: self.retry.backoff,
                backoff_cap_ms: self.retry.backoff_cap,
            },
        };
        document.validate()?;
        Ok(document)
    }
}

impl From<WrittenContainer> for ContainerSpec {
    fn from(written: WrittenContainer) -> Self {
        Self {
            image: written.image,
            command: written.command,
            entrypoint: written.entrypoint,
            env: written.env,
            workdir: written.workdir,
            user: written.user,
            memory_bytes: written.memory,
            cpu_millis: written.cpu,
            pids_limit: written.pids,
            network: written.network,
            stop_grace_ms: written.stop_grace,
            pull: written.pull,
            log_quota_bytes: written.log_quota,
            on_orphan: written.on_orphan,
        }
    }
}

impl From<WrittenHeartbeat> for HeartbeatSpec {
    fn from(written: WrittenHeartbeat) -> Self {
        Self {
            url: written.url,
            method: written.method.unwrap_or_else(|| "GET".to_owned()),
            expected_status: written.expected_status,
            headers: written.headers,
            body: written.body,
            body_match: written.body_match,
            max_redirects: written.max_redirects,
            timeout_ms: written.timeout.unwrap_or(10_000),
            insecure_skip_tls_verify: written.insecure_skip_tls_verify,
        }
    }
}

fn overlap<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Overlap, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| quantity::parse_memory(&text)).transpose().map_err(D::Error::custom)
}

fn cpu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| quantity::parse_cpu(&text)).transpose().map_err(D::Error::custom)
}

/// Whole milliseconds from `250ms`, `30s`, `10m`.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let refuse = |reason: String| D::Error::custom(format!("{text:?} is not a duration: {reason}"));
    let duration = humantime::parse_duration(&text).map_err(|e| refuse(e.to_string()))?;
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err(refuse("it is no whole number of milliseconds".to_owned()));
    }
    i64::try_from(duration.as_millis()).map(Some).map_err(|_| refuse("it is too long".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<WorkflowDocument>, DocumentError> {
        WorkflowDocument::parse_all(text, &Namespace::default())
    }

    #[test]
    fn a_full_document_is_read() {
        let documents = parse(concat!(
            "name: nightly-report\n",
            "container:\n",
            "  image: busybox\n",
            "  command: [sh, -c, \"echo report\"]\n",
            "  env: {A: 1, B: yes, C: \"\"}\n",
            "  memory: 64Mi\n",
            "  cpu: 500m\n",
            "  stop_grace: 2s\n",
            "  on_orphan: adopt\n",
            "payload: {z: 18446744073709551615, a: [1.50, null, true, \"x\"]}\n",
            "priority: 10\n",
            "overlap: allow(3)\n",
            "timeout: 10m\n",
            "retry: {max_user: 3, backoff: 250ms}\n",
            "---\n",
            "name: mail\n",
            "namespace: other\n",
            "handler: send-email\n",
            "payload_json: '{\"b\": 1.50, \"a\": 1e400}'\n",
            "overlap: serial\n",
            "---\n",
            "name: probe\n",
            "heartbeat: {url: \"https://example.com\", expected_status: [200, 204]}\n",
        ))
        .expect("a good file");
        let JobDefinition::Container(spec) = &documents[0].definition else { panic!("a container") };
        assert_eq!(
            (spec.memory_bytes, spec.cpu_millis, spec.stop_grace_ms, spec.on_orphan),
            (Some(64 << 20), Some(500), Some(2000), OnOrphan::Adopt)
        );
        assert_eq!(
            (spec.env["A"].as_str(), spec.env["B"].as_str(), spec.env["C"].as_str()),
            ("1", "yes", "")
        );
        assert_eq!(documents[0].payload, r#"{"z":18446744073709551615,"a":[1.5,null,true,"x"]}"#);
        assert_eq!((documents[0].overlap, documents[0].timeout_ms), (Overlap::AllowN(3), Some(600_000)));
        assert_eq!((documents[0].retry.max_user, documents[0].retry.backoff_ms), (Some(3), Some(250)));
        assert_eq!(
            (documents[1].namespace.as_str(), documents[1].payload.as_str()),
            ("other", r#"{"b": 1.50, "a": 1e400}"#)
        );
        assert_eq!(documents[1].overlap, Overlap::Serial);
        assert!(matches!(&documents[2].definition, JobDefinition::Heartbeat(h) if h.timeout_ms == 10_000));
    }

    #[test]
    fn mistakes_are_refused_with_their_place() {
        for (text, place, says) in [
            ("name: a\nhandler: x\nprority: 3\n", (3, 1), "prority"),
            ("name: a\nhandler: x\nhandler: y\n", (3, 1), "handler"),
            ("name: a\ncontainer:\n  image: x\n  colour: red\n", (4, 3), "colour"),
            ("name: a\ncontainer:\n  image: x\n  env: {A: 1, A: 2}\n", (4, 15), "A"),
            ("name: a\nhandler: x\npayload: {k: 1, k: 2}\n", (3, 17), "k"),
            ("name: a\nhandler: x\npriority: high\n", (3, 11), ""),
            ("name: a\nhandler: [x]\n", (2, 10), ""),
            ("name: a\nhandler: x\noverlap: sometimes\n", (3, 10), "sometimes"),
            ("name: a\nhandler: x\noverlap: allow(0)\n", (3, 10), "allow(0)"),
            ("name: a\nhandler: x\npayload: [1844674407370955161512345678901]\n", (3, 11), "loses digits"),
            ("name: a\nhandler: x\npayload: 1\npayload_json: '1'\n", (0, 0), "either"),
            ("name: a\nhandler: x\ntimeout: 10\n", (3, 10), "duration"),
            ("name: a\ncontainer: {image: x, memory: 500K}\n", (2, 31), "500K"),
            ("name: a\n  handler: x\n", (2, 10), ""),
            ("handler: x\n", (1, 1), "name"),
            ("name: a\nhandler: x\ncontainer: {image: y}\n", (0, 0), "exactly one"),
            ("name: a\n", (0, 0), "exactly one"),
            ("name: adhoc\nhandler: x\n", (0, 0), "adhoc"),
            ("name: a\ncontainer: {image: x, memory: 5Mi}\n", (0, 0), "memory_bytes"),
            ("name: \"a\\x07\"\nhandler: x\n", (0, 0), "control"),
            ("name: a\nhandler: x\npayload: \"\\0\"\n", (0, 0), "NUL"),
            ("", (0, 0), "no document"),
            ("- a\n", (1, 1), ""),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.message.contains(says), "{text}: {error}");
            assert!(!error.to_string().contains('\n'), "{error}");
            assert_eq!((error.line, error.column), place, "{text}: {error}");
        }
    }

    #[test]
    fn an_alias_bomb_ends_early() {
        let mut text = "name: a\nhandler: x\npayload:\n  a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
        for n in 1..9 {
            let again = format!("*a{}, ", n - 1).repeat(10);
            text += &format!("  a{n}: &a{n} [{}]\n", again.trim_end_matches(", "));
        }
        parse(&text).expect_err("too much");
    }
}
