//! The `leasehold` binary; see [`leasehold::cli`].

fn main() {}
