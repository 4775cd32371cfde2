//! A YAML value as JSON text: the order of keys is kept, and integers stay exact, or are refused.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// JSON text that a YAML value was turned into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonText(pub(super) String);

impl Default for JsonText {
    fn default() -> Self {
        Self("null".to_owned())
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ToJson).map(Self)
    }
}

struct ToJson;

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl<'de> Visitor<'de> for ToJson {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that JSON can hold")
    }

    fn visit_unit<E: Error>(self) -> Result<String, E> {
        Ok("null".to_owned())
    }

    fn visit_none<E: Error>(self) -> Result<String, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<String, E> {
        // Beyond 2^53 a double skips whole numbers: the author's digits would be changed in silence.
        if value.fract() == 0.0 && value.abs() >= 9_007_199_254_740_992.0 {
            return Err(E::custom(
                "a number this large loses digits in YAML; give the text in `payload_json`",
            ));
        }
        if !value.is_finite() {
            return Err(E::custom("JSON knows no infinity and no NaN; quote it to make it text"));
        }
        Ok(serde_json::Value::from(value).to_string())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
        Ok(quoted(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<String, A::Error> {
        let mut text = String::from("[");
        while let Some(JsonText(element)) = seq.next_element()? {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&element);
        }
        text.push(']');
        Ok(text)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<String, A::Error> {
        let mut text = String::from("{");
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&quoted(&key));
            text.push(':');
            let JsonText(value) = map.next_value()?;
            text.push_str(&value);
            if !keys.insert(key) {
                return Err(A::Error::custom("a key comes twice"));
            }
        }
        text.push('}');
        Ok(text)
    }
}
