//! The integration tests: one binary, so that two cores link once. See `tests/README.md`.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the numbers of tests are small")]
#![allow(missing_docs, unreachable_pub, reason = "a test binary has no readers but its authors")]

mod boundary;
mod chaos;
mod cli;
mod crash;
mod docker;
mod docs;
mod postgres;
mod recipes;
mod scenarios;
mod support;
