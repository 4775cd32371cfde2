//! The services that the tests talk to, started by `tests/services.sh` unless `make test` (or a developer)
//! has done so before. A missing service fails loudly: nothing is skipped.

use std::{collections::HashMap, fs::File, process::Command, sync::OnceLock};

/// A superuser's URL of the shared PostgreSQL cluster.
pub fn database_url() -> String {
    service("LEASEHOLD_TEST_DATABASE_URL")
}

/// The endpoint of a shared Docker engine, 1 or 2.
pub fn docker_endpoint(engine: u8) -> String {
    service(&format!("LEASEHOLD_TEST_DOCKER_{engine}"))
}

fn service(name: &str) -> String {
    static STARTED: OnceLock<Started> = OnceLock::new();
    if let (Ok(value), Err(_)) = (std::env::var(name), std::env::var("LEASEHOLD_TEST_IN_USE")) {
        // Given by hand: not ours to keep alive.
        return value;
    }
    let started = STARTED.get_or_init(Started::new);
    started.environment.get(name).unwrap_or_else(|| panic!("tests/services.sh names no {name}")).clone()
}

struct Started {
    environment: HashMap<String, String>,
    /// Held shared for the life of this process: the services end once nobody holds it for long enough.
    _in_use: File,
}

impl Started {
    fn new() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/services.sh");
        let output = Command::new(script).arg("start").output().expect("tests/services.sh can be run");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("tests/services.sh prints text");
        let environment: HashMap<String, String> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let in_use = File::open(&environment["LEASEHOLD_TEST_IN_USE"]).expect("the lock file exists");
        rustix::fs::flock(&in_use, rustix::fs::FlockOperation::LockShared).expect("a shared lock is free");
        Self { environment, _in_use: in_use }
    }
}
