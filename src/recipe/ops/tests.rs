use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold_actors::{
    domain::{Epoch, FailureKind, JobId, Namespace},
    ports::recipe::JsonText,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    config::{Effective, Sources},
    recipe::op::{TaskContext, TaskError, TaskStop, TaskStopper},
};

/// Longer than anything that goes well here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings(commands: bool, allow: &[String]) -> WorkerSettings {
    let mut settings = Effective::load(&Sources::default()).unwrap().worker().unwrap();
    settings.allow_commands = commands;
    settings.heartbeat_allow = allow.to_vec();
    settings
}

fn task(op: &str, inputs: &Value, stopper: TaskStopper) -> Task {
    Task {
        namespace: Namespace::default(),
        job: JobId(7),
        path: "a".to_owned(),
        op: op.to_owned(),
        attempt: 1,
        epoch: Epoch(42),
        idempotency_key: "the-key".to_owned(),
        needs: Default::default(),
        inputs: inputs.to_string().into(),
        context: TaskContext::alone(PATIENCE, stopper),
    }
}

async fn run_with(ops: &Ops, op: &str, inputs: Value, stopper: TaskStopper) -> Result<JsonText, TaskError> {
    ops.get(op).unwrap().run(task(op, &inputs, stopper)).await
}

async fn command(inputs: Value) -> Result<String, TaskError> {
    let ops = built_in(&settings(true, &[]), &secrets()).unwrap();
    run_with(&ops, COMMAND, inputs, TaskStopper::default()).await.map(|json| json.to_string())
}

async fn shell(script: &str) -> Result<String, TaskError> {
    command(json!({ "argv": ["sh", "-c", script] })).await
}

fn secrets() -> Arc<Secrets> {
    Arc::new(Secrets::of([("TOKEN".to_owned(), "tok-\"s3cret\"".to_owned())].into()))
}

#[test]
fn a_worker_that_does_not_allow_programs_does_not_have_the_op() {
    let names = |allow| {
        let ops = built_in(&settings(allow, &[]), &Arc::default()).unwrap();
        ops.names().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(false), [HTTP]);
    assert_eq!(names(true), [COMMAND, HTTP]);
}

#[tokio::test]
async fn the_last_line_is_the_output_if_it_is_json() {
    assert_eq!(
        shell("echo starting; echo '{\"b\": 1.50, \"a\": 1e400}'; echo").await.unwrap(),
        r#"{"b": 1.50, "a": 1e400}"#
    );
    assert_eq!(shell("echo '{\"a\": 1}'; echo done").await.unwrap(), "null");
    assert_eq!(shell("true").await.unwrap(), "null");
    assert_eq!(shell("printf 12").await.unwrap(), "12");
    // What recipes and PostgreSQL could not read back is refused, not stored.
    assert_eq!(shell(r#"echo '{"a": 1, "a": 2}'"#).await.unwrap_err().code, "bad_output");
    let long = shell("head -c 1048577 /dev/zero | tr '\\0' 1").await.unwrap_err();
    assert_eq!((long.kind, long.code.as_str()), (FailureKind::User, "result_too_large"));
}

#[tokio::test]
async fn a_program_gets_its_task_and_nothing_of_the_workers_settings() {
    let inputs = json!({
        "argv": ["sh", "-c", "echo \"[\\\"$LEASEHOLD_TASK_KEY\\\", \\\"$LEASEHOLD_JOB_ID\\\", $LEASEHOLD_FENCING_EPOCH, \\\"$MINE\\\", \\\"$(pwd)\\\"]\""],
        "env": { "MINE": "a b", "LEASEHOLD_JOB_ID": "999" },
        "workdir": "/",
    });
    assert_eq!(command(inputs).await.unwrap(), r#"["the-key", "7", 42, "a b", "/"]"#);
    let names =
        shell("env | cut -d= -f1 | sort | sed 's/.*/\"&\"/' | paste -sd, | sed 's/.*/[&]/'").await.unwrap();
    let names: Vec<String> = serde_json::from_str(&names).unwrap();
    let ours = |name: &&String| crate::config::table::TABLE.iter().any(|row| row.name == **name);
    assert_eq!(names.iter().find(ours), None);
    assert!(names.iter().any(|name| name == "PATH"));
}

#[tokio::test]
async fn an_exit_code_is_the_failures_code_and_no_secret_is_in_it() {
    let inputs = json!({ "argv": ["sh", "-c", "echo out; echo \"no: $T\" >&2; exit 3"], "env": { "T": "tok-\"s3cret\"" } });
    let failed = command(inputs).await.unwrap_err();
    assert_eq!((failed.kind, failed.code.as_str(), failed.exit_code), (FailureKind::User, "3", Some(3)));
    assert_eq!(failed.message, "sh exited with code 3: no: ***");
    let inputs = json!({ "argv": ["printf", "%s", "{\"t\":\"tok-\\\"s3cret\\\"\"}"] });
    assert_eq!(command(inputs).await.unwrap(), r#"{"t":"***"}"#);

    let none = command(json!({ "argv": ["/no/such/program"] })).await.unwrap_err();
    assert_eq!((none.kind, none.code.as_str()), (FailureKind::User, "127"));
    assert_eq!(command(json!({ "argv": ["/etc/passwd"] })).await.unwrap_err().code, "126");
    let killed = shell("kill -KILL $$").await.unwrap_err();
    assert_eq!((killed.kind, killed.code.as_str()), (FailureKind::System, "killed"));
    assert_eq!(shell("kill -ABRT $$").await.unwrap_err().code, "134");
    for bad in [
        json!({}),
        json!({ "argv": [] }),
        json!({ "argv": ["a"], "colour": 1 }),
        json!({ "argv": ["a"], "timeout": "soon" }),
    ] {
        assert_eq!(command(bad).await.unwrap_err().code, "bad_input");
    }
}

/// A file that processes write their ids to, and whether those still run.
struct Family(PathBuf);

impl Family {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("lh-family-{}", uuid::Uuid::new_v4())))
    }

    /// A program that ignores the request to stop, and has a child that does so too.
    fn script(&self) -> String {
        let file = self.0.display();
        format!(
            "trap '' TERM; (trap '' TERM; echo $BASHPID >> {file}; while :; do sleep 0.05; done) & echo $$ >> {file}; wait"
        )
    }

    async fn members(&self, number: usize) -> Vec<i32> {
        let begun = Instant::now();
        loop {
            let text = std::fs::read_to_string(&self.0).unwrap_or_default();
            let found: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
            if found.len() == number && text.ends_with('\n') {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "{text:?}");
            tokio::task::yield_now().await;
        }
    }

    /// Ended; a zombie that nobody has reaped yet has ended too.
    async fn expect_ended(&self, members: &[i32]) {
        let begun = Instant::now();
        for member in members {
            while std::fs::read_to_string(format!("/proc/{member}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "))
            {
                assert!(begun.elapsed() < PATIENCE, "{member} still runs");
                tokio::task::yield_now().await;
            }
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn a_stop_a_timeout_and_a_drop_each_end_the_whole_group() {
    let ops = built_in(&settings(true, &[]), &Arc::default()).unwrap();
    let family = Family::new();
    let inputs = json!({ "argv": ["bash", "-c", family.script()] });

    let stopper = TaskStopper::default();
    let (ended, members) = tokio::join!(run_with(&ops, COMMAND, inputs.clone(), stopper.clone()), async {
        let members = family.members(2).await;
        stopper.stop(TaskStop::SiblingFailed);
        members
    });
    assert_eq!(ended.unwrap_err().code, "stopped");
    family.expect_ended(&members).await;

    std::fs::remove_file(&family.0).unwrap();
    let mut dropped = Box::pin(run_with(&ops, COMMAND, inputs.clone(), TaskStopper::default()));
    let members = tokio::select! {
        ended = &mut dropped => panic!("{ended:?}"),
        members = family.members(2) => members,
    };
    drop(dropped);
    family.expect_ended(&members).await;

    std::fs::remove_file(&family.0).unwrap();
    let mut limited = inputs;
    limited["timeout"] = "300ms".into();
    let late = run_with(&ops, COMMAND, limited, TaskStopper::default()).await.unwrap_err();
    assert_eq!((late.kind, late.code.as_str()), (FailureKind::Timeout, "timeout"));
    if let Ok(text) = std::fs::read_to_string(&family.0) {
        let members: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        family.expect_ended(&members).await;
    } else {
        std::fs::write(&family.0, "").unwrap();
    }
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it() {
    let family = Family::new();
    let file = family.0.display().to_string();
    // The one left behind holds the output open.
    let script = format!("sleep 1000 & echo $! > {file}; echo '[1]'");
    assert_eq!(shell(&script).await.unwrap(), "[1]");
    let members = family.members(1).await;
    family.expect_ended(&members).await;
}

/// Answers one request and gives it back.
fn server(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut chunk = [0; 4096];
        // The requests here have short bodies, which come with their heads or end them.
        while !String::from_utf8_lossy(&request).contains("\r\n\r\n")
            || request.ends_with(b"\r\n\r\n") && request.starts_with(b"POST")
        {
            let n = stream.read(&mut chunk).unwrap();
            request.extend_from_slice(&chunk[..n]);
        }
        stream.write_all(answer.as_bytes()).unwrap();
        String::from_utf8(request).unwrap()
    });
    (address, served)
}

#[tokio::test]
async fn a_request_carries_the_key_and_its_answer_is_the_output() {
    let (address, served) = server(
        "HTTP/1.1 201 Created\r\ncontent-type: application/json; charset=utf-8\r\nset-cookie: session=1\r\nretry-after: 3\r\n\
         content-length: 45\r\n\r\n{\"n\": 1.50, \"t\": \"tok-\\\"s3cret\\\"\", \"e\": 1e9 }",
    );
    let ops = built_in(&settings(false, std::slice::from_ref(&address)), &secrets()).unwrap();
    let inputs = json!({
        "url": format!("http://{address}/things"), "method": "post", "headers": { "X-Token": "tok-\"s3cret\"" },
        "body": { "size": 3 }, "expected_status": [201],
    });
    let output = run_with(&ops, HTTP, inputs, TaskStopper::default()).await.unwrap();
    assert_eq!(
        &*output,
        r#"{"status":201,"headers":{"content-length":"45","content-type":"application/json; charset=utf-8","retry-after":"3"},"body":{"n": 1.50, "t": "***", "e": 1e9 }}"#
    );
    let request = served.join().unwrap();
    assert!(
        request.starts_with("POST /things HTTP/1.1\r\n") && request.ends_with("\r\n\r\n{\"size\":3}"),
        "{request}"
    );
    for header in
        ["idempotency-key: the-key\r\n", "content-type: application/json\r\n", "x-token: tok-\"s3cret\"\r\n"]
    {
        assert!(request.contains(header), "{request}");
    }
}

#[tokio::test]
async fn a_request_ends_in_typed_failures() {
    let (address, served) = server("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
    let ops = built_in(&settings(false, std::slice::from_ref(&address)), &secrets()).unwrap();
    let ask = async |inputs: Value| {
        let error = run_with(&ops, HTTP, inputs, TaskStopper::default()).await.unwrap_err();
        (error.kind, error.code.clone(), error.message)
    };
    let (kind, code, message) = ask(json!({ "url": format!("http://{address}/?k=tok-secret") })).await;
    assert_eq!((kind, code.as_str()), (FailureKind::User, "unexpected_status"));
    assert!(!message.contains("tok-secret"), "{message}");
    served.join().unwrap();

    let (kind, code, _) = ask(json!({ "url": "http://169.254.169.254/latest/meta-data/" })).await;
    assert_eq!((kind, code.as_str()), (FailureKind::User, "egress_refused"), "the policy of probes holds");
    for bad in [
        json!({ "url": "ftp://example.com/" }),
        json!({ "url": "http://u:p@example.com/" }),
        json!({ "url": "http://example.com/", "headers": { "idempotency-key": "mine" } }),
        json!({ "url": "http://example.com/", "verb": "GET" }),
        json!({ "url": "http://example.com/", "timeout": "0s" }),
    ] {
        let (kind, code, _) = ask(bad.clone()).await;
        assert_eq!((kind, code.as_str()), (FailureKind::User, "bad_input"), "{bad}");
    }
}

/// HB-01, HB-07: the op's own redirects are checked before the next hop is contacted, and are not followed by default.
#[tokio::test]
async fn a_redirect_of_a_request_goes_nowhere_that_is_forbidden() {
    let forbidden = TcpListener::bind("127.0.0.1:0").unwrap();
    forbidden.set_nonblocking(true).unwrap();
    let to = forbidden.local_addr().unwrap();
    for (redirects, says) in [(3, "was not contacted"), (0, "max_redirects")] {
        let answer =
            format!("HTTP/1.1 302 Found\r\nlocation: http://{to}/inside\r\ncontent-length: 0\r\n\r\n");
        let (address, served) = server(String::leak(answer));
        let ops = built_in(&settings(false, std::slice::from_ref(&address)), &secrets()).unwrap();
        let inputs = json!({
            "url": format!("http://{address}/"), "max_redirects": redirects,
            "headers": { "Authorization": "tok-\"s3cret\"" },
        });
        let refused = run_with(&ops, HTTP, inputs, TaskStopper::default()).await.unwrap_err();
        assert_eq!(
            (refused.kind, refused.code.as_str()),
            (FailureKind::User, "redirect_refused"),
            "{refused:?}"
        );
        assert!(refused.message.contains(says), "{refused:?}");
        assert!(served.join().unwrap().contains("authorization: "));
        assert!(forbidden.accept().is_err(), "nothing has come there");
    }
}

/// What is nothing was left out: `env:` with nothing behind it, or a template that gives null.
#[tokio::test]
async fn an_input_that_is_nothing_was_left_out() {
    let inputs = json!({ "argv": ["echo", "1"], "env": null, "workdir": null, "timeout": null });
    assert_eq!(command(inputs).await.unwrap(), "1");
    let (address, served) = server("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let ops = built_in(&settings(false, std::slice::from_ref(&address)), &secrets()).unwrap();
    let inputs = json!({
        "url": format!("http://{address}/"), "method": null, "headers": null, "body": null, "expected_status": null,
        "max_redirects": null, "timeout": null,
    });
    let output = run_with(&ops, HTTP, inputs, TaskStopper::default()).await.unwrap();
    assert!(output.starts_with(r#"{"status":200,"#), "{output}");
    assert!(served.join().unwrap().starts_with("GET / "));
}
