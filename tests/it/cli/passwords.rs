//! AP-15: the database's password is in no output, whatever goes wrong.

use std::{os::unix::fs::PermissionsExt as _, path::Path};

use leasehold::dev::cluster::Cluster;

use super::leasehold::Leasehold;

/// Every special character that breaks somebody's URL.
const PASSWORD: &str = "Ge@heim:/%x?#w'ort";
const ENCODED: &str = "Ge%40heim%3A%2F%25x%3F%23w%27ort";

/// No part of it that is long enough to be no accident.
fn assert_secret(what: &str, text: &str) {
    for part in [PASSWORD, ENCODED, "Ge@heim", "Ge%40heim", "heim:/", "x?#w", "w'ort", "w%27ort"] {
        assert!(!text.contains(part), "{what} shows {part:?}:\n{text}");
    }
}

fn check_all(url: &str, expected: &[i32]) {
    let leasehold = Leasehold::on(url)
        .with("LEASEHOLD_LOG", "trace")
        .with("RUST_BACKTRACE", "full")
        .with("RUST_LOG", "trace");
    for args in [
        &["jobs"][..],
        &["migrate"],
        &["submit", "--handler", "h"],
        &["config"],
        &["config", "--json"],
        &["job", "signal", "1", "go"],
        &["job", "payload", "get", "1"],
        &["job", "replay", "1"],
        &["lease", "acquire", "--lease-file", "/tmp/leasehold-passwords-never-written.lease"],
        &["schema", "list"],
        &["worker", "--print-config"],
        &["worker"],
        &["node"],
        &["--help"],
        &["worker", "--help"],
        &["jobs", "--bad-flag"],
    ] {
        let said = leasehold.run(args);
        assert_secret(&format!("{args:?} with {url:?}"), &format!("{}{}", said.out, said.err));
        if args == ["jobs"] {
            assert!(expected.contains(&said.code), "{args:?}: {said:?}");
        }
    }
    let flag = Leasehold::bare().run(&["jobs", "--database-url", url]);
    assert_secret("the flag", &format!("{}{}", flag.out, flag.err));
}

/// AP-15
#[tokio::test]
async fn a_wrong_password_is_refused_and_not_shown() {
    // The tests' own server trusts loopback; the embedded one asks for a password there.
    let folder = Path::new("/tmp").join(format!("leasehold-passwords-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711)).unwrap();
    let cluster = Cluster::start(&folder).await.unwrap();
    let (head, tail) = cluster.url().split_once('@').unwrap();
    let user = head.rsplit_once(':').unwrap().0;
    check_all(&format!("{user}:{ENCODED}@{tail}"), &[6]);
    assert_eq!(Leasehold::on(cluster.url()).run(&["migrate"]).code, 0, "the right one is let in");
    cluster.stop().await;
    std::fs::remove_dir_all(&folder).unwrap();
}

/// AP-15
#[test]
fn a_server_that_is_down_does_not_make_us_show_the_password() {
    check_all(&format!("postgres://user:{ENCODED}@127.0.0.1:1/jobs"), &[6]);
    check_all(&format!("postgres://user:{ENCODED}@127.0.0.1:1/jobs?sslmode=verify-full"), &[2, 6]);
    check_all(&format!("postgres://user:{ENCODED}@127.0.0.1:1/jobs?sslmode=require"), &[6]);
}

/// AP-15
#[test]
fn a_password_that_was_not_encoded_is_not_shown_in_the_complaint() {
    check_all(&format!("postgres://user:{PASSWORD}@127.0.0.1:1/jobs"), &[2, 6]);
    check_all(&format!("host=127.0.0.1 port=x password={PASSWORD}"), &[2]);
    check_all("host=127.0.0.1 port=1 user=u password='Ge@heim:/%x?#w\\'ort'", &[6]);
}
