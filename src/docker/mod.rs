//! The engine adapter on bollard: [`ContainerEngine`] for one Docker engine.
//!
//! - `connect`, `tls`: endpoint, API version, TLS files · `spec`: plan → create body, pure · `error`: what refusals mean
//! - `lifecycle`: create, start, stop, remove; each may be repeated · `status`: inspect, wait, list
//! - `images`: pulling, importing · `tiny_image`: an image of one busybox
//! - `logs`: output byte for byte, from the first one on
//!
//! No call retries by itself, and none waits longer than its limit, whatever the engine does (one that is
//! frozen accepts connections and never answers). Retrying is the caller's decision.

mod connect;
mod error;
mod images;
mod lifecycle;
mod logs;
mod spec;
mod status;
mod tiny_image;
mod tls;

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use bollard::Docker;
use futures_util::stream::BoxStream;
use leasehold_actors::{
    domain::{ContainerId, PullPolicy},
    error::{Applied, EngineError, EngineErrorKind},
    ports::{
        ContainerEngine, ContainerPlan, ContainerStatus, EngineFactory, EngineInfo, LogChunk, Placement,
    },
};

pub use connect::{ConnectError, Endpoint};
pub use tiny_image::TinyImageError;

use crate::config::TlsFiles;
use connect::Connection;

/// The longest that a call may take.
#[derive(Debug, Clone, Copy)]
pub struct EngineLimits {
    /// Calls that only look: info, inspect, list.
    pub look: Duration,
    /// Calls that change something: create, start, kill, rename, remove.
    pub act: Duration,
    /// How long a wait may be silent before the container is looked at: notices a frozen engine.
    pub watch: Duration,
    /// How long a pull may go on without any progress.
    pub pull_silence: Duration,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            look: Duration::from_secs(10),
            act: Duration::from_secs(60),
            watch: Duration::from_secs(10),
            pull_silence: Duration::from_secs(120),
        }
    }
}

/// One Docker engine. Cheap to clone; the clones share the connection's settings.
#[derive(Clone, Debug)]
pub struct DockerEngine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    connection: Connection,
    limits: EngineLimits,
    live: logs::LiveOutput,
}

impl DockerEngine {
    /// Prepares the way to an engine. Sends nothing: an engine that is down is noticed at the first call.
    ///
    /// # Errors
    /// [`ConnectError`] when the endpoint cannot be understood, or a TLS file cannot be used.
    pub fn connect(endpoint: &str, tls: Option<&TlsFiles>) -> Result<Self, ConnectError> {
        Self::connect_with(endpoint, tls, EngineLimits::default())
    }

    /// As [`DockerEngine::connect`], with other limits.
    ///
    /// # Errors
    /// As [`DockerEngine::connect`].
    pub fn connect_with(
        endpoint: &str,
        tls: Option<&TlsFiles>,
        limits: EngineLimits,
    ) -> Result<Self, ConnectError> {
        let connection = Connection::open(endpoint, tls)?;
        Ok(Self { shared: Arc::new(Shared { connection, limits, live: logs::LiveOutput::default() }) })
    }

    /// Where the engine listens.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        self.shared.connection.endpoint()
    }

    /// The client behind it, on the version of the API that was agreed on: for what [`ContainerEngine`] has no call for,
    /// such as a container's standard input.
    ///
    /// # Errors
    /// [`EngineError`] when the engine does not answer.
    pub async fn client(&self) -> Result<Docker, EngineError> {
        self.agreed_client("connect").await
    }

    fn limits(&self) -> &EngineLimits {
        &self.shared.limits
    }

    /// Makes one call under its limit, after the API version was agreed on.
    async fn ask<T, F, A>(
        &self,
        operation: &'static str,
        limit: Duration,
        request: F,
    ) -> Result<T, EngineError>
    where
        F: FnOnce(Docker) -> A + Send,
        A: Future<Output = Result<T, bollard::errors::Error>> + Send,
    {
        let client = self.agreed_client(operation).await?;
        match tokio::time::timeout(limit, request(client)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refused)) => {
                let error = error::classify(operation, refused);
                if error::is_version_refusal(&error.message) {
                    self.shared.connection.forget_agreement();
                }
                Err(error)
            }
            Err(_) => Err(error::timed_out(operation, limit)),
        }
    }

    async fn agreed_client(&self, operation: &'static str) -> Result<Docker, EngineError> {
        let connection = &self.shared.connection;
        let client = connection.client().map_err(|e| error::classify(operation, e))?;
        if !connection.is_agreed() {
            self.agree(operation, &client).await?;
        }
        Ok(client)
    }

    async fn agree(&self, operation: &'static str, client: &Docker) -> Result<(), EngineError> {
        let limit = self.limits().look;
        let version = match tokio::time::timeout(limit, client.version()).await {
            Ok(Ok(version)) => version,
            Ok(Err(refused)) => return Err(not_applied(error::classify(operation, refused))),
            Err(_) => return Err(not_applied(error::timed_out(operation, limit))),
        };
        let newest = version.api_version.unwrap_or_default();
        self.shared
            .connection
            .agree(&newest, version.min_api_version.as_deref())
            .map_err(|reason| error::engine_error(operation, EngineErrorKind::Engine, Applied::No, reason))
    }

    /// Asks the engine who it is, and whether it still speaks the agreed version: it may have been upgraded.
    async fn who(&self) -> Result<EngineInfo, EngineError> {
        const OPERATION: &str = "info";
        let client = self.shared.connection.client().map_err(|e| error::classify(OPERATION, e))?;
        self.agree(OPERATION, &client).await?;
        let info =
            self.ask(OPERATION, self.limits().look, |client| async move { client.info().await }).await?;
        let missing = |what: &str| {
            error::engine_error(
                OPERATION,
                EngineErrorKind::Engine,
                Applied::No,
                format!("the engine at {} does not tell its {what}", self.endpoint()),
            )
        };
        Ok(EngineInfo {
            engine_id: info.id.filter(|id| !id.is_empty()).ok_or_else(|| missing("id"))?,
            os: info.os_type.ok_or_else(|| missing("operating system"))?,
            architecture: info.architecture.ok_or_else(|| missing("architecture"))?,
            cpu_millis: info.ncpu.ok_or_else(|| missing("processors"))?.saturating_mul(1000),
            memory_bytes: info.mem_total.ok_or_else(|| missing("memory"))?,
            version: info.server_version.unwrap_or_default(),
        })
    }
}

/// The call itself was never sent.
fn not_applied(mut error: EngineError) -> EngineError {
    error.applied = Applied::No;
    error
}

#[async_trait]
impl ContainerEngine for DockerEngine {
    async fn info(&self) -> Result<EngineInfo, EngineError> {
        self.who().await
    }

    async fn ensure_image(&self, image: &str, pull: PullPolicy) -> Result<(), EngineError> {
        self.provide_image(image, pull).await
    }

    async fn create(&self, plan: &ContainerPlan) -> Result<ContainerId, EngineError> {
        self.create_or_find(plan).await
    }

    async fn start(&self, id: &ContainerId) -> Result<(), EngineError> {
        self.start_once(id).await
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>, EngineError> {
        self.look_at(id.as_str()).await
    }

    async fn wait(&self, id: &ContainerId) -> Result<ContainerStatus, EngineError> {
        self.wait_for_end(id).await
    }

    fn logs(&self, id: &ContainerId) -> BoxStream<'static, Result<LogChunk, EngineError>> {
        self.output(id)
    }

    async fn mark_stopped(&self, id: &ContainerId, name: &str) -> Result<(), EngineError> {
        self.rename_to_stopped(id, name).await
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<(), EngineError> {
        self.ask_then_kill(id, grace).await
    }

    async fn kill(&self, id: &ContainerId) -> Result<(), EngineError> {
        self.kill_now(id).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), EngineError> {
        self.remove_by_force(id).await
    }

    async fn list(&self, labels: &[(String, String)]) -> Result<Vec<ContainerStatus>, EngineError> {
        self.list_labelled(labels).await
    }
}

/// Opens engines for runtime nodes, with the worker's TLS files for those on tcp.
#[derive(Debug, Clone, Default)]
pub struct DockerEngineFactory {
    tls: Option<TlsFiles>,
}

impl DockerEngineFactory {
    /// A factory that uses these files for every tcp endpoint.
    #[must_use]
    pub fn new(tls: Option<TlsFiles>) -> Self {
        Self { tls }
    }
}

impl EngineFactory for DockerEngineFactory {
    fn connect(&self, placement: &Placement) -> Result<Box<dyn ContainerEngine>, EngineError> {
        Ok(Box::new(DockerEngine::connect(&placement.endpoint, self.tls.as_ref())?))
    }
}
