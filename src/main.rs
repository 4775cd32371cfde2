//! The `leasehold` binary; see [`leasehold::cli`].

fn main() -> std::process::ExitCode {
    leasehold::cli::main()
}
