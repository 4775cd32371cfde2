use std::collections::BTreeMap;

use clap::Parser;
use leasehold_actors::domain::{OnOrphan, PullPolicy};

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
