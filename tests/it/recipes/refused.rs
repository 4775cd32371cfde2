//! Recipes that are made to bring a parser down: refused, whoever sends them, and the process lives.

use std::collections::BTreeMap;

use leasehold::recipe::bundle::Bundle;
use leasehold_actors::{
    domain::{JobState, RawJson},
    work::WorkOutcome,
};

use super::bed::Bed;
use crate::cli::leasehold::Leasehold;

/// Each recipe, and a word of its refusal.
fn bombs() -> Vec<(&'static str, String, &'static str)> {
    let deep = 10_000;
    let mut aliases = "id: r\nop: work\nwith:\n  a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
    for n in 1..9 {
        let again = format!("*a{}, ", n - 1).repeat(10);
        aliases += &format!("  a{n}: &a{n} [{}]\n", again.trim_end_matches(", "));
    }
    vec![
        (
            "parentheses",
            format!("id: r\nop: work\nwhen: ${{{{ {}1{} }}}}\n", "(".repeat(deep), ")".repeat(deep)),
            "1024",
        ),
        (
            "nested nodes",
            format!(
                "id: r\nsequence: [{}{{id: z, op: work}}{}]\n",
                "{id: a, sequence: [".repeat(deep),
                "]}".repeat(deep)
            ),
            "nested",
        ),
        (
            "nested values",
            format!("id: r\nop: work\nwith: {{ a: {}1{} }}\n", "[".repeat(deep), "]".repeat(deep)),
            "nested",
        ),
        ("alias bomb", aliases, "50000"),
    ]
}

#[test]
fn a_recipe_that_is_made_to_bring_the_parser_down_is_refused_by_a_process_that_lives() {
    let folder = std::env::temp_dir().join(format!("lh-bombs-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    for (name, text, says) in bombs() {
        let file = folder.join(format!("{}.yaml", name.replace(' ', "-")));
        std::fs::write(&file, text).unwrap();
        let said = Leasehold::bare().run(&["recipe", "check", file.to_str().unwrap()]);
        // A process that is killed by a signal has no exit code.
        assert_eq!(said.code, 2, "{name}: {said:?}");
        assert!(said.out.contains(says), "{name}: {said:?}");
        assert!(said.out.len() < 2000, "{name}: {} bytes are said", said.out.len());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

pub async fn a_recipe_that_no_client_would_submit_fails_its_job_and_the_worker_goes_on(bed: Bed) {
    let worker = bed.worker("w", "");
    for (name, text, _) in bombs() {
        let bundle = Bundle::new("r.yaml", BTreeMap::from([("r.yaml".to_owned(), text)]));
        let job = bed
            .submit_with("id: r\nop: work\n", |spec, _| {
                spec.digest = bundle.digest();
                spec.bundle = RawJson::new(bundle.to_json()).unwrap();
            })
            .await;
        let turn = bed.turn(&worker).await.expect("it is queued");
        let WorkOutcome::FailedForGood(failure) = &turn.outcome else { panic!("{name}: {turn:?}") };
        assert_eq!(failure.code, "bad_definition", "{name}: {failure:?}");
        assert_eq!(bed.view(job).await.state, JobState::Failed);
    }
    let good = bed.submit("id: r\nop: work\n").await;
    assert_eq!(bed.finish(&[&worker], good).await.state, JobState::Completed);
    assert_eq!(bed.runs().len(), 1);
}
