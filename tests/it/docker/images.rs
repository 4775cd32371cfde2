//! Images and registries.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use bollard::query_parameters::{PushImageOptionsBuilder, RemoveImageOptionsBuilder, TagImageOptionsBuilder};
use futures_util::TryStreamExt as _;
use leasehold::protocol::{domain::PullPolicy, error::EngineErrorKind, ports::ContainerEngine as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use uuid::Uuid;

use crate::support::{
    engine::{IMAGE, PrivateEngine, TestEngine, on_engine},
    eventually::eventually,
};

/// Debian's docker-registry on loopback, which engines reach without TLS.
struct Registry {
    folder: PathBuf,
    port: u16,
    process: Child,
}

impl Registry {
    async fn start(more: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("leasehold-registry-{}", Uuid::new_v4().simple()));
        std::fs::create_dir_all(&folder).unwrap();
        let port = free_port().await;
        let settings = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {0}/data}}}}\n\
             http: {{addr: '127.0.0.1:{port}'}}\n{1}",
            folder.display(),
            more.replace("FOLDER", &folder.display().to_string()),
        );
        std::fs::write(folder.join("config.yml"), settings).unwrap();
        // Never used to log in; the registry only wants a file of the right form.
        std::fs::write(
            folder.join("htpasswd"),
            "u:$2y$05$abcdefghijklmnopqrstuuW5YQz1Fhk3zBqYz2Yy0u0Jm8f8QeZyW\n",
        )
        .unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(folder.join("config.yml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("docker-registry is installed (Debian's package of that name)");
        let registry = Self { folder, port, process };
        eventually(Duration::from_secs(60), "the registry listens", async || {
            TcpStream::connect(("127.0.0.1", registry.port)).await.ok()
        })
        .await;
        registry
    }

    fn image(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

/// Puts an image of the engine into the registry, and takes the name away again.
async fn publish(engine: &TestEngine, from: &str, image: &str) {
    let (name, tag) = image.rsplit_once(':').unwrap();
    let options = TagImageOptionsBuilder::new().repo(name).tag(tag).build();
    engine.stranger.tag_image(from, Some(options)).await.unwrap();
    let options = PushImageOptionsBuilder::new().tag(tag).build();
    engine.stranger.push_image(name, Some(options), None).try_collect::<Vec<_>>().await.unwrap();
    forget(engine, image).await;
}

async fn forget(engine: &TestEngine, image: &str) {
    engine
        .stranger
        .remove_image(image, Some(RemoveImageOptionsBuilder::new().force(true).build()), None)
        .await
        .unwrap();
}

/// DK-27
#[tokio::test]
async fn an_image_is_pulled_when_the_policy_says_so() {
    let registry = Registry::start("").await;
    on_engine(1, async |engine| {
        let image = registry.image("a/b:1");
        publish(engine, IMAGE, &image).await;

        let error = engine.engine.ensure_image(&image, PullPolicy::Never).await.expect_err("not on the node");
        assert_eq!(error.kind, EngineErrorKind::NoSuchImage, "{error}");
        assert!(error.message.contains("never"), "{error}");

        engine.engine.ensure_image(&image, PullPolicy::Missing).await.unwrap();
        let mut plan = engine.script("exit 9");
        plan.spec.image.clone_from(&image);
        assert_eq!(engine.run(&plan).await.code(), 9);
        engine.engine.ensure_image(&image, PullPolicy::Never).await.unwrap();
        engine.engine.ensure_image(&image, PullPolicy::Always).await.unwrap();

        // Without its registry, only what is there can be had.
        drop(registry);
        engine.engine.ensure_image(&image, PullPolicy::Missing).await.unwrap();
        let error = engine.engine.ensure_image(&image, PullPolicy::Always).await.expect_err("no registry");
        assert_eq!(error.kind, EngineErrorKind::PullFailed, "{error}");
        assert!(error.is_retryable() && error.message.contains("refused"), "{error}");
        forget(engine, &image).await;
    })
    .await;
}

/// DK-27
#[tokio::test]
async fn an_image_that_does_not_exist_is_a_permanent_error_in_the_registrys_words() {
    let registry = Registry::start("").await;
    on_engine(1, async |engine| {
        publish(engine, IMAGE, &registry.image("a/b:1")).await;
        for (image, words) in [
            (registry.image("a/b:nope"), "manifest unknown"),
            (registry.image("a/nowhere:1"), "not found"),
            (registry.image("a/nowhere"), "latest"),
            (format!("{}@sha256:{}", registry.image("a/b"), "0".repeat(64)), "manifest unknown"),
        ] {
            let error = engine.engine.ensure_image(&image, PullPolicy::Missing).await.expect_err(&image);
            assert_eq!(error.kind, EngineErrorKind::NoSuchImage, "{error}");
            assert!(!error.is_retryable());
            assert!(error.message.contains(words) && error.message.contains(&image), "{error}");
        }
        let error =
            engine.engine.ensure_image("UPPER/case:1", PullPolicy::Missing).await.expect_err("no reference");
        assert!(!error.is_retryable(), "{error:?}");
    })
    .await;
}

/// DK-27
#[tokio::test]
async fn an_image_that_needs_a_login_is_a_permanent_error() {
    let registry = Registry::start("auth: {htpasswd: {realm: test, path: FOLDER/htpasswd}}\n").await;
    on_engine(1, async |engine| {
        let image = registry.image("a/b:1");
        let error = engine.engine.ensure_image(&image, PullPolicy::Missing).await.expect_err("no login");
        assert_eq!(error.kind, EngineErrorKind::NoSuchImage, "{error}");
        assert!(error.message.contains("no basic auth credentials"), "{error}");
    })
    .await;
}

/// DK-27
#[tokio::test]
async fn a_registry_that_dies_in_the_middle_of_a_layer_is_a_transient_error() {
    const CUT_AFTER: usize = 1 << 20;
    let registry = Registry::start("").await;
    // Otherwise the daemon itself tries for most of a minute.
    let private = PrivateEngine::start(&["--max-download-attempts", "1"]).await;
    let engine = private.connect().await;
    engine.engine.import_image("large:1", noise(registry.folder.as_path()).into(), &[]).await.unwrap();
    publish(&engine, "large:1", &registry.image("large:1")).await;
    forget(&engine, "large:1").await;

    let doomed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let image = format!("127.0.0.1:{}/large:1", doomed.local_addr().unwrap().port());
    let port = registry.port;
    let dying = tokio::spawn(async move {
        loop {
            let (mut client, _) = doomed.accept().await.unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            if relay(&mut client, &mut server, CUT_AFTER).await {
                // Both sides and the listener go: nobody answers there any more.
                return;
            }
        }
    });
    let error = engine.engine.ensure_image(&image, PullPolicy::Missing).await.expect_err("it was cut off");
    dying.await.unwrap();
    assert_eq!(error.kind, EngineErrorKind::PullFailed, "{error}");
    assert!(error.is_retryable());
    assert!(!engine.engine.has_image(&image).await.unwrap(), "nothing half is left under the name");
}

/// Eight MiB that cannot be compressed, as a file tree.
fn noise(folder: &Path) -> Vec<u8> {
    let mut state = 1_u64;
    let bytes: Vec<u8> = (0..8 << 20)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        })
        .collect();
    std::fs::write(folder.join("noise"), bytes).unwrap();
    Command::new("tar").arg("-C").arg(folder).args(["-c", "noise"]).output().unwrap().stdout
}

/// Copies both ways until one side ends (false), or more than `limit` bytes came from the server (true).
async fn relay(client: &mut TcpStream, server: &mut TcpStream, limit: usize) -> bool {
    let mut answered = 0;
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => match read {
                Ok(n) if n > 0 && server.write_all(&up[..n]).await.is_ok() => {}
                _ => return false,
            },
            read = server.read(&mut down) => match read {
                Ok(n) if n > 0 => {
                    answered += n;
                    if answered > limit {
                        return true;
                    }
                    if client.write_all(&down[..n]).await.is_err() {
                        return false;
                    }
                }
                _ => return false,
            },
        }
    }
}
