//! What templates come to: JSON text in which secrets are still only names.

use std::collections::{BTreeMap, BTreeSet};

use super::TemplateError;
use crate::{
    recipe::{
        canonical::canonical_value,
        exact::{Json, quote},
    },
    submission::json,
};

/// Where a secret belongs in a rendered value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretPlace {
    /// The place, as a JSON pointer (RFC 6901).
    pub pointer: String,
    /// The secret's name.
    pub name: String,
}

/// A secret that this worker was not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no secret {name:?} here; start every worker of these recipes with --secret {name}=FILE")]
pub struct MissingSecret {
    /// Its name.
    pub name: String,
}

/// A rendered value. This, and never a secret's content, is what is stored, hashed, shown and replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// JSON text; where a secret belongs stands `${{ secrets.NAME }}`.
    pub text: String,
    /// Which of the strings are secrets: a value that only looks like one is not among them.
    pub secrets: Vec<SecretPlace>,
}

impl Rendered {
    /// The canonical form that [`crate::recipe::canonical::input_hash`] takes: the value, and behind it the places and
    /// names of secrets, if there are any.
    #[must_use]
    pub fn canonical(&self) -> String {
        let mut text =
            Json::parse(&self.text).map_or_else(|_| self.text.clone(), |json| canonical_value(&json));
        if !self.secrets.is_empty() {
            let places: BTreeMap<&str, &str> =
                self.secrets.iter().map(|s| (s.pointer.as_str(), s.name.as_str())).collect();
            text.push('\n');
            for (pointer, name) in places {
                quote(pointer, &mut text);
                quote(name, &mut text);
            }
        }
        text
    }

    /// The names of its secrets, in order.
    #[must_use]
    pub fn secret_names(&self) -> Vec<String> {
        let names: BTreeSet<&String> = self.secrets.iter().map(|place| &place.name).collect();
        names.into_iter().cloned().collect()
    }

    /// The value with the secrets in it: for the op, on the worker, and for nothing else.
    ///
    /// # Errors
    /// [`MissingSecret`] for the first one that `secret` does not know.
    pub fn with_secrets(&self, secret: impl Fn(&str) -> Option<String>) -> Result<String, MissingSecret> {
        if self.secrets.is_empty() {
            return Ok(self.text.clone());
        }
        let mut value = Json::parse(&self.text).unwrap_or(Json::Null);
        for place in &self.secrets {
            let found = secret(&place.name).ok_or_else(|| MissingSecret { name: place.name.clone() })?;
            if let Some(target) = at(&mut value, &place.pointer) {
                *target = Json::String(found);
            }
        }
        Ok(value.to_string())
    }
}

/// The value at a pointer.
fn at<'a>(value: &'a mut Json, pointer: &str) -> Option<&'a mut Json> {
    pointer.split('/').skip(1).try_fold(value, |value, word| match value {
        Json::Array(elements) => elements.get_mut(word.parse::<usize>().ok()?),
        Json::Object(members) => members.get_mut(&word.replace("~1", "/").replace("~0", "~")),
        _ => None,
    })
}

/// One word of a pointer.
pub(super) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// What comes out must be storable: its nesting, no NUL.
pub(super) fn check(text: &str) -> Result<(), TemplateError> {
    json::check("value", text).map_err(|refused| TemplateError::Unstorable { reason: refused.reason })
}
