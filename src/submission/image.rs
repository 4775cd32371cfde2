//! Image references by Docker's rules, refused with the place of the mistake.

use leasehold_actors::domain::InvalidDefinition;

/// Docker's own limit on host and path together.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// Checks an image reference: `[host[:port]/]path[:tag][@digest]`.
///
/// A first part is a host if it has a dot or a port, or is `localhost`; an upper-case letter anywhere else in
/// the name is refused, since engines refuse it.
///
/// # Errors
/// [`InvalidDefinition`] for the field `image`.
pub fn check(image: &str) -> Result<(), InvalidDefinition> {
    let refuse = |at: usize, reason: &str| {
        Err(InvalidDefinition::new(
            "image",
            format!("{image:?} is not an image reference: {reason} (byte {at})"),
        ))
    };
    if image.is_empty() {
        return Err(InvalidDefinition::new("image", "must not be empty"));
    }
    if let Some((at, c)) =
        image.char_indices().find(|(_, c)| c.is_whitespace() || c.is_control() || !c.is_ascii())
    {
        return refuse(at, &format!("{c:?} is not allowed"));
    }
    let (named, digest) = match image.split_once('@') {
        Some((named, digest)) => (named, Some((named.len() + 1, digest))),
        None => (image, None),
    };
    if let Some((at, digest)) = digest {
        let hex = match digest.split_once(':') {
            Some(("sha256", hex)) if hex.len() == 64 => hex,
            Some(("sha384", hex)) if hex.len() == 96 => hex,
            Some(("sha512", hex)) if hex.len() == 128 => hex,
            _ => {
                return refuse(
                    at,
                    "a digest is sha256:, sha384: or sha512: and its 64, 96 or 128 hex digits",
                );
            }
        };
        if !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return refuse(at, "a digest is written in lower-case hex digits");
        }
    }
    let path_begin = match named.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => {
            if let Err((at, reason)) = check_host(first) {
                return refuse(at, reason);
            }
            first.len() + 1
        }
        _ => 0,
    };
    // What follows the last slash may end in a tag; a colon before it belongs to the host's port.
    let last = named.rfind('/').map_or(0, |slash| slash + 1).max(path_begin);
    let name_end = named[last..].find(':').map_or(named.len(), |colon| last + colon);
    if name_end < named.len() {
        let tag = &named[name_end + 1..];
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
    let mut at = path_begin;
    for part in named[path_begin..name_end].split('/') {
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
    Ok(())
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
    use oci_spec::distribution::Reference;
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// RQ-09, RQ-11
    #[test]
    fn well_formed_references_pass() {
        for good in [
            "busybox",
            "x",
            "library/x",
            "docker.io/x",
            "index.docker.io/library/x",
            "localhost/x",
            "localhost:80/x",
            "127.0.0.1/x",
            "[::1]:5000/x",
            "registry/x",
            "registry.local/x",
            "localhost:5000/a/b",
            "localhost:5000/a/b:1",
            "host:5000",
            "a:1/2",
            "Registry.Example.com/a",
            "a__b/c-d.e:V1.2-x",
            &format!("a@{DIGEST}"),
            &format!("a:tag@{DIGEST}"),
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    /// RQ-09
    #[test]
    fn malformed_references_are_refused_with_their_place() {
        for (bad, place) in [
            ("", "empty"),
            ("host/a:", "(byte 7)"),
            ("a:b:c", "(byte 2)"),
            ("a:b/2", "(byte 2)"),
            (":tag", "(byte 0)"),
            ("a@", "(byte 2)"),
            ("a:tag@", "(byte 6)"),
            ("a b", "(byte 1)"),
            ("a\0b", "(byte 1)"),
            ("Busybox", "lower-case (byte 0)"),
            ("UPPER/x", "lower-case (byte 0)"),
            ("host.example/Up", "lower-case (byte 13)"),
            ("a//b", "(byte 2)"),
            ("/a", "(byte 0)"),
            ("a/", "(byte 2)"),
            ("a___b", "(byte 0)"),
            ("a..b", "(byte 0)"),
            ("-a", "(byte 0)"),
            ("a:-x", "(byte 2)"),
            ("host:port/x", "(byte 5)"),
            ("ho_st.x:80/x", "(byte 0)"),
            ("a@md5:00", "(byte 2)"),
            ("a@sha256:00", "(byte 2)"),
            (&format!("a@{}", DIGEST.to_uppercase().replace("SHA", "sha")), "(byte 2)"),
            ("é", "(byte 0)"),
            (&"a/".repeat(130), "255"),
            (&format!("a:{}", "t".repeat(129)), "(byte 2)"),
        ] {
            let refused = check(bad).expect_err(bad);
            assert!(refused.to_string().contains(place), "{bad}: {refused}");
        }
    }

    proptest! {
        /// Another implementation of the same grammar agrees, but for its two gaps: it knows no IPv6 hosts and
        /// takes upper-case letters in any first part.
        #[test]
        fn verdicts_are_those_of_the_grammar(image in "[a-c0-9._:/@-]{1,12}(:[a-zA-Z0-9_.-]{0,3})?") {
            prop_assert_eq!(check(&image).is_ok(), Reference::try_from(image.as_str()).is_ok(), "{}", image);
        }
    }
}
