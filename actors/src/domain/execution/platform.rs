//! `os/architecture[/variant]`, normalised as containerd does, so that every spelling of one platform is one value.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::written;

/// The longest text that is looked at.
const MAX_LENGTH: usize = 100;

/// Architectures that may stand without an operating system (after normalisation), which then is `linux`:
/// no other runs containers of ours.
const ARCHITECTURES: &[&str] = &[
    "386",
    "amd64",
    "amd64p32",
    "arm",
    "arm64",
    "arm64be",
    "armbe",
    "loong64",
    "mips",
    "mips64",
    "mips64le",
    "mips64p32",
    "mips64p32le",
    "mipsle",
    "ppc",
    "ppc64",
    "ppc64le",
    "riscv",
    "riscv64",
    "s390",
    "s390x",
    "sparc",
    "sparc64",
    "wasm",
];

/// Why a platform is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {reason}")]
pub struct InvalidPlatform {
    /// The platform as it was written, cut to 100 characters.
    pub text: String,
    /// What is wrong with it and what is allowed.
    pub reason: String,
}

/// An operating system, an architecture, and maybe a variant of it.
///
/// Equality is that of the normalised parts; whether one satisfies another is [`Platform::accepts`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl Platform {
    /// Parses and normalises.
    ///
    /// # Errors
    /// [`InvalidPlatform`] for anything but `os/architecture[/variant]`, or an architecture that is known
    /// (`arm64`, `arm64/v8`), which means linux.
    pub fn parse(text: &str) -> Result<Self, InvalidPlatform> {
        let refuse = |reason: &str| {
            Err(InvalidPlatform {
                text: text.chars().take(MAX_LENGTH).collect(),
                reason: format!(
                    "{reason}; write os/architecture[/variant], such as linux/amd64 or linux/arm/v7"
                ),
            })
        };
        if text.is_empty() {
            return refuse("is empty; leave the field out, or name a platform");
        }
        if text.chars().count() > MAX_LENGTH {
            return refuse("is longer than 100 characters");
        }
        let parts: Vec<String> = text.split('/').map(str::to_ascii_lowercase).collect();
        let is_part = |part: &String| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
        };
        if !parts.iter().all(is_part) {
            return refuse("has a part that is no word of letters, digits, `_`, `-` and `.`");
        }
        let known = |part: &str| ARCHITECTURES.contains(&architecture(part, None).0.as_str());
        match parts.as_slice() {
            [only] if known(only) => Ok(Self::of("linux", only, None)),
            [first, variant] if known(first) => Ok(Self::of("linux", first, Some(variant))),
            [os, arch] => Ok(Self::of(os, arch, None)),
            [os, arch, variant] => Ok(Self::of(os, arch, Some(variant))),
            [_] => refuse("names no architecture that is known"),
            _ => refuse("has more than three parts"),
        }
    }

    /// What an engine runs that calls its operating system and architecture so: as `uname -m` does.
    #[must_use]
    pub fn of_engine(os: &str, machine: &str) -> Self {
        let machine = machine.to_ascii_lowercase();
        let (arch, variant) = match machine.as_str() {
            "armv8l" => ("arm", Some("v8")),
            "armv7l" => ("arm", Some("v7")),
            "armv6l" => ("arm", Some("v6")),
            "i486" | "i586" | "i686" => ("386", None),
            "ppc64el" => ("ppc64le", None),
            other => (other, None),
        };
        Self::of(&os.to_ascii_lowercase(), arch, variant)
    }

    /// The names that engines have for architectures that satisfy this.
    #[must_use]
    pub fn engine_names(&self) -> Vec<&str> {
        const MACHINES: [&str; 17] = [
            "x86_64", "x86-64", "amd64", "aarch64", "arm64", "armv8l", "armv7l", "armv6l", "armhf", "armel",
            "arm", "i386", "i486", "i586", "i686", "386", "ppc64el",
        ];
        let own = std::iter::once(self.architecture.as_str());
        MACHINES
            .into_iter()
            .chain(own)
            .filter(|name| self.accepts(&Self::of_engine(&self.os, name)))
            .collect()
    }

    fn of(os: &str, arch: &str, variant: Option<&str>) -> Self {
        let os = if os == "macos" { "darwin" } else { os };
        let (architecture, variant) = architecture(arch, variant);
        Self { os: os.to_owned(), architecture, variant }
    }

    /// The operating system: `linux`.
    #[must_use]
    pub fn os(&self) -> &str {
        &self.os
    }

    /// The architecture: `amd64`, `arm64`, `arm`.
    #[must_use]
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// The variant, where it is not the architecture's plain one: `v7`.
    #[must_use]
    pub fn variant(&self) -> Option<&str> {
        self.variant.as_deref()
    }

    /// Whether this, as a requirement, is satisfied by `actual`: one without a variant accepts any.
    #[must_use]
    pub fn accepts(&self, actual: &Self) -> bool {
        self.os == actual.os
            && self.architecture == actual.architecture
            && (self.variant.is_none() || self.variant == actual.variant)
    }
}

/// One name for each architecture, and no variant where it says nothing.
fn architecture(arch: &str, variant: Option<&str>) -> (String, Option<String>) {
    let (arch, variant) = match (arch, variant) {
        ("i386", _) => ("386", None),
        ("x86_64" | "x86-64" | "amd64", None | Some("v1")) => ("amd64", None),
        ("x86_64" | "x86-64", variant) => ("amd64", variant),
        ("aarch64" | "arm64", None | Some("8" | "v8" | "8.0" | "v8.0")) => ("arm64", None),
        ("aarch64" | "arm64", Some("9" | "9.0" | "v9.0")) => ("arm64", Some("v9")),
        ("aarch64", variant) => ("arm64", variant),
        ("armhf", _) => ("arm", Some("v7")),
        ("armel", _) => ("arm", Some("v6")),
        ("arm", None | Some("7")) => ("arm", Some("v7")),
        ("arm", Some("5")) => ("arm", Some("v5")),
        ("arm", Some("6")) => ("arm", Some("v6")),
        ("arm", Some("8")) => ("arm", Some("v8")),
        other => other,
    };
    (arch.to_owned(), variant.map(str::to_owned))
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

impl FromStr for Platform {
    type Err = InvalidPlatform;
    fn from_str(text: &str) -> Result<Self, InvalidPlatform> {
        Self::parse(text)
    }
}

impl Serialize for Platform {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Platform {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = written::text(deserializer, "a platform such as linux/amd64, in quotes")?;
        Self::parse(&text).map_err(|e| D::Error::custom(format!("platform: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn platform(text: &str) -> Platform {
        Platform::parse(text).expect(text)
    }

    /// RQ-07
    #[test]
    fn all_spellings_of_one_platform_match_each_other_and_print_one_form() {
        for (canonical, spellings) in [
            (
                "linux/arm64",
                &[
                    "linux/arm64",
                    "aarch64",
                    "arm64/v8",
                    "arm64",
                    "linux/arm64/v8",
                    "linux/aarch64",
                    "Linux/ARM64/8",
                ][..],
            ),
            (
                "linux/amd64",
                &["amd64", "x86_64", "x86-64", "AMD64", "linux/amd64", "linux/amd64/v1", "linux/x86_64"],
            ),
            ("linux/arm/v7", &["arm", "linux/arm", "linux/arm/7", "linux/arm/v7", "armhf", "linux/armhf"]),
            ("linux/arm/v6", &["armel", "linux/arm/6", "linux/arm/v6"]),
            ("linux/386", &["i386", "386", "linux/i386"]),
            ("darwin/arm64", &["macos/arm64", "darwin/aarch64"]),
            ("linux/amd64/v3", &["linux/x86_64/v3", "amd64/v3"]),
        ] {
            for host in spellings {
                assert_eq!(platform(host).to_string(), canonical);
                for required in spellings {
                    assert_eq!(platform(required), platform(host));
                    assert!(platform(required).accepts(&platform(host)), "{required} {host}");
                }
            }
        }
    }

    #[test]
    fn a_requirement_without_a_variant_accepts_any_and_one_with_a_variant_only_its_own() {
        for (required, actual, fits) in [
            ("linux/amd64", "linux/amd64/v3", true),
            ("linux/amd64/v3", "linux/amd64/v3", true),
            ("linux/amd64/v3", "linux/amd64", false),
            ("linux/amd64/v2", "linux/amd64/v3", false),
            ("linux/arm64", "linux/arm64/v9", true),
            ("linux/arm64/v9", "linux/arm64/v8", false),
            ("linux/arm", "linux/arm/v6", false),
            ("linux/amd64", "linux/arm64", false),
            ("linux/amd64", "windows/amd64", false),
        ] {
            assert_eq!(platform(required).accepts(&platform(actual)), fits, "{required} on {actual}");
        }
    }

    #[test]
    fn an_engine_is_known_by_the_names_that_it_has_for_what_is_required() {
        for (required, named, others) in [
            ("linux/amd64", &["x86_64", "amd64"][..], &["aarch64", "i686"][..]),
            ("linux/arm64", &["aarch64", "arm64"], &["x86_64", "armv7l"]),
            ("linux/arm/v7", &["armv7l", "armhf"], &["armv6l", "aarch64"]),
            ("linux/386", &["i686", "i386"], &["x86_64"]),
            ("linux/riscv64", &["riscv64"], &["x86_64"]),
            ("linux/amd64/v3", &[], &["x86_64", "amd64"]),
        ] {
            let platform = platform(required);
            let names = platform.engine_names();
            assert!(named.iter().all(|name| names.contains(name)), "{required}: {names:?}");
            assert!(!others.iter().any(|name| names.contains(name)), "{required}: {names:?}");
        }
    }

    #[test]
    fn what_is_no_platform_is_refused_and_quoted() {
        for bad in [
            "",
            "linux",
            "/",
            "linux/",
            "/amd64",
            "linux//v1",
            "linux/amd64/v1/x",
            " linux/amd64",
            "linux/am d64",
            "lİnux/amd64",
            "x\0/y",
        ] {
            let refused = Platform::parse(bad).expect_err(bad).to_string();
            assert!(refused.starts_with(&format!("{bad:?}")) && refused.contains("linux/amd64"), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_back(text in "(linux|macos|windows|Foo)/(amd64|x86-64|arm|ARM64|aarch64|armhf|i386|new)(/(v?[1-9]|x))?") {
            let once = platform(&text);
            prop_assert_eq!(platform(&once.to_string()), once);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,12}") {
            let _ = Platform::parse(&text);
        }
    }
}
