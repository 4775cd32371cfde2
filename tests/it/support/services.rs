//! The services that the tests talk to, started by `tests/services.sh` unless `make test` (or a developer)
//! has done so before. A missing service fails loudly: nothing is skipped.

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use uuid::Uuid;

/// A superuser's URL of the shared PostgreSQL cluster.
pub fn database_url() -> String {
    service("LEASEHOLD_TEST_DATABASE_URL")
}

/// The endpoint of a shared Docker engine, 1 or 2.
pub fn docker_endpoint(engine: u8) -> String {
    service(&format!("LEASEHOLD_TEST_DOCKER_{engine}"))
}

/// A new folder for an engine of one test's own. Short, since a socket's path may have 107 bytes; swept with
/// everything else when a killed test leaves it behind.
pub fn private_folder() -> PathBuf {
    let _ = docker_endpoint(1);
    let root = std::env::var("LEASEHOLD_TEST_IN_USE")
        .ok()
        .or_else(|| STARTED.get().map(|started| started.environment["LEASEHOLD_TEST_IN_USE"].clone()))
        .and_then(|lock| Some(PathBuf::from(lock).parent()?.to_owned()))
        .unwrap_or_else(std::env::temp_dir);
    root.join("p").join(&Uuid::new_v4().simple().to_string()[..8])
}

/// Ends whatever still runs in such a folder, and removes it.
pub fn sweep(folder: &Path) {
    let status =
        Command::new(SCRIPT).arg("_sweep").arg(folder).status().expect("tests/services.sh can be run");
    assert!(status.success() || std::thread::panicking(), "{} could not be removed", folder.display());
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/services.sh");

static STARTED: OnceLock<Started> = OnceLock::new();

fn service(name: &str) -> String {
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
        let output = Command::new(SCRIPT).arg("start").output().expect("tests/services.sh can be run");
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
