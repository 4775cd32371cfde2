//! Recipes at the command line, with real workers that differ in what they have.

use std::{
    fs::File,
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::leasehold::{Leasehold, Said, wait};
use crate::support::{database::TestDatabase, eventually::eventually};

const PATIENCE: Duration = Duration::from_secs(60);

/// A worker process, killed when dropped.
struct Worker {
    child: Child,
    log: PathBuf,
}

impl Worker {
    fn start(leasehold: &Leasehold, name: &str, flags: &[&str]) -> Self {
        let log = std::env::temp_dir().join(format!("lh-worker-{}", uuid::Uuid::new_v4()));
        let fixed = ["worker", "--worker-id", name, "--no-containers", "--poll-interval", "100ms"];
        let mut command = leasehold.command(&[&fixed, flags].concat());
        command.stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        Self { child: command.spawn().unwrap(), log }
    }

    fn kill(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::KILL).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

fn example(name: &str) -> String {
    format!("{}/examples/recipes/{name}.yaml", env!("CARGO_MANIFEST_DIR"))
}

/// A recipe of the test's own, removed at the end.
struct Recipe(PathBuf);

impl Recipe {
    fn new(text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lh-recipe-{}.yaml", uuid::Uuid::new_v4()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Recipe {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn submit(leasehold: &Leasehold, args: &[&str]) -> String {
    let said = leasehold.run(&[&["submit", "--recipe"], args].concat());
    assert_eq!(said.code, 0, "{said:?}");
    said.out.trim().to_owned()
}

fn results(leasehold: &Leasehold, id: &str) -> Vec<Value> {
    leasehold.run(&["job", "results", id, "--json"]).json_lines()
}

async fn ended(leasehold: &Leasehold, id: &str) -> Value {
    eventually(PATIENCE, "the job has ended", async || {
        let job = leasehold.run(&["job", "show", id, "--json"]).json();
        ["COMPLETED", "FAILED", "CANCELED"].contains(&job["state"].as_str().unwrap()).then_some(job)
    })
    .await
}

/// E1, E2: the step that found out what is needed runs once, on the worker that was there; the step that needs more
/// waits for the one that has it.
#[tokio::test]
async fn a_recipe_moves_to_a_worker_that_has_what_it_found_out_to_need() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let scratch = ["--allocation-ephemeral-storage", "10Gi"];
    let small =
        [&["--allow-commands", "--allocation-cpu", "1", "--allocation-memory", "2Gi"], &scratch[..]].concat();
    let _small = Worker::start(&leasehold, "small", &small);
    let mut command = leasehold.command(&["run", "--recipe", &example("memory"), "--input", "size=16Gi"]);
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually(PATIENCE, "the needs of the second step are published", async || {
        let shown = leasehold.run(&["job", "payload", "get", "1", "--json"]);
        (shown.code == 0)
            .then(|| shown.json())
            .filter(|shown| shown["payload"]["execution"]["requirements"]["resources"]["memory"] == "16Gi")
    })
    .await;
    assert_eq!(results(&leasehold, "1").len(), 1);
    let listed = leasehold.run(&["jobs", "--json"]).json();
    let view = serde_json::json!({
        "status": "specified", "source": "handoff", "hint": "exact",
        "requirements": {"resources": {"cpu": "500m", "memory": "16Gi"}},
    });
    assert_eq!(listed["execution"], view, "{listed}");
    for (facts, found) in
        [("cpu=8,memory=32Gi", 1), ("memory=32Gi,image-id=x", 0), ("cpu=500m,memory=16Gi", 1)]
    {
        let fitting = leasehold.run(&["jobs", "--compatible-with", facts, "--json"]).json_lines();
        assert_eq!(fitting.len(), found, "{facts}");
    }
    for facts in ["image-id=4f2a", "", "mem=4Gi", "cpu=2,memory=4G i"] {
        leasehold.run(&["jobs", "--compatible-with", facts]).refused(2);
    }
    leasehold.run(&["jobs", "--compatible-with", "cpu=1", "--state", "RUNNING"]).refused(2);
    leasehold.run(&["jobs", "--compatible-with", "cpu=1", "--kind", "HANDLER"]).refused(2);
    leasehold.run(&["jobs", "--include-unresolved"]).refused(2);
    let table = leasehold.run(&["jobs", "--compatible-with", "cpu=8,memory=32Gi"]).out;
    assert!(table.contains("NEEDS") && table.contains("cpu=500m,memory=16Gi (handoff)"), "{table}");
    let lacks = "has that: small lacks memory (has 2Gi); declined it: cpu=1,memory=2Gi";
    eventually(PATIENCE, lacks, async || {
        leasehold.run(&["job", "why", "1"]).out.contains(lacks).then_some(())
    })
    .await;
    let shown = leasehold.run(&["job", "show", "1", "--json"]).json();
    let event = &shown["events"][0];
    assert_eq!(
        (event["path"].as_str(), event["op"].as_str(), event["outcome"].as_str(), event["attempt"].as_i64()),
        (Some("probe"), Some("command"), Some("succeeded"), Some(1)),
        "{shown}"
    );
    assert_eq!((event["worker"].as_str(), shown["execution"].clone()), (Some("small"), view), "{shown}");
    assert!(event["at"].is_string() && event.get("output").is_none(), "{event}");
    let shown = leasehold.run(&["job", "show", "1"]).out;
    assert!(shown.contains("cpu=500m,memory=16Gi (handoff)") && shown.contains("OUTCOME"), "{shown}");
    assert!(shown.contains("(memory.yaml)") && !shown.contains("execution_needs"), "{shown}");
    let why = leasehold.run(&["job", "why", "1", "--json"]).json();
    assert_eq!((&why["job"], why["why"].as_str().unwrap().contains(lacks)), (&1.into(), true), "{why}");
    let big = ["--allow-commands", "--allocation-cpu", "8", "--allocation-memory", "32Gi"];
    let _big = Worker::start(&leasehold, "big", &big);
    let said = Said::of(wait(run, PATIENCE, &["run"]));
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "{\"probe\":{\"memory\": \"16Gi\"},\"heavy\":{\"had\": \"16Gi\"}}\n"),
        "{said:?}"
    );
    for line in [
        "handoff: the next task needs cpu=500m,memory=16Gi; the worker has cpu=1,memory=2Gi,ephemeral-storage=10Gi\n",
        "  ✓ probe  command: {\"memory\": \"16Gi\"} on small, ",
        "  ✓ heavy  command: {\"had\": \"16Gi\"} on big, ",
        "job 1 COMPLETED\n",
    ] {
        assert!(said.err.contains(line), "{line:?} is not in {}", said.err);
    }
    let events = results(&leasehold, "1");
    let steps: Vec<(&str, &str)> =
        events.iter().map(|e| (e["path"].as_str().unwrap(), e["worker"].as_str().unwrap())).collect();
    assert_eq!(steps, [("probe", "small"), ("heavy", "big")]);
    let tree = leasehold.run(&["job", "results", "1"]);
    assert!(tree.out.contains("├─ probe") && tree.out.contains("└─ heavy"), "{tree:?}");
}

/// E8
#[tokio::test]
async fn a_recipe_goes_from_amd64_to_arm64_and_back_over_nested_scopes() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let _amd =
        Worker::start(&leasehold, "amd", &["--allow-commands", "--allocation-platform", "linux/amd64"]);
    let _arm =
        Worker::start(&leasehold, "arm", &["--allow-commands", "--allocation-platform", "linux/arm64"]);
    let run = ["run", "--recipe", &example("platforms"), "--idempotency-key", "once"];
    let said = leasehold.run(&run);
    assert_eq!(said.code, 0, "{said:?}");
    // Whether it looks while the job moves, or once it has long ended, it tells the same in the same order.
    let again = leasehold.run(&run);
    for said in [&said, &again] {
        let mut rest = said.err.as_str();
        for line in [
            "  ✓ build  command",
            "\nhandoff: the next task needs platform=linux/arm64; the worker has platform=linux/amd64\n",
            "    ✓ build  command",
            "    ✓ test  command",
            "\nhandoff: the next task needs platform=linux/amd64; the worker has platform=linux/arm64\n",
            "  ✓ publish  command",
        ] {
            let found =
                rest.find(line).unwrap_or_else(|| panic!("{line:?} is not in its place in {}", said.err));
            rest = &rest[found + line.len() - 1..];
        }
        assert!(serde_json::from_str::<Value>(&said.out).is_ok(), "the result alone: {said:?}");
    }
    let leases = leasehold.run(&["job", "show", "1", "--json"]).json()["leases"].clone();
    let handed = |lease: &&Value| lease["failure"]["code"] == "handoff";
    let handed = leases.as_array().unwrap().iter().filter(handed).count();
    for said in [&said, &again] {
        // One more where the job was first claimed on the other side.
        assert_eq!(said.err.matches("handoff: ").count(), handed, "{}", said.err);
    }
    let events = results(&leasehold, "1");
    let steps: Vec<(&str, &str)> =
        events.iter().map(|e| (e["path"].as_str().unwrap(), e["worker"].as_str().unwrap())).collect();
    assert_eq!(steps, [("build", "amd"), ("arm/build", "arm"), ("arm/test", "arm"), ("publish", "amd")]);
    assert_eq!(events[3]["output"]["second"], "tested on arm64");
}

#[tokio::test]
async fn loops_branches_and_signals_do_what_the_examples_say() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let _worker = Worker::start(&leasehold, "w", &["--allow-commands"]);

    let said = leasehold.run(&["run", "--recipe", &example("fan-out")]);
    assert_eq!(said.code, 0, "{said:?}");
    let output: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(output["all"], serde_json::json!({ "failed": "all/bad", "code": "3" }));

    let said = leasehold.run(&["run", "--recipe", &example("loop"), "--input", "times:=4"]);
    assert_eq!((said.code, said.out.as_str()), (0, "{\"tries\": 4}\n"), "{said:?}");
    assert!(said.err.contains("try#4"), "{said:?}");

    let id = submit(&leasehold, &[&example("approval")]);
    let send = || {
        let data = ["--data", "{\"by\": \"me\"}", "--key", "k", "--json"];
        leasehold.run(&[&["job", "signal", &id, "approved"][..], &data].concat()).json()
    };
    let (first, again) = (send(), send());
    assert_eq!((first["created"].as_bool(), again["created"].as_bool()), (Some(true), Some(false)));
    assert_eq!(first["signal"], again["signal"]);
    assert_eq!(ended(&leasehold, &id).await["output"]["deploy"]["by"], "me");
    assert!(leasehold.run(&["job", "signal", &id, "late"]).refused(5).contains("job_ended"));
    assert!(
        leasehold.run(&["job", "signal", &id, " x"]).refused(2).contains("begin or end with white space")
    );
    assert!(leasehold.run(&["job", "payload", "set", &id, "{}"]).refused(5).contains("job_ended"));
    leasehold.run(&["job", "signal", "99", "x"]).refused(4);
    leasehold.run(&["job", "results", "99"]).refused(4);
}

#[tokio::test]
async fn a_client_payload_is_replaced_only_under_the_expected_revision() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let id = submit(&leasehold, &[&example("loop"), "--payload", "{\"n\": 1.50}"]);
    let shown = leasehold.run(&["job", "payload", "get", &id]);
    assert_eq!(shown.out, "{\"n\": 1.50}\n", "byte for byte");
    let revision = leasehold.run(&["job", "payload", "get", &id, "--json"]).json()["revision"].to_string();
    let set =
        leasehold.run(&["job", "payload", "set", &id, "{\"n\": 2}", "--expect", &revision, "--json"]).json();
    assert!(set["revision"].as_i64() > revision.parse().ok(), "{set}");
    let conflict = leasehold.run(&["job", "payload", "set", &id, "{\"n\": 3}", "--expect", &revision]);
    assert!(conflict.refused(5).contains("payload_conflict"), "{conflict:?}");
    assert_eq!(leasehold.run(&["job", "payload", "get", &id]).out, "{\"n\": 2}\n");
    leasehold.run(&["job", "payload", "set", &id, "[1]"]).refused(2);
}

#[tokio::test]
async fn a_secret_reaches_the_program_and_nothing_that_is_stored() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url()).with("MY_TOKEN", "tok-s3cret-value");
    let _worker = Worker::start(&leasehold, "w", &["--allow-commands", "--secret", "MY_TOKEN"]);
    let recipe = Recipe::new(concat!(
        "id: masked\n",
        "sequence:\n",
        "  - id: show\n",
        "    op: command\n",
        "    inputs:\n",
        "      argv: [sh, -c, 'printf \"{\\\"length\\\": %s, \\\"token\\\": \\\"%s\\\"}\" ${#T} \"$T\"']\n",
        "      env: { T: \"${{ secrets.MY_TOKEN }}\" }\n",
        "  - id: fail\n",
        "    op: command\n",
        "    inputs:\n",
        "      argv: [sh, -c, 'echo \"no: $T\" >&2; exit 3']\n",
        "      env: { T: \"${{ secrets.MY_TOKEN }}\" }\n",
    ));
    let said = leasehold.run(&["run", "--recipe", recipe.path()]);
    assert!(said.code != 0 && said.err.contains("sh exited with code 3: no: ***"), "{said:?}");
    let events = results(&leasehold, "1");
    assert_eq!(events[0]["output"], serde_json::json!({ "length": 16, "token": "***" }));
    let client = database.client().await;
    let tables = client
        .query("select tablename::text from pg_tables where schemaname = 'leasehold'", &[])
        .await
        .unwrap();
    for table in tables {
        let name: String = table.get(0);
        let found: i64 = client
            .query_one(&format!("select count(*) from leasehold.{name} t where t::text like '%s3cret%'"), &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(found, 0, "the secret is in {name}");
    }
}

#[tokio::test]
async fn a_program_dies_with_its_worker() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let mut worker = Worker::start(&leasehold, "w", &["--allow-commands"]);
    let file = std::env::temp_dir().join(format!("lh-pid-{}", uuid::Uuid::new_v4()));
    let recipe = Recipe::new(&format!(
        "id: long\nop: command\nwith: {{ argv: [sh, -c, 'echo $$ > {}; exec sleep 600'] }}\n",
        file.display()
    ));
    submit(&leasehold, &[recipe.path()]);
    let program: u32 = eventually(PATIENCE, "the program runs", async || {
        std::fs::read_to_string(&file).ok()?.trim().parse().ok()
    })
    .await;
    worker.kill();
    eventually(PATIENCE, "the program has ended", async || {
        let stat = std::fs::read_to_string(format!("/proc/{program}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    })
    .await;
    std::fs::remove_file(&file).unwrap();
}

/// E1: a person reopens a recipe twice, once at its failure and once from a path; only what that makes unfinished runs
/// again, and the log keeps the rest.
#[tokio::test]
async fn a_failed_recipe_is_reopened_at_its_failure_or_from_a_path() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let dir = std::env::temp_dir().join(format!("lh-reopen-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&dir).unwrap();
    let step = |id: &str, needs: &str| {
        let script = format!("echo {id} $LEASEHOLD_TASK_KEY >> ledger; test -e {needs} || exit 3");
        format!("op: command, inputs: {{ argv: [sh, -c, {script:?}], workdir: {:?} }}", dir.to_str().unwrap())
    };
    let recipe = Recipe::new(&format!(
        "id: again\nsequence:\n  - {{ id: a, {} }}\n  - {{ id: b, retry: {{ max_attempts: 2, backoff: 100ms }}, {} }}\n  - {{ id: c, {} }}\n",
        step("a", "ledger"),
        step("b", "one"),
        step("c", "two"),
    ));
    let id = submit(&leasehold, &[recipe.path()]);
    let retry = |args: &[&str]| leasehold.run(&[&["job", "retry", &id], args].concat());
    let early = retry(&[]);
    assert!(early.code == 5 && early.err.contains("is QUEUED"), "{early:?}");
    let _worker = Worker::start(&leasehold, "w", &["--allow-commands"]);
    let ledger = || -> Vec<(String, String)> {
        let text = std::fs::read_to_string(dir.join("ledger")).unwrap();
        let split = |line: &str| line.split_once(' ').map(|(step, key)| (step.to_owned(), key.to_owned()));
        text.lines().filter_map(split).collect()
    };
    let steps = || ledger().into_iter().map(|(step, _)| step).collect::<Vec<_>>();

    assert_eq!(ended(&leasehold, &id).await["state"], "FAILED");
    let nowhere = retry(&["--from", "d"]);
    assert!(nowhere.code == 4 && nowhere.err.contains("the nearest: a, "), "{nowhere:?}");
    let unfinished = retry(&["--from", "c"]);
    assert!(unfinished.code == 5 && unfinished.err.contains("leave --from out"), "{unfinished:?}");
    File::create(dir.join("one")).unwrap();
    assert_eq!(retry(&[]).out, format!("job {id} is QUEUED again\n"));
    assert_eq!(ended(&leasehold, &id).await["state"], "FAILED");
    assert_eq!(steps(), ["a", "b", "b", "b", "c"]);
    let keys: std::collections::BTreeSet<String> = ledger().into_iter().map(|(_, key)| key).collect();
    assert_eq!(keys.len(), 5, "each has its own key");

    File::create(dir.join("two")).unwrap();
    let reopened = retry(&["--from", "b", "--json"]).json();
    assert_eq!((&reopened["result"], &reopened["state"]), (&"reopened".into(), &"QUEUED".into()));
    assert_eq!(ended(&leasehold, &id).await["state"], "COMPLETED");
    assert_eq!(steps(), ["a", "b", "b", "b", "c", "b", "c"]);
    let done = retry(&[]);
    assert!(done.code == 5 && done.err.contains("is COMPLETED"), "{done:?}");

    let events = results(&leasehold, &id);
    let named: Vec<&Value> = events.iter().filter(|event| event["event"] == "reopened").collect();
    assert_eq!((named.len(), events.len()), (2, 11), "{events:?}");
    assert_eq!(
        named[0]["unfinished"],
        serde_json::json!([[2, 5]]),
        "both attempts, and the wait between them"
    );
    assert_eq!((&named[1]["path"], &named[1]["worker"]), (&"b!1".into(), &Value::Null));
    let replayed = leasehold.run(&["job", "replay", &id]);
    assert!(replayed.code == 0 && replayed.out.contains("↻ reopened"), "{replayed:?}");
    let shown = leasehold.run(&["job", "show", &id, "--json"]).json();
    assert_eq!(shown["reopened"].as_array().unwrap().len(), 2);
    let other = leasehold.run(&["job", "retry", "77", "--from", "a"]);
    assert!(other.code == 4 && other.err.contains("there is no recipe job 77"), "{other:?}");
    let probe = leasehold.run(&["submit", "--http", "http://127.0.0.1:9/"]).out;
    for verb in ["results", "replay"] {
        let said = leasehold.run(&["job", verb, probe.trim()]);
        assert!(said.refused(4).contains("is a HEARTBEAT and no RECIPE"), "{said:?}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// What is asked of inputs refuses a submission with the place; jobs and listings name the schemas by digest.
#[tokio::test]
async fn inputs_that_break_a_registered_schema_are_refused_at_submission() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let file = |text: &str| Recipe::new(text);
    let recipe = file("id: sized\ninputs: { size: { type: integer } }\nop: sleep\nwith: { for: 1s }\n");
    let schema = file(r#"{"properties": {"size": {"maximum": 10}}}"#);
    let register =
        |file: &Recipe| leasehold.run(&["schema", "register", "--route", "recipe", "--input", file.path()]);
    assert_eq!(register(&schema).out, "recipe registered; inputs: its schema, output: anything\n");
    assert_eq!(register(&schema).out, "recipe unchanged; inputs: its schema, output: anything\n");
    let listed = leasehold.run(&["schema", "list", "--json"]).json();
    assert_eq!(
        (&listed["job_type"], &listed["op"], &listed["output"]),
        (&"recipe".into(), &"".into(), &Value::Null)
    );
    let shown = leasehold.run(&["schema", "show", listed["input"].as_str().unwrap()]);
    assert_eq!(shown.json()["properties"]["size"]["maximum"], 10);
    let refused = leasehold.run(&["submit", "--recipe", recipe.path(), "--input", "size:=11"]);
    assert!(refused.code == 2 || refused.code == 5, "{refused:?}");
    assert!(
        refused.err.contains("inputs/size: schema_violation") && !refused.err.contains("11"),
        "{refused:?}"
    );
    submit(&leasehold, &[recipe.path(), "--input", "size:=10"]);
    let out = file(r#"{"$ref": "https://example.com/s.json"}"#);
    let remote = register(&out);
    assert!(remote.code == 2 && remote.err.contains("leads out of the schema"), "{remote:?}");
    assert_eq!(leasehold.run(&["schema", "show", "nothing"]).code, 4);
    assert_eq!(leasehold.run(&["schema", "list"]).out.lines().count(), 2);
}

/// A workflow's recipe is read and pinned at apply, and a run that was claimed once goes on with what it was submitted
/// with, whatever is applied meanwhile.
#[tokio::test]
async fn a_workflow_of_a_recipe_pins_it_at_apply_and_a_run_in_flight_keeps_it() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let dir = std::env::temp_dir().join(format!("lh-flow-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir_all(dir.join("steps")).unwrap();
    let write = |version: &str| {
        let text = format!(
            "id: pipe\ninputs: {{ size: {{ type: integer, default: 1 }} }}\nsequence:\n  - {{ id: a, op: command, inputs: {{ argv: [echo, '1'] }} }}\n  - {{ id: go, op: wait_for_signal, inputs: {{ name: go }} }}\n  - {{ id: b, op: command, inputs: {{ argv: [echo, '{version}'] }} }}\n"
        );
        std::fs::write(dir.join("steps/pipe.yaml"), text).unwrap();
    };
    let flow = dir.join("flow.yaml");
    std::fs::write(&flow, "name: nightly\nrecipe:\n  file: steps/pipe.yaml\n  inputs: {size: 3}\n  require: {resources: {cpu: 1m}}\n").unwrap();
    let apply = || leasehold.run(&["workflow", "apply", flow.to_str().unwrap()]);
    let trigger = || leasehold.run(&["workflow", "trigger", "nightly"]).out.trim().to_owned();
    write("1");
    assert_eq!(apply().out, "nightly created, generation 1\n");
    assert_eq!(apply().out, "nightly unchanged, generation 1\n");
    let first = trigger();
    let _worker = Worker::start(&leasehold, "w", &["--allow-commands", "--allocation-cpu", "2"]);
    let waits = async |id: &str| {
        eventually(PATIENCE, "it waits for the signal", async || {
            let job = leasehold.run(&["job", "show", id, "--json"]).json();
            (job["state"] == "PENDING" && results(&leasehold, id).len() == 1).then_some(job)
        })
        .await
    };
    let job = waits(&first).await;
    assert_eq!(job["definition"]["inputs"]["size"], 3);
    // The file changes: nothing does, until it is applied.
    write("2");
    let second = trigger();
    waits(&second).await;
    assert_eq!(apply().out, "nightly changed, generation 2\n", "runs in flight are not superseded");
    let third = trigger();
    for (id, output) in [(&first, 1), (&second, 1), (&third, 2)] {
        waits(id).await;
        leasehold.run(&["job", "signal", id, "go"]);
        let job = ended(&leasehold, id).await;
        assert_eq!((&job["state"], &job["output"]["b"]), (&"COMPLETED".into(), &output.into()), "{job}");
    }
    std::fs::write(&flow, "name: nightly\nrecipe: {file: steps/none.yaml}\n").unwrap();
    let missing = apply();
    assert!(missing.code == 2 && missing.err.contains("none.yaml: there is no such file"), "{missing:?}");
    std::fs::write(&flow, "name: nightly\nrecipe: {file: steps/pipe.yaml, inputs: {colour: red}}\n").unwrap();
    let wrong = apply();
    assert!(wrong.code == 2 && wrong.err.contains("colour"), "{wrong:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A history is exported as it was recorded, and tells a recipe that would not do the same.
#[tokio::test]
async fn an_exported_history_verifies_the_recipe_that_made_it_and_no_other() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let _worker = Worker::start(&leasehold, "w", &["--allow-commands"]);
    let text = "id: numbers\nsequence:\n  - id: one\n    op: command\n    inputs: { argv: [echo, '{\"b\": 1.50,  \"a\": 1e300}'] }\n  - { id: two, op: command, inputs: { argv: [echo, '2'] } }\n";
    let recipe = Recipe::new(text);
    let id = submit(&leasehold, &[recipe.path()]);
    ended(&leasehold, &id).await;
    let exported = leasehold.run(&["job", "replay", &id, "--export"]);
    assert_eq!(exported.code, 0, "{exported:?}");
    assert!(exported.out.contains(r#""output":{"b": 1.50,  "a": 1e300}"#), "{exported:?}");

    let folder = std::env::temp_dir().join(format!("lh-histories-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("1.json"), &exported.out).unwrap();
    let histories = folder.to_str().unwrap();
    let verify = |more: &[&str]| {
        Leasehold::bare().run(&[&["recipe", "verify", "--histories", histories], more].concat())
    };
    let said = verify(&[recipe.path()]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.ends_with("1.json: consistent\n"), "{said:?}");
    assert_eq!(verify(&["--pinned"]).code, 0);

    let other = Recipe::new(&text.replace("'2'", "'3'"));
    let said = verify(&[other.path(), "--json"]);
    assert_eq!(said.code, 1, "{said:?}");
    let told: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        (told["verdict"].as_str(), told["path"].as_str(), told["ordinal"].as_i64()),
        (Some("not_deterministic"), Some("two"), Some(2))
    );
    // Nobody writes to it: a file is read, and nothing is waited for.
    let pipe = folder.join("0.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let said = verify(&[recipe.path()]);
    assert!(said.code == 1 && said.out.contains("0.json: unreadable: it is not a file"), "{said:?}");
    let said = Leasehold::bare().run(&["recipe", "test", pipe.to_str().unwrap()]);
    assert!(said.code == 2 && said.out.contains("0.json: it is not a file"), "{said:?}");
    std::fs::remove_file(&pipe).unwrap();
    std::fs::write(folder.join("2.json"), "{}").unwrap();
    let said = verify(&[recipe.path()]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains("2.json: unreadable: "), "{said:?}");
    let strange = Recipe::new(&text.replace("id: numbers", "id: letters"));
    std::fs::remove_file(folder.join("2.json")).unwrap();
    assert_eq!(verify(&[strange.path()]).code, 2, "no history is one of this recipe");
    std::fs::remove_dir_all(&folder).unwrap();
}
