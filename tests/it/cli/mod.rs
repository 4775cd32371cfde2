//! The binary and the parts that only it uses, as a person meets them.

mod cluster;
mod engine;
