//! The written form that requirements and allocations share: texts and whole numbers, nothing guessed. A `null`
//! or an empty text is an error, not "clear this field"; a number with a point belongs in quotes, since readers
//! of YAML and JSON round it before anybody here sees it.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::domain::quantity::{Bytes, CpuMillis, InvalidQuantity, parse_cpu, parse_memory};

/// The key `resources`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resources {
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "cpu")]
    cpu: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "memory")]
    memory: Option<String>,
    #[serde(
        default,
        rename = "ephemeral-storage",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "ephemeral_storage"
    )]
    ephemeral_storage: Option<String>,
}

/// cpu in thousandths, memory and scratch in bytes.
pub(super) type Amounts = (Option<i64>, Option<i64>, Option<i64>);

impl Resources {
    pub(super) fn of((cpu, memory, ephemeral_storage): Amounts) -> Self {
        Self {
            cpu: cpu.map(|n| CpuMillis(n).to_string()),
            memory: memory.map(|n| Bytes(n).to_string()),
            ephemeral_storage: ephemeral_storage.map(|n| Bytes(n).to_string()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none() && self.ephemeral_storage.is_none()
    }

    /// What was written was checked when it was read.
    pub(super) fn amounts(&self) -> Result<Amounts, InvalidQuantity> {
        Ok((
            self.cpu.as_deref().map(parse_cpu).transpose()?,
            self.memory.as_deref().map(parse_memory).transpose()?,
            self.ephemeral_storage.as_deref().map(parse_memory).transpose()?,
        ))
    }
}

type Parser = fn(&str) -> Result<i64, InvalidQuantity>;

fn amount<'de, D: Deserializer<'de>>(
    deserializer: D,
    field: &'static str,
    parser: Parser,
) -> Result<Option<String>, D::Error> {
    let text = deserializer.deserialize_any(Written {
        expected: "an amount such as \"500m\" or \"2Gi\", in quotes, or a whole number",
        numbers: true,
    })?;
    parser(&text).map_err(|e| D::Error::custom(format!("{field}: {e}")))?;
    Ok(Some(text))
}

fn cpu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    amount(deserializer, "cpu", parse_cpu)
}

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    amount(deserializer, "memory", parse_memory)
}

fn ephemeral_storage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    amount(deserializer, "ephemeral-storage", parse_memory)
}

/// A text; nothing that a YAML reader takes for something else.
pub(super) fn text<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
) -> Result<String, D::Error> {
    deserializer.deserialize_any(Written { expected, numbers: false })
}

/// A value that is there: `null` is none.
pub(super) fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// An object by its keys; what serde derives would also take a list of its values.
pub(super) fn object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_map(Keyed(PhantomData))
}

struct Keyed<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Keyed<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

struct Written {
    expected: &'static str,
    numbers: bool,
}

impl Visitor<'_> for Written {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<String, E> {
        self.number(n)
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<String, E> {
        self.number(n)
    }
}

impl Written {
    fn number<E: Error>(self, n: impl fmt::Display) -> Result<String, E> {
        if self.numbers {
            Ok(n.to_string())
        } else {
            Err(E::custom(format!("{n} is a number; write {}", self.expected)))
        }
    }
}
