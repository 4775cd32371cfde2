//! What a task needs of the worker that runs it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{
    image::ImageReference,
    platform::Platform,
    written::{Resources, object, present},
};
use crate::domain::{
    definition::InvalidDefinition,
    quantity::{Bytes, CpuMillis, InvalidQuantity, parse_cpu, parse_memory},
};

/// One thing that can be required.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Field {
    /// Thousandths of a core.
    Cpu,
    /// Bytes of memory.
    Memory,
    /// Bytes of scratch space.
    EphemeralStorage,
    /// Operating system and architecture.
    Platform,
    /// The image that the worker itself runs in.
    Image,
}

impl Field {
    /// All, in the order in which they are printed and compared.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Memory, Self::EphemeralStorage, Self::Platform, Self::Image];

    /// The name as people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Platform => "platform",
            Self::Image => "image",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Minimums; what is not set is not required.
///
/// Its JSON and YAML form is the recipe's: `resources: {cpu: "500m", memory: 2Gi, ephemeral-storage: 1Gi}`,
/// `platform`, `image`; an unknown key is an error. Equality is that of the normalised values, so `1024Mi` is
/// `1Gi`. `Display` prints `cpu=500m,memory=2Gi`, which parses back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Requirements {
    /// Thousandths of a core; positive.
    pub cpu_millis: Option<i64>,
    /// Bytes of memory; positive.
    pub memory_bytes: Option<i64>,
    /// Bytes of scratch space; positive.
    pub ephemeral_storage_bytes: Option<i64>,
    /// Operating system and architecture.
    pub platform: Option<Platform>,
    /// The image that the worker itself must run in.
    pub image: Option<ImageReference>,
}

/// `base` with every field that `patch` sets in its place, also where that asks for less.
#[must_use]
pub fn overlay(base: &Requirements, patch: &Requirements) -> Requirements {
    Requirements {
        cpu_millis: patch.cpu_millis.or(base.cpu_millis),
        memory_bytes: patch.memory_bytes.or(base.memory_bytes),
        ephemeral_storage_bytes: patch.ephemeral_storage_bytes.or(base.ephemeral_storage_bytes),
        platform: patch.platform.as_ref().or(base.platform.as_ref()).cloned(),
        image: patch.image.as_ref().or(base.image.as_ref()).cloned(),
    }
}

impl Requirements {
    /// Whether nothing is required.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sets one field from the text that a person wrote.
    ///
    /// # Errors
    /// [`InvalidDefinition`] that names the field, quotes the text and says what is allowed.
    pub fn set(&mut self, field: Field, text: &str) -> Result<(), InvalidDefinition> {
        let refuse = |reason: String| InvalidDefinition::new(field.as_str(), reason);
        let quantity = |e: InvalidQuantity| refuse(e.to_string());
        match field {
            Field::Cpu => self.cpu_millis = Some(parse_cpu(text).map_err(quantity)?),
            Field::Memory => self.memory_bytes = Some(parse_memory(text).map_err(quantity)?),
            Field::EphemeralStorage => {
                self.ephemeral_storage_bytes = Some(parse_memory(text).map_err(quantity)?);
            }
            Field::Platform => {
                self.platform = Some(Platform::parse(text).map_err(|e| refuse(e.to_string()))?);
            }
            Field::Image => {
                self.image = Some(ImageReference::parse(text).map_err(|e| refuse(e.to_string()))?);
            }
        }
        Ok(())
    }

    /// One field as text, in the form that [`Requirements::set`] takes.
    #[must_use]
    pub fn get(&self, field: Field) -> Option<String> {
        match field {
            Field::Cpu => self.cpu_millis.map(|n| CpuMillis(n).to_string()),
            Field::Memory => self.memory_bytes.map(|n| Bytes(n).to_string()),
            Field::EphemeralStorage => self.ephemeral_storage_bytes.map(|n| Bytes(n).to_string()),
            Field::Platform => self.platform.as_ref().map(ToString::to_string),
            Field::Image => self.image.as_ref().map(ToString::to_string),
        }
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = Field::ALL.into_iter().filter_map(|field| Some((field, self.get(field)?)));
        for (place, (field, text)) in set.enumerate() {
            write!(f, "{}{field}={text}", if place == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Requirements {
    type Err = InvalidDefinition;

    /// `cpu=2,memory=4Gi`; an empty text requires nothing.
    fn from_str(text: &str) -> Result<Self, InvalidDefinition> {
        let mut requirements = Self::default();
        for (name, value) in pairs(text)? {
            let field = Field::ALL.into_iter().find(|field| field.as_str() == name).ok_or_else(|| {
                InvalidDefinition::new(
                    name,
                    "is no requirement; there are cpu, memory, ephemeral-storage, platform and image",
                )
            })?;
            requirements.set(field, value)?;
        }
        Ok(requirements)
    }
}

/// The pairs of `name=value,name=value`, none of them twice.
pub(super) fn pairs(text: &str) -> Result<Vec<(&str, &str)>, InvalidDefinition> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let Some((name, value)) = part.split_once('=') else {
            let cut: String = part.chars().take(60).collect();
            let reason = "is no pair; write name=value, separated by commas, without blanks";
            return Err(InvalidDefinition::new(format!("{cut:?}"), reason));
        };
        if found.iter().any(|(seen, _)| *seen == name) {
            return Err(InvalidDefinition::new(name, "is given more than once"));
        }
        found.push((name, value));
    }
    Ok(found)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, skip_serializing_if = "Resources::is_empty", deserialize_with = "object")]
    resources: Resources,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    image: Option<ImageReference>,
}

impl Serialize for Requirements {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written {
            resources: Resources::of((self.cpu_millis, self.memory_bytes, self.ephemeral_storage_bytes)),
            platform: self.platform.clone(),
            image: self.image.clone(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Requirements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { resources, platform, image } = object(deserializer)?;
        let (cpu_millis, memory_bytes, ephemeral_storage_bytes) =
            resources.amounts().map_err(D::Error::custom)?;
        Ok(Self { cpu_millis, memory_bytes, ephemeral_storage_bytes, platform, image })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn amount() -> impl Strategy<Value = Option<i64>> {
        prop_oneof![Just(None), (1_i64..=i64::MAX).prop_map(Some), (1_i64..9).prop_map(|n| Some(n << 30))]
    }

    /// Any requirements, from few enough values that two of them often agree.
    pub(in crate::domain::execution) fn any_requirements() -> impl Strategy<Value = Requirements> {
        let platforms: &[&str] = &["linux/amd64", "linux/amd64/v3", "linux/arm64", "linux/arm"];
        let images = ["x", "x:1", "h.example:80/a/b:T"].map(str::to_owned);
        let images: Vec<String> = images.into_iter().chain([format!("x@{DIGEST}")]).collect();
        let platform = proptest::option::of(proptest::sample::select(platforms));
        let image = proptest::option::of(proptest::sample::select(images));
        (amount(), amount(), amount(), platform, image).prop_map(|(cpu, memory, scratch, platform, image)| {
            Requirements {
                cpu_millis: cpu,
                memory_bytes: memory,
                ephemeral_storage_bytes: scratch,
                platform: platform.map(|text| text.parse().expect(text)),
                image: image.map(|text| text.parse().expect("an image")),
            }
        })
    }

    fn read(json: &str) -> Result<Requirements, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn the_written_form_is_the_recipes_and_whole_numbers_may_stand_without_quotes() {
        let read = |json: &str| read(json).expect(json);
        let full = read(
            r#"{"resources":{"cpu":"0.5","memory":"2048Mi","ephemeral-storage":"1Gi"},"platform":"x86_64","image":"busybox"}"#,
        );
        assert_eq!(
            serde_json::to_string(&full).expect("plain data"),
            r#"{"resources":{"cpu":"500m","memory":"2Gi","ephemeral-storage":"1Gi"},"platform":"linux/amd64","image":"docker.io/library/busybox:latest"}"#
        );
        assert_eq!(
            full.to_string(),
            "cpu=500m,memory=2Gi,ephemeral-storage=1Gi,platform=linux/amd64,image=docker.io/library/busybox:latest"
        );
        assert_eq!(
            read(r#"{"resources":{"cpu":2,"memory":1024}}"#),
            read(r#"{"resources":{"cpu":"2","memory":"1Ki"}}"#)
        );
        assert!(read("{}").is_empty() && read(r#"{"resources":{}}"#).is_empty());
        assert_eq!(serde_json::to_string(&Requirements::default()).expect("plain data"), "{}");
    }

    /// RQ-01, RQ-03, RQ-05, RQ-13
    #[test]
    fn what_is_no_exact_positive_amount_is_refused_with_its_field_and_quoted() {
        for bad in [
            "500K",
            "500ki",
            "500KB",
            "500kB",
            "500KiB",
            "1m",
            "4g",
            "4GB",
            "1e3",
            "1E3",
            "1e+3",
            "1e-3",
            "1e0003",
            "2E6024865272343",
            "1e",
            "e3",
            "1e3.5",
            "0x10",
            "1_000",
            "١٢٣",
            "NaN",
            "inf",
            "1.2Gi",
            "0.1Gi",
            "1.0000001Mi",
            "0",
            "",
            " ",
            "-1",
            "null",
        ] {
            for field in ["memory", "ephemeral-storage"] {
                let json = serde_json::json!({ "resources": { field: bad } }).to_string();
                let refused = read(&json).expect_err(&json);
                assert!(refused.starts_with(&format!("{field}: {bad:?}")), "{refused}");
            }
        }
        for bad in ["0", "0m", "0.0001", "1.5m", "2k", "1E", "-1", "", "1e3"] {
            let json = serde_json::json!({ "resources": { "cpu": bad } }).to_string();
            let refused = read(&json).expect_err(&json);
            assert!(refused.starts_with(&format!("cpu: {bad:?}")), "{refused}");
        }
        // Small but whole is an amount like any other: a minimum, and no limit of an engine.
        for good in ["1", "1Ki", "5Mi", "6Mi"] {
            assert!(read(&serde_json::json!({ "resources": { "memory": good } }).to_string()).is_ok());
        }
        for (good, millis) in [("0.001", 1), ("0.01", 10)] {
            let json = serde_json::json!({ "resources": { "cpu": good } }).to_string();
            assert_eq!(read(&json).expect(good).cpu_millis, Some(millis));
        }
    }

    #[test]
    fn an_empty_value_a_fraction_without_quotes_and_an_unknown_key_are_errors() {
        for bad in [
            "null",
            "[]",
            r#""""#,
            r#"{"resources":null}"#,
            r#"{"resources":{"cpu":null}}"#,
            r#"{"resources":{"cpu":0}}"#,
            r#"{"resources":{"cpu":-1}}"#,
            r#"{"resources":{"cpu":0.5}}"#,
            r#"{"resources":{"cpu":true}}"#,
            r#"{"resources":{"cpu":["1"]}}"#,
            r#"{"resources":{"memory":9223372036854775808}}"#,
            r#"{"resources":{"memory":1e3}}"#,
            r#"{"resources":{"memory":"1","memory":"1"}}"#,
            r#"{"resources":{"ephemeral_storage":"1"}}"#,
            r#"{"resources":{"gpu":"1"}}"#,
            r#"{"cpu":"1"}"#,
            r#"{"platform":null}"#,
            r#"{"platform":""}"#,
            r#"{"image":null}"#,
            r#"{"image":""}"#,
            r#"{"image":"Upper"}"#,
            r#"{"image":5}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let refused = read(r#"{"resources":{"cpu":0.5}}"#).expect_err("a fraction");
        assert!(refused.contains("in quotes"), "{refused}");
    }

    #[test]
    fn a_patch_replaces_field_by_field_also_by_less() {
        let parse = |text: &str| text.parse::<Requirements>().expect(text);
        let base = parse("cpu=4,memory=8Gi,platform=linux/amd64");
        assert_eq!(
            overlay(&base, &parse("memory=1Gi,platform=arm64")),
            parse("cpu=4,memory=1Gi,platform=linux/arm64")
        );
        for bad in ["cpu", "cpu=1,cpu=1", "gpu=1", "cpu=1,", "cpu=", ",cpu=1"] {
            assert!(bad.parse::<Requirements>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn both_forms_parse_back(requirements in any_requirements()) {
            let json = serde_json::to_string(&requirements).expect("plain data");
            prop_assert_eq!(read(&json), Ok(requirements.clone()));
            prop_assert_eq!(requirements.to_string().parse::<Requirements>(), Ok(requirements));
        }

        #[test]
        fn overlays_compose_and_an_empty_one_changes_nothing(
            a in any_requirements(), b in any_requirements(), c in any_requirements(),
        ) {
            let none = Requirements::default();
            prop_assert_eq!(overlay(&a, &none), a.clone());
            prop_assert_eq!(overlay(&none, &a), a.clone());
            prop_assert_eq!(overlay(&a, &a), a.clone());
            prop_assert_eq!(overlay(&overlay(&a, &b), &c), overlay(&a, &overlay(&b, &c)));
            for field in Field::ALL {
                prop_assert_eq!(overlay(&a, &b).get(field), b.get(field).or_else(|| a.get(field)));
            }
        }
    }
}
