//! Test files against recipes: what they can say, and what is reported when it is not so.

use std::{fs, path::PathBuf};

use super::*;

/// A folder with a recipe `r.yaml` and a test file `t.yaml`, gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(recipe: &str, tests: &str) -> Self {
        let path = std::env::temp_dir().join(format!("leasehold-rehearsal-{}", uuid::Uuid::new_v4()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("r.yaml"), recipe).unwrap();
        fs::write(path.join("t.yaml"), format!("recipe: r.yaml\ntests:\n{tests}")).unwrap();
        Self(path)
    }

    /// The verdicts; each problem and mistake without the folder's name.
    fn run(&self, crash: bool) -> Result<Vec<Verdict>, Vec<String>> {
        let folder = format!("{}/", self.0.display());
        let suite = match Suite::read(&self.0.join("t.yaml")) {
            Ok(suite) => suite,
            Err(found) => {
                return Err(found.mistakes.iter().map(|m| m.to_string().replace(&folder, "")).collect());
            }
        };
        let mut verdicts: Vec<Verdict> = suite.run(crash).collect();
        for problem in verdicts.iter_mut().flat_map(|verdict| &mut verdict.problems) {
            problem.file = problem.file.replace(&folder, "");
            problem.message = problem.message.replace(&folder, "");
        }
        Ok(verdicts)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn problems(recipe: &str, tests: &str, crash: bool) -> Vec<String> {
    let verdicts = Folder::new(recipe, tests).run(crash).unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
    verdicts.iter().flat_map(|verdict| &verdict.problems).map(ToString::to_string).collect()
}

fn mistakes(recipe: &str, tests: &str) -> Vec<String> {
    Folder::new(recipe, tests).run(false).expect_err("it has mistakes")
}

/// Everything that a test can say, in both modes.
fn good(recipe: &str, tests: &str) -> Vec<Verdict> {
    let folder = Folder::new(recipe, tests);
    for crash in [false, true] {
        for verdict in folder.run(crash).unwrap_or_else(|mistakes| panic!("{mistakes:?}")) {
            assert!(verdict.is_good(), "{crash}: {}: {:?}", verdict.name, verdict.problems);
            assert_eq!(verdict.crashes.is_some(), crash);
        }
    }
    folder.run(false).unwrap()
}

#[test]
fn every_test_file_of_the_examples_is_good_in_both_modes() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/recipes"));
    let mut recipes = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let recipe = entry.unwrap().path();
        if recipe.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        recipes += 1;
        let tests = folder.join("tests").join(recipe.file_name().unwrap());
        let suite = Suite::read(&tests).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        for verdict in suite.run(true) {
            assert!(verdict.is_good(), "{}: {}: {:?}", verdict.file, verdict.name, verdict.problems);
        }
    }
    assert!(recipes >= 5, "{recipes} recipes");
}

#[test]
fn weeks_of_waiting_retries_and_timeouts_pass_in_no_time() {
    let recipe = r#"
id: r
sequence:
  - { id: nap, op: sleep, inputs: { for: 14days } }
  - id: fetch
    op: fetch
    inputs: { from: "${{ job.id }}" }
    retry: { max_attempts: 4, backoff: 1h, on: [SYSTEM] }
  - id: slow
    timeout: 1h
    op: work
    catch: { op: work, inputs: { was: "${{ error.code }}" } }
  - { id: long, op: work }
"#;
    let tests = r#"
  - name: all of it
    ops:
      - op: fetch
        path: fetch
        calls:
          - { inputs: { from: 1 }, takes: 5s, failure: { kind: SYSTEM, code: down } }
          - { takes: 5s, failure: { kind: SYSTEM, code: down } }
          - { takes: 5s, output: { n: 1.50 } }
      - { path: slow, takes: 2h }
      - { path: slow/catch, inputs: { was: timeout }, output: 1e400 }
      - { path: long, takes: 3days }
    expect:
      state: COMPLETED
      output: { nap: null, fetch: { n: 1.5 }, slow: 1E+400, long: null }
      tasks: [fetch!1, fetch!2, "fetch!3 on worker", slow/catch, long]
      handoffs: []
      took: 17days 3h 15s
  - name: a failure of another kind is not tried again
    ops:
      - { op: fetch, attempt: 1, failure: { code: refused, message: "no, thank you" } }
    expect:
      state: FAILED
      failure: { kind: USER, code: refused, message: thank }
      tasks: [fetch!1]
"#;
    let verdicts = good(recipe, tests);
    assert_eq!((verdicts[0].tasks, verdicts[0].handoffs), (5, 0));
}

#[test]
fn signals_come_at_their_times_and_children_end() {
    let recipe = r#"
id: r
sequence:
  - id: both
    parallel:
      - { id: word, op: wait_for_signal, inputs: { name: go } }
      - { id: mail, op: child_job, inputs: { handler: send, payload: { to: me } } }
      - { id: flow, op: child_job, inputs: { workflow: nightly } }
  - id: bad
    op: child_job
    inputs: { handler: fail }
    catch: { op: work, inputs: { code: "${{ error.code }}", said: "${{ signal.by }}" } }
"#;
    let tests = r#"
  - name: all come
    payload: { mine: [1, 2.0] }
    signals:
      - { at: 2h, name: go, data: { by: me } }
      - { at: 3h, name: go, key: again, taken: false }
      - { at: 90days, name: go, taken: false }
    children:
      - { path: both/mail, takes: 1h, output: { sent: true } }
      - { path: both/flow }
      - { path: bad, takes: 1m, state: FAILED, failure: { code: bounced } }
    ops:
      - { op: work, inputs: { code: bounced, said: me } }
    expect:
      state: COMPLETED
      output: { both: { word: { by: me }, mail: { sent: true }, flow: null }, bad: null }
      took: 2h 1m
      payload: { mine: [1, 2] }
  - name: a canceled child is a failure, and a signal from the beginning is there
    signals: [{ name: go, data: { by: you } }]
    children:
      - { path: both, state: COMPLETED }
      - { takes: 1s, state: CANCELED }
    expect: { state: FAILED, failure: { code: child_canceled } }
"#;
    let unused = problems(recipe, tests, false);
    // The second test has a fixture that names no child.
    assert_eq!(unused.len(), 1, "{unused:?}");
    assert!(unused[0].starts_with("t.yaml:24:9: this child is never started"), "{unused:?}");
    good(recipe, &tests.replace("      - { path: both, state: COMPLETED }\n", ""));
}

#[test]
fn workers_differ_in_what_they_have_and_in_their_ops() {
    let recipe = r#"
id: r
execution: { resources: { cpu: 1 } }
sequence:
  - { id: a, op: find }
  - { id: b, op: work, inputs: { key: "${{ secrets.KEY }}" } }
  - { id: c, op: find }
"#;
    let tests = r#"
  - name: an op asks for more, another is had by one worker only
    require: { cpu: 2 }
    secrets: { KEY: s3cret }
    workers:
      - { id: finder, allocation: { cpu: 2, memory: 1Gi }, ops: [find] }
      - { id: worker, allocation: { cpu: 4, memory: 8Gi } }
    ops:
      - { op: find, path: a, suspend_execution: { resources: { memory: 4Gi } }, output: 1 }
      - { op: work, inputs: { key: "***" }, output: the s3cret is masked }
      - { op: find, path: c }
    expect:
      state: COMPLETED
      output: { a: 1, b: the *** is masked, c: null }
      tasks: [a on finder, b on worker, c on worker]
      handoffs: [{ path: b, from: finder, needs: { cpu: 2, memory: 4Gi } }]
"#;
    good(recipe, tests);
}

#[test]
fn what_is_missing_or_never_used_is_told_with_its_place() {
    let recipe = "id: r\nsequence:\n  - { id: a, op: work }\n  - id: b\n    when: \"${{ sequence.a.outputs == 1 }}\"\n    op: work\n";
    let missing = problems(
        recipe,
        "  - name: t\n    ops: [{ path: a, output: 1 }]\n    expect: { state: COMPLETED }\n",
        false,
    );
    assert_eq!(
        missing,
        [r#"r.yaml:4:5: op work at b, attempt 1, has no fixture in t.yaml, test "t": add one under `ops`"#]
    );
    let unused = problems(
        recipe,
        "  - name: t\n    ops:\n      - { path: a }\n      - { path: b }\n      - op: other\n        calls: [{ output: 1 }]\n    signals: [{ name: go }]\n    expect: { state: COMPLETED }\n",
        false,
    );
    assert_eq!(
        unused,
        [
            "t.yaml:6:9: this fixture is never used",
            "t.yaml:7:9: this fixture is never used",
            "t.yaml:9:15: signal go was never taken",
        ]
    );
    let calls = problems(
        recipe,
        "  - name: t\n    ops:\n      - op: work\n        calls:\n          - { output: 2 }\n          - { output: 3 }\n    expect: { state: COMPLETED }\n",
        false,
    );
    assert_eq!(calls, ["t.yaml:8:13: call 2 of this fixture is never made: there were 1"]);
    let child = problems(
        "id: r\nsequence:\n  - { id: c, op: child_job, inputs: { handler: h } }\n",
        "  - name: t\n    expect: { state: COMPLETED }\n",
        false,
    );
    assert_eq!(child.len(), 1, "{child:?}");
    assert!(child[0].starts_with("r.yaml:3:5: the child job at c has no end"), "{child:?}");
}

#[test]
fn what_is_not_as_expected_is_told_with_both_sides() {
    let recipe = "id: r\nexecution: { resources: { memory: 2Gi } }\nsequence:\n  - { id: a, op: work, inputs: { n: 1 } }\n";
    let tests = r#"  - name: t
    workers:
      - { id: small, allocation: { memory: 1Gi } }
      - { id: big, allocation: { memory: 2Gi } }
    ops:
      - { op: work, inputs: { n: 2 }, takes: 3s, output: [1] }
    expect:
      state: FAILED
      output: [1, 2]
      failure: { kind: USER, code: x }
      tasks: [a on small]
      handoffs: [{ path: a, from: big }]
      took: 1s
      payload: { k: 1 }
"#;
    let told = problems(recipe, tests, false);
    assert_eq!(
        told,
        [r#"t.yaml:8:29: inputs of a: expected {"n":2}, found {"n":1}"#],
        "the answers to a call with other inputs say nothing"
    );
    let told = problems(recipe, &tests.replace("n: 2", "n: 1"), false);
    assert_eq!(
        told,
        [
            "t.yaml:10:14: state: expected FAILED, found COMPLETED",
            r#"t.yaml:11:15: output: expected [1,2], found {"a":[1]}"#,
            "t.yaml:12:16: failure: expected USER x, found none",
            "t.yaml:13:15: task 1: expected a on small, found a on big",
            "t.yaml:14:18: handoff 1: expected a from big, found a from small, needs memory=2Gi",
            "t.yaml:15:13: took: expected 1s, found 3s",
            r#"t.yaml:16:16: payload: expected {"k":1}, found {}"#,
        ]
    );
    let waits = problems(
        recipe,
        "  - name: t\n    workers: [{ id: small, allocation: { memory: 1Gi } }]\n    expect: { state: COMPLETED, tasks: [a] }\n",
        false,
    );
    assert_eq!(
        waits,
        [
            "t.yaml:5:22: state: expected COMPLETED, found WAITING: no worker of the test takes it: op work needs memory=2Gi",
            "t.yaml:5:41: task 1: expected a, found no more tasks",
        ]
    );
}

#[test]
fn a_test_file_is_checked_before_anything_is_played() {
    let recipe = "id: r\ninputs: { n: { type: integer } }\nsequence:\n  - { id: a, op: work }\n";
    let tests = r#"  - name: t
    inputs: { n: text }
    worker: []
    workers:
      - { id: w, allocation: { memory: 5 apples } }
      - { id: w }
    ops:
      - { output: 1 }
      - { op: work, output: 1, failure: { code: c } }
      - { op: work, output: 1, calls: [{}] }
      - { path: a//b, suspend_execution: { cpu: 1 } }
    children: [{ state: FAILED }]
    expect: { state: DONE, handoffs: 1 }
"#;
    let told = mistakes(recipe, tests);
    assert_eq!(
        told,
        [
            "t.yaml:5:5: unknown key `worker` in a test; is `workers` meant?",
            "t.yaml:15:22: `state` must be one of `COMPLETED`, `FAILED`, `CANCELED`, `WAITING`",
        ]
    );
    let tests = tests.replace("    worker: []\n", "").replace("DONE", "WAITING");
    let told = mistakes(recipe, &tests);
    let places: Vec<&str> = told.iter().map(|line| line.split(':').nth(1).unwrap()).collect();
    assert_eq!(places, ["4", "6", "7", "9", "10", "11", "12", "12", "13", "14"], "{told:#?}");
    assert!(told[0].contains("\"n\" must be a whole number"), "{told:?}");
    // The recipe's own mistakes are told of the recipe.
    let told = mistakes("id: r\nop: work\nsequence: []\n", "  - name: t\n    expect: { state: COMPLETED }\n");
    assert!(told[0].starts_with("r.yaml:"), "{told:?}");
}

/// E1: with a crash behind each event, what is recorded is recorded once, and the end is the same.
#[test]
fn a_crash_behind_every_event_changes_nothing() {
    let recipe = r#"
id: r
sequence:
  - id: loop
    state:
      initial: poll
      states:
        - id: poll
          op: work
          inputs: { n: "${{ transition.payload == null ? 1 : transition.payload + 1 }}" }
          transitions:
            - { to: rest, when: "${{ states.poll.outputs >= 3 }}" }
            - { to: poll, payload: "${{ states.poll.outputs }}" }
        - { id: rest, op: sleep, inputs: { for: 1h } }
  - id: again
    retry: { max_attempts: 3, backoff: 10m }
    timeout: 2h
    sequence:
      - { id: a, op: work }
      - { id: b, op: work }
  - id: both
    parallel:
      - { id: left, sequence: [{ id: a, op: work }, { id: b, op: work }] }
      - { id: right, op: work }
      - { id: word, op: wait_for_signal, inputs: { name: go } }
"#;
    let tests = r#"
  - name: all
    signals: [{ at: 90m, name: go, data: 7 }]
    ops:
      - { path: "loop/poll", calls: [{ output: 1 }, { output: 2 }, { output: 3 }] }
      - { path: again/a, takes: 1m, output: { big: 123456789012345678901234567890.10 } }
      - { path: again!1/b, failure: { code: no } }
      - { path: again!2/b, takes: 1s }
      - { path: both/left/a, takes: 20m, suspend_execution: { resources: { cpu: 1 } } }
      - { path: both/left/b, takes: 5m }
      - { path: both/right, takes: 20m }
    workers:
      - { id: none }
      - { id: one, allocation: { cpu: 1 } }
    expect: { state: COMPLETED, took: 1h 37m 1s }
"#;
    let verdicts = good(recipe, tests);
    assert!(verdicts[0].tasks >= 10, "{verdicts:?}");
    let crashed = Folder::new(recipe, tests).run(true).unwrap();
    assert!(crashed[0].crashes.is_some_and(|crashes| crashes > 15), "{crashed:?}");
}

/// A task that its timeout cut leaves no record of its own: the timer's end is the record, whose ordinal decides, also
/// when the worker died in between.
#[test]
fn a_task_that_was_cut_by_a_timeout_has_no_record_and_replays_as_cut() {
    let recipe = r#"
id: r
sequence:
  - id: slow
    timeout: 10m
    retry: { max_attempts: 2, backoff: 1m }
    parallel:
      - { id: quick, op: work }
      - { id: long, op: work }
  - { id: after, op: work, inputs: { ends: "${{ sequence.slow.outputs.long }}" } }
"#;
    let tests = r#"
  - name: the second attempt is in time
    ops:
      - { path: slow/quick, takes: 1m, output: 1 }
      - { path: slow!1/long, takes: 1h, output: never }
      - { path: slow!2/long, takes: 9m, output: ends }
      - { path: after, inputs: { ends: ends } }
    expect:
      state: COMPLETED
      tasks: [slow!1/quick, slow!2/quick, slow!2/long, after]
      took: 20m
"#;
    good(recipe, tests);
}

/// A secret that no worker has is a failure of the task, which `retry` and `catch` see as any other.
#[test]
fn a_missing_secret_is_a_failure_of_its_task() {
    let recipe = r#"
id: r
sequence:
  - id: a
    op: work
    inputs: { key: "${{ secrets.NONE }}" }
    catch: { op: work, inputs: { code: "${{ error.code }}", kind: "${{ error.kind }}" } }
"#;
    let tests = r#"
  - name: it is caught
    ops: [{ path: a/catch, inputs: { code: missing_secret, kind: SYSTEM } }]
    expect: { state: COMPLETED, tasks: [a, a/catch] }
"#;
    good(recipe, tests);
}

/// What differs between two runs is found in the first record that differs, and else in the end.
#[test]
fn a_difference_is_told_by_the_first_record_that_differs() {
    let recipe = "id: r\nsequence:\n  - { id: a, op: work }\n  - { id: b, op: work, inputs: { n: \"${{ sequence.a.outputs }}\" } }\n";
    let tests =
        "  - name: t\n    ops: [{ path: a, output: 1 }, { path: b }]\n    expect: { state: COMPLETED }\n";
    let played = |tests: &str| {
        let folder = Folder::new(recipe, tests);
        let suite = Suite::read(&folder.0.join("t.yaml")).unwrap();
        play(&suite, &suite.tests[0], Crash::BehindEach)
    };
    let one = played(tests);
    assert_eq!(difference(&one, &played(tests)), None);
    let other = difference(&one, &played(&tests.replace("output: 1", "output: 2"))).unwrap();
    assert!(other.starts_with("at a: recorded was 1 of op work") && other.contains("and 2 of"), "{other}");
    let failed =
        difference(&one, &played(&tests.replace("{ path: b }", "{ path: b, failure: { code: x } }")));
    assert!(failed.as_ref().is_some_and(|told| told.starts_with("at b: ")), "{failed:?}");
    let mut ended = played(tests);
    ended.output = Some("7".to_owned());
    let ended = difference(&one, &ended).unwrap();
    assert!(ended.starts_with("the job ended as COMPLETED, output {"), "{ended}");
    let mut more = played(tests);
    more.events.pop();
    assert!(difference(&one, &more).unwrap().ends_with("and nothing with it"));
}

#[test]
fn spans_are_told_in_days_and_what_is_below() {
    for (millis, told) in
        [(0, "0s"), (1, "1ms"), (61_500, "1m 1s 500ms"), (44 * 86_400_000 + 3_600_000, "44days 1h")]
    {
        assert_eq!(span(Duration::from_millis(millis)), told);
    }
}

#[test]
fn the_appendix_of_the_guide_is_the_grammar_of_test_files() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/recipes.md");
    let guide = fs::read_to_string(path).expect("docs/recipes.md");
    let (begin, end) = ("<!-- test grammar: begin -->\n\n", "<!-- test grammar: end -->");
    let (before, rest) = guide.split_once(begin).expect("the mark of its beginning");
    let (appendix, after) = rest.split_once(end).expect("the mark of its end");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path, format!("{before}{begin}{}{end}{after}", grammar())).expect("written");
    } else {
        assert_eq!(appendix, grammar(), "run this test with UPDATE=1 and look at the difference");
    }
}
