//! The conformance suite on the memory store: the specification must keep its own rules.

use std::collections::BTreeSet;

use leasehold_actors::testing::MemoryStore;

macro_rules! on_memory {
    ($($module:ident: [$($case:ident),* $(,)?];)*) => {
        $(mod $module {
            use super::*;
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                leasehold_actors::testing::conformance::$module::$case(&MemoryStore::new()).await;
            })*
        })*

        const LISTED: &[(&str, &str)] = &[$($((stringify!($module), stringify!($case))),*),*];
    };
}

leasehold_actors::conformance_cases!(on_memory);

/// A case that is written but not listed would never run.
#[test]
fn every_written_case_is_listed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/testing/conformance");
    let mut written = BTreeSet::new();
    for file in std::fs::read_dir(folder).expect("the suite's folder") {
        let path = file.expect("an entry of the folder").path();
        let module = path.file_stem().expect("a file name").to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).expect("a source file");
        for rest in source.split("\npub async fn ").skip(1) {
            let case = rest.split('(').next().expect("a function's name").to_owned();
            written.insert((module.clone(), case));
        }
    }
    let listed: BTreeSet<_> = LISTED.iter().map(|(m, c)| ((*m).to_owned(), (*c).to_owned())).collect();
    assert!(listed.len() > 60, "the suite has {} cases", listed.len());
    assert_eq!(written, listed);
}
