//! A private PostgreSQL cluster in a data folder, run by whatever server programs are installed.
//!
//! The unix socket lies in a folder that only the server's user (and root) may enter; over loopback a password
//! is asked for. The server is our child and dies with us; what a killed predecessor left behind is waited for
//! or cleared, so that the next start finds the same cluster.

use std::{
    fs::OpenOptions,
    io,
    net::TcpListener,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::{
    child::BoundChild,
    folder::write_private,
    server::{Places, Programs, User},
};

/// The user, and the database, of everything in an embedded cluster.
const NAME: &str = "leasehold";
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Why the cluster cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// PostgreSQL's server is not installed.
    #[error(
        "no PostgreSQL server programs in {looked_in}; install them (apt-get install postgresql), point PGBIN at them, \
         or pass --database-url"
    )]
    NoPrograms {
        /// The places that were looked at.
        looked_in: String,
    },
    /// The file system refused.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// `initdb` or the server ended instead of running.
    #[error("{program} failed: {said}")]
    Failed {
        /// Which program.
        program: &'static str,
        /// The end of what it said.
        said: String,
    },
    /// The server runs but does not answer.
    #[error("PostgreSQL did not answer within {} s; its log is {}", START_LIMIT.as_secs(), log.display())]
    TooSlow {
        /// Its log.
        log: PathBuf,
    },
    /// Another server works on the cluster.
    #[error("another PostgreSQL server (pid {pid}) works on {data}; stop it first", data = data.display())]
    Occupied {
        /// Its process.
        pid: i32,
        /// The cluster.
        data: PathBuf,
    },
    /// The server answers but refuses us.
    #[error("the embedded PostgreSQL refuses us: {0}")]
    Refused(String),
}

/// A running cluster. [`Cluster::stop`] ends it in good order; so does dropping it, less gracefully.
#[derive(Debug)]
pub struct Cluster {
    server: BoundChild,
    url: String,
    socket_url: String,
    socket_folder: Option<PathBuf>,
    moved: Option<String>,
    fresh: bool,
}

impl Cluster {
    /// Starts the cluster of a data folder, making it first where there is none. Call it from a thread that lives
    /// as long as the process: the server is tied to it.
    ///
    /// # Errors
    /// [`ClusterError`] says what is missing or in the way.
    pub async fn start(folder: &Path) -> Result<Self, ClusterError> {
        let user = User::unprivileged();
        let places = Places::choose(folder, user)?;
        let programs = Programs::find(places.made_by())?;
        let fresh = places.made_by().is_none();
        if fresh {
            initdb(&programs, user, &places)?;
        }
        clear_predecessor(&places.data).await?;
        places.make_socket_folder(user)?;

        let password = password(folder)?;
        let port = choose_port(folder)?;
        let log_path = folder.join("postgres.log");
        let log = open_log(&log_path)?;
        let mut command = programs.command("postgres", user);
        command.arg("-D").arg(&places.data).arg("-k").arg(&places.socket).args(["-p", &port.to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_permissions=0700",
            "logging_collector=off",
            "log_min_messages=warning",
            "max_connections=200",
            "cluster_name=leasehold-dev",
        ] {
            command.args(["-c", setting]);
        }
        let log_again =
            log.try_clone().map_err(|error| ClusterError::Io { path: log_path.clone(), error })?;
        command.stdout(log).stderr(log_again);
        // SIGINT is PostgreSQL's fast shutdown: sessions are cut, the data is left in good order.
        let mut server = BoundChild::spawn(&mut command, "postgres", Signal::INT)
            .map_err(|e| ClusterError::Failed { program: "postgres", said: e.to_string() })?;

        prepare(&places.socket, port, &password, &mut server, &log_path).await?;
        let socket = percent_encode(&places.socket.display().to_string());
        Ok(Self {
            server,
            url: format!("postgres://{NAME}:{password}@127.0.0.1:{port}/{NAME}"),
            socket_url: format!("postgres://{NAME}@{socket}:{port}/{NAME}"),
            socket_folder: (places.socket != places.data).then_some(places.socket),
            moved: places.moved,
            fresh,
        })
    }

    /// The address over loopback, with its password: for other programs of the same owner.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address over the unix socket, which needs no password: for ourselves.
    #[must_use]
    pub fn socket_url(&self) -> &str {
        &self.socket_url
    }

    /// Where the cluster lies, when it could not lie in the data folder, and why.
    #[must_use]
    pub fn moved(&self) -> Option<&str> {
        self.moved.as_deref()
    }

    /// True when this start made the cluster.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The server's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// True once the server has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.server.ended().is_some()
    }

    /// Stops the server in good order.
    pub async fn stop(mut self) {
        self.server.stop(STOP_LIMIT).await;
        if let Some(folder) = &self.socket_folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Makes the cluster beside its place and moves it there whole: a killed initdb leaves no half cluster.
fn initdb(programs: &Programs, user: User, places: &Places) -> Result<(), ClusterError> {
    let fresh = places.data.with_extension("new");
    let io_error = |path: &Path| {
        let path = path.to_owned();
        move |error| ClusterError::Io { path, error }
    };
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).map_err(io_error(&fresh))?;
    }
    user.make_folder(&fresh).map_err(io_error(&fresh))?;
    let output = programs
        .command("initdb", user)
        .args([
            "-U",
            NAME,
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "-D",
        ])
        .arg(&fresh)
        .output()
        .map_err(|e| ClusterError::Failed { program: "initdb", said: e.to_string() })?;
    if !output.status.success() {
        return Err(ClusterError::Failed {
            program: "initdb",
            said: last_line(&String::from_utf8_lossy(&output.stderr)),
        });
    }
    if places.data.exists() {
        // It holds no PG_VERSION, so it is no cluster; only an empty folder is ours to replace.
        std::fs::remove_dir(&places.data).map_err(io_error(&places.data))?;
    }
    std::fs::rename(&fresh, &places.data).map_err(io_error(&places.data))
}

/// A server that a killed `dev` left behind is about to end (it was told so by the kernel): wait for it. A pid
/// file whose process is gone, or is some other program by now, is removed.
async fn clear_predecessor(data: &Path) -> Result<(), ClusterError> {
    let pid_file = data.join("postmaster.pid");
    let until = Instant::now() + STOP_LIMIT;
    loop {
        let Ok(text) = std::fs::read_to_string(&pid_file) else { return Ok(()) };
        let pid = text.lines().next().and_then(|line| line.trim().parse::<i32>().ok()).unwrap_or(0);
        if pid <= 0 || !works_on(pid, data) {
            let _ = std::fs::remove_file(&pid_file);
            return Ok(());
        }
        if Instant::now() > until {
            return Err(ClusterError::Occupied { pid, data: data.to_owned() });
        }
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, Signal::INT);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// A postmaster's working directory is its cluster.
fn works_on(pid: i32, data: &Path) -> bool {
    let (Ok(there), Ok(ours)) = (std::fs::metadata(format!("/proc/{pid}/cwd")), std::fs::metadata(data))
    else {
        return false;
    };
    (there.dev(), there.ino()) == (ours.dev(), ours.ino())
}

/// The password for loopback: drawn once for a folder, readable by its owner alone.
fn password(folder: &Path) -> Result<String, ClusterError> {
    let path = folder.join("password");
    if let Ok(text) = std::fs::read_to_string(&path)
        && text.len() == 32
        && text.bytes().all(|b| b.is_ascii_hexdigit())
    {
        return Ok(text);
    }
    let password = uuid::Uuid::new_v4().simple().to_string();
    write_private(&path, &password).map_err(|error| ClusterError::Io { path, error })?;
    Ok(password)
}

/// The port of last time where it is free, so that addresses that people noted stay good.
fn choose_port(folder: &Path) -> Result<u16, ClusterError> {
    let path = folder.join("port");
    let last = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u16>().ok());
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).and_then(|socket| socket.local_addr());
    let address =
        last.filter(|port| *port > 1023).map_or_else(|| free(0), |port| free(port).or_else(|_| free(0)));
    let port = address.map_err(|error| ClusterError::Io { path: PathBuf::from("127.0.0.1"), error })?.port();
    write_private(&path, &port.to_string()).map_err(|error| ClusterError::Io { path, error })?;
    Ok(port)
}

/// The server's log: appended to, and begun anew once it has grown large.
fn open_log(path: &Path) -> Result<std::fs::File, ClusterError> {
    let large = std::fs::metadata(path).is_ok_and(|meta| meta.len() > 10 << 20);
    OpenOptions::new()
        .create(true)
        .write(true)
        .append(!large)
        .truncate(large)
        .mode(0o600)
        .open(path)
        .map_err(|error| ClusterError::Io { path: path.to_owned(), error })
}

/// Waits until the server answers, sets the password and makes the database.
async fn prepare(
    socket: &Path,
    port: u16,
    password: &str,
    server: &mut BoundChild,
    log: &Path,
) -> Result<(), ClusterError> {
    let mut config = tokio_postgres::Config::new();
    config.host_path(socket).port(port).user(NAME).dbname("postgres").connect_timeout(Duration::from_secs(5));
    let until = Instant::now() + START_LIMIT;
    let (client, connection) = loop {
        match config.connect(tokio_postgres::NoTls).await {
            Ok(connected) => break connected,
            Err(_) if server.ended().is_some() => {
                let said = std::fs::read_to_string(log).map(|text| last_line(&text)).unwrap_or_default();
                return Err(ClusterError::Failed { program: "postgres", said });
            }
            Err(_) if Instant::now() > until => return Err(ClusterError::TooSlow { log: log.to_owned() }),
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    };
    let connection = tokio::spawn(connection);
    let refused = |e: tokio_postgres::Error| {
        ClusterError::Refused(e.as_db_error().map_or_else(|| e.to_string(), |db| db.message().to_owned()))
    };
    // The password is 32 hexadecimal digits: nothing in it needs quoting.
    client.batch_execute(&format!("alter role {NAME} password '{password}'")).await.map_err(refused)?;
    let there =
        client.query_opt("select 1 from pg_database where datname = $1", &[&NAME]).await.map_err(refused)?;
    if there.is_none() {
        client.batch_execute(&format!("create database {NAME}")).await.map_err(refused)?;
    }
    drop(client);
    let _ = connection.await;
    Ok(())
}

fn last_line(text: &str) -> String {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned()
}

/// A path as the host part of a URL.
fn percent_encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}
