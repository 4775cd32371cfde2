//! A PostgreSQL server of a test's own, for what cannot be tried on the shared one: TLS and passwords.

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

use super::eventually::eventually;

/// Ended, and its files removed, when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    dir: PathBuf,
    port: u16,
}

impl Server {
    /// Makes and starts a server. `prepare` may add files to the data folder, which is passed to it; `settings`
    /// are lines for postgresql.conf, `hba` those of pg_hba.conf for TCP (the socket is open to all).
    pub async fn start(settings: &str, hba: &str, prepare: impl Fn(&Path)) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = std::env::temp_dir().join(format!("lh-server-{}-{port}", std::process::id()));
        let data = dir.join("data");
        fs::create_dir_all(&dir).unwrap();
        own(&dir);
        let options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"];
        run(as_server_user(&bin("initdb")).arg("-D").arg(&data).args(options));
        prepare(&data);
        fs::write(data.join("pg_hba.conf"), format!("local all all trust\n{hba}\n")).unwrap();
        let config = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\nfsync = off\n{settings}\n",
            dir.display()
        );
        fs::write(data.join("postgresql.auto.conf"), config).unwrap();
        let log = fs::File::create(dir.join("log")).unwrap();
        let child = as_server_user(&bin("postgres"))
            .arg("-D")
            .arg(&data)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Self { child, dir, port };
        eventually(Duration::from_secs(30), "the server answers", async || {
            tokio_postgres::connect(&server.socket_url(), tokio_postgres::NoTls).await.ok().map(drop)
        })
        .await;
        server
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
        let _ = self.child.kill();
        let _ = self.child.wait();
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
