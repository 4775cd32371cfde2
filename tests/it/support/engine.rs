//! Docker engines for tests: the two that all tests share, and private ones for tests that restart, freeze or
//! configure theirs. Containers get unique names and a label; none may be left when a test ends.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use futures_util::StreamExt as _;
use leasehold::{
    docker::DockerEngine,
    protocol::{
        domain::{ContainerId, ContainerSpec},
        ports::{ContainerEngine as _, ContainerPlan, ContainerState, ContainerStatus, LogStream},
    },
};
use uuid::Uuid;

use super::{eventually::eventually, services};

/// A shell and the usual tools, from the machine's static busybox.
pub const IMAGE: &str = "leasehold-test/busybox:1";

const LABEL: &str = "leasehold.test";

/// An engine, as one test sees it.
pub struct TestEngine {
    pub engine: DockerEngine,
    pub endpoint: String,
    /// Bollard as it is, for what a stranger would do to our containers.
    pub stranger: bollard::Docker,
    pub mark: String,
}

/// Runs a test on a shared engine and checks that it left no container.
pub async fn on_engine(number: u8, test: impl AsyncFnOnce(&TestEngine)) {
    let engine = TestEngine::at(&services::docker_endpoint(number)).await;
    test(&engine).await;
    engine.expect_nothing_left().await;
}

/// What became of a container that was run from plan to removal.
#[derive(Debug)]
pub struct Ran {
    pub status: ContainerStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Ran {
    pub fn code(&self) -> i32 {
        let ContainerState::Exited { code, .. } = self.status.state else { panic!("{:?}", self.status) };
        code
    }

    pub fn oom_killed(&self) -> bool {
        matches!(self.status.state, ContainerState::Exited { oom_killed: true, .. })
    }
}

impl TestEngine {
    /// The engine at an endpoint without TLS, with the test image on it.
    pub async fn at(endpoint: &str) -> Self {
        let engine = DockerEngine::connect(endpoint, None).expect("a test engine's endpoint is valid");
        if !engine.has_image(IMAGE).await.expect("the test engine answers") {
            engine.make_tiny_image(IMAGE, &[]).await.expect("an image can be made of busybox");
        }
        let stranger = bollard::Docker::connect_with_unix(endpoint, 60, bollard::API_DEFAULT_VERSION)
            .expect("the test engine has a socket");
        Self { engine, endpoint: endpoint.to_owned(), stranger, mark: Uuid::new_v4().to_string() }
    }

    /// A plan with a name and labels that no other test uses.
    pub fn plan(&self, command: &[&str]) -> ContainerPlan {
        self.plan_of(ContainerSpec {
            command: command.iter().map(|&word| word.to_owned()).collect(),
            ..ContainerSpec::default()
        })
    }

    /// A plan for a shell script.
    pub fn script(&self, script: &str) -> ContainerPlan {
        self.plan(&["sh", "-c", script])
    }

    /// As [`TestEngine::plan`]; the image is the test image unless one is named, and there is no network.
    pub fn plan_of(&self, mut spec: ContainerSpec) -> ContainerPlan {
        if spec.image.is_empty() {
            spec.image = IMAGE.to_owned();
        }
        spec.network.get_or_insert_with(|| "none".to_owned());
        ContainerPlan {
            name: format!("leasehold-test-{}", Uuid::new_v4().simple()),
            labels: vec![(LABEL.to_owned(), self.mark.clone()), ("leasehold.job".to_owned(), "7".to_owned())],
            spec,
            env: vec![("LEASEHOLD_FENCING_EPOCH".to_owned(), "1".to_owned())],
        }
    }

    /// Creates and starts.
    pub async fn started(&self, plan: &ContainerPlan) -> ContainerId {
        let id = self.engine.create(plan).await.expect("create");
        self.engine.start(&id).await.expect("start");
        id
    }

    /// From the plan to the removal, as a worker does it.
    pub async fn run(&self, plan: &ContainerPlan) -> Ran {
        let id = self.started(plan).await;
        let (output, status) = tokio::join!(self.output(&id), self.engine.wait(&id));
        self.engine.remove(&id).await.expect("remove");
        let (stdout, stderr) = output;
        Ran { status: status.expect("wait"), stdout, stderr }
    }

    /// Everything that the container wrote, until it ends.
    pub async fn output(&self, id: &ContainerId) -> (Vec<u8>, Vec<u8>) {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut chunks = self.engine.logs(id);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.expect("the output is readable");
            match chunk.stream {
                LogStream::Stdout => stdout.extend_from_slice(&chunk.data),
                LogStream::Stderr => stderr.extend_from_slice(&chunk.data),
                LogStream::System => panic!("an engine writes no remarks of ours"),
            }
        }
        (stdout, stderr)
    }

    pub async fn status(&self, id: &ContainerId) -> ContainerStatus {
        self.engine.inspect(id).await.expect("inspect").expect("the container is there")
    }

    /// The containers of this test.
    pub async fn mine(&self) -> Vec<ContainerStatus> {
        self.engine.list(&[(LABEL.to_owned(), self.mark.clone())]).await.expect("list")
    }

    pub async fn expect_nothing_left(&self) {
        let left = self.mine().await;
        for status in &left {
            let _ = self.engine.remove(&status.id).await;
        }
        assert!(left.is_empty(), "containers were left behind: {left:#?}");
    }
}

/// A Docker daemon of one test's own.
pub struct PrivateEngine {
    folder: PathBuf,
    options: Vec<String>,
    process: Option<Child>,
}

impl PrivateEngine {
    /// Starts a daemon with these options beyond its own folders, and waits until it answers.
    pub async fn start(options: &[&str]) -> Self {
        let folder = services::private_folder();
        std::fs::create_dir_all(&folder).unwrap();
        // The machine's own settings are not meant for this one.
        std::fs::write(folder.join("daemon.json"), settings(&folder)).unwrap();
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut engine = Self { folder, options, process: None };
        engine.boot().await;
        engine
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}/d.sock", self.folder.display())
    }

    pub async fn connect(&self) -> TestEngine {
        TestEngine::at(&self.endpoint()).await
    }

    /// Starts the daemon again, over what the last one left.
    pub async fn boot(&mut self) {
        assert!(self.process.is_none(), "the daemon runs already");
        // Where nobody reaps orphans, a killed daemon's and its containerd's ids look alive to the next daemon.
        let stale = ["pid", "exec/containerd/containerd.pid"].map(|file| self.folder.join(file));
        privileged("rm", &["-f", &stale[0].to_string_lossy(), &stale[1].to_string_lossy()]);
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        let folder = self.folder.display();
        let root = rustix::process::geteuid().is_root();
        // Ends with this test's process, however that ends.
        let mut command = if root { Command::new("setpriv") } else { Command::new("sudo") };
        if !root {
            command.args(["-n", "setpriv"]);
        }
        command
            .args(["--pdeathsig", "TERM", "dockerd"])
            .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
            .arg(format!("--data-root={folder}/data"))
            .arg(format!("--exec-root={folder}/exec"))
            .arg(format!("--pidfile={folder}/pid"))
            .arg(format!("--host=unix://{folder}/d.sock"))
            .arg(format!("--config-file={folder}/daemon.json"))
            .arg(format!("--group={}", rustix::process::getegid().as_raw()))
            .args(["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"])
            .args(["--userland-proxy=false", "--log-level=warn"])
            .arg(format!("--containerd-namespace={}", self.name()))
            .arg(format!("--containerd-plugins-namespace={}-plugins", self.name()))
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.process = Some(command.spawn().expect("dockerd can be started (package docker.io)"));
        let engine = DockerEngine::connect(&self.endpoint(), None).unwrap();
        let log = self.log();
        let process = self.process.as_mut().unwrap();
        eventually(Duration::from_secs(30), "dockerd answers", async || {
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "dockerd ended: {}", last_lines(&log));
            engine.info().await.ok()
        })
        .await;
    }

    /// Ends the daemon as an operator does.
    pub fn stop(&mut self) {
        self.signal("TERM");
        self.process.take().expect("the daemon runs").wait().unwrap();
    }

    /// Ends the daemon as a crash does.
    pub fn kill(&mut self) {
        self.signal("KILL");
        self.process.take().expect("the daemon runs").wait().unwrap();
    }

    /// Ends the daemon by this signal, without holding up other tasks of the test.
    pub async fn end(&mut self, signal: &str) {
        self.signal(signal);
        let mut process = self.process.take().expect("the daemon runs");
        eventually(Duration::from_secs(60), "the daemon has ended", async || {
            process.try_wait().unwrap().map(drop)
        })
        .await;
    }

    /// The next boot is another engine.
    pub fn forget_identity(&self) {
        assert!(self.process.is_none(), "the daemon runs");
        let old = self.folder.join("key.json");
        let new = self.folder.join("data/engine-id");
        privileged("rm", &["-f", &old.to_string_lossy(), &new.to_string_lossy()]);
    }

    /// Freezes the daemon: it accepts connections and never answers.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn name(&self) -> String {
        format!("leasehold-{}", self.folder.file_name().unwrap().to_string_lossy())
    }

    /// To the daemon itself, which is not always our child.
    fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.folder.join("pid")).expect("the daemon wrote its pid");
        privileged("kill", &["-s", signal, pid.trim()]);
    }
}

impl Drop for PrivateEngine {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take()
            && process.try_wait().is_ok_and(|ended| ended.is_none())
        {
            self.thaw();
            self.signal("TERM");
            let _ = process.wait();
        }
        // With live restore, containers (and so their mounts) outlive the daemon.
        services::sweep(&self.folder);
    }
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(4)..].join("\n")
}

/// Before Docker 24 an engine's id is made of a machine-wide key: two engines would bear the same.
fn settings(folder: &Path) -> String {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let version = Command::new("dockerd").env("PATH", path).arg("--version").output().expect("dockerd runs");
    let text = String::from_utf8_lossy(&version.stdout).into_owned();
    let major = text.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty());
    match major.and_then(|digits| digits.parse::<u32>().ok()) {
        Some(major) if major < 24 => {
            format!("{{\"deprecated-key-path\": \"{}/key.json\"}}", folder.display())
        }
        _ => "{}".to_owned(),
    }
}

/// Runs a command that needs root.
pub fn privileged(program: &str, arguments: &[&str]) {
    let mut command = if rustix::process::geteuid().is_root() {
        Command::new(program)
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", program]);
        sudo
    };
    let status = command.args(arguments).status().expect("the command can be run");
    assert!(status.success(), "{program} {arguments:?}: {status}");
}
