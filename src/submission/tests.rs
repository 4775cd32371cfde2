//! The rules, one table: each bad request differs from a good one in one place.

#[path = "requests.rs"]
#[allow(unreachable_pub, reason = "the integration tests have the file as a module of their own")]
mod requests;

use self::requests::{container, env};
use super::*;

#[test]
fn ordinary_requests_pass() {
    for job in requests::good() {
        assert_eq!(validate(&job), Ok(()), "{job:?}");
    }
}

/// DK-33
#[test]
fn environment_values_pass_up_to_the_kernels_limit_and_are_refused_beyond() {
    let exactly = MAX_VALUE - "A=".len();
    for (value, good) in [
        ("x".repeat(100 * 1024), true),
        ("x".repeat(exactly), true),
        ("x".repeat(exactly + 1), false),
        ("x".repeat(140 * 1024), false),
    ] {
        let job = container(|c| c.env = env("A", value.clone()));
        assert_eq!(validate(&job).is_ok(), good, "{} bytes", value.len());
    }
    for value in ["\n", "\r\n", "\t", "a=b", "\"'", "$HOME", "\\n", " x ", "", "🦀"] {
        assert_eq!(validate(&container(|c| c.env = env("A", value.to_owned()))), Ok(()), "{value:?}");
    }
}

const MAX_VALUE: usize = container::MAX_ARGUMENT_BYTES - 1;

#[test]
fn every_broken_rule_is_named_by_its_field() {
    for (job, field) in requests::bad().into_iter().chain(requests::only_rust_can_tell()) {
        let error = validate(&job).expect_err(field);
        assert_eq!(error.field, field, "{error}");
        assert!(!error.to_string().contains('\n'), "one line: {error}");
    }
}
