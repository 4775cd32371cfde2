//! The arrow between the crates: the protocol knows no database, no Docker and no HTTP client.

use std::process::Command;

/// What `leasehold-actors` must never depend on, directly or through others.
const FOREIGN: [&str; 9] = [
    "tokio-postgres",
    "postgres-types",
    "deadpool",
    "deadpool-postgres",
    "refinery",
    "bollard",
    "reqwest",
    "hyper",
    "leasehold",
];

#[test]
fn the_protocol_knows_no_database_and_no_docker() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--offline", "-p", "leasehold-actors", "-e", "normal", "--all-features"])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("cargo prints text");
    let packages: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(packages.contains(&"leasehold-actors") && packages.contains(&"actix"), "{tree}");
    for foreign in FOREIGN {
        assert!(!packages.contains(&foreign), "leasehold-actors depends on {foreign}");
    }
}
