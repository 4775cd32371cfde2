//! What a worker really has, as whoever started it says; never guessed from the host, a request or an earlier run.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{
    image::{ImageReference, ManifestDigest},
    platform::Platform,
    requirements::pairs,
    written::{self, Resources, object, present},
};
use crate::domain::{
    definition::InvalidDefinition,
    quantity::{Bytes, CpuMillis, InvalidQuantity, parse_cpu, parse_memory},
};

/// The longest image id.
const MAX_IMAGE_ID: usize = 200;

/// One thing that can be said of a worker's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fact {
    /// Thousandths of a core.
    Cpu,
    /// Bytes of memory.
    Memory,
    /// Bytes of scratch space.
    EphemeralStorage,
    /// Operating system and architecture.
    Platform,
    /// The reference that the worker's own image was launched by.
    Image,
    /// The digest of that image's manifest.
    ImageDigest,
    /// The engine's id of that image; for people only.
    ImageId,
}

impl Fact {
    /// All, in the order in which they are printed.
    pub const ALL: [Self; 7] = [
        Self::Cpu,
        Self::Memory,
        Self::EphemeralStorage,
        Self::Platform,
        Self::Image,
        Self::ImageDigest,
        Self::ImageId,
    ];

    /// The name as people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Platform => "platform",
            Self::Image => "image",
            Self::ImageDigest => "image-digest",
            Self::ImageId => "image-id",
        }
    }

    /// What a text must look like, for people.
    #[must_use]
    pub fn allowed(self) -> &'static str {
        match self {
            Self::Cpu => "cores such as 2 or 0.5, or thousandths such as 500m",
            Self::Memory | Self::EphemeralStorage => {
                "bytes with or without a suffix, such as 4Gi, 500M or 1073741824"
            }
            Self::Platform => "os/architecture[/variant], such as linux/amd64",
            Self::Image => "an image reference, such as registry.internal/worker:1.4",
            Self::ImageDigest => "sha256: and 64 hex digits",
            Self::ImageId => "text of at most 200 bytes without blanks, commas and control characters",
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Three independent facts about the image that a worker runs in; none is derived from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ImageFacts {
    /// What it was launched by. A digest in it is a wish and no proof.
    pub reference: Option<ImageReference>,
    /// The digest of the manifest that really runs.
    pub manifest_digest: Option<ManifestDigest>,
    /// The engine's id of the image; nothing is ever compared with it.
    pub image_id: Option<String>,
}

/// What a worker has, all at the same time; what is not set is unknown, and satisfies nothing explicit.
///
/// Every value was normalised when it was read. The JSON form is that of requirements, but for
/// `image: {reference, manifest_digest, image_id}`. `Display` prints `cpu=2,memory=4Gi`, which parses back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Allocation {
    /// Thousandths of a core.
    pub cpu_millis: Option<i64>,
    /// Bytes of memory.
    pub memory_bytes: Option<i64>,
    /// Bytes of scratch space.
    pub ephemeral_storage_bytes: Option<i64>,
    /// Operating system and architecture.
    pub platform: Option<Platform>,
    /// The image that the worker runs in.
    pub image: ImageFacts,
}

impl Allocation {
    /// Whether nothing is known: only a task that requires nothing fits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether something is known that can be compared, so anything but the image's id.
    #[must_use]
    pub fn is_comparable(&self) -> bool {
        Fact::ALL.into_iter().any(|fact| fact != Fact::ImageId && self.get(fact).is_some())
    }

    /// What a person says of a worker to ask what would fit it: `cpu=2,memory=4Gi`. Written as [`FromStr`] takes it,
    /// with at least one fact that can be compared, so anything but the image's id.
    ///
    /// # Errors
    /// [`InvalidDefinition`] that names the fact, quotes the text and says what is allowed.
    pub fn parse_facts(text: &str) -> Result<Self, InvalidDefinition> {
        let one = "give at least one of cpu, memory, ephemeral-storage, platform, image and image-digest, such as \
                   cpu=2,memory=4Gi";
        if text.trim().is_empty() {
            return Err(InvalidDefinition::new("facts", format!("{text:?} says nothing; {one}")));
        }
        let allocation: Self = text.parse()?;
        if !allocation.is_comparable() {
            let reason = format!("{text:?} says nothing that is ever compared; {one}");
            return Err(InvalidDefinition::new(Fact::ImageId.as_str(), reason));
        }
        Ok(allocation)
    }

    /// Puts in one fact, from the text that a person wrote.
    ///
    /// # Errors
    /// [`InvalidDefinition`] that names the fact, quotes the text and says what is allowed.
    pub fn set(&mut self, fact: Fact, text: &str) -> Result<(), InvalidDefinition> {
        let refuse = |reason: String| InvalidDefinition::new(fact.as_str(), reason);
        let quantity = |e: InvalidQuantity| refuse(e.to_string());
        match fact {
            Fact::Cpu => self.cpu_millis = Some(parse_cpu(text).map_err(quantity)?),
            Fact::Memory => self.memory_bytes = Some(parse_memory(text).map_err(quantity)?),
            Fact::EphemeralStorage => {
                self.ephemeral_storage_bytes = Some(parse_memory(text).map_err(quantity)?);
            }
            Fact::Platform => {
                self.platform = Some(Platform::parse(text).map_err(|e| refuse(e.to_string()))?);
            }
            Fact::Image => {
                self.image.reference = Some(ImageReference::parse(text).map_err(|e| refuse(e.to_string()))?);
            }
            Fact::ImageDigest => {
                let digest =
                    ManifestDigest::parse(text).map_err(|reason| refuse(format!("{text:?}: {reason}")))?;
                self.image.manifest_digest = Some(digest);
            }
            Fact::ImageId => {
                check_image_id(text).map_err(refuse)?;
                self.image.image_id = Some(text.to_owned());
            }
        }
        Ok(())
    }

    /// One fact as text, in the form that [`Allocation::set`] takes.
    #[must_use]
    pub fn get(&self, fact: Fact) -> Option<String> {
        match fact {
            Fact::Cpu => self.cpu_millis.map(|n| CpuMillis(n).to_string()),
            Fact::Memory => self.memory_bytes.map(|n| Bytes(n).to_string()),
            Fact::EphemeralStorage => self.ephemeral_storage_bytes.map(|n| Bytes(n).to_string()),
            Fact::Platform => self.platform.as_ref().map(ToString::to_string),
            Fact::Image => self.image.reference.as_ref().map(ToString::to_string),
            Fact::ImageDigest => self.image.manifest_digest.as_ref().map(ToString::to_string),
            Fact::ImageId => self.image.image_id.clone(),
        }
    }
}

/// There is no such fact; perhaps the name of one is written otherwise.
fn no_fact(name: &str) -> InvalidDefinition {
    let cut: String = name.chars().take(60).collect();
    let plain = cut.trim().to_ascii_lowercase().replace(['_', ' '], "-");
    let meant = match plain.as_str() {
        "cpus" | "cores" | "core" => Some(Fact::Cpu),
        "mem" | "ram" => Some(Fact::Memory),
        "storage" | "disk" | "scratch" => Some(Fact::EphemeralStorage),
        "os" | "arch" | "architecture" => Some(Fact::Platform),
        "digest" => Some(Fact::ImageDigest),
        plain => Fact::ALL.into_iter().find(|fact| fact.as_str() == plain),
    };
    let meant = meant.map_or_else(String::new, |fact| format!("; did you mean {fact}"));
    let names = Fact::ALL.map(Fact::as_str).join(", ");
    InvalidDefinition::new(format!("{cut:?}"), format!("is no fact{meant}; there are {names}"))
}

fn check_image_id(text: &str) -> Result<(), String> {
    let cut: String = text.chars().take(60).collect();
    if text.is_empty() {
        return Err(format!("{cut:?} is empty; leave it out, or give the id"));
    }
    if text.len() > MAX_IMAGE_ID {
        return Err(format!("{cut:?}… is longer than {MAX_IMAGE_ID} bytes"));
    }
    match text.chars().find(|c| c.is_control() || c.is_whitespace() || *c == ',') {
        Some(c) => Err(format!("{cut:?} must not contain {c:?}")),
        None => Ok(()),
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Fact::ALL.into_iter().filter_map(|fact| Some((fact, self.get(fact)?)));
        for (place, (fact, text)) in known.enumerate() {
            write!(f, "{}{fact}={text}", if place == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Allocation {
    type Err = InvalidDefinition;

    /// `cpu=2,memory=4Gi`; of an empty text nothing is known.
    fn from_str(text: &str) -> Result<Self, InvalidDefinition> {
        let mut allocation = Self::default();
        for (name, value) in pairs(text)? {
            let fact =
                Fact::ALL.into_iter().find(|fact| fact.as_str() == name).ok_or_else(|| no_fact(name))?;
            allocation.set(fact, value)?;
        }
        Ok(allocation)
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenImage {
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    reference: Option<ImageReference>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    manifest_digest: Option<ManifestDigest>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "image_id")]
    image_id: Option<String>,
}

impl WrittenImage {
    fn is_empty(&self) -> bool {
        self.reference.is_none() && self.manifest_digest.is_none() && self.image_id.is_none()
    }
}

fn image_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = written::text(deserializer, "an image id, in quotes")?;
    check_image_id(&text).map_err(|reason| D::Error::custom(format!("image_id: {reason}")))?;
    Ok(Some(text))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, skip_serializing_if = "Resources::is_empty", deserialize_with = "object")]
    resources: Resources,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "WrittenImage::is_empty", deserialize_with = "object")]
    image: WrittenImage,
}

impl Serialize for Allocation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ImageFacts { reference, manifest_digest, image_id } = self.image.clone();
        Written {
            resources: Resources::of((self.cpu_millis, self.memory_bytes, self.ephemeral_storage_bytes)),
            platform: self.platform.clone(),
            image: WrittenImage { reference, manifest_digest, image_id },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Allocation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { resources, platform, image } = object(deserializer)?;
        let WrittenImage { reference, manifest_digest, image_id } = image;
        let (cpu_millis, memory_bytes, ephemeral_storage_bytes) =
            resources.amounts().map_err(D::Error::custom)?;
        let image = ImageFacts { reference, manifest_digest, image_id };
        Ok(Self { cpu_millis, memory_bytes, ephemeral_storage_bytes, platform, image })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn facts_are_normalised_once_and_both_forms_parse_back() {
        let text = format!(
            "cpu=0.5,memory=2048Mi,ephemeral-storage=1G,platform=x86_64,image=busybox,image-digest={DIGEST},image-id=4f2a"
        );
        let allocation: Allocation = text.parse().expect("facts");
        assert_eq!(
            serde_json::to_value(&allocation).expect("plain data"),
            serde_json::json!({
                "resources": {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1G"},
                "platform": "linux/amd64",
                "image": {
                    "reference": "docker.io/library/busybox:latest", "manifest_digest": DIGEST, "image_id": "4f2a",
                },
            })
        );
        let json = serde_json::to_string(&allocation).expect("plain data");
        assert_eq!(serde_json::from_str::<Allocation>(&json).expect("its own form"), allocation);
        assert_eq!(allocation.to_string().parse::<Allocation>(), Ok(allocation));
        assert_eq!("".parse(), Ok(Allocation::default()));
        assert_eq!(serde_json::to_string(&Allocation::default()).expect("plain data"), "{}");
    }

    #[test]
    fn a_bad_fact_is_named_and_quoted() {
        for (fact, bad) in [
            ("cpu", "0"),
            ("memory", "500K"),
            ("ephemeral-storage", "1.2Gi"),
            ("platform", "linux"),
            ("image", "UPPER/x"),
            ("image-digest", "sha256:00"),
            ("image-id", "a b"),
            ("image-id", ""),
        ] {
            let refused = format!("{fact}={bad}").parse::<Allocation>().expect_err(bad).to_string();
            assert!(refused.starts_with(&format!("{fact}: {bad:?}")), "{refused}");
        }
        assert!("gpu=1".parse::<Allocation>().expect_err("unknown").to_string().contains("image-digest"));
        for bad in [r#"{"image":"busybox"}"#, r#"{"image":{"id":"x"}}"#, r#"{"platform":null}"#, "[]"] {
            assert!(serde_json::from_str::<Allocation>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn facts_to_ask_with_are_at_least_one_that_can_be_compared() {
        let allocation = Allocation::parse_facts("cpu=2,memory=4Gi,image-id=4f2a").expect("facts");
        assert_eq!(allocation.to_string(), "cpu=2,memory=4Gi,image-id=4f2a");
        for (bad, words) in [
            ("", "facts: \"\" says nothing; give at least one of cpu,"),
            ("  ", "says nothing"),
            (
                "image-id=4f2a",
                "image-id: \"image-id=4f2a\" says nothing that is ever compared; give at least one",
            ),
            ("mem=4Gi", "\"mem\": is no fact; did you mean memory; there are cpu, memory,"),
            ("ephemeral_storage=4Gi", "did you mean ephemeral-storage"),
            ("cpu=2, memory=4Gi", "\" memory\": is no fact; did you mean memory"),
            ("gpu=2", "\"gpu\": is no fact; there are"),
            ("cpu=2,cpu=3", "cpu: is given more than once"),
            ("cpu", "\"cpu\": is no pair; write name=value"),
            ("cpu=2,", "\"\": is no pair; write name=value"),
            ("memory=500K", "memory: \"500K\""),
            ("cpu=", "cpu: \"\""),
        ] {
            let refused = Allocation::parse_facts(bad).expect_err(bad).to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn an_image_id_is_nothing_to_compare_with() {
        let of = |text: &str| text.parse::<Allocation>().expect(text);
        assert!(
            of("image-id=x,cpu=1").is_comparable() && of(&format!("image-digest={DIGEST}")).is_comparable()
        );
        assert!(!of("image-id=x").is_comparable() && !of("").is_comparable());
        assert!(!of("image-id=x").is_empty());
    }
}
