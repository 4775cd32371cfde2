//! Bad input of every kind: a clear error, and a database that is exactly as it was.

use super::leasehold::Leasehold;
use crate::support::database::TestDatabase;

/// Every table of the schema, as text.
async fn everything(client: &tokio_postgres::Client) -> Vec<(String, i64, String)> {
    let tables = client
        .query("select tablename::text from pg_tables where schemaname = 'leasehold' order by 1", &[])
        .await
        .unwrap();
    let mut all = Vec::new();
    for table in tables {
        let name: String = table.get(0);
        let row = client
            .query_one(
                &format!(
                    "select count(*), coalesce(md5(string_agg(t::text || t.xmin::text, '|' order by t::text)), '') \
                     from leasehold.{name} t"
                ),
                &[],
            )
            .await
            .unwrap();
        all.push((name, row.get(0), row.get(1)));
    }
    all
}

/// AP-05, RQ-01, RQ-09, RQ-13, CF-03
#[tokio::test]
async fn nothing_is_written_for_a_request_that_breaks_a_rule() {
    let database = TestDatabase::create().await;
    let leasehold = Leasehold::on(database.url());
    assert_eq!(leasehold.run(&["submit", "--handler", "h"]).code, 0);
    let client = database.client().await;
    let before = everything(&client).await;
    let long = "x".repeat(300);
    let big = format!("\"{}\"", "x".repeat(1 << 20));
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let file = std::env::temp_dir().join(format!("leasehold-big-{}", uuid::Uuid::new_v4()));
    std::fs::write(&file, &big).unwrap();
    let big_file = format!("@{}", file.display());
    for args in [
        &["submit"][..],
        &["submit", "--image", ""],
        &["submit", "--image", "UPPER/x"],
        &["submit", "--image", "a b"],
        &["submit", "--image", "a:b:c"],
        &["submit", "--image", "busybox", "--memory", "1Ki"],
        &["submit", "--image", "busybox", "--memory", "500K"],
        &["submit", "--image", "busybox", "--memory", "0"],
        &["submit", "--image", "busybox", "--cpu", "0"],
        &["submit", "--image", "busybox", "--cpu", "nan"],
        &["submit", "--image", "busybox", "--pids", "0"],
        &["submit", "--image", "busybox", "--pids", "-1"],
        &["submit", "--image", "busybox", "--workdir", "relative"],
        &["submit", "--image", "busybox", "--env", "=x"],
        &["submit", "--image", "busybox", "--timeout", "0s"],
        &["submit", "--image", "busybox", "--timeout", "1000years"],
        &["submit", "--http", "ftp://example.org/"],
        &["submit", "--http", "not a url"],
        &["submit", "--http", "http://example.org/", "--method", "BREW"],
        &["submit", "--http", "http://example.org/", "--body-match", "("],
        &["submit", "--http", "http://example.org/", "--expect-status", "99"],
        &["submit", "--http", "http://example.org/", "--max-redirects", "11"],
        &["submit", "--http", "http://example.org/", "--header", "Bad Name: x"],
        &["submit", "--handler", ""],
        &["submit", "--handler", "a\u{1b}[2J"],
        &["submit", "--handler", &long],
        &["submit", "--handler", "h", "--payload", "{"],
        &["submit", "--handler", "h", "--payload", "\"\\u0000\""],
        &["submit", "--handler", "h", "--payload", &deep],
        &["submit", "--handler", "h", "--payload", &big_file],
        &["submit", "--handler", "h", "--priority", "101"],
        &["submit", "--handler", "h", "--priority", "-101"],
        &["submit", "--handler", "h", "--priority", "99999999999"],
        &["submit", "--handler", "h", "--retry-user", "0"],
        &["submit", "--handler", "h", "--retry-system", "-1"],
        &["submit", "--handler", "h", "--run-at", "yesterday"],
        &["submit", "--handler", "h", "--idempotency-key", ""],
        &["submit", "--handler", "h", "--idempotency-key", "a\u{7}b"],
        &["submit", "--handler", "h", "--namespace", "a\u{9b}b"],
        &["job", "show", "0"],
        &["job", "show", "-1"],
        &["job", "cancel", "9223372036854775808"],
        &["job", "cancel", "1; drop table leasehold.jobs"],
        &["jobs", "--state", "DONE"],
        &["jobs", "--limit", "0"],
        &["jobs", "--limit", "100000"],
        &["workflow", "apply", "/"],
    ] {
        let said = leasehold.run(args);
        let line = said.refused(2);
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(line.len() < 1000, "{} bytes of error", line.len());
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(everything(&client).await, before);
}
