//! The image of a CONTAINER job: by the rules of [`ImageReference`], the one parser, or the id of an image that
//! the engine has.

use leasehold_actors::domain::{
    InvalidDefinition,
    execution::{ImageReference, is_image_id},
};

/// Checks an image: `[host[:port]/]path[:tag][@digest]`, or an id of 64 hex digits.
///
/// # Errors
/// [`InvalidDefinition`] for the field `image`, with the place of the mistake.
pub fn check(image: &str) -> Result<(), InvalidDefinition> {
    if image.is_empty() {
        return Err(InvalidDefinition::new("image", "must not be empty"));
    }
    if is_image_id(image) {
        return Ok(());
    }
    match ImageReference::parse(image) {
        Ok(_) => Ok(()),
        Err(refused) => Err(InvalidDefinition::new("image", refused.to_string())),
    }
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
            &DIGEST[7..],
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
