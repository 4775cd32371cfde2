//! The embedding API for workers.
