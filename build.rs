//! Tells cargo that a new file under `migrations/` changes the crate: the migrations are embedded by a macro
//! that tracks the files that it saw, not the folder.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=migrations");
}
