//! The Docker engine of `leasehold dev`: the one that answers, or, as root, a private one of our own.
//!
//! The private engine has no network of its own (no bridge, no iptables rules: the machine's network stays as it
//! is); its images live in the data folder, everything else under /run, and it dies with us.

use std::{
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use leasehold_actors::ports::{ContainerEngine as _, EngineInfo};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep, timeout};

use super::{child::BoundChild, server::fingerprint};
use crate::{config::TlsFiles, docker::DockerEngine};

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Why there is no engine: CONTAINER jobs wait, everything else works.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct NoEngine(String);

/// An engine that answered.
#[derive(Debug)]
pub struct LocalEngine {
    /// Where it listens.
    pub endpoint: String,
    /// What it says of itself.
    pub info: EngineInfo,
    private: Option<Private>,
}

#[derive(Debug)]
struct Private {
    daemon: BoundChild,
    places: Places,
}

impl LocalEngine {
    /// The engine at `endpoint`; where none answers there and `may_start`, a private one.
    ///
    /// Call it from a thread that lives as long as the process: the private engine is tied to it.
    ///
    /// # Errors
    /// [`NoEngine`] says what to do about it.
    pub async fn provide(
        endpoint: &str,
        tls: Option<&TlsFiles>,
        may_start: bool,
        folder: &Path,
    ) -> Result<Self, NoEngine> {
        let silent = match ask(endpoint, tls).await {
            Ok(info) => return Ok(Self { endpoint: endpoint.to_owned(), info, private: None }),
            Err(reason) => reason,
        };
        let refuse = |what: &str| {
            Err(NoEngine(format!(
                "no Docker engine answers at {endpoint} ({silent}); {what}; CONTAINER jobs wait until then"
            )))
        };
        if !may_start {
            return refuse("start it, or name another one with --docker-endpoint");
        }
        if !rustix::process::geteuid().is_root() {
            return refuse("start one, join the group docker, or run this as root");
        }
        let Some(dockerd) = find_dockerd() else {
            return refuse("install one (apt-get install docker.io)");
        };
        match start(&dockerd, folder).await {
            Ok(engine) => Ok(engine),
            Err(reason) => refuse(&format!("a private one did not start: {reason}")),
        }
    }

    /// True when the engine is our own.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// Stops a private engine with all its containers.
    pub async fn stop(self) {
        if let Some(mut private) = self.private {
            private.daemon.stop(STOP_LIMIT).await;
            private.places.clear();
        }
    }
}

async fn ask(endpoint: &str, tls: Option<&TlsFiles>) -> Result<EngineInfo, String> {
    let engine = DockerEngine::connect(endpoint, tls).map_err(|e| e.to_string())?;
    match timeout(ANSWER_LIMIT, engine.info()).await {
        Ok(Ok(info)) => Ok(info),
        Ok(Err(error)) => Err(error.message),
        Err(_) => Err(format!("nothing came back within {} s", ANSWER_LIMIT.as_secs())),
    }
}

/// Where Debian and others put it, also when the caller's PATH lacks the system's folders.
fn search_path() -> String {
    let own = std::env::var("PATH").unwrap_or_default();
    format!("{own}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin")
}

fn find_dockerd() -> Option<PathBuf> {
    std::env::split_paths(&search_path()).map(|folder| folder.join("dockerd")).find(|path| path.is_file())
}

/// A private engine's files. Short, since unix sockets are among them.
#[derive(Debug)]
struct Places {
    run: PathBuf,
    data: PathBuf,
}

impl Places {
    fn of(folder: &Path) -> Self {
        let run = Path::new("/run").join(format!("leasehold-dev-{:016x}", fingerprint(folder)));
        Self { run, data: folder.join("docker") }
    }

    fn pid_file(&self) -> PathBuf {
        self.run.join("docker.pid")
    }

    /// What a killed engine left behind: containers with their shims, mounts, files.
    fn clear(&self) {
        for shim in self.shims() {
            // The shim would only report the end of its container to an engine that is gone.
            for pid in children_of(shim).chain([shim]) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let ours = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
        for mount in ours.filter(|mount| mount.starts_with(&self.run) || mount.starts_with(&self.data)) {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(&self.run);
    }

    /// Shims of our own containerd: its socket is among their arguments.
    fn shims(&self) -> Vec<Pid> {
        let run = self.run.to_string_lossy().into_owned();
        processes()
            .filter(|pid| {
                let command = command_of(*pid);
                command.contains("containerd-shim") && command.contains(&run)
            })
            .collect()
    }

    /// The engine of a killed `dev` was told to end by the kernel: wait for it, then insist. It is not told twice:
    /// from the third time on it would drop everything where it stands.
    async fn clear_predecessor(&self) {
        let until = Instant::now() + STOP_LIMIT;
        while let Some(pid) = self.running() {
            if Instant::now() > until {
                let _ = kill_process(pid, Signal::KILL);
            }
            sleep(Duration::from_millis(100)).await;
        }
        self.clear();
    }

    fn running(&self) -> Option<Pid> {
        let pid =
            std::fs::read_to_string(self.pid_file()).ok()?.trim().parse().ok().and_then(Pid::from_raw)?;
        let command = command_of(pid);
        (command.contains("dockerd") && command.contains(&*self.run.to_string_lossy())).then_some(pid)
    }
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// A process's arguments in one text; empty for one that is gone.
fn command_of(pid: Pid) -> String {
    let arguments = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&arguments).into_owned()
}

fn children_of(parent: Pid) -> impl Iterator<Item = Pid> {
    let line = format!("PPid:\t{}", parent.as_raw_nonzero());
    processes().filter(move |pid| {
        std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))
            .is_ok_and(|status| status.lines().any(|found| found == line))
    })
}

async fn start(dockerd: &Path, folder: &Path) -> Result<LocalEngine, String> {
    let places = Places::of(folder);
    places.clear_predecessor().await;
    std::fs::create_dir_all(&places.run).map_err(|e| format!("{}: {e}", places.run.display()))?;
    let endpoint = format!("unix://{}", places.run.join("docker.sock").display());
    let log_path = folder.join("docker.log");
    let log = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&log_path)
        .map_err(|e| format!("{}: {e}", log_path.display()))?;
    let log_again = log.try_clone().map_err(|e| e.to_string())?;

    let name = places.run.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut command = Command::new(dockerd);
    command
        .env("PATH", search_path())
        .arg("--data-root")
        .arg(&places.data)
        .arg("--exec-root")
        .arg(places.run.join("exec"))
        .arg("--pidfile")
        .arg(places.pid_file())
        .args(["-H", &endpoint])
        // A machine-wide containerd, where one runs, is shared without being mixed up.
        .args(["--containerd-namespace", &name, "--containerd-plugins-namespace", &format!("{name}-plugins")])
        .args([
            "--bridge",
            "none",
            "--iptables=false",
            "--ip-forward=false",
            "--ip-masq=false",
            "--userland-proxy=false",
        ])
        .args(["--shutdown-timeout", "5", "--log-level", "warn"])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_again);
    let mut daemon = BoundChild::spawn(&mut command, "dockerd", Signal::TERM).map_err(|e| e.to_string())?;
    let until = Instant::now() + START_LIMIT;
    loop {
        if daemon.ended().is_some() {
            places.clear();
            let said = std::fs::read_to_string(&log_path).unwrap_or_default();
            let said = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
            return Err(said.to_owned());
        }
        match ask(&endpoint, None).await {
            Ok(info) => return Ok(LocalEngine { endpoint, info, private: Some(Private { daemon, places }) }),
            Err(_) if Instant::now() < until => sleep(Duration::from_millis(50)).await,
            Err(reason) => {
                daemon.stop(STOP_LIMIT).await;
                places.clear();
                return Err(reason);
            }
        }
    }
}
