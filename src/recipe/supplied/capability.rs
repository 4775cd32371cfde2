//! A capability: all that proves a lease, in a form that can be handed to another process by a private pipe or a file of
//! its owner's alone.
//!
//! Only the proof is in it. Whoever imports it takes everything else (route, recipe, payload, schemas) from the database.

use std::{
    fmt,
    fs::File,
    io::{self, IsTerminal as _, Read, Write as _},
    path::{Path, PathBuf},
};

use leasehold_actors::{
    domain::{Epoch, JobId, LeaseToken, Namespace, ProcessId, WorkerId},
    ports::{Authority, Claimant},
};
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The version that this program writes and reads.
const VERSION: u32 = 1;

/// No capability is longer.
pub const MAX_BYTES: u64 = 1 << 20;

/// The proof of one lease. Whoever has it acts as the lease's owner, until the first redemption.
#[derive(Clone, PartialEq, Eq)]
pub struct Capability {
    authority: Authority,
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token masks itself.
        f.debug_tuple("Capability").field(&self.authority).finish()
    }
}

impl From<Authority> for Capability {
    fn from(authority: Authority) -> Self {
        Self { authority }
    }
}

/// Why a capability cannot be used. Never with anything of its contents.
#[derive(Debug, thiserror::Error)]
pub enum CapabilityError {
    /// A terminal would show it, and keep it.
    #[error("a capability is not read from a terminal; give --lease-file a file, or a pipe and `-`")]
    Terminal,
    /// It cannot be opened or read.
    #[error("cannot read the capability from {from}: {source}")]
    Read {
        /// Where.
        from: String,
        /// Why.
        source: io::Error,
    },
    /// Somebody may have put another file there.
    #[error("{} is a symbolic link; name the file itself", .0.display())]
    Symlink(PathBuf),
    /// Not a file, so its permissions protect nothing.
    #[error("{} is no regular file; give a file, or a pipe and `-`", .0.display())]
    NotRegular(PathBuf),
    /// Somebody else can change it.
    #[error("{} belongs to user {owner}, not to the user {caller} who reads it; have it written by that user", path.display())]
    NotOwned {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who reads it.
        caller: u32,
    },
    /// Others can read it.
    #[error("{} has mode {mode:04o}; make it readable by its owner alone (chmod 600), and take the lease for known to others", path.display())]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It cannot be one.
    #[error("{from} is longer than 1 MiB, which no capability is")]
    TooLarge {
        /// Where it was read from.
        from: String,
    },
    /// Another program wrote it.
    #[error(
        "{from} is a capability of version {version}; this program reads version {VERSION}: use the one that wrote it"
    )]
    Version {
        /// Where it was read from.
        from: String,
        /// Its version.
        version: u32,
    },
    /// It cannot be read.
    #[error(
        "{from} holds no capability (line {line}, column {column}); write one with `leasehold lease acquire`"
    )]
    Malformed {
        /// Where it was read from.
        from: String,
        /// Where in it.
        line: usize,
        /// Where in the line.
        column: usize,
    },
    /// It cannot be written.
    #[error("cannot write the capability to {}: {source}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The form in which it travels.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    version: u32,
    namespace: Namespace,
    job: JobId,
    epoch: Epoch,
    owner: WireOwner,
    token: Uuid,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireOwner {
    worker: WorkerId,
    process: ProcessId,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl Capability {
    /// The lease that it proves.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The tenant of its job.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.authority.owner.namespace
    }

    /// Its job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.authority.job
    }

    /// The secret itself, for a private pipe. Do not log it.
    #[must_use]
    pub fn expose(&self) -> String {
        let Authority { owner, job, token, epoch } = &self.authority;
        let wire = Wire {
            version: VERSION,
            namespace: owner.namespace.clone(),
            job: *job,
            epoch: *epoch,
            owner: WireOwner { worker: owner.worker.clone(), process: owner.process },
            token: token.expose_to_store(),
        };
        serde_json::to_string(&wire).expect("texts and numbers under fixed keys always serialize")
    }

    fn parse(text: &[u8], from: &str) -> Result<Self, CapabilityError> {
        // serde_json's own words quote what they do not like.
        let malformed = |error: serde_json::Error| CapabilityError::Malformed {
            from: from.to_owned(),
            line: error.line(),
            column: error.column(),
        };
        let Versioned { version } = serde_json::from_slice(text).map_err(malformed)?;
        if version != VERSION {
            return Err(CapabilityError::Version { from: from.to_owned(), version });
        }
        let Wire { version: _, namespace, job, epoch, owner, token } =
            serde_json::from_slice(text).map_err(malformed)?;
        let owner = Claimant { namespace, worker: owner.worker, process: owner.process };
        let token = LeaseToken::from_store(token);
        Ok(Self { authority: Authority { owner, job, token, epoch } })
    }

    /// Reads a capability from a stream to its end.
    ///
    /// # Errors
    /// [`CapabilityError`]
    pub fn read_from(stream: impl Read, from: &str) -> Result<Self, CapabilityError> {
        let mut text = Vec::new();
        stream
            .take(MAX_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(|source| CapabilityError::Read { from: from.to_owned(), source })?;
        if text.len() as u64 > MAX_BYTES {
            return Err(CapabilityError::TooLarge { from: from.to_owned() });
        }
        Self::parse(&text, from)
    }

    /// Reads a capability from standard input, unless that is a terminal.
    ///
    /// # Errors
    /// [`CapabilityError`]
    pub fn read_stdin() -> Result<Self, CapabilityError> {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            return Err(CapabilityError::Terminal);
        }
        Self::read_from(stdin.lock(), "standard input")
    }

    /// Reads a capability from a file that is regular, the caller's own, and nobody else's to read.
    ///
    /// # Errors
    /// [`CapabilityError`]
    pub fn read_file(path: &Path) -> Result<Self, CapabilityError> {
        let from = path.display().to_string();
        let cannot = |error: rustix::io::Errno| match error {
            rustix::io::Errno::LOOP => CapabilityError::Symlink(path.to_owned()),
            error => CapabilityError::Read { from: from.clone(), source: error.into() },
        };
        // Without blocking: the opening of a named pipe waits for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(cannot)?;
        // Of what was opened, not of what now has that name.
        let stat = rustix::fs::fstat(&file).map_err(cannot)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(CapabilityError::NotRegular(path.to_owned()));
        }
        let caller = rustix::process::geteuid().as_raw();
        if stat.st_uid != caller {
            return Err(CapabilityError::NotOwned { path: path.to_owned(), owner: stat.st_uid, caller });
        }
        let mode = stat.st_mode & 0o7777;
        if mode != 0o600 && mode != 0o400 {
            return Err(CapabilityError::TooOpen { path: path.to_owned(), mode });
        }
        if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > MAX_BYTES {
            return Err(CapabilityError::TooLarge { from });
        }
        Self::read_from(File::from(file), &from)
    }

    /// Writes the capability to a new file that only its owner can read.
    ///
    /// # Errors
    /// [`CapabilityError::Write`]; no file is left behind then, and none that was there is touched.
    pub fn write_file(&self, path: &Path) -> Result<(), CapabilityError> {
        let cannot = |source: io::Error| CapabilityError::Write { path: path.to_owned(), source };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let owner_only = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::open(path, flags, owner_only).map_err(|error| cannot(error.into()))?;
        let mut file = File::from(file);
        let written = (|| {
            // Whatever the umask took away.
            rustix::fs::fchmod(&file, owner_only)?;
            file.write_all(self.expose().as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()
        })();
        if written.is_err() {
            // It is ours: it was not there before.
            let _ = std::fs::remove_file(path);
        }
        written.map_err(cannot)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn capability() -> Capability {
        Capability::from(Authority {
            owner: Claimant {
                namespace: Namespace::default(),
                worker: WorkerId::new("w-1").expect("a plain name"),
                process: ProcessId::generate(),
            },
            job: JobId(7),
            token: LeaseToken::generate(),
            epoch: Epoch((3 << 40) + 5),
        })
    }

    /// A folder of the test's own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let folder = std::env::temp_dir().join(format!("lh-capability-{}", Uuid::new_v4()));
            std::fs::create_dir(&folder).expect("a test may have a folder");
            Self(folder)
        }

        fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, text).expect("it can be written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_written_is_read_by_its_owner_alone() {
        let (folder, capability) = (Folder::new(), capability());
        let path = folder.0.join("lease");
        capability.write_file(&path).expect("a new file");
        assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o7777, 0o600);
        assert_eq!(Capability::read_file(&path).expect("it is ours"), capability);
        let text = std::fs::read_to_string(&path).expect("it is ours");
        let again = capability.write_file(&path).expect_err("it is there already");
        assert!(matches!(again, CapabilityError::Write { .. }), "{again}");
        assert_eq!(std::fs::read_to_string(&path).expect("it is ours"), text, "and untouched");
        let read_only = folder.file("read-only", &text, 0o400);
        assert_eq!(Capability::read_file(&read_only).expect("it is ours"), capability);
    }

    #[test]
    fn a_file_that_others_could_read_or_replace_is_refused() {
        let folder = Folder::new();
        let text = capability().expose();
        for mode in [0o644, 0o640, 0o660, 0o604, 0o700, 0o200, 0o4600] {
            let path = folder.file(&format!("mode-{mode:o}"), &text, mode);
            let refused = Capability::read_file(&path).expect_err("it is too open");
            let unreadable = matches!(&refused, CapabilityError::Read { .. }) && mode & 0o400 == 0;
            assert!(matches!(refused, CapabilityError::TooOpen { .. }) || unreadable, "{mode:o}: {refused}");
        }
        let real = folder.file("real", &text, 0o600);
        symlink(&real, folder.0.join("link")).expect("a link");
        let refused = Capability::read_file(&folder.0.join("link")).expect_err("it is a link");
        assert!(matches!(refused, CapabilityError::Symlink(_)), "{refused}");
        let refused = Capability::read_file(&folder.0).expect_err("it is a folder");
        assert!(matches!(refused, CapabilityError::NotRegular(_)), "{refused}");
        let fifo = folder.0.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .expect("a fifo");
        let refused = Capability::read_file(&fifo).expect_err("nobody waits for a writer");
        assert!(matches!(refused, CapabilityError::NotRegular(_)), "{refused}");
        let missing = Capability::read_file(&folder.0.join("missing")).expect_err("it is not there");
        assert!(matches!(missing, CapabilityError::Read { .. }), "{missing}");
        let large = folder.file("large", &" ".repeat((1 << 20) + 1), 0o600);
        let refused = Capability::read_file(&large).expect_err("it is too large");
        assert!(matches!(refused, CapabilityError::TooLarge { .. }), "{refused}");
        let exact = folder.file("exact", &format!("{text}{}", " ".repeat((1 << 20) - text.len())), 0o600);
        Capability::read_file(&exact).expect("1 MiB is not too large");
        let endless = Capability::read_from(io::repeat(b' '), "a pipe").expect_err("it is too large");
        assert!(matches!(endless, CapabilityError::TooLarge { .. }), "{endless}");
    }

    #[test]
    fn what_is_no_capability_is_refused_and_none_of_it_is_shown() {
        let text = capability().expose();
        let secret = capability().expose();
        let token = |text: &str| {
            let wire: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
            wire["token"].as_str().expect("a text").to_owned()
        };
        let token = token(&secret);
        let mut bad = vec![
            String::new(),
            "{}".to_owned(),
            token.clone(),
            format!("\"{token}\""),
            format!("{secret} {token}"),
            secret.replace(&token, &token[1..]),
            secret.replace("\"token\"", &format!("\"{token}\"")),
            secret.replace("\"job\":7", &format!("\"job\":\"{token}\"")),
            secret.replace("\"namespace\":\"default\"", &format!("\"namespace\":[\"{token}\"]")),
            secret.replace("\"worker\":\"w-1\"", "\"worker\":\"w-1\",\"worker\":\"w-2\""),
            secret.replace("\"epoch\"", &format!("\"{token}\":1,\"epoch\"")),
        ];
        for cut in 1..text.len() {
            bad.push(text[..cut].to_owned());
        }
        for bad in bad {
            let refused = Capability::read_from(bad.as_bytes(), "a pipe").expect_err(&bad);
            assert!(matches!(refused, CapabilityError::Malformed { .. }), "{refused}");
            for shown in [refused.to_string(), format!("{refused:?}")] {
                assert!(!shown.contains(&token[1..9]), "{shown}");
            }
        }
        let newer = text.replace("\"version\":1", "\"version\":2");
        let refused = Capability::read_from(newer.as_bytes(), "a pipe").expect_err("it is newer");
        assert!(matches!(refused, CapabilityError::Version { version: 2, .. }), "{refused}");
        let shown = format!("{:?}", Capability::read_from(secret.as_bytes(), "a pipe").expect("it is one"));
        assert!(shown.contains("w-1") && !shown.contains(&token[..8]), "{shown}");
    }
}
