//! The client payload's key `execution`: what the next worker must have, published when a job is handed on.
//!
//! The payload belongs to the client. It is read and changed as text: a publication replaces the value of that
//! one key, and every other byte stays, so that big integers, the order of keys and white space survive.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{allocation::Allocation, requirements::Requirements, written};
use crate::domain::{
    definition::InvalidDefinition,
    json::{self, MAX_BYTES, Outline},
};

/// The key in the client payload.
pub const KEY: &str = "execution";
/// The version that this program writes, and the only one that it reads.
pub const VERSION: u64 = 1;
/// The field that refusals name.
const FIELD: &str = "payload";

/// What stands under the key `execution`: `{"version": 1, "requirements": {…}, "allocation": {…}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedExecution {
    /// What the unfinished task needs.
    pub requirements: Requirements,
    /// The allocation that declined it, for people to read; none where nobody declined.
    pub allocation: Option<Allocation>,
}

/// A payload that no job may be admitted with. Never to be taken for "no requirements".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// It, or what stands under `execution`, cannot be read.
    #[error(
        "the client payload's `execution` cannot be read: {reason}; set it right with `leasehold job payload set`"
    )]
    Malformed {
        /// What is wrong, with the place.
        reason: String,
    },
    /// `execution` has a version that this program does not know.
    #[error(
        "the client payload's `execution` has version {version}, and this program knows {VERSION}; run the job with a program that knows it"
    )]
    UnsupportedVersion {
        /// The version as it is written, cut to 40 characters.
        version: String,
    },
}

/// A payload that nothing can be published into.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpliceError {
    /// It breaks a rule for client payloads.
    #[error(transparent)]
    Refused(#[from] InvalidDefinition),
    /// It would be longer than a payload may be.
    #[error(
        "payload: would be {bytes} bytes long with the published requirements; at most {MAX_BYTES} (1 MiB) are allowed"
    )]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
}

/// Checks a client payload as it is submitted or updated: absent (empty), `null`, or an object that every reader
/// understands.
///
/// # Errors
/// [`InvalidDefinition`] for the field `payload`, with the place.
pub fn check(payload: &str) -> Result<(), InvalidDefinition> {
    shape(payload).map(|_| ())
}

/// What is published in a payload; nothing where the key does not stand.
///
/// # Errors
/// [`AdmissionError`] when the payload, or what stands under the key, is anything but what this program writes.
pub fn read(payload: &str) -> Result<Option<PublishedExecution>, AdmissionError> {
    let malformed = |reason: String| AdmissionError::Malformed { reason };
    let Shape::Object(outline) = shape(payload).map_err(|e| malformed(e.to_string()))? else {
        return Ok(None);
    };
    let Some(place) = outline.member(KEY) else { return Ok(None) };
    let malformed = |reason: String| malformed(format!("{FIELD}.{KEY}: {reason} (byte {})", place.start));
    let text = &payload[place.clone()];
    let Versioned { version } =
        serde_json::from_str::<Object<Versioned>>(text).map_err(|e| malformed(plain(&e)))?.0;
    let version = version.ok_or_else(|| malformed("has no version".to_owned()))?;
    match version.get().parse::<i128>() {
        Ok(1) => {}
        _ if is_integer(version.get()) => {
            return Err(AdmissionError::UnsupportedVersion {
                version: version.get().chars().take(40).collect(),
            });
        }
        _ => return Err(malformed("its version is no whole number".to_owned())),
    }
    let written = serde_json::from_str::<Object<Written>>(text).map_err(|e| malformed(plain(&e)))?.0;
    Ok(Some(PublishedExecution { requirements: written.requirements, allocation: written.allocation }))
}

/// The payload with `execution` published in it: the value of that one key is replaced or added, and every other
/// byte stays. An absent payload or `null` becomes an object. Whatever stood under the key goes; [`read`] it
/// first, so that a version of somebody newer is noticed.
///
/// # Errors
/// [`SpliceError`] when the payload is no object, breaks a rule for payloads, or would become too long.
pub fn splice(payload: &str, execution: &PublishedExecution) -> Result<String, SpliceError> {
    let value = execution.to_json();
    let (place, put) = match shape(payload)? {
        Shape::Nothing(place) => (place, format!("{{\"{KEY}\":{value}}}")),
        Shape::Object(outline) => match outline.member(KEY) {
            Some(place) => (place, value),
            None => match outline.members.iter().flatten().last() {
                Some(last) => (last.value.end..last.value.end, format!(",\"{KEY}\":{value}")),
                // After the opening brace.
                None => {
                    let inside = outline.value.start + 1;
                    (inside..inside, format!("\"{KEY}\":{value}"))
                }
            },
        },
    };
    let bytes = payload.len() - place.len() + put.len();
    if bytes > MAX_BYTES {
        return Err(SpliceError::TooLarge { bytes });
    }
    let mut spliced = String::with_capacity(bytes);
    spliced.push_str(&payload[..place.start]);
    spliced.push_str(&put);
    spliced.push_str(&payload[place.end..]);
    Ok(spliced)
}

impl PublishedExecution {
    /// The value of the key, as JSON text.
    fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Form<'a> {
            version: u64,
            requirements: &'a Requirements,
            #[serde(skip_serializing_if = "Option::is_none")]
            allocation: Option<&'a Allocation>,
        }
        let form =
            Form { version: VERSION, requirements: &self.requirements, allocation: self.allocation.as_ref() };
        serde_json::to_string(&form).expect("texts under fixed keys always serialize")
    }
}

enum Shape {
    /// Absent or `null`; where an object is to go.
    Nothing(Range<usize>),
    Object(Outline),
}

fn shape(payload: &str) -> Result<Shape, InvalidDefinition> {
    if payload.trim_ascii().is_empty() {
        return Ok(Shape::Nothing(0..payload.len()));
    }
    let outline = json::outline(FIELD, payload)?;
    let kind = match payload.as_bytes().get(outline.value.start) {
        Some(b'{') => return Ok(Shape::Object(outline)),
        Some(b'n') => return Ok(Shape::Nothing(outline.value)),
        Some(b'[') => "a list",
        Some(b'"') => "a text",
        Some(b't' | b'f') => "a truth value",
        _ => "a number",
    };
    let at = outline.value.start;
    Err(InvalidDefinition::new(
        FIELD,
        format!("is {kind}; a client payload is an object or null (byte {at})"),
    ))
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// serde's words without its line and column, which count from the key's value.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or_else(|| text.clone(), |(words, _)| words.to_owned())
}

/// Only an object, by its keys.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        written::object(deserializer).map(Self)
    }
}

/// All that is asked of a version that is not known yet.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default)]
    version: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[expect(dead_code, reason = "checked before; a key that is known")]
    version: Box<RawValue>,
    requirements: Requirements,
    #[serde(default, deserialize_with = "written::present")]
    allocation: Option<Allocation>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::requirements::tests::any_requirements, *};

    fn published(requirements: &str, allocation: Option<&str>) -> PublishedExecution {
        PublishedExecution {
            requirements: requirements.parse().expect(requirements),
            allocation: allocation.map(|text| text.parse().expect(text)),
        }
    }

    fn one() -> (PublishedExecution, &'static str) {
        (published("cpu=2", None), r#"{"version":1,"requirements":{"resources":{"cpu":"2"}}}"#)
    }

    #[test]
    fn only_the_value_of_the_key_changes() {
        let (execution, value) = one();
        for (before, after) in [
            ("", format!(r#"{{"execution":{value}}}"#)),
            (" \n", format!(r#"{{"execution":{value}}}"#)),
            ("null", format!(r#"{{"execution":{value}}}"#)),
            (" null\n", format!(" {{\"execution\":{value}}}\n")),
            ("{}", format!(r#"{{"execution":{value}}}"#)),
            ("\t{ }\n", format!("\t{{\"execution\":{value} }}\n")),
            (
                r#"{"z":1e400, "a":12345678901234567890123 }"#,
                format!(r#"{{"z":1e400, "a":12345678901234567890123,"execution":{value} }}"#),
            ),
            (r#"{"execution":null}"#, format!(r#"{{"execution":{value}}}"#)),
            (
                r#"{ "a" : {"execution":7}, "execution" : [1, {"x":"}"}] , "b":"\u0065" }"#,
                format!(r#"{{ "a" : {{"execution":7}}, "execution" : {value} , "b":"\u0065" }}"#),
            ),
            (
                r#"{"\u0065xecution":{"version":9},"k":-0.0}"#,
                format!(r#"{{"\u0065xecution":{value},"k":-0.0}}"#),
            ),
            (r#"{"é":"ü","execution":"x"}"#, format!(r#"{{"é":"ü","execution":{value}}}"#)),
        ] {
            let spliced = splice(before, &execution).expect(before);
            assert_eq!(spliced, after, "{before}");
            assert_eq!(read(&spliced), Ok(Some(execution.clone())), "{before}");
            assert_eq!(splice(&spliced, &execution), Ok(spliced), "publishing again changes nothing");
        }
    }

    #[test]
    fn payloads_without_the_key_require_nothing() {
        for payload in
            ["", "null", " null ", "{}", r#"{"a":{"execution":{"version":7}}}"#, r#"{"Execution":1}"#]
        {
            assert_eq!(read(payload), Ok(None), "{payload}");
        }
    }

    #[test]
    fn what_is_no_payload_of_a_client_is_refused_with_its_place_everywhere() {
        let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(100), "]".repeat(100));
        for (bad, words) in [
            ("[1]", "is a list"),
            (r#" "x""#, "is a text; a client payload is an object or null (byte 1)"),
            ("true", "is a truth value"),
            ("12", "is a number"),
            (r#"{"a":1,"a":2}"#, "more than once (byte 7)"),
            (r#"{"execution":{},"\u0065xecution":{}}"#, "more than once (byte 16)"),
            (r#"{"a":{"b":1,"b":2}}"#, "more than once (byte 12)"),
            (r#"{"a":"\u0000"}"#, "NUL"),
            (r#"{"a":"\ud800"}"#, "surrogate"),
            (&deep, "nested more than 100 deep"),
            ("{", "is not JSON"),
            ("{} {}", "is not JSON (byte 3)"),
        ] {
            let refused = check(bad).expect_err(bad).to_string();
            assert!(refused.starts_with("payload") && refused.contains(words), "{refused}");
            let error = splice(bad, &one().0).expect_err(bad);
            assert_eq!(error.to_string(), refused);
            match read(bad) {
                Err(AdmissionError::Malformed { reason }) => assert_eq!(reason, refused),
                other => panic!("{bad}: {other:?}"),
            }
        }
        let deepest = format!(r#"{{"a":{}{}}}"#, "[".repeat(99), "]".repeat(99));
        assert!(check(&deepest).is_ok() && splice(&deepest, &one().0).is_ok());
    }

    #[test]
    fn a_malformed_execution_and_an_unknown_version_are_two_errors_and_never_nothing() {
        for bad in [
            "null",
            "7",
            "[]",
            r#""x""#,
            "{}",
            r#"{"version":1}"#,
            r#"{"version":null,"requirements":{}}"#,
            r#"{"version":"1","requirements":{}}"#,
            r#"{"version":1.0,"requirements":{}}"#,
            r#"{"version":1e0,"requirements":{}}"#,
            r#"{"requirements":{}}"#,
            r#"{"version":1,"requirements":null}"#,
            r#"{"version":1,"requirements":[]}"#,
            r#"{"version":1,"requirements":{"cpu":"1"}}"#,
            r#"{"version":1,"requirements":{"resources":{"cpu":"0"}}}"#,
            r#"{"version":1,"requirements":{},"allocation":null}"#,
            r#"{"version":1,"requirements":{},"allocation":{"resources":{"cpu":"1e3"}}}"#,
            r#"{"version":1,"requirements":{},"note":1}"#,
        ] {
            let payload = format!(r#"{{"k":1,"execution":{bad}}}"#);
            match read(&payload) {
                Err(AdmissionError::Malformed { reason }) => {
                    assert!(
                        reason.starts_with("payload.execution: ") && reason.ends_with("(byte 19)"),
                        "{reason}"
                    );
                }
                other => panic!("{payload}: {other:?}"),
            }
        }
        for (version, shown) in [
            ("2", "2"),
            ("0", "0"),
            ("-1", "-1"),
            ("18446744073709551617", "18446744073709551617"),
            (&"9".repeat(60), &"9".repeat(40)),
        ] {
            let payload = format!(r#"{{"execution":{{"needs":[],"version":{version}}}}}"#);
            assert_eq!(read(&payload), Err(AdmissionError::UnsupportedVersion { version: shown.to_owned() }));
        }
    }

    #[test]
    fn the_allocation_that_declined_is_there_to_read() {
        let execution = published("memory=16Gi", Some("memory=2Gi,platform=linux/amd64"));
        let spliced = splice("{}", &execution).expect("an object");
        assert_eq!(
            spliced,
            r#"{"execution":{"version":1,"requirements":{"resources":{"memory":"16Gi"}},"allocation":{"resources":{"memory":"2Gi"},"platform":"linux/amd64"}}}"#
        );
        assert_eq!(read(&spliced), Ok(Some(execution)));
    }

    /// AP-17
    #[test]
    fn a_publication_never_makes_a_payload_too_long_to_be_read() {
        let (execution, value) = one();
        let added = r#","execution":"#.len() + value.len();
        let sized = |n: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(n - 8));
        let full = splice(&sized(MAX_BYTES - added), &execution).expect("just fits");
        assert_eq!((full.len(), read(&full)), (MAX_BYTES, Ok(Some(execution.clone()))));
        let refused = splice(&sized(MAX_BYTES - added + 1), &execution);
        assert_eq!(refused, Err(SpliceError::TooLarge { bytes: MAX_BYTES + 1 }));
    }

    /// JSON text that no reader of values would give back as it was.
    fn any_json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,4})?([eE][+-]?[0-9]{1,3})?",
            proptest::sample::select(
                &["null", "true", "false", r#""""#, r#""\u00e9\/\"}{""#, r#""é,\\""#, r#""\ud83d\ude00""#][..]
            )
            .prop_map(str::to_owned),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let members = proptest::collection::vec((" ?", inner.clone(), "[ \n]?"), 0..4);
            prop_oneof![
                (members.clone(), "[ \t]?").prop_map(|(items, blank)| {
                    let items: Vec<String> =
                        items.into_iter().map(|(a, v, b)| format!("{a}{v}{b}")).collect();
                    format!("[{blank}{}]", items.join(","))
                }),
                (members, "[ \t]?").prop_map(|(items, blank)| {
                    let items: Vec<String> = items
                        .into_iter()
                        .enumerate()
                        .map(|(n, (a, v, b))| format!("{a}\"k{}\\u0041\"{b}:{v}{a}", 9 - n))
                        .collect();
                    format!("{{{blank}{}}}", items.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_publication_reads_back_and_every_other_byte_stays(
            members in proptest::collection::vec((any_json(), "[ \n\t]{0,2}"), 0..5),
            old in proptest::option::of((any_json(), 0_usize..6)),
            ends in ("[ \n]?", "[ \n]?"),
            requirements in any_requirements(),
            with_allocation in any::<bool>(),
        ) {
            let execution = PublishedExecution {
                allocation: with_allocation.then(|| "cpu=1".parse().expect("an allocation")),
                requirements,
            };
            let mut written: Vec<String> = members
                .iter()
                .enumerate()
                .map(|(n, (value, blank))| format!("{blank}\"m{}\":{blank}{value}", 9 - n))
                .collect();
            let place = old.as_ref().map(|(value, place)| {
                let place = (*place).min(written.len());
                written.insert(place, format!("\"execution\" : {value}"));
                place
            });
            let around = |written: &[String]| format!("{}{{{}}}{}", ends.0, written.join(","), ends.1);
            let payload = around(&written);
            let spliced = splice(&payload, &execution).expect("an object");
            prop_assert_eq!(read(&spliced), Ok(Some(execution.clone())));
            // The same text, put together by hand.
            match place {
                Some(place) => written[place] = format!("\"execution\" : {}", execution.to_json()),
                None => written.push(format!("\"execution\":{}", execution.to_json())),
            }
            prop_assert_eq!(spliced, around(&written));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in r#"[\[\]{}",:0-9exution\\. é-]{0,24}"#) {
            let _ = (read(&text), splice(&text, &one().0), check(&text));
        }
    }
}
