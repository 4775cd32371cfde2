//! Requirements and allocations as a claim compares them: plain columns.

use leasehold_actors::{
    domain::execution::{Allocation, ImageReference, Platform, Requirements},
    ports::recipe::{Facts, Hint},
};

/// What a job needs, as it is kept beside it.
#[must_use]
pub fn hint_of(requirements: &Requirements) -> Hint {
    let image = requirements.image.as_ref();
    let digest = image.and_then(ImageReference::digest).map(|digest| digest.as_str().to_owned());
    Hint {
        cpu_millis: requirements.cpu_millis,
        memory_bytes: requirements.memory_bytes,
        ephemeral_storage_bytes: requirements.ephemeral_storage_bytes,
        platform: requirements.platform.as_ref().map(parts),
        // With a digest, the digest alone decides.
        image_reference: image.filter(|_| digest.is_none()).map(ToString::to_string),
        image_digest: digest,
    }
}

/// What a worker has, as its claims say.
#[must_use]
pub fn facts_of(allocation: &Allocation) -> Facts {
    Facts {
        cpu_millis: allocation.cpu_millis,
        memory_bytes: allocation.memory_bytes,
        ephemeral_storage_bytes: allocation.ephemeral_storage_bytes,
        platform: allocation.platform.as_ref().map(parts),
        image_reference: allocation.image.reference.as_ref().map(ToString::to_string),
        image_digest: allocation.image.manifest_digest.as_ref().map(|digest| digest.as_str().to_owned()),
    }
}

fn parts(platform: &Platform) -> (String, String, Option<String>) {
    (platform.os().to_owned(), platform.architecture().to_owned(), platform.variant().map(str::to_owned))
}
