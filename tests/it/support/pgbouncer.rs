//! A pgbouncer of the test's own, in transaction mode, before the shared server.

use std::{
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::eventually::eventually;

/// Ended when dropped.
#[derive(Debug)]
pub struct PgBouncer {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl PgBouncer {
    /// Before the server of this URL. `extra` are further lines of its configuration.
    pub async fn start(url: &str, extra: &str) -> Self {
        let server = url::Url::parse(url).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = std::env::temp_dir().join(format!("lh-pgbouncer-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(dir.join("users.txt"), "\"postgres\" \"\"\n").unwrap();
        let config = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = 12\nmax_client_conn = 500\nserver_lifetime = 3600\n{extra}\n",
            server.host_str().unwrap(),
            server.port().unwrap_or(5432),
            dir.join("users.txt").display(),
        );
        let file = dir.join("pgbouncer.ini");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("/usr/sbin/pgbouncer");
        if rustix::process::geteuid().is_root() {
            // It refuses to run as root.
            let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
            let nobody = passwd.lines().find(|l| l.starts_with("nobody:")).expect("there is a user nobody");
            let ids: Vec<u32> = nobody.split(':').skip(2).take(2).map(|id| id.parse().unwrap()).collect();
            command.uid(ids[0]).gid(ids[1]);
        }
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let child = command
            .arg(&file)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("pgbouncer is installed: apt-get install pgbouncer");
        let bouncer = Self { child, port, dir };
        eventually(Duration::from_secs(60), "pgbouncer answers", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()
        })
        .await;
        bouncer
    }

    /// The URL, by way of this pooler.
    pub fn url(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(self.port)).unwrap();
        url.into()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("pgbouncer: {}", std::fs::read_to_string(self.dir.join("log")).unwrap_or_default());
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
