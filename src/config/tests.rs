//! Every setting against every kind of bad value, from every source.

use std::{collections::HashMap, ffi::OsString, io::Write as _, path::PathBuf};

use leasehold_actors::domain::execution::{Allocation, Fact};

use super::{
    table::{Kind, TABLE},
    *,
};

const PASSWORD: &str = "p@ss:w/rd%25-geheim";

/// A file of our own that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn file(name: &str, text: &str) -> Self {
        let unique = uuid::Uuid::new_v4();
        let path = std::env::temp_dir().join(format!("leasehold-config-{unique}-{name}"));
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[derive(Debug, Clone, Copy)]
enum Source {
    Flag,
    Environment,
    File,
}

const SOURCES: [Source; 3] = [Source::Flag, Source::Environment, Source::File];

fn toml_string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn load(settings: &[(&Setting, Source, &str)]) -> Result<Effective, ConfigError> {
    let mut sources = Sources::default();
    let mut file = String::new();
    for (row, source, text) in settings {
        match source {
            Source::Flag => {
                sources.flags.insert(row.key, (*text).to_owned());
            }
            Source::Environment => {
                sources.environment.insert(row.name.to_owned(), OsString::from(text));
            }
            Source::File => file.push_str(&format!("{} = {}\n", row.file_key(), toml_string(text))),
        }
    }
    let scratch = (!file.is_empty()).then(|| Scratch::file("leasehold.toml", &file));
    sources.file = scratch.as_ref().map(|s| s.0.clone());
    Effective::load(&sources)
}

fn row(name: &str) -> &'static Setting {
    TABLE.iter().find(|row| row.name == name).unwrap()
}

fn value_of(effective: &Effective, row: &Setting) -> Option<String> {
    effective.rows().into_iter().find(|r| r.name == row.name).unwrap().value
}

/// Three different good values for each setting.
fn good_values(row: &Setting, files: &[Scratch; 3]) -> [String; 3] {
    let three = |texts: [&str; 3]| texts.map(str::to_owned);
    match row.kind {
        Kind::Duration(..) => three(["2s", "3s", "4s"]),
        Kind::Count(..) => three(["2", "3", "4"]),
        Kind::Choice(words) => [words[0].into(), words[1].into(), words[words.len() - 1].into()],
        Kind::Name | Kind::Text => three(["one", "two words", "drei"]),
        Kind::List => three(["10.0.0.0/8", "localhost", "127.0.0.1,::1"]),
        Kind::File => [0, 1, 2].map(|i: usize| files[i].0.display().to_string()),
        Kind::Fact(fact) => match fact {
            Fact::Cpu => three(["2", "500m", "0.5"]),
            Fact::Memory | Fact::EphemeralStorage => three(["4Gi", "500M", "1024"]),
            Fact::Platform => three(["linux/amd64", "arm64/v8", "linux/arm"]),
            Fact::Image => three(["busybox", "localhost:5000/a/b:1", "registry.local/x"]),
            Fact::ImageDigest => ["0", "1", "2"].map(|digit| format!("sha256:{}", digit.repeat(64))),
            Fact::ImageId => three(["sha256:4f2a", "4f2a", "id"]),
        },
        Kind::DatabaseUrl => three(["host=a user=u", "host=b user=u", "host=c user=u"]),
    }
}

#[test]
fn the_table_stands_in_the_order_of_its_keys_and_names_nothing_twice() {
    for (place, row) in TABLE.iter().enumerate() {
        assert_eq!(row.key as usize, place, "{} stands in the wrong place", row.name);
        assert_eq!(table::setting(row.key).name, row.name);
        for other in &TABLE[place + 1..] {
            assert_ne!(row.name, other.name);
            assert_ne!(row.flag, other.flag);
        }
    }
}

/// CF-01, CF-03
#[test]
fn bad_durations_are_refused_from_every_source_with_name_value_and_range() {
    let bad = [
        "",
        " ",
        "0",
        "0s",
        "-5s",
        "-1",
        "1ns",
        "100years",
        "1m0",
        "abc",
        "inf",
        "NaN",
        "1e9s",
        "10",
        "5 parsecs",
        "9999999999999999999999s",
        "1s\n",
        "٣s",
        "1s\u{0}",
    ];
    for row in TABLE.iter().filter(|row| matches!(row.kind, Kind::Duration(..))) {
        for text in bad {
            for source in SOURCES {
                if text.contains('\0') && matches!(source, Source::Environment) {
                    continue; // no environment can hold it
                }
                let error = load(&[(row, source, text)])
                    .expect_err(&format!("{} accepted {text:?} from {source:?}", row.name))
                    .to_string();
                assert!(error.starts_with(row.name), "{error}");
                assert!(error.contains(&format!("{text:?}")), "{error}");
                assert!(error.contains(&row.allowed()), "{error}");
                assert_eq!(error.lines().count(), 1, "{error}");
            }
        }
    }
}

/// CF-01, CF-03
#[test]
fn bad_counts_are_refused_from_every_source_with_name_value_and_range() {
    let bad = [
        "",
        "0",
        "-1",
        "2147483648",
        "9223372036854775808",
        "18446744073709551616",
        "1.5",
        "1e3",
        "0x10",
        "ten",
        "+5",
        "1_000",
        "١٢٣",
        "NaN",
        "inf",
        " 5",
        "5 ",
    ];
    for row in TABLE.iter().filter(|row| matches!(row.kind, Kind::Count(..))) {
        for text in bad {
            for source in SOURCES {
                let error = load(&[(row, source, text)])
                    .expect_err(&format!("{} accepted {text:?} from {source:?}", row.name))
                    .to_string();
                assert!(error.starts_with(row.name), "{error}");
                assert!(error.contains(&row.allowed()), "{error}");
            }
        }
    }
}

/// CF-03
#[test]
fn bad_words_names_lists_and_files_are_refused_from_every_source() {
    for row in TABLE {
        let bad: Vec<&str> = match row.kind {
            Kind::Choice(_) => vec!["", "AUTO", "yes", "transaction "],
            Kind::Name => vec!["", "a\u{1b}[2J", " padded", "padded ", "line\nbreak"],
            Kind::Text => vec!["", "a\u{7}b"],
            Kind::List => vec!["", ",", "10.0.0.0/8,,", "a\u{0}b"],
            Kind::File => vec!["", "/no/such/file.pem", "/"],
            Kind::Fact(fact) => match fact {
                Fact::Cpu => vec!["", "0", "-1", "1e3", "0.0001", "2k", "two", "1\u{7}"],
                Fact::Memory | Fact::EphemeralStorage => {
                    vec!["", "0", "-1Gi", "1e3", "500K", "500ki", "4GB", "4g", "1.2Gi", "8Ei", "١٢٣", " 4Gi"]
                }
                Fact::Platform => vec!["", "linux", "linux/", "linux/amd64/v1/x", "linux amd64"],
                Fact::Image => vec!["", "UPPER/x", "a:b:c", ":tag", "a@", "a b", "host/a:"],
                Fact::ImageDigest => vec!["", "sha256:", "sha256:00", "md5:00", "latest"],
                Fact::ImageId => vec!["", "a b", "a,b", "a\u{7}b"],
            },
            Kind::DatabaseUrl => {
                vec!["", "postgres://", "not an address", "host=a port=banana", "postgres://u:p@h:99999/d"]
            }
            Kind::Duration(..) | Kind::Count(..) => continue,
        };
        for text in bad {
            for source in SOURCES {
                if text.contains('\0') && matches!(source, Source::Environment) {
                    continue;
                }
                let error = load(&[(row, source, text)])
                    .expect_err(&format!("{} accepted {text:?} from {source:?}", row.name))
                    .to_string();
                assert!(error.starts_with(row.name), "{error}");
                assert!(!error.chars().any(char::is_control), "{error:?}");
            }
        }
    }
}

/// CF-07, CF-03
#[test]
fn every_setting_is_reachable_by_flag_environment_and_file_in_that_precedence() {
    let files = ["a", "b", "c"].map(|name| Scratch::file(name, "pem"));
    for row in TABLE {
        let [flag, environment, file] = good_values(row, &files);
        let all = [
            (row, Source::Flag, flag.as_str()),
            (row, Source::Environment, &environment),
            (row, Source::File, &file),
        ];
        for (upper, (_, _, expected)) in all.iter().enumerate() {
            let effective = load(&all[upper..]).unwrap();
            assert_eq!(
                value_of(&effective, row).as_deref(),
                Some(*expected),
                "{} from {:?}",
                row.name,
                all[upper].1
            );
        }
    }
}

#[test]
fn a_value_that_a_higher_source_outdoes_is_still_checked() {
    let lease = row("EXECUTION_WORKER_LEASE_DURATION");
    let error = load(&[(lease, Source::Flag, "20s"), (lease, Source::Environment, "soon")]).unwrap_err();
    assert!(error.to_string().contains("\"soon\" (environment)"), "{error}");
}

#[test]
fn an_unknown_key_in_the_file_is_one_line_that_names_it_and_the_likely_one() {
    let scratch = Scratch::file("typo.toml", "execution_worker_lease_duratoin = \"30s\"\n");
    let error = Effective::load(&Sources { file: Some(scratch.0.clone()), ..Sources::default() })
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("execution_worker_lease_duratoin: unknown key"), "{error}");
    assert!(error.contains("did you mean `execution_worker_lease_duration`?"), "{error}");
    assert_eq!(error.lines().count(), 1);
}

#[test]
fn a_file_that_is_missing_a_folder_or_no_toml_is_one_line() {
    let broken =
        Scratch::file("broken.toml", "database_pool_size = 4\ndatabase_url = \"postgres://u:secret@\n");
    for (path, expected) in [
        (PathBuf::from("/no/such.toml"), "cannot be read"),
        (std::env::temp_dir(), "cannot be read"),
        (broken.0.clone(), ":2"),
    ] {
        let error =
            Effective::load(&Sources { file: Some(path), ..Sources::default() }).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("secret"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn the_file_may_be_named_by_the_environment_and_hold_numbers_and_lists() {
    let scratch = Scratch::file(
        "numbers.toml",
        "execution_worker_concurrency = 7\nheartbeat_allow = [\"127.0.0.0/8\", \"localhost\"]\n",
    );
    let environment = HashMap::from([(FILE_VARIABLE.to_owned(), scratch.0.clone().into_os_string())]);
    let effective = Effective::load(&Sources { environment, ..Sources::default() }).unwrap();
    let worker = effective.worker().unwrap();
    assert_eq!(worker.concurrency, 7);
    assert_eq!(worker.heartbeat_allow, ["127.0.0.0/8", "localhost"]);
    let float = Scratch::file("float.toml", "execution_worker_concurrency = 7.5\n");
    let error = Effective::load(&Sources { file: Some(float.0.clone()), ..Sources::default() }).unwrap_err();
    assert!(error.to_string().contains("is a float"), "{error}");
}

/// AP-15
#[test]
fn the_password_is_never_shown() {
    let encoded = "p%40ss%3Aw%2Frd%2525-geheim";
    let address = format!("postgres://user:{encoded}@db.example:5432/jobs");
    let effective = load(&[(row("DATABASE_URL"), Source::Environment, &address)]).unwrap();
    let keyed = format!("host=db.example user=user password='{PASSWORD}'");
    let other = load(&[(row("DATABASE_URL"), Source::Flag, &keyed)]).unwrap();
    for shown in [
        format!("{:?}", effective.rows()),
        format!("{effective:?}"),
        format!("{:?}", effective.database("test").unwrap()),
        format!("{:?}", other.rows()),
        format!(
            "{:?}",
            Sources { flags: [(Key::DatabaseUrl, address.clone())].into(), ..Sources::default() }
        ),
    ] {
        for part in ["geheim", PASSWORD, encoded] {
            assert!(!shown.contains(part), "{shown}");
        }
    }
    assert_eq!(
        value_of(&effective, row("DATABASE_URL")).unwrap(),
        "host=db.example port=5432 user=user password=*** dbname=jobs"
    );
    for broken in [
        "postgres://user:geheim@host:port/x",
        "postgres://user:ge@heim:x@/y@z:w",
        "host=a password=geheim port=x",
    ] {
        let error = load(&[(row("DATABASE_URL"), Source::File, broken)]).unwrap_err().to_string();
        assert!(!error.contains("geheim") && !error.contains("heim"), "{error}");
    }
}

#[test]
fn a_missing_database_is_an_error_with_the_next_step() {
    let error = load(&[]).unwrap().database("test").unwrap_err().to_string();
    assert!(error.starts_with("DATABASE_URL: is not set"), "{error}");
    assert!(error.contains("leasehold dev"), "{error}");
}

/// CF-05
#[test]
fn unsafe_relations_are_refused_with_the_formula_and_the_numbers() {
    let cases: &[&[(&str, &str)]] = &[
        &[("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "30s")],
        &[("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "45s")],
        &[("EXECUTION_WORKER_STORE_TIMEOUT", "31s")],
        &[("EXECUTION_WORKER_SAFETY_MARGIN", "30s")],
        &[("EXECUTION_WORKER_LEASE_DURATION", "5s")],
        &[("EXECUTION_WORKER_LEASE_RENEW_INTERVAL", "15s"), ("EXECUTION_WORKER_STORE_TIMEOUT", "5s")],
    ];
    for case in cases {
        let settings: Vec<_> =
            case.iter().map(|(name, text)| (row(name), Source::Environment, *text)).collect();
        let error =
            load(&settings).unwrap().worker().expect_err(&format!("{case:?} was accepted")).to_string();
        assert!(
            error.contains(
                "renew interval + 2 × store timeout + safety margin + lease / 8 ≤ lease does not hold"
            ),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
    }
    let half = load(&[(row("EXECUTION_WORKER_LEASE_RENEW_INTERVAL"), Source::Flag, "15s")])
        .unwrap()
        .worker()
        .unwrap();
    assert_eq!(half.lost_renewals_survived(), 1, "half a lease leaves room for one lost renewal");
    assert!(half.warnings().iter().any(|w| w.contains("survive only 1")), "{:?}", half.warnings());
}

/// CF-05
#[test]
fn marginal_relations_are_warned_about() {
    for (name, text, word) in [
        ("EXECUTION_WORKER_SAFETY_MARGIN", "1s", "SAFETY_MARGIN"),
        ("EXECUTION_WORKER_POLL_INTERVAL", "1m", "POLL_INTERVAL"),
    ] {
        let worker = load(&[(row(name), Source::Environment, text)]).unwrap().worker().unwrap();
        assert!(worker.warnings().iter().any(|w| w.contains(word)), "{name}: {:?}", worker.warnings());
    }
    for (name, text, word) in [
        ("RUNTIME_HEARTBEAT_INTERVAL", "6s", "three heartbeat intervals"),
        ("RUNTIME_LOST_AFTER", "20s", "RUNTIME_LOST_AFTER"),
    ] {
        let node = load(&[(row(name), Source::Environment, text)]).unwrap().node().unwrap();
        assert!(node.warnings().iter().any(|w| w.contains(word)), "{name}: {:?}", node.warnings());
    }
    for (name, text) in [("RUNTIME_HEARTBEAT_INTERVAL", "8s"), ("RUNTIME_LOST_AFTER", "14s")] {
        let error = load(&[(row(name), Source::Environment, text)]).unwrap().node().unwrap_err().to_string();
        assert!(error.contains("does not hold"), "{error}");
    }
}

#[test]
fn the_defaults_pass_their_own_rules_without_a_warning() {
    let effective = load(&[]).unwrap();
    let (worker, node) = (effective.worker().unwrap(), effective.node().unwrap());
    assert_eq!(worker.warnings(), Vec::<String>::new());
    assert_eq!(node.warnings(), Vec::<String>::new());
    assert_eq!(worker.safety_margin, Duration::from_secs(3));
    assert_eq!(worker.store_timeout, Duration::from_secs(3));
    assert_eq!(worker.lost_renewals_survived(), 3);
}

/// RN-13
#[test]
fn a_lease_of_five_seconds_renewed_each_second_survives_two_lost_renewals() {
    let worker = load(&[
        (row("EXECUTION_WORKER_LEASE_DURATION"), Source::Flag, "5s"),
        (row("EXECUTION_WORKER_LEASE_RENEW_INTERVAL"), Source::Flag, "1s"),
    ])
    .unwrap()
    .worker()
    .unwrap();
    assert!(worker.lost_renewals_survived() >= 2, "{}", worker.lost_renewals_survived());
}

/// RQ-01, RQ-07
#[test]
fn the_allocation_is_what_was_said_normalised_and_nothing_else() {
    assert_eq!(load(&[]).unwrap().worker().unwrap().allocation, Allocation::default());
    let said = load(&[
        (row("EXECUTION_ALLOCATION_CPU"), Source::Flag, "0.5"),
        (row("EXECUTION_ALLOCATION_MEMORY"), Source::Environment, "2048Mi"),
        (row("EXECUTION_ALLOCATION_EPHEMERAL_STORAGE"), Source::File, "4G"),
        (row("EXECUTION_ALLOCATION_PLATFORM"), Source::Environment, "aarch64"),
        (row("EXECUTION_ALLOCATION_IMAGE"), Source::File, "index.docker.io/library/x"),
    ]);
    let expected =
        "cpu=500m,memory=2Gi,ephemeral-storage=4G,platform=linux/arm64,image=docker.io/library/x:latest";
    assert_eq!(said.unwrap().worker().unwrap().allocation.to_string(), expected);
    let bad = load(&[(row("EXECUTION_ALLOCATION_MEMORY"), Source::Environment, "1.2Gi")]).unwrap_err();
    assert_eq!(
        bad.to_string(),
        "EXECUTION_ALLOCATION_MEMORY: \"1.2Gi\" (environment) would have to be rounded; the nearest are 1288490188 and \
         1288490189; allowed: bytes with or without a suffix, such as 4Gi, 500M or 1073741824"
    );
}

#[test]
fn tls_needs_all_three_files() {
    let pem = Scratch::file("ca.pem", "pem");
    let path = pem.0.display().to_string();
    let ca = (row("RUNTIME_TLS_CA"), Source::Environment, path.as_str());
    let cert = (row("RUNTIME_TLS_CERT"), Source::Environment, path.as_str());
    let key = (row("RUNTIME_TLS_KEY"), Source::Environment, path.as_str());
    let error = load(&[ca, key]).unwrap().node().unwrap_err().to_string();
    assert!(error.starts_with("RUNTIME_TLS_CERT: is not set"), "{error}");
    assert!(load(&[ca, cert]).unwrap().worker().is_err());
    assert_eq!(load(&[ca, cert, key]).unwrap().node().unwrap().tls.unwrap().key, pem.0);
}

#[test]
fn misspelt_variables_are_noticed() {
    let environment = HashMap::from([
        ("EXECUTION_WORKER_LEASE_DURATOIN".to_owned(), OsString::from("30s")),
        ("EXECUTION_ALLOCATION_RAM".to_owned(), OsString::from("1Gi")),
        ("RUNTIME_OF_SOMEBODY_ELSE".to_owned(), OsString::from("x")),
    ]);
    let effective = Effective::load(&Sources { environment, ..Sources::default() }).unwrap();
    assert_eq!(effective.unknown_variables, ["EXECUTION_ALLOCATION_RAM", "EXECUTION_WORKER_LEASE_DURATOIN"]);
}

/// The table of docs/configuration.md, made from [`TABLE`].
fn documented() -> String {
    let mut text = "| variable | flag | default | allowed | meaning |\n|---|---|---|---|---|\n".to_owned();
    for row in TABLE {
        text.push_str(&format!(
            "| `{}` | `--{}` | {} | {} | {} |\n",
            row.name,
            row.flag,
            row.default_text(),
            row.allowed(),
            row.help
        ));
    }
    text
}

#[test]
fn the_documentation_lists_every_setting_as_it_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let (begin, end) = ("<!-- settings: begin -->\n", "<!-- settings: end -->");
    let text = std::fs::read_to_string(path).unwrap();
    let (head, rest) = text.split_once(begin).unwrap();
    let (table, tail) = rest.split_once(end).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, format!("{head}{begin}{}{end}{tail}", documented())).unwrap();
        return;
    }
    assert_eq!(table, documented(), "run the test with UPDATE=1 to write the table anew");
}
