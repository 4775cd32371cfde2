//! Declared inputs: what is given is checked against them, and defaults fill in what is not.

use std::{collections::BTreeMap, sync::Arc};

use leasehold_actors::ports::recipe::JsonText;

use super::{
    canonical,
    compiled::{Input, InputType},
    exact::{Json, quote, raw_member},
};

/// Inputs that are not what a recipe declares.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("input {name:?} {reason}")]
pub struct InvalidInput {
    /// The input.
    pub name: String,
    /// What is wrong with it.
    pub reason: String,
}

impl InputType {
    /// The type that the language calls `word`.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            "array" => Self::Array,
            "object" => Self::Object,
            "any" => Self::Any,
            _ => return None,
        })
    }

    /// What messages call it.
    #[must_use]
    pub fn described(self) -> &'static str {
        match self {
            Self::String => "a string",
            Self::Integer => "a whole number",
            Self::Number => "a number",
            Self::Boolean => "a boolean",
            Self::Array => "a list",
            Self::Object => "an object",
            Self::Any => "any value",
        }
    }

    /// Whether a value is of this type; numbers are judged by their value: `1E+2` is a whole number.
    #[must_use]
    pub fn admits(self, value: &Json) -> bool {
        match (self, value) {
            (Self::Any, _)
            | (Self::String, Json::String(_))
            | (Self::Number, Json::Number(_))
            | (Self::Boolean, Json::Bool(_))
            | (Self::Array, Json::Array(_))
            | (Self::Object, Json::Object(_)) => true,
            (Self::Integer, Json::Number(text)) => is_whole(text),
            _ => false,
        }
    }
}

fn is_whole(number: &str) -> bool {
    let form = canonical::number(number);
    let (mantissa, exponent) = form.split_once('e').unwrap_or((&form, "0"));
    if exponent.starts_with('-') {
        return false;
    }
    let fraction = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    // An exponent of more digits than the type has is larger than any number of digits.
    exponent.parse::<usize>().map_or(true, |exponent| exponent >= fraction)
}

/// Checks what is given against what is declared and fills in defaults: the object that `inputs` reads. Each value
/// stays the text that it was given as.
///
/// # Errors
/// [`InvalidInput`] for one that is not declared, missing, or of another type.
pub fn bind(declared: &BTreeMap<String, Input>, given: &str) -> Result<JsonText, InvalidInput> {
    let invalid = |name: &str, reason: String| InvalidInput { name: name.to_owned(), reason };
    let members = match Json::parse(given) {
        Ok(Json::Object(members)) => members,
        Ok(Json::Null) => BTreeMap::new(),
        Ok(other) => return Err(invalid("", format!("inputs are an object, not {}", other.kind()))),
        Err(refused) => return Err(invalid("", refused.to_string())),
    };
    if let Some(name) = members.keys().find(|name| !declared.contains_key(*name)) {
        let known: Vec<&str> = declared.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(invalid(name, format!("is not declared; the recipe declares {known}")));
    }
    let mut out = String::from("{");
    for (name, input) in declared {
        let text = match members.get(name) {
            Some(value) if !input.kind.admits(value) => {
                return Err(invalid(
                    name,
                    format!("must be {}, not {}", input.kind.described(), value.kind()),
                ));
            }
            Some(value) => raw_member(given, name).map_or_else(|| value.to_string().into(), Arc::from),
            None => match &input.default {
                Some(default) => Arc::clone(default),
                None => return Err(invalid(name, "is required".to_owned())),
            },
        };
        if out.len() > 1 {
            out.push(',');
        }
        quote(name, &mut out);
        out.push(':');
        out.push_str(&text);
    }
    out.push('}');
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared() -> BTreeMap<String, Input> {
        let input = |kind, default: Option<&str>| Input { kind, default: default.map(Arc::from) };
        BTreeMap::from([
            ("big".to_owned(), input(InputType::Integer, Some("9223372036854775808"))),
            ("list".to_owned(), input(InputType::Array, Some("[]"))),
            ("url".to_owned(), input(InputType::String, None)),
        ])
    }

    #[test]
    fn what_is_given_stays_as_it_is_and_defaults_fill_in() {
        assert_eq!(
            bind(&declared(), r#" {"url": "a\u0041", "list": [ 1.50 ]} "#).as_deref(),
            Ok(r#"{"big":9223372036854775808,"list":[ 1.50 ],"url":"a\u0041"}"#)
        );
        assert_eq!(bind(&BTreeMap::new(), "null").as_deref(), Ok("{}"));
    }

    #[test]
    fn what_does_not_fit_the_declaration_is_refused_by_name() {
        for (given, says) in [
            ("{}", "\"url\" is required"),
            (r#"{"url":1}"#, "\"url\" must be a string, not a number"),
            (r#"{"url":"","big":1.5}"#, "\"big\" must be a whole number"),
            (r#"{"url":"","big":1e-400}"#, "\"big\" must be a whole number"),
            (r#"{"url":"","uri":""}"#, "\"uri\" is not declared; the recipe declares big, list, url"),
            ("[]", "inputs are an object"),
            ("{", "is not JSON"),
        ] {
            let refused = bind(&declared(), given).expect_err(given).to_string();
            assert!(refused.contains(says), "{given}: {refused}");
        }
        for whole in ["1", "10.00", "1E+2", "1.25e401", "1e99999999999999999999999999"] {
            assert!(is_whole(whole), "{whole}");
        }
        for fraction in ["1.5", "1e-1", "1.2345678901234567890123456789e25"] {
            assert!(!is_whole(fraction), "{fraction}");
        }
    }
}
