//! Running the real binary.

use std::{
    process::{Command, Output, Stdio},
    time::Duration,
};

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The one JSON object on standard output.
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// A JSON object a line.
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        assert_eq!(self.code, 0, "{self:?}");
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Asserts an error of one line with this exit code; answers the line.
    pub fn refused(&self, code: i32) -> &str {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(self.err.starts_with("error: "), "{self:?}");
        self.err.trim_end()
    }
}

/// The binary with a clean environment and a database.
pub struct Leasehold {
    environment: Vec<(String, String)>,
}

impl Leasehold {
    pub fn on(url: &str) -> Self {
        Self::bare().with("DATABASE_URL", url)
    }

    pub fn bare() -> Self {
        Self { environment: Vec::new() }
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        // Settings of the person who runs the tests must not change what they show.
        for (name, _) in std::env::vars() {
            if [
                "DATABASE_",
                "EXECUTION_",
                "RUNTIME_",
                "LEASEHOLD_",
                "HEARTBEAT_",
                "RUST_LOG",
                "NO_COLOR",
                "TRACEPARENT",
                "DEMO_",
            ]
            .iter()
            .any(|prefix| name.starts_with(prefix))
            {
                command.env_remove(name);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        // Away from any .leasehold/dev of the source tree.
        command.current_dir("/").args(args).stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Said {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        Said::of(wait(child, Duration::from_secs(60), args))
    }

    /// With a terminal (a pseudo one) as standard output and standard error: what a person would see.
    pub fn run_on_terminal(&self, args: &[&str]) -> Said {
        let line: Vec<String> = std::iter::once(env!("CARGO_BIN_EXE_leasehold"))
            .chain(args.iter().copied())
            .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
            .collect();
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line.join(" "), "/dev/null"]);
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("TERM", "xterm");
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Said::of(wait(command.spawn().unwrap(), Duration::from_secs(60), args))
    }
}

/// A command that hangs is a failure, and must not hang the tests.
pub fn wait(mut child: std::process::Child, limit: Duration, what: &[&str]) -> Output {
    let id = i32::try_from(child.id()).unwrap();
    let (done, waits) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if waits.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_raw(id).unwrap(),
                rustix::process::Signal::KILL,
            );
            return true;
        }
        false
    });
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    drop(done);
    assert!(!watch.join().unwrap(), "`leasehold {}` did not end within {limit:?}", what.join(" "));
    output
}
