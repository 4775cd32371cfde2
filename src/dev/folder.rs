//! The data folder of `leasehold dev`: who may use it, and what it tells to the other commands.
//!
//! `lock` is held (flock) by the one `dev` that runs on the folder and goes away with its process, however it
//! ends; `env` holds `DATABASE_URL=…` while that `dev` is ready.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Where `leasehold dev` keeps its data unless told otherwise.
pub const DEFAULT_FOLDER: &str = ".leasehold/dev";

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another `leasehold dev` runs on it.
    #[error(
        "another `leasehold dev` (pid {pid}) runs on {path}; stop it, or choose another folder with --data-dir",
        path = folder.display()
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// Its process, as it wrote it down.
        pid: String,
    },
    /// The file system refused.
    #[error("cannot use the data folder {path}: {error}; choose another one with --data-dir", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// A data folder that is ours until this value is dropped.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    _lock: File,
}

impl DataFolder {
    /// Makes the folder where there is none, and takes it.
    ///
    /// # Errors
    /// [`FolderError`] when another `dev` has it, or the file system refuses.
    pub fn take(path: &Path) -> Result<Self, FolderError> {
        let io_error = |path: &Path| {
            let path = path.to_owned();
            move |error| FolderError::Io { path, error }
        };
        // Others may pass through (the database runs as an unprivileged user) but not look around.
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(path).map_err(io_error(path))?;
        let path = path.canonicalize().map_err(io_error(path))?;
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(io_error(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = lock.read_to_string(&mut pid);
                let pid =
                    pid.trim().parse::<u32>().map_or_else(|_| "unknown".to_owned(), |pid| pid.to_string());
                return Err(FolderError::InUse { folder: path, pid });
            }
            Err(TryLockError::Error(error)) => return Err(io_error(&lock_path)(error)),
        }
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .map_err(io_error(&lock_path))?;
        Ok(Self { path, _lock: lock })
    }

    /// The folder, as an absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the other commands how to reach us. Readable by the owner alone: it holds a password.
    ///
    /// # Errors
    /// [`FolderError`] when the file cannot be written.
    pub fn write_env(&self, variables: &[(&str, &str)]) -> Result<(), FolderError> {
        let path = self.env_path();
        let text: String = variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        write_private(&path, &text).map_err(|error| FolderError::Io { path, error })
    }

    /// Where [`DataFolder::write_env`] writes.
    #[must_use]
    pub fn env_path(&self) -> PathBuf {
        self.path.join("env")
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.env_path());
    }
}

/// Writes a whole file that only its owner may read; readers see the old or the new text, never a part.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?.write_all(text.as_bytes())?;
    std::fs::rename(&fresh, path)
}

/// The database address of the `dev` that runs on a folder, if one runs there and is ready.
#[must_use]
pub fn running_database(folder: &Path) -> Option<String> {
    let lock = File::open(folder.join("lock")).ok()?;
    // Nobody holds the lock: what `env` says is left over from a killed process.
    match lock.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {}
        Ok(()) | Err(TryLockError::Error(_)) => return None,
    }
    let text = std::fs::read_to_string(folder.join("env")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("DATABASE_URL=")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_taken_once_and_speaks_only_while_it_is_held() {
        let path = std::env::temp_dir().join(format!("leasehold-folder-{}", uuid::Uuid::new_v4()));
        assert_eq!(running_database(&path), None);
        let folder = DataFolder::take(&path).unwrap();
        assert_eq!(running_database(&path), None, "not ready yet");
        folder.write_env(&[("DATABASE_URL", "postgres://here")]).unwrap();
        assert_eq!(running_database(&path).as_deref(), Some("postgres://here"));
        let refused = DataFolder::take(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("(pid {})", std::process::id())), "{refused}");
        let env = folder.env_path();
        let text = std::fs::read_to_string(&env).unwrap();
        drop(folder);
        assert!(!env.exists());
        // As a killed process leaves it.
        std::fs::write(&env, text).unwrap();
        assert_eq!(running_database(&path), None);
        drop(DataFolder::take(&path).unwrap());
        std::fs::remove_dir_all(&path).unwrap();
    }
}
