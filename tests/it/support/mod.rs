//! Integration tests: support.

pub mod services;
