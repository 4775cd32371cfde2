//! Engines behind mutual TLS, with an authority of their own.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use leasehold::{
    config::TlsFiles,
    docker::{ConnectError, DockerEngine},
    protocol::{error::EngineErrorKind, ports::ContainerEngine as _},
};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::support::engine::{PrivateEngine, TestEngine};

/// Keys and certificates, made with openssl.
struct Pki {
    folder: PathBuf,
}

impl Pki {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("leasehold-pki-{}", Uuid::new_v4().simple()));
        std::fs::create_dir_all(&folder).unwrap();
        let pki = Self { folder };
        std::fs::write(
            pki.path("server.ext"),
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n",
        )
        .unwrap();
        std::fs::write(pki.path("client.ext"), "extendedKeyUsage=clientAuth\n").unwrap();
        for authority in ["ca", "other-ca"] {
            pki.openssl(&format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={authority} \
                 -keyout {authority}-key.pem -out {authority}.pem"
            ));
        }
        pki.issue("server", "ca", "server", "2");
        pki.issue("client", "ca", "client", "2");
        pki.issue("stranger", "other-ca", "client", "2");
        pki.issue("expired", "ca", "client", "-1");
        pki
    }

    fn issue(&self, name: &str, authority: &str, usage: &str, days: &str) {
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}-key.pem -out {name}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}-key.pem -CAcreateserial -days {days} \
             -extfile {usage}.ext -out {name}.pem"
        ));
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl")
            .current_dir(&self.folder)
            .args(arguments.split_whitespace())
            .output()
            .expect("openssl is installed");
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    fn files(&self, authority: &str, name: &str) -> TlsFiles {
        TlsFiles {
            ca: self.path(&format!("{authority}.pem")),
            cert: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}-key.pem")),
        }
    }
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// CF-09
#[tokio::test]
async fn an_engine_behind_tls_is_used_with_the_right_files_and_with_no_others() {
    let pki = Pki::new();
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let file = |name: &str| pki.path(name).to_string_lossy().into_owned();
    let private = PrivateEngine::start(&[
        "--tlsverify",
        &format!("--host=tcp://127.0.0.1:{port}"),
        &format!("--tlscacert={}", file("ca.pem")),
        &format!("--tlscert={}", file("server.pem")),
        &format!("--tlskey={}", file("server-key.pem")),
    ])
    .await;
    let endpoint = format!("tcp://127.0.0.1:{port}");

    // The whole way of a container, the hijacked stream of its output included.
    let local = private.connect().await;
    let engine = TestEngine {
        engine: DockerEngine::connect(&endpoint, Some(&pki.files("ca", "client"))).unwrap(),
        ..local
    };
    let ran = engine.run(&engine.script("printf out; printf err >&2; exit 12")).await;
    assert_eq!((ran.code(), &ran.stdout[..], &ran.stderr[..]), (12, &b"out"[..], &b"err"[..]));
    engine.expect_nothing_left().await;

    for (what, files, words) in [
        (
            "an authority that did not sign the engine's certificate",
            pki.files("other-ca", "client"),
            "certificate",
        ),
        ("a client certificate of another authority", pki.files("ca", "stranger"), "certificate"),
        ("an expired client certificate", pki.files("ca", "expired"), "certificate"),
    ] {
        let refused = DockerEngine::connect(&endpoint, Some(&files)).unwrap();
        let error = refused.info().await.expect_err(what);
        assert_eq!(error.kind, EngineErrorKind::Unreachable, "{what}: {error}");
        assert!(error.message.to_lowercase().contains(words), "{what}: {error}");
        assert!(!error.message.contains('\n'));
    }

    // Plain HTTP to the TLS port is refused with the remedy; there is no way back from TLS to plain HTTP.
    let plain = DockerEngine::connect(&endpoint, None).unwrap();
    let error = plain.info().await.expect_err("the port speaks TLS");
    assert!(error.message.contains("RUNTIME_TLS_CA"), "{error}");
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain_port = format!("tcp://{}", socket.local_addr().unwrap());
    let greeting = tokio::spawn(async move {
        use tokio::io::AsyncReadExt as _;
        let (mut client, _) = socket.accept().await.unwrap();
        let mut first = [0; 1];
        client.read_exact(&mut first).await.unwrap();
        first[0]
    });
    let _ = DockerEngine::connect(&plain_port, Some(&pki.files("ca", "client"))).unwrap().info().await;
    assert_eq!(greeting.await.unwrap(), 0x16, "what is said first is a TLS handshake, never a request");
}

/// CF-09
#[tokio::test]
async fn tls_files_that_cannot_be_used_are_named_before_anything_is_sent() {
    let pki = Pki::new();
    let good = pki.files("ca", "client");
    let with = |change: &dyn Fn(&mut TlsFiles)| {
        let mut files = good.clone();
        change(&mut files);
        DockerEngine::connect("tcp://127.0.0.1:9", Some(&files)).expect_err("an unusable file")
    };
    let missing = pki.path("missing.pem");
    let named = |error: ConnectError, setting: &str, words: &str| {
        let text = error.to_string();
        assert!(text.contains(setting) && text.contains(words), "{text}");
    };
    named(with(&|files| files.key.clone_from(&missing)), "RUNTIME_TLS_KEY", "cannot be read");
    named(with(&|files| files.cert.clone_from(&missing)), "RUNTIME_TLS_CERT", "cannot be read");
    named(with(&|files| files.ca.clone_from(&pki.folder)), "RUNTIME_TLS_CA", "is a directory");
    named(with(&|files| files.key.clone_from(&good.cert)), "RUNTIME_TLS_KEY", "no private key");
    named(with(&|files| files.cert.clone_from(&good.key)), "RUNTIME_TLS_CERT", "no certificate");
    named(with(&|files| files.key = pki.path("stranger-key.pem")), "RUNTIME_TLS_KEY", "together");

    // A socket needs no TLS files, and its path may hold blanks.
    assert!(DockerEngine::connect("unix:///tmp/no such/docker.sock", Some(&good)).is_ok());
    unreadable(&good.key);
}

/// Root reads everything, so only others can see this.
fn unreadable(key: &Path) {
    if rustix::process::geteuid().is_root() {
        return;
    }
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o000)).unwrap();
    let files = TlsFiles { ca: key.to_owned(), cert: key.to_owned(), key: key.to_owned() };
    let error = DockerEngine::connect("tcp://127.0.0.1:9", Some(&files)).expect_err("unreadable");
    assert!(error.to_string().contains("cannot be read"), "{error}");
}

/// CF-09
#[tokio::test]
async fn a_socket_whose_path_has_blanks_is_reached() {
    let private = PrivateEngine::start(&[]).await;
    let folder = private.folder().join("with blanks");
    std::fs::create_dir(&folder).unwrap();
    let link = folder.join("d %20.sock");
    std::os::unix::fs::symlink(private.folder().join("d.sock"), &link).unwrap();
    let engine = DockerEngine::connect(&format!("unix://{}", link.display()), None).unwrap();
    assert_eq!(engine.info().await.unwrap().os, "linux");
}
