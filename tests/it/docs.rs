//! What documentation says of the tests is true.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Every Rust file below a folder, with its text.
fn sources(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.insert(path, text);
        }
    }
}

#[test]
fn every_test_that_the_page_of_faults_names_exists() {
    let mut files = BTreeMap::new();
    for folder in ["actors/src", "src", "tests/it"] {
        sources(&Path::new(ROOT).join(folder), &mut files);
    }
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/faults.md")).unwrap();
    let mut named = 0;
    let mut missing = Vec::new();
    // Every second piece stands between backticks.
    for name in page.split('`').skip(1).step_by(2).filter(|piece| piece.contains("::")) {
        named += 1;
        let segments: Vec<&str> = name.split("::").collect();
        let (test, modules) = segments.split_last().unwrap();
        // A unit test's module `tests` may be a file, a folder, or part of its parent's file.
        let module = modules.iter().rfind(|module| **module != "tests").unwrap();
        let declared = [format!("fn {test}("), format!("fn {test}<")];
        let found = files.iter().any(|(path, text)| {
            path.with_extension("").components().any(|part| part.as_os_str() == *module)
                && declared.iter().any(|declaration| text.contains(declaration))
        });
        if !found {
            missing.push(name);
        }
    }
    assert!(named > 80, "{named} tests are named");
    assert!(missing.is_empty(), "docs/faults.md names tests that do not exist: {missing:#?}");
}

/// The doc comment above a function, with the attributes between.
fn doc_of(text: &str, test: &str) -> String {
    let declared = [format!("fn {test}("), format!("fn {test}<")];
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| declared.iter().any(|declaration| line.contains(declaration)));
    let above = lines[..at.unwrap_or(0)].iter().rev();
    let own =
        above.take_while(|line| line.trim_start().starts_with("///") || line.trim_start().starts_with("#["));
    own.copied().collect::<Vec<_>>().join("\n")
}

#[test]
fn every_invariant_of_recipes_has_tests_on_both_runtimes_that_name_it() {
    let mut files = BTreeMap::new();
    for folder in ["src", "tests/it"] {
        sources(&Path::new(ROOT).join(folder), &mut files);
    }
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/faults.md")).unwrap();
    for id in ["E1", "E2", "E3", "E4", "E5", "E6", "E7", "E8", "E9", "E10"] {
        let row = page.lines().find(|line| line.starts_with(&format!("| {id} |")));
        let row = row.unwrap_or_else(|| panic!("docs/faults.md has no row for {id}"));
        let names: Vec<&str> =
            row.split('`').skip(1).step_by(2).filter(|piece| piece.contains("::")).collect();
        let on_postgres = ["recipes::postgres::", "crash::", "scenarios::", "cli::"];
        let in_memory = ["recipes::memory::", "recipe::supplied::tests::"];
        assert!(names.iter().any(|name| in_memory.iter().any(|p| name.starts_with(p))), "{id} in memory");
        assert!(
            names.iter().any(|name| on_postgres.iter().any(|p| name.starts_with(p))),
            "{id} on PostgreSQL"
        );
        for name in names {
            let test = name.rsplit("::").next().unwrap();
            let named = files
                .values()
                .map(|text| doc_of(text, test))
                .any(|doc| doc.split(|c: char| !c.is_alphanumeric()).any(|word| word == id));
            assert!(named, "the doc comment of {name} does not name {id}");
        }
    }
}

#[test]
fn every_recipe_of_the_examples_is_good() {
    let mut checked = 0;
    for entry in std::fs::read_dir(Path::new(ROOT).join("examples/recipes")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let bundle =
            leasehold::recipe::bundle::Bundle::read(&path).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        leasehold::recipe::compile(&bundle).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        checked += 1;
    }
    assert!(checked >= 5, "{checked} recipes");
}

/// Every text file of the tree that is ours: not what was built, and nothing hidden but `.ci` and `.config`.
fn texts(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            let hidden = name.starts_with('.') && name != ".ci" && name != ".config";
            if !hidden && name != "target" {
                texts(&path, found);
            }
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            found.push((path, text));
        }
    }
}

#[test]
fn no_file_holds_the_marks_of_a_conflict() {
    let mut files = Vec::new();
    texts(Path::new(ROOT), &mut files);
    assert!(files.len() > 300, "{} files", files.len());
    let marks = ["<", ">", "|"].map(|mark| mark.repeat(7) + " ");
    let marked: Vec<_> = files
        .iter()
        .flat_map(|(path, text)| text.lines().zip(1..).map(move |(line, number)| (path, number, line)))
        .filter(|(_, _, line)| marks.iter().any(|mark| line.starts_with(mark.as_str())))
        .map(|(path, number, _)| format!("{}:{number}", path.display()))
        .collect();
    assert!(marked.is_empty(), "{marked:#?}");
}

/// The codes of failures that stand in the source: outside of tests and test beds, and outside of `src/recipe`, whose ops
/// have a page of their own.
fn codes() -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    for folder in ["actors/src", "src"] {
        sources(&Path::new(ROOT).join(folder), &mut files);
    }
    let patterns = [
        // A failure is made of its kind, its code and a message.
        r#"FailureKind::(?:User|System|Timeout),\s*"([a-z_]+)""#,
        r#"\b(?:system|failed)\(\s*"([a-z_]+)""#,
        r#"(?:Self|HandlerError)::(?:user|system|timeout)\(\s*"([a-z_]+)""#,
        r#"code = Some\("([a-z_]+)"\)"#,
        r#""(tls_[a-z_]+)""#,
        // The transport of a probe.
        r#"\("([a-z]+_[a-z]+)", "(?:cannot|the connection)"#,
        // Statements that decide.
        r"(?:stale|looping) then '([a-z_]+)'",
        r"'SYSTEM', '([a-z_]+)'",
    ]
    .map(|pattern| regex::Regex::new(pattern).unwrap());
    let sql = std::fs::read_dir(Path::new(ROOT).join("src/postgres/sql")).unwrap();
    for path in sql.map(|entry| entry.unwrap().path()) {
        let text = std::fs::read_to_string(&path).unwrap();
        files.insert(path, text);
    }
    let mut found = BTreeMap::new();
    for (path, text) in files {
        let shown = path.strip_prefix(ROOT).unwrap().to_string_lossy().into_owned();
        if ["tests.rs", "/tests/", "/testing/", "src/recipe/"].iter().any(|part| shown.contains(part)) {
            continue;
        }
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
        // What documentation comments show is no code of ours.
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let text = lines.join("\n");
        for pattern in &patterns {
            for code in pattern.captures_iter(&text) {
                found.insert(code[1].to_owned(), path.clone());
            }
        }
    }
    found
}

#[test]
fn every_code_of_a_failure_is_explained_on_the_page_of_jobs() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/jobs.md")).unwrap();
    // Rows of the table of codes: each begins with its codes.
    let rows: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_start_matches('|').split('|').next().unwrap())
        .collect();
    let codes = codes();
    assert!(codes.len() >= 40, "only {} codes were found: {codes:?}", codes.len());
    for known in [
        "bad_output",
        "connect_failed",
        "crash_loop",
        "engine_lost",
        "lease_lost",
        "not_committed",
        "superseded",
    ] {
        assert!(codes.contains_key(known), "{known} was not found: {codes:?}");
    }
    let missing: BTreeMap<_, _> =
        codes.iter().filter(|(code, _)| !rows.iter().any(|row| row.contains(&format!("`{code}`")))).collect();
    assert!(missing.is_empty(), "docs/jobs.md explains no {missing:#?}");
}
