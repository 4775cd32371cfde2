//! How often a proof is repeated: a few times in `make test`, and in full by `make proof`.

/// `few`, or `all` where the whole proof was asked for (`LEASEHOLD_TEST_LONG`).
pub fn rounds(few: u32, all: u32) -> u32 {
    if std::env::var_os("LEASEHOLD_TEST_LONG").is_some_and(|value| value != "0") { all } else { few }
}
