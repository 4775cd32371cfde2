//! Integration tests: postgres.
