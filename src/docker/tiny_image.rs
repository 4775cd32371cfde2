//! A file tree of one static busybox, as a tar archive: a shell where no registry can be reached.

use std::{path::Path, process::Command};

use leasehold_actors::error::EngineError;

/// Why no tiny image could be made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TinyImageError {
    /// This machine has no busybox that runs without libraries.
    #[error("no static busybox at /bin/busybox or /usr/bin/busybox: install the package busybox-static")]
    NoBusybox,
    /// It is there but cannot be used.
    #[error("{path}: {reason}")]
    Unusable {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The engine refused the image.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

const PLACES: [&str; 2] = ["/bin/busybox", "/usr/bin/busybox"];

/// The archive: `bin/busybox`, a link for each of its tools, the few files and folders that programs expect.
pub(super) fn busybox_tree() -> Result<Vec<u8>, TinyImageError> {
    let path = PLACES.iter().find(|p| Path::new(p).is_file()).ok_or(TinyImageError::NoBusybox)?;
    let unusable = |reason: String| TinyImageError::Unusable { path: (*path).to_owned(), reason };
    let program = std::fs::read(path).map_err(|e| unusable(e.to_string()))?;
    if needs_libraries(&program) {
        return Err(TinyImageError::NoBusybox);
    }
    let listed = Command::new(path).arg("--list").output().map_err(|e| unusable(e.to_string()))?;
    let tools = String::from_utf8_lossy(&listed.stdout);

    let mut tar = Tar::default();
    for folder in ["bin/", "dev/", "etc/", "proc/", "root/", "sys/", "usr/", "usr/bin/", "var/"] {
        tar.entry(folder, Kind::Folder, 0o755, b"");
    }
    tar.entry("tmp/", Kind::Folder, 0o1777, b"");
    tar.entry(
        "etc/passwd",
        Kind::File,
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    );
    tar.entry("etc/group", Kind::File, 0o644, b"root:x:0:\nnobody:x:65534:\n");
    tar.entry("bin/busybox", Kind::File, 0o755, &program);
    for tool in tools.lines().filter(|tool| !tool.is_empty() && *tool != "busybox") {
        tar.entry(&format!("bin/{tool}"), Kind::Link("busybox"), 0o777, b"");
    }
    tar.entry("usr/bin/env", Kind::Link("/bin/env"), 0o777, b"");
    Ok(tar.finish())
}

/// A program that names a loader (a `PT_INTERP` header) does not run in an empty tree.
fn needs_libraries(program: &[u8]) -> bool {
    const INTERPRETER: u64 = 3;
    let number = |at: usize, length: usize| {
        let bytes = program.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let headers = || {
        let wide = program.get(4) == Some(&2);
        let (table, size, count) = if wide {
            (number(32, 8)?, number(54, 2)?, number(56, 2)?)
        } else {
            (number(28, 4)?, number(42, 2)?, number(44, 2)?)
        };
        (0..count).map(|i| number(usize::try_from(table + i * size).ok()?, 4)).collect::<Option<Vec<u64>>>()
    };
    !program.starts_with(b"\x7fELF") || headers().is_none_or(|kinds| kinds.contains(&INTERPRETER))
}

enum Kind<'a> {
    File,
    Folder,
    Link(&'a str),
}

/// The few parts of the ustar format that a tree of short names needs.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn entry(&mut self, name: &str, kind: Kind<'_>, mode: u32, data: &[u8]) {
        let (flag, target) = match kind {
            Kind::File => (b'0', ""),
            Kind::Folder => (b'5', ""),
            Kind::Link(target) => (b'2', target),
        };
        let mut header = [0_u8; 512];
        put(&mut header, 0, name.as_bytes());
        put(&mut header, 100, format!("{mode:07o}").as_bytes());
        put(&mut header, 108, b"0000000");
        put(&mut header, 116, b"0000000");
        put(&mut header, 124, format!("{:011o}", data.len()).as_bytes());
        put(&mut header, 136, b"00000000000");
        // The checksum is computed over blanks in its own place.
        put(&mut header, 148, b"        ");
        header[156] = flag;
        put(&mut header, 157, target.as_bytes());
        put(&mut header, 257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        put(&mut header, 148, format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

fn put(header: &mut [u8; 512], at: usize, bytes: &[u8]) {
    header[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_libraries_is_no_static_one() {
        assert!(needs_libraries(b"#!/bin/sh\n"));
        assert!(needs_libraries(b"\x7fELF"));
        let this_test = std::fs::read("/proc/self/exe").expect("a program can read itself");
        assert!(needs_libraries(&this_test));
    }
}
