//! The parts of the embedded cluster that know PostgreSQL's installation: where its programs are, which user
//! runs them, where its data may lie.

use std::{
    io,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::cluster::ClusterError;

/// A folder of PostgreSQL server programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Programs {
    folder: PathBuf,
    /// The major version, where the folder's name tells it.
    major: Option<u32>,
}

impl Programs {
    fn at(folder: PathBuf) -> Option<Self> {
        let usable = ["initdb", "postgres"].iter().all(|name| folder.join(name).is_file());
        let major =
            folder.parent().and_then(|p| p.file_name()).and_then(|n| n.to_str()).and_then(|n| n.parse().ok());
        usable.then_some(Self { folder, major })
    }

    /// The newest installed programs, or those of the version that made an existing cluster.
    pub(super) fn find(made_by: Option<u32>) -> Result<Self, ClusterError> {
        if let Some(folder) = std::env::var_os("PGBIN").map(PathBuf::from) {
            return Self::at(folder.clone()).ok_or_else(|| ClusterError::NoPrograms {
                looked_in: format!("PGBIN={}", folder.display()),
            });
        }
        let mut found: Vec<Self> = std::fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| Self::at(entry.path().join("bin")))
            .collect();
        found.sort_by_key(|programs| programs.major);
        let best = match made_by {
            Some(version) => match found.iter().position(|programs| programs.major == Some(version)) {
                Some(place) => Some(found.swap_remove(place)),
                None => found.pop(),
            },
            None => found.pop(),
        };
        best.or_else(|| std::env::split_paths(&std::env::var_os("PATH")?).find_map(Self::at)).ok_or_else(
            || ClusterError::NoPrograms { looked_in: "/usr/lib/postgresql/*/bin and PATH".to_owned() },
        )
    }

    /// One of the programs, to be run as `user`.
    pub(super) fn command(&self, name: &str, user: User) -> Command {
        let mut command = Command::new(self.folder.join(name));
        if let Some((uid, gid)) = user.0 {
            command.uid(uid).gid(gid);
        }
        // A folder that the user cannot enter would make the programs complain; the environment could steer them.
        command.current_dir("/").stdin(Stdio::null());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        command
    }
}

/// Whom the server runs as: ourselves, or an unprivileged user when we are root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct User(pub(super) Option<(u32, u32)>);

impl User {
    pub(super) fn unprivileged() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self(None);
        }
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let ids = |wanted: &str| {
            users.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next() == Some(wanted)).then_some(())?;
                Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
            })
        };
        Self(ids("postgres").or_else(|| ids("nobody")).or(Some((65534, 65534))))
    }

    /// Makes a folder of the user's own.
    pub(super) fn make_folder(self, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
        self.own(path)
    }

    pub(super) fn own(self, path: &Path) -> io::Result<()> {
        match self.0 {
            Some((uid, gid)) => std::os::unix::fs::chown(path, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// Whether the user can pass through a folder. Asked of the system itself, by starting a program there.
    fn can_enter(self, folder: &Path) -> bool {
        let Some((uid, gid)) = self.0 else { return true };
        let mut command = Command::new("/bin/true");
        command
            .uid(uid)
            .gid(gid)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

/// Where a cluster's files lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Places {
    /// The cluster itself (PGDATA).
    pub(super) data: PathBuf,
    /// The folder of the unix socket.
    pub(super) socket: PathBuf,
    /// Why the cluster does not lie in the data folder, where it does not.
    pub(super) moved: Option<String>,
}

/// The longest path of a unix socket, without its final NUL.
const SOCKET_PATH_LIMIT: usize = 107;

impl Places {
    /// Chooses the places for a data folder. The same folder always leads to the same places, as long as its
    /// permissions stay.
    pub(super) fn choose(folder: &Path, user: User) -> Result<Self, ClusterError> {
        let name = format!("leasehold-dev-{:016x}", fingerprint(folder));
        let (base, moved) = if user.can_enter(folder) {
            (folder.to_owned(), None)
        } else {
            // As root under a home that nobody else may enter: the server could not reach its own files there.
            let base = Path::new("/var/lib/leasehold").join(&name);
            let why = format!(
                "the database's user cannot reach {}, so the cluster lies in {}",
                folder.display(),
                base.display()
            );
            make_passable(Path::new("/var/lib/leasehold"))?;
            make_passable(&base)?;
            (base, Some(why))
        };
        let data = base.join("pg");
        // PostgreSQL names its socket .s.PGSQL.PORT, and its lock file gets five characters more.
        let fits = data.as_os_str().len() + "/.s.PGSQL.65535.lock".len() <= SOCKET_PATH_LIMIT;
        let socket = if fits { data.clone() } else { Path::new("/tmp").join(&name) };
        Ok(Self { data, socket, moved })
    }

    /// The major version of the PostgreSQL that made the cluster; none when there is no cluster yet.
    pub(super) fn made_by(&self) -> Option<u32> {
        std::fs::read_to_string(self.data.join("PG_VERSION")).ok()?.trim().parse().ok()
    }

    /// Makes the socket's folder where it is not the cluster's own.
    pub(super) fn make_socket_folder(&self, user: User) -> Result<(), ClusterError> {
        if self.socket == self.data {
            return Ok(());
        }
        let io_error = |error| ClusterError::Io { path: self.socket.clone(), error };
        // Somebody else's folder of that name is not to be trusted: make it anew or not at all.
        let _ = std::fs::remove_dir_all(&self.socket);
        user.make_folder(&self.socket).map_err(io_error)
    }
}

fn make_passable(path: &Path) -> Result<(), ClusterError> {
    let io_error = |error| ClusterError::Io { path: path.to_owned(), error };
    std::fs::create_dir_all(path).map_err(io_error)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711)).map_err(io_error)
}

/// FNV-1a: the same on every machine and in every version, which std's hasher does not promise.
pub(super) fn fingerprint(path: &Path) -> u64 {
    use std::os::unix::ffi::OsStrExt as _;
    path.as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
