//! `leasehold lease acquire` and `leasehold run-with-lease`, with real processes: every way in which one lease can end, with
//! its exit code. No worker runs here but where a test says so: what is acquired, `lease acquire` has acquired.

use std::{
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{
    Worker,
    config::{Effective, Sources},
    protocol::domain::JobId,
    recipe::op::{Ops, Task, TaskError},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio_postgres::Client;

use super::leasehold::{Leasehold, Said, wait};
use crate::support::{
    database::TestDatabase,
    eventually::eventually,
    proxy::{Passing, Proxy},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of the test's own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("lh-leases-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A supervisor's view of a fleet without workers.
struct Bed {
    database: TestDatabase,
    leasehold: Leasehold,
    folder: Folder,
}

impl Bed {
    async fn new() -> Self {
        let database = TestDatabase::create().await;
        let leasehold = Leasehold::on(database.url());
        Self { database, leasehold, folder: Folder::new() }
    }

    /// With short leases, for those that are to be lost.
    async fn hurried() -> Self {
        let mut bed = Self::new().await;
        bed.leasehold = hurried(bed.database.url());
        bed
    }

    fn submit(&self, recipe: &str) -> String {
        let name = format!("{}.yaml", uuid::Uuid::new_v4());
        let file = self.folder.file(&name, recipe, 0o600);
        let said = self.leasehold.run(&["submit", "--recipe", &file]);
        assert_eq!(said.code, 0, "{said:?}");
        said.out.trim().to_owned()
    }

    /// Acquires the next job; answers its id and the file.
    fn acquire(&self, flags: &[&str]) -> (String, String) {
        let file = self.folder.path(&format!("{}.lease", uuid::Uuid::new_v4()));
        let said = self.leasehold.run(&[&["lease", "acquire", "--lease-file", &file], flags].concat());
        (said.json()["job"].to_string(), file)
    }

    fn run(&self, job: &str, file: &str, flags: &[&str]) -> Said {
        self.leasehold.run(&run_args(job, file, flags))
    }

    /// Runs on until it is waited for.
    fn start(&self, job: &str, file: &str, flags: &[&str]) -> Child {
        start(&self.leasehold, job, file, flags)
    }
}

fn hurried(url: &str) -> Leasehold {
    Leasehold::on(url)
        .with("EXECUTION_WORKER_LEASE_DURATION", "10s")
        .with("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "500ms")
        .with("EXECUTION_WORKER_STORE_TIMEOUT", "2s")
        .with("EXECUTION_WORKER_SHUTDOWN_GRACE", "1s")
}

fn run_args<'a>(job: &'a str, file: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["run-with-lease", "--job", job, "--lease-file", file, "--allow-commands"][..], flags].concat()
}

fn start(leasehold: &Leasehold, job: &str, file: &str, flags: &[&str]) -> Child {
    let mut command = leasehold.command(&run_args(job, file, flags));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(child: Child) -> Said {
    Said::of(wait(child, PATIENCE, &["run-with-lease"]))
}

/// The one JSON line, whatever the exit code.
fn line(said: &Said) -> Value {
    assert_eq!(said.out.lines().count(), 1, "{said:?}");
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"))
}

/// The outcome with its exit code.
fn outcome(said: &Said) -> (String, i32) {
    (line(said)["outcome"].as_str().unwrap_or_default().to_owned(), said.code)
}

fn as_text(outcome: &(String, i32)) -> (&str, i32) {
    (&outcome.0, outcome.1)
}

/// A recipe whose command says that it has begun and goes on for long.
fn long(began: &str) -> String {
    format!(
        "id: long\nsequence:\n  - id: hold\n    op: command\n    inputs: {{ argv: [sh, -c, 'echo $$ > {began}; exec sleep 600'] }}\n  \
         - {{ id: after, op: command, inputs: {{ argv: [touch, {began}.after] }} }}\n"
    )
}

/// The process id of the command, once it runs.
async fn begun(file: &str) -> u32 {
    eventually(PATIENCE, "the command runs", async || std::fs::read_to_string(file).ok()?.trim().parse().ok())
        .await
}

async fn gone(program: u32) {
    eventually(PATIENCE, "the command has ended", async || {
        let stat = std::fs::read_to_string(format!("/proc/{program}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    })
    .await;
}

async fn count(client: &Client, query: &str) -> i64 {
    client.query_one(query, &[]).await.unwrap().get(0)
}

/// E7: one lease each, and every acquisition is one that `lease acquire` was asked for.
#[tokio::test]
async fn a_supplied_lease_ends_in_every_way_with_its_own_exit_code() {
    let bed = Bed::new().await;
    let step =
        |argv: &str| format!("id: r\nsequence:\n  - {{ id: a, op: command, inputs: {{ argv: {argv} }} }}\n");
    let then = |next: &str| format!("{}  - {{ id: b, {next} }}\n", step("[echo, '{\"n\": 1}']"));

    // Completed; the file is its owner's alone, and names the job on standard output, not what proves it.
    let job = bed.submit(&step("[echo, '{\"n\": 1}']"));
    let file = bed.folder.path("first.lease");
    let said = bed.leasehold.run(&["lease", "acquire", "--lease-file", &file, "--worker-id", "supervisor"]);
    let acquired = said.json();
    assert_eq!((acquired["job"].to_string(), acquired["namespace"].as_str()), (job.clone(), Some("default")));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    let capability: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(capability["owner"]["worker"], "supervisor");
    assert!(!said.out.contains(capability["token"].as_str().unwrap()));
    let shown = bed.leasehold.run(&["job", "show", &job, "--json"]).json();
    assert_eq!((shown["state"].as_str(), shown["worker"].as_str()), (Some("RUNNING"), Some("supervisor")));
    let said = bed.run(&job, &file, &[]);
    assert_eq!((said.code, line(&said)), (0, json!({ "outcome": "completed", "job": 1 })), "{said:?}");
    let shown = bed.leasehold.run(&["job", "show", &job, "--json"]).json();
    assert_eq!((shown["state"].as_str(), shown["attempt"].as_i64()), (Some("COMPLETED"), Some(1)));

    // A second import, and one of another job.
    let said = bed.run(&job, &file, &[]);
    assert_eq!(as_text(&outcome(&said)), ("refused", 3));
    assert!(
        said.err.starts_with("error: lease_not_live") || said.err.contains("\nerror: lease_not_live"),
        "{said:?}"
    );
    assert_eq!(as_text(&outcome(&bed.run("2", &file, &[]))), ("refused", 5));

    // Waits: for a time, a signal, a child.
    for (next, key) in [
        ("op: sleep, inputs: { for: 1h }", "time"),
        ("op: wait_for_signal, inputs: { name: go }", "signals"),
        ("op: child_job, inputs: { handler: nobody }", "jobs"),
    ] {
        bed.submit(&then(next));
        let (job, file) = bed.acquire(&[]);
        let said = bed.run(&job, &file, &[]);
        assert_eq!(as_text(&outcome(&said)), ("waiting", 0), "{said:?}");
        let waiting = line(&said)["waiting"].clone();
        assert_eq!(
            waiting.as_object().map(|w| w.keys().cloned().collect()),
            Some(vec![key.to_owned()]),
            "{waiting}"
        );
    }

    // E2: an insufficient allocation runs nothing and hands off.
    let ledger = bed.folder.path("ledger");
    let needs = format!(
        "id: r\nsequence:\n  - id: a\n    execution_needs: {{ resources: {{ memory: 16Gi }} }}\n    op: command\n    \
         inputs: {{ argv: [touch, {ledger}] }}\n"
    );
    bed.submit(&needs);
    let (job, file) = bed.acquire(&[]);
    let said = bed.run(&job, &file, &["--allocation-memory", "1Gi"]);
    assert_eq!(as_text(&outcome(&said)), ("environment_required", 0), "{said:?}");
    let handoff = &line(&said)["handoff"];
    assert_eq!((&handoff["kind"], &handoff["path"]), (&json!("environment_required"), &json!("a")));
    assert_eq!(handoff["requirements"]["resources"]["memory"], "16Gi");
    assert!(!Path::new(&ledger).exists(), "nothing ran");
    // And whoever says less than that of what it has does not even get it.
    let next = bed.folder.path("next.lease");
    let small = ["lease", "acquire", "--lease-file", &next, "--compatible-with", "memory=8Gi"];
    assert!(bed.leasehold.run(&small).refused(4).contains("nothing to acquire"));
    let silent = ["lease", "acquire", "--lease-file", &next];
    assert!(bed.leasehold.run(&silent).refused(4).contains("only with --compatible-with or --job"));
    let this = [&small[..], &["--job", &job]].concat();
    assert!(bed.leasehold.run(&this).refused(4).contains("16Gi"));
    let (again, file) = bed.acquire(&["--compatible-with", "memory=16Gi"]);
    assert_eq!(again, job);
    let said = bed.run(&job, &file, &["--allocation-memory", "16Gi"]);
    assert_eq!(as_text(&outcome(&said)), ("completed", 0), "{said:?}");
    assert!(Path::new(&ledger).exists());

    // An op that is not here.
    bed.submit(&then("op: resize"));
    let (job, file) = bed.acquire(&["--route", "recipe"]);
    let said = bed.run(&job, &file, &[]);
    assert_eq!(as_text(&outcome(&said)), ("other_route", 0), "{said:?}");
    assert_eq!(line(&said)["route"], json!({ "job_type": "recipe", "task": "resize" }));
    let (again, file) = bed.acquire(&["--route", "recipe/resize"]);
    assert_eq!((&again, as_text(&outcome(&bed.run(&job, &file, &[])))), (&job, ("other_route", 0)));

    // Fails.
    bed.submit(&step("[sh, -c, 'echo no >&2; exit 3']"));
    let (job, file) = bed.acquire(&[]);
    let said = bed.run(&job, &file, &[]);
    assert_eq!(as_text(&outcome(&said)), ("failed", 1), "{said:?}");
    assert_eq!(line(&said)["failure"]["exit_code"], 3);
    let shown = bed.leasehold.run(&["job", "show", &job, "--json"]).json();
    assert_eq!(shown["state"], "FAILED");

    // Nothing is queued any more, and nothing was acquired but by `lease acquire`: nine times.
    assert!(
        bed.leasehold
            .run(&["lease", "acquire", "--lease-file", &next])
            .refused(4)
            .contains("nothing to acquire")
    );
    assert!(!Path::new(&next).exists());
    // There is no pipe in this direction, and a file of that name is what nobody means.
    let pipe = bed.leasehold.run(&["lease", "acquire", "--lease-file", "-"]);
    assert!(pipe.refused(2).contains("`-` is no file"));
    let client = bed.database.client().await;
    let grants =
        "select count(*) from leasehold.commands where operation in ('claim', 'claim_listed', 'recover')";
    assert_eq!(count(&client, grants).await, 9);
    assert_eq!(count(&client, "select count(*) from leasehold.lease_history").await, 9);
    assert_eq!(count(&client, "select count(*) from leasehold.commands where operation = 'redeem'").await, 9);
}

/// E10; and the secret, old or new, is in nothing that anybody is shown, at any level of the log.
#[tokio::test]
async fn authority_that_is_lost_on_the_way_ends_the_run_and_no_output_has_the_token() {
    let bed = Bed::hurried().await;
    let client = bed.database.client().await;
    let loud = hurried(bed.database.url()).with("RUST_LOG", "trace");
    let mut shown = Vec::new();
    let mut secrets = Vec::new();
    for (n, lose) in [
        "update leasehold.leases set token = gen_random_uuid()",
        "update leasehold.leases set lease_expires_at = now() - interval '1 second'",
    ]
    .into_iter()
    .enumerate()
    {
        let began = bed.folder.path(&format!("began-{n}"));
        let job = bed.submit(&long(&began));
        let file = bed.folder.path(&format!("{n}.lease"));
        shown.push(loud.run(&["lease", "acquire", "--job", &job, "--lease-file", &file]));
        let capability: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let first = capability["token"].as_str().unwrap().to_owned();
        let run = start(&loud, &job, &file, &[]);
        let program = begun(&began).await;
        let token = "select token::text from leasehold.leases where job_id = $1::text::bigint";
        let second: String = client.query_one(token, &[&job]).await.unwrap().get(0);
        assert_ne!(first, second, "it was redeemed");
        // The exporter and a second import prove nothing any more.
        let again = loud.run(&run_args(&job, &file, &[]));
        assert_eq!(as_text(&outcome(&again)), ("refused", 3));
        for args in [
            &["job", "show", &job, "--json"][..],
            &["job", "show", &job],
            &["jobs", "--json"],
            &["job", "results", &job, "--json"],
            &["job", "payload", "get", &job, "--json"],
            &["job", "why", &job],
            &["job", "replay", &job],
            &["worker", "list", "--json"],
        ] {
            shown.push(loud.run(args));
        }
        client.execute(&format!("{lose} where job_id = {job}"), &[]).await.unwrap();
        let said = ended(run);
        assert_eq!(as_text(&outcome(&said)), ("lost", 3), "{said:?}");
        assert!(said.err.contains("error: lease_not_live"), "{said:?}");
        gone(program).await;
        assert!(!Path::new(&format!("{began}.after")).exists(), "nothing more began");
        let state = bed.leasehold.run(&["job", "show", &job, "--json"]).json()["state"].clone();
        assert_eq!(state, "RUNNING", "nothing was reported: it is left to recovery");
        shown.extend([again, said]);
        secrets.extend([first, second]);
    }
    for secret in &secrets {
        let simple = secret.replace('-', "");
        for part in [&secret[..8], &secret[24..], &simple[8..20]] {
            for said in &shown {
                assert!(!said.out.contains(part) && !said.err.contains(part), "{part} is in {said:?}");
            }
        }
    }
    assert!(shown.iter().any(|said| said.err.contains("DEBUG")), "the log was as loud as can be");
}

/// Exit code 6, told apart from a lost lease; and what cannot be reached at all runs nothing.
#[tokio::test]
async fn a_database_that_does_not_answer_is_no_lost_lease() {
    let bed = Bed::hurried().await;
    let began = bed.folder.path("began");
    let job = bed.submit(&long(&began));
    let (_, file) = bed.acquire(&[]);
    let nowhere = Leasehold::on("postgres://app:p4ssw0rd@127.0.0.1:1/app");
    let said = nowhere.run(&run_args(&job, &file, &[]));
    assert!(!said.refused(6).contains("p4ssw0rd"), "{said:?}");
    assert_eq!(said.out, "", "nothing is reported");

    let proxy = Proxy::before(bed.database.url()).await;
    let through = hurried(&proxy.url(bed.database.url()));
    let run = start(&through, &job, &file, &[]);
    let program = begun(&began).await;
    proxy.lets_pass(Passing::Lost);
    proxy.cut();
    let said = tokio::task::spawn_blocking(move || ended(run)).await.unwrap();
    assert_eq!(as_text(&outcome(&said)), ("unknown", 6), "{said:?}");
    let line = line(&said);
    assert_eq!(
        (line["phase"].as_str(), line["operation"].as_str()),
        (Some("renewal"), Some("renew")),
        "{line}"
    );
    assert!(line["destination"].as_str().is_some_and(|to| to.contains("127.0.0.1")), "{line}");
    gone(program).await;
}

#[tokio::test]
async fn a_run_that_is_told_to_stop_gives_the_job_back() {
    let bed = Bed::hurried().await;
    let began = bed.folder.path("began");
    let job = bed.submit(&long(&began));
    let (_, file) = bed.acquire(&[]);
    let run = bed.start(&job, &file, &[]);
    let program = begun(&began).await;
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    let said = ended(run);
    assert_eq!(as_text(&outcome(&said)), ("released", 0), "{said:?}");
    assert_eq!(line(&said)["why"], "stopped");
    gone(program).await;
    let shown = bed.leasehold.run(&["job", "show", &job, "--json"]).json();
    assert_eq!((shown["state"].as_str(), shown["failure"].is_null()), (Some("PENDING"), true), "{shown}");

    std::fs::remove_file(&began).unwrap();
    let (_, file) = bed.acquire(&["--job", &job]);
    let said = bed.run(&job, &file, &["--deadline", "2s"]);
    assert_eq!(as_text(&outcome(&said)), ("released", 0), "{said:?}");
    assert_eq!(line(&said)["why"], "deadline");
}

/// What a capability is read from, and what it is not read from.
#[tokio::test]
async fn a_capability_is_taken_from_nothing_that_others_could_read() {
    let bed = Bed::new().await;
    let job = bed.submit("id: r\nop: command\nwith: { argv: [echo, '1'] }\n");
    let (_, file) = bed.acquire(&[]);
    let text = std::fs::read_to_string(&file).unwrap();
    let secret = serde_json::from_str::<Value>(&text).unwrap()["token"].as_str().unwrap().to_owned();
    let refused = |path: &str, word: &str| {
        let said = bed.run(&job, path, &[]);
        assert!(said.refused(2).contains(word), "{said:?}");
        assert!(!said.err.contains(&secret[..8]) && said.out.is_empty(), "{said:?}");
    };
    for mode in [0o644, 0o640, 0o660, 0o700] {
        refused(&bed.folder.file("open", &text, mode), "chmod 600");
    }
    symlink(&file, bed.folder.path("link")).unwrap();
    refused(&bed.folder.path("link"), "symbolic link");
    let made = Command::new("mkfifo").args(["-m", "600", &bed.folder.path("fifo")]).status().unwrap();
    assert!(made.success());
    refused(&bed.folder.path("fifo"), "no regular file");
    refused(&bed.folder.path("."), "no regular file");
    refused(&bed.folder.path("missing"), "cannot read");
    refused(&bed.folder.file("large", &" ".repeat((1 << 20) + 1), 0o600), "1 MiB");
    refused(&bed.folder.file("other", &format!("{{\"token\":\"{secret}\"}}"), 0o600), "holds no capability");
    refused(&bed.folder.file("newer", &text.replace("\"version\":1", "\"version\":2"), 0o600), "version 2");
    if rustix::process::geteuid().is_root() {
        let theirs = bed.folder.file("theirs", &text, 0o600);
        std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
        refused(&theirs, "belongs to user 65534");
    }
    let shown = bed.leasehold.run_on_terminal(&run_args(&job, "-", &[]));
    assert_eq!(shown.code, 2, "{shown:?}");
    assert!(shown.out.contains("terminal"), "{shown:?}");
    // Another namespace: told before the database is looked at.
    let elsewhere = Leasehold::on("postgres://127.0.0.1:1/app").with("LEASEHOLD_NAMESPACE", "elsewhere");
    assert_eq!(as_text(&outcome(&elsewhere.run(&run_args(&job, &file, &[])))), ("refused", 5));
    // And nobody acquires into a file that is there.
    let said = bed.leasehold.run(&["lease", "acquire", "--lease-file", &file]);
    assert!(said.refused(2).contains("exists already"), "{said:?}");

    // After all that it is as good as before: by a file that its owner cannot write either, or by a pipe.
    assert!(pipe(&bed.leasehold, &job, "").refused(2).contains("standard input"));
    let read_only = bed.folder.file("read-only", &text, 0o400);
    assert_eq!(as_text(&outcome(&bed.run(&job, &read_only, &[]))), ("completed", 0));
    assert_eq!(as_text(&outcome(&pipe(&bed.leasehold, &job, &text))), ("refused", 3));
}

/// Runs with the capability from a private pipe.
fn pipe(leasehold: &Leasehold, job: &str, capability: &str) -> Said {
    let mut command = leasehold.command(&run_args(job, "-", &[]));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(capability.as_bytes()).unwrap();
    let output: Output = wait(child, PATIENCE, &["run-with-lease"]);
    Said::of(output)
}

/// E10: a running worker gives a lease away; whoever redeems it goes on from what is recorded, and the worker's permit is
/// free again.
#[tokio::test]
async fn a_running_worker_gives_a_lease_away() {
    let bed = Bed::new().await;
    let job = bed.submit(
        "id: r\nsequence:\n  - { id: a, op: command, inputs: { argv: [echo, '1'] } }\n  - { id: b, op: slow }\n",
    );
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let mut ops = Ops::new();
    // The first run goes on until it is stopped; the next one is quick.
    ops.register_fn("slow", move |task: Task| {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if run == 0 {
                let why = task.context.cancelled().await;
                return Err(TaskError::system("stopped", format!("{why:?}")));
            }
            Ok("2".into())
        }
    })
    .unwrap();
    let mut settings = Effective::load(&Sources::default()).unwrap().worker().unwrap();
    settings.allow_commands = true;
    settings.poll_interval = Duration::from_millis(100);
    let worker =
        Worker::builder().database(bed.database.url()).settings(settings).recipes(ops).build().await.unwrap();
    let (leases, health) = (worker.leases(), worker.health());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
    eventually(PATIENCE, "the slow task runs", async || (runs.load(Ordering::SeqCst) == 1).then_some(()))
        .await;

    let id = JobId(job.parse().unwrap());
    let capability = leases.export(id).await.expect("the worker holds it");
    assert_eq!((capability.job(), leases.export(id).await), (id, None), "it is given away once");
    let permits = health.actors().unwrap().permits;
    assert_eq!((permits.active, permits.awaiting_reconciliation), (0, 1));

    // The importer has no op `slow`: the job goes on elsewhere, which is the worker again.
    let said = pipe(&bed.leasehold, &job, &capability.expose());
    assert_eq!(as_text(&outcome(&said)), ("other_route", 0), "{said:?}");
    let shown = eventually(PATIENCE, "the job has ended", async || {
        let shown = bed.leasehold.run(&["job", "show", &job, "--json"]).json();
        (shown["state"] == "COMPLETED").then_some(shown)
    })
    .await;
    assert_eq!(shown["output"], json!({ "a": 1, "b": 2 }));
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    eventually(PATIENCE, "every permit is free", async || {
        let permits = health.actors()?.permits;
        (permits.free == permits.total()).then_some(())
    })
    .await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}
