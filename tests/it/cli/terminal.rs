//! AP-09: what a job says or is called does not steer the terminal of whoever looks at it.

use serde_json::json;

use super::leasehold::Leasehold;
use crate::support::database::TestDatabase;

/// Title-set, clear-screen, clipboard, cursor-up, bell, C1.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}]52;c;cm0=\u{7}\u{1b}[1A\u{9b}31m";

/// Colours of our own tables are the only sequences that a terminal may get.
fn without_colours(text: &str) -> String {
    regex::Regex::new("\u{1b}\\[[0-9;]*m").unwrap().replace_all(text, "").into_owned()
}

fn assert_harmless(text: &str) {
    let left = without_colours(text);
    let bad: Vec<char> =
        left.chars().filter(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')).collect();
    assert!(bad.is_empty(), "{bad:?} in {text:?}");
}

/// A job with hostile words in every place that the database lets them stand in.
async fn hostile_job(database: &TestDatabase, leasehold: &Leasehold) {
    assert_eq!(leasehold.run(&["submit", "--handler", "h", "--payload", "\"\\u001b[2J\\u009b\""]).code, 0);
    let client = database.client().await;
    client
        .execute(
            "insert into leasehold.job_logs (job_id, epoch, stream, first_byte, namespace, data) \
                  values (1, 1, 1, 0, 'default', convert_to($1, 'UTF8') || '\\xff'::bytea), \
                         (1, 1, 2, 0, 'default', convert_to($1, 'UTF8')), \
                         (1, 1, 3, 0, 'default', convert_to($1, 'UTF8'))",
            &[&HOSTILE],
        )
        .await
        .unwrap();
    client.execute("update leasehold.ready set route = $1 where job_id = 1", &[&HOSTILE]).await.unwrap();
    client
        .execute("update leasehold.jobs set route = $1, workflow = $1 where job_id = 1", &[&HOSTILE])
        .await
        .unwrap();
}

/// AP-09
#[tokio::test]
async fn hostile_names_and_output_are_neutralized_on_a_terminal() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    hostile_job(&database, &leasehold).await;
    for args in [
        &["jobs"][..],
        &["jobs", "--json"],
        &["job", "show", "1"],
        &["job", "show", "1", "--json"],
        &["job", "logs", "1"],
        &["job", "logs", "1", "--json"],
        &["job", "logs", "1", "--stream", "system"],
    ] {
        let said = leasehold.run_on_terminal(args);
        assert_eq!(said.code, 0, "{args:?}: {said:?}");
        assert!(!said.out.is_empty(), "{args:?} said nothing");
        assert_harmless(&said.out);
    }
    let shown = leasehold.run_on_terminal(&["job", "logs", "1", "--stream", "stdout"]);
    assert!(shown.out.contains("\\x1b]0;owned\\x07"), "{shown:?}");
    let raw = leasehold.run_on_terminal(&["job", "logs", "1", "--raw", "--stream", "stdout"]);
    assert!(raw.out.contains('\u{7}'), "raw is raw: {raw:?}");
}

/// AP-09
#[tokio::test]
async fn output_goes_byte_for_byte_into_a_pipe_and_each_stream_to_its_own() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    hostile_job(&database, &leasehold).await;
    let mut command = leasehold.command(&["job", "logs", "1"]);
    let output = command.output().unwrap();
    let mut expected = HOSTILE.as_bytes().to_vec();
    assert!(output.stderr.starts_with(&expected), "stderr is the job's, then our remark");
    expected.push(0xff);
    assert_eq!(output.stdout, expected);
    assert_harmless(&leasehold.run(&["jobs"]).out);
}

/// AP-09: nor does what the steps of a recipe give back, or say when they fail.
#[tokio::test]
async fn hostile_steps_of_a_recipe_are_neutralized_on_a_terminal() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    let folder = std::env::temp_dir().join(format!("lh-terminal-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        // A C1 character is none that YAML takes as it is.
        std::fs::write(&path, text.replace('\u{9b}', "\\u009b")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // JSON may have a C1 character as it is, and the others escaped.
    let output = "{\"k\\u001b[2J\u{9b}2J\":\"\\u001b]0;owned\\u0007\u{9b}31m\"}";
    let failing = "printf '\\033]0;owned\\007\\033[2J\\302\\2332J' >&2; exit 3";
    let recipe = json!({ "id": "r", "description": HOSTILE, "sequence": [
        { "id": "a", "op": "command", "inputs": { "argv": ["printf", "%s", output] } },
        { "id": "b", "op": "command", "inputs": { "argv": ["sh", "-c", failing] },
          "catch": { "op": "command", "inputs": { "argv": ["true"] } } },
        { "id": "w", "op": "wait_for_signal", "inputs": { "name": "go" } },
    ] });
    let recipe = file("r.yaml", &recipe.to_string());
    let payload = "{\"\u{9b}2J\":\"\\u001b[2J\"}";
    let said = leasehold.run(&["submit", "--recipe", &recipe, "--payload", payload]);
    assert_eq!(said.code, 0, "{said:?}");
    let lease = folder.join("lease");
    let lease = lease.to_str().unwrap();
    assert_eq!(leasehold.run(&["lease", "acquire", "--lease-file", lease]).code, 0);
    let run = ["run-with-lease", "--job", "1", "--lease-file", lease, "--no-containers", "--allow-commands"];
    assert_eq!(leasehold.run(&run).json()["outcome"], "waiting");
    let bad = file("bad.yaml", &json!({ "id": "r", HOSTILE: 1, "op": HOSTILE }).to_string());
    let tests = json!({ "recipe": "r.yaml", "tests": [{
        "name": HOSTILE, "ops": [{ "op": "command", "output": HOSTILE }],
        "expect": { "state": "COMPLETED", "output": HOSTILE },
    }] });
    let tests = file("tests.yaml", &tests.to_string());
    for (args, code, has) in [
        (&["job", "results", "1"][..], 0, "owned"),
        (&["job", "results", "1", "--json"], 0, "owned"),
        (&["job", "show", "1"], 0, "owned"),
        (&["job", "show", "1", "--json"], 0, "owned"),
        (&["job", "replay", "1"], 0, "owned"),
        (&["job", "why", "1"], 0, "signal"),
        (&["job", "payload", "get", "1"], 0, "2J"),
        (&["jobs"], 0, "PENDING"),
        (&["recipe", "check", &bad], 2, "owned"),
        (&["recipe", "test", &tests], 1, "owned"),
    ] {
        let said = leasehold.run_on_terminal(args);
        assert_eq!(said.code, code, "{args:?}: {said:?}");
        assert!(said.out.contains(has), "{args:?}: {said:?}");
        assert_harmless(&said.out);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
