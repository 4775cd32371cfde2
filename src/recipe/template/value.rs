//! What an expression computes with, and the ways from JSON and back: our own, so that no number is rounded in
//! silence and maps have one order.

use std::{cmp::Ordering, collections::BTreeMap, rc::Rc};

use crate::recipe::{canonical, exact::Json};

/// A value while an expression is evaluated. Cheap to copy.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// Every whole number within 63 bits, however it was written: `1E+2` is 100.
    Int(i64),
    /// Always finite.
    Double(f64),
    /// A number that neither of the two holds: it can be passed on, not computed with.
    Big(Rc<str>),
    Text(Rc<str>),
    List(Rc<Vec<Value>>),
    /// Walked in the order of keys.
    Map(Rc<BTreeMap<Rc<str>, Value>>),
}

impl Value {
    /// Reads JSON. The depth of a [`Json`] is bounded, so the recursion is.
    pub(super) fn from_json(json: &Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(text) => number(text),
            Json::String(text) => Self::Text(text.as_str().into()),
            Json::Array(elements) => Self::List(Rc::new(elements.iter().map(Self::from_json).collect())),
            Json::Object(members) => Self::Map(Rc::new(
                members.iter().map(|(key, value)| (key.as_str().into(), Self::from_json(value))).collect(),
            )),
        }
    }

    /// Back to JSON.
    pub(super) fn to_json(&self) -> Json {
        match self {
            Self::Null => Json::Null,
            Self::Bool(value) => Json::Bool(*value),
            Self::Int(value) => Json::Number(value.to_string()),
            Self::Double(value) => Json::Number(double_text(*value)),
            Self::Big(text) => Json::Number(text.to_string()),
            Self::Text(text) => Json::String(text.to_string()),
            Self::List(elements) => Json::Array(elements.iter().map(Self::to_json).collect()),
            Self::Map(members) => {
                Json::Object(members.iter().map(|(key, value)| (key.to_string(), value.to_json())).collect())
            }
        }
    }

    /// What kind it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Double(_) => "double",
            Self::Big(_) => "number",
            Self::Text(_) => "string",
            Self::List(_) => "list",
            Self::Map(_) => "map",
        }
    }
}

/// A number as JSON writes it.
pub(super) fn number(text: &str) -> Value {
    let form = canonical::number(text);
    if let Ok(value) = form.parse::<i64>() {
        return Value::Int(value);
    }
    match form.parse::<f64>() {
        Ok(value) if value.is_finite() && double_text(value) == form => Value::Double(value),
        _ => Value::Big(form.into()),
    }
}

/// A double in canonical form: the exact value where it is a whole number below 2^64, else the shortest digits
/// that read back as it.
pub(super) fn double_text(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 18_446_744_073_709_551_616.0 {
        canonical::number(&format!("{value:.0}"))
    } else {
        canonical::number(&format!("{value:e}"))
    }
}

/// A double for an integer, if one is exactly that.
#[expect(clippy::cast_possible_truncation, reason = "a double of an i64 is far within i128")]
pub(super) fn exact_double(value: i64) -> Option<f64> {
    let double = value as f64;
    (double as i128 == i128::from(value)).then_some(double)
}

/// The order of two numbers by their exact values.
#[expect(clippy::cast_possible_truncation, reason = "checked to be within 2^63")]
pub(super) fn int_to_double(int: i64, double: f64) -> Ordering {
    if double >= 9_223_372_036_854_775_808.0 {
        return Ordering::Less;
    }
    if double < -9_223_372_036_854_775_808.0 {
        return Ordering::Greater;
    }
    let whole = double.trunc();
    int.cmp(&(whole as i64)).then_with(|| 0.0_f64.partial_cmp(&(double - whole)).unwrap_or(Ordering::Equal))
}

/// A double without its fraction, if it is within 63 bits.
#[expect(clippy::cast_possible_truncation, reason = "checked to be within 2^63")]
pub(super) fn truncated(double: f64) -> Option<i64> {
    let whole = double.trunc();
    (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&whole).then_some(whole as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RP-11
    #[test]
    fn a_number_is_an_int_a_double_or_neither_and_comes_back_as_the_same_value() {
        for (text, kind) in [
            ("100", "int"),
            ("1E+2", "int"),
            ("10.00", "int"),
            ("-9223372036854775808", "int"),
            ("9223372036854775807", "int"),
            ("9223372036854775808", "double"),
            ("9223372036854775809", "number"),
            ("18446744073709551615", "number"),
            ("123456789012345678901234567890", "number"),
            ("0.1", "double"),
            ("1.5", "double"),
            ("1e300", "double"),
            ("5e-324", "double"),
            ("0.1000000000000000055511151231257827", "number"),
            ("1e400", "number"),
            ("1e-400", "number"),
        ] {
            let value = number(text);
            assert_eq!(value.kind(), kind, "{text}");
            assert_eq!(canonical::canonical_value(&value.to_json()), canonical::number(text), "{text}");
        }
    }

    #[test]
    fn ints_and_doubles_are_ordered_by_value() {
        for (int, double, order) in [
            (1, 1.5, Ordering::Less),
            (2, 1.5, Ordering::Greater),
            (-1, -1.5, Ordering::Greater),
            (1, 1.0, Ordering::Equal),
            (i64::MAX, 9_223_372_036_854_775_808.0, Ordering::Less),
            (i64::MIN, -9_223_372_036_854_775_808.0, Ordering::Equal),
            (i64::MIN, -1e300, Ordering::Greater),
            (9_007_199_254_740_993, 9_007_199_254_740_992.0, Ordering::Greater),
        ] {
            assert_eq!(int_to_double(int, double), order, "{int} {double}");
        }
        assert_eq!(exact_double(9_007_199_254_740_993), None);
        assert_eq!(exact_double(9_007_199_254_740_992), Some(9_007_199_254_740_992.0));
        assert_eq!((truncated(-1.9), truncated(1e19)), (Some(-1), None));
    }
}
