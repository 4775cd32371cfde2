//! `leasehold recipe`: recipes are checked, templates evaluated and the schema printed, without a database.

use std::{fs, path::PathBuf};

use leasehold::recipe::template::Trial;

use super::leasehold::Leasehold;

/// A folder of its own, gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("leasehold-recipes-{}", uuid::Uuid::new_v4()));
        for (name, text) in files {
            let file = path.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(serde::Deserialize)]
struct Corpus {
    values: String,
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    of: String,
    gives: Option<String>,
    error: Option<String>,
}

/// RP-11, RP-13
#[test]
fn the_corpus_of_templates_gives_the_same_bytes_in_every_process() {
    let corpus: Corpus = serde_saphyr::from_str(include_str!("templates.yaml")).unwrap();
    let trial = Trial::new(&corpus.values).unwrap();
    let mut wrong = Vec::new();
    for case in &corpus.cases {
        let found = trial.evaluate(&case.of);
        let (value, code) = match &found {
            Ok(text) => (Some(text.as_ref()), None),
            Err(error) => (None, Some(error.code())),
        };
        if value != case.gives.as_deref() || code != case.error.as_deref() {
            wrong
                .push(format!("{}\n  gives  {found:?}\n  not    {:?} {:?}", case.of, case.gives, case.error));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), corpus.cases.len(), wrong.join("\n"));

    let folder = Folder::with(&[("values.json", &corpus.values)]);
    let values = folder.path("values.json");
    let mut args = vec!["recipe", "eval", "--values", &values, "--"];
    args.extend(corpus.cases.iter().map(|case| case.of.as_str()));
    let first = Leasehold::bare().run(&args);
    let second = Leasehold::bare().run(&args);
    assert_eq!(first.code, 1, "some have no value: {first:?}");
    assert_eq!(first.out, second.out, "another process, another hasher, the same bytes");
    let lines: Vec<&str> = first.out.lines().collect();
    assert_eq!(lines.len(), corpus.cases.len());
    for (case, line) in corpus.cases.iter().zip(lines) {
        match &case.gives {
            Some(value) => assert_eq!(line, value, "{}", case.of),
            None => {
                let told: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(told["error"].as_str(), case.error.as_deref(), "{}", case.of);
            }
        }
    }
}

#[test]
fn an_argument_that_is_no_text_is_a_mistake_and_no_crash() {
    use std::os::unix::ffi::OsStrExt as _;
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    let mut command = Leasehold::bare().command(&["recipe", "eval", "--values", "none.json"]);
    let said = crate::cli::leasehold::Said::of(command.arg(odd).output().unwrap());
    assert!(
        said.refused(2).contains("UTF-8") && said.err.contains("leasehold recipe eval --help"),
        "{said:?}"
    );
}

#[test]
fn a_good_recipe_is_checked_with_all_that_it_includes() {
    let folder = Folder::with(&[
        ("main.yaml", "id: main\nsequence:\n  - {id: one, include: lib/part.yaml, inputs: {n: 1}}\n"),
        ("lib/part.yaml", "id: part\ninputs: {n: {type: integer}}\nop: a\nwith: {n: \"${{ inputs.n }}\"}\n"),
    ]);
    let said =
        Leasehold::bare().run(&["recipe", "check", &folder.path("main.yaml"), &folder.path("lib/part.yaml")]);
    assert_eq!(said.code, 0, "{said:?}");
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(
        lines[0].ends_with("main.yaml: ok, 3 nodes; not built in, a worker must bring: a")
            && lines[1].ends_with("part.yaml: ok, 1 node; not built in, a worker must bring: a"),
        "{said:?}"
    );
    let told = Leasehold::bare().run(&["recipe", "check", "--json", &folder.path("main.yaml")]).json();
    assert_eq!(
        (told["ok"].as_bool(), told["nodes"].as_u64(), told["id"].as_str()),
        (Some(true), Some(3), Some("main"))
    );
    assert_eq!(told["ops_to_bring"], serde_json::json!(["a"]));
    let digest = told["digest"].as_str().unwrap().to_owned();
    fs::write(folder.path("lib/part.yaml"), "id: part\ninputs: {n: {type: integer}}\nop: b\n").unwrap();
    let told = Leasehold::bare().run(&["recipe", "check", "--json", &folder.path("main.yaml")]).json();
    assert_ne!(told["digest"].as_str().unwrap(), digest, "the digest is that of all files");
}

#[test]
fn mistakes_are_told_with_file_line_and_column_and_exit_code_2() {
    let folder = Folder::with(&[
        ("main.yaml", "id: main\nsequence:\n  - {id: one, include: lib/part.yaml}\n"),
        ("lib/part.yaml", "id: part\nop: a\ntimeout: soon\nwit: {}\n"),
        ("good.yaml", "id: good\nop: sleep\nwith: { for: 1s }\n"),
    ]);
    let (main, good) = (folder.path("main.yaml"), folder.path("good.yaml"));
    let said = Leasehold::bare().run(&["recipe", "check", &main, &good]);
    assert_eq!(said.code, 2, "{said:?}");
    let part = folder.path("lib/part.yaml");
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(lines[0].starts_with(&format!("{part}:3:10: ")), "{said:?}");
    assert!(lines[1].starts_with(&format!("{part}:4:1: unknown key `wit`")), "{said:?}");
    assert!(lines[2].ends_with("good.yaml: ok, 1 node"), "{said:?}");
    let said = Leasehold::bare().run(&["recipe", "check", "--json", &main]);
    assert_eq!(said.code, 2);
    let told: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(told["mistakes"][0]["line"], 3);
    assert_eq!(told["mistakes"][0]["column"], 10);
    let missing = Leasehold::bare().run(&["recipe", "check", &folder.path("none.yaml")]);
    assert_eq!(missing.code, 4);
    assert!(missing.out.contains("none.yaml: there is no such file"), "{missing:?}");
}

/// Everywhere the same: 4 for a file that the command line names and that is not there, 2 for one with a mistake in it,
/// and a file that is missing from a recipe is a mistake of that recipe.
#[test]
fn a_file_that_is_not_there_is_exit_code_4_in_every_command() {
    let folder = Folder::with(&[
        ("main.yaml", "id: main\nop: a\n"),
        ("part.yaml", "id: main\nsequence:\n  - { id: a, include: none.yaml }\n"),
    ]);
    let (none, main, part) = (folder.path("none.yaml"), folder.path("main.yaml"), folder.path("part.yaml"));
    let (none, at_none) = (none.as_str(), format!("@{none}"));
    let leasehold = Leasehold::on("postgres://nobody@127.0.0.1:1/nothing");
    for args in [
        &["recipe", "check", none][..],
        &["recipe", "check", &main, none],
        &["recipe", "check", "--json", none],
        &["recipe", "test", none],
        &["recipe", "test", "--json", none],
        &["recipe", "verify", none, "--histories", "/"],
        &["recipe", "verify", &main, "--histories", none],
        &["recipe", "eval", "--values", none, "x"],
        &["submit", "--recipe", none],
        &["run", "--recipe", none],
        &["submit", "--image", "x", "--env-file", none],
        &["submit", "--handler", "x", "--payload", &at_none],
        &["workflow", "apply", none],
        &["schema", "register", "--route", "recipe", "--input", none],
    ] {
        let said = leasehold.run(args);
        assert_eq!(said.code, 4, "{args:?}: {said:?}");
        assert!(said.out.contains("none.yaml") || said.err.contains("none.yaml"), "{args:?}: {said:?}");
    }
    for args in
        [&["recipe", "check", &part][..], &["submit", "--recipe", &part], &["recipe", "check", none, &part]]
    {
        assert_eq!(leasehold.run(args).code, 2, "{args:?}");
    }
}

#[test]
fn what_keys_there_are_is_said_once_for_a_map() {
    let folder = Folder::with(&[(
        "many.yaml",
        "id: many\nquux: 1\nsequence:\n  - { id: a, op: b, corge: 1, grault: 2, retri: { max_attempts: 2 } }\nwaldo: 2\nfred: 3\n",
    )]);
    let said = Leasehold::bare().run(&["recipe", "check", &folder.path("many.yaml")]);
    assert_eq!(said.code, 2, "{said:?}");
    let told: Vec<&str> =
        said.out.lines().map(|line| line.split_once("many.yaml:").expect("with its place").1).collect();
    assert!(told[0].starts_with("2:1: unknown key `quux` in a recipe; there are `id`, "), "{said:?}");
    assert!(told[1].starts_with("4:21: unknown key `corge` in a node; there are `id`, "), "{said:?}");
    assert_eq!(
        told[2..],
        [
            "4:31: unknown key `grault` in a node",
            "4:42: unknown key `retri` in a node; is `retry` meant?",
            "5:1: unknown key `waldo` in a recipe",
            "6:1: unknown key `fred` in a recipe",
        ]
    );
}

#[test]
fn an_include_never_leaves_the_folder_of_the_root_recipe() {
    let outside = Folder::with(&[("secret.yaml", "id: secret\nop: a\n")]);
    let folder = Folder::with(&[
        ("main.yaml", "id: a\ninclude: link.yaml\n"),
        ("up.yaml", "id: a\ninclude: ../secret.yaml\n"),
        ("through.yaml", "id: a\ninclude: dir/secret.yaml\n"),
        ("absolute.yaml", "id: a\ninclude: /etc/passwd\n"),
        ("folder.yaml", "id: a\ninclude: lib\n"),
        ("lib/x.yaml", "id: x\nop: a\n"),
    ]);
    std::os::unix::fs::symlink(outside.path("secret.yaml"), folder.path("link.yaml")).unwrap();
    std::os::unix::fs::symlink(&outside.0, folder.path("dir")).unwrap();
    for (file, says) in [
        ("main.yaml", "symbolic link"),
        ("up.yaml", "outside the root recipe's folder"),
        ("through.yaml", "symbolic link"),
        ("absolute.yaml", "relative"),
        ("folder.yaml", "not a file"),
    ] {
        let said = Leasehold::bare().run(&["recipe", "check", &folder.path(file)]);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.out.contains(&format!("{file}:2:10: ")) && said.out.contains(says), "{file}: {said:?}");
    }
}

#[test]
fn the_schema_is_printed_as_json() {
    let schema = Leasehold::bare().run(&["recipe", "schema"]).json();
    assert_eq!(schema["$ref"], "#/$defs/recipe");
    assert_eq!(schema["$defs"]["recipe"]["properties"]["version"]["const"], 1);
}

#[test]
fn the_tests_of_a_recipe_pass_fail_or_cannot_be_used_and_say_where() {
    let tests = "recipe: r.yaml\ntests:\n  - name: a year passes\n    ops: [{ op: work, output: 1.50 }]\n    expect:\n      state: COMPLETED\n      output: { nap: null, a: 1.5 }\n      took: 300days\n";
    let folder = Folder::with(&[
        (
            "r.yaml",
            "id: r\nsequence:\n  - { id: nap, op: sleep, inputs: { for: 300days } }\n  - { id: a, op: work }\n",
        ),
        ("good.yaml", tests),
        ("wrong.yaml", &tests.replace("a: 1.5", "a: 2")),
        ("bad.yaml", &tests.replace("output: 1.50", "outptu: 1")),
        ("lost.yaml", &tests.replace("recipe: r", "recipe: s")),
    ]);
    let run = |file: &str, more: &[&str]| {
        Leasehold::bare().run(&[&["recipe", "test", folder.path(file).as_str()], more].concat())
    };
    let said = run("good.yaml", &["--crash"]);
    assert_eq!(said.code, 0, "{said:?}");
    let good = folder.path("good.yaml");
    assert_eq!(said.out, format!("ok   {good}: a year passes (1 task, 300days, 3 crashes)\n1 ok\n"));
    let told = run("good.yaml", &["--json"]).json();
    assert_eq!(
        (told["ok"].as_bool(), told["tasks"].as_u64(), told["took_ms"].as_u64()),
        (Some(true), Some(1), Some(300 * 86_400_000))
    );

    let wrong = folder.path("wrong.yaml");
    let said = run("wrong.yaml", &[&good]);
    assert_eq!(said.code, 1, "{said:?}");
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines[0], format!("FAIL {wrong}: a year passes (1 task, 300days)"));
    assert_eq!(
        lines[1],
        format!(r#"     {wrong}:7:15: output: expected {{"a":2,"nap":null}}, found {{"a":1.5,"nap":null}}"#)
    );
    assert_eq!(lines[3], "1 ok, 1 failed");
    let told = run("wrong.yaml", &["--json"]);
    let told: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!((told["problems"][0]["line"].as_u64(), told["ok"].as_bool()), (Some(7), Some(false)));

    let said = run("bad.yaml", &[]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.out.contains("bad.yaml:4:23: unknown key `outptu` in a fixture"), "{said:?}");
    let said = run("lost.yaml", &[]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.out.contains("lost.yaml:1:9: there is no recipe"), "{said:?}");
}

#[test]
fn the_tests_of_the_examples_pass_as_the_guide_says() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/recipes/tests");
    let files: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().display().to_string()).collect();
    let mut args = vec!["recipe", "test", "--crash"];
    args.extend(files.iter().map(String::as_str));
    let said = Leasehold::bare().run(&args);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.lines().count() > 8, "{said:?}");
}
