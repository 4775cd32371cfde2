//! Integration tests: support.
