//! Settings as the binary takes them: exit code 2 and one line, exit code 6 for a database that is not there.

use super::leasehold::Leasehold;
use crate::support::database::TestDatabase;

/// CF-01, CF-03
#[test]
fn a_bad_setting_is_one_line_that_names_it_from_flag_environment_and_file() {
    let file = std::env::temp_dir().join(format!("leasehold-settings-{}.toml", uuid::Uuid::new_v4()));
    std::fs::write(&file, "execution_worker_lease_duration = \"-1s\"\n").unwrap();
    let path = file.display().to_string();
    for (leasehold, args) in [
        (Leasehold::bare(), &["config", "--lease-duration", "-1s"][..]),
        (Leasehold::bare().with("EXECUTION_WORKER_LEASE_DURATION", "-1s"), &["jobs"]),
        (Leasehold::bare().with("LEASEHOLD_CONFIG", &path), &["worker", "list"]),
        (Leasehold::bare(), &["jobs", "--config", &path]),
    ] {
        let said = leasehold.run(args);
        let line = said.refused(2);
        assert!(
            line.contains("EXECUTION_WORKER_LEASE_DURATION: \"-1s\"") && line.contains("from 2s to 15m"),
            "{line}"
        );
    }
    std::fs::remove_file(&file).unwrap();
}

/// CF-05
#[test]
fn settings_that_do_not_go_together_are_refused_with_the_formula() {
    let said = Leasehold::bare().run(&["config", "--renew-interval", "29s"]);
    assert_eq!(said.code, 2);
    assert!(
        said.err.contains("renew interval + 2 × store timeout + safety margin + lease / 8 ≤ lease"),
        "{said:?}"
    );
    assert!(said.out.contains("29s"), "the values are shown all the same: {said:?}");
}

/// CF-03, CF-07
#[test]
fn the_effective_settings_are_shown_with_their_origin() {
    let leasehold = Leasehold::bare().with("EXECUTION_WORKER_CONCURRENCY", "5");
    let rows = leasehold.run(&["config", "--lease-duration", "1m", "--json"]).json_lines();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!(row("EXECUTION_WORKER_CONCURRENCY")["value"], "5");
    assert_eq!(row("EXECUTION_WORKER_CONCURRENCY")["from"], "environment");
    assert_eq!(row("EXECUTION_WORKER_LEASE_DURATION")["value"], "1m");
    assert_eq!(row("EXECUTION_WORKER_LEASE_DURATION")["from"], "flag");
    assert_eq!(row("EXECUTION_WORKER_SAFETY_MARGIN")["value"], "6s", "a tenth of the lease");
    assert_eq!(row("DATABASE_URL")["value"], serde_json::Value::Null);
}

#[test]
fn an_allocation_is_shown_as_the_flags_and_variables_amount_to_it() {
    let leasehold = Leasehold::bare().with("EXECUTION_ALLOCATION_MEMORY", "2048Mi");
    let args = ["allocation", "--allocation-platform", "x86_64", "--allocation-memory", "16384Mi"];
    assert_eq!(
        leasehold.run(&[&args[..], &["--json"]].concat()).json(),
        serde_json::json!({"resources": {"memory": "16Gi"}, "platform": "linux/amd64"})
    );
    let said = leasehold.run(&args);
    let memory = said.out.lines().find(|line| line.starts_with("memory")).expect("a line of memory");
    assert!(said.code == 0 && memory.contains("16Gi") && memory.contains("flag"), "{said:?}");
    assert!(said.out.lines().any(|line| line.starts_with("cpu") && line.contains("unknown")), "{said:?}");
    let nothing = Leasehold::bare().run(&["allocation", "--json"]);
    assert!(
        nothing.json() == serde_json::json!({}) && nothing.err.contains("nothing is known"),
        "{nothing:?}"
    );
    let line = leasehold.run(&["worker", "--allocation-cpu", "1e3"]).refused(2).to_owned();
    assert!(
        line.contains("EXECUTION_ALLOCATION_CPU: \"1e3\" (flag --allocation-cpu) has an exponent"),
        "{line}"
    );
}

#[test]
fn a_database_that_is_not_there_is_exit_code_6() {
    for url in ["postgres://u:geheim@127.0.0.1:1/x", "host=/no/such/folder user=u password=geheim"] {
        for args in [&["jobs"][..], &["migrate"], &["migrate", "--check"], &["submit", "--handler", "h"]] {
            let said = Leasehold::on(url).run(args);
            let line = said.refused(6);
            assert!(!line.contains("geheim"), "{line}");
        }
    }
    assert!(Leasehold::bare().run(&["jobs"]).refused(2).contains("DATABASE_URL"));
}

#[tokio::test]
async fn a_database_that_does_not_exist_and_a_refused_user_are_exit_code_6() {
    let database = TestDatabase::create().await;
    let missing = database.url().replace(database.name(), "no_such_database_at_all");
    let nobody = database.url().replacen("postgres@", "no_such_user@", 1);
    for url in [missing, nobody] {
        Leasehold::on(&url).run(&["jobs"]).refused(6);
    }
}
