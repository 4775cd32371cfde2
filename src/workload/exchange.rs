//! An HTTP request that a worker makes on behalf of whoever may submit jobs: HEARTBEAT probes and the recipe op `http`.
//!
//! Every hop is parsed, resolved and checked by [`super::egress`] before it is contacted, and only the checked
//! addresses are contacted; so redirects are followed here and not by the HTTP client.

use std::{
    error::Error as StdError,
    io,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use leasehold_actors::domain::{Failure, FailureKind, HeartbeatSpec};
use reqwest::{
    Method, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use url::Url;

use super::{
    egress::{EgressPolicy, InvalidRule, Resolve, ResolveError, SystemResolver},
    pinned::Pinned,
    probe_tls::{self, InvalidCaFile, ProbeTls},
};

/// The most redirects that are ever followed.
const REDIRECT_LIMIT: u8 = 10;

/// The worker's settings for requests of its jobs cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HeartbeatSettingsError {
    /// A rule of the allow-list cannot be read.
    #[error(transparent)]
    Rule(#[from] InvalidRule),
    /// The extra authorities cannot be read.
    #[error(transparent)]
    CaFile(#[from] InvalidCaFile),
}

/// Makes requests under the egress policy.
pub(crate) struct Exchange {
    policy: EgressPolicy,
    resolver: Box<dyn Resolve>,
    tls: ProbeTls,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// An answer of an expected status. Its body has not been read.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) response: Response,
    /// Where it came from.
    pub(crate) url: Url,
    /// How many redirects were followed.
    pub(crate) redirects: u8,
}

/// What a request is about, in words, for those who give up waiting for it.
#[derive(Debug)]
pub(crate) struct Stage(Mutex<&'static str>);

impl Stage {
    pub(crate) fn new() -> Self {
        Self(Mutex::new("before anything was sent"))
    }

    pub(crate) fn is(&self, now: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    pub(crate) fn words(&self) -> &'static str {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange {
    /// With an allow-list, and authorities to trust beside the operating system's.
    pub(crate) fn new(allow: &[String], ca_file: Option<&Path>) -> Result<Self, HeartbeatSettingsError> {
        Ok(Self {
            policy: EgressPolicy::new(allow)?,
            resolver: Box::new(SystemResolver),
            tls: ProbeTls::new(ca_file)?,
        })
    }

    pub(crate) fn with_resolver(mut self, resolver: impl Resolve) -> Self {
        self.resolver = Box::new(resolver);
        self
    }

    /// Follows redirects as far as the plan allows, to an answer of a status that it expects.
    pub(crate) async fn reach(&self, plan: &Plan<'_>, stage: &Stage) -> Result<Reached, Failure> {
        let mut hop = plan.first_hop();
        let mut visited = vec![hop.url.clone()];
        loop {
            stage.is("while resolving");
            let checked = self.policy.check(&hop.url, self.resolver.as_ref()).await;
            let addresses = checked.map_err(|e| refused(&e, &hop, visited.len() > 1))?.addresses;
            stage.is("while connecting or waiting for the status");
            let response = self.send(plan, &hop, addresses).await?;
            let status = response.status();
            if plan.expects(status) {
                let redirects = u8::try_from(visited.len() - 1).unwrap_or(u8::MAX);
                return Ok(Reached { response, url: hop.url, redirects });
            }
            let Some(location) = redirect_target(&response) else {
                return Err(unexpected(plan, &hop.url, status));
            };
            hop = hop.redirected(plan, status, &location, &visited)?;
            visited.push(hop.url.clone());
        }
    }

    /// Sends the request of one hop, to the checked addresses and to nothing else.
    async fn send(
        &self,
        plan: &Plan<'_>,
        hop: &Hop,
        addresses: Vec<std::net::SocketAddr>,
    ) -> Result<Response, Failure> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .pool_max_idle_per_host(0)
            .dns_resolver(Pinned::new(addresses))
            .tls_backend_preconfigured(self.tls.config(plan.spec.insecure_skip_tls_verify))
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| bad_definition(format!("the HTTP client cannot be made: {}", e.without_url())))?;
        let mut request = client.request(hop.method.clone(), hop.url.clone()).headers(hop.headers.clone());
        if let Some(body) = &hop.body {
            request = request.body(body.clone());
        }
        request.send().await.map_err(|e| transport(e, &hop.url))
    }
}

/// A definition that was looked through.
pub(crate) struct Plan<'a> {
    spec: &'a HeartbeatSpec,
    url: Url,
    method: Method,
    headers: HeaderMap,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(spec: &'a HeartbeatSpec) -> Result<Self, Failure> {
        let url = spec.url.parse::<Url>().map_err(|e| bad_definition(format!("url: {e}")))?;
        let method = match spec.method.as_str() {
            "GET" => Method::GET,
            "HEAD" => Method::HEAD,
            "POST" => Method::POST,
            "PUT" => Method::PUT,
            "PATCH" => Method::PATCH,
            "DELETE" => Method::DELETE,
            "OPTIONS" => Method::OPTIONS,
            other => return Err(bad_definition(format!("method: {other:?} is not one that probes use"))),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in &spec.headers {
            // The value may be a credential: it is not repeated in the reason.
            let name = HeaderName::try_from(name.as_str()).map_err(|_| {
                bad_definition(format!("headers.{}: no valid header name", name.escape_debug()))
            })?;
            if FRAMING.contains(&name.as_str()) {
                return Err(bad_definition(format!("headers.{name}: is set by the probe itself")));
            }
            let mut value = HeaderValue::try_from(value.as_str())
                .map_err(|_| bad_definition(format!("headers.{name}: no valid header value")))?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(Self { spec, url, method, headers })
    }

    pub(crate) fn insecure(&self) -> bool {
        self.spec.insecure_skip_tls_verify
    }

    /// It took longer than it may.
    pub(crate) fn overdue(&self, limit: Duration, stage: &Stage) -> Failure {
        let limit = humantime::format_duration(limit);
        let text = format!("{}: not done within {limit} ({})", shown(&self.url), stage.words());
        Failure::new(FailureKind::Timeout, "timeout", text)
    }

    fn first_hop(&self) -> Hop {
        Hop {
            url: self.url.clone(),
            method: self.method.clone(),
            headers: self.headers.clone(),
            body: self.spec.body.clone(),
        }
    }

    fn expects(&self, status: StatusCode) -> bool {
        if self.spec.expected_status.is_empty() {
            status.is_success()
        } else {
            self.spec.expected_status.contains(&status.as_u16())
        }
    }
}

/// Headers that frame the message; a second opinion on them is how requests are smuggled.
const FRAMING: &[&str] = &["content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade"];

/// Headers that a redirect carries to another origin. Any other may be a credential.
const HARMLESS: &[&str] = &["accept", "accept-language", "user-agent"];

/// One request of a probe.
#[derive(Clone)]
struct Hop {
    url: Url,
    method: Method,
    headers: HeaderMap,
    body: Option<String>,
}

impl Hop {
    /// The hop that a redirect leads to, if it may be followed at all. Nothing is contacted here.
    fn redirected(
        &self,
        plan: &Plan<'_>,
        status: StatusCode,
        location: &HeaderValue,
        visited: &[Url],
    ) -> Result<Self, Failure> {
        let refused = |what: String| {
            let from = shown(&self.url);
            Failure::new(
                FailureKind::User,
                "redirect_refused",
                format!("redirect refused: {from} answered {status}, {what}"),
            )
        };
        let target = location.to_str().ok().and_then(|text| self.url.join(text).ok());
        let Some(mut url) = target else {
            return Err(refused("its Location is no valid address".to_owned()));
        };
        url.set_fragment(None);
        let most = plan.spec.max_redirects.min(REDIRECT_LIMIT);
        if visited.len() > usize::from(most) {
            let to = shown(&url);
            return Err(refused(format!(
                "redirect to {to}, but this request follows at most {most} (max_redirects)"
            )));
        }
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refused(format!("a redirect to the scheme {:?}", url.scheme())));
        }
        if self.url.scheme() == "https" && url.scheme() == "http" {
            return Err(refused(format!("a redirect from https to {}", shown(&url))));
        }

        let keeps_method =
            matches!(status.as_u16(), 307 | 308) || matches!(self.method, Method::GET | Method::HEAD);
        let same_origin = self.url.origin() == url.origin();
        let mut next = Self { url, ..self.clone() };
        if !keeps_method {
            next.method = Method::GET;
            next.body = None;
            next.headers.remove(CONTENT_TYPE);
        }
        if same_origin {
            // What was presented to this server before is presented to it again.
            if next.url.username().is_empty() && next.url.password().is_none() {
                let kept = next.url.set_username(self.url.username());
                let kept = kept.and_then(|()| next.url.set_password(self.url.password()));
                kept.map_err(|()| refused("its Location has no host".to_owned()))?;
            }
        } else {
            if next.body.is_some() {
                return Err(refused(format!("a redirect of the request's body to {}", shown(&next.url))));
            }
            // Neither our credentials nor any that the server put into its Location.
            let kept = next.headers.iter().filter(|(name, _)| HARMLESS.contains(&name.as_str()));
            next.headers = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
            let cleared = next.url.set_username("").and_then(|()| next.url.set_password(None));
            cleared.map_err(|()| refused("its Location has no host".to_owned()))?;
        }
        if visited.contains(&next.url) {
            return Err(refused(format!("a redirect back to {}, a loop", shown(&next.url))));
        }
        Ok(next)
    }
}

fn redirect_target(response: &Response) -> Option<HeaderValue> {
    let redirects = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    if redirects { response.headers().get(LOCATION).cloned() } else { None }
}
/// Reads at most `limit` bytes.
pub(crate) async fn read_body(mut response: Response, url: &Url, limit: usize) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while body.len() < limit {
        match response.chunk().await.map_err(|e| transport(e, url))? {
            Some(chunk) => body.extend_from_slice(&chunk[..chunk.len().min(limit - body.len())]),
            None => break,
        }
    }
    Ok(body)
}
fn unexpected(plan: &Plan<'_>, url: &Url, status: StatusCode) -> Failure {
    let expected = if plan.spec.expected_status.is_empty() {
        "200 to 299".to_owned()
    } else {
        let each: Vec<_> = plan.spec.expected_status.iter().map(u16::to_string).collect();
        each.join(", ")
    };
    let text = format!("{} answered {status}; expected is {expected}", shown(url));
    Failure::new(FailureKind::User, "unexpected_status", text)
}
fn refused(error: &ResolveError, hop: &Hop, is_redirect: bool) -> Failure {
    let at = shown(&hop.url);
    match error {
        ResolveError::Refused(refusal) if is_redirect => Failure::new(
            FailureKind::User,
            "redirect_refused",
            format!("redirect refused: {at} was not contacted: {refusal}"),
        ),
        ResolveError::Refused(refusal) => {
            Failure::new(FailureKind::User, "egress_refused", format!("{at} was not contacted: {refusal}"))
        }
        ResolveError::Unresolved { .. } => Failure::new(FailureKind::System, "unresolved", error.to_string()),
    }
}

pub(crate) fn bad_definition(reason: String) -> Failure {
    Failure::new(FailureKind::User, "bad_definition", reason)
}

/// Sorts an error of the transport. Its own text holds the whole address, so that is taken out first.
fn transport(error: reqwest::Error, url: &Url) -> Failure {
    let (error, at) = (error.without_url(), shown(url));
    if let Some(tls) = find_tls(&error) {
        let (code, reason) = probe_tls::explain(tls);
        return Failure::new(FailureKind::User, code, format!("{at}: {reason}"));
    }
    let mut deepest: &dyn StdError = &error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let (code, what) = if error.is_connect() {
        ("connect_failed", "cannot be reached")
    } else {
        ("connection_broken", "the connection ended without a whole answer")
    };
    Failure::new(FailureKind::System, code, format!("{at}: {what}: {deepest}"))
}

/// The TLS error inside. An `io::Error` answers `source()` with the source of what it wraps, not with that
/// itself, so it is opened by hand.
fn find_tls<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e rustls::Error> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls);
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = inner.and_then(|inner| find_tls(inner)) {
            return Some(found);
        }
        current = error.source();
    }
    None
}

/// An address as people may see it: no credentials, no query, no fragment.
pub(crate) fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let query = if url.query().is_some() { "?…" } else { "" };
    format!("{}://{host}{port}{}{query}", url.scheme(), url.path())
}
