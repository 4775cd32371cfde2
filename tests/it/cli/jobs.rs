//! submit, jobs, job show|cancel|retry: exit codes and the keys of their JSON.

use super::leasehold::Leasehold;
use crate::support::database::TestDatabase;

#[tokio::test]
async fn a_submitted_job_is_listed_and_shown_under_stable_keys() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let submitted = leasehold.run(&["submit", "--image", "busybox", "--json", "--", "echo", "hi"]).json();
    assert_eq!((submitted["id"].as_i64(), submitted["created"].as_bool()), (Some(1), Some(true)));
    let listed = leasehold.run(&["jobs", "--json"]).json_lines();
    let shown = leasehold.run(&["job", "show", "1", "--json"]).json();
    for job in [&submitted, &listed[0], &shown] {
        for key in ["id", "state", "kind", "workflow", "attempt", "exit_code", "failure", "node"] {
            assert!(job.get(key).is_some(), "{key} is missing in {job}");
        }
        assert_eq!((job["state"].as_str(), job["kind"].as_str()), (Some("QUEUED"), Some("CONTAINER")));
        assert_eq!((job["workflow"].as_str(), job["attempt"].as_i64()), (Some("adhoc"), Some(0)));
    }
    assert_eq!(shown["leases"].as_array().map(Vec::len), Some(0));
    assert_eq!(shown["definition"]["command"][1], "hi");

    let table = leasehold.run(&["jobs"]);
    assert_eq!(table.code, 0);
    assert!(table.out.starts_with("ID") && table.out.contains("QUEUED"), "{table:?}");
    assert!(!table.out.contains('\u{1b}'), "no colour in a pipe: {table:?}");
    assert_eq!(
        leasehold.run(&["submit", "--handler", "h"]).out,
        "2\n",
        "without --json a script gets the bare id"
    );
}

#[tokio::test]
async fn an_idempotency_key_brings_back_its_job_or_is_a_conflict() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let submit = |payload: &str| {
        leasehold.run(&["submit", "--handler", "h", "--idempotency-key", "k", "--payload", payload, "--json"])
    };
    let first = submit("{\"n\":1}").json();
    let again = submit("{\"n\":1}").json();
    assert_eq!((first["id"].clone(), again["created"].as_bool()), (again["id"].clone(), Some(false)));
    let conflict = submit("{\"n\":2}");
    assert!(conflict.refused(5).contains("idempotency_conflict"), "{conflict:?}");
    assert_eq!(leasehold.run(&["jobs", "--json"]).json_lines().len(), 1);
}

#[tokio::test]
async fn pages_of_a_listing_follow_each_other_without_a_gap() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    for _ in 0..7 {
        assert_eq!(leasehold.run(&["submit", "--handler", "h"]).code, 0);
    }
    let mut seen = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut args = vec!["jobs", "--json", "--limit", "3"];
        if let Some(mark) = &after {
            args.extend(["--after", mark]);
        }
        let page = leasehold.run(&args);
        seen.extend(page.json_lines().iter().map(|job| job["id"].as_i64().unwrap()));
        match page.err.trim().strip_prefix("there are more: --after ") {
            Some(mark) => after = Some(mark.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    let all: Vec<_> = leasehold.run(&["jobs", "--all", "--oldest-first", "--json"]).json_lines();
    assert_eq!(all.iter().map(|job| job["id"].as_i64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert!(leasehold.run(&["jobs", "--after", "nonsense"]).refused(2).contains("--after"));
    assert_eq!(leasehold.run(&["jobs", "--state", "FAILED", "--json"]).json_lines().len(), 0);
}

/// AP-13
#[tokio::test]
async fn cancelling_says_what_was_done_and_may_be_repeated() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    // QUEUED, and PENDING until a time that is far away.
    for extra in [&[][..], &["--run-at", "2199-01-01T00:00:00Z"]] {
        let submitted = leasehold.run(&[&["submit", "--handler", "h", "--json"], extra].concat()).json();
        let id = submitted["id"].to_string();
        assert_eq!(submitted["state"], if extra.is_empty() { "QUEUED" } else { "PENDING" });
        assert_eq!(leasehold.run(&["job", "cancel", &id, "--json"]).json()["result"], "canceled");
        let again = leasehold.run(&["job", "cancel", &id, "--json"]).json();
        assert_eq!(
            (again["result"].as_str(), again["state"].as_str()),
            (Some("already_ended"), Some("CANCELED"))
        );
        let shown = leasehold.run(&["job", "show", &id, "--json"]).json();
        assert_eq!(
            (shown["state"].as_str(), shown["failure"].is_null()),
            (Some("CANCELED"), true),
            "{shown}"
        );
        assert_eq!(leasehold.run(&["job", "retry", &id, "--json"]).json()["result"], "reopened");
        assert!(leasehold.run(&["job", "retry", &id]).refused(5).contains("can be reopened"));
    }
}

#[tokio::test]
async fn what_does_not_exist_is_exit_code_4() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    for args in [
        &["job", "show", "7"][..],
        &["job", "logs", "7"],
        &["job", "cancel", "7"],
        &["job", "retry", "7"],
        &["workflow", "show", "w"],
        &["workflow", "pause", "w"],
        &["workflow", "trigger", "w"],
        &["submit", "--workflow", "w"],
        &["node", "drain", "n"],
        &["node", "forget", "n"],
    ] {
        leasehold.run(args).refused(4);
    }
    // A job of another tenant is not there either.
    let id = leasehold.run(&["submit", "--handler", "h", "--namespace", "other"]).out;
    leasehold.run(&["job", "show", id.trim()]).refused(4);
    assert_eq!(leasehold.run(&["job", "show", id.trim(), "--namespace", "other"]).code, 0);
}

#[tokio::test]
async fn the_schema_is_checked_and_brought_up_to_date() {
    let database = TestDatabase::empty().await;
    let leasehold = Leasehold::on(database.url());
    assert!(leasehold.run(&["migrate", "--check"]).refused(1).contains("run `leasehold migrate`"));
    assert!(leasehold.run(&["jobs"]).refused(2).contains("run `leasehold migrate`"));
    assert_eq!(leasehold.run(&["migrate"]).code, 0);
    assert_eq!(leasehold.run(&["migrate", "--check"]).code, 0);
    assert_eq!(leasehold.run(&["migrate"]).code, 0, "a second time is no mistake");
    let client = database.client().await;
    client
        .batch_execute(
            "insert into leasehold.schema_history (version, name, applied_on, checksum) \
             values (9999, 'from_the_future', '2199-01-01T00:00:00Z', '0')",
        )
        .await
        .unwrap();
    for args in [&["migrate"][..], &["migrate", "--check"], &["jobs"]] {
        assert!(leasehold.run(args).refused(5).contains("newer"), "{args:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut command = Leasehold::bare().command(&["config"]);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!err.contains("panicked") && !err.contains("error"), "{err}");
}

#[tokio::test]
async fn doctor_finds_a_healthy_database_healthy_and_a_missing_one_missing() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let said = leasehold.run(&["doctor", "--json"]);
    let checks: Vec<serde_json::Value> =
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(checks.iter().any(|check| check["name"] == "database" && check["status"] == "ok"), "{checks:?}");
    // The tests' own server runs without fsync, and doctor is right to complain of that and of nothing else.
    let failed: Vec<_> =
        checks.iter().filter(|check| check["status"] == "fail").map(|check| &check["name"]).collect();
    assert_eq!(failed, ["durability"], "{checks:?}");
    assert_eq!(said.code, 1);
    let gone = Leasehold::on("postgres://u@127.0.0.1:1/x").run(&["doctor"]);
    assert_eq!(gone.code, 6, "{gone:?}");
    let empty = TestDatabase::empty().await;
    let unmigrated = Leasehold::on(empty.url()).run(&["doctor"]);
    assert!(unmigrated.code == 1 && unmigrated.out.contains("leasehold migrate"), "{unmigrated:?}");
}

#[tokio::test]
async fn an_audit_of_a_healthy_database_is_silent_and_of_a_broken_one_says_what_to_do() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    assert_eq!(leasehold.run(&["submit", "--handler", "work"]).code, 0);
    let clean = leasehold.run(&["doctor", "--audit"]);
    assert_eq!((clean.code, clean.out.as_str()), (0, ""), "{clean:?}");
    assert!(clean.err.contains("over 1 jobs") && clean.err.contains("0 findings"), "{clean:?}");
    // What is late by less than the patience is not stuck; with less patience it is.
    let stuck = leasehold.run(&["doctor", "--audit", "--patience", "1ms"]);
    assert_eq!((stuck.code, stuck.out.lines().count()), (1, 2), "{stuck:?}");
    assert!(stuck.out.contains("unserved") && stuck.out.contains("start a program"), "{stuck:?}");
    let client = database.client().await;
    client.batch_execute("delete from leasehold.ready").await.unwrap();
    let broken = leasehold.run(&["doctor", "--audit", "--json"]);
    assert_eq!((broken.code, broken.out.lines().count()), (1, 1), "{broken:?}");
    let finding: serde_json::Value = serde_json::from_str(&broken.out).unwrap();
    assert_eq!(
        (&finding["check"], &finding["sort"], &finding["invariant"], &finding["namespace"], &finding["job"]),
        (&"conservation".into(), &"violation".into(), &"L6".into(), &"default".into(), &1.into())
    );
    assert!(finding["remedy"].as_str().unwrap().contains("submit the work anew"), "{finding}");
    Leasehold::on("postgres://u@127.0.0.1:1/x").run(&["doctor", "--audit"]).refused(6);
    let empty = TestDatabase::empty().await;
    let line = Leasehold::on(empty.url()).run(&["doctor", "--audit"]).refused(2).to_owned();
    assert!(line.contains("leasehold migrate"), "{line}");
    Leasehold::on(database.url()).run(&["doctor", "--patience", "1s"]).refused(2);
}

#[tokio::test]
async fn why_is_one_sentence() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    assert_eq!(leasehold.run(&["submit", "--handler", "nobody-serves-this"]).code, 0);
    let why = leasehold.run(&["job", "why", "1"]);
    assert_eq!((why.code, why.out.lines().count()), (0, 1), "{why:?}");
    leasehold.run(&["job", "why", "7"]).refused(4);
}
