//! `leasehold workflow …`.

use std::io::Write as _;

use super::leasehold::{Leasehold, Said, wait};
use crate::support::database::TestDatabase;

const NIGHTLY: &str = "name: nightly\ncontainer:\n  image: busybox\n  command: [echo, report]\n  memory: 64Mi\noverlap: serial\n";

fn apply(leasehold: &Leasehold, text: &str) -> Said {
    let mut command = leasehold.command(&["workflow", "apply", "-"]);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    Said::of(wait(child, std::time::Duration::from_secs(60), &["workflow", "apply", "-"]))
}

#[tokio::test]
async fn a_workflow_lives_from_apply_to_terminate() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    assert_eq!(apply(&leasehold, NIGHTLY).out, "nightly created, generation 1\n");
    assert_eq!(apply(&leasehold, NIGHTLY).out, "nightly unchanged, generation 1\n");
    assert_eq!(leasehold.run(&["workflow", "trigger", "nightly"]).out, "1\n");
    let job = leasehold.run(&["job", "show", "1", "--json"]).json();
    assert_eq!((job["workflow"].as_str(), job["state"].as_str()), (Some("nightly"), Some("QUEUED")));
    assert_eq!(job["definition"]["memory_bytes"], 64 << 20);

    assert_eq!(leasehold.run(&["workflow", "pause", "nightly"]).code, 0);
    let listed = leasehold.run(&["workflow", "list", "--json"]).json_lines();
    for key in ["name", "state", "generation", "kind", "overlap"] {
        assert!(listed[0].get(key).is_some(), "{key} is missing in {}", listed[0]);
    }
    assert_eq!(listed[0]["state"], "PAUSED");
    assert_eq!(leasehold.run(&["workflow", "resume", "nightly"]).code, 0);
    let changed = apply(&leasehold, &NIGHTLY.replace("64Mi", "128Mi"));
    assert_eq!(changed.code, 0, "{changed:?}");
    assert_eq!(leasehold.run(&["workflow", "terminate", "nightly"]).code, 0);
    assert!(leasehold.run(&["workflow", "trigger", "nightly"]).refused(5).contains("terminated"));
    assert!(apply(&leasehold, NIGHTLY).refused(5).contains("terminated"));
    let shown = leasehold.run(&["workflow", "show", "nightly", "--json"]).json();
    assert!(shown["history"].as_array().unwrap().len() >= 3, "{shown}");
    assert_eq!(leasehold.run(&["workflow", "show", "nightly"]).code, 0);
}

#[tokio::test]
async fn a_bad_definition_is_refused_with_its_place_and_nothing_is_written() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    for (text, word) in [
        ("name: x\ncontainer:\n  image: busybox\n  imgae: y\n", "line 4"),
        ("name: x\ncontainer:\n  image: busybox\n  memory: 500K\n", "500K"),
        ("name: x\nname: y\nhandler: h\n", "name"),
        ("name: [\n", "line"),
        ("", "no document"),
        ("name: adhoc\nhandler: h\n", "adhoc"),
        ("name: \"a\\e[2J\"\nhandler: h\n", "control character"),
    ] {
        let refused = apply(&leasehold, text);
        assert!([2, 5].contains(&refused.code), "{text:?}: {refused:?}");
        assert_eq!(refused.err.lines().count(), 1, "{refused:?}");
        assert!(refused.err.contains(word), "{text:?}: {refused:?}");
        assert!(!refused.err.trim_end().contains(char::is_control), "{refused:?}");
    }
    assert_eq!(leasehold.run(&["workflow", "list", "--json"]).json_lines().len(), 0);
    assert!(leasehold.run(&["workflow", "apply", "/no/such.yaml"]).refused(4).contains("/no/such.yaml"));
}
