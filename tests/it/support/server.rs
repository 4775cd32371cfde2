//! A PostgreSQL server of a test's own, for what cannot be tried on the shared one: TLS and passwords, restarts,
//! standbys and their promotion, clocks that are off.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::Client;

use super::{database::client, eventually::eventually};

/// Whoever comes from this machine is let in, standbys too.
pub const TRUST: &str = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust";

/// Ended, and its files removed, when dropped.
#[derive(Debug)]
pub struct Server {
    /// None while it is stopped.
    child: Option<Child>,
    dir: PathBuf,
    port: u16,
    /// Its clock is ahead by so many seconds; the one that only counts is not.
    ahead: i32,
}

impl Server {
    /// Makes and starts a server. `prepare` may add files to the data folder, which is passed to it; `settings`
    /// are lines for postgresql.conf, `hba` those of pg_hba.conf for TCP (the socket is open to all).
    pub async fn start(settings: &str, hba: &str, prepare: impl Fn(&Path)) -> Self {
        let mut server = Self::placed(0);
        let data = server.data();
        let options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"];
        run(as_server_user(&bin("initdb")).arg("-D").arg(&data).args(options));
        prepare(&data);
        fs::write(data.join("pg_hba.conf"), format!("local all all trust\n{hba}\n")).unwrap();
        server.configure(settings);
        server.begin().await;
        server
    }

    /// A standby that follows this server under the name `name`, its clock ahead by so many seconds.
    pub async fn standby(&self, name: &str, settings: &str, ahead: i32) -> Self {
        let mut standby = Self::placed(ahead);
        let primary = format!("host=127.0.0.1 port={} user=postgres application_name={name}", self.port);
        let mut copy = as_server_user(&bin("pg_basebackup"));
        copy.args(["--no-sync", "-R", "-X", "stream", "-c", "fast", "-d", &primary, "-D"]);
        run(copy.arg(standby.data()));
        standby.configure(&format!("primary_conninfo = '{primary}'\n{settings}"));
        standby.begin().await;
        standby
    }

    fn placed(ahead: i32) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = std::env::temp_dir().join(format!("lh-server-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        own(&dir);
        Self { child: None, dir, port, ahead }
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn configure(&self, settings: &str) {
        let config = format!(
            "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = '{}'\nfsync = off\n{settings}\n",
            self.port,
            self.dir.display()
        );
        fs::write(self.data().join("postgresql.auto.conf"), config).unwrap();
    }

    /// Starts it again, where it was.
    pub async fn begin(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        let mut command = as_server_user(&bin("postgres"));
        if self.ahead != 0 {
            let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
            assert!(Path::new(library).exists(), "libfaketime is installed: apt-get install faketime");
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME", format!("{:+}s", self.ahead))
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        }
        command.arg("-D").arg(self.data()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        eventually(Duration::from_secs(60), "the server answers", async || {
            tokio_postgres::connect(&self.socket_url(), tokio_postgres::NoTls).await.ok().map(drop)
        })
        .await;
    }

    /// Ends it at once, as a crash does: sessions are cut, and nothing is written any more.
    pub fn crash(&mut self) {
        self.end(Signal::QUIT);
    }

    /// Ends it in good order, which still cuts every session.
    pub fn stop(&mut self) {
        self.end(Signal::INT);
    }

    fn end(&mut self, signal: Signal) {
        let mut child = self.child.take().expect("it runs");
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
    }

    /// Makes a standby the primary, and waits until it is.
    pub async fn promote(&self) {
        let admin = self.client().await;
        let done: bool = admin.query_one("select pg_promote(true, 60)", &[]).await.unwrap().get(0);
        assert!(done, "not promoted");
    }

    /// A superuser's session.
    pub async fn client(&self) -> Client {
        client(&self.socket_url()).await
    }

    /// Its URL over TCP, where [`TRUST`] lets us in.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// As superuser, past every rule of pg_hba.conf.
    pub fn socket_url(&self) -> String {
        format!("host={} port={} user=postgres dbname=postgres", self.dir.display(), self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGINT would be a clean stop, but nobody looks at these files again.
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("server: {}", fs::read_to_string(self.dir.join("log")).unwrap_or_default());
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Gives a file or folder to the user that the server runs as, and to nobody else.
pub fn own(path: &Path) {
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    if let Some((uid, gid)) = server_user() {
        chown(path, Some(uid), Some(gid)).unwrap();
    }
}

/// PostgreSQL refuses to run as root.
fn server_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let entry = ["postgres:", "nobody:"]
        .iter()
        .find_map(|name| passwd.lines().find(|line| line.starts_with(name)))
        .expect("there is a user that is not root");
    let ids: Vec<u32> = entry.split(':').skip(2).take(2).map(|id| id.parse().unwrap()).collect();
    Some((ids[0], ids[1]))
}

fn as_server_user(program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some((uid, gid)) = server_user() {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/").stdin(Stdio::null());
    command
}

fn bin(name: &str) -> PathBuf {
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .expect("PostgreSQL's server binaries are installed: apt-get install postgresql")
        .map(|entry| entry.unwrap().path().join("bin").join(name))
        .filter(|path| path.exists())
        .collect();
    versions.sort();
    versions.pop().expect("PostgreSQL's server binaries are installed: apt-get install postgresql")
}

/// Runs a program to its end.
pub fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
