//! Rules for HEARTBEAT definitions. Whether an address may be contacted is decided when it is probed, on every
//! hop; nothing is resolved or contacted here.

use leasehold_actors::domain::{HeartbeatSpec, InvalidDefinition};
use url::{Host, Url};

use super::{no_nul, range};

/// The longest address.
pub const MAX_URL_BYTES: usize = 8192;
/// The longest regular expression.
pub const MAX_BODY_MATCH_BYTES: usize = 4096;
/// The longest that one probe may take.
pub const MAX_TIMEOUT_MS: i64 = 900_000;
/// The most redirects that can be followed.
pub const MAX_REDIRECTS: u8 = 10;
/// The most headers, and the most expected statuses.
pub const MAX_ENTRIES: usize = 100;

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// Checks a HEARTBEAT definition.
///
/// # Errors
/// [`InvalidDefinition`] for the first rule that is broken.
pub fn check(spec: &HeartbeatSpec) -> Result<(), InvalidDefinition> {
    url(&spec.url)?;
    if !METHODS.contains(&spec.method.as_str()) {
        return Err(InvalidDefinition::new("method", format!("must be one of {}", METHODS.join(", "))));
    }
    if spec.expected_status.len() > MAX_ENTRIES {
        return Err(InvalidDefinition::new("expected_status", "has more than 100 entries"));
    }
    for (n, status) in spec.expected_status.iter().enumerate() {
        range(&format!("expected_status[{n}]"), Some(i64::from(*status)), 100, 599)?;
    }
    if spec.headers.len() > MAX_ENTRIES {
        return Err(InvalidDefinition::new("headers", "has more than 100 entries"));
    }
    for (name, value) in &spec.headers {
        header(name, value)?;
    }
    if let Some(body) = &spec.body {
        no_nul("body", body)?;
    }
    if let Some(pattern) = &spec.body_match {
        body_match(pattern)?;
    }
    if spec.max_redirects > MAX_REDIRECTS {
        return Err(InvalidDefinition::new("max_redirects", "must be between 0 and 10"));
    }
    range("timeout_ms", Some(spec.timeout_ms), 1, MAX_TIMEOUT_MS)
}

fn url(text: &str) -> Result<(), InvalidDefinition> {
    let refuse = |reason: &str| Err(InvalidDefinition::new("url", reason));
    if text.is_empty() {
        return refuse("must not be empty");
    }
    if text.len() > MAX_URL_BYTES {
        return refuse("is longer than 8192 bytes");
    }
    // The parser would drop tabs and line breaks, and read a backslash as a slash: then people and machines
    // would see different addresses.
    if text.contains(|c: char| c <= ' ' || c == '\x7f' || c == '\\') {
        return refuse("must not contain white space, control characters or backslashes");
    }
    let lower = text.get(..8).unwrap_or(text).to_ascii_lowercase();
    if !lower.starts_with("http://") && !lower.starts_with("https://") {
        return refuse("must begin with http:// or https://");
    }
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(e) => return refuse(&format!("has no usable host and port: {e}")),
    };
    // An empty user name vanishes in parsing, so the text is looked at too.
    let after_scheme = text.split_once("//").map_or("", |(_, rest)| rest);
    let authority = after_scheme.split(['/', '?', '#']).next().unwrap_or_default();
    if !url.username().is_empty() || url.password().is_some() || authority.contains('@') {
        return refuse("must not carry a user name or password");
    }
    match url.host() {
        Some(Host::Domain(name)) if !name.is_empty() => {}
        Some(Host::Ipv4(_) | Host::Ipv6(_)) => {}
        _ => return refuse("has no usable host and port"),
    }
    if authority.is_empty() || authority.ends_with(':') || url.port() == Some(0) {
        return refuse("has no usable host and port");
    }
    Ok(())
}

fn header(name: &str, value: &str) -> Result<(), InvalidDefinition> {
    let field = || format!("headers.{}", name.escape_default());
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > 200 || !name.bytes().all(is_token) {
        return Err(InvalidDefinition::new(field(), "is not the name of an HTTP header"));
    }
    if value.len() > 8192 || !value.bytes().all(|b| b == b'\t' || (b' '..=b'~').contains(&b)) {
        return Err(InvalidDefinition::new(
            field(),
            "a value is at most 8192 characters of printable ASCII, without line breaks",
        ));
    }
    Ok(())
}

fn body_match(pattern: &str) -> Result<(), InvalidDefinition> {
    no_nul("body_match", pattern)?;
    if pattern.len() > MAX_BODY_MATCH_BYTES {
        return Err(InvalidDefinition::new("body_match", "is longer than 4096 bytes"));
    }
    match regex::Regex::new(pattern) {
        Ok(_) => Ok(()),
        Err(e) => {
            // The last line says what is wrong; the ones before draw it, which a one-line error cannot.
            let text = e.to_string();
            let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Err(InvalidDefinition::new("body_match", format!("is not a regular expression: {last}")))
        }
    }
}
