//! The embedded cluster of `leasehold dev`: needs PostgreSQL's server programs, nothing else.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use leasehold::dev::cluster::Cluster;
use tokio_postgres::NoTls;

/// A folder of the test's own, passable for the database's user, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            Path::new("/tmp").join(format!("leasehold-cluster-{name}-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o711)).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn run(url: &str, sql: &str) -> Result<Vec<String>, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let rows = client.simple_query(sql).await?;
    drop(client);
    connection.await.unwrap().unwrap();
    Ok(rows
        .into_iter()
        .filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
            _ => None,
        })
        .collect())
}

fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn a_cluster_is_made_once_and_found_again_with_its_data_and_address() {
    let folder = Folder::new("again");
    let first = Cluster::start(&folder.0).await.unwrap();
    assert!(first.is_fresh());
    run(first.socket_url(), "create table kept as select 42 as answer").await.unwrap();
    let (url, pid) = (first.url().to_owned(), first.pid());
    assert_eq!(run(&url, "select answer from kept").await.unwrap(), ["42"]);
    first.stop().await;
    assert!(!is_alive(pid), "the server outlived its stop");

    let second = Cluster::start(&folder.0).await.unwrap();
    assert!(!second.is_fresh());
    assert_eq!(second.url(), url);
    assert_eq!(run(&url, "select answer from kept").await.unwrap(), ["42"]);
    second.stop().await;
}

#[tokio::test]
async fn over_loopback_a_password_is_asked_for_and_the_socket_is_for_its_owner_alone() {
    let folder = Folder::new("password");
    let cluster = Cluster::start(&folder.0).await.unwrap();
    let wrong = cluster.url().replacen("leasehold:", "leasehold:x", 1);
    let refused = run(&wrong, "select 1").await.unwrap_err();
    assert_eq!(refused.code(), Some(&tokio_postgres::error::SqlState::INVALID_PASSWORD));
    let data = std::fs::metadata(folder.0.join("pg")).unwrap();
    assert_eq!(data.permissions().mode() & 0o777, 0o700);
    assert_eq!(std::fs::metadata(folder.0.join("password")).unwrap().permissions().mode() & 0o777, 0o600);
    if rustix::process::geteuid().is_root() {
        let owner = run(cluster.socket_url(), "select current_setting('is_superuser')").await.unwrap();
        assert_eq!(owner, ["on"]);
        let server = std::fs::metadata(format!("/proc/{}", cluster.pid())).unwrap();
        assert_ne!(std::os::unix::fs::MetadataExt::uid(&server), 0, "the server must not run as root");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_left_over_pid_file_is_cleared_also_when_its_number_belongs_to_another_program() {
    let folder = Folder::new("stale");
    Cluster::start(&folder.0).await.unwrap().stop().await;
    let pid_file = folder.0.join("pg/postmaster.pid");
    for stranger in
        [std::process::id().to_string(), "999999".to_owned(), "1".to_owned(), "rubbish".to_owned()]
    {
        std::fs::write(&pid_file, format!("{stranger}\n{}\n", folder.0.join("pg").display())).unwrap();
        std::fs::set_permissions(&pid_file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let cluster = Cluster::start(&folder.0).await.unwrap();
        run(cluster.socket_url(), "select 1").await.unwrap();
        cluster.stop().await;
    }
}

#[tokio::test]
async fn a_server_that_still_runs_on_the_cluster_is_ended_first() {
    let folder = Folder::new("occupied");
    let left_over = Cluster::start(&folder.0).await.unwrap();
    let old = left_over.pid();
    let cluster = Cluster::start(&folder.0).await.unwrap();
    assert!(!is_alive(old));
    run(cluster.socket_url(), "select 1").await.unwrap();
    cluster.stop().await;
    left_over.stop().await;
}

#[tokio::test]
async fn a_folder_with_a_very_long_path_gets_a_socket_elsewhere() {
    let folder = Folder::new("long");
    let deep = folder.0.join("d".repeat(90));
    std::fs::create_dir(&deep).unwrap();
    std::fs::set_permissions(&deep, std::fs::Permissions::from_mode(0o711)).unwrap();
    let cluster = Cluster::start(&deep).await.unwrap();
    assert!(!cluster.socket_url().contains("dddd"), "{}", cluster.socket_url());
    assert_eq!(run(cluster.socket_url(), "select 1").await.unwrap(), ["1"]);
    cluster.stop().await;
}

#[tokio::test]
async fn under_a_home_that_nobody_else_may_enter_the_cluster_lies_where_its_user_can_reach_it() {
    let folder = Folder::new("home");
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    let inner = folder.0.join("dev");
    std::fs::create_dir(&inner).unwrap();
    let cluster = Cluster::start(&inner).await.unwrap();
    assert_eq!(run(cluster.url(), "select 1").await.unwrap(), ["1"]);
    if rustix::process::geteuid().is_root() {
        let moved = cluster.moved().unwrap().to_owned();
        let place = PathBuf::from(moved.rsplit(' ').next().unwrap());
        assert!(place.starts_with("/var/lib/leasehold"), "{moved}");
        cluster.stop().await;
        std::fs::remove_dir_all(&place).unwrap();
    } else {
        assert_eq!(cluster.moved(), None);
        cluster.stop().await;
    }
}
