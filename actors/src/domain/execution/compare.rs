//! Whether an allocation satisfies requirements, and if not, why not.

use std::fmt;

use serde::Serialize;

use super::{
    allocation::{Allocation, Fact},
    requirements::{Field, Requirements},
};

/// One requirement that an allocation does not satisfy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Mismatch {
    /// Which one.
    pub field: Field,
    /// What is needed, normalised.
    pub required: String,
    /// What is there, normalised; nothing when that is unknown.
    pub actual: Option<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actual = self.actual.as_deref().unwrap_or("unknown");
        write!(f, "{}: needed {}, there {actual}", self.field, self.required)
    }
}

/// Everything that is required and not satisfied, in the order of [`Field`]; empty means that it fits.
///
/// Resources are minimums: a larger allocation is fine. An unknown fact satisfies nothing explicit. An image
/// by tag must be the normalised reference that the worker was launched by; an image by digest needs the
/// manifest's actual digest, since a launch reference proves nothing about what was launched.
#[must_use]
pub fn compare(required: &Requirements, actual: &Allocation) -> Vec<Mismatch> {
    Field::ALL.into_iter().filter_map(|field| mismatch(field, required, actual)).collect()
}

fn mismatch(field: Field, required: &Requirements, actual: &Allocation) -> Option<Mismatch> {
    let at_least = |required: Option<i64>, actual: Option<i64>| match (required, actual) {
        (Some(required), actual) => actual.is_some_and(|actual| actual >= required),
        (None, _) => true,
    };
    let (fits, fact) = match field {
        Field::Cpu => (at_least(required.cpu_millis, actual.cpu_millis), Fact::Cpu),
        Field::Memory => (at_least(required.memory_bytes, actual.memory_bytes), Fact::Memory),
        Field::EphemeralStorage => (
            at_least(required.ephemeral_storage_bytes, actual.ephemeral_storage_bytes),
            Fact::EphemeralStorage,
        ),
        Field::Platform => {
            let fits = required.platform.as_ref().is_none_or(|required| {
                actual.platform.as_ref().is_some_and(|actual| required.accepts(actual))
            });
            (fits, Fact::Platform)
        }
        Field::Image => match &required.image {
            None => (true, Fact::Image),
            Some(image) => match image.digest() {
                Some(digest) => (actual.image.manifest_digest.as_ref() == Some(digest), Fact::ImageDigest),
                None => (actual.image.reference.as_ref() == Some(image), Fact::Image),
            },
        },
    };
    if fits {
        return None;
    }
    Some(Mismatch { field, required: required.get(field)?, actual: actual.get(fact) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::requirements::{overlay, tests::any_requirements},
        *,
    };

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn misses(required: &str, actual: &str) -> Vec<String> {
        let required: Requirements = required.parse().expect(required);
        let actual: Allocation = actual.parse().expect(actual);
        compare(&required, &actual).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn resources_are_minimums_and_unknown_ones_satisfy_nothing() {
        assert_eq!(misses("", ""), [""; 0]);
        assert_eq!(
            misses("cpu=2,memory=4Gi,ephemeral-storage=1G", "cpu=64,memory=4Gi,ephemeral-storage=1Gi"),
            [""; 0]
        );
        assert_eq!(
            misses(
                "cpu=2,memory=4Gi,ephemeral-storage=1Gi,platform=arm64",
                "cpu=1.999,ephemeral-storage=1G,platform=amd64"
            ),
            [
                "cpu: needed 2, there 1999m",
                "memory: needed 4Gi, there unknown",
                "ephemeral-storage: needed 1Gi, there 1G",
                "platform: needed linux/arm64, there linux/amd64",
            ]
        );
        assert_eq!(misses("memory=1", "cpu=1"), ["memory: needed 1, there unknown"]);
    }

    /// RQ-07
    #[test]
    fn a_platform_fits_in_every_spelling() {
        for host in ["linux/arm64", "aarch64", "arm64/v8"] {
            for required in ["linux/arm64", "aarch64", "arm64/v8", "arm64"] {
                assert_eq!(misses(&format!("platform={required}"), &format!("platform={host}")), [""; 0]);
            }
        }
        assert_eq!(misses("platform=linux/amd64", "platform=linux/amd64/v3"), [""; 0]);
        assert_eq!(
            misses("platform=linux/amd64/v3", "platform=linux/amd64"),
            ["platform: needed linux/amd64/v3, there linux/amd64"]
        );
    }

    #[test]
    fn a_tag_needs_the_launch_reference_and_a_digest_the_actual_manifest() {
        let pinned = format!("image=x@{DIGEST}");
        let other = DIGEST.replace('0', "f");
        for (required, actual, fits) in [
            ("image=x", "image=index.docker.io/library/x:latest", true),
            ("image=x:1", "image=x:2", false),
            ("image=x", &format!("image-digest={DIGEST},image-id={}", &DIGEST[7..]), false),
            ("image=x", &pinned, false),
            (&pinned, &pinned, false),
            (&pinned, &format!("image-digest={DIGEST}"), true),
            (&pinned, &format!("image=y.example/z:9,image-digest={DIGEST}"), true),
            (&pinned, &format!("{pinned},image-digest={other}"), false),
            (&pinned, &format!("image-id={DIGEST}"), false),
        ] {
            assert_eq!(misses(required, actual).is_empty(), fits, "{required} on {actual}");
        }
        assert_eq!(
            misses(&pinned, &format!("{pinned},image-digest={other}")),
            [format!("image: needed docker.io/library/x@{DIGEST}, there {other}")]
        );
    }

    /// RQ-13
    #[test]
    fn a_requirement_above_everything_is_a_mismatch_and_nothing_else() {
        assert_eq!(
            misses("memory=9223372036854775807", "memory=8Gi"),
            ["memory: needed 9223372036854775807, there 8Gi"]
        );
    }

    #[test]
    fn a_mismatch_is_shown_as_plain_json() {
        let required: Requirements = "ephemeral-storage=1Gi".parse().expect("one");
        let found = compare(&required, &Allocation::default());
        assert_eq!(
            serde_json::to_value(&found).expect("plain data"),
            serde_json::json!([{"field": "ephemeral-storage", "required": "1Gi", "actual": null}])
        );
    }

    /// The allocation that has exactly what is required.
    fn exactly(required: &Requirements) -> Allocation {
        let mut allocation = Allocation {
            cpu_millis: required.cpu_millis,
            memory_bytes: required.memory_bytes,
            ephemeral_storage_bytes: required.ephemeral_storage_bytes,
            platform: required.platform.clone(),
            ..Allocation::default()
        };
        allocation.image.reference = required.image.clone();
        allocation.image.manifest_digest = required.image.as_ref().and_then(|image| image.digest().cloned());
        allocation
    }

    proptest! {
        #[test]
        fn what_is_exactly_there_fits_and_so_does_anything_larger(
            required in any_requirements(), more in 0_i64..=i64::MAX,
        ) {
            let mut allocation = exactly(&required);
            prop_assert_eq!(compare(&required, &allocation), vec![]);
            for amount in [&mut allocation.cpu_millis, &mut allocation.memory_bytes, &mut allocation.ephemeral_storage_bytes] {
                *amount = amount.map(|n| n.saturating_add(more));
            }
            prop_assert_eq!(compare(&required, &allocation), vec![]);
        }

        #[test]
        fn more_is_never_a_new_mismatch_and_fewer_requirements_never_either(
            required in any_requirements(), fewer in any::<[bool; 5]>(), had in any_requirements(), more in 0_i64..=i64::MAX,
        ) {
            let small = exactly(&had);
            let mut large = small.clone();
            for amount in [&mut large.cpu_millis, &mut large.memory_bytes, &mut large.ephemeral_storage_bytes] {
                *amount = amount.map(|n| n.saturating_add(more));
            }
            let misses = |required: &Requirements, allocation: &Allocation| {
                compare(required, allocation).into_iter().map(|m| m.field).collect::<Vec<_>>()
            };
            let before = misses(&required, &small);
            prop_assert!(misses(&required, &large).iter().all(|field| before.contains(field)));
            let less = Requirements {
                cpu_millis: required.cpu_millis.filter(|_| fewer[0]),
                memory_bytes: required.memory_bytes.filter(|_| fewer[1]),
                ephemeral_storage_bytes: required.ephemeral_storage_bytes.filter(|_| fewer[2]),
                platform: required.platform.clone().filter(|_| fewer[3]),
                image: required.image.clone().filter(|_| fewer[4]),
            };
            prop_assert!(misses(&less, &small).iter().all(|field| before.contains(field)));
        }

        #[test]
        fn each_field_is_compared_for_itself(a in any_requirements(), b in any_requirements(), had in any_requirements()) {
            let allocation = exactly(&had);
            let both = overlay(&a, &b);
            for miss in compare(&both, &allocation) {
                let from = if b.get(miss.field).is_some() { &b } else { &a };
                prop_assert!(compare(from, &allocation).contains(&miss));
            }
        }
    }
}
