//! The flags of `submit` and `run`, and the job that they describe. Only what flags can get wrong is checked
//! here; the rules of a job are checked by [`crate::submission`], for every way of submitting alike.

use std::{collections::BTreeMap, io::Read as _, path::PathBuf, time::Duration};

use chrono::{DateTime, Utc};
use clap::Args;
use leasehold_actors::domain::{
    ContainerSpec, HeartbeatSpec, JobDefinition, Namespace, NewJob, OnOrphan, PullPolicy, RetryPolicy,
    quantity,
};

use super::{error::CliError, recipe_args::RecipeArgs};

/// What to run, and how.
#[derive(Debug, Clone, Default, Args)]
pub struct JobArgs {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    heartbeat: HeartbeatArgs,
    #[command(flatten)]
    recipe: RecipeArgs,
    #[command(flatten)]
    job: CommonArgs,
    /// The container's command and its arguments
    #[arg(last = true, value_name = "CMD", conflicts_with_all = NOT_IMAGE)]
    command: Vec<String>,
}

#[derive(Debug, Clone, Default, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// CONTAINER: the image to run
    #[arg(long, value_name = "IMAGE", help_heading = "What to run")]
    image: Option<String>,
    /// HEARTBEAT: the address to probe
    #[arg(long, value_name = "URL", help_heading = "What to run")]
    http: Option<String>,
    /// HANDLER: the name that a worker registered a function under
    #[arg(long, value_name = "NAME", help_heading = "What to run")]
    handler: Option<String>,
    /// RECIPE: the file of a recipe, pinned with everything that it includes
    #[arg(long, value_name = "FILE", help_heading = "What to run")]
    recipe: Option<PathBuf>,
    /// A run of a workflow, by its definition
    #[arg(long, value_name = "NAME", help_heading = "What to run")]
    workflow: Option<String>,
}

// `requires` would not do: clap forgives a missing argument that conflicts with a given one.
const NOT_IMAGE: [&str; 4] = ["http", "handler", "workflow", "recipe"];
const NOT_HTTP: [&str; 4] = ["image", "handler", "workflow", "recipe"];
const CONTAINER: &str = "Container";
const HEARTBEAT: &str = "Heartbeat";

#[derive(Debug, Clone, Default, Args)]
struct ContainerArgs {
    /// A variable, or the name of one that is set here; may be repeated
    #[arg(long, short = 'e', value_name = "NAME=VALUE", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    env: Vec<String>,
    /// A file of NAME=VALUE lines; `#` begins a comment; may be repeated
    #[arg(long, value_name = "FILE", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    env_file: Vec<String>,
    /// Working directory inside the container
    #[arg(long, short = 'w', value_name = "DIR", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    workdir: Option<String>,
    /// USER, UID, USER:GROUP or UID:GID
    #[arg(long, short = 'u', value_name = "USER", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    user: Option<String>,
    /// Memory limit: bytes, or with k M G T (1000) or Ki Mi Gi Ti (1024), such as 512Mi
    #[arg(long, short = 'm', value_name = "AMOUNT", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE, allow_hyphen_values = true)]
    memory: Option<String>,
    /// CPU limit: cores, such as 2 or 0.5, or thousandths, such as 500m
    #[arg(long, value_name = "AMOUNT", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE, allow_hyphen_values = true)]
    cpu: Option<String>,
    /// The most processes inside the container
    #[arg(long, value_name = "N", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE, allow_negative_numbers = true)]
    pids: Option<i64>,
    /// The engine's network to join; `none` for no network
    #[arg(long, value_name = "NAME", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    network: Option<String>,
    /// Time between asking the program to stop and killing it [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    stop_grace: Option<Duration>,
    /// When to fetch the image [default: missing]
    #[arg(long, value_name = "WHEN", value_parser = pull, help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    pull: Option<PullPolicy>,
    /// Replaces the image's entrypoint
    #[arg(long, value_name = "PROGRAM", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    entrypoint: Option<String>,
    /// The most output that is kept [default: 64Mi]
    #[arg(long, value_name = "AMOUNT", help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE, allow_hyphen_values = true)]
    log_quota: Option<String>,
    /// What becomes of it when its worker loses the lease: stop, or adopt to let it run on [default: stop]
    #[arg(long, value_name = "WHAT", value_parser = on_orphan, help_heading = CONTAINER, conflicts_with_all = NOT_IMAGE)]
    on_orphan: Option<OnOrphan>,
}

#[derive(Debug, Clone, Default, Args)]
struct HeartbeatArgs {
    /// Request method [default: GET]
    #[arg(long, value_name = "METHOD", help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    method: Option<String>,
    /// Statuses that count as healthy [default: 200 to 299]; may be repeated
    #[arg(long, value_name = "CODE", value_delimiter = ',', help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    expect_status: Vec<u16>,
    /// A request header; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE", help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    header: Vec<String>,
    /// Request body
    #[arg(long, value_name = "TEXT", help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    body: Option<String>,
    /// A regular expression that the answer's body must match
    #[arg(long, value_name = "REGEX", help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    body_match: Option<String>,
    /// How many redirects to follow [default: 0]
    #[arg(long, value_name = "N", help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    max_redirects: Option<u8>,
    /// Accept any certificate
    #[arg(long, help_heading = HEARTBEAT, conflicts_with_all = NOT_HTTP)]
    insecure_skip_tls_verify: bool,
}

const JOB: &str = "Job";

#[derive(Debug, Clone, Default, Args)]
struct CommonArgs {
    /// The longest that one attempt may run; with --http, the probe [probe default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, help_heading = JOB)]
    timeout: Option<Duration>,
    /// The handler's argument or the run's data: JSON, @FILE, or @- for standard input
    #[arg(long, value_name = "JSON", help_heading = JOB)]
    payload: Option<String>,
    /// A repeat of the same request with this key returns the first job
    #[arg(long, value_name = "KEY", help_heading = JOB)]
    idempotency_key: Option<String>,
    /// Higher runs first, -100 to 100 [default: 0, or the workflow's]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = JOB)]
    priority: Option<i16>,
    /// Not before this instant, such as 2027-01-31T06:00:00Z
    #[arg(long, value_name = "INSTANT", value_parser = instant, help_heading = JOB)]
    run_at: Option<DateTime<Utc>>,
    /// USER failures that end the job [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = JOB)]
    retry_user: Option<i32>,
    /// SYSTEM failures that end the job [default: the worker's]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = JOB)]
    retry_system: Option<i32>,
    /// TIMEOUT failures that end the job [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = JOB)]
    retry_timeout: Option<i32>,
    /// First back-off; doubles with every failure, with jitter [default: the worker's]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, help_heading = JOB)]
    retry_backoff: Option<Duration>,
    /// Longest back-off [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, help_heading = JOB)]
    retry_backoff_cap: Option<Duration>,
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let value = humantime::parse_duration(text).map_err(|e| format!("{e}; write it like 30s or 250ms"))?;
    if value.is_zero() || value.subsec_nanos() % 1_000_000 != 0 {
        return Err("must be a whole, positive number of milliseconds; write it like 30s or 250ms".to_owned());
    }
    Ok(value)
}

fn pull(text: &str) -> Result<PullPolicy, String> {
    match text {
        "missing" => Ok(PullPolicy::Missing),
        "always" => Ok(PullPolicy::Always),
        "never" => Ok(PullPolicy::Never),
        _ => Err("use missing, always or never".to_owned()),
    }
}

fn on_orphan(text: &str) -> Result<OnOrphan, String> {
    match text {
        "stop" => Ok(OnOrphan::Stop),
        "adopt" => Ok(OnOrphan::Adopt),
        _ => Err("use stop or adopt".to_owned()),
    }
}

fn instant(text: &str) -> Result<DateTime<Utc>, String> {
    DateTime::parse_from_rfc3339(text)
        .map(|at| at.with_timezone(&Utc))
        .map_err(|e| format!("{e}; write it with a zone, like 2027-01-31T06:00:00Z"))
}

/// Milliseconds as a job stores them.
fn millis(flag: &str, value: Duration) -> Result<i64, CliError> {
    i64::try_from(value.as_millis())
        .map_err(|_| CliError::usage(format!("--{flag} is too long; use at most a few years")))
}

impl JobArgs {
    /// The job, in a namespace.
    ///
    /// # Errors
    /// [`CliError`] names the flag that cannot be used.
    pub fn to_job(&self, namespace: Namespace) -> Result<NewJob, CliError> {
        let what = &self.what;
        let mut job = match (&what.image, &what.http, &what.handler, &what.recipe, &what.workflow) {
            (Some(image), ..) => NewJob::ad_hoc(JobDefinition::Container(self.container(image)?)),
            (_, Some(url), ..) => NewJob::ad_hoc(JobDefinition::Heartbeat(self.heartbeat(url)?)),
            (_, _, Some(name), ..) => NewJob::ad_hoc(JobDefinition::Handler { name: name.clone() }),
            (_, _, _, Some(file), _) => NewJob::ad_hoc(JobDefinition::Recipe(self.recipe.spec(file)?)),
            (.., Some(workflow)) => NewJob::of_workflow(workflow.clone()),
            _ => {
                return Err(CliError::usage(
                    "say what to run: --image, --http, --handler, --recipe or --workflow",
                ));
            }
        };
        job.namespace = namespace;
        if let Some(text) = &self.job.payload {
            job.payload = json_argument("--payload", text)?;
        }
        if self.what.http.is_none() {
            job.timeout_ms = self.job.timeout.map(|t| millis("timeout", t)).transpose()?;
        }
        job.idempotency_key.clone_from(&self.job.idempotency_key);
        if let Some(priority) = self.job.priority {
            job.priority = priority;
        }
        job.run_at = self.job.run_at;
        job.retry = RetryPolicy {
            max_user: self.job.retry_user,
            max_system: self.job.retry_system,
            max_timeout: self.job.retry_timeout,
            backoff_ms: self.job.retry_backoff.map(|t| millis("retry-backoff", t)).transpose()?,
            backoff_cap_ms: self.job.retry_backoff_cap.map(|t| millis("retry-backoff-cap", t)).transpose()?,
        };
        job.trace_parent = std::env::var("TRACEPARENT").ok().filter(|text| is_trace_parent(text));
        Ok(job)
    }

    /// Whether the job is a recipe.
    #[must_use]
    pub fn is_recipe(&self) -> bool {
        self.what.recipe.is_some()
    }

    /// How long a cancel leaves the program before it is killed.
    #[must_use]
    pub fn stop_grace(&self) -> Option<Duration> {
        self.container.stop_grace
    }

    fn container(&self, image: &str) -> Result<ContainerSpec, CliError> {
        let args = &self.container;
        let memory = |flag: &str, text: &String| {
            quantity::parse_memory(text).map_err(|e| CliError::usage(format!("--{flag}: {e}")))
        };
        let mut env = BTreeMap::new();
        for file in &args.env_file {
            read_env_file(file, &mut env)?;
        }
        for entry in &args.env {
            let (name, value) = env_entry(entry)?;
            env.insert(name, value);
        }
        Ok(ContainerSpec {
            image: image.to_owned(),
            command: self.command.clone(),
            entrypoint: args.entrypoint.as_ref().map(|program| vec![program.clone()]),
            env,
            workdir: args.workdir.clone(),
            user: args.user.clone(),
            memory_bytes: args.memory.as_ref().map(|text| memory("memory", text)).transpose()?,
            cpu_millis: args
                .cpu
                .as_ref()
                .map(|text| quantity::parse_cpu(text).map_err(|e| CliError::usage(format!("--cpu: {e}"))))
                .transpose()?,
            pids_limit: args.pids,
            network: args.network.clone(),
            stop_grace_ms: args.stop_grace.map(|t| millis("stop-grace", t)).transpose()?,
            pull: args.pull.unwrap_or_default(),
            log_quota_bytes: args.log_quota.as_ref().map(|text| memory("log-quota", text)).transpose()?,
            on_orphan: args.on_orphan.unwrap_or_default(),
        })
    }

    fn heartbeat(&self, url: &str) -> Result<HeartbeatSpec, CliError> {
        let args = &self.heartbeat;
        let mut headers = BTreeMap::new();
        for header in &args.header {
            let (name, value) = header.split_once(':').ok_or_else(|| {
                CliError::usage(format!("--header {header:?} has no colon; write 'Name: value'"))
            })?;
            if headers.insert(name.trim().to_owned(), value.trim().to_owned()).is_some() {
                return Err(CliError::usage(format!(
                    "--header {:?} is given twice; give it once",
                    name.trim()
                )));
            }
        }
        let mut spec: HeartbeatSpec = serde_json::from_value(serde_json::json!({ "url": url }))
            .map_err(|e| CliError::usage(format!("--http: {e}")))?;
        if let Some(method) = &args.method {
            spec.method = method.to_ascii_uppercase();
        }
        spec.expected_status.clone_from(&args.expect_status);
        spec.headers = headers;
        spec.body.clone_from(&args.body);
        spec.body_match.clone_from(&args.body_match);
        spec.max_redirects = args.max_redirects.unwrap_or(0);
        if let Some(timeout) = self.job.timeout {
            spec.timeout_ms = millis("timeout", timeout)?;
        }
        spec.insecure_skip_tls_verify = args.insecure_skip_tls_verify;
        Ok(spec)
    }
}

/// `NAME=VALUE`, or `NAME` for a variable of our own environment.
fn env_entry(entry: &str) -> Result<(String, String), CliError> {
    match entry.split_once('=') {
        Some(("", _)) => Err(CliError::usage(format!("--env {entry:?} has no name; write NAME=VALUE"))),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(entry) {
            Ok(value) => Ok((entry.to_owned(), value)),
            Err(std::env::VarError::NotPresent) => Err(CliError::usage(format!(
                "--env {entry:?} is not set here; write {entry}=VALUE, or export it"
            ))),
            Err(std::env::VarError::NotUnicode(_)) => Err(CliError::usage(format!(
                "--env {entry:?}: its value here is not UTF-8; write {entry}=VALUE"
            ))),
        },
    }
}

fn read_env_file(path: &str, env: &mut BTreeMap<String, String>) -> Result<(), CliError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| CliError::usage(format!("--env-file {path}: {e}; name a readable UTF-8 file")))?;
    for (number, line) in text.lines().enumerate() {
        let entry = line.trim_start();
        if entry.is_empty() || entry.starts_with('#') {
            continue;
        }
        let (name, value) =
            env_entry(entry).map_err(|e| CliError::usage(format!("{path}:{}: {}", number + 1, e.message)))?;
        env.insert(name, value);
    }
    Ok(())
}

/// JSON text of a flag or argument, kept byte for byte; `@FILE` and `@-` read it.
pub(super) fn json_argument(flag: &str, text: &str) -> Result<String, CliError> {
    let (text, from) = match text.strip_prefix('@') {
        None => (text.to_owned(), flag.to_owned()),
        Some("-") => {
            let mut read = String::new();
            std::io::stdin()
                .read_to_string(&mut read)
                .map_err(|e| CliError::usage(format!("{flag} @-: {e}; give UTF-8 JSON")))?;
            (read, format!("{flag} @-"))
        }
        Some(path) => {
            let read = std::fs::read_to_string(path)
                .map_err(|e| CliError::usage(format!("{flag} @{path}: {e}; name a readable UTF-8 file")))?;
            (read, format!("{flag} @{path}"))
        }
    };
    serde_json::from_str::<&serde_json::value::RawValue>(&text).map_err(|e| {
        CliError::usage(format!("{from} is no JSON: {e}; quote it, like '{{\"to\": \"me\"}}'"))
    })?;
    Ok(text)
}

/// W3C trace context, version 00. Another program's mistake in our environment must not stop a submit.
fn is_trace_parent(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [2, 32, 16, 2]
        && text.bytes().all(|b| b == b'-' || b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        job: JobArgs,
    }

    fn parse(args: &[&str]) -> Result<NewJob, String> {
        let cli = Cli::try_parse_from([&["submit"], args].concat()).map_err(|e| e.to_string())?;
        cli.job.to_job(Namespace::default()).map_err(|e| e.line())
    }

    #[test]
    fn container_flags_become_a_definition() {
        let job = parse(&[
            "--image",
            "busybox",
            "--memory",
            "512Mi",
            "--cpu",
            "500m",
            "--pids",
            "64",
            "-e",
            "A=b=c",
            "--env",
            "EMPTY=",
            "--workdir",
            "/w",
            "--user",
            "1:2",
            "--network",
            "none",
            "--timeout",
            "1m",
            "--stop-grace",
            "2s",
            "--pull",
            "never",
            "--entrypoint",
            "/bin/sh",
            "--log-quota",
            "1M",
            "--on-orphan",
            "adopt",
            "--priority",
            "-5",
            "--retry-user",
            "2",
            "--retry-backoff",
            "250ms",
            "--",
            "-c",
            "echo hi",
        ])
        .unwrap();
        let Some(JobDefinition::Container(spec)) = job.definition else { panic!("no container: {job:?}") };
        assert_eq!(
            (spec.memory_bytes, spec.cpu_millis, spec.pids_limit, spec.stop_grace_ms, spec.log_quota_bytes),
            (Some(512 << 20), Some(500), Some(64), Some(2000), Some(1_000_000))
        );
        assert_eq!(spec.env, BTreeMap::from([("A".into(), "b=c".into()), ("EMPTY".into(), String::new())]));
        assert_eq!(spec.command, ["-c", "echo hi"]);
        assert_eq!(spec.entrypoint, Some(vec!["/bin/sh".to_owned()]));
        assert_eq!((spec.pull, spec.network.as_deref()), (PullPolicy::Never, Some("none")));
        assert_eq!(spec.on_orphan, OnOrphan::Adopt);
        assert_eq!((job.timeout_ms, job.priority), (Some(60_000), -5));
        assert_eq!((job.retry.max_user, job.retry.backoff_ms), (Some(2), Some(250)));
    }

    #[test]
    fn heartbeat_flags_become_a_definition() {
        let job = parse(&[
            "--http",
            "http://x/",
            "--method",
            "head",
            "--expect-status",
            "200,204",
            "-H",
            "X-A: b: c",
            "--body-match",
            "o.k",
            "--timeout",
            "2s",
            "--max-redirects",
            "3",
        ])
        .unwrap();
        let Some(JobDefinition::Heartbeat(spec)) = job.definition else { panic!("no heartbeat: {job:?}") };
        assert_eq!((spec.method.as_str(), spec.timeout_ms, spec.max_redirects), ("HEAD", 2000, 3));
        assert_eq!(spec.expected_status, [200, 204]);
        assert_eq!(spec.headers["X-A"], "b: c");
        assert_eq!(job.timeout_ms, None, "the probe has its own limit");
    }

    #[test]
    fn a_payload_is_kept_byte_for_byte() {
        let big = "{\"n\": 123456789012345678901234567890,  \"x\":1.50}";
        let job = parse(&["--handler", "h", "--payload", big]).unwrap();
        assert_eq!(job.payload, big);
        let path = std::env::temp_dir().join(format!("leasehold-payload-{}", uuid::Uuid::new_v4()));
        std::fs::write(&path, big).unwrap();
        let job = parse(&["--workflow", "w", "--payload", &format!("@{}", path.display())]).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((job.payload.as_str(), job.workflow.as_deref(), job.definition), (big, Some("w"), None));
    }

    /// CF-03, RQ-01
    #[test]
    fn bad_flags_are_refused_with_their_name() {
        for (args, word) in [
            (&["--image", "x", "--memory", "500K"][..], "--memory: \"500K\""),
            (&["--image", "x", "--memory", "-5"], "--memory: \"-5\""),
            (&["--image", "x", "--memory", "1.2Gi"], "1288490188 and 1288490189"),
            (&["--image", "x", "--cpu", "1e3"], "--cpu: \"1e3\""),
            (&["--image", "x", "--cpu", "0"], "--cpu: \"0\""),
            (&["--image", "x", "--env", "=v"], "has no name"),
            (&["--image", "x", "--env", "LEASEHOLD_NOT_SET_ANYWHERE"], "is not set here"),
            (&["--image", "x", "--env-file", "/no/such"], "--env-file"),
            (&["--image", "x", "--timeout", "0s"], "--timeout"),
            (&["--image", "x", "--timeout", "-1s"], "--timeout"),
            (&["--image", "x", "--stop-grace", "1"], "--stop-grace"),
            (&["--image", "x", "--pull", "sometimes"], "missing, always or never"),
            (&["--image", "x", "--run-at", "tomorrow"], "--run-at"),
            (&["--image", "x", "--run-at", "2027-01-31T06:00:00"], "with a zone"),
            (&["--handler", "h", "--payload", "{nope"], "is no JSON"),
            (&["--handler", "h", "--payload", "{} {}"], "is no JSON"),
            (&["--handler", "h", "--payload", "@/no/such"], "--payload @/no/such"),
            (&["--http", "http://x", "--header", "NoColon"], "has no colon"),
            (&["--http", "http://x", "-H", "A: 1", "-H", "A: 2"], "given twice"),
            (&["--http", "http://x", "--expect-status", "ok"], "--expect-status"),
            (&["--image", "x", "--http", "http://x"], "cannot be used with"),
            (&["--handler", "h", "--memory", "1Gi"], "cannot be used with"),
            (&["--handler", "h", "--", "cmd"], "cannot be used with"),
            (&["--workflow", "w", "-e", "A=1"], "cannot be used with"),
            (&["--image", "x", "--body-match", "x"], "cannot be used with"),
            (&["--memory", "1Gi"], "--image"),
            (&[], "--image"),
        ] {
            let error = parse(args).expect_err(&format!("{args:?} was accepted"));
            assert!(error.contains(word), "{args:?}: {error}");
        }
    }

    #[test]
    fn env_files_are_read_line_by_line_and_outdone_by_flags() {
        let path = std::env::temp_dir().join(format!("leasehold-env-{}", uuid::Uuid::new_v4()));
        std::fs::write(&path, "# comment\n\nA=1\n  B=two words \nC=\"kept\"\n").unwrap();
        let file = path.display().to_string();
        let job = parse(&["--image", "x", "--env-file", &file, "--env", "A=2"]).unwrap();
        let Some(JobDefinition::Container(spec)) = job.definition else { panic!("no container") };
        let env: Vec<(&str, &str)> = spec.env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(env, [("A", "2"), ("B", "two words "), ("C", "\"kept\"")]);
        std::fs::write(&path, "A=1\n=broken\n").unwrap();
        let error = parse(&["--image", "x", "--env-file", &file]).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains(":2:"), "{error}");
    }

    #[test]
    fn a_broken_trace_context_is_left_out() {
        assert!(is_trace_parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        for bad in ["", "00-xyz", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", "a-b-c-d"] {
            assert!(!is_trace_parent(bad), "{bad}");
        }
    }
}
