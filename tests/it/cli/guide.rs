//! The guides say only what is true: their commands are run, in their order, as one script each.

use std::{path::Path, process::Stdio, time::Duration};

use super::leasehold::{Leasehold, Said, wait};
use crate::support::database::TestDatabase;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The contents of the fenced blocks with this word, in order.
fn blocks<'t>(page: &'t str, word: &str) -> Vec<&'t str> {
    let fence = format!("```{word}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Times and the width of columns differ from run to run.
fn plain(line: &str) -> String {
    let word = |word: &str| {
        let time = word.strip_prefix('+').and_then(|rest| rest.strip_suffix('s'));
        let is_time = time.is_some_and(|time| time == "T" || time.parse::<f64>().is_ok());
        if is_time { "+Ts".to_owned() } else { word.to_owned() }
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn the_guide_to_recipes_does_what_it_says() {
    does_what_it_says("execution-user-guide.md", &["small.log", "big.log"]).await;
}

#[tokio::test]
async fn the_guide_to_supplied_leases_does_what_it_says() {
    does_what_it_says("run-with-lease.md", &["second.log"]).await;
}

async fn does_what_it_says(page: &str, logs: &[&str]) {
    let database = TestDatabase::create().await;
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs").join(page)).unwrap();
    let folder = std::env::temp_dir().join(format!("lh-guide-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(Path::new(ROOT).join("examples"), folder.join("examples")).unwrap();
    let script = format!(
        "set -euo pipefail; trap 'kill $(jobs -p) 2> /dev/null || :' EXIT; PATH={}:$PATH\n{}",
        Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap().display(),
        blocks(&page, "sh").concat()
    );
    // The environment of every other command of these tests.
    let clean = Leasehold::on(database.url()).command(&[]);
    let mut bash = std::process::Command::new("bash");
    for (name, value) in clean.get_envs() {
        match value {
            Some(value) => bash.env(name, value),
            None => bash.env_remove(name),
        };
    }
    bash.args(["-c", &script]).current_dir(&folder);
    let child = bash.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let said = Said::of(wait(child, Duration::from_secs(120), &["(the guide)"]));
    let logs = logs.iter().map(|name| std::fs::read_to_string(folder.join(name)).unwrap_or_default());
    let logs: Vec<String> = logs.collect();
    assert_eq!(said.code, 0, "{said:?} {logs:?}");
    let out: Vec<String> = said.out.lines().map(plain).collect();
    let mut from = 0;
    for line in blocks(&page, "text").iter().flat_map(|block| block.lines()).map(plain) {
        let found = out[from..].iter().position(|shown| shown.starts_with(&line));
        let Some(found) = found else { panic!("{line:?} is not behind line {from} of {}", said.out) };
        from += found + 1;
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
