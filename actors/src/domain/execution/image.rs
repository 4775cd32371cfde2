//! Image references by the rules of Docker's reference package: one parser for the whole product, which gives
//! the place of a mistake, and fills in the registry, `library/` and the tag that Docker would.

use std::{
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::written;

/// Docker's own limit on host and path together.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;
const DEFAULT_REGISTRY: &str = "docker.io";

/// Why a reference is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an image reference: {reason} (byte {at})")]
pub struct InvalidReference {
    /// The reference as it was written, cut to 300 characters.
    pub text: String,
    /// The byte at which the rule is broken.
    pub at: usize,
    /// The rule.
    pub reason: String,
}

/// `registry/repository[:tag][@digest]`, normalised.
///
/// Two are equal if they name the same image: with a digest the digest alone decides, else every part.
#[derive(Debug, Clone)]
pub struct ImageReference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<ManifestDigest>,
}

impl ImageReference {
    /// Parses `[host[:port]/]path[:tag][@digest]` and fills in what Docker would: `docker.io`, `library/`, and
    /// `latest` when there is neither a tag nor a digest.
    ///
    /// A first part is a host if it has a dot or a port, or is `localhost`; an upper-case letter anywhere else in
    /// the name is refused, since engines refuse it.
    ///
    /// # Errors
    /// [`InvalidReference`] with the place of the mistake.
    pub fn parse(text: &str) -> Result<Self, InvalidReference> {
        let parts = split(text).map_err(|(at, reason)| InvalidReference {
            text: text.chars().take(300).collect(),
            at,
            reason,
        })?;
        let (registry, repository) = match (parts.host, parts.path) {
            (None | Some("docker.io" | "index.docker.io"), path) => {
                let library = if path.contains('/') { "" } else { "library/" };
                (DEFAULT_REGISTRY, format!("{library}{path}"))
            }
            (Some(host), path) => (host, path.to_owned()),
        };
        let tag = parts.tag.or_else(|| parts.digest.is_none().then_some("latest"));
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            tag: tag.map(str::to_owned),
            digest: parts.digest.map(|digest| ManifestDigest(digest.to_owned())),
        })
    }

    /// The host, with its port: `docker.io` when none was written.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The path: `library/busybox`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag; none only where there is a digest.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest that the reference is pinned to.
    #[must_use]
    pub fn digest(&self) -> Option<&ManifestDigest> {
        self.digest.as_ref()
    }
}

impl PartialEq for ImageReference {
    fn eq(&self, other: &Self) -> bool {
        match (&self.digest, &other.digest) {
            (Some(ours), Some(theirs)) => ours == theirs,
            (None, None) => {
                (&self.registry, &self.repository, &self.tag)
                    == (&other.registry, &other.repository, &other.tag)
            }
            _ => false,
        }
    }
}

impl Eq for ImageReference {}

impl Hash for ImageReference {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.digest {
            Some(digest) => digest.hash(state),
            None => (&self.registry, &self.repository, &self.tag).hash(state),
        }
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

impl FromStr for ImageReference {
    type Err = InvalidReference;
    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        Self::parse(text)
    }
}

impl Serialize for ImageReference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ImageReference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = written::text(deserializer, "an image reference, in quotes")?;
        Self::parse(&text).map_err(|e| D::Error::custom(format!("image: {e}")))
    }
}

/// `sha256:` and 64 lower-case hex digits (or sha384, sha512): what a registry knows a manifest by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ManifestDigest(String);

impl ManifestDigest {
    /// Checks a digest.
    ///
    /// # Errors
    /// The rule that is broken, in words.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        check_digest(text).map(|()| Self(text.to_owned()))
    }

    /// The digest as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ManifestDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for ManifestDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ManifestDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = written::text(deserializer, "a digest such as sha256:…, in quotes")?;
        Self::parse(&text).map_err(|reason| D::Error::custom(format!("{text:?}: {reason}")))
    }
}

/// 64 lower-case hex digits and nothing else: an engine takes that for the id of an image that it has. It can be
/// run, but it is no reference, and Docker's rules refuse it as one.
#[must_use]
pub fn is_image_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(is_hex)
}

fn is_hex(b: u8) -> bool {
    matches!(b, b'0'..=b'9' | b'a'..=b'f')
}

struct Parts<'a> {
    host: Option<&'a str>,
    path: &'a str,
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

type Broken = (usize, String);

fn split(text: &str) -> Result<Parts<'_>, Broken> {
    let refuse = |at: usize, reason: &str| Err((at, reason.to_owned()));
    if text.is_empty() {
        return refuse(0, "it is empty");
    }
    if let Some((at, c)) =
        text.char_indices().find(|(_, c)| c.is_whitespace() || c.is_control() || !c.is_ascii())
    {
        return Err((at, format!("{c:?} is not allowed")));
    }
    if is_image_id(text) {
        return refuse(0, "64 hex digits are the id of an image and no name");
    }
    let (named, digest) = match text.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (text, None),
    };
    if let Some(digest) = digest {
        check_digest(digest).map_err(|reason| (named.len() + 1, reason.to_owned()))?;
    }
    let host = match named.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => {
            check_host(first).map_err(|(at, reason)| (at, reason.to_owned()))?;
            Some(first)
        }
        _ => None,
    };
    let path_begin = host.map_or(0, |host| host.len() + 1);
    // What follows the last slash may end in a tag; a colon before it belongs to the host's port.
    let last = named.rfind('/').map_or(0, |slash| slash + 1).max(path_begin);
    let name_end = named[last..].find(':').map_or(named.len(), |colon| last + colon);
    let tag = named.get(name_end + 1..);
    if let Some(tag) = tag {
        let good = |(n, b): (usize, u8)| {
            b.is_ascii_alphanumeric() || b == b'_' || (n > 0 && matches!(b, b'.' | b'-'))
        };
        if tag.is_empty() || tag.len() > MAX_TAG || !tag.bytes().enumerate().all(good) {
            return refuse(
                name_end + 1,
                "a tag is 1 to 128 letters, digits, `_`, `.` and `-`, not beginning with the last two",
            );
        }
    }
    if name_end > MAX_NAME {
        return refuse(MAX_NAME, "the name is longer than 255 bytes");
    }
    let path = &named[path_begin..name_end];
    let mut at = path_begin;
    for part in path.split('/') {
        if let Some(upper) = part.find(|c: char| c.is_ascii_uppercase()) {
            return refuse(at + upper, "a repository name must be lower-case");
        }
        if !is_path_component(part) {
            return refuse(
                at,
                "each part of a repository name is lower-case letters and digits, joined by `.`, `_`, `__` or dashes",
            );
        }
        at += part.len() + 1;
    }
    Ok(Parts { host, path, tag, digest })
}

fn check_digest(digest: &str) -> Result<(), &'static str> {
    let hex = match digest.split_once(':') {
        Some(("sha256", hex)) if hex.len() == 64 => hex,
        Some(("sha384", hex)) if hex.len() == 96 => hex,
        Some(("sha512", hex)) if hex.len() == 128 => hex,
        _ => return Err("a digest is sha256:, sha384: or sha512: and its 64, 96 or 128 hex digits"),
    };
    if hex.bytes().all(is_hex) { Ok(()) } else { Err("a digest is written in lower-case hex digits") }
}

fn check_host(host: &str) -> Result<(), (usize, &'static str)> {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    if let Some(port) = port
        && (port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()))
    {
        return Err((name.len() + 1, "a port is a number"));
    }
    if let Some(inner) = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')) {
        let good = !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
        return if good { Ok(()) } else { Err((1, "an address in brackets is an IPv6 address")) };
    }
    let mut at = 0;
    for label in name.split('.') {
        let good = !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-');
        if !good {
            return Err((at, "that is no host name"));
        }
        at += label.len() + 1;
    }
    Ok(())
}

/// `[a-z0-9]+` groups joined by one `.`, one or two `_`, or any number of `-`.
fn is_path_component(part: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    if !bytes.first().copied().is_some_and(is_word) || !bytes.last().copied().is_some_and(is_word) {
        return false;
    }
    part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        .all(|joint| matches!(joint, "" | "." | "_" | "__") || joint.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn image(text: &str) -> ImageReference {
        ImageReference::parse(text).expect(text)
    }

    /// RQ-11
    #[test]
    fn names_that_docker_takes_for_one_image_are_equal_and_print_alike() {
        for same in
            ["x", "library/x", "docker.io/x", "index.docker.io/library/x", "docker.io/library/x:latest"]
        {
            assert_eq!(image(same), image("x"), "{same}");
            assert_eq!(image(same).to_string(), "docker.io/library/x:latest");
        }
        for (written, registry, repository) in [
            ("localhost/x", "localhost", "x"),
            ("localhost:80/x", "localhost:80", "x"),
            ("127.0.0.1/x", "127.0.0.1", "x"),
            ("[::1]:5000/x", "[::1]:5000", "x"),
            ("registry/x", "docker.io", "registry/x"),
            ("registry.local/x", "registry.local", "x"),
            ("registry.local/library/x", "registry.local", "library/x"),
            ("Registry.Example.com/x", "Registry.Example.com", "x"),
        ] {
            let image = image(written);
            assert_eq!((image.registry(), image.repository()), (registry, repository), "{written}");
            assert_ne!(image, self::image("x"), "{written}");
        }
        // Engines refuse it, whatever newer rules make of an upper-case first part.
        assert!(ImageReference::parse("UPPER/x").is_err());
    }

    /// RQ-09
    #[test]
    fn port_and_tag_are_told_apart_and_the_default_tag_is_only_for_what_has_none() {
        for (written, printed) in [
            ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
            ("localhost:5000/a/b:1", "localhost:5000/a/b:1"),
            ("host:5000", "docker.io/library/host:5000"),
            ("a:1/2", "a:1/2:latest"),
            (&format!("a@{DIGEST}"), &format!("docker.io/library/a@{DIGEST}")),
            (&format!("a:tag@{DIGEST}"), &format!("docker.io/library/a:tag@{DIGEST}")),
        ] {
            assert_eq!(image(written).to_string(), printed);
        }
        for (bad, at) in
            [("host/a:", 7), ("a:b:c", 2), (":tag", 0), ("a@", 2), ("a:tag@", 6), ("a b", 1), ("", 0)]
        {
            assert_eq!(ImageReference::parse(bad).expect_err(bad).at, at, "{bad}");
        }
    }

    #[test]
    fn a_digest_alone_decides() {
        let other = DIGEST.replace('f', "e");
        assert_eq!(image(&format!("a:1@{DIGEST}")), image(&format!("b.example/c@{DIGEST}")));
        assert_ne!(image(&format!("a@{DIGEST}")), image(&format!("a@{other}")));
        assert_ne!(image(&format!("a:1@{DIGEST}")), image("a:1"));
        assert!(ImageReference::parse(&DIGEST[7..]).is_err(), "an id is no reference");
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_back(text in "([a-c]{1,3}(\\.[a-c]|:[0-9]{1,4})?/)?[a-c]{1,3}(/[a-c-]{1,4})?(:[A-Z0-9.]{1,3})?") {
            if let Ok(once) = ImageReference::parse(&text) {
                let again = image(&once.to_string());
                prop_assert_eq!(again.to_string(), once.to_string());
                prop_assert_eq!(again, once);
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,20}") {
            let _ = ImageReference::parse(&text);
        }
    }
}
