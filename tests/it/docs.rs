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

#[test]
fn every_recipe_of_the_examples_is_good() {
    let mut checked = 0;
    for entry in std::fs::read_dir(Path::new(ROOT).join("examples/recipes")).unwrap() {
        let path = entry.unwrap().path();
        let bundle =
            leasehold::recipe::bundle::Bundle::read(&path).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        leasehold::recipe::compile(&bundle).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        checked += 1;
    }
    assert!(checked >= 5, "{checked} recipes");
}
