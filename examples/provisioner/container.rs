//! A worker container: created with limits, looked at for what it really got, started, and given its capability.

use std::{collections::BTreeMap, collections::HashMap, pin::Pin};

use bollard::{
    Docker, body_full,
    container::LogOutput,
    models::{
        ContainerCreateBody, ContainerInspectResponse, HostConfig, HostConfigLogConfig, RestartPolicy,
        RestartPolicyNameEnum,
    },
    query_parameters::{
        AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, UploadToContainerOptionsBuilder,
    },
};
use futures_util::{Stream, StreamExt as _};
use leasehold::{
    docker::DockerEngine,
    protocol::{
        domain::{
            ContainerId, Epoch, JobId, PullPolicy,
            execution::{Allocation, Fact, ImageFacts, ImageReference, Requirements},
        },
        ports::{ContainerEngine as _, ContainerState},
    },
    recipe::supplied::Capability,
};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::{Failed, Settings};

/// Whose containers these are: the fleet's id. Not the label of the runtime nodes, whose agents remove what they do not
/// know.
pub(crate) const FLEET: &str = "leasehold.provisioner";
pub(crate) const NAMESPACE: &str = "leasehold.provisioner.namespace";
pub(crate) const JOB: &str = "leasehold.provisioner.job";
pub(crate) const EPOCH: &str = "leasehold.provisioner.epoch";

/// Where the worker finds its settings, by `LEASEHOLD_CONFIG`.
const CONFIG: &str = "leasehold-worker.toml";
/// The most of a worker's standard output that is kept: it is one line.
const OUTPUT: usize = 64 << 10;

/// An engine, by the product's own adapter and by its client.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) engine: DockerEngine,
    docker: Docker,
}

/// A created container.
pub(crate) struct Made {
    pub(crate) id: ContainerId,
    /// What the engine says that it has.
    pub(crate) has: Allocation,
}

/// A started container whose standard input and output are ours.
pub(crate) struct Started {
    pub(crate) id: ContainerId,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    output: Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>,
}

impl Engine {
    pub(crate) async fn connect(settings: &Settings, endpoint: &str) -> Result<Self, Failed> {
        let engine = DockerEngine::connect(endpoint, settings.tls.as_ref()).map_err(Failed::of("connect"))?;
        let docker = engine.client().await.map_err(Failed::of("connect"))?;
        Ok(Self { engine, docker })
    }

    /// Fetches the image before anything is acquired, since a pull may take longer than a lease, and says what a worker
    /// in it would be.
    pub(crate) async fn ensure_image(&self, image: &str) -> Result<Allocation, Failed> {
        self.engine.ensure_image(image, PullPolicy::Missing).await.map_err(Failed::of("image"))?;
        self.image(image, image.parse().ok()).await
    }

    /// Platform and image, by the engine's word.
    async fn image(&self, name: &str, reference: Option<ImageReference>) -> Result<Allocation, Failed> {
        let details = self.docker.inspect_image(name).await.map_err(Failed::of("image"))?;
        let mut has = Allocation::default();
        if let (Some(os), Some(architecture)) = (&details.os, &details.architecture) {
            let variant = details.variant.as_deref().filter(|variant| !variant.is_empty());
            let variant = variant.map(|variant| format!("/{variant}")).unwrap_or_default();
            has.platform = format!("{os}/{architecture}{variant}").parse().ok();
        }
        let manifest_digest = reference.as_ref().and_then(|reference| {
            // Digests of other repositories say nothing of this one.
            let known = details.repo_digests.iter().flatten();
            known.filter_map(|known| known.parse::<ImageReference>().ok()).find_map(|known| {
                let same =
                    (known.registry(), known.repository()) == (reference.registry(), reference.repository());
                known.digest().filter(|_| same).cloned()
            })
        });
        has.image = ImageFacts { reference, manifest_digest, image_id: details.id };
        Ok(has)
    }

    /// Creates the container with the needs as its limits, and asks the engine what it has got.
    pub(crate) async fn create(
        &self,
        settings: &Settings,
        image: &str,
        needs: &Requirements,
        (job, epoch): (JobId, Epoch),
    ) -> Result<Made, Failed> {
        let name =
            format!("leasehold-provisioned-{}-{job}-{epoch}", &settings.fleet.simple().to_string()[..8]);
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let body = body(settings, image, needs, (job, epoch));
        let created =
            self.docker.create_container(Some(options), body).await.map_err(Failed::of("create"))?;
        let id = ContainerId::new(created.id).map_err(Failed::of("create"))?;
        let has = match self.look(&id).await {
            Ok(has) => has,
            Err(error) => {
                self.remove(&id).await;
                return Err(error);
            }
        };
        Ok(Made { id, has })
    }

    /// The container's environment by the engine's word: limits as they are set, the image as it is.
    async fn look(&self, id: &ContainerId) -> Result<Allocation, Failed> {
        let found = self.docker.inspect_container(id.as_str(), None).await.map_err(Failed::of("inspect"))?;
        let launched_by = found.config.as_ref().and_then(|config| config.image.as_deref()?.parse().ok());
        let image = self.image(found.image.as_deref().unwrap_or_default(), launched_by).await?;
        Ok(Allocation { platform: image.platform, image: image.image, ..limits(&found) })
    }

    /// Puts the worker's settings into the container, with what it has: from the engine's word, and not from the needs.
    pub(crate) async fn configure(&self, settings: &Settings, made: &Made) -> Result<(), Failed> {
        let mut keys = settings.worker.clone();
        for fact in Fact::ALL {
            if let Some(text) = made.has.get(fact) {
                keys.insert(format!("execution_allocation_{}", fact.as_str().replace('-', "_")), text);
            }
        }
        let text = toml::to_string(&keys).map_err(Failed::of("configure"))?;
        let archive = tar(CONFIG, settings.user, text.as_bytes());
        let options = UploadToContainerOptionsBuilder::new().path("/").build();
        self.docker
            .upload_to_container(made.id.as_str(), Some(options), body_full(archive.into()))
            .await
            .map_err(Failed::of("configure"))
    }

    /// Attaches to its standard input and output, and starts it.
    pub(crate) async fn start(&self, made: Made) -> Result<Started, Failed> {
        let options =
            AttachContainerOptionsBuilder::new().stdin(true).stdout(true).stderr(true).stream(true).build();
        let attached = self
            .docker
            .attach_container(made.id.as_str(), Some(options))
            .await
            .map_err(Failed::of("attach"))?;
        self.docker.start_container(made.id.as_str(), None).await.map_err(Failed::of("start"))?;
        Ok(Started { id: made.id, input: attached.input, output: attached.output })
    }

    /// What happens to a container that will not be needed. Not being able to is no matter: the next start of a
    /// provisioner finds it.
    pub(crate) async fn remove(&self, id: &ContainerId) {
        if let Err(error) = self.engine.remove(id).await {
            tracing::warn!(%id, %error, "not removed");
        }
    }

    /// Follows a worker to its end: its exit code, and the one line that it says.
    pub(crate) async fn follow(&self, started: Started) -> Result<(i32, String), Failed> {
        let Started { id, mut output, .. } = started;
        let mut said = Vec::new();
        while let Some(piece) = output.next().await {
            match piece {
                Ok(LogOutput::StdOut { message }) => {
                    let room = OUTPUT.saturating_sub(said.len());
                    said.extend_from_slice(&message[..message.len().min(room)]);
                }
                Ok(LogOutput::StdErr { message }) => {
                    let text = String::from_utf8_lossy(&message);
                    text.lines().for_each(|line| tracing::info!(%id, "{}", leasehold::cli::one_line(line)));
                }
                // The end is asked for below.
                Ok(_) | Err(_) => {}
            }
        }
        let status = self.engine.wait(&id).await.map_err(Failed::of("wait"))?;
        let code = match status.state {
            ContainerState::Exited { code, .. } => code,
            _ => -1,
        };
        Ok((code, String::from_utf8_lossy(&said).trim().to_owned()))
    }
}

impl Started {
    /// Passes the capability by the private pipe, and closes it. From here on the worker acts for itself.
    pub(crate) async fn hand_over(&mut self, capability: &Capability) -> Result<(), Failed> {
        self.input.write_all(capability.expose().as_bytes()).await.map_err(Failed::of("hand over"))?;
        self.input.flush().await.map_err(Failed::of("hand over"))?;
        self.input.shutdown().await.map_err(Failed::of("hand over"))
    }
}

/// cpu and memory as the engine has set them.
fn limits(found: &ContainerInspectResponse) -> Allocation {
    let host = found.host_config.clone().unwrap_or_default();
    let set = |limit: Option<i64>| limit.filter(|limit| *limit > 0);
    Allocation {
        // Rounded down: never more than there is.
        cpu_millis: set(host.nano_cpus).map(|nano| nano / 1_000_000).filter(|millis| *millis > 0),
        memory_bytes: set(host.memory),
        ..Allocation::default()
    }
}

fn body(
    settings: &Settings,
    image: &str,
    needs: &Requirements,
    (job, epoch): (JobId, Epoch),
) -> ContainerCreateBody {
    let arguments = ["run-with-lease", "--job", &job.to_string(), "--lease-file", "-"].map(str::to_owned);
    let labels = [
        (FLEET, settings.fleet.to_string()),
        (NAMESPACE, settings.namespace.to_string()),
        (JOB, job.to_string()),
        (EPOCH, epoch.to_string()),
    ];
    let (uid, gid) = settings.user;
    ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![settings.program.clone()]),
        cmd: Some(arguments.into_iter().chain(settings.flags.iter().cloned()).collect()),
        env: Some(vec![format!("LEASEHOLD_CONFIG=/{CONFIG}")]),
        user: Some(format!("{uid}:{gid}")),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
        tty: Some(false),
        // Open for one writer: when that is gone the worker reads the end, and not for ever.
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        host_config: Some(HostConfig {
            memory: needs.memory_bytes,
            // Equal to `memory`: no swap on top.
            memory_swap: needs.memory_bytes,
            nano_cpus: needs.cpu_millis.map(|millis| millis.saturating_mul(1_000_000)),
            network_mode: settings.network.clone(),
            binds: Some(settings.binds.clone()),
            // A worker that ended has ended: its lease is not for another one.
            restart_policy: Some(RestartPolicy {
                name: Some(RestartPolicyNameEnum::NO),
                maximum_retry_count: None,
            }),
            log_config: Some(HostConfigLogConfig {
                typ: Some("json-file".to_owned()),
                config: Some(HashMap::from([("max-size".to_owned(), "1m".to_owned())])),
            }),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

/// One file that only its owner can read, as a tar archive: the settings may hold the database's password.
fn tar(name: &str, (uid, gid): (u32, u32), data: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000400");
    put(108, &format!("{uid:07o}"));
    put(116, &format!("{gid:07o}"));
    put(124, &format!("{:011o}", data.len()));
    put(136, "00000000000");
    // The checksum is computed over blanks in its own place.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(data);
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}

/// The settings that a worker is given, beside what it has.
pub(crate) fn worker_settings(
    effective: &leasehold::config::Effective,
    url: String,
    namespace: String,
) -> BTreeMap<String, String> {
    const PASSED_ON: [&str; 6] = [
        "DATABASE_POOLER",
        "EXECUTION_WORKER_LEASE_DURATION",
        "EXECUTION_WORKER_LEASE_RENEW_INTERVAL",
        "EXECUTION_WORKER_SAFETY_MARGIN",
        "EXECUTION_WORKER_STORE_TIMEOUT",
        "EXECUTION_WORKER_SHUTDOWN_GRACE",
    ];
    let rows = effective.rows().into_iter().filter(|row| PASSED_ON.contains(&row.name));
    let mut keys: BTreeMap<String, String> =
        rows.filter_map(|row| Some((row.file_key, row.value?))).collect();
    keys.insert("database_url".to_owned(), url);
    keys.insert("leasehold_namespace".to_owned(), namespace);
    keys
}
