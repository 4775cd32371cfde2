//! Requirements and allocations in the flat form in which a store keeps and compares them.

use super::recipe::{Facts, Hint};
use crate::domain::execution::{Allocation, Platform, Requirements};

type FlatPlatform = Option<(String, String, Option<String>)>;

fn flat(platform: Option<&Platform>) -> FlatPlatform {
    let platform = platform?;
    let variant = platform.variant().map(str::to_owned);
    Some((platform.os().to_owned(), platform.architecture().to_owned(), variant))
}

impl From<&Requirements> for Hint {
    fn from(required: &Requirements) -> Self {
        let image = required.image.as_ref();
        let image_digest = image.and_then(|image| image.digest()).map(ToString::to_string);
        // With a digest, the digest alone decides.
        let image_reference = image.filter(|_| image_digest.is_none()).map(ToString::to_string);
        Self {
            cpu_millis: required.cpu_millis,
            memory_bytes: required.memory_bytes,
            ephemeral_storage_bytes: required.ephemeral_storage_bytes,
            platform: flat(required.platform.as_ref()),
            image_reference,
            image_digest,
        }
    }
}

impl From<&Allocation> for Facts {
    fn from(actual: &Allocation) -> Self {
        Self {
            cpu_millis: actual.cpu_millis,
            memory_bytes: actual.memory_bytes,
            ephemeral_storage_bytes: actual.ephemeral_storage_bytes,
            platform: flat(actual.platform.as_ref()),
            image_reference: actual.image.reference.as_ref().map(ToString::to_string),
            image_digest: actual.image.manifest_digest.as_ref().map(ToString::to_string),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::execution::compare;

    /// The rule as a store applies it: minimums, and texts that are the same.
    fn fits(hint: &Hint, facts: &Facts) -> bool {
        let enough = |needed: Option<i64>, there: Option<i64>| needed.is_none() || there >= needed;
        let same = |needed: &Option<String>, there: &Option<String>| needed.is_none() || needed == there;
        let platform = match (&hint.platform, &facts.platform) {
            (None, _) => true,
            (Some(needed), Some(there)) => {
                (&needed.0, &needed.1) == (&there.0, &there.1) && same(&needed.2, &there.2)
            }
            (Some(_), None) => false,
        };
        enough(hint.cpu_millis, facts.cpu_millis)
            && enough(hint.memory_bytes, facts.memory_bytes)
            && enough(hint.ephemeral_storage_bytes, facts.ephemeral_storage_bytes)
            && platform
            && same(&hint.image_reference, &facts.image_reference)
            && same(&hint.image_digest, &facts.image_digest)
    }

    #[test]
    fn the_flat_form_fits_exactly_where_the_comparison_finds_no_mismatch() {
        let digests = ["a", "b"].map(|digit| format!("sha256:{}", digit.repeat(64)));
        let requirements: Vec<Requirements> = [
            "",
            "cpu=2",
            "memory=4Gi,ephemeral-storage=1G",
            "platform=arm64",
            "platform=arm64/v9,cpu=500m",
            "platform=linux/arm",
            "image=x",
            "image=x:1,memory=1",
            &format!("image=x@{}", digests[0]),
            &format!("image=x:1@{}", digests[1]),
        ]
        .map(|text| text.parse().expect(text))
        .to_vec();
        let allocations: Vec<Allocation> = [
            "",
            "cpu=2,memory=4Gi,ephemeral-storage=1Gi",
            "cpu=1.999,platform=aarch64",
            "cpu=500m,platform=arm64/v9,image=docker.io/x:1,memory=1",
            "platform=armhf,image=docker.io/library/x",
            &format!("image=x@{}", digests[0]),
            &format!("image=x:1@{}", digests[1]),
            &format!("image=x@{0},image-digest={0}", digests[0]),
            &format!("image=x:1,image-digest={}", digests[1]),
        ]
        .map(|text| text.parse().expect(text))
        .to_vec();
        let mut fitting = 0;
        for required in &requirements {
            for actual in &allocations {
                let found = compare(required, actual);
                assert_eq!(
                    fits(&required.into(), &actual.into()),
                    found.is_empty(),
                    "{required} on {actual}: {found:?}"
                );
                fitting += usize::from(found.is_empty());
            }
        }
        assert!(fitting > 15 && fitting < requirements.len() * allocations.len() / 2, "{fitting}");
    }
}
