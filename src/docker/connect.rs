//! How an engine is reached: the endpoint as a person writes it, TLS files checked before the first call, and
//! the API version agreed on. Nothing here falls back from TLS to plain HTTP.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use hyper_util::{client::legacy::Client, client::legacy::connect::HttpConnector, rt::TokioExecutor};
use leasehold_actors::error::{Applied, EngineError, EngineErrorKind};

use super::{error::engine_error, tls::tls_config};
use crate::config::TlsFiles;

/// Where an engine listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket. The path is taken as it stands; nothing in it is decoded.
    Unix(PathBuf),
    /// `host:port`, in the clear or, with TLS files, over mutual TLS.
    Tcp(String),
}

/// An endpoint that cannot be used. Told once, when the node is set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The endpoint's text is none.
    #[error("Docker endpoint {endpoint:?} {reason}; write unix:///var/run/docker.sock or tcp://host:2376")]
    Endpoint {
        /// As it was given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A TLS file cannot be used.
    #[error("{setting}: {} {reason}", path.display())]
    TlsFile {
        /// The setting that names the file.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Certificate and key do not belong together, or no verifier can be made of the authority.
    #[error("RUNTIME_TLS_CERT, RUNTIME_TLS_KEY: {reason}")]
    TlsPair {
        /// What is wrong with them.
        reason: String,
    },
}

impl From<ConnectError> for EngineError {
    fn from(error: ConnectError) -> Self {
        // Not `BadRequest`: no job is at fault when its node cannot be spoken to.
        engine_error("connect", EngineErrorKind::Engine, Applied::No, error.to_string())
    }
}

impl Endpoint {
    /// Reads `unix:///path` or `tcp://host[:port]`. Without a port it is 2376 over TLS and 2375 in the clear.
    ///
    /// # Errors
    /// [`ConnectError::Endpoint`] when it is neither.
    pub fn parse(text: &str, tls: bool) -> Result<Self, ConnectError> {
        let refuse = |reason: &str| {
            Err(ConnectError::Endpoint { endpoint: text.to_owned(), reason: reason.to_owned() })
        };
        if let Some(path) = text.strip_prefix("unix://") {
            return match Path::new(path) {
                path if path.is_absolute() => Ok(Self::Unix(path.to_owned())),
                _ => refuse("has no absolute path"),
            };
        }
        let Some((scheme, rest)) = text.split_once("://") else { return refuse("has no scheme") };
        if scheme == "https" && !tls {
            return refuse("needs RUNTIME_TLS_CA, RUNTIME_TLS_CERT and RUNTIME_TLS_KEY");
        }
        if scheme == "http" && tls {
            return refuse("says plain HTTP although TLS files are set");
        }
        if !matches!(scheme, "tcp" | "http" | "https") {
            return refuse("has an unknown scheme");
        }
        let default_port = if tls { 2376 } else { 2375 };
        // The parser of http addresses knows about ports and about IPv6 in brackets.
        match url::Url::parse(&format!("http://{rest}")) {
            Ok(url) if !matches!(url.path(), "" | "/") || url.query().is_some() => refuse("has a path"),
            Ok(url) if !url.username().is_empty() => refuse("has a user name"),
            Ok(url) => match url.host_str() {
                Some(host) => {
                    // `Url` drops port 80, the scheme's own, from what it reports.
                    let port =
                        if rest.trim_end_matches('/').ends_with(":80") { Some(80) } else { url.port() };
                    Ok(Self::Tcp(format!("{host}:{}", port.unwrap_or(default_port))))
                }
                None => refuse("has no host"),
            },
            Err(error) => refuse(&format!("cannot be read ({error})")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// The API versions that this client was written against: Docker 19.03 to 29.
const OLDEST_API: Api = Api(1, 40);
const NEWEST_API: Api = Api(API_DEFAULT_VERSION.major_version, API_DEFAULT_VERSION.minor_version);

/// A version of the Docker API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Api(usize, usize);

impl Api {
    fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self(major.parse().ok()?, minor.parse().ok()?))
    }

    /// The newest version that both sides speak.
    fn agree(newest: &str, oldest: Option<&str>) -> Result<Self, String> {
        let Some(theirs) = Self::parse(newest) else {
            return Err(format!("the engine names its API version {newest:?}, which is none"));
        };
        if theirs < OLDEST_API {
            return Err(format!(
                "the engine speaks API {theirs} at most; Leasehold needs {OLDEST_API} (Docker 19.03) or newer"
            ));
        }
        if let Some(minimum) = oldest.and_then(Self::parse)
            && minimum > NEWEST_API
        {
            return Err(format!(
                "the engine speaks API {minimum} or newer; this Leasehold knows {NEWEST_API} at most: upgrade it"
            ));
        }
        Ok(theirs.min(NEWEST_API))
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The way to one engine. Opening it sends nothing: an engine that is down is noticed at the first call.
pub(super) struct Connection {
    endpoint: Endpoint,
    way: Way,
    api: Agreement,
}

enum Way {
    Tcp(Docker),
    /// bollard refuses to be built while the socket is missing, so it is built when first needed.
    Unix(OnceLock<Docker>),
}

/// The agreed API version; none until it was agreed.
type Agreement = Arc<Mutex<Option<Api>>>;

fn agreed(api: &Agreement) -> Option<Api> {
    *api.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// bollard's own limit per call; ours are shorter and hold for whole answers, not only for their headers.
const CLIENT_TIMEOUT_SECONDS: u64 = 24 * 3600;

impl Connection {
    /// Prepares the way. TLS files are read and checked now; they matter to tcp endpoints only.
    pub(super) fn open(endpoint: &str, tls: Option<&TlsFiles>) -> Result<Self, ConnectError> {
        let endpoint = Endpoint::parse(endpoint, tls.is_some())?;
        let api = Agreement::default();
        let way = match &endpoint {
            Endpoint::Unix(_) => Way::Unix(OnceLock::new()),
            Endpoint::Tcp(address) => {
                let client = match tls {
                    None => over_tcp(format!("http://{address}"), plain_connector()),
                    Some(files) => over_tcp(format!("https://{address}"), tls_connector(files)?),
                };
                let client = client.map_err(|e| ConnectError::Endpoint {
                    endpoint: endpoint.to_string(),
                    reason: format!("cannot be used ({e})"),
                })?;
                Way::Tcp(versioned(client, &api))
            }
        };
        Ok(Self { endpoint, way, api })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The client; its calls carry the API version once that was agreed.
    pub(super) fn client(&self) -> Result<Docker, bollard::errors::Error> {
        let built = match &self.way {
            Way::Tcp(client) => return Ok(client.clone()),
            Way::Unix(built) => built,
        };
        if let Some(client) = built.get() {
            return Ok(client.clone());
        }
        let text = self.endpoint.to_string();
        let client = Docker::connect_with_unix(&text, CLIENT_TIMEOUT_SECONDS, API_DEFAULT_VERSION)?;
        Ok(built.get_or_init(|| versioned(client, &self.api)).clone())
    }

    pub(super) fn is_agreed(&self) -> bool {
        agreed(&self.api).is_some()
    }

    /// Takes what `/version` answered.
    pub(super) fn agree(&self, newest: &str, oldest: Option<&str>) -> Result<(), String> {
        let api = Api::agree(newest, oldest)?;
        *self.api.lock().unwrap_or_else(PoisonError::into_inner) = Some(api);
        Ok(())
    }

    /// The engine was replaced by one that speaks otherwise: agree again before the next call.
    pub(super) fn forget_agreement(&self) {
        *self.api.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// bollard 0.21 never puts the version into the path, so an engine would answer in the shape of its own
/// newest version, whatever that is.
fn versioned(client: Docker, api: &Agreement) -> Docker {
    let api = Arc::clone(api);
    client.with_request_modifier(move |request: BollardRequest| {
        let path = request.uri().path();
        let Some(version) = agreed(&api).filter(|_| path != "/version" && path != "/_ping") else {
            return request;
        };
        let (mut parts, body) = request.into_parts();
        let mut uri = parts.uri.clone().into_parts();
        let rest = uri.path_and_query.as_ref().map_or("/", |p| p.as_str());
        if let Ok(path) = format!("/v{version}{rest}").parse() {
            uri.path_and_query = Some(path);
            if let Ok(uri) = uri.try_into() {
                parts.uri = uri;
            }
        }
        BollardRequest::from_parts(parts, body)
    })
}

/// A dead peer must be noticed under streams that are silent for hours.
fn plain_connector() -> HttpConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(Duration::from_secs(5)));
    http.set_keepalive(Some(Duration::from_secs(15)));
    http.set_keepalive_interval(Some(Duration::from_secs(5)));
    http.set_keepalive_retries(Some(3));
    http.set_nodelay(true);
    http
}

fn tls_connector(files: &TlsFiles) -> Result<hyper_rustls::HttpsConnector<HttpConnector>, ConnectError> {
    let config = tls_config(files)?;
    Ok(hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_only()
        .enable_http1()
        .wrap_connector(plain_connector()))
}

/// Our own transport instead of bollard's: that one would also trust every public authority, silently leave
/// out a client certificate that it cannot read, and panic without a process-wide crypto provider.
fn over_tcp<C>(address: String, connector: C) -> Result<Docker, bollard::errors::Error>
where
    C: hyper_util::client::legacy::connect::Connect + Clone + Send + Sync + 'static,
{
    // No idle connections: a kept one may have died with the engine.
    let client = Arc::new(Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector));
    Docker::connect_with_custom_transport(
        move |request: BollardRequest| {
            let client = Arc::clone(&client);
            async move { client.request(request).await.map_err(bollard::errors::Error::from) }
        },
        Some(address),
        CLIENT_TIMEOUT_SECONDS,
        API_DEFAULT_VERSION,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_people_write_them() {
        for (text, tls, shown) in [
            ("unix:///var/run/docker.sock", false, "unix:///var/run/docker.sock"),
            ("unix:///tmp/with blank/%20/d.sock", true, "unix:///tmp/with blank/%20/d.sock"),
            ("tcp://node-1", false, "tcp://node-1:2375"),
            ("tcp://node-1", true, "tcp://node-1:2376"),
            ("tcp://127.0.0.1:80/", false, "tcp://127.0.0.1:80"),
            ("https://node-1:2376", true, "tcp://node-1:2376"),
            ("http://node-1:2375", false, "tcp://node-1:2375"),
            ("tcp://[::1]:2375", false, "tcp://[::1]:2375"),
        ] {
            let endpoint = Endpoint::parse(text, tls).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(endpoint.to_string(), shown);
        }
    }

    /// CF-09
    #[test]
    fn endpoints_that_cannot_be_meant_are_refused_and_tls_is_never_dropped() {
        for (text, tls, word) in [
            ("", false, "scheme"),
            ("/var/run/docker.sock", false, "scheme"),
            ("unix://docker.sock", false, "absolute"),
            ("ssh://me@host", false, "scheme"),
            ("tcp://", false, "read"),
            ("tcp://host:99999", false, "read"),
            ("tcp://host:2375/v1.41", false, "path"),
            ("tcp://me@host:2375", false, "user"),
            ("https://host:2376", false, "RUNTIME_TLS_CA"),
            ("http://host:2375", true, "plain HTTP"),
        ] {
            match Endpoint::parse(text, tls) {
                Err(ConnectError::Endpoint { reason, .. }) => {
                    assert!(reason.contains(word), "{text}: {reason}")
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    /// CF-09
    #[test]
    fn a_tls_file_that_cannot_be_used_is_named_with_its_setting() {
        let directory = std::env::temp_dir();
        let empty = directory.join(format!("leasehold-empty-{}.pem", std::process::id()));
        std::fs::write(&empty, "").expect("the temporary folder can be written");
        let missing = directory.join("leasehold-no-such-file.pem");
        for (ca, word) in
            [(&missing, "cannot be read"), (&directory, "is a directory"), (&empty, "no certificate")]
        {
            let files = TlsFiles { ca: ca.clone(), cert: empty.clone(), key: empty.clone() };
            let error = Connection::open("tcp://127.0.0.1:1", Some(&files)).expect_err("a file is unusable");
            assert!(matches!(error, ConnectError::TlsFile { setting: "RUNTIME_TLS_CA", .. }), "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
        std::fs::remove_file(&empty).expect("it was just written");
    }

    /// DK-31
    #[test]
    fn the_api_version_is_the_newest_that_both_sides_speak() {
        assert_eq!(Api::agree("1.41", Some("1.12")), Ok(Api(1, 41)));
        assert_eq!(Api::agree("1.40", None), Ok(Api(1, 40)));
        assert_eq!(Api::agree("1.99", Some("1.44")), Ok(NEWEST_API));
        assert!(Api::agree("1.39", None).expect_err("too old").contains("19.03"));
        assert!(Api::agree("1.99", Some("1.90")).expect_err("too new").contains("upgrade"));
        assert!(Api::agree("banana", None).is_err());
    }
}
