//! What programs of the op `command` print: in the job's log, once, and nowhere else than it was.

use std::{
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use leasehold::{
    postgres::{
        PgStore, audit,
        read::{LogRow, LogStreamName},
    },
    protocol::domain::{JobId, Namespace},
};
use serde_json::{Value, json};

use super::leasehold::Leasehold;
use crate::support::{
    database::{TestDatabase, with_database},
    eventually::{eventually, pass},
    proxy::Proxy,
    services,
};

const PATIENCE: Duration = Duration::from_secs(120);

struct Bed {
    database: TestDatabase,
    leasehold: Leasehold,
    store: PgStore,
    workers: Vec<Child>,
    files: Vec<PathBuf>,
}

impl Bed {
    async fn new() -> Self {
        let database = TestDatabase::create().await;
        let leasehold = Leasehold::on(database.url()).with("MY_TOKEN", "tok-s3cret-value");
        let store = database.store().await;
        Self { database, leasehold, store, workers: Vec::new(), files: Vec::new() }
    }

    fn worker(&mut self, name: &str, memory: &str) {
        let args = ["worker", "--worker-id", name, "--no-containers", "--poll-interval", "100ms"];
        let has = ["--allow-commands", "--secret", "MY_TOKEN", "--allocation-memory", memory];
        let mut command = self.leasehold.command(&[&args[..], &has].concat());
        self.workers.push(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }

    fn submit(&mut self, recipe: &Value) -> JobId {
        let path = std::env::temp_dir().join(format!("lh-printed-{}.yaml", uuid::Uuid::new_v4()));
        std::fs::write(&path, recipe.to_string()).unwrap();
        let said = self.leasehold.run(&["submit", "--recipe", path.to_str().unwrap()]);
        assert_eq!(said.code, 0, "{said:?}");
        self.files.push(path);
        JobId(said.out.trim().parse().unwrap())
    }

    async fn ended(&self, job: JobId) -> Value {
        eventually(PATIENCE, "the job has ended", async || {
            let shown = self.leasehold.run(&["job", "show", &job.to_string(), "--json"]).json();
            ["COMPLETED", "FAILED", "CANCELED"].contains(&shown["state"].as_str().unwrap()).then_some(shown)
        })
        .await
    }

    async fn rows(&self, job: JobId) -> Vec<LogRow> {
        let mut rows: Vec<LogRow> = Vec::new();
        loop {
            let after = rows.last().map_or(0, |row| row.seq);
            let page = self.store.read_logs(&Namespace::default(), job, after, 1000).await.unwrap();
            if page.is_empty() {
                return rows;
            }
            rows.extend(page);
        }
    }

    async fn log(&self, job: JobId, stream: LogStreamName) -> String {
        let rows = self.rows(job).await.into_iter().filter(|row| row.stream == stream);
        String::from_utf8(rows.flat_map(|row| row.data).collect()).unwrap()
    }

    /// Every piece of output stands once, and follows on the one before.
    async fn finish(self) {
        let findings = audit::run(&self.database.client().await).await.unwrap();
        assert!(findings.is_empty(), "{findings:#?}");
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn shell(id: &str, script: &str) -> Value {
    json!({ "id": id, "op": "command", "inputs": { "argv": ["sh", "-c", script] } })
}

/// Both streams, without the secrets; once, although a second worker replays what the first one did; attempts that fail
/// too. The outputs are what they would be without.
#[tokio::test]
async fn what_a_command_prints_is_in_the_jobs_log_once_and_without_secrets() {
    let mut bed = Bed::new().await;
    bed.worker("small", "1Gi");
    let mut first = shell("first", "echo \"first: $T\"; echo beside >&2; printf '{\"n\": 1.50}'");
    first["inputs"]["env"] = json!({ "T": "${{ secrets.MY_TOKEN }}" });
    first["execution_needs"] = json!({ "resources": { "memory": "512Mi" } });
    let mut again = shell("again", "echo try; exit 3");
    again["retry"] = json!({ "max_attempts": 2, "backoff": "10ms" });
    again["catch"] = shell("caught", "echo caught; echo '\"${{ error.code }}\"'");
    let mut second = shell("second", "echo second; echo '${{ sequence.first.outputs.n }}'");
    second["execution_needs"] = json!({ "resources": { "memory": "32Gi" } });
    let job = bed.submit(&json!({ "id": "prints", "sequence": [first, again, second] }));
    let id = job.to_string();
    eventually(PATIENCE, "it is handed on", async || {
        let shown = bed.leasehold.run(&["job", "show", &id, "--json"]).json();
        (shown["leases"][0]["failure"]["code"] == "handoff").then_some(())
    })
    .await;
    let before = bed.log(job, LogStreamName::Stdout).await;
    bed.worker("large", "64Gi");
    let ended = bed.ended(job).await;
    assert_eq!(ended["state"], "COMPLETED", "{ended}");
    assert_eq!(ended["output"], json!({ "first": { "n": 1.5 }, "again": "3", "second": 1.5 }), "{ended}");

    let out = bed.log(job, LogStreamName::Stdout).await;
    assert_eq!(before, "first: ****************\n{\"n\": 1.50}try\ntry\ncaught\n\"3\"\n");
    assert_eq!(out, format!("{before}second\n1.50\n"), "the replay prints nothing");
    assert_eq!(bed.log(job, LogStreamName::Stderr).await, "beside\n");
    assert_eq!(bed.leasehold.run(&["job", "logs", &id]).out, out);
    assert_eq!(bed.leasehold.run(&["job", "show", &id, "--json"]).json()["log_bytes"], out.len() + 7);
    bed.finish().await;
}

/// More than is read ahead, of both streams at once, byte by byte; more than may be kept is cut, and that is said. The
/// output is the last line all the same.
#[tokio::test]
async fn much_output_is_kept_whole_up_to_the_quota_and_the_last_line_counts_in_any_case() {
    let mut bed = Bed::new().await;
    bed.worker("w", "1Gi");
    let lines = 60_000;
    let loud = format!(
        "i=0; (i=0; while [ $i -lt {lines} ]; do echo \"err $i\" >&2; i=$((i+1)); done) & while [ $i -lt {lines} ]; do echo \"out $i\"; i=$((i+1)); done; wait; echo '\"loud\"'"
    );
    let mut cut = shell("cut", "seq 1 200000; echo much >&2; echo '\"cut\"'");
    cut["inputs"]["log_quota_bytes"] = json!(1000);
    let mut none = shell("none", "echo never; echo '\"none\"'");
    none["inputs"]["log_quota_bytes"] = json!(0);
    let job = bed.submit(&json!({ "id": "loud", "sequence": [shell("loud", &loud), cut, none] }));
    let ended = bed.ended(job).await;
    let outputs = json!({ "loud": "loud", "cut": "cut", "none": "none" });
    assert_eq!(ended["output"], outputs, "{ended} {:?}", bed.log(job, LogStreamName::System).await);

    let out = bed.log(job, LogStreamName::Stdout).await;
    let expected: String = (0..lines).map(|n| format!("out {n}\n")).collect::<String>() + "\"loud\"\n";
    let rest = out.strip_prefix(&expected).expect("all that the first one printed");
    assert_eq!(rest.len(), 1000);
    assert!((1..=200_000).map(|n| format!("{n}\n")).collect::<String>().starts_with(rest));
    let expected: String = (0..lines).map(|n| format!("err {n}\n")).collect();
    assert_eq!(bed.log(job, LogStreamName::Stderr).await, expected);
    let remarks = bed.log(job, LogStreamName::System).await;
    let printed: usize = (1..=200_000).map(|n: u32| n.to_string().len() + 1).sum();
    let (out, err) = (printed + "\"cut\"\n".len() - 1000, "much\n".len());
    for line in [
        "the limit of 1000 bytes of output is reached; what follows is dropped".to_owned(),
        format!("{} bytes of output were dropped (stdout {out}, stderr {err})", out + err),
        "the limit of 0 bytes of output is reached; what follows is dropped".to_owned(),
    ] {
        assert!(remarks.lines().any(|said| said == line), "{line:?} is not in {remarks}");
    }
    bed.finish().await;
}

/// What was printed before it had to end is there, of whichever stream.
#[tokio::test]
async fn what_a_program_printed_before_it_was_stopped_is_kept() {
    let mut bed = Bed::new().await;
    bed.worker("w", "1Gi");
    let mut slow = shell("slow", "echo so far; echo no end >&2; exec sleep 600");
    slow["inputs"]["timeout"] = json!("1s");
    let job = bed.submit(&json!({ "id": "stopped", "sequence": [slow] }));
    let ended = bed.ended(job).await;
    assert_eq!(ended["failure"]["code"], "timeout", "{ended}");
    assert_eq!(bed.log(job, LogStreamName::Stdout).await, "so far\n");
    assert_eq!(bed.log(job, LogStreamName::Stderr).await, "no end\n");

    // Seen while it runs; cancelled then.
    let job = bed.submit(&json!({ "id": "running", "sequence": [shell("x", "echo on; exec sleep 600")] }));
    eventually(PATIENCE, "its output is there while it runs", async || {
        (bed.log(job, LogStreamName::Stdout).await == "on\n").then_some(())
    })
    .await;
    bed.leasehold.run(&["job", "cancel", &job.to_string()]);
    assert_eq!(bed.ended(job).await["state"], "CANCELED");
    assert_eq!(bed.log(job, LogStreamName::Stdout).await, "on\n");
    bed.finish().await;
}

/// A database that hangs holds the program up, not the worker's memory; what was sent twice then is stored once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_prints_more_than_the_database_takes_is_held_up_and_loses_nothing() {
    const LINES: usize = 3000;
    let mut bed = Bed::new().await;
    let proxy = Proxy::before(&services::database_url()).await;
    let url = with_database(&proxy.url(&services::database_url()), bed.database.name());
    let worker = Leasehold::on(&url).with("EXECUTION_WORKER_LEASE_DURATION", "120s");
    let mut command =
        worker.command(&["worker", "--no-containers", "--allow-commands", "--poll-interval", "100ms"]);
    bed.workers.push(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let file = |name: &str| std::env::temp_dir().join(format!("lh-printed-{name}-{}", uuid::Uuid::new_v4()));
    let (start, count) = (file("start"), file("count"));
    bed.files.extend([start.clone(), count.clone()]);
    // Lines of 1 KiB, and a note of each that is out.
    let script = format!(
        "echo ready; until [ -e {} ]; do sleep 0.05; done; i=0; while [ $i -lt {LINES} ]; do printf '%01023d\\n' $i; i=$((i+1)); echo $i > {}; done",
        start.display(),
        count.display()
    );
    let job = bed.submit(&json!({ "id": "flood", "sequence": [shell("x", &script)] }));
    eventually(PATIENCE, "the program is ready", async || {
        (bed.log(job, LogStreamName::Stdout).await == "ready\n").then_some(())
    })
    .await;
    proxy.stall(true);
    std::fs::write(&start, "").unwrap();
    let printed = || std::fs::read_to_string(&count).ok()?.trim().parse::<usize>().ok();
    eventually(PATIENCE, "more than a pipe holds is out", async || printed().filter(|n| *n > 100)).await;
    pass(Duration::from_secs(3)).await;
    let held = eventually(PATIENCE, "the note is whole", async || printed()).await;
    assert!(held < 1000, "{held} KiB are out and not stored");
    proxy.stall(false);
    let ended = bed.ended(job).await;
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("COMPLETED"), &json!(1)), "{ended}");
    let expected: String = (0..LINES).map(|n| format!("{n:01023}\n")).collect();
    let log = bed.log(job, LogStreamName::Stdout).await;
    assert!(log.strip_prefix("ready\n") == Some(&expected), "{} bytes of {}", log.len(), expected.len() + 6);
    bed.finish().await;
}
