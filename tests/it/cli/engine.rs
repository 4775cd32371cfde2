//! The private Docker engine of `leasehold dev`: needs dockerd and root, as `make test` on a bare machine has.

use std::path::Path;

use leasehold::{dev::engine::LocalEngine, docker::DockerEngine};

struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder() -> Folder {
    let path = Path::new("/tmp").join(format!("leasehold-engine-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir_all(&path).unwrap();
    Folder(path)
}

fn processes_naming(word: &str) -> Vec<String> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(word))
        .collect()
}

#[tokio::test]
async fn where_no_engine_answers_root_gets_a_private_one_that_leaves_nothing_behind() {
    let folder = folder();
    let nowhere = format!("unix://{}/none.sock", folder.0.display());
    let provided = LocalEngine::provide(&nowhere, None, true, &folder.0).await;
    if !rustix::process::geteuid().is_root() {
        let refused = provided.unwrap_err().to_string();
        assert!(refused.contains("run this as root"), "{refused}");
        return;
    }
    let engine = provided.unwrap();
    assert!(engine.is_private());
    let place = engine.endpoint.trim_start_matches("unix://").trim_end_matches("/docker.sock").to_owned();
    let client = DockerEngine::connect(&engine.endpoint, None).unwrap();
    client.make_tiny_image("leasehold-demo:latest", &[]).await.unwrap();
    engine.stop().await;
    assert_eq!(processes_naming(&place), Vec::<String>::new());
    assert!(!Path::new(&place).exists(), "{place} is still there");

    // Its images are found again by the next one.
    let again = LocalEngine::provide(&nowhere, None, true, &folder.0).await.unwrap();
    let client = DockerEngine::connect(&again.endpoint, None).unwrap();
    assert!(client.has_image("leasehold-demo:latest").await.unwrap());
    again.stop().await;
}

#[tokio::test]
async fn an_engine_that_was_named_and_does_not_answer_is_not_replaced_in_silence() {
    let folder = folder();
    let nowhere = format!("unix://{}/none.sock", folder.0.display());
    let refused = LocalEngine::provide(&nowhere, None, false, &folder.0).await.unwrap_err().to_string();
    assert!(refused.contains("--docker-endpoint"), "{refused}");
    assert_eq!(refused.lines().count(), 1, "{refused}");
}
