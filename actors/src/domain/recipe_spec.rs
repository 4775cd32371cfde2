//! The definition of a RECIPE job: a pinned recipe with its inputs.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::value::RawValue;

/// JSON text inside a definition, kept as it was written: big numbers, the order of keys and white space included.
/// Two are equal when their texts are.
#[derive(Clone)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Takes one JSON value.
    ///
    /// # Errors
    /// When the text is no JSON.
    pub fn new(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text.into()).map(Self)
    }

    /// The text.
    #[must_use]
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// Whether the value is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.get().trim_start().starts_with('{')
    }
}

impl Default for RawJson {
    /// `{}`
    fn default() -> Self {
        Self::new("{}").expect("an empty object is JSON")
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for RawJson {}

impl std::fmt::Debug for RawJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.get())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self)
    }
}

/// A recipe to run: pinned, so that a later edit never changes a job in flight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeSpec {
    /// The recipe's id.
    pub recipe: String,
    /// The name of the route: which workers take the job.
    #[serde(default = "RecipeSpec::default_job_type")]
    pub job_type: String,
    /// The version of the language that it is written in.
    pub language: u32,
    /// SHA-256 of the bundle's text, in hex.
    pub digest: String,
    /// The recipe with everything that it includes.
    #[serde(deserialize_with = "object")]
    pub bundle: RawJson,
    /// The job's input.
    #[serde(default, deserialize_with = "object")]
    pub inputs: RawJson,
    /// The requirements that were given at submission; they override the recipe's.
    #[serde(default, deserialize_with = "object")]
    pub require: RawJson,
}

impl RecipeSpec {
    /// The versions of the language that this program knows. Jobs in another one are not claimed.
    pub const LANGUAGES: std::ops::RangeInclusive<u32> = 1..=1;
    /// The versions of the payload's key `execution` that this program knows. Jobs with another one are not claimed.
    pub const EXECUTION_VERSIONS: std::ops::RangeInclusive<u32> = 1..=1;
    /// The job type of a recipe that names none.
    pub const DEFAULT_JOB_TYPE: &'static str = "recipe";

    fn default_job_type() -> String {
        Self::DEFAULT_JOB_TYPE.to_owned()
    }
}

fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RawJson, D::Error> {
    let value = RawJson::deserialize(deserializer)?;
    if value.is_object() { Ok(value) } else { Err(D::Error::custom("must be a JSON object")) }
}

#[cfg(test)]
mod tests {
    use crate::domain::{JobDefinition, JobKind, Route};

    #[test]
    fn raw_parts_keep_their_text() {
        let text = r#"{"recipe":"r","job_type":"recipe","language":1,"digest":"d","bundle":{"b": 1.50,"a":[ ]},"inputs":{"n":123456789012345678901234567890},"require":{}}"#;
        let definition = JobDefinition::from_json(JobKind::Recipe, text).unwrap();
        assert_eq!(definition.to_json(), text);
        assert_eq!(definition.route(), Route::recipe("recipe", ""));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        let text = r#"{"recipe":"r","language":1,"digest":"d","bundle":{},"inputs":[1]}"#;
        let refused = JobDefinition::from_json(JobKind::Recipe, text).unwrap_err();
        assert!(refused.reason.contains("must be a JSON object"), "{refused}");
    }
}
