//! Integration tests: docker.
