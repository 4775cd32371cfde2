//! JSON Schemas for what recipes and ops take and give: registered beside them, and checked where a job is submitted
//! and where a task begins and ends.
//!
//! A schema is data from outside, and so is what it is held against. What it may cost is bounded when it is
//! registered: references stay inside it and never come back to where they began, rules are counted with everything
//! that they refer to, and patterns are regular expressions without back-tracking.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use jsonschema::{PatternOptions, Validator};
use leasehold_actors::{
    domain::{Failure, FailureKind},
    ports::recipe::{JsonText, RouteSchemas, SchemaDigests, SchemaText},
};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{
    canonical::canonical_value,
    exact::Json,
    limits::{EXPRESSION_STACK_BYTES, MAX_SCHEMA_BYTES, MAX_SCHEMA_PATTERN_BYTES, MAX_SCHEMA_RULES},
};

/// A schema that is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSchema {
    /// It is too long.
    #[error("the schema is {0} bytes long; at most {MAX_SCHEMA_BYTES} (64 KiB) are allowed")]
    TooLong(usize),
    /// It is no JSON that can be kept.
    #[error("the schema cannot be read: it {0}")]
    NotJson(String),
    /// A rule that is not taken here.
    #[error("the schema cannot be used, at {}: {reason}", place(.pointer))]
    Refused {
        /// Where, as a JSON pointer.
        pointer: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A value that breaks its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Where, as a JSON pointer (RFC 6901); empty for the value itself.
    pub pointer: String,
    /// Which rule is broken. Never the value: it may be long, or nobody's business.
    pub reason: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", place(&self.pointer), self.reason)
    }
}

fn place(pointer: &str) -> String {
    if pointer.is_empty() { "the top".to_owned() } else { format!("{pointer:?}") }
}

/// A schema, ready to be held against values.
pub struct Schema(Validator);

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schema")
    }
}

impl Schema {
    /// Checks a schema and makes it ready. Its draft is the one that `$schema` names, or the latest.
    ///
    /// # Errors
    /// [`BadSchema`] names the place and the reason.
    pub fn new(text: &str) -> Result<Self, BadSchema> {
        if text.len() > MAX_SCHEMA_BYTES {
            return Err(BadSchema::TooLong(text.len()));
        }
        crate::submission::json::check("schema", text).map_err(|e| BadSchema::NotJson(e.reason))?;
        let value: Value = serde_json::from_str(text).map_err(|e| BadSchema::NotJson(e.to_string()))?;
        let mut cost = Cost { root: &value, known: HashMap::new() };
        let rules = cost.of(&value, "")?;
        if rules > MAX_SCHEMA_RULES {
            return Err(refused(
                "",
                format!(
                    "it has more than {MAX_SCHEMA_RULES} rules, counted with everything that they refer to"
                ),
            ));
        }
        on_a_large_stack(|| {
            let patterns = PatternOptions::regex()
                .size_limit(MAX_SCHEMA_PATTERN_BYTES)
                .dfa_size_limit(MAX_SCHEMA_PATTERN_BYTES);
            jsonschema::options()
                .with_pattern_options(patterns)
                .should_validate_formats(false)
                .build(&value)
                .map(Self)
                .map_err(|error| refused(error.instance_path().as_str(), error.masked().to_string()))
        })
        .unwrap_or_else(|| Err(refused("", "it cannot be made ready")))
    }

    /// Holds a value against it. Works on a stack of its own: call it where blocking is allowed.
    ///
    /// # Errors
    /// [`Violation`]: the first rule that is broken.
    pub fn check(&self, text: &str) -> Result<(), Violation> {
        on_a_large_stack(|| {
            let value: Value = serde_json::from_str(text)
                .map_err(|error| Violation { pointer: String::new(), reason: error.to_string() })?;
            self.0.validate(&value).map_err(|error| Violation {
                pointer: error.instance_path().as_str().to_owned(),
                reason: error.masked().to_string(),
            })
        })
        .unwrap_or_else(|| {
            Err(Violation { pointer: String::new(), reason: "it could not be checked".to_owned() })
        })
    }
}

/// None when the thread cannot be had, or the work panicked.
fn on_a_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("leasehold-schema".to_owned())
            .stack_size(EXPRESSION_STACK_BYTES)
            .spawn_scoped(scope, || catch_unwind(AssertUnwindSafe(work)).ok());
        thread.ok()?.join().ok()?
    })
}

fn refused(pointer: &str, reason: impl Into<String>) -> BadSchema {
    BadSchema::Refused { pointer: pointer.to_owned(), reason: reason.into() }
}

/// Counts rules, with those that they refer to, and finds references that lead out or round.
struct Cost<'a> {
    root: &'a Value,
    /// By pointer; none while it is being counted.
    known: HashMap<String, Option<usize>>,
}

/// Keywords that hold a map of schemas by name.
const MAPS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
/// Keywords that hold data.
const DATA: [&str; 5] = ["enum", "const", "default", "examples", "required"];

impl Cost<'_> {
    fn of(&mut self, schema: &Value, pointer: &str) -> Result<usize, BadSchema> {
        let Value::Object(members) = schema else { return Ok(1) };
        let mut rules = 1_usize;
        for (key, value) in members {
            let below = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
            let more = match (key.as_str(), value) {
                ("$ref", Value::String(to)) => self.referred(to, &below)?,
                ("$dynamicRef" | "$recursiveRef" | "$dynamicAnchor" | "$recursiveAnchor", _) => {
                    return Err(refused(&below, "references that are resolved while checking are not taken"));
                }
                ("$id" | "id", Value::String(_)) if !pointer.is_empty() => {
                    return Err(refused(&below, "only the whole schema may have an id"));
                }
                (key, Value::Object(map)) if MAPS.contains(&key) => self.all(map, &below)?,
                (key, _) if DATA.contains(&key) => 0,
                (_, Value::Object(_)) => self.of(value, &below)?,
                (_, Value::Array(items)) => {
                    let mut sum = 0_usize;
                    for (n, item) in items.iter().enumerate() {
                        if item.is_object() {
                            sum = sum.saturating_add(self.of(item, &format!("{below}/{n}"))?);
                        }
                    }
                    sum
                }
                _ => 0,
            };
            rules = rules.saturating_add(more);
        }
        Ok(rules)
    }

    fn all(&mut self, map: &Map<String, Value>, pointer: &str) -> Result<usize, BadSchema> {
        let mut sum = 0_usize;
        for (name, schema) in map {
            let below = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
            sum = sum.saturating_add(self.of(schema, &below)?);
        }
        Ok(sum)
    }

    fn referred(&mut self, to: &str, from: &str) -> Result<usize, BadSchema> {
        let target = to
            .strip_prefix('#')
            .filter(|target| target.is_empty() || target.starts_with('/'))
            .filter(|target| !target.contains('%'))
            .ok_or_else(|| {
                refused(
                    from,
                    format!(
                        "{to:?} leads out of the schema; only references like \"#/$defs/name\" are taken"
                    ),
                )
            })?;
        match self.known.get(target) {
            Some(Some(rules)) => return Ok(*rules),
            Some(None) => return Err(refused(from, format!("{to:?} comes back to where it began"))),
            None => {}
        }
        let root = self.root;
        let schema =
            root.pointer(target).ok_or_else(|| refused(from, format!("there is nothing at {to:?}")))?;
        // A reference to what is around it comes back too.
        if from.strip_prefix(target).is_some_and(|rest| rest.starts_with('/')) {
            return Err(refused(from, format!("{to:?} comes back to where it began")));
        }
        self.known.insert(target.to_owned(), None);
        let rules = self.of(schema, target)?;
        self.known.insert(target.to_owned(), Some(rules));
        Ok(rules)
    }
}

/// A checked schema under its digest: the SHA-256 of its canonical form.
///
/// # Errors
/// [`BadSchema`].
pub fn text(schema: &str) -> Result<SchemaText, BadSchema> {
    Schema::new(schema)?;
    let json = Json::parse(schema).map_err(|e| BadSchema::NotJson(e.to_string()))?;
    let digest = Sha256::digest(canonical_value(&json).as_bytes());
    let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(SchemaText { digest, text: schema.into() })
}

/// Holds a value against a schema that was registered. A schema that cannot be used any more breaks nothing here: the
/// job says so when it runs.
#[must_use]
pub fn violation(schema: &str, value: &str) -> Option<Violation> {
    Schema::new(schema).ok()?.check(value).err()
}

/// Both schemas of a route, each checked.
///
/// # Errors
/// [`BadSchema`], and whether it is that of the `input` or of the `output`.
pub fn route_schemas(
    input: Option<&str>,
    output: Option<&str>,
) -> Result<RouteSchemas, (&'static str, BadSchema)> {
    Ok(RouteSchemas {
        input: input.map(text).transpose().map_err(|e| ("input", e))?,
        output: output.map(text).transpose().map_err(|e| ("output", e))?,
    })
}

/// Which end of a task is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What goes in.
    Input,
    /// What comes out.
    Output,
}

impl Side {
    fn word(self) -> &'static str {
        match self {
            Self::Input => "inputs",
            Self::Output => "output",
        }
    }
}

/// The schemas that a job was submitted under, ready.
#[derive(Debug, Clone, Default)]
pub struct JobSchemas {
    by_op: Arc<BTreeMap<String, [Option<Arc<Schema>>; 2]>>,
}

impl JobSchemas {
    /// Looks each digest up.
    ///
    /// # Errors
    /// The first digest that `ready` does not know.
    pub fn of(
        digests: &BTreeMap<String, SchemaDigests>,
        ready: impl Fn(&str) -> Option<Arc<Schema>>,
    ) -> Result<Self, String> {
        let find = |digest: &Option<String>| match digest {
            None => Ok(None),
            Some(digest) => ready(digest).map(Some).ok_or_else(|| digest.clone()),
        };
        let both = |digests: &SchemaDigests| Ok::<_, String>([find(&digests.input)?, find(&digests.output)?]);
        let by_op = digests
            .iter()
            .map(|(op, digests)| Ok((op.clone(), both(digests)?)))
            .collect::<Result<_, String>>()?;
        Ok(Self { by_op: Arc::new(by_op) })
    }

    /// Holds a value of an op, or of the job itself (the empty name), against its schema.
    ///
    /// # Errors
    /// A `USER` failure, `schema_violation`, that names the place.
    pub async fn check(&self, op: &str, side: Side, value: &JsonText) -> Result<(), Failure> {
        let Some([input, output]) = self.by_op.get(op) else { return Ok(()) };
        let Some(schema) = (if side == Side::Input { input } else { output }) else { return Ok(()) };
        let (schema, value) = (Arc::clone(schema), Arc::clone(value));
        let checked = tokio::task::spawn_blocking(move || schema.check(&value)).await;
        let broken = match checked {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(broken)) => broken,
            Err(_) => Violation { pointer: String::new(), reason: "it could not be checked".to_owned() },
        };
        let of = if op.is_empty() { "of the job".to_owned() } else { format!("of op {op}") };
        let message = format!("{} {of}, at {}: {}", side.word(), place(&broken.pointer), broken.reason);
        Err(Failure::new(FailureKind::User, "schema_violation", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(schema: &str) -> String {
        match Schema::new(schema) {
            Ok(_) => panic!("{schema} was taken"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_value_that_breaks_a_rule_is_told_by_its_place_and_never_shown() {
        let schema = Schema::new(
            r##"{"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:mine", "type": "object",
                "required": ["a"], "properties": {"a": {"$ref": "#/$defs/size"}, "b/c": {"pattern": "^x+$"}},
                "$defs": {"size": {"type": "integer", "minimum": 1}}}"##,
        )
        .unwrap();
        schema.check(r#"{"a": 1, "b/c": "xxx", "d": null}"#).unwrap();
        for (value, pointer) in [
            (r#"{"a": 0}"#, "/a"),
            (r#"{"a": "secret-text"}"#, "/a"),
            (r#"{"a": 1, "b/c": "secret-text"}"#, "/b~1c"),
            (r#"{"b": 1}"#, ""),
            ("[]", ""),
        ] {
            let broken = schema.check(value).unwrap_err();
            assert_eq!(broken.pointer, pointer, "{value}: {broken}");
            assert!(!broken.to_string().contains("secret-text"), "{broken}");
        }
        Schema::new("true").unwrap().check("1").unwrap();
        assert!(Schema::new("false").unwrap().check("1").is_err());
    }

    #[test]
    fn a_schema_that_leads_out_or_round_or_costs_too_much_is_refused_with_the_place() {
        for (schema, says) in [
            (r#"{"$ref": "https://example.com/s.json"}"#, "leads out"),
            (r#"{"properties": {"a": {"$ref": "other.json#/x"}}}"#, "\"/properties/a/$ref\""),
            (r##"{"$ref": "#"}"##, "comes back"),
            (r##"{"properties": {"a": {"$ref": "#"}}}"##, "comes back"),
            (
                r##"{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}"##,
                "comes back",
            ),
            (r##"{"$ref": "#/$defs/none"}"##, "nothing at"),
            (r#"{"$dynamicRef": "\u0023a"}"#, "while checking"),
            (r#"{"items": {"$id": "urn:x"}}"#, "only the whole schema"),
            (r#"{"$schema": "https://example.com/meta", "type": "object"}"#, "cannot be used"),
            (r#"{"type": "objekt"}"#, "cannot be used"),
            (r#"{"pattern": "(a"}"#, "cannot be used"),
            (r#"{"pattern": "(?=a)b"}"#, "cannot be used"),
            (r#"{"pattern": "(((a{200}){200}){200})"}"#, "cannot be used"),
            ("{", "cannot be read"),
            (r#"{"a": 1, "a": 2}"#, "cannot be read"),
        ] {
            let told = why(schema);
            assert!(told.contains(says), "{schema}: {told}");
        }
        let long = format!(r#"{{"description": "{}"}}"#, "x".repeat(MAX_SCHEMA_BYTES));
        assert_eq!(Schema::new(&long).unwrap_err(), BadSchema::TooLong(long.len()));
        // Each of them refers twice to the next: 2^40 rules.
        let doubling = |n: usize| {
            format!(
                r##""d{n}": {{"anyOf": [{{"$ref": "#/$defs/d{m}"}}, {{"$ref": "#/$defs/d{m}"}}]}}"##,
                m = n + 1
            )
        };
        let defs: Vec<String> = (0..40).map(doubling).collect();
        let bomb = format!(r##"{{"$ref": "#/$defs/d0", "$defs": {{{}, "d40": true}}}}"##, defs.join(", "));
        assert!(why(&bomb).contains("more than"));
    }

    /// A regular expression takes time in proportion to the text, whatever it is.
    #[test]
    fn a_pattern_that_back_tracks_elsewhere_is_answered_at_once() {
        let schema = Schema::new(r#"{"pattern": "^(a+)+$"}"#).unwrap();
        let value = format!("\"{}!\"", "a".repeat(200_000));
        assert!(schema.check(&value).is_err());
    }

    #[test]
    fn a_schema_is_known_by_what_it_says_and_not_by_how_it_is_written() {
        let one = text(r#"{"type": "object", "maxProperties": 10}"#).unwrap();
        let other = text(r#"{ "maxProperties":1e1,"type":"object" }"#).unwrap();
        assert_eq!(one.digest, other.digest);
        assert_ne!(one.digest, text(r#"{"type": "object"}"#).unwrap().digest);
        let (side, _) = route_schemas(None, Some("{")).unwrap_err();
        assert_eq!(side, "output");
    }

    #[test]
    fn a_deep_value_needs_no_deep_stack_of_the_caller() {
        let schema = Schema::new(r#"{"items": {"items": {"items": true}}}"#).unwrap();
        schema.check(&format!("{}1{}", "[".repeat(100), "]".repeat(100))).unwrap();
    }
}
